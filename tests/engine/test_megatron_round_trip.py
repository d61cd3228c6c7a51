"""A source that was exported to Megatron, read back, packed, and delivered by the loader."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from corpuskit.integrations.export import Request, export
from corpuskit.loader import StreamingLoader
from tests.engine.conftest import Lab

if TYPE_CHECKING:
    from pathlib import Path


def stored(out: Path, source: str) -> list[dict]:
    """Return the packed rows of a source."""
    return [
        {**row, "tokens": np.frombuffer(row["tokens"], "<u2").tolist()}
        for path in (out / "tokens" / source).iterdir()
        for row in pq.read_table(path).to_pylist()
    ]


def pieces(rows: list[dict]) -> Counter[tuple[int, ...]]:
    """Return the ids of each stretch of a document, and how often it is there."""
    found: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        ends = [*row["doc_starts"][1:], len(row["tokens"])]
        for begin, end, flags in zip(row["doc_starts"], ends, row["flags"], strict=True):
            if not flags & 2:
                found[tuple(row["tokens"][begin:end])] += 1
    return found


def test_what_megatron_was_given_comes_back_and_is_delivered(finished, tokenizer, tmp_path):
    again = Lab(tmp_path, tokenizer)
    for unit in ("document", "row"):
        request = Request("megatron", unit=unit, sources=("web",))
        export(str(finished.out), str(again.inputs / unit), request)
    again.pipeline["sources"] = {
        "documents": {"megatron": str(again.inputs / "document" / "*.bin")},
        "rows": {"megatron": str(again.inputs / "row" / "web.bin")},
    }
    again.pipeline["stages"] = [
        {"tokenize": {"tokenizer": str(tokenizer), "ids": "tokens", "add_eos": False}},
        {"pack": {"seq_len": 128}},
        {"shuffle": {"rows_per_part": 64}},
        {"mix": {"weights": {"documents": 1, "rows": 1000}}},
    ]
    again.run()
    given = stored(finished.out, "web")
    assert pieces(stored(again.out, "documents")) == pieces(given)
    with StreamingLoader(str(again.out), global_batch_rows=1) as loader:
        number = loader.source_names.index("rows")
        delivered = Counter(
            tuple(batch["tokens"][0].tolist())
            for batch in loader
            if batch["source_ids"][0] == number
        )
    assert delivered == Counter(tuple(row["tokens"][:-1]) for row in given)
