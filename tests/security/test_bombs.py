"""Small files that would be huge: refused in bounded work, and the error says what raises it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from corpuskit.errors import DataError
from corpuskit.stage import InputFile
from corpuskit.stages.sources._stream import FREE_BYTES
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet, pages
from corpuskit.stages.sources.text import Text
from tests.conftest import ROOT
from tests.patience import HANG_SECONDS
from tests.security import thrift

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.stage import Source, SourceBatch

MIB = 1 << 20
MOST = 1 << 20


def read(source: Source, path: Path) -> list[SourceBatch]:
    size = path.stat().st_size
    file = InputFile(0, "web", str(path), path.name, size, "")
    return [
        batch for piece in source.slices(file, 64 * MIB) for batch in source.read(file, piece, MOST)
    ]


def zeros(path: Path, num_mib: int, *, window_log: int = 0) -> Path:
    """Write zeros, compressed as the name says; `window_log` as of `zstd --long`."""
    block = bytes(MIB)
    if path.suffix == ".gz":
        with gzip.open(path, "wb", 1) as file:
            for _ in range(num_mib):
                file.write(block)
        return path
    options = {"window_log": window_log, "enable_ldm": True} if window_log else {"window_log": 20}
    compressor = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(**options)
    )
    with path.open("wb") as raw, compressor.stream_writer(raw) as file:
        for _ in range(num_mib):
            file.write(block)
    return path


def test_a_compressed_file_that_holds_a_thousand_times_its_size_is_refused(tmp_path):
    path = zeros(tmp_path / "a.jsonl.zst", 300)
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match=r"a.jsonl.zst: .* 268,435,456, .* max_expansion"):
        read(Jsonl(paths=("*",)), path)


def test_a_file_of_one_document_is_refused_too(tmp_path):
    path = zeros(tmp_path / "a.txt.zst", 300)
    with pytest.raises(DataError, match="max_expansion"):
        read(Text(paths=("*",)), path)


def test_the_setting_of_the_error_raises_the_bound(tmp_path):
    path = zeros(tmp_path / "a.jsonl.zst", 300)
    found = read(Jsonl(paths=("*",), max_expansion=1_000_000), path)
    assert [reject.rule for batch in found for reject in batch.rejects] == ["too_long"]
    assert found[0].rejects[0].value == 300 * MIB


def test_a_small_file_may_hold_what_is_free_whatever_its_ratio(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    path.write_bytes(gzip.compress(line * 2000, 9))
    assert len(line) * 2000 > 150 * path.stat().st_size
    assert sum(len(batch.positions) for batch in read(Jsonl(paths=("*",)), path)) == 2000
    assert len(line) * 2000 < FREE_BYTES


def test_a_page_larger_than_allowed_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 300_000]})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    assert path.stat().st_size < 3000
    with pytest.raises(DataError, match=r"row group 0: .*300,0\d\d.*65,536.*max_page_bytes"):
        read(Parquet(paths=("*",), max_page_bytes=1 << 16), path)


def test_what_a_page_header_says_counts_and_not_the_footer(tmp_path):
    content = thrift.page(thrift.strings(b"a"), 1, claimed=1_900_000_000)
    group = thrift.row_group(1, 4, len(content))
    path = tmp_path / "a.parquet"
    path.write_bytes(thrift.parquet([thrift.root(1), thrift.leaf(b"text")], 1, [group], content))
    with pytest.raises(DataError, match="takes 1,900,000,000 bytes"):
        read(Parquet(paths=("*",)), path)


def test_the_writer_of_crafted_files_can_also_write_a_good_one(tmp_path):
    content = thrift.page(thrift.strings(b"one", b"two"), 2)
    group = thrift.row_group(2, 4, len(content))
    path = tmp_path / "a.parquet"
    path.write_bytes(thrift.parquet([thrift.root(1), thrift.leaf(b"text")], 2, [group], content))
    found = read(Parquet(paths=("*",)), path)
    assert [text for batch in found for text in batch.texts.to_pylist()] == ["one", "two"]


def chunks(path: Path) -> list[pages.Chunk]:
    with path.open("rb") as file:
        reader = pq.ParquetFile(path)
        return pages.with_longest_values(
            file, pages.read_chunks(file, str(path), reader, range(1), ())
        )


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "brotli", "lz4", "none"])
def test_rows_that_repeat_a_long_value_are_read_few_at_once(tmp_path, compression):
    path = tmp_path / "a.parquet"
    values = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(5000, np.int32)), pa.array(["x" * MIB])
    )
    pq.write_table(pa.table({"text": values}), path, compression=compression)
    (chunk,) = chunks(path)
    assert chunk.value_bytes >= MIB
    assert pages.rows_at_once([chunk], 4096) <= pages.REPEATED_BYTES // MIB


def test_values_that_share_all_they_have_are_read_few_at_once(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["z" * (MIB // 2)] * 100})
    pq.write_table(
        table, path, use_dictionary=False, compression="zstd",
        column_encoding={"text": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    assert path.stat().st_size < 2000
    (chunk,) = chunks(path)
    assert pages.rows_at_once([chunk], 4096) <= pages.REPEATED_BYTES // (MIB // 2)


def test_a_dictionary_of_short_values_slows_nothing_down(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"{number % 50_000:08d}" * 20 for number in range(100_000)]
    pq.write_table(pa.table({"text": texts}), path, dictionary_pagesize_limit=32 * MIB)
    (chunk,) = chunks(path)
    assert chunk.dictionary_bytes == 50_000 * 164
    assert chunk.value_bytes == 160
    assert pages.rows_at_once([chunk], 4096) == 4096


def test_batches_cut_small_for_memory_are_joined_again(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    texts = [f"document {number}" for number in range(3000)]
    texts[7] = "y" * (2 * MIB)
    columns = {"text": texts, "id": [f"{number} {'u' * 900}" for number in range(2)] * 1500}
    pq.write_table(pa.table(columns), path, dictionary_pagesize_limit=32 * MIB)
    monkeypatch.setattr(pages, "REPEATED_BYTES", 1 << 26)
    assert 20 < pages.rows_at_once(chunks(path), 3000) < 50
    found = read(Parquet(paths=("*",), extra=False, id_column="id"), path)
    read_texts = [text for batch in found for text in batch.texts.to_pylist()]
    assert read_texts == [text for text in texts if len(text) <= MOST]
    assert len(found) < 10


def test_a_row_whose_list_repeats_a_long_string_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    inner = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(200_000, np.int32)), pa.array(["y" * 10_000])
    )
    table = pa.table({"text": ["a"], "tags": pa.ListArray.from_arrays([0, len(inner)], inner)})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2000
    with pytest.raises(DataError, match=r"2,000,000,000 bytes. Set extra: false"):
        read(Parquet(paths=("*",)), path)
    assert len(read(Parquet(paths=("*",), extra=False), path)[0].positions) == 1


def test_lists_of_strings_with_a_dictionary_are_read_as_before(tmp_path):
    path = tmp_path / "a.parquet"
    tags = [["a", "b"], None, [], ["b", None, "a"]]
    pq.write_table(pa.table({"text": ["1", "2", "3", "4"], "tags": tags}), path)
    (batch,) = read(Parquet(paths=("*",)), path)
    assert batch.extra.to_pylist() == ['{"tags":["a","b"]}', None, '{"tags":[]}',
                                       '{"tags":["b",null,"a"]}']  # fmt: skip


MEASURE = """
import resource, sys
from pathlib import Path
from tests.security.test_bombs import read
from corpuskit.engine import registry
from corpuskit.errors import DataError
from corpuskit.stages.sources import _stream, parquet
_stream.FREE_BYTES = parquet.FREE_BYTES = 64 << 20  # a fourth of it is read in a fourth of the time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for _ in read(registry.load(sys.argv[1])(paths=("*",)), Path(sys.argv[2])): pass
    print("read")
except DataError:
    print("refused")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def long_window(path: Path) -> tuple[str, int]:
    zeros(path, 1000, window_log=31)
    return "jsonl", 800


def dictionary(path: Path) -> tuple[str, int]:
    index = pa.array(np.zeros(20_000, np.int32))
    values = pa.DictionaryArray.from_arrays(index, pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"text": values}), path, compression="zstd")
    return "parquet", 2500


def prefixes(path: Path) -> tuple[str, int]:
    table = pa.table({"text": ["z" * 1_000_000] * 600})
    pq.write_table(table, path, use_dictionary=False, compression="zstd",
                   column_encoding={"text": "DELTA_BYTE_ARRAY"})  # fmt: skip
    return "parquet", 2500


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("make", [long_window, dictionary, prefixes], ids=lambda f: f.__name__)
def test_memory_stays_bounded_while_a_bomb_is_refused(tmp_path, make):
    path = tmp_path / ("a.jsonl.zst" if make is long_window else "a.parquet")
    kind, most_mib = make(path)
    assert path.stat().st_size < 200_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, kind, str(path)], cwd=ROOT, text=True,
        capture_output=True, check=True, timeout=HANG_SECONDS,
    )  # fmt: skip
    outcome, grown = done.stdout.split()
    assert outcome == "refused"
    assert int(grown) < most_mib
