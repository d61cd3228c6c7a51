from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError, UsageError
from corpuskit.stage import Known
from corpuskit.stages import _routing
from corpuskit.stages.dedup import _cluster_stage
from corpuskit.stages.dedup._keep import dates_as_seconds
from corpuskit.stages.dedup.exact_dedup import ExactDedup
from tests.stages.global_runner import Decided, GlobalRun, check_ledger, key_of, run_global

if TYPE_CHECKING:
    from pathlib import Path

corpora = st.lists(st.sampled_from(["", "a", "b", "c", "A", "a ", "\u00e9"]), max_size=12)


def plain_clusters(texts: list[str]) -> set[tuple[int, ...]]:
    members: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        members.setdefault(text, []).append(number)
    return {tuple(numbers) for numbers in members.values() if len(numbers) > 1}


@settings(max_examples=40)
@given(corpora)
def test_clusters_equal_a_dictionary_and_the_first_stays(texts: list[str]) -> None:
    decided = run_global(ExactDedup(), texts)
    assert decided.clusters() == plain_clusters(texts)
    assert [t for t, kept in zip(texts, decided.keep, strict=True) if kept] == list(
        dict.fromkeys(texts)
    )


@settings(max_examples=25)
@given(corpora, st.data())
def test_decisions_do_not_depend_on_how_the_work_was_cut(texts: list[str], data) -> None:
    whole = run_global(ExactDedup(), texts, batch_docs=100)
    cut = run_global(
        ExactDedup(),
        texts,
        bounds=sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=4))),
        memory_bytes=data.draw(st.sampled_from([128, 256, 1 << 30])),
        batch_docs=data.draw(st.integers(1, 5)),
    )
    assert cut.keep.tolist() == whole.keep.tolist()
    assert {name: c.tolist() for name, c in cut.columns.items()} == {
        name: c.tolist() for name, c in whole.columns.items()
    }
    assert cut.ledger == whole.ledger
    assert cut.counters["group"] == whole.counters["group"]


@settings(max_examples=25)
@given(corpora, st.randoms(use_true_random=False))
def test_a_shuffled_corpus_has_the_same_clusters(texts: list[str], random) -> None:
    order = list(range(len(texts)))
    random.shuffle(order)
    decided = run_global(ExactDedup(), [texts[number] for number in order])
    clusters = {tuple(sorted(order[index] for index in c)) for c in decided.clusters()}
    assert clusters == plain_clusters(texts)


def test_every_dropped_document_names_a_kept_one_with_its_text() -> None:
    texts = ["x", "y", "x", "z", "y", "x", "w"]
    decided = run_global(ExactDedup(), texts, bounds=[2, 5], memory_bytes=128)
    assert decided.units["group"] > 1
    assert decided.keep.sum() == 4
    check_ledger(
        decided, "exact_dedup", "exact_duplicate", lambda one, other: texts[one] == texts[other]
    )


def test_the_ledger_row_holds_what_was_dropped() -> None:
    decided = run_global(ExactDedup(), ["hello", "hello"])
    (row,) = decided.ledger
    assert (row["doc_key"], row["source"], row["text"]) == (key_of(1), "web", "hello")
    assert (row["survivor_id"], row["value"], row["threshold"]) == ("doc-0", 2.0, None)


def test_columns_name_the_first_document_and_count_the_cluster() -> None:
    decided = run_global(ExactDedup(), ["a", "b", "a", "a"])
    assert decided.columns["cluster_id"].tolist() == [key_of(n) for n in (0, 1, 0, 0)]
    assert decided.columns["cluster_size"].tolist() == [3, 1, 3, 3]


def test_annotate_drops_nothing_and_writes_no_ledger() -> None:
    decided = run_global(ExactDedup(action="annotate"), ["a", "b", "a"])
    assert decided.keep.all()
    assert decided.ledger == []
    assert decided.columns["cluster_size"].tolist() == [2, 1, 2]


def test_documents_that_left_before_are_no_survivors() -> None:
    decided = run_global(ExactDedup(), ["a", "a", "a", "b"], alive=[False, True, True, True])
    assert decided.keep[1:].tolist() == [True, False, True]
    assert decided.ledger[0]["survivor_id"] == "doc-1"


def test_an_empty_corpus_has_no_duplicates() -> None:
    decided = run_global(ExactDedup(), [])
    assert decided.keep.tolist() == []


def test_a_cell_without_living_documents_is_no_trouble() -> None:
    decided = run_global(ExactDedup(), ["a", "a", "b"], bounds=[2], alive=[False, False, True])
    assert decided.keep[2]
    assert decided.ledger == []


def test_of_equal_documents_one_stays() -> None:
    decided = run_global(ExactDedup(), ["same"] * 50, bounds=[10, 20, 45], memory_bytes=1024)
    assert np.flatnonzero(decided.keep).tolist() == [0]
    assert set(decided.columns["cluster_size"].tolist()) == {50}
    assert decided.counters["group"] == {"clusters": 1, "clustered_documents": 50}


def test_a_second_level_of_the_exchange_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {n % 7}" for n in range(40)]
    bounds = [4, 9, 15, 22, 30]
    expected = run_global(ExactDedup(), texts, bounds=bounds)
    monkeypatch.setattr(_routing, "MAX_OPENS", 0)
    memory = {
        "route": 12 * _cluster_stage.DECISION_BYTES,
        "route_clusters": 12 * _cluster_stage.DECISION_BYTES,
        "route_hashes": 12 * 160,
        "group": 12 * 160,
    }
    decided = run_global(ExactDedup(), texts, bounds=bounds, memory_bytes=memory)
    assert (expected.units["route"], decided.units["route"]) == (0, 5)
    for name in ("route_hashes", "route_clusters"):
        assert expected.units[name] == 0
        assert decided.units[name] > 3
    assert decided.keep.tolist() == expected.keep.tolist()
    assert decided.ledger == expected.ledger
    assert decided.columns["cluster_id"].tolist() == expected.columns["cluster_id"].tolist()


@pytest.mark.parametrize(
    ("last_pass", "kept", "message"),
    [
        ("route_clusters", slice(1, 2), "1 survivors should live here, 0 do"),
        ("route", slice(0, 1), "decisions about documents that it lacks"),
    ],
)
def test_decisions_about_other_documents_are_refused(
    tmp_path: Path, last_pass: str, kept: slice, message: str
) -> None:
    run = GlobalRun(["a", "a"], tmp_path)
    passes = ExactDedup().passes()
    done = [one.name for one in passes].index(last_pass) + 1
    for one in passes[:done]:
        run.run_pass(one)
    run.tables[0] = run.tables[0].slice(kept.start, 1)
    run.alive[0] = run.alive[0][kept]
    with pytest.raises(DataError, match=message):
        run.run_pass(passes[done])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Hello  World", "hello world", True),
        (" a\n\tb ", "A\u00a0b", True),
        ("\u00c9t\u00e9", "\u00e9T\u00c9", True),
        ("ab", "a b", False),
        ("a.", "a", False),
        ("", " \n", True),
    ],
)
def test_normalized_texts_differ_in_more_than_case_and_whitespace(
    one: str, other: str, equal: bool
) -> None:
    decided = run_global(ExactDedup(normalize="whitespace_case"), [one, other])
    assert decided.keep.tolist() == [True, not equal]
    assert run_global(ExactDedup(), [one, other]).keep.all()


SOURCES, DATES = ["web", "books", "old"], ["2024-02-29T23:30:00Z", "2024-03-01", "no date", None]
SCORES = [0.5, -1.0, 3.0, -0.0, 0.0, float("nan"), None]
described = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.sampled_from(["", "a", "b", "A", "a  a"]),
            "source": st.sampled_from(SOURCES),
            "date": st.sampled_from(DATES),
            "score": st.sampled_from(SCORES),
        }
    ),
    max_size=10,
)


def decide(stage: ExactDedup, rows: list[dict], **settings) -> Decided:
    columns = {name: [row[name] for row in rows] for name in ("source", "date", "score")}
    return run_global(stage, [row["text"] for row in rows], columns=columns, **settings)


def plain_merit(row: dict, keep) -> float:
    if keep == "longest":
        return len(row["text"].encode())
    if keep == "newest":
        return {"2024-02-29T23:30:00Z": 1, "2024-03-01": 2}.get(row["date"], 0)
    if isinstance(keep, dict):
        value = row["score"]
        return -math.inf if value is None or math.isnan(value) else value
    return 0


def plain_kept(rows: list[dict], keep, prefer: list[str]) -> list[bool]:
    """Return which rows stay, of all with the same text but for case and white space."""
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(" ".join(row["text"].lower().split()), []).append(number)

    def line(number: int) -> tuple:
        row = rows[number]
        favour = prefer.index(row["source"]) if row["source"] in prefer else len(prefer)
        return favour, -plain_merit(row, keep), number

    first = {min(group, key=line) for group in groups.values() if keep != "none" or len(group) == 1}
    return [number in first for number in range(len(rows))]


@settings(max_examples=150)
@given(
    described,
    st.sampled_from(["first", "longest", "newest", "none", {"best": "score"}]),
    st.lists(st.sampled_from(SOURCES), unique=True),
    st.integers(0, 10),
)
def test_the_document_that_the_policy_names_stays(rows, keep, prefer, bound):
    stage = ExactDedup(keep=keep, prefer=prefer, normalize="whitespace_case")
    decided = decide(stage, rows, bounds=[bound] if 0 < bound < len(rows) else [])
    assert decided.keep.tolist() == plain_kept(rows, keep, prefer)
    ranks = decided.columns["cluster_rank"]
    assert ((ranks == 0) | (keep == "none")).tolist() == (decided.keep | (keep == "none")).tolist()
    survivors = {row["survivor_id"] for row in decided.ledger}
    kept = {f"doc-{number}" for number in np.flatnonzero(decided.keep)}
    assert survivors <= ({None} if keep == "none" else kept)


@settings(max_examples=40)
@given(described, st.integers(1, 4))
def test_a_scope_decides_as_if_it_were_alone(rows, batch_docs):
    decided = decide(ExactDedup(scope="source"), rows, batch_docs=batch_docs)
    for source in SOURCES:
        mine = [number for number, row in enumerate(rows) if row["source"] == source]
        alone = decide(ExactDedup(), [rows[number] for number in mine])
        assert decided.keep[mine].tolist() == alone.keep.tolist()
        sizes = decided.columns["cluster_size"][mine]
        assert sizes.tolist() == alone.columns["cluster_size"].tolist()


def test_documents_are_compared_by_another_column():
    rows = [
        {"text": f"{number}", "source": "web", "date": None, "score": None} for number in range(5)
    ]
    urls = ["u/1", "u/2", None, "u/1", None]
    columns = {"place": urls, **{name: [row[name] for row in rows] for name in ("source", "date")}}
    decided = run_global(ExactDedup(column="place"), [row["text"] for row in rows], columns=columns)
    assert decided.keep.tolist() == [True, True, True, False, True]


def test_an_unknown_source_to_prefer_is_refused():
    with pytest.raises(UsageError, match=r"prefer: there is no source 'wob'\. Did you mean 'web'"):
        ExactDedup(prefer=["wob"]).check(Known(("web", "books")))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2024-02-29T23:30:00Z", "2024-03-01T00:15:00"),
        ("2024-03-01T00:30:00+01:00", "2024-02-29T23:45:00Z"),
        ("1969-12-31", "20240301T000000Z"),
        ("2024/05/05", "Mon, 06 May 2024 10:00:00 GMT"),
        ("2024-04-30", "2024-05"),
    ],
)
def test_dates_are_compared_in_time(earlier, later):
    one, other = dates_as_seconds(pa.array([earlier, later]))
    assert one < other
