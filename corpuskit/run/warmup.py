"""Compiles the kernels of all stages by running their own examples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pydantic import ValidationError

from corpuskit import registry
from corpuskit.batch import ORIGIN
from corpuskit.stage import StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator


def warm_up() -> Iterator[tuple[str, float]]:
    """Run every streaming stage once on its examples; yield its name and the CPU seconds."""
    for name in registry.names():
        stage = registry.load(name)
        if not issubclass(stage, StreamingStage):
            continue
        began = time.process_time()
        texts = [example.text for example in stage.examples] or ["A text."]
        num = len(texts)
        batch = pa.record_batch(
            {
                "key": pa.array(range(num), pa.int64()),
                "id": pa.array([str(i) for i in range(num)]),
                "text": pa.array(texts, pa.large_string()),
                "source": pa.array(["web"] * num),
            }
        )
        params = stage.examples[0].params if stage.examples else {}
        try:
            made = stage.model_validate(dict(params))
        except ValidationError:
            continue  # needs a file that only the user has
        if not all(Path(file).exists() for file in made.files()):
            continue
        for column in made.needs():
            if column not in batch.schema.names:
                batch = batch.append_column(column, _made_up(column, texts))
        made.apply(View(batch))
        yield name, time.process_time() - began


def _made_up(column: str, texts: list[str]) -> pa.Array:
    """Return a column that the input or another stage would have given."""
    if column == "origin":
        return pa.array([{"url": text} for text in texts], ORIGIN)
    return pa.nulls(len(texts), pa.float64())
