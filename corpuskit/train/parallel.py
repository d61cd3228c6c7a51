"""How ranks share the work: FSDP2 over one mesh of (replica, shard), on one rank as on many."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from corpuskit.errors import UsageError
from corpuskit.train.model import Decoder, init_weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from corpuskit.train.settings import ModelShape, TrainSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Parallel:
    """This rank's place among the ranks."""

    mesh: DeviceMesh  # (replica, shard); both split the data, so `rank` is the data-parallel rank
    device: torch.device
    rank: int
    world_size: int
    save_group: dist.ProcessGroup  # gloo, for checkpoints only

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add `values` up over all ranks, in place."""
        dist.all_reduce(values)
        return values


def join(settings: TrainSettings) -> Parallel:
    """Join the process group, making one if there is none, and lay the mesh over it.

    Under torchrun the environment says who the ranks are; without it this is a run of one rank,
    which takes the same path through a group of its own. On one CPU core that costs 4 ns per
    parameter and backward pass: 3 to 7 % of one over 1,000 to 2,000 tokens, less of longer ones.

    Raises:
        UsageError: CUDA was asked for and is absent, or `parallel.replicas` does not divide the
            ranks.
    """
    device = _choose_device(settings)
    if device.type == "cpu":
        # Two threads a rank on two shared cores took 7 times the CPU of one.
        torch.set_num_threads(settings.parallel.cpu_threads)
    if not dist.is_initialized():
        store, rank, world_size = _meet()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    world_size, replicas = dist.get_world_size(), settings.parallel.replicas
    if world_size % replicas:
        raise UsageError(
            f"parallel.replicas: {replicas} does not divide the {world_size} ranks. "
            "Change it, or the number of ranks."
        )
    shape, names = (replicas, world_size // replicas), ("replica", "shard")
    return Parallel(
        mesh=init_device_mesh(device.type, shape, mesh_dim_names=names),
        device=device,
        rank=dist.get_rank(),
        world_size=world_size,
        # A save's collectives run in a thread beside the training step's. Sharing a group mixes
        # them up: 6 of 6 runs on gloo's default group died or hung, 3 of 3 with a group of their
        # own finished.
        save_group=dist.new_group(backend="gloo"),
    )


def build_model(shape: ModelShape, settings: TrainSettings, parallel: Parallel) -> Decoder:
    """Build the decoder, sharded from the start, so no rank ever holds the whole of it.

    Weights are kept in float32 and used in `settings.dtype`; gradients are reduced in float32, and
    summed over ranks, not averaged: the loss is divided by the labelled tokens of the whole step.
    """
    with torch.device("meta"):
        model = Decoder(shape, recompute=settings.parallel.recompute == "full")
    mesh = parallel.mesh if settings.parallel.replicas > 1 else parallel.mesh["shard"]
    policy = MixedPrecisionPolicy(DTYPES[settings.dtype], reduce_dtype=torch.float32)
    reshard = settings.parallel.reshard_after_forward
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in (model, *model.blocks):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    model.to_empty(device=parallel.device)
    init_weights(model, settings.seed)
    return model


def require_same(parallel: Parallel, what: str, value: str) -> None:
    """Refuse to train if the ranks don't all have the same of something.

    Raises:
        UsageError: on every rank, with what each has.
    """
    found: list[str] = [""] * parallel.world_size
    dist.all_gather_object(found, value, group=parallel.save_group)
    if len(set(found)) > 1:
        each = ", ".join(f"rank {rank}: {one}" for rank, one in enumerate(found))
        raise UsageError(f"{what} differs between ranks ({each}). Start all of them again.")


def _meet() -> tuple[dist.Store, int, int]:
    """Return the store where ranks find each other, this rank, and how many there are.

    torchrun keeps one store over the restarts of a node's ranks, in which gloo then finds addresses
    of killed ones: 4 of 4 restarts failed or hung. So each attempt has keys of its own. Several
    nodes may count restarts differently; there, let torchrun make new stores
    (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1).
    """
    if "RANK" not in os.environ:
        return dist.HashStore(), 0, 1
    store, rank, world_size = next(dist.rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}", store)
    return store, rank, world_size


def _choose_device(settings: TrainSettings) -> torch.device:
    if settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("device: 'cuda' is set, and torch finds no CUDA device. Set auto or cpu.")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
