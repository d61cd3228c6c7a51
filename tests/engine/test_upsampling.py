"""A run that repeats documents and orders them: what the loader and the accounts say of it."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from corpuskit.engine.mixture import packing
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import accounts, sealed
from corpuskit.loader import StreamingLoader
from tests.engine.conftest import Lab, corpus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
EDGES = [0.5, 0.8]


@pytest.fixture(scope="module")
def repeated(tmp_path_factory, tokenizer: Path) -> Lab:
    """A finished run with copies by cluster size and by rank, and three bands of ranks."""
    lab = Lab(tmp_path_factory.mktemp("repeated"), tokenizer)
    documents = [
        {**one, "score": None if number % 9 == 0 else (number * 37 % 80) / 80}
        for number, one in enumerate(corpus(80))
    ]
    lab.write("web.jsonl", documents[:60])
    lab.write("books.jsonl", documents[60:])
    for source in lab.pipeline["sources"].values():
        source["columns"] = {"score": "float64"}
    bands = {"column": "percentile.rank", "edges": EDGES}
    lab.pipeline["stages"] = [
        {"exact_dedup": {"action": "annotate"}},
        {"percentile": {"columns": ["score"], "weigh_by": "bytes"}},
        {"upsample": {"column": "exact_dedup.cluster_size", "preset": "fineweb2"}},
        {"upsample": {"column": "percentile.rank", "curve": {"mean": 1.2}, "sources": ["web"]}},
        {"tokenize": {"tokenizer": str(tokenizer)}},
        {"pack": {"seq_len": 128, "bands": bands}},
        {"shuffle": {"order": "bands", "rows_per_part": 64}},
    ]
    lab.run()
    return lab


@pytest.fixture(scope="module")
def kept(repeated) -> dict[str, dict]:
    """Documents that are packed, by id."""
    tables = [pq.read_table(path) for path in sorted((repeated.out / "documents").glob("*"))]
    return {one["id"]: one for table in tables for one in table.to_pylist()}


@pytest.fixture(scope="module")
def rows(repeated):
    """All rows of the run."""
    loader = StreamingLoader(repeated.out, global_batch_rows=1)
    return loader, [row for step in range(loader.num_steps) for row in loader.which(step)]


def test_the_loader_sees_every_document_as_often_as_it_has_copies(kept, rows):
    seen = Counter(one.id for row in rows[1] for one in row.documents if not one.continues)
    expected = {
        name: one["upsample.copies"] * one["upsample_2.copies"] for name, one in kept.items()
    }
    assert seen == expected
    assert max(expected.values()) > 2


def test_no_row_holds_two_copies_of_a_document(rows):
    for row in rows[1]:
        keys = [one.key for one in row.documents]
        assert len(set(keys)) == len(keys)


def test_every_copy_is_found_backwards(kept, rows):
    loader, found = rows
    for name in kept:
        steps = [row.step for row in found if any(one.id == name for one in row.documents)]
        assert [occurrence.step for occurrence in loader.occurrences(name)] == steps


def test_rows_of_a_band_are_behind_those_of_the_band_before(kept, rows):
    places: dict[tuple[str, int], list[int]] = {}
    for row in rows[1]:
        ranks = {kept[one.id]["percentile.rank"] for one in row.documents}
        bands = {0 if rank is None else bisect.bisect_right(EDGES, rank) for rank in ranks}
        (band,) = bands
        places.setdefault((row.source, band), []).append(row.source_row)
    for (source, band), own in places.items():
        before = places.get((source, band - 1), [-1])
        assert min(own) > max(before)
    assert len(places) > 4


def test_documents_without_copies_are_in_the_ledger(repeated, kept):
    run = RunDirectory.open(str(repeated.out))
    found = {one.source: one for one in accounts(run, sealed(run))}
    assert [found[name].num_missing for name in ("web", "books")] == [0, 0]
    assert found["web"].num_kept + found["books"].num_kept == len(kept)
    assert found["web"].num_dropped > found["books"].num_dropped == 0


def test_the_table_of_packing_says_what_was_packed(repeated, kept, rows):
    found = packing(sealed(RunDirectory.open(str(repeated.out))))
    whole = [row for row in found if row.band is None]
    assert sum(row.documents for row in whole) == len(kept)
    assert sum(row.rows for row in whole) == len(rows[1])
    for source in whole:
        bands = [row for row in found if row.source == source.source and row.band is not None]
        assert len(bands) == 3
        assert sum(row.rows for row in bands) == source.rows
        assert sum(row.padding for row in bands) == source.padding
        assert sum(row.tokens for row in bands) == source.tokens
