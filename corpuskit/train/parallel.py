"""How ranks share the work: a mesh of (pipeline, replica, shard, expert, tensor), and FSDP2.

Ranks of a pipeline have different layers (pipeline.py), and ranks of an expert dimension different
experts (moe.py). With tensor parallelism, ranks share each matrix and, between blocks, the tokens
of a row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.train.adapters import add_adapters
from corpuskit.train.context import Context
from corpuskit.train.model import Decoder, init_weights
from corpuskit.train.moe import expert_layers
from corpuskit.train.settings import require_ranks, stage_spans

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from corpuskit.train.settings import ModelShape, TrainSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Parallel:
    """This rank, and how it shares the work with the others."""

    mesh: DeviceMesh  # (pipeline, replica, shard, expert, tensor)
    dense_mesh: DeviceMesh  # the same, or, if ranks share experts, (pipeline, replica, shard)
    device: torch.device
    rank: int  # of the process
    world_size: int
    data_rank: int  # which slice of the rows; ranks that share matrices or layers have the same
    data_ranks: int  # number of slices
    data_group: dist.ProcessGroup  # this rank, and one of each other slice
    context: Context | None  # the ranks that share the tokens of these rows, if any do
    pipeline_group: dist.ProcessGroup  # this rank, and those that have the other layers
    save_group: dist.ProcessGroup  # gloo, for checkpoints only
    talk_group: dist.ProcessGroup  # gloo, for Python objects

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add `values` up over the slices of the rows, in place, and return them; collective."""
        dist.all_reduce(values, group=self.data_group)
        return values

    def whole_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return whole rows (S, L) of the part (S, M) that this rank has of them; collective."""
        return tokens if self.context is None else self.context.gather(tokens)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, ordered by rank; collective."""
        values = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.talk_group)
        return values


def join(settings: TrainSettings) -> Parallel:
    """Join the process group, or make one, and lay the mesh over it.

    torchrun sets the environment that names the ranks; without it this is a run of one rank.

    Raises:
        UsageError: the settings need CUDA, which is absent, or the sizes of `parallel` do not
            divide the ranks.
    """
    device = _choose_device(settings)
    if settings.parallel.offload:
        require_offload(device)
    if device.type == "cpu":
        # Two threads a rank on two shared cores took 7 times the CPU of one.
        torch.set_num_threads(settings.parallel.cpu_threads)
    if not dist.is_initialized():
        store, rank, world_size = _meet()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    world_size = dist.get_world_size()
    require_ranks(settings.parallel, world_size)
    replicas, tensor = settings.parallel.replicas, settings.parallel.tensor
    pipeline = settings.parallel.pipeline
    expert, context = settings.parallel.expert, settings.parallel.context
    names = ("pipeline", "replica", "shard", "expert", "tensor")
    shards = world_size // (pipeline * replicas * expert * tensor)
    sizes = (pipeline, replicas, shards, expert, tensor)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    # Ranks that share rows have gradients of different tokens, so they shard the model, too.
    by_row = mesh._unflatten(2, (shards // context, context), ("slice", "context"))
    data = by_row["replica", "slice", "expert"]._flatten("data")
    rows = by_row["context"]
    dense = mesh
    if expert > 1:  # what is not experts is sharded over all ranks of a replica
        dense = init_device_mesh(
            device.type, (pipeline, replicas, shards * expert), mesh_dim_names=names[:3]
        )
    if tensor > 1:
        mesh["shard", "tensor"]._flatten("model")  # norms of gradients are reduced over it at once
    return Parallel(
        mesh=mesh,
        dense_mesh=dense,
        device=device,
        rank=dist.get_rank(),
        world_size=world_size,
        data_rank=data.get_local_rank(),
        data_ranks=data.size(),
        data_group=data.get_group(),
        context=Context(rows.get_local_rank(), context, rows.get_group()) if context > 1 else None,
        pipeline_group=mesh["pipeline"].get_group(),
        # A save's collectives run in a thread beside the training step's. In one group they mix: 6
        # of 6 runs on gloo's default group died or hung, 3 of 3 with a group of their own finished.
        save_group=dist.new_group(backend="gloo"),
        talk_group=dist.new_group(backend="gloo"),
    )


def build_model(shape: ModelShape, settings: TrainSettings, parallel: Parallel) -> Decoder:
    """Build the decoder, sharded from the start, so that no rank ever holds all of it.

    Weights are stored in float32 and used in `settings.dtype`. Gradients are reduced in float32,
    and summed over ranks, not averaged: the loss is divided by the labelled tokens of the step.
    """
    with torch.device("meta"):
        spans = stage_spans(shape.layers, settings.parallel)
        own_spans = [span for span in spans if span.rank == dist.get_rank(parallel.pipeline_group)]
        model = Decoder(
            shape,
            recompute=settings.parallel.recompute,
            stages=own_spans if settings.parallel.pipeline > 1 else (),
        )
        if settings.adapter:
            add_adapters(model, settings.adapter)
    if settings.float8:
        use_float8(model, parallel.device, settings.parallel.tensor)
    if settings.parallel.tensor > 1:
        share_matrices(model, parallel.mesh["tensor"])
    if settings.parallel.expert > 1:
        for layer in expert_layers(model.blocks):
            layer.experts.share(parallel.mesh["expert"])
    if settings.compile:
        for block in model.blocks:
            block.compile()
    # A single rank in float32 has nothing to shard or cast: FSDP would copy weights and gradients,
    # 3 to 7 % of a step of 2,000 tokens on a CPU core. State dicts have the same names without it.
    is_alone = parallel.world_size == settings.parallel.pipeline and settings.dtype == "float32"
    if not is_alone or settings.parallel.offload:
        _shard(model, settings, parallel)
    for root in model.stages or (model,):
        root.to_empty(device="cpu" if settings.parallel.offload else parallel.device)
    init_weights(model, settings.seed, settings.model.embedding_std)
    return model


def share_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Share the matrices of a model, still without weights, among the ranks of `mesh`.

    A block's first matrices are cut by outputs, its last ones by inputs, so each half of a block
    gathers the tokens once and reduces once; norms and the stream between them have L / ranks
    tokens. Norms have whole weights; FSDP, which is applied on top, sums their gradients.
    """
    by_tokens, replicated = Shard(1), Replicate()
    gather_tokens = PrepareModuleInput(
        input_layouts=(by_tokens, None), desired_input_layouts=(replicated, None)
    )
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=replicated, output_layouts=by_tokens),
        "norm": SequenceParallel(),
        "blocks.*.attention_norm": SequenceParallel(),
        "blocks.*.attention": gather_tokens,
        "blocks.*.attention.out": RowwiseParallel(output_layouts=by_tokens),
        "blocks.*.feed_forward_norm": SequenceParallel(),
        "blocks.*.feed_forward": PrepareModuleInput(
            input_layouts=by_tokens, desired_input_layouts=replicated
        ),
        "blocks.*.feed_forward.down": RowwiseParallel(output_layouts=by_tokens),
    }
    for name in ("attention.query", "attention.key", "attention.value"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    for name in ("feed_forward.gate", "feed_forward.up"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    if model.shape.qk_norm:
        # Sharded over heads instead of tokens: each rank has all tokens of its heads.
        for name in ("attention.query_norm", "attention.key_norm"):
            plan[f"blocks.*.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if model.head is not None:
        plan["head"] = ColwiseParallel()
    # A stage of a pipeline lacks some of them.
    children = dict(model.named_children())
    plan = {name: style for name, style in plan.items() if name.split(".")[0] in children}
    parallelize_module(model, mesh, plan)
    if model.embedding is not None:
        # It returns a tensor that is not complete yet (AsyncCollectiveTensor), whose gradient a
        # compiled block silently drops (torch 2.13); a copy is complete.
        model.embedding.register_forward_hook(lambda _module, _inputs, output: output.clone())
    if model.norm is None:
        return
    # A tied head is not a module, so the norm before it gathers the tokens.
    parallelize_module(
        model.norm,
        mesh,
        PrepareModuleOutput(
            output_layouts=by_tokens, desired_output_layouts=replicated, use_local_output=False
        ),
    )


def _shard(model: Decoder, settings: TrainSettings, parallel: Parallel) -> None:
    dimensions = ("shard",) if settings.parallel.replicas == 1 else ("replica", "shard")
    mesh = parallel.dense_mesh[dimensions]
    # Inputs are not cast: torch 2.13 also casts the fields of dataclasses, and the rotary angles of
    # `Layout` would become bfloat16.
    dtype = DTYPES[settings.dtype]
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    reshard = settings.parallel.zero == 3
    options: dict[str, Any] = {}
    if settings.parallel.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=parallel.device.type == "cuda")
    is_shared = settings.parallel.expert > 1
    expert_modules = [layer.experts for layer in expert_layers(model.blocks)] if is_shared else []
    for experts in expert_modules:
        expert_mesh = parallel.mesh[dimensions]
        fully_shard(experts, mesh=expert_mesh, mp_policy=policy, reshard_after_forward=reshard)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, **options)
    roots = model.stages or (model,)
    for root in roots:
        fully_shard(root, mesh=mesh, mp_policy=policy, **options)
    for module in (*roots, *model.blocks, *expert_modules):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def begin_micro_batch(model: nn.Module, settings: TrainSettings, *, is_last: bool) -> None:
    """Set before a micro-batch what FSDP communicates and frees in its backward pass.

    Gradients are reduced over replicas once per step, and over shards in each backward pass; with
    `parallel.zero: 1` only in the last one. With 1 and 2, weights stay whole until then.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last or settings.parallel.zero > 1)
        model.set_requires_all_reduce(is_last)  # second: the line above sets it, too
        model.set_reshard_after_backward(is_last or settings.parallel.zero > 2)


def require_offload(device: torch.device) -> None:
    """Refuse to offload from the CPU, which is to offload to the same memory.

    Raises:
        UsageError: the device is the CPU.
    """
    if device.type == "cpu":
        raise UsageError(
            "parallel.offload: true needs CUDA: on cpu all of it is in host memory. Leave it out."
        )


def use_float8(model: Decoder, device: torch.device, tensor: int) -> None:
    """Have torchao compute the matrix products of the blocks in float8.

    Raises:
        UsageError: torchao is absent, or the device has no float8.
    """
    has_float8 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
    if not has_float8:
        raise UsageError(
            "float8: true needs CUDA and a GPU of capability 8.9 (Ada, Hopper) or newer; this is "
            f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu'}. "
            "Leave it out."
        )
    if tensor > 1:
        raise UsageError("float8: true has not been fitted to parallel.tensor. Set one of the two.")
    try:
        from torchao.float8 import (  # type: ignore[import-not-found,unused-ignore]
            convert_to_float8_training,
        )
    except ImportError as error:
        raise UsageError(
            f"float8: true needs torchao: {error}. Run: {install_command('float8')}"
        ) from None
    convert_to_float8_training(
        model,
        module_filter_fn=lambda module, name: (
            # The kernels need multiples of 16.
            name.startswith("blocks.")
            and isinstance(module, nn.Linear)
            and module.in_features % 16 == module.out_features % 16 == 0
        ),
    )


def require_same(parallel: Parallel, subject: str, value: str) -> None:
    """Refuse to train if a value is not the same on all ranks.

    Raises:
        UsageError: on every rank, with the values of all.
    """
    values = parallel.gather(value)
    if len(set(values)) > 1:
        listed = ", ".join(f"rank {rank}: {text}" for rank, text in enumerate(values))
        raise UsageError(f"{subject} differs between ranks ({listed}). Start all of them again.")


def _meet() -> tuple[dist.Store, int, int]:
    """Return the store in which ranks find each other, this rank, and the number of ranks.

    torchrun keeps one store over the restarts of a node's ranks, where gloo then reads addresses of
    killed ranks: 4 of 4 restarts failed or hung. So each attempt has a prefix of its own. Several
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
