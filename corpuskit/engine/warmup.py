"""Compiles kernels: runs streaming stages on their examples, and everything else in tiny runs."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import multiprocessing
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from corpuskit.cpu import cpu_seconds, start_quickly
from corpuskit.engine import registry
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.formats.batch import ORIGIN
from corpuskit.kernels.target import warmup_marker
from corpuskit.stage import StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator


_TOKENS = "bytes.tiktoken"
_TOKENIZE = {
    "tokenize": {
        "tokenizer": _TOKENS, "pattern": "gpt2", "special_tokens": {"<end>": 256}, "eos": "<end>",
    }
}  # fmt: skip
_PACK = {"pack": {"seq_len": 64}}
_WORDS = {"gopher_quality": {"words": "whitespace", "min_words": 10, "min_stop_words": None}}
_RUNS: dict[str, tuple[Any, ...]] = {
    "near duplicates": ({"minhash_dedup": {}}, {"minhash_dedup": {"keep": "longest"}}),
    "tokens": (_WORDS, _WORDS, "exact_dedup", "pii", _TOKENIZE, _PACK, "shuffle"),
    "lines": (
        {"overlap_dedup": {"unit": "line", "ngram": 5}},
        {"line_dedup": {"min_count": 2, "min_document": 0}},
    ),
    "substrings": ({"substring_dedup": {"min_bytes": 60, "min_document": 0}},),
}
"""The stages of the tiny runs, the slowest to compile first."""


def warm_up(jobs: int) -> Iterator[tuple[str, float]]:
    """Compile the kernels of stages in several processes; yield names and CPU seconds.

    A kernel that two processes want is compiled by one of them.
    """
    names = [*_RUNS, *registry.names()]
    spawn = multiprocessing.get_context("spawn")  # a fork would share the compiler's locks
    with concurrent.futures.ProcessPoolExecutor(jobs, spawn, start_quickly) as pool:
        waiting = [pool.submit(_warm, name) for name in names]
        for future in concurrent.futures.as_completed(waiting):
            name, seconds = future.result()
            if seconds:
                yield name, seconds
    mark = warmup_marker()
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def _warm(name: str) -> tuple[str, float]:
    began = cpu_seconds()
    if name in _RUNS:
        with tempfile.TemporaryDirectory() as folder:
            _run(Path(folder), name)
    elif not _apply(name):
        return name, 0.0
    return name, cpu_seconds() - began


def _run(folder: Path, name: str) -> None:
    """Run stages over made-up documents with repeats of every kind, from files of three kinds."""
    chance = random.Random(0)
    words = [f"word{number}" for number in range(500)]
    lines = [" ".join(chance.choices(words, k=14)) for _ in range(150)]
    pages = ["\n".join(chance.sample(lines, 12)) for _ in range(50)]
    pages += [pages[0], f"{pages[1]} and more", f"other {pages[2]}"]
    pages += ["too short"]
    rows = [{"id": f"\\{i}", "text": page, "note": '"'} for i, page in enumerate(pages)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "in.txt").write_text("\n\n".join(pages))
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    tokens = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (folder / _TOKENS).write_text("".join(tokens))
    kinds = {"jsonl": {"id_column": "id"}, "text": {"per": "paragraph"}, "parquet": {}}
    ending = {"jsonl": "jsonl", "text": "txt", "parquet": "parquet"}
    pipeline = {
        "output": str(folder / "out"),
        "sources": {
            kind: {kind: str(folder / f"in.{ending[kind]}"), **params}
            for kind, params in kinds.items()
        },
        "stages": json.loads(json.dumps(_RUNS[name]).replace(_TOKENS, str(folder / _TOKENS))),
        "executor": {"workers": 0},
    }
    (folder / "p.yaml").write_text(json.dumps(pipeline))  # JSON is YAML
    run(read_plan(folder / "p.yaml"), force=True)


def _apply(name: str) -> bool:
    """Have a streaming stage decide on its examples; False if it cannot."""
    stage = registry.load(name)
    if not issubclass(stage, StreamingStage):
        return False
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
        instance = stage.model_validate(dict(params))
    except ValidationError:
        return False  # needs a file that only the user has
    if not all(Path(file).exists() for file in instance.files()):
        return False
    for column in instance.needs():
        if column not in batch.schema.names:
            batch = batch.append_column(column, _made_up(column, texts))
    instance.apply(View(batch))
    return True


def _made_up(column: str, texts: list[str]) -> pa.Array:
    """Return a column that the input or another stage would have given."""
    if column == "origin":
        return pa.array([{"url": text} for text in texts], ORIGIN)
    return pa.nulls(len(texts), pa.float64())
