from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels import lines
from corpuskit.kernels.lines import (
    case_digits_table,
    ccnet_table,
    count_units,
    cut_units,
    find_repeated,
    find_units,
    fold_units,
    hash_units,
    index_hashes,
    is_short,
)
from tests.contract.strategies import texts, view

Spans = list[tuple[int, int]]

CCNET_DROPS = (
    "\u3001\u3002\u3008\u3009\u300a\u300b\u300c\u300d\u3010\u3011"
    "\uff01\uff05\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff5e"
    "\u00ab\u00b4\u00bb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501\u25ba"
)


def plain_units(text: str, paragraphs: bool) -> Spans:
    """Return start and end of each unit in bytes."""
    found: Spans = []
    at, is_open = 0, False
    for line in text.encode().split(b"\n"):
        end = at + len(line.removesuffix(b"\r"))
        if is_blank := not line.decode().strip():
            pass
        elif is_open and paragraphs:
            found[-1] = (found[-1][0], end)
        else:
            found.append((at, end))
        is_open = not is_blank
        at += len(line) + 1
    return found


def plain_left(text: bytes, units: Spans, is_cut: list[bool]) -> bytes:
    """Return what a cut leaves of a text."""
    if not any(is_cut):
        return text
    kept = [number for number, cut in enumerate(is_cut) if not cut]
    if not kept:
        return b""
    left = text[: units[0][1]] if kept[0] == 0 else text[slice(*units[kept[0]])]
    for one, other in itertools.pairwise(kept):
        first = text[units[one][1] : units[one + 1][0]]
        last = text[units[other - 1][1] : units[other][0]]
        left += max(first, last, key=len) + text[slice(*units[other])]
    tail = text[units[kept[-1]][1] :]
    if kept[-1] < len(units) - 1:
        tail = re.match(rb"\r?\n|", tail)[0] if text.endswith(b"\n") else b""
    return left + tail


def plain_lower(text: str) -> str:
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


def plain_case_digits(text: str) -> str:
    return " ".join("".join(c for c in plain_lower(text) if not c.isdecimal()).split())


def plain_ccnet(text: str) -> str:
    controls = "".join(map(chr, [*range(32), *range(127, 160)]))
    dropped = re.escape(controls + CCNET_DROPS)
    return re.sub(f"[{dropped}]", "", re.sub(r"\d", "0", plain_lower(text.strip())))


def units_of(documents, paragraphs=False):
    return find_units(*view(documents).text, paragraphs)


@given(texts(), st.booleans())
def test_units_equal_plain_python(documents, paragraphs):
    text = view(documents).text
    docs, starts, ends = find_units(*text, paragraphs)
    rows = list(zip(docs.tolist(), starts.tolist(), ends.tolist(), strict=True))
    assert [(d, s - text.offsets[d], e - text.offsets[d]) for d, s, e in rows] == [
        (number, *unit)
        for number, document in enumerate(documents)
        for unit in plain_units(document, paragraphs)
    ]


@given(texts())
def test_units_of_a_slice_are_those_of_the_whole(documents):
    whole, part = view(documents), view(documents).batch.slice(1)
    docs, starts, ends = find_units(*whole.text, False)
    from corpuskit.stage import View

    found = find_units(*View(part).text, False)
    assert found[0].tolist() == (docs[docs > 0] - 1).tolist()
    assert found[1].tolist() == starts[docs > 0].tolist()
    assert found[2].tolist() == ends[docs > 0].tolist()


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\v", "\f", "\x85", "\r", "\x1e", "\0"])
def test_nothing_but_a_newline_ends_a_line(mark):
    assert len(units_of([f"one{mark}other"])[0]) == 1


@pytest.mark.parametrize(
    ("table", "plain"), [(case_digits_table, plain_case_digits), (ccnet_table, plain_ccnet)]
)
@given(documents=texts())
def test_folded_units_equal_plain_python(table, plain, documents):
    text = view(documents).text
    data, starts, ends = fold_units(text.data, *units_of(documents)[1:], table())
    lines = [
        document.encode()[begin:end].decode()
        for document in documents
        for begin, end in plain_units(document, False)
    ]
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    assert [data[s:e].tobytes().decode() for s, e in spans] == [plain(line) for line in lines]


@pytest.mark.parametrize(
    ("table", "plain"), [(case_digits_table, plain_case_digits), (ccnet_table, plain_ccnet)]
)
@given(line=st.text(alphabet="aaaaamzAMZ   /09:@[`{~!\x7f\t\u00e9", max_size=40))
def test_groups_of_ascii_are_folded_as_other_text(table, plain, line):
    data, starts, _ = fold_units(
        np.frombuffer(line.encode(), np.uint8), np.array([0]), np.array([len(line.encode())]),
        table(),
    )  # fmt: skip
    assert data.tobytes().decode() == plain(line)
    assert starts.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "compared"),
    [
        (" Posted on 12 May 2021 at 12:30 ", "posted on may at :"),
        ("12", ""),
        ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c3"),
        ("x\u06607", "x"),
        ("A\u00a0 \tB", "a b"),
        ("\U0010ffff\U0001d7d8", "\U0010ffff"),
    ],
)
def test_case_digits_ignores_case_digits_and_runs_of_whitespace(line, compared):
    text = view([line]).text
    data, _, _ = fold_units(text.data, *units_of([line])[1:], case_digits_table())
    assert data.tobytes().decode() == compared


@given(texts(), st.booleans(), st.data())
def test_a_cut_leaves_what_plain_python_leaves(documents, paragraphs, data):
    text = view(documents).text
    docs, starts, ends = find_units(*text, paragraphs)
    drawn = data.draw(st.lists(st.booleans(), min_size=len(docs), max_size=len(docs)))
    is_cut = np.array(drawn, np.bool_)
    rows, begins, stops, sums = cut_units(*text, docs, starts, ends, is_cut)
    for number, document in enumerate(documents):
        whole, mine = document.encode(), rows == number
        spans = list(zip(begins[mine].tolist(), stops[mine].tolist(), strict=True))
        edges = [0, *itertools.chain(*spans), len(whole)]
        assert edges == sorted(edges)
        assert all(begin < stop for begin, stop in spans)
        left = b"".join(whole[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
        units, cut = plain_units(document, paragraphs), is_cut[docs == number].tolist()
        assert left == plain_left(whole, units, cut)
        sizes = [end - begin for begin, end in units]
        assert sums[number].tolist() == [
            sum(cut), sum(itertools.compress(sizes, cut)), sum(sizes), len(whole) - len(left)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\nX\nb", "a\nb"),
        ("a\n\nX\n\nb", "a\n\nb"),
        ("a\nX\n\nb", "a\n\nb"),
        ("a\n\nX\nb", "a\n\nb"),
        ("a\n\n\nX\n\nX\n\nb", "a\n\n\nb"),
        ("X\n\nb\n", "b\n"),
        ("\n\nX\nb", "b"),
        ("a\nX", "a"),
        ("a\nX\n", "a\n"),
        ("a\n\nX\n\n", "a\n"),
        ("a\r\nX\r\nb\r\n", "a\r\nb\r\n"),
        ("a\r\nX\r\n", "a\r\n"),
        ("a\r\nX", "a"),
        ("X\nX\n", ""),
        ("a\n", "a\n"),
    ],
)
def test_no_blank_lines_pile_up_where_units_were_cut(text, left):
    column = view([text]).text
    docs, starts, ends = find_units(*column, False)
    is_cut = column.data[starts] == ord("X")
    _, begins, stops, _ = cut_units(*column, docs, starts, ends, is_cut)
    for begin, stop in reversed(list(zip(begins, stops, strict=True))):
        text = text[:begin] + text[stop:]
    assert text == left


@given(
    st.text(alphabet="a \u3000\u00e9", max_size=8), st.integers(1, 12), st.integers(0, 4)
)  # fmt: skip
def test_a_unit_is_short_by_bytes_or_words(text, min_bytes, min_words):
    data = np.frombuffer(text.encode(), np.uint8)
    expected = len(data) < min_bytes or len(text.split()) < min_words
    assert is_short(data, 0, len(data), min_bytes, min_words) == expected


def test_hashes_are_of_the_units_that_are_long_enough():
    text = view(["long enough\nno\nquite long", "", "the longest"]).text
    docs, starts, ends = find_units(*text, False)
    scopes = np.array([5, 6, 7], np.uint64)
    high, low, owners = hash_units(text.data, starts, ends, docs, scopes, 5, 2)
    lines = ["long enough", "quite long", "the longest"]
    assert high.tolist() == [
        xxhash.xxh64_intdigest(line) ^ scope for line, scope in zip(lines, [5, 5, 7], strict=True)
    ]
    seed = 0x5851F42D4C957F2D
    assert low.tolist() == [xxhash.xxh64_intdigest(line, seed) % 2**32 for line in lines]
    assert owners.tolist() == [0, 0, 2]


def hashes(numbers: list[int], spread: int) -> np.ndarray:
    """Return hashes of which the leading or the trailing bits tell numbers apart."""
    return np.array([number << spread for number in numbers], np.uint64)


@pytest.mark.parametrize("spread", [0, 40, 61])
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1), st.integers(1, 5)), max_size=30),
    st.booleans(),
)
def test_counts_equal_a_dictionary(spread, rows, by_document):
    docs = np.arange(len(rows), dtype=np.int32) // 3
    expected = Counter()
    seen = set()
    for (high, low, count), doc in zip(rows, docs.tolist(), strict=True):
        unit = (high << spread, low)
        if not by_document or (unit, doc) not in seen:
            expected[unit] += count
        seen.add((unit, doc))
    found = count_units(
        hashes([row[0] for row in rows], spread),
        np.array([row[1] for row in rows], np.uint32),
        docs,
        np.array([row[2] for row in rows], np.uint32),
        by_document,
    )
    units = list(zip(found[0].tolist(), found[1].tolist(), strict=True))
    assert units == sorted(expected)
    assert found[2].tolist() == [expected[unit] for unit in units]


def test_counts_of_many_parts_are_sorted(monkeypatch):
    rng = np.random.default_rng(0)
    high = rng.integers(0, 2**64, 3000, np.uint64)[rng.integers(0, 3000, 6000)]
    docs, counts = np.arange(6000, dtype=np.int32), np.ones(6000, np.uint32)
    found = count_units(high, np.zeros(6000, np.uint32), docs, counts, True)
    values, sums = np.unique(high, return_counts=True)
    assert lines._PART_ROWS < 3000
    assert found[0].tolist() == values.tolist()
    assert found[2].tolist() == sums.tolist()


def test_a_count_stops_at_what_32_bits_hold():
    most = np.full(3, 2**32 - 1, np.uint32)
    units = np.full(3, 9, np.uint64), np.full(3, 1, np.uint32)
    assert count_units(*units, np.arange(3, dtype=np.int32), most, False)[2].tolist() == [2**32 - 1]


def test_units_with_equal_first_hashes_are_told_apart():
    text = view(["one line", "other line"]).text
    units = find_units(*text, False)
    scopes = np.zeros(2, np.uint64)
    high, low, _ = hash_units(text.data, units[1], units[2], units[0], scopes, 1, 1)
    others = low ^ np.array([0, 1], np.uint32)
    for known, compares_low, expected in (
        (low, True, [True, True]),
        (others, True, [True, False]),
        (others, False, [True, True]),
    ):
        table = index_hashes(high)
        holders = np.full(2, -2, np.int64)
        found = find_repeated(
            text.data, units[1], units[2], units[0], scopes, 1, 1, high, known, table, holders, 0,
            True, compares_low,
        )  # fmt: skip
        assert found.tolist() == expected
