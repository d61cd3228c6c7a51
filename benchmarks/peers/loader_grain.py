"""grain: a MapDataset over the memory-mapped array, shuffled, sliced by rank, batched, repeated.

Widened to int32 row by row, as its tutorials do in a `map`. Without workers it reads ahead with its
default threads; with workers through `mp_prefetch`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


def widened(row: NDArray[np.uint16]) -> NDArray[np.int32]:
    return row.astype(np.int32)


class Mapped:
    """A random access source over a file; opened anew where it is unpickled."""

    def __init__(self, path: str, width: int) -> None:
        self._path, self._width = path, width
        self._rows = np.memmap(path, np.uint16, "r").reshape(-1, width)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> NDArray[np.uint16]:
        return self._rows[number]

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self._path, self._width)


class Grain(Loader):
    distributions = ("grain", "numpy")
    delivers = IDS_ONLY

    def load_library(self) -> None:
        import grain

        self.library = grain

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        for name, array in rows.items():
            array.tofile(Path(self.spec.store) / f"{name}.bin")

    def open(self, state: Any = None) -> None:
        spec, grain = self.spec, self.library
        sources = [
            grain.MapDataset.source(Mapped(str(Path(spec.store) / f"{name}.bin"), spec.width))
            .seed(spec.seed + number)
            .shuffle()
            for number, name in enumerate(spec.names)
        ]
        dataset = sources[0]
        if spec.weights:
            weights = [float(weight) for weight in spec.weights.values()]
            dataset = grain.MapDataset.mix([one.repeat() for one in sources], weights)
        self._steps = len(dataset) // spec.global_rows
        dataset = dataset[spec.rank :: spec.world_size].map(widened)
        dataset = dataset.batch(spec.batch_rows, drop_remainder=True)
        self.opened = dataset if spec.weights else dataset.repeat()
        lazy = self.opened.to_iter_dataset()
        if spec.workers:
            lazy = lazy.mp_prefetch(grain.MultiprocessingOptions(num_workers=spec.workers))
        self._iterator = iter(lazy)
        self._step = 0
        if state is not None:
            self._step = state["step"]
            self._iterator.set_state(state["iterator"])

    def epoch(self) -> Iterator[Any]:
        for batch in itertools.islice(self._iterator, self._steps - self._step % self._steps):
            self._step += 1
            yield batch

    def state(self) -> Any:
        return {"step": self._step, "iterator": self._iterator.get_state()}

    def step(self, number: int) -> Any:
        return self.opened[number]


if __name__ == "__main__":
    serve(Grain)
