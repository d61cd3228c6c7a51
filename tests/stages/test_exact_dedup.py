from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.stages import _routing
from corpuskit.stages.dedup import _clusters
from corpuskit.stages.dedup.exact_dedup import ExactDedup
from tests.stages.global_runner import GlobalRun, check_ledger, key_of, run_global

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
    clusters = {tuple(sorted(order[place] for place in c)) for c in decided.clusters()}
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
    memory = {"route": 12 * _clusters.DECISION_BYTES}
    decided = run_global(ExactDedup(), texts, bounds=bounds, memory_bytes=memory)
    assert (expected.units["route"], decided.units["route"]) == (0, 5)
    assert decided.keep.tolist() == expected.keep.tolist()
    assert decided.ledger == expected.ledger
    assert decided.columns["cluster_id"].tolist() == expected.columns["cluster_id"].tolist()


@pytest.mark.parametrize(
    ("last_pass", "kept", "message"),
    [
        ("group", slice(1, 2), "1 survivors should live here, 0 do"),
        ("route", slice(0, 1), "decided about documents that it lacks"),
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
