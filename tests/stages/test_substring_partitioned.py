from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.stage import Volume
from corpuskit.stages import _routing
from corpuskit.stages.dedup.substring_dedup import partitioned
from corpuskit.stages.dedup.substring_dedup.partitioned import context_bytes, merge_spans
from tests.stages.global_runner import Context, GlobalRun, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Span = tuple[int, int, int]
TINY = 1 << 12
"""Memory with which every fingerprint that three rows have is hot."""


@dataclasses.dataclass(frozen=True)
class Finder:
    """A stage, as far as the engine asks for one."""

    window: int
    keep: Literal["first", "whole", "none"] = "first"
    prefer: tuple[str, ...] = ()
    scope: str = "global"
    tokenizer: str | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    spans: list[Span]
    counters: dict[str, Counter[str]]
    units: dict[str, int]
    rows: Counter[str]


def find(finder: Finder, texts: Sequence[str], **fields: Any) -> Found:
    """Return the spans of texts: document, start, end. Fields as GlobalRun takes them."""
    with tempfile.TemporaryDirectory() as folder:
        run = GlobalRun(texts, Path(folder), **fields)
        units = {one.name: run.run_pass(one) for one in partitioned.passes(finder)}
        spans = [
            (number_of(key), start, end)
            for unit in run.units
            for key, start, end in zip(
                *(c.tolist() for c in partitioned.cell_spans(finder, Context(run, "apply", unit))),
                strict=True,
            )
        ]
        rows = Counter({name: sum(p.rows for p in parts) for name, parts in run.written.items()})
    return Found(spans, run.counted, units, rows)


def plain_spans(
    finder: Finder, texts: Sequence[str], columns: Mapping[str, Sequence[Any]] | None = None
) -> list[Span]:
    """Return what `find` should, by a dictionary of all windows."""
    columns = {"source": ["web"] * len(texts), **(columns or {})}
    prefer, size = [*finder.prefer, None], finder.window
    positions: dict[tuple[Any, bytes], list[tuple[int, int, int]]] = {}
    for doc, text in enumerate(map(str.encode, texts)):
        source = columns["source"][doc]
        rank = prefer.index(source if source in prefer else None)
        scope = None if finder.scope == "global" else columns[finder.scope][doc] or ""
        for start in range(len(text) - size + 1):
            window = text[start : start + size]
            positions.setdefault((scope, window), []).append((rank, doc, start))
    groups = [sorted(group) for group in positions.values() if len(group) > 1]
    cut = {
        (doc, at)
        for group in groups
        for _, doc, start in group[finder.keep != "none" :]
        for at in range(start, start + size)
    }
    if finder.keep == "whole":
        firsts = [group[0] for group in groups]
        cut -= {(doc, at) for _, doc, start in firsts for at in range(start, start + size)}
    spans: list[Span] = []
    for doc, at in sorted(cut):
        if spans and spans[-1][0] == doc and at == spans[-1][2]:
            spans[-1] = (doc, spans[-1][1], at + 1)
        else:
            spans.append((doc, at, at + 1))
    return spans


def make_corpus(random: random.Random) -> tuple[Finder, list[str], dict[str, Any], dict[str, Any]]:
    """Return a stage, texts full of copies, their columns, and a way to cut the work."""
    letters = random.choice(["a", "ab", "abc", "abcdefghijklmnopqrstuvwxyz"])
    size = random.choice([4, 5, 8, 16, 16, 20, 33, 50, 70])
    pool = [
        *("".join(random.choices(letters, k=random.randint(1, 3 * size))) for _ in range(6)),
        *(unit * random.randint(1, 3 * size // len(unit)) for unit in ("a", "ab", "| -", "abcab")),
    ]
    texts: list[str] = []
    for _ in range(random.randint(1, 20)):
        kind = random.random()
        pieces = (random.choice(pool)[random.randint(0, 3) :] for _ in range(random.randint(1, 5)))
        copied = kind < 0.2 and texts
        texts.append("" if kind < 0.1 else random.choice(texts) if copied else "".join(pieces))
    finder = Finder(
        size,
        keep=random.choice(["first", "whole", "none"]),
        prefer=random.choice([(), (), ("b",), ("c", "a")]),
        scope=random.choice(["global", "global", "source", "dump"]),
    )
    columns = {
        "source": random.choices("abc", k=len(texts)),
        "dump": random.choices(["1", "2", None], k=len(texts)),
    }
    cut = {
        "bounds": sorted(random.choices(range(len(texts) + 1), k=random.randint(0, 4))),
        "memory_bytes": random.choice([TINY, 1 << 14, 1 << 16, 1 << 30]),
        "batch_docs": random.randint(1, 5),
    }
    return finder, texts, columns, cut


@settings(max_examples=12)
@given(st.integers(0, 1 << 40).map(random.Random))
def test_spans_are_those_of_a_dictionary(random):
    finder, texts, columns, cut = make_corpus(random)
    found = find(finder, texts, columns=columns, **cut)
    assert found.spans == plain_spans(finder, texts, columns)


@pytest.mark.slow
def test_spans_of_very_many_corpora_are_those_of_a_dictionary():
    hot = 0
    for number in range(60):
        finder, texts, columns, cut = make_corpus(random.Random(number))
        found = find(finder, texts, columns=columns, **cut)
        assert found.spans == plain_spans(finder, texts, columns), number
        hot += found.counters["count"]["hot"]
    assert hot > 0


@settings(max_examples=6)
@given(st.integers(0, 1 << 40).map(random.Random))
def test_spans_do_not_depend_on_how_the_work_was_cut(random):
    finder, texts, columns, cut = make_corpus(random)
    whole = find(finder, texts, columns=columns, batch_docs=100)
    assert find(finder, texts, columns=columns, **cut).spans == whole.spans


ALICE = "Alice was beginning to get very tired of sitting by her sister on the bank"


def test_a_copy_is_a_span_and_its_first_place_is_none():
    found = find(Finder(20), ["1" + ALICE, "22" + ALICE, ALICE])
    assert found.spans == [(1, 2, 2 + len(ALICE)), (2, 0, len(ALICE))]


def test_every_place_is_a_span_where_none_stays():
    found = find(Finder(20, keep="none"), ["1" + ALICE, "22" + ALICE], bounds=[1])
    assert found.spans == [(0, 1, 1 + len(ALICE)), (1, 2, 2 + len(ALICE))]


def test_copies_in_preferred_sources_stay():
    sources = {"source": ["web", "books", "wiki", "books"]}
    found = find(Finder(20, prefer=("wiki", "books")), [ALICE] * 4, columns=sources, bounds=[2])
    assert [doc for doc, _, _ in found.spans] == [0, 1, 3]


def test_equal_texts_of_different_scopes_never_meet():
    dumps = {"dump": ["1", "2", "1", "2", None]}
    found = find(Finder(20, scope="dump"), [ALICE] * 5, columns=dumps, bounds=[3])
    assert [doc for doc, _, _ in found.spans] == [2, 3]
    assert found.rows["compare/windows"] > 0


def test_windows_never_cross_documents():
    assert find(Finder(20), [ALICE[:30], ALICE[30:], ALICE[:15], ALICE[15:30]]).spans == []


def test_texts_without_copies_leave_their_cells_as_fingerprints_only():
    texts = ["".join(random.Random(n).choices("abcdefgh ", k=300)) for n in range(6)]
    found = find(Finder(50), texts, bounds=[3])
    assert found.spans == []
    assert set(found.rows) == {"winnow/fingerprints"}
    assert found.rows["winnow/fingerprints"] < 6 * 300 / 8


def test_an_empty_corpus_and_short_texts_have_no_spans():
    assert find(Finder(20), []).spans == []
    assert find(Finder(20), ["", "a", "a"], bounds=[1]).spans == []


def test_a_cell_without_living_documents_is_no_trouble():
    alive = [False, False, True, True]
    found = find(Finder(20), [ALICE] * 4, bounds=[2], alive=alive)
    assert [doc for doc, _, _ in found.spans] == [3]


def boilerplate(num: int) -> list[str]:
    """Return texts that share less than a window, between words of their own."""
    numbers = [random.Random(n).random() for n in range(2 * num)]
    middle = "all rights are reserved by us"
    return [f"{numbers[2 * n]:.17f} {middle} {numbers[2 * n + 1]:.17f}" for n in range(num)]


def test_a_hot_fingerprint_is_split_by_windows():
    texts = boilerplate(60)
    finder = Finder(40)
    cool = find(finder, texts, bounds=[20, 40])
    hot = find(finder, texts, bounds=[20, 40], memory_bytes={"count": TINY})
    assert cool.spans == hot.spans == plain_spans(finder, texts)
    assert cool.units["refine"] == 0
    assert hot.counters["count"]["hot"] > 0
    # What shares no whole window is not even copied.
    assert hot.rows["gather/contexts"] < cool.rows["gather/contexts"] / 5


def test_copies_of_a_hot_text_come_once_per_cell():
    texts = [ALICE] * 40
    finder = Finder(30)
    found = find(finder, texts, bounds=[10, 20, 30], memory_bytes={"count": TINY})
    assert found.counters["count"]["hot"] > 0
    assert found.rows["gather/contexts"] == 4 * (len(ALICE) - 30 + 1)
    assert found.spans == [(doc, 0, len(ALICE)) for doc in range(1, 40)]


def test_hot_fingerprints_are_the_same_whatever_is_read_at_a_time(monkeypatch):
    texts = boilerplate(30) + [ALICE] * 9
    bounds, memory = [4, 9, 17, 25, 33], {"count": 1 << 14}
    whole = find(Finder(30), texts, bounds=bounds, memory_bytes=memory)
    monkeypatch.setattr(partitioned, "_CHUNK", 1)
    monkeypatch.setattr(partitioned, "ROW_BYTES", 1 << 14)
    found = find(Finder(30), texts, bounds=bounds, memory_bytes=memory)
    assert whole.counters["count"]["hot"] > 0
    assert found.counters["count"]["hot"] == whole.counters["count"]["hot"]
    assert found.spans == whole.spans


def test_large_groups_are_counted():
    found = find(Finder(40), boilerplate(200))
    assert found.counters["count"]["groups_of_64"] > 0
    assert found.counters["compare"]["groups_of_64"] > 0


def test_a_second_level_of_the_exchange_changes_nothing(monkeypatch):
    texts = [*boilerplate(12), *([ALICE] * 6), *(ALICE[n:] for n in range(12))]
    bounds = [4, 9, 15, 22]
    memory = {"count": 1 << 15, "compare": 1 << 13, "": 1 << 14}
    expected = find(Finder(30), texts, bounds=bounds)
    monkeypatch.setattr(partitioned, "_MAX_OPENS", 0)
    monkeypatch.setattr(_routing, "MAX_OPENS", 0)
    found = find(Finder(30), texts, bounds=bounds, memory_bytes=memory)
    routes = {name: units for name, units in found.units.items() if name.startswith("route")}
    assert len(routes) == 4
    assert min(routes.values()) >= 1
    assert max(routes.values()) > 1
    assert not any(units for name, units in expected.units.items() if name.startswith("route"))
    assert found.spans == expected.spans


def test_fingerprints_of_other_documents_are_refused(tmp_path):
    finder = Finder(20)
    run = GlobalRun([ALICE, ALICE], tmp_path)
    for one in partitioned.passes(finder)[:6]:
        run.run_pass(one)
    run.tables[0], run.alive[0] = run.tables[0].slice(0, 1), run.alive[0][:1]
    with pytest.raises(DataError, match="fingerprints of documents that it lacks"):
        partitioned.gather_cell(finder, Context(run, "gather", run.units[0]))


spans = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 20), st.integers(1, 9)), max_size=12)


@settings(max_examples=60)
@given(spans)
def test_merged_spans_cover_the_same(found):
    columns = np.array(found, np.int64).reshape(-1, 3).T.copy()
    merged = merge_spans(columns[0], columns[1], columns[1] + columns[2])
    covered = {(key, at) for key, start, size in found for at in range(start, start + size)}
    triples = list(zip(*(column.tolist() for column in merged), strict=True))
    assert {(key, at) for key, start, end in triples for at in range(start, end)} == covered
    assert triples == sorted(triples)
    assert all(a[0] < b[0] or a[2] < b[1] for a, b in itertools.pairwise(triples))


def test_what_a_task_holds_is_bounded_by_its_memory():
    finder = Finder(250)
    for size in (10**9, 10**12, 65 * 10**12):
        volume = Volume(size // 5000, size, size // (64 << 20) + 1, 64 << 20)
        for one in partitioned.passes(finder):
            cost = partitioned.cost(finder, volume, one.name)
            assert cost.unit_bytes <= volume.task_memory_bytes
            if cost.units and one.units is not None:
                assert cost.units * volume.task_memory_bytes > cost.unit_bytes
    assert context_bytes(finder) < 1500
