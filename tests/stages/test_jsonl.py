"""JSON lines: every line is a document or a row of the ledger, whatever it looks like."""

from __future__ import annotations

import gzip
import json
import math
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from source_reading import batches, input_file, read, read_slice

from corpuskit.errors import DataError
from corpuskit.stage import Slice
from corpuskit.stages.sources import _records
from corpuskit.stages.sources._json import OK, UNPARSED
from corpuskit.stages.sources._records import RecordBlock
from corpuskit.stages.sources.jsonl import Jsonl, Members
from corpuskit.stages.sources.text import Text
from corpuskit.stages.sources.warc import Warc

SOURCE = Jsonl(paths=("x",))


def write(path, *lines: bytes | dict) -> None:
    coded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in coded))


def block_of(*lines: bytes) -> RecordBlock:
    data = b"\n".join(lines)
    sizes = np.array([len(line) for line in lines], np.int64)
    ends = np.cumsum(sizes + 1) - 1
    starts = ends - sizes
    return RecordBlock(starts, np.frombuffer(data, np.uint8), starts, ends, (), len(data))


# ---------------------------------------------------------------- one line


def twin(line: bytes) -> dict | None:
    """What a line holds, in plain Python: the reference of the kernel."""
    try:
        text = line.decode().removeprefix("\ufeff")
        value = json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def whole(text: str) -> str:
    """Replace lone surrogates and leave out a byte order mark, as the source says it does."""
    repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return repaired.removeprefix("\ufeff")


SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**21), 10**21) | st.floats()
    | st.text(st.characters(), max_size=12)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["text", "id", "n", "x", "b", "other", "\u00e9", 'q"uote', ""])
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6)
COLUMNS = {"n": "int64", "x": "float64", "b": "bool", "s": "string"}


@given(OBJECTS, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\r ")]))
def test_a_written_object_is_read_as_the_json_module_reads_it(value, is_ascii, separators):
    if not is_ascii:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            is_ascii = True
    line = json.dumps(value, ensure_ascii=is_ascii, separators=separators).encode()
    expected = twin(line)
    members = Members(block_of(line), ["text", "n", "x", "b"], with_extra=True)
    assert members.states[0] == OK
    text = expected.get("text")
    assert members.texts()[0].as_py() == (whole(text) if isinstance(text, str) else "")
    for slot, (name, kind) in enumerate(
        {"n": pa.int64(), "x": pa.float64(), "b": pa.bool_()}.items(), start=1
    ):
        column, is_bad = members.typed(slot, kind)
        assert (column[0].as_py(), bool(is_bad[0])) == typed_twin(expected.get(name), name)
    rest = {k: v for k, v in expected.items() if k not in {"text", "n", "x", "b"}}
    extra = members.extra()[0].as_py()
    assert (json.loads(extra) if extra else {}) == rest


def typed_twin(value, name):
    if value is None:
        return None, False
    if name == "n" and type(value) is int and -(2**63) <= value < 2**63:
        return value, False
    if name == "x" and type(value) in {int, float}:
        return float(value), False
    if name == "b" and type(value) is bool:
        return value, False
    return (None if name != "n" else 0, True)


FRAGMENTS = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ":", ",", '"text"', '"a"', '"', "\\", "\\u", "d83d", "\\ude00", "1",
         "0", "-", ".", "e5", "true", "null", "fals", " ", "\t", "\r", "\x01", "\u00e9", "NaN",
         "\\n", "{}", "[]"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(FRAGMENTS | FRAGMENTS.map(lambda inside: '{"text":"a",' + inside + "}")
       | FRAGMENTS.map(lambda inside: '{"text":' + inside + "}"))  # fmt: skip
def test_what_the_json_module_refuses_is_refused(line):
    coded = line.encode()
    members = Members(block_of(coded), ["text"], with_extra=True)
    expected = twin(coded)
    if coded.strip(b" \t\r"):
        assert (members.states[0] == OK) == (expected is not None)
    if expected is not None and isinstance(expected.get("text"), str):
        assert members.texts()[0].as_py() == whole(expected["text"])


@given(st.text(st.characters(), max_size=40))
def test_escapes_are_read_as_the_json_module_reads_them(text):
    line = json.dumps({"text": text}).encode()
    members = Members(block_of(line), ["text"], with_extra=False)
    assert members.texts()[0].as_py() == whole(text)
    assert bool(members.replaced[0]) == any("\ud800" <= c <= "\udfff" for c in pairs_joined(text))


def pairs_joined(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@pytest.mark.parametrize(
    ("number", "value"),
    [("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("-0", 0), ("0", 0)],
)
def test_integers_up_to_the_bounds_of_int64_are_read(number, value):
    line = b'{"text":"","n":%s}' % number.encode()
    members = Members(block_of(line), ["text", "n"], with_extra=False)
    column, is_bad = members.typed(1, pa.int64())
    assert (column[0].as_py(), bool(is_bad[0])) == (value, False)


@pytest.mark.parametrize(
    "number",
    ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" * 30, "1.0", "1e3"],
)
def test_a_number_that_is_no_int64_is_of_the_wrong_type(number):
    line = b'{"text":"","n":%s}' % number.encode()
    members = Members(block_of(line), ["text", "n"], with_extra=False)
    assert members.typed(1, pa.int64())[1].tolist() == [True]


def test_deep_nesting_is_refused_and_does_not_recurse():
    lines = [b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in (60, 61, 100_000)]
    members = Members(block_of(*lines), ["text"], with_extra=True)
    assert members.states.tolist() == [OK, UNPARSED, UNPARSED]


# ---------------------------------------------------------------- rules


def test_each_bad_line_has_its_rule(tmp_path):
    path = tmp_path / "a.jsonl"
    write(
        path,
        {"text": "good"},
        b'{"text": "cut',
        b'["no object"]',
        {"text": 5},
        {"other": "x"},
        {"text": None},
        b'{"text": "\xff"}',
        b'{"text": "fine", "other": "\xc3"}',
        {"text": "x" * 200},
        {"text": "y", "score": "high"},
    )
    source = Jsonl(paths=("x",), columns={"score": "float64"})
    found = read(source, path, most=100)
    assert found.texts == ["good"]
    assert [rule for _, rule in found.rejects] == [
        "bad_json", "bad_json", "bad_text", "bad_text", "bad_text", "invalid_utf8", "invalid_utf8",
        "too_long", "bad_column",
    ]  # fmt: skip


def test_a_position_is_where_the_line_starts_in_the_decompressed_file(tmp_path):
    lines = [b'{"text": "one"}', b"", b"broken", b'  {"text": "two"}', b'{"text": "three"}']
    content = b"\n".join(lines)
    starts = [content.index(line) for line in (lines[0], lines[3], lines[4])]
    for name, packed in (("a.jsonl", content), ("a.jsonl.gz", gzip.compress(content, mtime=0))):
        (tmp_path / name).write_bytes(packed)
        found = read(SOURCE, tmp_path / name)
        assert [document["position"] for document in found.documents] == starts
        assert found.rejects == [(content.index(b"broken"), "bad_json")]


def test_lone_surrogates_are_replaced_and_noted(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, b'{"text": "fine"}', b'{"text": "a\\ud83d b\\ude00\\ud83d\\ude00"}')
    found = read(SOURCE, path)
    assert found.texts == ["fine", "a\ufffd b\ufffd\U0001f600"]
    assert found.replaced == [found.documents[1]["position"]]


def test_byte_order_marks_are_removed_from_files_and_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "\xef\xbb\xbfone"}\n{"text": "\\ufefftwo \\ufeff"}\n')
    assert read(SOURCE, path).texts == ["one", "two \ufeff"]


def test_blank_lines_are_no_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n \t\r\n{"text": "a"}\r\n\r\n{"text": ""}')
    found = read(SOURCE, path)
    assert (found.texts, found.rejects) == (["a", ""], [])


def test_a_text_at_the_limit_is_kept_and_one_byte_more_is_not(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"text": "\u00e9" * 50}, {"text": "\u00e9" * 50 + "x"})
    found = read(SOURCE, path, most=100)
    assert len(found.documents) == 1
    assert (found.rejects[0][1], found.values[0]) == ("too_long", (101, 100))


# ---------------------------------------------------------------- columns


def test_declared_columns_have_their_types_and_the_rest_is_json(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"text": "t", "n": 3, "x": 1, "b": False, "s": "caf\u00e9"}
    write(path, {**row, "more": {"a": [1, None]}, "z": 1.50}, {"text": "u", "n": None})
    source = Jsonl(paths=("x",), columns={"n": "int64", "x": "float64", "b": "bool", "s": "string"})
    first, second = read(source, path).documents
    assert {k: first[k] for k in "nxbs"} == {"n": 3, "x": 1.0, "b": False, "s": "caf\u00e9"}
    assert first["extra"] == '{"more":{"a": [1, null]},"z":1.5}'
    assert {k: second[k] for k in ("n", "x", "b", "s", "extra")} == dict.fromkeys(
        ("n", "x", "b", "s", "extra")
    )
    types = {name: column.type for name, column in batches(source, path)[0].columns.items()}
    assert types == dict(source.declared())


def test_ids_urls_and_dates_come_from_their_columns_and_numbers_as_written(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"text": "t", "key": 12345678901234567890, "u": "http://a.example", "d": 2024.50},
          {"text": "u"}, {"text": "v", "key": ["no"]})  # fmt: skip
    source = Jsonl(paths=("x",), id_column="key", url_column="u", date_column="d", extra=False)
    found = read(source, path)
    assert found.documents == [
        {"position": 0, "text": "t", "id": "12345678901234567890", "url": "http://a.example",
         "date": "2024.5"},
        {"position": 81, "text": "u", "id": None, "url": None, "date": None},
    ]  # fmt: skip
    assert [rule for _, rule in found.rejects] == ["bad_column"]


def test_lines_only_python_reads_keep_their_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    write(
        path,
        b'{"text": "a", "x": NaN, "y": -Infinity}',
        b'{"text": "b", "text": "last wins"}',
        b'{"t\\u0065xt": "escaped name", "k": "\\ud800"}',
        b'{"text": "plain", "x": 0.5}',
    )
    source = Jsonl(paths=("x",), columns={"x": "float64"})
    found = read(source, path)
    assert found.texts == ["a", "last wins", "escaped name", "plain"]
    assert [document["x"] for document in found.documents] == [None, None, None, 0.5]
    assert [document["extra"] for document in found.documents] == [
        '{"y":null}', None, '{"k":"\\ud800"}', None,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["text", "id", "key", "source", "origin", "extra", "a.b", ""])
def test_a_declared_column_must_not_take_a_documents_own_name(name):
    with pytest.raises(ValidationError, match="must not declare"):
        Jsonl(paths=("x",), columns={name: "string"})


@given(st.floats(allow_nan=False) | st.integers(-(10**25), 10**25))
def test_floats_are_rounded_as_python_rounds_them(value):
    line = b'{"text":"","x":%s}' % json.dumps(value).encode()
    column, is_bad = Members(block_of(line), ["text", "x"], with_extra=False).typed(1, pa.float64())
    expected = None if isinstance(value, float) and math.isinf(value) else float(value)
    assert (column[0].as_py(), bool(is_bad[0])) == (expected, False)


# ---------------------------------------------------------------- slices and batches


@pytest.fixture
def mixed(tmp_path):
    """A file of long, short, blank, broken and multi-byte lines without a final line feed."""
    rng = random.Random(5)
    lines = []
    for number in range(300):
        kind = rng.random()
        if kind < 0.1:
            lines.append(b"")
        elif kind < 0.2:
            lines.append(b"broken" * rng.randrange(9))
        elif kind < 0.25:
            lines.append(b'{"text": "\xff%d"}' % number)
        else:
            text = f"\u00e9{number} " * rng.randrange(30)
            lines.append(json.dumps({"text": text, "n": number}, ensure_ascii=kind < 0.5).encode())
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


@given(cut=st.integers(0, 40_000))
def test_two_slices_read_what_one_reads(mixed_file, cut):
    path, expected = mixed_file
    size = path.stat().st_size
    cut = min(cut, size)
    left = read_slice(SOURCE, path, Slice(0, cut, cut))
    right = read_slice(SOURCE, path, Slice(cut, size, size - cut))
    assert left.documents + right.documents == expected.documents
    assert left.rejects + right.rejects == expected.rejects


@pytest.fixture(scope="module")
def mixed_file(tmp_path_factory):
    path = mixed.__wrapped__(tmp_path_factory.mktemp("mixed"))
    return path, read(SOURCE, path)


@pytest.mark.parametrize("target", [37, 1000])
def test_all_slices_together_read_the_whole_file_once(mixed, target):
    whole_file = read(SOURCE, mixed)
    found = read(SOURCE, mixed, target=target)
    assert found == whole_file


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_the_size_of_blocks_decides_nothing(mixed, block, monkeypatch):
    whole_file = read(SOURCE, mixed)
    monkeypatch.setattr(_records, "BLOCK_BYTES", block)
    monkeypatch.setattr(_records, "STEP_BYTES", 5)
    monkeypatch.setattr(_records, "BLOCK_ROWS", 3)
    found = read(SOURCE, mixed, target=500)
    assert found.documents == whole_file.documents
    assert sorted(found.rejects) == sorted(whole_file.rejects)


def test_batches_are_bounded_and_the_same_every_time(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"x"}\n' * 10_000)
    sizes = [len(batch.positions) for batch in batches(SOURCE, path)]
    assert sizes == [4096, 4096, 1808]
    assert sizes == [len(batch.positions) for batch in batches(SOURCE, path)]
    assert sum(batch.size_bytes for batch in batches(SOURCE, path)) == path.stat().st_size


def test_slices_come_from_the_size_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 1000)
    assert SOURCE.slices(input_file(path), 500) == [Slice(0, 500, 500), Slice(500, 1000, 500)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000, mtime=0))
    packed = input_file(tmp_path / "a.jsonl.gz")
    assert SOURCE.slices(packed, 5) == [Slice(0, packed.size_bytes, packed.size_bytes)]


def test_a_file_of_no_bytes_has_no_slices(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert SOURCE.slices(input_file(tmp_path / "a.jsonl"), 100) == []


@pytest.mark.parametrize("source", [SOURCE, Text(paths=("x",)), Warc(paths=("x",))])
@pytest.mark.parametrize(("ending", "kind"), [("gz", "gzip"), ("zst", "zstd")])
def test_a_compressed_file_of_no_bytes_is_refused_when_the_plan_is_made(
    tmp_path, source, ending, kind
):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"a\.{ending}: no whole {kind} file: .*0 bytes"):
        source.slices(input_file(path), 100)


# ---------------------------------------------------------------- long lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_line_without_end_needs_bounded_memory(tmp_path, name):
    line = b'{"text": "' + b"x" * (40 << 20) + b'"}'
    content = b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n'
    path = tmp_path / name
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    tracemalloc.start()
    found = read(SOURCE, path, most=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.texts == ["first", "last"]
    assert found.rejects == [(18, "too_long")]
    assert found.values == [(len(line), 1000)]
    assert found.heads[0].startswith('{"text": "xxx')
    assert peak < 30 << 20


def test_a_long_line_at_the_end_of_a_slice_belongs_to_it_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first"}\n' + b"x" * (5 << 20) + b'\n{"text": "last"}')
    size = path.stat().st_size
    for cut in (18, 19, 1 << 20, size - 17, size - 16):
        halves = [Slice(0, cut, cut), Slice(cut, size, size - cut)]
        found = [read_slice(SOURCE, path, half, most=1000) for half in halves]
        assert [text for half in found for text in half.texts] == ["first", "last"]
        assert [reject for half in found for reject in half.rejects] == [(18, "too_long")]


# ---------------------------------------------------------------- compression


def test_several_members_and_frames_are_one_file(tmp_path):
    lines = [b'{"text": "%d"}\n' % number for number in range(50)]
    content = b"".join(lines)
    packed = {
        "a.jsonl.gz": b"".join(gzip.compress(line, mtime=0) for line in lines) + b"\0" * 700,
        "b.jsonl.gz": gzip.compress(content[:100]) + b"\0" * 10 + gzip.compress(content[100:]),
        "a.jsonl.zst": b"".join(zstandard.compress(line) for line in lines),
        "b.jsonl.zst": b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(content),
        "c.jsonl.zst": zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
        .compress(content) + b"\x5f\x2a\x4d\x18\0\0\0\0",
    }  # fmt: skip
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
        assert len(read(SOURCE, tmp_path / name).documents) == 50, name


def test_long_windows_are_read(tmp_path):
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packer.compress(b'{"text": "far"}\n' * 9) + packer.flush())
    assert zstandard.get_frame_parameters(path.read_bytes()).window_size == 1 << 28
    assert len(read(SOURCE, path).documents) == 9


@given(share=st.floats(0.0, 0.999))
@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_truncated_file_names_itself_and_the_place(ending, share, tmp_path_factory):
    rng = random.Random(1)
    content = b"".join(b'{"text": "%x"}\n' % rng.getrandbits(400) for _ in range(200))
    packed = gzip.compress(content, mtime=0) if ending == "gz" else zstandard.compress(content)
    path = tmp_path_factory.mktemp("cut") / f"a.jsonl.{ending}"
    path.write_bytes(packed[: max(6, int(share * len(packed)))])
    with pytest.raises(DataError, match=r"a\.jsonl\.\w+: broken \w+ data before byte \d+"):
        read(SOURCE, path)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_flipped_bit_is_not_read_as_data(tmp_path, ending):
    rng = random.Random(2)
    content = b"".join(b'{"text": "%x"}\n' % rng.getrandbits(400) for _ in range(200))
    if ending == "gz":
        packed = bytearray(gzip.compress(content, mtime=0))
    else:
        packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(content))
    packed[len(packed) // 2] ^= 4
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(packed)
    with pytest.raises(DataError, match="broken"):
        read(SOURCE, path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", b'{"text": "plain"}', "the name says gzip"),
        ("a.jsonl.zst", gzip.compress(b"x", mtime=0), "the name says zstd"),
        ("a.jsonl", gzip.compress(b"x", mtime=0), "Rename it to end in .gz"),
        ("a.jsonl", zstandard.compress(b"x"), "Rename it to end in .zst"),
        ("a.jsonl.bz2", b"BZh91AY&SY", "bzip2 data is not supported"),
        ("a.jsonl.gz", gzip.compress(b"x", mtime=0) + b"garbage", "broken gzip data"),
        ("a.jsonl.zst", zstandard.compress(b"x") + b"garbage", "Unknown frame descriptor"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(SOURCE, tmp_path / name)


# ---------------------------------------------------------------- real text


@pytest.mark.real
def test_real_documents_come_out_as_they_went_in(shared_data, tmp_path):
    import pyarrow.parquet as pq

    folder = shared_data / "bench_multi"
    rows = pq.read_table(next(iter(sorted(folder.glob("*.parquet"))))).slice(0, 800).to_pylist()
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)]
    path.write_text("\n".join(lines))
    found = read(SOURCE, path, most=1 << 24)
    assert found.texts == [row["text"] for row in rows]
    extras = [json.loads(document["extra"]) for document in found.documents]
    assert extras == [{k: v for k, v in row.items() if k != "text"} for row in rows]
