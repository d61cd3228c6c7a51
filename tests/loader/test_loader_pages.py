"""Pages are verified as zlib would, and what another writer left is read by Arrow."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_runs import write_index, write_plan, write_shards

from corpuskit.errors import DataError
from corpuskit.loader import StreamingLoader
from corpuskit.loader.parts import FoldedCrc, TokenPages
from corpuskit.loader.reader import Segments

if TYPE_CHECKING:
    from pathlib import Path

# Below, at and above the size from which pages are folded, and those where a fold is cut.
SIZES = (4, 1000, 141_600, 141_601, 183_278, 191_561, 262_272, 366_557, 900_001)


def write_pages(path: Path, values: np.ndarray, **options: object) -> None:
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values.tobytes())]
    )
    schema = pa.schema([pa.field("tokens", column.type, nullable=False)])
    written = {"compression": "none", "use_dictionary": False, "column_encoding": "PLAIN"}
    written |= {"write_statistics": False, "write_page_checksum": True, "data_page_size": 1 << 30}
    pq.write_table(pa.table([column], schema=schema), path, **(written | options))


def read_page(path: Path, num_rows: int, row_bytes: int) -> np.ndarray | None:
    with pa.OSFile(str(path)) as file:
        chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
        pages = TokenPages()
        pages.begin()
        values = pages.read(file, chunk, num_rows, row_bytes)
        pages.check()
        return values


@pytest.mark.parametrize("size", SIZES)
def test_a_page_is_accepted_as_arrow_writes_it_and_refused_with_a_flipped_bit(
    tmp_path: Path, size: int
) -> None:
    values = np.random.default_rng(size).integers(0, 256, (1, size), np.uint8)
    path = tmp_path / "page.parquet"
    write_pages(path, values)
    found = read_page(path, 1, size)
    assert found is not None
    assert (found == values).all()
    content = bytearray(path.read_bytes())
    begin = content.index(values.tobytes())
    for at in {0, size // 3, size - 1}:
        flipped = content.copy()
        flipped[begin + at] ^= 0x40
        path.write_bytes(flipped)
        with pytest.raises(DataError, match="CRC"):
            read_page(path, 1, size)


def test_pages_are_verified_together(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (300, 2000), np.uint8)
    path = tmp_path / "pages.parquet"
    write_pages(path, values, row_group_size=64)
    content = path.read_bytes()
    for row in (None, 0, 150, 299):
        damaged = bytearray(content)
        if row is not None:
            damaged[content.index(values[row].tobytes()) + 7] ^= 1
        path.write_bytes(damaged)
        pages = TokenPages()
        with pa.OSFile(str(path)) as file:
            footer = pq.ParquetFile(file).metadata
            pages.begin()
            for number in range(footer.num_row_groups):
                group = footer.row_group(number)
                rows = pages.read(file, group.column(0), group.num_rows, 2000)
                assert rows is not None
                if row is None:
                    assert (rows == values[64 * number :][:64]).all()
            if row is None:
                pages.check()
                continue
            with pytest.raises(DataError, match="CRC"):
                pages.check()


def test_the_crc_is_that_of_zlib_for_every_size_around_a_fold() -> None:
    values = np.random.default_rng(0).integers(0, 256, 1_000_000, np.uint8)
    for size in (4, *range(90_000, 1_000_000, 61_733), 366_555, 366_556, 366_557):
        crc = FoldedCrc()
        for first in range(0, size, 70_000):
            crc.add(values[first : min(first + 70_000, size)])
        assert crc.value() == zlib.crc32(values[:size].data)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": True, "column_encoding": None},
        {"data_page_version": "2.0"},
        {"write_page_checksum": False},
        {"data_page_size": 64, "write_batch_size": 8},
    ],
    ids=str,
)
def test_another_layout_is_left_to_arrow(tmp_path: Path, options: dict[str, object]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (64, 34), np.uint8)
    write_pages(tmp_path / "page.parquet", values, **options)
    assert read_page(tmp_path / "page.parquet", 64, 34) is None


def test_rows_in_another_layout_are_delivered_all_the_same(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {"web": 200})
    for entry in shards.index:
        path = tmp_path / entry["path"]
        table = pq.read_table(path)
        sizes = {"row_group_size": 64, "compression": "zstd", "write_page_checksum": True}
        pq.write_table(table, path, **sizes)
        entry["size_bytes"] = path.stat().st_size
    write_index(shards)
    with StreamingLoader(write_plan(shards, [(200, {"web": 1})]), 8) as loader:
        for batch in loader:
            expected = shards.tokens["web"][batch["row_ids"]]
            assert (batch["tokens"] == expected[:, :-1]).all()


def test_segments_come_back_row_by_row_in_whatever_order_they_came() -> None:
    random = np.random.default_rng(1)
    rows = [np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate(random.integers(1, 30, 9))]
    segments = Segments(9)
    for some in np.array_split(random.permutation(9), 3):
        counts = np.array([len(rows[i]) for i in some], np.int32)
        segments.add(some, np.concatenate([rows[i] for i in some]), counts)
    assert segments.starts_of(slice(2, 7)).tolist() == np.concatenate(rows[2:7]).tolist()
    assert segments.counts.tolist() == [len(row) for row in rows]
