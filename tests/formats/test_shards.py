"""Document shards, sidecars and token shards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.formats import shards
from corpuskit.formats.batch import document_schema, span_lists
from corpuskit.formats.shards import token_schema, write_token_tables, write_tokens
from corpuskit.stages.sequences._rows import row_bytes

SCHEMA = document_schema({}, {})


def documents(texts: list[str], first: int = 0) -> pa.RecordBatch:
    num = len(texts)
    origin = [{"file": "f", "position": first + i, "url": None, "date": None} for i in range(num)]
    columns = {
        "key": pa.array(range(first, first + num), pa.int64()),
        "id": pa.array([f"d{first + i}" for i in range(num)]),
        "text": pa.array(texts, pa.large_string()),
        "source": pa.array(["web"] * num),
        "origin": pa.array(origin, SCHEMA.field("origin").type),
        "extra": pa.nulls(num, pa.string()),
    }
    return pa.record_batch(columns, schema=SCHEMA)


def write(path, texts: list[str], batch_rows: int, first: int = 0) -> shards.DocumentWriter:
    with shards.DocumentWriter(path, SCHEMA) as writer:
        for begin in range(0, len(texts), batch_rows):
            writer.write(documents(texts[begin : begin + batch_rows], first + begin))
    return writer


def test_the_file_does_not_depend_on_how_rows_arrived(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_TEXT_BYTES", 100)
    texts = ["x" * (i * 7 % 90) for i in range(40)]
    contents = set()
    for rows in (1, 3, 40):
        path = tmp_path / f"{rows}.parquet"
        writer = write(path, texts, rows, 100)
        contents.add(path.read_bytes())
        assert (writer.rows, writer.first, writer.last) == (40, 100, 139)
    assert len(contents) == 1
    assert pq.ParquetFile(path).num_row_groups > 5
    assert writer.text_bytes == sum(map(len, texts))


def test_sidecars_mask_rows_and_add_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_TEXT_BYTES", 20)
    path = tmp_path / "part.parquet"
    write(path, ["aaaaaaaaaa"] * 7, 7)
    keep = [np.array([1, 1, 0, 1, 1, 1, 1], np.bool_), np.array([0, 1, 1, 1, 1, 1, 0], np.bool_)]
    paths = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    shards.write_sidecar(paths[0], keep[0], {"dup.size": pa.array(range(7))})
    shards.write_sidecar(paths[1], keep[1])
    table = pa.Table.from_batches(shards.read_documents(path, sidecars=paths))
    assert table.column("key").to_pylist() == [1, 3, 4, 5]
    assert table.column("dup.size").to_pylist() == [1, 3, 4, 5]
    only = list(shards.read_documents(path, ["key", "dup.size"], sidecars=paths))
    assert only[0].schema.names == ["key", "dup.size"]


def test_only_row_groups_that_may_hold_a_key_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_TEXT_BYTES", 20)
    path, sidecar = tmp_path / "part.parquet", tmp_path / "s.arrow"
    write(path, ["0123456789"] * 20, 20)
    keep = np.arange(20) % 3 > 0
    shards.write_sidecar(sidecar, keep, {"s.row": pa.array(range(20))})
    for wanted in ([], [0], [5, 6], [3, 19], [99]):
        keys = np.array(wanted, np.int64)
        found = list(shards.read_documents(path, sidecars=[sidecar], keys=keys))
        rows = [row for batch in found for row in batch.column("key").to_pylist()]
        assert rows == [r for batch in found for r in batch.column("s.row").to_pylist()]
        assert rows == [r for r in range(20) if keep[r] and {r // 2} & {w // 2 for w in wanted}]


def test_footers_hold_no_texts(tmp_path):
    path = tmp_path / "part.parquet"
    write(path, ["a text that is in no footer"] * 3, 3)
    group = pq.ParquetFile(path).metadata.row_group(0)
    with_bounds = [
        group.column(i).path_in_schema
        for i in range(group.num_columns)
        if group.column(i).statistics is not None
    ]
    assert with_bounds == ["key"]


def spans(*lists):
    """Return lists of (start, end) pairs as a sidecar has them."""
    found = [(row, *span) for row, some in enumerate(lists) for span in some]
    rows, starts, ends = np.array(found, np.int64).reshape(-1, 3).T
    return span_lists(rows, starts, ends, len(lists))


def test_cuts_are_made_one_sidecar_after_the_other_and_before_rows_go(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_TEXT_BYTES", 12)
    path = tmp_path / "part.parquet"
    write(path, ["0123456789", "", "abcdef", "xyz"], 4)
    paths = [tmp_path / f"{number}.arrow" for number in range(3)]
    keep = np.ones(4, np.bool_)
    shards.write_sidecar(paths[0], keep, cuts=spans([(0, 2), (4, 5), (5, 6)], [], [], [(0, 3)]))
    shards.write_sidecar(paths[1], keep & [1, 0, 1, 1], {"s.size": pa.array(range(4))})
    shards.write_sidecar(paths[2], keep, cuts=spans([(0, 2)], [], [(5, 6)], []))
    table = pa.Table.from_batches(shards.read_documents(path, sidecars=paths))
    assert table.column("text").to_pylist() == ["6789", "abcde", ""]
    assert table.column("s.size").to_pylist() == [0, 2, 3]
    keys = pa.Table.from_batches(shards.read_documents(path, ["key"], sidecars=paths))
    assert keys.column("key").to_pylist() == [0, 2, 3]


@pytest.mark.parametrize(
    "bad", [[(2, 5), (4, 6)], [(6, 7), (1, 2)], [(-1, 2)], [(3, 2)], [(9, 11)]]
)
def test_cuts_outside_of_a_text_are_a_data_error(tmp_path, bad):
    path, sidecar = tmp_path / "part.parquet", tmp_path / "s.arrow"
    write(path, ["0123456789", "0123456789"], 2)
    shards.write_sidecar(sidecar, np.ones(2, np.bool_), cuts=spans([(9, 10)], bad))
    with pytest.raises(DataError, match="cuts outside of a text"):
        list(shards.read_documents(path, sidecars=[sidecar]))


@pytest.mark.parametrize("rows", [6, 8])
def test_a_sidecar_of_another_part_is_a_data_error(tmp_path, rows):
    path, sidecar = tmp_path / "part.parquet", tmp_path / "s.arrow"
    write(path, ["a"] * 7, 7)
    shards.write_sidecar(sidecar, np.ones(rows, np.bool_))
    with pytest.raises(DataError, match="sidecar has"):
        list(shards.read_documents(path, sidecars=[sidecar]))


@pytest.mark.parametrize("size", [0, 10, -8])
def test_a_truncated_shard_is_a_data_error_that_names_the_file(tmp_path, size):
    path = tmp_path / "part.parquet"
    write(path, ["text"] * 100, 100)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"part\.parquet: not a whole document shard"):
        list(shards.read_documents(path))


def test_a_token_row_group_is_one_contiguous_uncompressed_page(tmp_path):
    path = tmp_path / "tokens.parquet"
    schema = shards.token_schema(16, "uint16", {"source": "web"})
    tokens = np.arange(200 * 17, dtype=np.uint16)
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(34), 200, [None, pa.py_buffer(tokens.tobytes())]
    )
    empty = [pa.array([[0]] * 200, schema.field(i).type) for i in range(1, 5)]
    shards.write_tokens(path, pa.Table.from_arrays([column, *empty], schema=schema))
    file = pq.ParquetFile(path)
    chunk = file.metadata.row_group(0).column(0)
    assert file.num_row_groups == 4
    assert chunk.compression == "UNCOMPRESSED"
    assert not chunk.has_dictionary_page
    assert chunk.total_compressed_size - 64 * 34 < 60
    assert tokens[: 64 * 17].tobytes() in path.read_bytes()


# ---------------------------------------------------------------- token shards

TOKEN_SCHEMA = token_schema(3, "uint16", {"source": "web"})


def token_table(rows):
    starts = pa.array([[0, 1]] * len(rows), pa.list_(pa.int32()))
    keys = pa.array([[int(row[0]), -1] for row in rows], pa.list_(pa.int64()))
    sizes = starts.cast(pa.list_(pa.int32()))
    flags = pa.array([[0, 2]] * len(rows), pa.list_(pa.uint8()))
    return pa.Table.from_arrays([row_bytes(rows), starts, keys, sizes, flags], schema=TOKEN_SCHEMA)


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
            yield token_table(memory[:size])
            memory[:] = 9

    write_tokens(folder / "whole", token_table(rows))
    write_token_tables(folder / "pieces", TOKEN_SCHEMA, tables())
    assert (folder / "pieces").read_bytes() == (folder / "whole").read_bytes()
