"""With `clusters: direct`, what goes is similar to something that stays, and loses little."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup
from tests.shingles import first_holders, lost, shingles, similarity
from tests.stages.global_runner import key_of, run_global

if TYPE_CHECKING:
    from tests.stages.global_runner import Decided

corpora = st.lists(
    st.lists(st.sampled_from("a b c d e f g h".split()), max_size=8).map(" ".join), max_size=20
)
bounds = st.tuples(st.sampled_from((0.3, 0.5, 2 / 3, 0.8)), st.sampled_from((0.0, 0.2, 0.4, 1.0)))

CHAINED = {"clusters": "chained"}


def joins_all(pair: tuple[float, float], **parameters: Any) -> MinhashDedup:
    """Return a stage whose bands miss a pair of Jaccard 0.3 once in 1e39."""
    bands = {"ngram": 1, "bands": 255, "rows": 1}
    return MinhashDedup(verify=pair[0], max_lost=pair[1], **bands, **parameters)


def in_order(texts: list[str], keep: str) -> list[int]:
    size = (lambda n: -len(texts[n].encode())) if keep == "longest" else (lambda _: 0)
    return sorted(range(len(texts)), key=size)


def plain_holders(texts: list[str], pair: tuple[float, float], keep: str) -> list[int]:
    return first_holders([shingles(text, 1) for text in texts], in_order(texts, keep), pair)


def check(decided: Decided, holders: list[int], texts: list[str]) -> None:
    """Assert that all decisions are those of the holders of documents, -1 for what stays."""
    assert decided.keep.tolist() == [holder < 0 for holder in holders]
    centers = [n if holder < 0 else holder for n, holder in enumerate(holders)]
    clusters = [min(n for n, c in enumerate(centers) if c == center) for center in centers]
    assert decided.columns["cluster_id"].tolist() == [key_of(first) for first in clusters]
    assert decided.columns["cluster_size"].tolist() == [centers.count(c) for c in centers]
    dropped = [n for n, holder in enumerate(holders) if holder >= 0]
    assert [row["doc_id"] for row in decided.ledger] == [f"doc-{n}" for n in dropped]
    for number, row in zip(dropped, decided.ledger, strict=True):
        one, other = (shingles(texts[n], 1) for n in (number, holders[number]))
        assert row["survivor_id"] == f"doc-{holders[number]}"
        assert (row["value"], row["lost"]) == (similarity(one, other), lost(one, other))


@settings(max_examples=40)
@given(corpora, bounds, st.sampled_from(("first", "longest")))
def test_decisions_equal_those_of_all_pairs_in_the_order(texts, pair, keep: str) -> None:
    decided = run_global(joins_all(pair, keep=keep), texts)
    check(decided, plain_holders(texts, pair, keep), texts)


@settings(max_examples=20)
@given(corpora, bounds, st.sampled_from(("first", "longest")), st.data())
def test_decisions_do_not_depend_on_how_the_work_was_cut(texts, pair, keep: str, data) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=9)))
    largest = max(int(np.diff([0, *edges, len(texts)]).max()), 1)
    decided = run_global(
        joins_all(pair, keep=keep), texts, bounds=edges, batch_docs=data.draw(st.integers(1, 5)),
        memory_bytes={"verify": 2 * largest * (300 + 8 * 82)},
    )  # fmt: skip
    check(decided, plain_holders(texts, pair, keep), texts)


@settings(max_examples=10)
@given(corpora, bounds, st.randoms(use_true_random=False))
def test_a_shuffled_corpus_loses_the_same_documents(texts, pair, shuffler) -> None:
    texts = list({len(text): text for text in texts}.values())  # ties go by reading order
    shuffled = shuffler.sample(texts, len(texts))
    kept = [
        {
            text
            for text, keep in zip(order, run_global(joins_all(pair), order).keep, strict=True)
            if keep
        }
        for order in (texts, shuffled)
    ]
    assert kept[0] == kept[1]


@settings(max_examples=20)
@given(corpora, bounds, st.data())
def test_one_of_each_cluster_stays_in_every_source(texts, pair, data) -> None:
    sources = [data.draw(st.sampled_from("xyz")) for _ in texts]
    decided = run_global(joins_all(pair, one_per="source"), texts, columns={"source": sources})
    holders = plain_holders(texts, pair, "longest")
    first: dict[tuple[int, str], int] = {}
    for number in in_order(texts, "longest"):
        center = number if holders[number] < 0 else holders[number]
        first.setdefault((center, sources[number]), number)
    assert np.flatnonzero(decided.keep).tolist() == sorted(first.values())
    assert ((decided.columns["cluster_rank"] == 0) == decided.keep).all()
    for number in np.flatnonzero(~decided.keep).tolist():
        row = next(row for row in decided.ledger if row["doc_id"] == f"doc-{number}")
        assert row["survivor_id"] == f"doc-{holders[number]}"


def words(source: random.Random, num: int) -> list[str]:
    return [f"word{source.randrange(5000)}" for _ in range(num)]


@pytest.mark.parametrize("at", [0, 190, 380])
def test_forms_that_are_filled_in_differently_stay(at: int) -> None:
    source = random.Random(at)
    form = words(source, 380)
    texts = [
        " ".join([*form[:at], *(f"own{n}x{more}" for more in range(20)), *form[at:]])
        for n in range(60)
    ]
    assert run_global(MinhashDedup(), texts, batch_docs=60).keep.all()
    assert run_global(MinhashDedup(**CHAINED), texts, batch_docs=60).keep.sum() == 1


@pytest.mark.parametrize("max_lost", [None, 0.1])
def test_the_ends_of_a_chain_of_changes_stay_distinct(max_lost: float | None) -> None:
    source = random.Random(0)
    chain = [words(source, 400)]
    for step in range(39):
        start = 20 * (step % 20)
        chain.append([*chain[-1][:start], *words(source, 20), *chain[-1][start + 20 :]])
    texts = [" ".join(one) for one in chain]
    decided = run_global(MinhashDedup(max_lost=max_lost), texts, batch_docs=40)
    assert 4 < decided.keep.sum() < 20
    assert decided.columns["cluster_id"][0] != decided.columns["cluster_id"][-1]
    assert all(row["value"] >= 0.8 for row in decided.ledger)
    assert run_global(MinhashDedup(**CHAINED), texts, batch_docs=40).keep.sum() == 1
    assert run_global(MinhashDedup(), texts, batch_docs=40).keep.all()


def test_of_a_document_and_its_prefix_the_whole_stays() -> None:
    text = words(random.Random(0), 400)
    for texts in ([text[:360], text], [text, text[:360]]):
        decided = run_global(MinhashDedup(), [" ".join(one) for one in texts])
        assert decided.keep.tolist() == [one is text for one in texts]
        [row] = decided.ledger
        assert (row["value"], row["lost"]) == (356 / 396, 0)


def test_with_keep_first_a_longer_document_stays_beside_its_prefix() -> None:
    text = words(random.Random(0), 400)
    decided = run_global(MinhashDedup(keep="first"), [" ".join(text[:360]), " ".join(text)])
    assert decided.keep.all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"keep": "none"}, "keep: with none"),
        ({"verify": None, "clusters": "direct"}, "clusters: direct needs verify"),
        ({"verify": None, "max_lost": 0.1}, "max_lost: has no effect with verify: null"),
        ({"clusters": "chained", "max_lost": 0.1}, "max_lost: has no effect with clusters"),
        ({"clusters": "chained", "one_per": "source"}, "one_per: has no effect with clusters"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(parameters, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MinhashDedup(**parameters).check(None)  # type: ignore[arg-type]
