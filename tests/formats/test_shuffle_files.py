"""Shuffle files: ranges come back whole, whatever the batches."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.formats import shuffle_files

U64 = st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.integers(2**64 - 4, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(U64, max_size=60),
    low=st.none() | U64,
    high=st.none() | U64 | st.just(2**64),
    rows=st.integers(1, 9),
)
def test_a_range_holds_just_the_rows_inside_it(tmp_path_factory, values, low, high, rows):
    path = tmp_path_factory.mktemp("run") / "a.arrow"
    before, shuffle_files.BATCH_ROWS = shuffle_files.BATCH_ROWS, rows
    try:
        numbers = np.arange(len(values))
        shuffle_files.write_shuffle(path, {"hash": np.array(values, np.uint64), "n": numbers})
        table = shuffle_files.read_shuffle(path, low, high)
    finally:
        shuffle_files.BATCH_ROWS = before
    expected = [
        (value, number)
        for value, number in sorted(zip(values, numbers.tolist(), strict=True))
        if (low is None or value >= low) and (high is None or value < high)
    ]
    assert list(zip(*(c.to_pylist() for c in table.columns), strict=True)) == expected


def test_ranges_cover_the_hash_line_without_gaps():
    for num in (1, 2, 3, 7, 64):
        ranges = shuffle_files.hash_ranges(num)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**64
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


def test_many_runs_come_producer_by_producer(tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.arrow")
        columns = {"key": np.array([5, 1], np.int64), "id": pa.array([f"{number}b", f"{number}a"])}
        shuffle_files.write_shuffle(paths[-1], columns)
    schema = pa.schema([("key", pa.int64()), ("id", pa.string())])
    table = shuffle_files.read_shuffles(paths, schema, 1, 6)
    assert table.column("id").to_pylist() == ["0a", "0b", "1a", "1b", "2a", "2b"]


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"x" * 100])
def test_a_file_that_is_no_run_is_a_data_error(tmp_path, content):
    path = tmp_path / "bad.arrow"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a shuffle file"):
        shuffle_files.read_shuffle(path)
