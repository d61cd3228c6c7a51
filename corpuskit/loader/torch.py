"""The loader as a torch dataset, and its batches in the form that other training code takes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from corpuskit.loader.stream import StreamingLoader

Tensors = dict[str, torch.Tensor | int]

_NO_WORKERS = (
    "TorchStream: num_workers must be 0: the loader reads ahead in threads, and each worker process"
    " would deliver every row again. Set reader_threads of StreamingLoader instead."
)

_NO_BATCHING = (
    "TorchStream: batch_size of the DataLoader must be None: the stream yields whole batches, and"
    " DataLoader would collect them into batches once more, its default being 1."
    " Set global_batch_rows and micro_batches of StreamingLoader instead."
)


class TorchStream(IterableDataset[Tensors]):
    """Yields the batches of a loader as tensors that share the memory of its arrays.

    Use it directly, or with `DataLoader(stream, batch_size=None, num_workers=0)`: it yields whole
    batches of this rank, so nothing may slice or shard them again. Integers stay int32, half
    the bytes to a device; take `.long()` there where needed.

    Args:
        loader: may also be iterated directly; both are one position.
        pin_memory: copy each batch into page-locked memory, for `to(device, non_blocking=True)`.

    Raises:
        UsageError: `pin_memory` without a CUDA device.
    """

    def __init__(self, loader: StreamingLoader, *, pin_memory: bool = False) -> None:
        super().__init__()
        if pin_memory and not torch.cuda.is_available():
            raise UsageError("TorchStream: pin_memory must be False where there is no CUDA device.")
        self.loader = loader
        self._pin_memory = pin_memory

    def __iter__(self) -> Iterator[Tensors]:
        if get_worker_info() is not None:
            raise UsageError(_NO_WORKERS)
        # A dataset does not know how a DataLoader will use it. The object that calls `iter` here
        # does: torch's fetcher, which has `auto_collation` unless batch_size is None.
        if getattr(sys._getframe(1).f_locals.get("self"), "auto_collation", False):
            raise UsageError(_NO_BATCHING)
        return self._tensors()

    def __len__(self) -> int:
        """Return the batches of the whole run, those delivered included.

        Frameworks that don't know the length fetch a batch ahead to see whether there is one.
        """
        return self.loader.num_batches

    def __reduce__(self) -> NoReturn:
        # What a DataLoader does to reach workers that are not forked.
        raise UsageError(_NO_WORKERS)

    def state_dict(self, step: int | None = None) -> dict[str, object]:
        """Return the state after a number of steps.

        Args:
            step: steps that training has done. None: those whose last batch was yielded, which are
                more if something between here and the training step fetches ahead.

        Raises:
            UsageError: the run has no such step.
        """
        return self.loader.state_dict() if step is None else self.loader.state_at(step)

    def load_state_dict(self, fields: Mapping[str, object]) -> None:
        """Move the loader to a saved state; take a new iterator then."""
        self.loader.load_state_dict(fields)

    def _tensors(self) -> Iterator[Tensors]:
        for batch in self.loader:
            # First on purpose: accelerate, asked to dispatch, cuts all tensors to the rows of what
            # comes first, segment boundaries too; at a number it raises instead.
            yield {
                name: value if isinstance(value, int) else self._tensor(value)
                for name, value in {"step": batch["step"], **batch}.items()
            }

    def _tensor(self, array: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        # Not a ring of our own: torch keeps page-locked blocks and reuses one when no tensor holds
        # it *and* the copies out of it are done, on whichever stream they were queued. Only torch
        # can know: a loop that never waits for its device queues copies many steps after the batch
        # was dropped.
        return tensor.pin_memory() if self._pin_memory else tensor


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and how many there are, as torch or torchrun has them.

    From `torch.distributed` where that is initialised, else from RANK and WORLD_SIZE, else (0, 1).
    Initialises nothing and does not communicate. Ranks that work on the same rows (tensor, context
    or pipeline parallel) must have the same slice: give the loader the rank in, and the size of,
    the data-parallel dimensions of the mesh instead.

    Raises:
        UsageError: RANK or WORLD_SIZE is not a number, or set without the other.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and size is None:
        return 0, 1
    if not (rank and rank.isdecimal() and size and size.isdecimal()):
        raise UsageError(
            f"loader: RANK and WORLD_SIZE must both be numbers, got {rank!r} and {size!r}."
            " Start with torchrun, which sets them, or unset both."
        )
    return int(rank), int(size)


def transformers_inputs(batch: Tensors) -> Tensors:
    """Return a batch as the arguments of a causal language model of `transformers`.

    - `shift_labels`: `labels` here belong to their own position; a model that gets `labels`
      alone shifts them once more. Both are there, since models compute a loss if there are
      `labels`.
    - Attention stays within segments: with `position_ids` that restart and without a cache, models
      mask for sdpa, eager and flex attention; flash attention takes `cu_seq_lens_*`.
    - Indices become int64. The result is not pinned: `DataLoader(pin_memory=True)` pins it.

    Models whose `forward` takes no `**kwargs` refuse it.

    Raises:
        UsageError: the batch lacks a field that this takes.
    """
    names = ("tokens", "labels", "position_ids", "cu_seqlens", "max_seqlen")
    if missing := [name for name in names if name not in batch]:
        raise UsageError(
            f"transformers_inputs: it needs the fields {', '.join(missing)}, which the batch lacks."
            " Add them to fields of StreamingLoader."
        )
    labels = _tensor_of(batch, "labels").long()
    bounds, longest = batch["cu_seqlens"], batch["max_seqlen"]
    return {
        "use_cache": False,  # first, as `step` in a TorchStream
        "input_ids": _tensor_of(batch, "tokens").long(),
        "position_ids": _tensor_of(batch, "position_ids").long(),
        "labels": labels,
        "shift_labels": labels,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _tensor_of(batch: Tensors, name: str) -> torch.Tensor:
    tensor = batch[name]
    assert isinstance(tensor, torch.Tensor), name
    return tensor
