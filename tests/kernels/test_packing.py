"""Packing kernels against plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.packing import (
    CONTINUES,
    GOES_ON,
    add_ends,
    best_fit,
    cut_documents,
    fill_rows,
    lay_out,
)

WIDTHS = st.sampled_from([1, 2, 7, 63, 64, 65, 128, 200])


def int64(values):
    return np.array(values, np.int64)


@st.composite
def pieces(draw):
    width = draw(WIDTHS)
    return int64(draw(st.lists(st.integers(1, width), min_size=1, max_size=60))), width


def best_fit_in_python(lengths, width):
    rows, free, touched = [0] * len(lengths), [], []
    for clock, piece in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        fitting = [row for row in range(len(free)) if free[row] >= lengths[piece]]
        if not fitting:
            fitting, free, touched = [len(free)], [*free, width], [*touched, 0]
        row = min(fitting, key=lambda row: (free[row], -touched[row]))
        rows[piece], touched[row] = row, clock
        free[row] -= lengths[piece]
    return rows, len(free)


def cut_in_python(num_tokens, num_bytes, width, filled, joined):
    found = []
    for doc, (total, size) in enumerate(zip(num_tokens, num_bytes, strict=True)):
        filled = filled if joined else 0
        begin = 0
        while begin < total:
            end = min(total, begin + width - filled)
            share = size * end // total - size * begin // total
            flags = CONTINUES * (begin > 0) + GOES_ON * (end < total)
            found.append((doc, end - begin, share, flags))
            filled, begin = (filled + end - begin) % width, end
    return found


@settings(deadline=None)
@given(pieces())
def test_best_fit_equals_plain_python(case):
    lengths, width = case
    rows, num_rows = best_fit(lengths, width)
    assert (rows.tolist(), num_rows) == best_fit_in_python(lengths.tolist(), width)


def test_best_fit_of_nothing_has_no_rows():
    rows, num_rows = best_fit(int64([]), 8)
    assert len(rows) == num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [2049, 4097, 8193])
def test_a_window_of_documents_of_usual_lengths_is_99_9_percent_full(width):
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(6.2, 1.05, 16384)), 16, width).astype(np.int64)
    _, num_rows = best_fit(lengths, width)
    assert lengths.sum() / (num_rows * width) > 0.999


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10**13)), max_size=12),
    st.sampled_from([1, 2, 8, 33]),
    st.booleans(),
    st.data(),
)
def test_cut_equals_plain_python(docs, width, joined, data):
    filled = data.draw(st.integers(0, width - 1)) if joined else 0
    num_tokens, num_bytes = int64([t for t, _ in docs]), int64([b for _, b in docs])
    found = cut_documents(num_tokens, num_bytes, width, filled, joined)
    expected = cut_in_python(num_tokens.tolist(), num_bytes.tolist(), width, filled, joined)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(0, 10**6), st.integers(1, 9))
def test_shares_of_a_documents_bytes_add_up(total, size, width):
    _, _, sizes, _ = cut_documents(int64([total]), int64([size]), width, 0, False)
    assert sizes.sum() == size


@settings(deadline=None)
@given(pieces(), st.sampled_from([np.uint16, np.uint32]))
def test_rows_hold_their_pieces_in_order_and_padding_behind(case, dtype):
    lengths, width = case
    rows, num_rows = best_fit(lengths, width)
    tokens = np.arange(1, lengths.sum() + 1).astype(dtype)
    begins = np.cumsum(lengths) - lengths
    bounds, starts, which = lay_out(rows, lengths, num_rows, width)
    out = np.full((num_rows, width), 7, dtype)
    fill_rows(tokens, begins, lengths, bounds, starts, which, 0, out)
    expected, segments = [], []
    for row in range(num_rows):
        own = np.flatnonzero(rows == row).tolist()
        content = [t for p in own for t in tokens[begins[p] :][: lengths[p]].tolist()]
        places = np.cumsum([0, *lengths[own]]).tolist()
        is_full = len(content) == width
        segments.append((places[:-1] if is_full else places, own if is_full else [*own, -1]))
        expected.append(content + [0] * (width - len(content)))
    assert out.tolist() == expected
    cuts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    assert [(starts[cut].tolist(), which[cut].tolist()) for cut in cuts] == segments


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=8),
    st.sampled_from([-1, 100]),
    st.sampled_from([-1, 101]),
    st.integers(0, 3),
)
def test_ends_are_put_around_each_document(docs, first, last, skipped):
    flat = np.array([7] * skipped + [i for doc in docs for i in doc], np.uint32)
    offsets = skipped + np.cumsum([0, *map(len, docs)])
    ids, bounds = add_ends(flat, offsets, first, last)
    head, tail = [first] * (first >= 0), [last] * (last >= 0)
    expected = [head + doc + tail for doc in docs]
    cuts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    assert [ids[cut].tolist() for cut in cuts] == expected
