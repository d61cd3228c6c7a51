"""The loader as a torch dataset, for training code that wants a `DataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corpuskit.loader.stream import StreamingLoader

_NO_WORKERS = (
    "TorchStream: num_workers must be 0: the loader reads ahead in threads, and each worker process"
    " would deliver every row again. Set reader_threads of StreamingLoader instead."
)


class TorchStream(IterableDataset[dict[str, torch.Tensor | int]]):
    """Yields the batches of a loader as tensors that share the memory of its arrays.

    Use it as it is, or with `DataLoader(stream, batch_size=None, num_workers=0)`: it yields whole
    batches. Integers stay int32, half the bytes to a device; take `.long()` there where needed.

    Args:
        loader: may also be iterated directly; both are one position.
        pin_memory: copy each batch into page-locked memory, for `to(device, non_blocking=True)`.

    Raises:
        UsageError: pinned memory is asked for without a CUDA device.
    """

    def __init__(self, loader: StreamingLoader, *, pin_memory: bool = False) -> None:
        super().__init__()
        if pin_memory and not torch.cuda.is_available():
            raise UsageError("TorchStream: pin_memory must be False where there is no CUDA device.")
        self._loader, self._pin_memory = loader, pin_memory

    def __iter__(self) -> Iterator[dict[str, torch.Tensor | int]]:
        if get_worker_info() is not None:
            raise UsageError(_NO_WORKERS)
        return self._tensors()

    def __reduce__(self) -> NoReturn:
        # What a DataLoader does to reach workers that are not forked.
        raise UsageError(_NO_WORKERS)

    def state_dict(self) -> dict[str, object]:
        """Return the state of the loader."""
        return self._loader.state_dict()

    def load_state_dict(self, fields: Mapping[str, object]) -> None:
        """Move the loader to a saved state."""
        self._loader.load_state_dict(fields)

    def _tensors(self) -> Iterator[dict[str, torch.Tensor | int]]:
        for batch in self._loader:
            tensors: dict[str, torch.Tensor | int] = {}
            for name, value in batch.items():
                if isinstance(value, int):
                    tensors[name] = value
                    continue
                tensor = torch.from_numpy(value)
                tensors[name] = tensor.pin_memory() if self._pin_memory else tensor
            yield tensors
