"""Hugging Face datasets: a streamed Parquet dataset in torch format, in torchdata's loader.

`file order` reads the files as they lie; else `shuffle` with its default-sized buffer of 1,000 (or
`buffer N`), which also shuffles the order of the files. The state is that of StatefulDataLoader, as
its documentation says, and the epoch for `set_epoch`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader_case import IDS_ONLY, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray


class HuggingFace(Loader):
    distributions = ("datasets", "torchdata", "torch", "pyarrow")
    delivers = IDS_ONLY

    def load_library(self) -> None:
        import datasets
        import datasets.distributed
        import torch
        from torchdata.stateful_dataloader import StatefulDataLoader

        torch.set_num_threads(1)
        datasets.disable_progress_bars()
        self.library, self.loader_type = datasets, StatefulDataLoader

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for name, array in rows.items():
            folder = Path(self.spec.store) / name
            folder.mkdir()
            for number, first in enumerate(range(0, len(array), self.spec.rows_per_part)):
                part = array[first : first + self.spec.rows_per_part]
                column = pa.FixedSizeListArray.from_arrays(
                    pa.array(part.reshape(-1)), part.shape[1]
                )
                pq.write_table(
                    pa.table({"input_ids": column}),
                    folder / f"{number:05d}.parquet",
                    compression="zstd",
                    row_group_size=256,
                    use_dictionary=False,
                )

    def open(self, state: Any = None) -> None:
        spec, library = self.spec, self.library
        sources = []
        for name in spec.names:
            files = sorted(map(str, (Path(spec.store) / name).glob("*.parquet")))
            source = library.load_dataset(
                "parquet", data_files=files, split="train", streaming=True
            )
            if spec.variant != "file order":
                size = int(spec.variant.split()[1]) if spec.variant else 1000
                source = source.shuffle(seed=spec.seed, buffer_size=size)
            sources.append(source)
        stream = sources[0]
        if spec.weights:
            total = sum(spec.weights.values())
            stream = library.interleave_datasets(
                sources,
                probabilities=[weight / total for weight in spec.weights.values()],
                seed=spec.seed,
                stopping_strategy="first_exhausted",
            )
        if spec.world_size > 1:
            split = library.distributed.split_dataset_by_node
            stream = split(stream, rank=spec.rank, world_size=spec.world_size)
        self._stream = stream.with_format("torch")
        self._epoch = state["epoch"] if state else 0
        self._stream.set_epoch(self._epoch)
        self.opened = self.loader_type(
            self._stream, batch_size=spec.batch_rows, num_workers=spec.workers, drop_last=True
        )
        if state is not None:
            self.opened.load_state_dict(state["loader"])

    def epoch(self) -> Iterator[Any]:
        self._stream.set_epoch(self._epoch)
        yield from self.opened
        self._epoch += 1

    def state(self) -> Any:
        return {"epoch": self._epoch, "loader": self.opened.state_dict()}

    def tokens(self, batch: Any) -> NDArray[Any]:
        return batch["input_ids"].numpy()

    def step(self, number: int) -> Any:
        size = self.spec.global_rows
        return list(itertools.islice(self._stream.skip(number * size), size))


if __name__ == "__main__":
    serve(HuggingFace)
