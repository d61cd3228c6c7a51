from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.substring.spans import flagged_spans, join_spans

Spans = list[tuple[int, int, int]]


def as_spans(arrays: tuple[np.ndarray, ...]) -> Spans:
    return list(zip(*(part.tolist() for part in arrays), strict=True))


def runs(cells: set[tuple[int, int]]) -> Spans:
    """Return runs of (text, position) as spans."""
    spans: Spans = []
    for text, at in sorted(cells):
        if spans and spans[-1][0] == text and spans[-1][2] == at:
            spans[-1] = (text, spans[-1][1], at + 1)
        else:
            spans.append((text, at, at + 1))
    return spans


@settings(max_examples=60)
@given(st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4), st.integers(1, 5))
def test_spans_are_the_union_of_flagged_windows(flagged: list[list[bool]], window: int) -> None:
    cells = {
        (text, at + step)
        for text, flags in enumerate(flagged)
        for at, flag in enumerate(flags)
        for step in range(window)
        if flag
    }
    # A window fits into its text, and a separator follows.
    padded = [[*flags, *[False] * window] for flags in flagged]
    offsets = np.append(0, np.cumsum([len(flags) for flags in padded]))
    found = flagged_spans(np.concatenate(padded).astype(np.uint8), offsets, window)
    assert as_spans(found) == runs(cells)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 4)), max_size=8),
    st.integers(0, 5),
)
def test_what_lies_between_near_spans_is_taken_in(drawn: Spans, fragment: int) -> None:
    spans: Spans = []
    for row, start, size in sorted(drawn):
        if not spans or spans[-1][0] < row or spans[-1][2] <= start:
            spans.append((row, start, start + size))
    plain: Spans = []
    for row, start, end in spans:
        if start == end:
            continue
        if plain and plain[-1][0] == row and start - plain[-1][2] < fragment:
            plain[-1] = (row, plain[-1][1], end)
        else:
            plain.append((row, start, end))
    rows, starts, ends = np.array(spans, np.int64).reshape(-1, 3).T.copy()
    assert as_spans(join_spans(rows, starts, ends, fragment)) == plain
