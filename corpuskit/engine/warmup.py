"""Compiles kernels: of streaming stages by their examples, of global ones by a tiny run."""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pydantic import ValidationError

from corpuskit.engine import registry
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.formats.batch import ORIGIN
from corpuskit.stage import StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator


_GLOBAL = (
    "exact_dedup",
    {"minhash_dedup": {"keep": "longest"}},
    {"substring_dedup": {"min_bytes": 60, "min_document": 0}},
    {"line_dedup": {"min_count": 2, "min_document": 0}},
)


def warm_up() -> Iterator[tuple[str, float]]:
    """Compile what stages use; yield a name and the CPU seconds that it took."""
    yield from _warm_streaming()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory() as folder:
        _run_global(Path(folder))
    yield "dedup", resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def _run_global(folder: Path) -> None:
    """Run the global stages over made-up documents with repeats of every kind."""
    chance = random.Random(0)
    words = [f"word{number}" for number in range(500)]
    lines = [" ".join(chance.choices(words, k=14)) for _ in range(150)]
    pages = ["\n".join(chance.sample(lines, 12)) for _ in range(50)]
    pages += [pages[0], f"{pages[1]} and more", f"other {pages[2]}"]
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
    pipeline = {
        "output": str(folder / "out"),
        "sources": {"made": {"jsonl": str(path)}},
        "stages": _GLOBAL,
        "executor": {"workers": 1},
    }
    (folder / "p.yaml").write_text(json.dumps(pipeline))  # JSON is YAML
    run(read_plan(folder / "p.yaml"))


def _warm_streaming() -> Iterator[tuple[str, float]]:
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
