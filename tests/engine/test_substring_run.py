"""Spans cut by a run: whichever engine, and killed in the middle, the same bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.formats.batch import SPAN
from tests.engine.conftest import Lab, corpus, tree
from tests.engine.test_same_bytes import kill_at, read

pytest.importorskip("pydivsufsort")


def of_engine(folder, tokenizer, engine):
    folder.mkdir()
    lab = Lab(folder, tokenizer)
    documents = corpus(80)
    lab.write("web.jsonl", documents[:50])
    lab.write("books.jsonl", documents[50:])
    lab.pipeline["cell_bytes"] = 30_000
    lab.pipeline["executor"] = {"workers": 1}
    windows = {"engine": engine, "min_bytes": 60}
    lab.pipeline["stages"] = [
        {"substring_dedup": windows | {"min_document": 100, "prefer": ["books"]}},
        {"substring_dedup": windows | {"min_bytes": 25, "keep": "none", "action": "annotate"}},
    ]
    lab.save()
    return lab


def test_a_run_cuts_the_same_bytes_with_either_engine_killed_or_not(tmp_path, tokenizer):
    whole = of_engine(tmp_path / "whole", tokenizer, "suffix_array")
    killed = of_engine(tmp_path / "killed", tokenizer, "partitioned")
    whole.run()
    kill_at(killed, random.Random(1), 8.0)
    killed.run()
    assert tree(whole.out, "documents", "ledger") == tree(killed.out, "documents", "ledger")

    rows = read(whole, "ledger")
    assert {row["rule"] for row in rows} >= {"repeated_substring", "too_little_left"}
    cut = next(row for row in rows if row["action"] == "cut")
    assert "repeated_substring" in whole.cli("why", str(whole.out), cut["doc_id"]).stdout

    path = min((whole.out / "documents").glob("*.parquet"))
    assert pq.read_schema(path).field("substring_dedup_2.spans").type == pa.list_(SPAN)
    ratios = [row["substring_dedup_2.duplicated_ratio"] for row in read(whole, "documents")]
    assert 0 <= min(ratios) < max(ratios) <= 1
