"""With `clusters: chained`, near duplicates are exact single-link clusters of what bands join."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import TaskError
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup
from tests.shingles import groups, jaccard, shingles, similarity, single_link
from tests.stages.global_runner import GlobalRun, check_ledger, run_global

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stages.global_runner import Decided


THRESHOLDS = (0.3, 0.5, 2 / 3, 0.8, 1.0)

corpora = st.lists(
    st.lists(st.sampled_from("a b c d e f g h".split()), max_size=8).map(" ".join), max_size=20
)


def joins_all(threshold: float, **parameters) -> MinhashDedup:
    """Return a stage whose bands miss a pair of Jaccard 0.3 once in 1e39."""
    bands = {"ngram": 1, "bands": 255, "rows": 1}
    return chained(verify=threshold, **bands, **parameters)


def chained(**parameters) -> MinhashDedup:
    return MinhashDedup(**{"clusters": "chained", "keep": "first", **parameters})


def same_cluster(decided: Decided) -> Callable[[int, int], bool]:
    cluster = decided.columns["cluster_id"]
    return lambda one, other: bool(cluster[one] == cluster[other])


def exact_clusters(texts: list[str], threshold: float, ngram: int = 1) -> set[tuple[int, ...]]:
    return groups(single_link([shingles(text, ngram) for text in texts], threshold))


@settings(max_examples=20)
@given(corpora, st.sampled_from(THRESHOLDS))
def test_clusters_equal_exact_single_link_where_bands_join_all(texts, threshold: float) -> None:
    decided = run_global(joins_all(threshold), texts)
    clusters = decided.clusters()
    assert clusters == exact_clusters(texts, threshold)
    dropped = {number for cluster in clusters for number in cluster[1:]}
    assert set(np.flatnonzero(~decided.keep).tolist()) == dropped


@settings(max_examples=20)
@given(corpora, st.sampled_from((0.5, 0.8)))
def test_clusters_equal_exact_single_link_within_what_bands_join(texts, threshold: float) -> None:
    bands = {"ngram": 1, "bands": 3, "rows": 2}
    joined = run_global(chained(verify=None, **bands), texts).columns["cluster_id"].tolist()
    labels = single_link([shingles(text, 1) for text in texts], threshold, joined)
    assert run_global(chained(verify=threshold, **bands), texts).clusters() == groups(labels)


@settings(max_examples=10)
@given(corpora, st.data())
def test_decisions_do_not_depend_on_how_the_work_was_cut(texts: list[str], data) -> None:
    stage = joins_all(0.5)
    whole = run_global(stage, texts, batch_docs=100)
    # The least memory in which the documents of any cell can be compared with those of another.
    bounds = sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=9)))
    largest = max(int(np.diff([0, *bounds, len(texts)]).max()), 1)
    cut = run_global(
        stage,
        texts,
        bounds=bounds,
        memory_bytes={"verify": 2 * largest * (300 + 8 * 82)},
        batch_docs=data.draw(st.integers(1, 5)),
    )
    assert cut.keep.tolist() == whole.keep.tolist()
    assert {name: c.tolist() for name, c in cut.columns.items()} == {
        name: c.tolist() for name, c in whole.columns.items()
    }
    assert cut.ledger == whole.ledger
    assert cut.counters["verify"] == whole.counters["verify"]


@settings(max_examples=10)
@given(corpora, st.randoms(use_true_random=False))
def test_a_shuffled_corpus_has_the_same_clusters(texts: list[str], shuffler) -> None:
    order = list(range(len(texts)))
    shuffler.shuffle(order)
    decided = run_global(joins_all(0.5), [texts[number] for number in order])
    clusters = {tuple(sorted(order[index] for index in c)) for c in decided.clusters()}
    assert clusters == exact_clusters(texts, 0.5)


@settings(max_examples=10)
@given(corpora)
def test_the_ledger_tells_the_similarity_to_the_survivor(texts: list[str]) -> None:
    decided = run_global(joins_all(0.5), texts, bounds=[len(texts) // 2])
    check_ledger(
        decided, "minhash_dedup", "near_duplicate", same_cluster(decided),
        lambda one, other: jaccard(texts[one], texts[other], 1),
    )  # fmt: skip
    assert all(row["threshold"] == 0.5 for row in decided.ledger)


def test_a_pair_that_no_band_joined_counts_if_its_component_has_it() -> None:
    texts = ["a b c d", "a b c d e", "a b c", "x y"]
    found = run_global(chained(ngram=1, bands=255, rows=1, verify=0.75), texts)
    assert found.clusters() == {(0, 1, 2)}


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_the_survivor_is_the_best_of_the_verified_cluster(keep: str) -> None:
    # The bands join all four; the third is no near duplicate, though the longest.
    texts = ["a b c d e f g h", "a b c d e f g h i", "a b c d e f g k l m n o p", "a b c d e f g h"]
    decided = run_global(joins_all(0.8, keep=keep), texts, bounds=[2])
    kept = {"first": [0, 2], "longest": [1, 2]}[keep]
    assert np.flatnonzero(decided.keep).tolist() == kept
    values = [row["value"] for row in decided.ledger]
    assert values == ([8 / 9, 1.0] if keep == "first" else [8 / 9, 8 / 9])


def test_equal_sets_of_a_cell_are_gathered_once() -> None:
    texts = ["one two three four five six"] * 50
    decided = run_global(chained(), texts, bounds=[10, 11])
    assert np.flatnonzero(decided.keep).tolist() == [0]
    assert decided.counters["gather"] == {"gathered": 50, "shingles": 3 * 2}
    assert {row["value"] for row in decided.ledger} == {1.0}


def test_equal_sets_of_different_components_are_both_gathered() -> None:
    texts = ["a b", "a b", "c d", "c d"]
    decided = run_global(chained(scope="source"), texts, columns={"source": list("xxyy")})
    decided_all = run_global(chained(), ["a b"] * 4, columns={"source": list("xyxy")})
    assert decided.clusters() == {(0, 1), (2, 3)}
    assert decided_all.clusters() == {(0, 1, 2, 3)}
    apart = run_global(chained(scope="source"), ["a b"] * 4, columns={"source": list("xyxy")})
    assert apart.clusters() == {(0, 2), (1, 3)}
    assert apart.counters["gather"]["shingles"] == 2


@pytest.mark.parametrize("num_words", [1, 4])
def test_a_text_of_fewer_words_than_a_shingle_is_one_shingle(num_words: int) -> None:
    words = " ".join(f"w{i}" for i in range(num_words))
    decided = run_global(chained(), [words, words.upper(), f"{words} and more and more"])
    assert decided.keep.tolist() == [True, False, True]
    assert [row["value"] for row in decided.ledger] == [1.0]


def test_texts_without_words_are_gathered_nowhere() -> None:
    decided = run_global(chained(), ["", "...", "a b c", "a b c", "\u2014"])
    assert decided.keep.tolist() == [True, True, True, False, True]
    assert decided.counters["gather"] == {"gathered": 2, "shingles": 1}


def test_a_component_larger_than_memory_is_compared_in_blocks() -> None:
    texts = [f"a b c d e f g h i {x} {y}" for x in range(6) for y in range(6)]
    bounds = range(6, 36, 6)
    whole = run_global(joins_all(0.8), texts, bounds=bounds)
    blocks = run_global(joins_all(0.8), texts, bounds=bounds, memory_bytes={"verify": 2 * 6 * 1300})
    assert blocks.clusters() == exact_clusters(texts, 0.8) == whole.clusters()
    assert blocks.ledger == whole.ledger


def test_documents_of_one_cell_that_do_not_fit_are_refused_with_what_they_need(
    tmp_path: Path,
) -> None:
    texts = [f"a b c d e f g h {number}" for number in range(10)]
    run = GlobalRun(texts, tmp_path, memory_bytes={"verify": 9000})
    with pytest.raises(TaskError, match=r"verify: .* need 20,760 bytes .* use 9,000"):
        run.run(joins_all(0.8))


@pytest.mark.parametrize("threshold", [2 / 7, 0.2858])
def test_similarity_is_that_of_sets_of_shingles(threshold: float) -> None:
    one, other = "a b c d e f " * 4, "a b c d e f g"
    assert similarity(shingles(one), shingles(other)) == 2 / 7
    decided = run_global(chained(bands=255, rows=1, verify=threshold), [one, other])
    assert decided.keep.tolist() == [True, threshold > 2 / 7]
