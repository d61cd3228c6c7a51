"""Packed rows that come table by table make the file that they would make at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.shards import token_schema, write_token_tables, write_tokens
from corpuskit.stages.sequences._rows import row_bytes

SCHEMA = token_schema(3, "uint16", {"source": "web"})


def table(rows):
    starts = pa.array([[0, 1]] * len(rows), pa.list_(pa.int32()))
    keys = pa.array([[int(row[0]), -1] for row in rows], pa.list_(pa.int64()))
    sizes = starts.cast(pa.list_(pa.int32()))
    flags = pa.array([[0, 2]] * len(rows), pa.list_(pa.uint8()))
    return pa.Table.from_arrays([row_bytes(rows), starts, keys, sizes, flags], schema=SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 150), max_size=5))
def test_tables_may_be_of_any_size_and_lie_in_the_same_memory(folder, sizes):
    rows = np.arange(4 * sum(sizes), dtype=np.uint16).reshape(-1, 4)
    memory = np.empty((150, 4), np.uint16)

    def tables():
        for size, end in zip(sizes, np.cumsum(sizes), strict=True):
            memory[:size] = rows[end - size : end]
            yield table(memory[:size])
            memory[:] = 9

    write_tokens(folder / "whole", table(rows))
    write_token_tables(folder / "pieces", SCHEMA, tables())
    assert (folder / "pieces").read_bytes() == (folder / "whole").read_bytes()
