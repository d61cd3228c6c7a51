"""Files whose headers lie or contradict themselves are errors that name them, nothing else."""

from __future__ import annotations

import gzip
import json
import random
import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.errors import DataError, UsageError
from corpuskit.formats import shuffle_files
from corpuskit.formats.batch import POSITION_BITS
from corpuskit.formats.shuffle_files import read_shuffle, write_shuffle
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from tests.security import thrift
from tests.security.test_bombs import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = thrift.leaf(b"text")


def crafted(path: Path, schema: list[bytes], rows: int = 0, groups: tuple[bytes, ...] = ()) -> Path:
    path.write_bytes(thrift.parquet(schema, rows, list(groups)))
    return path


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([thrift.root(2), TEXT, TEXT], "2 columns 'text'"),
        ([thrift.root(2), TEXT, thrift.leaf(b"\xff\xfe")], "utf-8"),
        ([thrift.root(2), TEXT, *[thrift.folder(b"a", 1)] * 100_000, thrift.leaf(b"x")], "nested"),
        ([thrift.root(2**31 - 1), TEXT], "not enough elements"),
        ([thrift.root(-5), TEXT], "negative number of children"),
        ([], "Empty file schema"),
    ],
    ids=["twice", "no utf-8", "deep", "many children", "negative", "empty"],
)  # fmt: skip
def test_a_schema_that_cannot_serve_is_an_error_of_the_file(tmp_path, schema, message):
    path = crafted(tmp_path / "a.parquet", schema)
    with pytest.raises((DataError, UsageError), match=message):
        read(Parquet(paths=("*",)), path)


def test_a_file_without_row_groups_has_no_documents(tmp_path):
    path = crafted(tmp_path / "a.parquet", [thrift.root(1), TEXT])
    assert read(Parquet(paths=("*",)), path) == []


def test_rows_beyond_what_a_key_can_hold_are_refused(tmp_path):
    groups = (thrift.row_group(1 << POSITION_BITS, 4, 10), thrift.row_group(1, 4, 10))
    path = crafted(tmp_path / "a.parquet", [thrift.root(1), TEXT], 1, groups)
    with pytest.raises(DataError, match="the footer says 1,099,511,627,777 rows"):
        read(Parquet(paths=("*",)), path)


def test_rows_that_do_not_come_are_missed(tmp_path):
    content = thrift.page(thrift.strings(b"one", b"two"), 2)
    groups = [thrift.row_group(5, 4, len(content), values=2)]
    path = tmp_path / "a.parquet"
    path.write_bytes(thrift.parquet([thrift.root(1), TEXT], 5, groups, content))
    with pytest.raises(DataError, match="row group 0"):
        read(Parquet(paths=("*",)), path)


@pytest.mark.parametrize("size", [-1, 2**31 - 1])
def test_a_page_that_cannot_be_is_an_error_of_the_file(tmp_path, size):
    content = thrift.page(thrift.strings(b"a"), 1, claimed=size)
    path = tmp_path / "a.parquet"
    groups = [thrift.row_group(1, 4, len(content))]
    path.write_bytes(thrift.parquet([thrift.root(1), TEXT], 1, groups, content))
    with pytest.raises(DataError, match="row group 0"):
        read(Parquet(paths=("*",)), path)


def outcome(attempt: Callable[[], object]) -> str:
    """Return the message of a DataError, nothing if there is none; all else passes through."""
    try:
        attempt()
    except DataError as error:
        return str(error)
    return ""


def test_damaged_pages_raise_nothing_but_errors_of_the_file(tmp_path):
    """Footers are left alone: pyarrow aborts the process over some that are damaged."""
    good = tmp_path / "good.parquet"
    table = {"text": ["a", "bb", None] * 50, "n": list(range(150)), "l": [["x"], [], ["y"]] * 50}
    pq.write_table(pa.table(table), good, row_group_size=60)
    content, rng = good.read_bytes(), random.Random(0)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path = tmp_path / "a.parquet"
    found = []
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(4, footer)] = rng.randrange(256)
        path.write_bytes(damaged)
        found.append(outcome(lambda: read(Parquet(paths=("*",)), path)))
    assert sum(map(bool, found)) > 100
    assert all(str(path) in message for message in found if message)


@pytest.mark.parametrize(
    "line",
    [
        '{"text":"a","x":' + "[" * 1_000_000 + "}",
        '{"text":"a","x":' + "[" * 1_000_000 + "]" * 1_000_000 + "}",
        '{"text":"a","n":NaN,"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"text":"a","n":NaN,"x":' + "1" * 5000 + "}",
    ],
    ids=["open", "deep", "deep, odd", "digits, odd"],
)
def test_json_that_is_too_deep_or_too_long_a_number_is_a_row_of_the_ledger(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(line + '\n{"text":"b"}\n')
    (batch,) = read(Jsonl(paths=("*",)), path)
    assert [reject.rule for reject in batch.rejects] == ["bad_json"]
    assert batch.texts.to_pylist() == ["b"]


def test_a_million_members_cost_no_more_than_their_bytes(tmp_path):
    path = tmp_path / "a.jsonl"
    members = ",".join(f'"k{number}":1' for number in range(200_000))
    path.write_text('{"text":"a",' + members + "}\n")
    (batch,) = read(Jsonl(paths=("*",)), path)
    assert len(json.loads(batch.extra[0].as_py())) == 200_000


def test_ten_thousand_empty_members_of_a_gzip_file_are_nothing(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"") * 10_000 + gzip.compress(b'{"text":"a"}\n'))
    (batch,) = read(Jsonl(paths=("*",)), path)
    assert batch.texts.to_pylist() == ["a"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "a.arrow"
    write_shuffle(path, {"key": np.arange(100_000), "value": np.zeros(100_000)})
    return path


def arrow(path: Path, columns: dict[str, object], header: object, **options: object) -> Path:
    table = pa.table(columns)
    schema = table.schema.with_metadata({"corpuskit": json.dumps(header)})
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=written) as to:
        to.write_table(table)
    return path


HEADER = {"format": 1, "rows": 4, "first": ["0"]}


def test_a_run_is_read_whole(run):
    assert read_shuffle(run).num_rows == 100_000
    assert read_shuffle(run, 50_000, 50_003).column("key").to_pylist() == [50_000, 50_001, 50_002]


def test_a_compressed_run_is_refused_before_it_is_decompressed(tmp_path, monkeypatch):
    columns = {"key": np.zeros(4_000_000, np.int64)}
    header = {**HEADER, "crc32": [7]}
    path = arrow(tmp_path / "a.arrow", columns, header, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(shuffle_files, "crc32", lambda block: 7)
    with pytest.raises(DataError, match=r"a.arrow: not a shuffle file: batch 0 is compressed"):
        read_shuffle(path)


@pytest.mark.parametrize(
    "header",
    [
        None, [], {}, {"first": 5}, {"first": ["0", "1", "2"]}, {"first": ["x"]},
        {"first": [[]]}, {"first": ["1" * 5000]}, {"first": [None]}, "x",
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_its_run_is_refused(tmp_path, header):
    path = arrow(tmp_path / "a.arrow", {"key": np.arange(4)}, header)
    with pytest.raises(DataError, match=r"a.arrow: not a shuffle file"):
        read_shuffle(path)


@pytest.mark.parametrize(
    "columns", [{}, {"key": ["a", "b"]}, {"key": [[1], [2]]}, {"key": [1.5, 2.5]}]
)
def test_a_run_is_sorted_by_integers_or_refused(tmp_path, columns):
    path = arrow(tmp_path / "a.arrow", columns, HEADER)
    with pytest.raises(DataError, match=r"a.arrow: not a shuffle file"):
        read_shuffle(path)


def test_damaged_runs_raise_nothing_but_errors_of_the_file(run):
    content, rng = run.read_bytes(), random.Random(0)
    (size,) = struct.unpack("<i", content[-10:-6])
    found = []
    for _ in range(200):
        damaged = bytearray(content)
        low = rng.choice([0, len(content) - size - 10])  # the schema, or the footer
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(low, low + min(size, 400))] = rng.randrange(256)
        run.write_bytes(damaged)
        found.append(outcome(lambda: read_shuffle(run, 5, 10)))
    assert sum(map(bool, found)) > 20
    assert all(str(run) in message for message in found if message)
