"""datatrove: DatatroveFolderDataset over its `.ds` files, batches by a torch DataLoader.

The dataset is addressed by number and has no order, state or ranks of its own. The sampler here does
what that of nanotron does: consecutive rows, a rank's slice of each batch, rows consumed skipped.
`labels` cuts inputs and labels out of a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, WITH_LABELS, Loader, RefusedError, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


class Consumed:
    """Yields batches of row numbers from a step on."""

    def __init__(self, num_steps: int, global_rows: int, rank: int, batch_rows: int) -> None:
        self.num_steps, self.global_rows = num_steps, global_rows
        self.offset, self.batch_rows, self.first = rank * batch_rows, batch_rows, 0

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.num_steps):
            first = step * self.global_rows + self.offset
            yield list(range(first, first + self.batch_rows))

    def __len__(self) -> int:
        return self.num_steps - self.first


class Datatrove(Loader):
    distributions = ("datatrove", "torch")

    def load_library(self) -> None:
        self.delivers = WITH_LABELS if self.spec.variant == "labels" else IDS_ONLY
        import torch
        import torch.utils.data
        from datatrove.utils.dataset import DatatroveFolderDataset

        torch.set_num_threads(1)
        self.torch, self.dataset_type = torch, DatatroveFolderDataset

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        if len(rows) > 1:
            raise RefusedError("one folder; weights are a matter of the training code (nanotron)")
        for number, first in enumerate(range(0, len(rows["web"]), self.spec.rows_per_part)):
            part = rows["web"][first : first + self.spec.rows_per_part]
            path = Path(self.spec.store) / f"{number:05d}.ds"
            part.tofile(path)
            ends = np.arange(1, len(part) + 1, dtype=np.uint64) * np.uint64(self.spec.width)
            ends.tofile(f"{path}.index")

    def open(self, state: Any = None) -> None:
        spec = self.spec
        dataset = self.dataset_type(
            spec.store, seq_len=spec.width - 1, token_size=2, shuffle=True, seed=spec.seed
        )
        steps = len(dataset) // spec.global_rows
        self._sampler = Consumed(steps, spec.global_rows, spec.rank, spec.batch_rows)
        self._sampler.first = self._step = state or 0
        self.opened = self.torch.utils.data.DataLoader(
            dataset, batch_sampler=self._sampler, num_workers=spec.workers
        )

    def epoch(self) -> Iterator[Any]:
        for batch in self.opened:
            self._step += 1
            if self.spec.variant == "labels":
                ids = batch["input_ids"]
                batch = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
            yield batch
        self._sampler.first = self._step = 0

    def state(self) -> Any:
        return self._step

    def state_at(self, share: float) -> Any:
        return int(self.num_steps() * share)

    def tokens(self, batch: Any) -> NDArray[Any]:
        return (batch[0] if isinstance(batch, tuple) else batch["input_ids"]).numpy()

    def step(self, number: int) -> Any:
        size, dataset = self.spec.global_rows, self.opened.dataset
        rows = range(number * size, (number + 1) * size)
        return self.torch.stack([dataset[i]["input_ids"] for i in rows])


if __name__ == "__main__":
    serve(Datatrove)
