"""LitData: chunks of tokens written by `optimize`, read by TokensLoader through its own loader.

Stored as int32, which is what its tokenization recipe yields. `labels` cuts inputs and labels out of
a batch and widens them, as litgpt does. Several ranks are told by the variables that it reads.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, WITH_LABELS, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


def rows_of(path: str, place: tuple[int, int]) -> Iterator[Any]:
    """Yield stored rows as the recipe yields the tokens of documents."""
    import torch

    for row in np.load(path, mmap_mode="r")[place[0] : place[1]]:
        yield torch.from_numpy(row.astype(np.int32))


class LitData(Loader):
    distributions = ("litdata", "torch")

    def load_library(self) -> None:
        os.environ["WORLD_SIZE"], os.environ["GLOBAL_RANK"] = (
            str(self.spec.world_size),
            str(self.spec.rank),
        )
        import litdata
        import torch

        torch.set_num_threads(1)
        self.library = litdata
        self.delivers = WITH_LABELS if self.spec.variant == "labels" else IDS_ONLY

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        from litdata.streaming.item_loader import TokensLoader

        spec, raw = self.spec, Path(self.spec.store).parent / "raw"
        for name, array in rows.items():
            self.library.optimize(
                fn=functools.partial(rows_of, str(raw / f"{name}.npy")),
                inputs=[(0, len(array))],
                output_dir=str(Path(spec.store) / name),
                chunk_size=spec.width * (spec.part_rows or 8012),
                item_loader=TokensLoader(block_size=spec.width),
                num_workers=1,
            )

    def open(self, state: Any = None) -> None:
        from litdata.streaming.item_loader import TokensLoader

        spec, lit = self.spec, self.library
        datasets = [
            lit.StreamingDataset(
                str(Path(spec.store) / name),
                item_loader=TokensLoader(block_size=spec.width),
                shuffle=True,
                drop_last=True,
                seed=spec.seed,
            )
            for name in spec.names
        ]
        dataset = datasets[0]
        if spec.weights:
            weights = list(spec.weights.values())
            dataset = lit.CombinedStreamingDataset(
                datasets, seed=spec.seed, weights=weights, iterate_over_all=False
            )
        self.opened = lit.StreamingDataLoader(
            dataset, batch_size=spec.batch_rows, num_workers=spec.workers, drop_last=True
        )
        if state is not None:
            self.opened.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        if self.spec.variant != "labels":
            return iter(self.opened)
        return (
            (batch[:, :-1].contiguous().long(), batch[:, 1:].contiguous().long())
            for batch in self.opened
        )

    def state(self) -> Any:
        return self.opened.state_dict()

    def tokens(self, batch: Any) -> NDArray[Any]:
        return (batch[0] if isinstance(batch, tuple) else batch).numpy()

    def step(self, number: int) -> Any:
        import torch

        size = self.spec.global_rows
        dataset = self.opened.dataset
        return torch.stack([dataset[i] for i in range(number * size, (number + 1) * size)])


if __name__ == "__main__":
    serve(LitData)
