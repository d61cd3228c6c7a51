"""MosaicML Streaming: MDS shards, its own dataset, and its own DataLoader, which keeps the state.

Variants: `stratified` is its exact way of mixing within batches; `hashes` has shards fetched from a
`remote` folder into a `local` one and their hashes checked. Needs no torchvision: streaming imports
it for its image datasets, and a CPU-only environment has none that fits, so an empty one stands in.
"""

from __future__ import annotations

import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray


def stand_in_for_torchvision() -> None:
    """Put names where streaming's image datasets look for them."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        import transformers.feature_extraction_utils  # noqa: F401 - it looks for a real one

        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            sys.modules["torchvision" + name] = types.ModuleType("torchvision" + name)
        sys.modules["torchvision.datasets"].VisionDataset = object
        sys.modules["torchvision.transforms.functional"].to_tensor = None


def stacked(samples: Sequence[Mapping[str, Any]]) -> Any:
    """Make a batch: the default of torch can't stack arrays of uint16 on all versions."""
    import torch

    return torch.stack([torch.from_numpy(one["tokens"].astype(np.int64)) for one in samples])


class Mosaic(Loader):
    distributions = ("mosaicml-streaming", "torch", "numpy")
    delivers = IDS_ONLY

    def load_library(self) -> None:
        stand_in_for_torchvision()
        import streaming
        import torch

        torch.set_num_threads(1)
        self.library = streaming

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        size = self.spec.rows_per_part * (2 * self.spec.width + 8)
        columns = {"tokens": f"ndarray:uint16:{self.spec.width}"}
        for name, array in rows.items():
            with self.library.MDSWriter(
                out=str(Path(self.spec.store) / name),
                columns=columns,
                size_limit=size,
                hashes=["xxh64"],
            ) as writer:
                for row in array:
                    writer.write({"tokens": row})

    def open(self, state: Any = None) -> None:
        spec, library = self.spec, self.library
        common = {"batch_size": spec.batch_rows, "shuffle": True, "shuffle_seed": spec.seed}
        folders = [str(Path(spec.store) / name) for name in spec.names]
        if spec.weights:
            total = sum(spec.weights.values())
            dataset = library.StreamingDataset(
                streams=[
                    library.Stream(local=folder, proportion=weight / total)
                    for folder, weight in zip(folders, spec.weights.values(), strict=True)
                ],
                epoch_size=2048,
                batching_method="stratified" if spec.variant == "stratified" else "random",
                **common,
            )
        elif spec.variant == "hashes":
            local = tempfile.mkdtemp()
            dataset = library.StreamingDataset(
                remote=folders[0], local=local, validate_hash="xxh64", **common
            )
        else:
            dataset = library.StreamingDataset(local=folders[0], **common)
        self.opened = library.StreamingDataLoader(
            dataset,
            batch_size=spec.batch_rows,
            num_workers=spec.workers,
            collate_fn=stacked,
            drop_last=True,
        )
        if state is not None:
            self.opened.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        return iter(self.opened)

    def state(self) -> Any:
        return self.opened.state_dict()

    def tokens(self, batch: Any) -> NDArray[Any]:
        return batch.numpy()

    def step(self, number: int) -> Any:
        size, dataset = self.spec.global_rows, self.opened.dataset
        return stacked([dataset[i] for i in range(number * size, (number + 1) * size)])


if __name__ == "__main__":
    serve(Mosaic)
