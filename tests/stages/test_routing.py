"""The second level of the exchange is cut so that nobody opens very many runs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from corpuskit.formats.manifest import Part
from corpuskit.stage import Unit
from corpuskit.stages import _routing
from corpuskit.stages._routing import MAX_OPENS, cut_routes


def producers(rows: list[int]) -> list[Part]:
    return [Part(number, "run:x", f"work/x/{number}", rows=num) for number, num in enumerate(rows)]


def consumers(num: int, rows: int) -> list[Unit]:
    return [Unit(n, "web", n * rows, (n + 1) * rows, rows) for n in range(num)]


def test_few_runs_need_no_second_level() -> None:
    assert cut_routes(producers([9] * 1024), consumers(1024, 9), 100, 1) == []


def test_a_hundred_thousand_cells_open_millions_of_runs_not_billions() -> None:
    num, row_bytes = 100_000, 4 * 4098
    pieces = cut_routes(producers([8000] * num), consumers(num, 8000), row_bytes, 1 << 30)
    ranges = {(one.low, one.high) for one in pieces}
    groups = {one.producers for one in pieces}
    assert len(pieces) == len(ranges) * len(groups)
    assert len(ranges) * num + len(groups) * num < 3e7
    most = max(one.rows for one in pieces) / len(groups)
    assert most * row_bytes < 1.1 * (1 << 30)
    assert num * num > 100 * MAX_OPENS


@given(
    rows=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    num=st.integers(1, 30),
    memory_bytes=st.integers(1, 5000),
)
def test_every_row_is_routed_once(rows: list[int], num: int, memory_bytes: int) -> None:
    before, _routing.MAX_OPENS = _routing.MAX_OPENS, 0
    try:
        pieces = cut_routes(producers(rows), consumers(num, 7), 10, memory_bytes)
    finally:
        _routing.MAX_OPENS = before
    assert [one.number for one in pieces] == list(range(len(pieces)))
    groups = sorted({one.producers for one in pieces})
    edges = [edge for group in groups for edge in group]
    assert (edges[0], edges[-1]) == (0, len(rows))
    assert all(a[1] == b[0] for a, b in itertools.pairwise(groups))
    ranges = sorted({(one.low, one.high) for one in pieces})
    assert (ranges[0][0], ranges[-1][1]) == (0, 7 * num)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    assert len(pieces) == len(groups) * len(ranges)
