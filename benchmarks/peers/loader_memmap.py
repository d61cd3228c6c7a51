"""One array in one file, mapped into memory: the limit, and what nanoGPT does.

`gather` copies rows in a random order into a reused int32 array, `gather labels` into one of inputs
and one of labels: no loader can do less. `crops` is nanoGPT's `get_batch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, WITH_LABELS, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


class Memmap(Loader):
    distributions = ("numpy", "torch")

    def load_library(self) -> None:
        self.delivers = WITH_LABELS if self.spec.variant != "gather" else IDS_ONLY
        if self.spec.variant == "crops":
            import torch

            torch.set_num_threads(1)

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        rows["web"].tofile(Path(self.spec.store) / "tokens.bin")

    def open(self, state: Any = None) -> None:
        self.opened = np.memmap(Path(self.spec.store) / "tokens.bin", np.uint16, "r")
        self._first = state or 0

    def epoch(self) -> Iterator[Any]:
        if self.spec.variant == "crops":
            return self._crops()
        return self._gather()

    def state_at(self, share: float) -> Any:
        return int(self.num_steps() * share)

    def step(self, number: int) -> Any:
        width, size = self.spec.width, self.spec.global_rows
        rows = self.opened.reshape(-1, width)
        return rows[np.random.default_rng(number).integers(0, len(rows), size)].astype(np.int32)

    def tokens(self, batch: Any) -> NDArray[Any]:
        return np.asarray(batch[0] if isinstance(batch, tuple) else batch)

    def _gather(self) -> Iterator[Any]:
        width, size = self.spec.width, self.spec.global_rows
        rows = self.opened.reshape(-1, width)
        order = np.random.default_rng(0).permutation(len(rows))
        stored = np.empty((size, width), np.uint16)
        ids = np.empty((size, width), np.int32)
        inputs, labels = (np.empty((size, width - 1), np.int32) for _ in range(2))
        is_labelled = self.spec.variant == "gather labels"
        begin, self._first = self._first * size, 0
        for first in range(begin, len(order) - size + 1, size):
            np.take(rows, order[first : first + size], axis=0, out=stored)
            if is_labelled:
                inputs[:], labels[:] = stored[:, :-1], stored[:, 1:]
                yield inputs, labels
            else:
                ids[:] = stored
                yield ids

    def _crops(self) -> Iterator[Any]:
        import torch

        tokens, size, length = self.opened, self.spec.global_rows, self.spec.width - 1
        first, self._first = self._first, 0
        for _ in range(first, self.num_steps()):
            places = torch.randint(len(tokens) - length, (size,))
            yield tuple(
                torch.stack([torch.from_numpy(tokens[i:end].astype(np.int64)) for i, end in cut])
                for cut in (
                    [(i, i + length) for i in places],
                    [(i + 1, i + 1 + length) for i in places],
                )
            )


if __name__ == "__main__":
    serve(Memmap)
