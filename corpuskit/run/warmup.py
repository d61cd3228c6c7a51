"""Compiles the kernels of all stages by running their own examples."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
from pydantic import ValidationError

from corpuskit import registry
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
        made.apply(View(batch))
        yield name, time.process_time() - began
