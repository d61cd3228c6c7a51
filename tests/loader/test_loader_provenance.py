"""Both directions between steps and documents, and that they are inverse to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from loader_runs import (
    CONTINUES,
    GOES_ON,
    Shards,
    expected_order,
    write_exchange_run,
    write_lookups,
    write_plan,
    write_shards,
)

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader
from corpuskit.loader.files import LocalFiles
from corpuskit.loader.provenance import LookupFile

if TYPE_CHECKING:
    from pathlib import Path

MIX = [(130, {"web": 5, "books": 3}), (90, {"web": 1, "books": 2, "math": 4})]


@pytest.fixture(scope="module")
def run(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provenance") / "run"
    return write_plan(shards, MIX, skip=[[40, 61]], folder=folder)


def test_which_names_the_rows_of_the_batch(run: Path) -> None:
    with StreamingLoader(run, 8) as loader:
        for step, batch in enumerate(loader):
            rows = loader.which(step)
            assert [row.row for row in rows] == list(range(8))
            assert [row.run_row for row in rows] == batch["run_rows"].tolist()
            assert [row.source_row for row in rows] == batch["row_ids"].tolist()
            assert [loader.source_names.index(row.source) for row in rows] == batch[
                "source_ids"
            ].tolist()


def test_which_names_every_document_of_a_row(shards: Shards, run: Path) -> None:
    for row in StreamingLoader(run, 8).which(3):
        expected = [
            (s.key, shards.ids[s.key], s.start, s.end - s.start, s.flags)
            for s in shards.segments[row.source][row.source_row]
            if s.key >= 0
        ]
        found = [
            (
                d.key,
                d.id,
                d.first_token,
                d.num_tokens,
                d.continues * CONTINUES | d.goes_on * GOES_ON,
            )
            for d in row.documents
        ]
        assert found == expected


def test_which_names_where_a_document_came_from(run: Path) -> None:
    for row in StreamingLoader(run, 8).which(5):
        for document in row.documents:
            assert f"{row.source}/{document.file}#{document.position}" == document.id


def test_which_of_a_rank_is_its_slice(run: Path) -> None:
    loader = StreamingLoader(run, 12, world_size=3)
    whole = loader.which(4)
    assert [loader.which(4, rank) for rank in range(3)] == [whole[:4], whole[4:8], whole[8:]]
    assert loader.which(4, rank=1, row=2) == [whole[6]]
    assert loader.which(4, row=6) == [whole[6]]


def test_occurrences_and_which_are_inverse(run: Path) -> None:
    loader = StreamingLoader(run, 8)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for step in range(loader.num_steps):
        for row in loader.which(step):
            place = (row.step, row.row, row.source_row, row.epoch)
            for document in row.documents:
                seen.setdefault(document.id, set()).add(place)
    assert len(seen) > 200
    for document in list(seen)[::3]:
        occurrences = [(s.step, s.row, s.source_row, s.epoch) for s in loader.occurrences(document)]
        assert occurrences == sorted(seen[document])


def test_when_takes_a_key_as_well(shards: Shards, run: Path) -> None:
    loader = StreamingLoader(run, 8)
    key, document = max(shards.ids.items())
    assert loader.occurrences(key) == loader.occurrences(document)
    assert len({s.epoch for s in loader.occurrences(key)}) > 3


def test_a_document_of_rows_that_are_skipped_is_not_seen(shards: Shards, tmp_path: Path) -> None:
    stages = [(400, {"web": 1})]
    run = write_plan(shards, stages, folder=tmp_path / "a")
    counter, key = next(
        (counter, segment.key)
        for counter, (name, row, _) in enumerate(expected_order(run))
        for segment in shards.segments[name][row]
        if not segment.flags
    )
    skip = [[counter, counter + 1]]
    without = write_plan(shards, stages, folder=tmp_path / "b", skip=skip)
    assert len(StreamingLoader(run, 4).occurrences(key)) == 1
    assert StreamingLoader(without, 4).occurrences(key) == []


@pytest.mark.parametrize("document", ["web/web.jsonl#1", 3, "", -1, 2**62, 2**70, "\ud800"])
def test_a_document_that_is_not_there_is_said_so(run: Path, document: str | int) -> None:
    with pytest.raises(UsageError, match="no packed row holds"):
        StreamingLoader(run, 8).occurrences(document)


def test_an_id_given_twice_is_both_documents(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {"web": 60})
    first, second = sorted(shards.ids)[3], sorted(shards.ids)[30]
    shards.ids[second] = shards.ids[first]
    write_lookups(shards)
    loader = StreamingLoader(write_plan(shards, [(60, {"web": 1})]), 4)
    both = sorted(
        [*loader.occurrences(first), *loader.occurrences(second)], key=lambda s: (s.step, s.row)
    )
    assert loader.occurrences(shards.ids[first]) == both
    assert loader.occurrences(first) != loader.occurrences(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 24}, r"step must be in \[0, 24\), got 24"),
        ({"step": -1}, r"step must be in \[0, 24\), got -1"),
        ({"step": 1.5}, r"step must be a whole number, got 1\.5"),
        ({"step": 0, "rank": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"step": 0, "row": 8}, r"row must be in \[0, 8\), got 8"),
        ({"step": 0, "rank": 0, "row": 4}, r"row must be in \[0, 4\), got 4"),
    ],
)
def test_which_of_nothing_is_refused(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StreamingLoader(run, 8, world_size=2).which(**options)


def test_steps_before_another_batch_size_are_not_guessed(run: Path) -> None:
    loader = StreamingLoader(run, 12)
    loader.load_state_dict(StreamingLoader(run, 8, start_step=3).state_dict())
    document = loader.which(3)[0].documents[0]
    assert 3 in [occurrence.step for occurrence in loader.occurrences(document.key)]
    with pytest.raises(UsageError, match="first 3 steps took 24 rows"):
        loader.which(2)


def test_a_missing_lookup_is_named(shards: Shards, tmp_path: Path) -> None:
    run = write_plan(shards, MIX, folder=tmp_path / "run")
    (run / "work").unlink()
    with pytest.raises(DataError, match=r"work/lookups/\d\.arrow"):
        StreamingLoader(run, 8).occurrences(0)


def test_keys_are_found_in_every_batch_that_holds_them(tmp_path: Path) -> None:
    rows = sorted(
        (int(key), i) for i, key in enumerate(np.random.default_rng(0).integers(0, 60, 500))
    )
    types = {"key": pa.uint64(), "value": pa.int64()}
    write_exchange_run(tmp_path / "run.arrow", types, rows, batch_rows=20)
    run = LookupFile(LocalFiles(tmp_path), "run.arrow")
    for first in range(-1, 61):
        for last in range(first, 61, 7):
            if first < 0:
                continue
            found = [
                (row["key"], row["value"])
                for batch in run.among(np.arange(first, last + 1, dtype=np.uint64))
                for row in batch.to_pylist()
            ]
            assert found == [row for row in rows if first <= row[0] <= last]


def test_a_range_leaves_other_batches_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    rows = [(key, f"{key:06d}") for key in range(1000)]
    write_exchange_run(path, {"key": pa.int64(), "id": pa.string()}, rows, batch_rows=100)
    stored = bytearray(path.read_bytes())
    at = stored.index(b"000700000701")
    stored[at : at + 6] = b"\xff" * 6
    path.write_bytes(stored)
    run = LookupFile(LocalFiles(tmp_path), path.name)
    matches = [batch.to_pylist() for batch in run.among(np.array([3, 699, 801]))]
    assert [row["id"] for rows in matches for row in rows] == ["000003", "000699", "000801"]
    with pytest.raises(DataError, match="batch 7 is damaged"):
        list(run.among(np.array([700])))
