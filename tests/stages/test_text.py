"""Plain text: files, paragraphs and lines as documents."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from source_reading import input_file, read, read_slice

from corpuskit.stage import Slice
from corpuskit.stages.sources import _records
from corpuskit.stages.sources._records import (
    gather_records,
    skip_paragraph,
    split_lines,
    split_paragraphs,
    trim_records,
)
from corpuskit.stages.sources.text import Text

FILE, PARAGRAPH, LINE = (Text(paths=("x",), per=per) for per in ("file", "paragraph", "line"))
SNIPPETS = st.sampled_from([b"\n", b"\r\n", b" ", b"\t", b"a", b"bc d", b"\xc3\xa9", b"\x0c"])
BYTES = st.lists(SNIPPETS).map(b"".join)


def view(content: bytes):
    return np.frombuffer(content, np.uint8)


# ---------------------------------------------------------------- twins


def paragraphs_twin(content: bytes) -> list[tuple[int, int]]:
    """Where paragraphs start and end, by a regular expression over whole lines."""
    found, start, at = [], None, 0
    for line in re.findall(rb"[^\n]*\n|[^\n]+", content):
        if line.strip(b" \t\r\n\x0c"):
            start = at if start is None else start
            end = at + len(line.removesuffix(b"\n").removesuffix(b"\r"))
        elif start is not None:
            found.append((start, end))
            start = None
        at += len(line)
    return found if start is None else [*found, (start, end)]


@given(BYTES)
def test_paragraphs_are_runs_of_lines_that_are_not_blank(content):
    starts, ends, done = split_paragraphs(view(content), True)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == paragraphs_twin(content)
    assert done == len(content)


@given(BYTES, st.integers(0, 60))
def test_a_paragraph_that_may_go_on_is_left_for_later(content, cut):
    cut = min(cut, len(content))
    starts, ends, done = split_paragraphs(view(content[:cut]), False)
    left = list(zip(starts.tolist(), ends.tolist(), strict=True))
    starts, ends, _ = split_paragraphs(view(content[done:]), True)
    right = list(zip((starts + done).tolist(), (ends + done).tolist(), strict=True))
    assert left + right == paragraphs_twin(content)


@given(BYTES, st.booleans())
def test_lines_are_split_at_line_feeds(content, is_last):
    starts, ends, done = split_lines(view(content), is_last)
    lines = content.split(b"\n")
    rest = lines.pop()
    lines += [rest] if is_last and rest else []
    assert [content[a:b] for a, b in zip(starts, ends, strict=True)] == lines
    assert content[done:] == (b"" if is_last else rest)


@given(BYTES)
def test_skipping_a_paragraph_stops_behind_a_blank_line(content):
    found, _ = skip_paragraph(view(content), 0)
    blank = re.search(rb"\n[ \t\r\x0c]*\n", content)
    assert found == (blank.end() if blank else -1)


@given(BYTES, st.booleans(), st.booleans())
def test_trimming_takes_marks_and_line_ends_and_empties_blank_records(content, has_mark, is_line):
    content = b"\xef\xbb\xbf" + content if has_mark else content
    starts, ends = np.array([0]), np.array([len(content)])
    trim_records(view(content), starts, ends, is_line)
    expected = content.removeprefix(b"\xef\xbb\xbf")
    expected = expected.removesuffix(b"\r") if is_line else expected
    assert content[starts[0] : ends[0]] == (expected if expected.strip(b" \t\r\n\x0c") else b"")


@given(st.lists(BYTES, max_size=5))
def test_gathered_records_lie_behind_one_another(records):
    ends = np.cumsum([len(record) + 2 for record in records], dtype=np.int64) - 2
    starts = ends - np.array([len(record) for record in records], np.int64)
    offsets, out = gather_records(view(b"__".join(records)), starts, ends)
    assert out.tobytes() == b"".join(records)
    assert np.diff(offsets).tolist() == [len(record) for record in records]


# ---------------------------------------------------------------- documents


@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.gz", gzip.compress),
                                            ("a.zst", zstandard.compress)])  # fmt: skip
def test_a_file_is_one_document_as_it_stands(tmp_path, name, pack):
    content = "\ufeffLine one.\r\n\r\nLine two. \u00e9\n"
    (tmp_path / name).write_bytes(pack(content.encode()))
    found = read(FILE, tmp_path / name)
    assert found.documents == [{"position": 0, "text": content[1:]}]


def test_paragraphs_keep_their_line_ends_inside(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n \t\n\nthree\n")
    found = read(PARAGRAPH, path)
    assert found.texts == ["one\r\ntwo", "three"]
    assert [document["position"] for document in found.documents] == [0, 19]


def test_lines_come_without_their_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n\n  \r\n two \nthree")
    assert read(LINE, path).texts == ["one", " two ", "three"]


@pytest.mark.parametrize("source", [FILE, PARAGRAPH, LINE])
@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_blank_files_hold_no_documents(tmp_path, source, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    found = read(source, path)
    assert (found.documents, found.rejects) == ([], [])


@pytest.mark.parametrize(
    ("source", "rejects", "texts"),
    [(FILE, [(0, "invalid_utf8")], []), (PARAGRAPH, [(6, "invalid_utf8")], ["good"]),
     (LINE, [(6, "invalid_utf8")], ["good", "last"])],
)  # fmt: skip
def test_only_the_document_that_is_not_utf8_is_rejected(tmp_path, source, rejects, texts):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\nb\xe9d\nlast")
    found = read(source, path)
    assert (found.rejects, found.texts) == (rejects, texts)


@pytest.mark.parametrize("source", [FILE, PARAGRAPH, LINE])
def test_the_longest_document_allowed_is_kept_and_a_byte_more_is_not(tmp_path, source):
    for size, kept in ((100, 1), (101, 0)):
        for end in (b"", b"\r\n"):
            if source is FILE and end:
                continue
            path = tmp_path / "a.txt"
            path.write_bytes(b"\xef\xbb\xbf" + b"x" * size + end)
            found = read(source, path, most=100)
            assert len(found.documents) == kept
            assert found.values == ([] if kept else [(101, 100)])


@pytest.mark.parametrize(("source", "more"), [(FILE, 13), (PARAGRAPH, 0), (LINE, 0)])
def test_a_document_without_end_is_counted_not_held(tmp_path, source, more):
    size = (5 << 20) + more
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n\n" + b"y" * (5 << 20) + b"\n\nlast")
    found = read(source, path, most=1000)
    assert [rule for _, rule in found.rejects] == ["too_long"]
    assert found.values == [(size, 1000)]
    assert found.texts == ([] if source is FILE else ["first", "last"])


# ---------------------------------------------------------------- slices


def test_only_plain_files_read_by_line_are_cut(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x\n" * 50)
    file = input_file(path)
    assert len(LINE.slices(file, 10)) == 10
    assert FILE.slices(file, 10) == PARAGRAPH.slices(file, 10) == [Slice(0, 100, 100)]


@given(content=BYTES, cut=st.integers(0, 80))
def test_two_slices_read_the_lines_that_one_reads(content, cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes(content)
    size = len(content)
    cut = min(cut, size)
    found = [read_slice(LINE, path, piece) for piece in (Slice(0, cut, cut), Slice(cut, size, 1))]
    expected = read_slice(LINE, path, Slice(0, size, size))
    assert [d for half in found for d in half.documents] == expected.documents


@pytest.mark.parametrize("block", [1, 5, 30])
def test_the_size_of_blocks_decides_nothing(tmp_path, monkeypatch, block):
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"para %d\nmore\r\n" % n + b" \n" * (n % 4) for n in range(60)))
    expected = [read(source, path) for source in (PARAGRAPH, LINE)]
    monkeypatch.setattr(_records, "BLOCK_BYTES", block)
    monkeypatch.setattr(_records, "STEP_BYTES", 3)
    assert [read(source, path) for source in (PARAGRAPH, LINE)] == expected
