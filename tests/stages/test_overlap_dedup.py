from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.stage import Known
from corpuskit.stages import _routing
from corpuskit.stages.dedup.overlap_dedup import OverlapDedup
from tests.kernels.test_boundaries import grams
from tests.kernels.test_lines import plain_left, plain_units
from tests.stages.global_runner import number_of, run_global

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.stages.global_runner import Decided

SOURCES = ["web", "books", "code"]
LINES = ["", " ", "a b a b", "a b c", "b c d", "a", "x y a b c", "\u00e9 b c", "A b c"]

corpora = st.lists(st.lists(st.sampled_from(LINES), max_size=6).map("\n".join), max_size=9)
parameters = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(["document", "line", "paragraph"]),
        "ngram": st.integers(1, 3),
        "min_words": st.sampled_from([None, 1]),
        "max_overlap": st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
        "max_document_overlap": st.sampled_from([None, 0.4]),
        "min_document": st.integers(0, 4),
        "prefer": st.lists(st.sampled_from(SOURCES), unique=True, max_size=2).map(tuple),
        "scope": st.sampled_from(["global", "dump"]),
        "action": st.sampled_from(["remove", "annotate"]),
    }
).map(lambda p: {**p, "max_document_overlap": None} if p["unit"] == "document" else p)


def plain_overlaps(
    texts: Sequence[str],
    stage: OverlapDedup,
    sources: Sequence[str],
    dumps: Sequence[str],
    split: Callable[[str], list[str]] = str.split,
) -> list[tuple[list[tuple[int, int]], list[int], list[int]]]:
    """Return the units of each text, how many n-grams each has, and how many of them are seen."""
    favours = {name: rank for rank, name in enumerate(stage.prefer)}
    order = sorted(range(len(texts)), key=lambda n: (favours.get(sources[n], len(favours)), n))
    known: set[tuple[str, tuple[str, ...]]] = set()
    answers: dict[int, tuple[list[tuple[int, int]], list[int], list[int]]] = {}
    for number in order:
        raw = texts[number].encode()
        units = [(0, len(raw))]
        if stage.unit != "document":
            units = plain_units(texts[number], stage.unit == "paragraph")
        totals, seen = [], []
        for begin, end in units:
            words = split(raw[begin:end].decode())
            scope = dumps[number] if stage.scope == "dump" else ""
            ngrams = [(scope, g) for g in grams(words, stage.ngram, stage.min_words or stage.ngram)]
            totals.append(len(ngrams))
            seen.append(sum(gram in known for gram in ngrams))
            known.update(ngrams)
        answers[number] = units, totals, seen
    return [answers[number] for number in range(len(texts))]


def check(decided: Decided, texts: Sequence[str], stage: OverlapDedup, *more: Any) -> None:
    """Assert that texts, columns and ledger are those of the plain program."""
    rows = {number_of(row["doc_key"]): row for row in decided.ledger}
    plain = plain_overlaps(texts, stage, *more)
    for number, (text, (units, totals, seen)) in enumerate(zip(texts, plain, strict=True)):
        share = sum(seen) / max(sum(totals), 1)
        assert decided.columns["overlap"][number] == share
        shares = [part / max(total, 1) for part, total in zip(seen, totals, strict=True)]
        is_cut = [stage.unit != "document" and one > stage.max_overlap for one in shares]
        bytes_left = sum(b - a for (a, b), gone in zip(units, is_cut, strict=True) if not gone)
        rule, value = None, None
        if any(is_cut):
            rule, value = "overlap", sum(is_cut)
            if bytes_left < stage.min_document:
                rule, value = "too_little_left", bytes_left
        if stage.max_document_overlap is not None and share > stage.max_document_overlap:
            rule, value = "document_overlap", share
        is_dropped = rule in {"too_little_left", "document_overlap"}
        if stage.unit == "document" and share > stage.max_overlap:
            rule, value, is_dropped = "overlap", share, True
        if stage.action == "annotate":
            rule, is_dropped = None, False
        assert decided.keep[number] == (not is_dropped)
        left = text
        if rule == "overlap" and not is_dropped:
            left = plain_left(text.encode(), units, is_cut).decode()
        assert decided.texts[number] == left
        row = rows.get(number)
        assert (row is None) == (rule is None)
        if row is not None:
            action = "drop" if is_dropped else "cut"
            assert (row["rule"], row["value"], row["action"]) == (rule, value, action)


@settings(max_examples=40)
@given(corpora, parameters, st.data())
def test_decisions_equal_a_set_however_the_work_is_cut(
    texts: list[str], given_parameters: dict[str, Any], data
) -> None:
    stage = OverlapDedup(**given_parameters)
    bounds = sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=4)))
    names = data.draw(st.lists(st.sampled_from(SOURCES), min_size=5, max_size=5))
    sources = [names[sum(bound <= number for bound in bounds)] for number in range(len(texts))]
    dumps = data.draw(st.lists(st.sampled_from("xy"), min_size=len(texts), max_size=len(texts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_routing, "MAX_OPENS", data.draw(st.sampled_from([0, 1 << 20])))
        decided = run_global(
            stage,
            texts,
            bounds=bounds,
            memory_bytes=data.draw(st.sampled_from([240, 600, 1 << 30])),
            batch_docs=data.draw(st.integers(1, 5)),
            columns={"source": sources, "dump": dumps},
        )
    check(decided, texts, stage, sources, dumps)


def run(texts: Sequence[str], **given_parameters: Any) -> Decided:
    settings_of_run = {
        name: given_parameters.pop(name)
        for name in ("bounds", "alive", "columns")
        if name in given_parameters
    }
    stage = OverlapDedup(**{"ngram": 2, "max_overlap": 0.5, **given_parameters})
    return run_global(stage, texts, **settings_of_run)


def test_a_document_put_together_from_others_goes() -> None:
    decided = run(["a b c d", "e f g h", "b c d z", "a b c d e f g h"], bounds=[1])
    assert decided.keep.tolist() == [True, True, False, False]
    assert decided.columns["overlap"].tolist() == [0, 0, 2 / 3, 6 / 7]
    row = decided.ledger[1]
    assert (row["rule"], row["value"], row["threshold"]) == ("overlap", 6 / 7, 0.5)


def test_what_only_dropped_documents_have_counts_as_seen() -> None:
    texts = ["a b c", "a b c d", "c d"]
    assert run(texts, max_overlap=0.6).keep.tolist() == [True, False, False]


def test_repeats_within_a_document_are_not_seen() -> None:
    assert run(["a b a b a b a b"]).columns["overlap"].tolist() == [0]


def test_lines_are_cut_and_what_stays_keeps_its_separators() -> None:
    decided = run(["a b c\nx y z", "p q r\na b c\n\nm n o\n"], unit="line")
    assert decided.texts == ["a b c\nx y z", "p q r\n\nm n o\n"]
    row = decided.ledger[0]
    assert (row["action"], row["rule"], row["value"]) == ("cut", "overlap", 1)


def test_a_line_that_the_document_itself_repeats_is_cut() -> None:
    assert run(["a b c\nx\na b c"], unit="line").texts == ["a b c\nx"]


def test_a_document_goes_when_most_of_its_lines_are_seen() -> None:
    texts = ["a b c d e f", "a b c d e f\nx y", "g h i j k\na b"]
    decided = run(texts, unit="line", max_document_overlap=0.5)
    assert decided.keep.tolist() == [True, False, True]
    assert decided.ledger[0]["rule"] == "document_overlap"


def test_more_than_255_repeats_in_a_document_all_count() -> None:
    many = " ".join(["a b"] * 400)
    assert run([many, many], bounds=[1]).columns["overlap"].tolist() == [0, 1]


def test_documents_that_left_before_have_no_ngrams() -> None:
    assert run(["a b c", "a b c"], alive=[False, True]).keep.tolist() == [True, True]


def test_an_empty_corpus_has_no_ngrams() -> None:
    assert run([]).keep.tolist() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_words": 14}, "min_words: 14 is above ngram 13"),
        ({"max_document_overlap": 0.5}, "max_document_overlap: needs unit"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OverlapDedup(**given)


def test_an_unknown_preferred_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"prefer: there is no source 'book'. Did you"):
        OverlapDedup(prefer=("book",)).check(Known(("web", "books")))


@pytest.mark.real
@pytest.mark.slow
def test_real_texts_are_cut_as_by_a_set(shared_data: Path) -> None:
    path = sorted((shared_data / "bench_en").glob("*.parquet"))[0]
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()[:400]
    texts = [
        "".join(c if c.isalnum() and c.isascii() else " \n"[c == "\n"] for c in t) for t in texts
    ]
    texts += [a[:2000] + b[:2000] for a, b in itertools.pairwise(texts[:60])]
    nothing = [""] * len(texts)
    for unit in ("document", "line"):
        stage = OverlapDedup(unit=unit)
        decided = run_global(stage, texts, bounds=[60, 100, 410], batch_docs=16)
        check(decided, texts, stage, nothing, nothing)
        assert np.count_nonzero(decided.columns["overlap"] > 0.8) > 20
