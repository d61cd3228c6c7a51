from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import TaskError, UsageError
from corpuskit.formats.batch import utf8
from corpuskit.kernels.minhash import shingle_hashes
from corpuskit.kernels.utf8 import characters
from corpuskit.kernels.wordhash import BYTE_KINDS, word_hashes
from corpuskit.stage import Known, View
from corpuskit.stages import _routing
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup, schemes
from tests.shingles import jaccard
from tests.stages.global_runner import GlobalRun, check_ledger, key_of, number_of, run_global

if TYPE_CHECKING:
    from pathlib import Path

LOOSE = MinhashDedup(ngram=1, bands=4, rows=1, verify=None, keep="first")
"""Finds pairs of any similarity, so that small corpora have chains and clusters."""

compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="37 MB of text are for compiled kernels"
)

corpora = st.lists(
    st.lists(st.sampled_from("a b c d e f g h".split()), max_size=4).map(" ".join), max_size=12
)


def band_keys(stage: MinhashDedup, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    view = View(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    return schemes.sign(view, stage)[:2]


def plain_clusters(stage: MinhashDedup, texts: list[str]) -> set[tuple[int, ...]]:
    """Join documents that share a band key, by repeated minima over all pairs."""
    keys, signed = band_keys(stage, texts)
    labels = list(range(len(texts)))
    for _ in texts:
        for one in np.flatnonzero(signed):
            for other in np.flatnonzero((keys == keys[one]).any(axis=1) & signed):
                labels[one] = labels[other] = min(labels[one], labels[other])
    members: dict[int, list[int]] = {}
    for number, label in enumerate(labels):
        members.setdefault(label, []).append(number)
    return {tuple(numbers) for numbers in members.values() if len(numbers) > 1}


@settings(max_examples=40)
@given(corpora)
def test_clusters_equal_connected_components_of_band_collisions(texts: list[str]) -> None:
    decided = run_global(LOOSE, texts)
    clusters = decided.clusters()
    assert clusters == plain_clusters(LOOSE, texts)
    dropped = {number for cluster in clusters for number in cluster[1:]}
    assert set(np.flatnonzero(~decided.keep).tolist()) == dropped


@settings(max_examples=20)
@given(corpora, st.data())
def test_decisions_do_not_depend_on_how_the_work_was_cut(texts: list[str], data) -> None:
    stage = LOOSE.model_copy(update={"verify": data.draw(st.sampled_from([None, 0.3]))})
    whole = run_global(stage, texts, batch_docs=100)
    rounds = data.draw(st.sampled_from([0, 12]))
    joins = ("cluster", *(f"join_{number}" for number in range(1, 13)))
    routes = ("route_bands", "route_components", "route_sets", "route_clusters", "route")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_routing, "MAX_OPENS", data.draw(st.sampled_from([0, 1 << 20])))
        cut = run_global(
            stage.model_copy(update={"rounds": rounds}),
            texts,
            bounds=sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=4))),
            memory_bytes={
                "edges": data.draw(st.sampled_from([128 * 3, 128 * 10])),
                **dict.fromkeys(routes, 128 * 5),
                **(dict.fromkeys(joins, 700) if rounds else {}),
            },
            batch_docs=data.draw(st.integers(1, 5)),
        )
    assert cut.keep.tolist() == whole.keep.tolist()
    assert {name: c.tolist() for name, c in cut.columns.items()} == {
        name: c.tolist() for name, c in whole.columns.items()
    }
    assert cut.ledger == whole.ledger
    for name in ("sign", "cluster"):
        assert cut.counters[name] == whole.counters[name]


@settings(max_examples=20)
@given(corpora, st.randoms(use_true_random=False))
def test_a_shuffled_corpus_has_the_same_clusters(texts: list[str], shuffler) -> None:
    order = list(range(len(texts)))
    shuffler.shuffle(order)
    decided = run_global(LOOSE, [texts[number] for number in order])
    clusters = {tuple(sorted(order[index] for index in c)) for c in decided.clusters()}
    assert clusters == plain_clusters(LOOSE, texts)


def edited(text: str, changes: int, seed: int) -> str:
    words = text.split()
    source = random.Random(seed)
    for _ in range(changes):
        words[source.randrange(len(words))] = f"other{source.randrange(10**6)}"
    return " ".join(words)


def prose(seed: int, num_words: int = 300) -> str:
    source = random.Random(seed)
    return " ".join(f"word{source.randrange(5000)}" for _ in range(num_words))


def test_edited_copies_go_and_other_texts_stay() -> None:
    texts = [prose(0), prose(1), edited(prose(0), 2, 0), prose(2), edited(prose(0), 2, 1)]
    stage = MinhashDedup(max_lost=0.1, keep="first")
    decided = run_global(stage, texts, bounds=[1, 3], memory_bytes={"edges": 2000})
    assert decided.units["edges"] > 1
    assert decided.keep.tolist() == [True, True, False, True, False]
    assert decided.columns["cluster_id"].tolist() == [key_of(n) for n in (0, 1, 0, 3, 0)]
    assert decided.columns["cluster_size"].tolist() == [3, 1, 3, 1, 3]
    check_ledger(
        decided, "minhash_dedup", "near_duplicate", lambda one, _: one == 0,
        lambda one, other: jaccard(texts[one], texts[other]),
    )  # fmt: skip


def test_annotate_drops_nothing_and_writes_no_ledger() -> None:
    decided = run_global(MinhashDedup(action="annotate"), [prose(0), prose(0)])
    assert decided.keep.all()
    assert decided.ledger == []
    assert decided.columns["cluster_size"].tolist() == [2, 2]


def test_texts_without_words_are_never_duplicates() -> None:
    decided = run_global(MinhashDedup(), ["", "", "...", "...", "\u2014"])
    assert decided.keep.all()
    assert decided.counters["sign"] == {"signed": 0, "without_words": 5}


@pytest.mark.parametrize("num_words", [1, 4, 5, 6])
def test_short_texts_are_duplicates_when_their_words_agree(num_words: int) -> None:
    words = [f"w{i}" for i in range(num_words)]
    same, longer = ", ".join(words).upper(), " ".join([*words, "more", "and", "more"])
    reverse = " ".join([*words[1:], "w0", "x"])
    decided = run_global(MinhashDedup(keep="first"), [" ".join(words), same, longer, reverse])
    assert decided.keep.tolist() == [True, False, True, True]


def test_an_empty_corpus_has_no_duplicates() -> None:
    assert run_global(MinhashDedup(), []).keep.tolist() == []


def test_of_equal_documents_one_stays() -> None:
    decided = run_global(
        MinhashDedup(), ["one two three four five six"] * 50, bounds=[10, 11],
        memory_bytes={"edges": 5000},
    )  # fmt: skip
    assert np.flatnonzero(decided.keep).tolist() == [0]
    assert set(decided.columns["cluster_size"].tolist()) == {50}
    assert decided.counters["cluster"] == {"joined_documents": 50}
    assert decided.counters["verify"] == {"clusters": 1, "clustered_documents": 50}


def test_the_seed_decides_which_borderline_pairs_are_found() -> None:
    texts = [edited(prose(0), 12, seed) for seed in range(20)]
    found = {
        tuple(
            run_global(MinhashDedup(seed=seed, verify=None), texts).columns["cluster_id"].tolist()
        )
        for seed in range(4)
    }
    assert len(found) > 1


@pytest.mark.parametrize(("verify", "needed"), [(None, 2560), (0.8, 1760)])
def test_clusters_that_do_not_fit_are_refused_with_the_bytes_they_need(
    verify: float | None, needed: int, tmp_path: Path
) -> None:
    texts = [prose(seed) for seed in range(10)] * 2
    stage = MinhashDedup(verify=verify)
    with pytest.raises(TaskError, match=rf"20 near duplicates .* 10 edges need {needed:,} bytes"):
        GlobalRun(texts, tmp_path, memory_bytes={"cluster": needed - 1}).run(stage)
    assert run_global(stage, texts, memory_bytes={"cluster": needed}).keep.sum() == 10


@compiled
@pytest.mark.real
@pytest.mark.slow
def test_pairs_are_found_as_often_as_theory_says(shared_data: Path) -> None:
    """Every pair of the pool with Jaccard >= 0.2 is known; see its README."""
    docs = pq.read_table(shared_data / "neardup" / "docs.parquet", columns=["id", "text"])
    stage = MinhashDedup()
    keys, signed = band_keys(stage, docs["text"].to_pylist())
    row = {name: number for number, name in enumerate(docs["id"].to_pylist())}
    pairs = pq.read_table(shared_data / "neardup" / "pairs.parquet")
    one = np.array([row[name] for name in pairs["id_a"].to_pylist()])
    other = np.array([row[name] for name in pairs["id_b"].to_pylist()])
    similarity = pairs["jaccard_word5"].to_numpy()
    found = (keys[one] == keys[other]).any(axis=1) & signed[one] & signed[other]
    theory = 1 - (1 - similarity**stage.rows) ** stage.bands
    for low in (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        bucket = (similarity >= low) & (similarity < low + 0.1)
        assert bucket.sum() > 100
        # Pairs of one family share documents, so they count for fewer than they are.
        assert abs(found[bucket].mean() - theory[bucket].mean()) < 0.05, low
    assert found[similarity == 1].all()


@compiled
@pytest.mark.real
@pytest.mark.slow
def test_shingles_are_those_of_the_ground_truth(shared_data: Path) -> None:
    docs = pq.read_table(shared_data / "neardup" / "docs.parquet", columns=["id", "text"])
    pairs = pq.read_table(shared_data / "neardup" / "pairs.parquet")
    sizes = dict(zip(pairs["id_a"].to_pylist(), pairs["size_a"].to_pylist(), strict=True))
    column = utf8(docs["text"].combine_chunks().cast(pa.large_string()))
    edges = np.empty(int(column.sizes().max()) + 2, np.int32)
    words = np.empty(len(edges), np.uint64)
    for row, name in enumerate(docs["id"].to_pylist()):
        if name in sizes:
            begin, end = column.offsets[row : row + 2]
            num = word_hashes(column.data, begin, end, characters(), BYTE_KINDS, edges, words)
            assert len(np.unique(words[: shingle_hashes(words, num, 5)])) == sizes[name], name


@compiled
@pytest.mark.real
@pytest.mark.slow
def test_real_documents_are_dropped_for_the_right_reasons(shared_data: Path) -> None:
    docs = pq.read_table(shared_data / "neardup" / "docs.parquet", columns=["id", "text"])
    names, texts = docs["id"].to_pylist(), docs["text"].to_pylist()
    bounds = range(1000, len(texts), 1000)
    memory = {"edges": 128 * 20_000, "verify": 20 << 20}
    stage = MinhashDedup(clusters="chained", keep="first")
    decided = run_global(stage, texts, bounds=bounds, memory_bytes=memory, batch_docs=200)
    assert decided.units["edges"] == -(-14 * len(texts) // 20_000)
    assert decided.units["verify"] > 1
    row = {name: number for number, name in enumerate(names)}
    pairs = pq.read_table(shared_data / "neardup" / "pairs.parquet")
    columns = [pairs[name].to_pylist() for name in ("id_a", "id_b", "jaccard_word5")]
    known = {frozenset((row[a], row[b])): jaccard for a, b, jaccard in zip(*columns, strict=True)}
    cluster = decided.columns["cluster_id"]
    values = {number_of(entry["doc_key"]): entry["value"] for entry in decided.ledger}
    check_ledger(
        decided, "minhash_dedup", "near_duplicate",
        lambda one, other: bool(cluster[one] == cluster[other]),
        # Below 0.2 the pair is not in the list: members of a cluster that are far apart.
        lambda one, other: known.get(frozenset((one, other)), values[other]),
    )  # fmt: skip
    nearest = np.zeros(len(texts))
    for pair, likeness in known.items():
        one, other = pair
        if cluster[one] == cluster[other]:
            nearest[[one, other]] = np.maximum(nearest[[one, other]], likeness)
        # 1 of 1e3 pairs of J 0.9 shares no band.
        assert likeness < 0.95 or cluster[one] == cluster[other]
    assert nearest[decided.columns["cluster_size"] > 1].min() >= 0.8


def test_shingles_of_characters_find_what_words_do_not() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    texts = [text, text[:50] + "x" + text[51:], text[::-1]]
    assert run_global(MinhashDedup(), texts).keep.all()
    stage = MinhashDedup(shingles="characters", ngram=3, bands=20, rows=2, max_lost=None)
    decided = run_global(stage, texts)
    assert decided.keep.tolist() == [True, False, True]
    assert decided.ledger[0]["value"] == 55 / 61


def test_shingles_of_characters_are_of_the_scheme_fast() -> None:
    with pytest.raises(UsageError, match="shingles: scheme datasketch has words only"):
        MinhashDedup(shingles="characters", scheme="datasketch").check(Known())
