"""LanceDB: a table with one column of tokens, read by its StreamingDataset and StreamingDataLoader.

Rows are lists of fixed size of uint16; a transform widens the rows of a read to int32 at once, and
torch stacks them. Variants: `file order` does not shuffle, `labels` cuts inputs and labels too.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, WITH_LABELS, Loader, RefusedError, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


def widened(batch: Any) -> Any:
    """Return the tokens of the rows of a read as one tensor."""
    import torch

    column = batch.column("tokens")
    rows = column.flatten().to_numpy().reshape(len(column), -1)
    return torch.from_numpy(rows.astype(np.int32))


class Lance(Loader):
    distributions = ("lancedb", "torch")

    def load_library(self) -> None:
        import lancedb
        import lancedb.streaming
        import torch

        torch.set_num_threads(1)
        self.library, self.streaming = lancedb, lancedb.streaming
        self.delivers = WITH_LABELS if "labels" in self.spec.variant else IDS_ONLY

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        import pyarrow as pa

        if len(rows) > 1:
            raise RefusedError("one table; weights are a matter of the training code")
        kind = pa.list_(pa.uint16(), self.spec.width)
        schema, array = pa.schema([("tokens", kind)]), rows["web"]
        batches = (
            pa.record_batch(
                [pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=kind)], schema
            )
            for part in np.split(array, range(1024, len(array), 1024))
        )
        self.library.connect(self.spec.store).create_table("rows", batches, schema=schema)

    def open(self, state: Any = None) -> None:
        spec = self.spec
        self.table = self.library.connect(spec.store).open_table("rows")
        dataset = self.streaming.StreamingDataset(
            self.table,
            num_splits=spec.world_size,
            shuffle="file order" not in spec.variant,
            shuffle_seed=spec.seed,
            rank=spec.rank,
            world_size=spec.world_size,
            transform=widened,
            transform_parallelism=1,
        )
        self.opened = self.streaming.StreamingDataLoader(
            dataset, batch_size=spec.batch_rows, num_workers=spec.workers
        )
        if state is not None:
            dataset.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        steps = itertools.islice(self.opened, self.num_steps())
        if "labels" not in self.spec.variant:
            return steps
        return ((batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) for batch in steps)

    def state(self) -> Any:
        return self.opened.dataset.state_dict()

    def tokens(self, batch: Any) -> NDArray[Any]:
        return (batch[0] if isinstance(batch, tuple) else batch).numpy()

    def step(self, number: int) -> Any:
        size = self.spec.global_rows
        offsets = list(range(number * size, (number + 1) * size))
        return widened(self.table.take_offsets(offsets).to_arrow().combine_chunks().to_batches()[0])


if __name__ == "__main__":
    serve(Lance)
