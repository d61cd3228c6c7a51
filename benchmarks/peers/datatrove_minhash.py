"""datatrove: its four MinHash stages, Parquet to the documents that the last one lets through."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from adapter import BANDS, NGRAM, ROWS, measured
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from datatrove.data import Document


FOUND: list[str] = []


class Ids(PipelineStep):
    """Notes which documents come through, outside of itself: the executor copies its steps."""

    def run(
        self, data: Iterator[Document], rank: int = 0, world_size: int = 1
    ) -> Iterator[Document]:
        for document in data:
            FOUND.append(document.id)
            yield document


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Run the stages one after another in this process."""
    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS)
    with tempfile.TemporaryDirectory() as folder:

        def reader() -> ParquetReader:
            return ParquetReader(str(documents.parent), glob_pattern=documents.name)

        def run(name: str, steps: list[PipelineStep], tasks: int = 1) -> None:
            logs = f"{folder}/logs/{name}"
            LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=logs).run()

        run("sign", [reader(), MinhashDedupSignature(f"{folder}/sign", config)])
        buckets = MinhashDedupBuckets(f"{folder}/sign", f"{folder}/buckets", config=config)
        run("buckets", [buckets], BANDS)
        run("cluster", [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config)])
        run("filter", [reader(), MinhashDedupFilter(f"{folder}/remove"), Ids()])
    return lambda: FOUND


if __name__ == "__main__":
    measured("datatrove", keep)
