from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.utils.text import TextNormConfig, simplify_text
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.kernels.lines import hash_units
from corpuskit.stage import Known
from corpuskit.stages import _routing
from corpuskit.stages.dedup import line_dedup
from corpuskit.stages.dedup.line_dedup import LineDedup
from tests.kernels.test_lines import (
    plain_case_digits,
    plain_ccnet,
    plain_left,
    plain_units,
)
from tests.stages.global_runner import cut, number_of, run_global

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.stages.global_runner import Decided

LINES = ["", " ", "a", "A", "a1", "b b", "B  b2", "\u00e9", "x\0y", "x\u2028y", "\u201dx"]
EXAMPLES = 25
SOURCES = ["web", "books", "code"]

corpora = st.lists(
    st.tuples(st.lists(st.sampled_from(LINES), max_size=7), st.sampled_from(["\n", "\r\n"])).map(
        lambda parts: parts[1].join(parts[0])
    ),
    max_size=9,
)
parameters = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(["line", "paragraph"]),
        "normalize": st.sampled_from(["none", "case_digits", "ccnet", "simplify"]),
        "window": st.sampled_from([1, 1, 2, 3]),
        "min_bytes": st.integers(1, 4),
        "min_words": st.integers(0, 2),
        "min_count": st.integers(2, 4),
        "count": st.sampled_from(["documents", "occurrences"]),
        "keep": st.sampled_from(["first", "none"]),
        "prefer": st.lists(st.sampled_from(SOURCES), unique=True, max_size=2).map(tuple),
        "scope": st.sampled_from(["global", "dump"]),
        "action": st.sampled_from(["cut", "annotate"]),
        "min_document": st.integers(0, 6),
        "min_units": st.integers(0, 2),
        "max_ratio": st.sampled_from([None, 0.0, 0.4, 1.0]),
    }
)


def plain_compared(text: str, stage: LineDedup) -> str:
    if stage.normalize == "none":
        return text
    if stage.normalize == "simplify":
        return simplify_text(text, TextNormConfig())
    return plain_ccnet(text) if stage.normalize == "ccnet" else plain_case_digits(text)


def plain_repeats(
    texts: Sequence[str], stage: LineDedup, sources: Sequence[str], dumps: Sequence[str]
) -> list[tuple[list[tuple[int, int]], list[bool]]]:
    """Return the units of each text, and which of them are repeated."""
    favours = {name: index for index, name in enumerate(stage.prefer)}
    order = sorted(range(len(texts)), key=lambda n: (favours.get(sources[n], len(favours)), n))
    found = [plain_units(text, stage.unit == "paragraph") for text in texts]
    occurrences: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for number in order:
        raw = texts[number].encode()
        pieces = [plain_compared(raw[a:b].decode(), stage) for a, b in found[number]]
        for index in range(len(pieces) - stage.window + 1):
            unit = " ".join(pieces[index : index + stage.window])
            if stage.normalize == "none":
                last = found[number][index + stage.window - 1][1]
                unit = raw[found[number][index][0] : last].decode()
            if len(unit.encode()) >= stage.min_bytes and len(unit.split()) >= stage.min_words:
                scope = dumps[number] if stage.scope == "dump" else ""
                occurrences.setdefault((scope, unit), []).append((number, index))
    repeated = [[False] * len(units) for units in found]
    for met in occurrences.values():
        documents = stage.count == "documents"
        if len({number for number, _ in met} if documents else met) < stage.min_count:
            continue
        for number, index in met:
            is_first = number == met[0][0] if documents else (number, index) == met[0]
            for unit_index in range(index, index + stage.window):
                repeated[number][unit_index] |= stage.keep == "none" or not is_first
    return list(zip(found, repeated, strict=True))


def check(
    decided: Decided, texts: Sequence[str], stage: LineDedup,
    sources: Sequence[str], dumps: Sequence[str],
) -> None:  # fmt: skip
    """Assert that texts, columns and ledger are those of the plain program."""
    rows = {number_of(row["doc_key"]): row for row in decided.ledger}
    plain = plain_repeats(texts, stage, sources, dumps)
    for number, (text, (units, repeated)) in enumerate(zip(texts, plain, strict=True)):
        sizes = [end - begin for begin, end in units]
        cut_bytes = sum(size for size, is_cut in zip(sizes, repeated, strict=True) if is_cut)
        ratio = cut_bytes / max(sum(sizes), 1)
        assert decided.columns["repeated_units"][number] == sum(repeated)
        assert decided.columns["repeated_ratio"][number] == ratio
        left = plain_left(text.encode(), units, repeated).decode()
        rule, value = None, None
        if stage.action == "cut" and any(repeated):
            rule, value = "repeated_line", sum(repeated)
            if len(units) - sum(repeated) < stage.min_units:
                rule, value = "too_few_left", len(units) - sum(repeated)
            if len(left.encode()) < stage.min_document:
                rule, value = "too_little_left", len(left.encode())
            if stage.max_ratio is not None and ratio > stage.max_ratio:
                rule, value = "mostly_repeated", ratio
        is_dropped = rule in {"too_little_left", "mostly_repeated", "too_few_left"}
        assert decided.keep[number] == (not is_dropped)
        assert decided.texts[number] == (left if rule == "repeated_line" else text)
        row = rows.get(number)
        assert (row is None) == (rule is None)
        if row is not None:
            assert (row["rule"], row["value"]) == (rule, value)
            assert row["action"] == ("drop" if is_dropped else "cut")
            assert cut([text], [pa.array([row["spans"]])]) == [left]


@settings(max_examples=EXAMPLES)
@given(corpora, parameters, st.data())
def test_decisions_equal_a_dictionary_however_the_work_is_cut(
    texts: list[str], given_parameters: dict[str, Any], data
) -> None:
    stage = LineDedup(**given_parameters)
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
    """Run with limits that short texts reach."""
    settings_of_run = {
        name: given_parameters.pop(name)
        for name in ("bounds", "alive", "columns", "memory_bytes")
        if name in given_parameters
    }
    small = {"min_bytes": 1, "min_count": 2, "min_document": 0, **given_parameters}
    return run_global(LineDedup(**small), texts, **settings_of_run)


def test_the_first_document_keeps_the_line_and_the_others_lose_it() -> None:
    decided = run(["menu\none", "two\nmenu\n", "menu\nthree"], bounds=[1])
    assert decided.texts == ["menu\none", "two\n", "three"]
    assert decided.counters["count"] == {"repeated_units": 1}


def test_keep_none_leaves_no_copy() -> None:
    decided = run(["menu\none", "two\nmenu"], keep="none")
    assert decided.texts == ["one", "two"]


@pytest.mark.parametrize(
    ("count", "left"),
    [
        ("documents", ["x\nx\na", "b\nc\nc"]),
        ("occurrences", ["x\na", "b\nc"]),
    ],
)
def test_repeats_inside_one_document_count_only_as_occurrences(count: str, left: list[str]) -> None:
    assert run(["x\nx\na", "x\nb\nx\nc\nc"], count=count).texts == left


def test_a_line_below_the_threshold_stays_everywhere() -> None:
    texts = [f"menu\n{number}" for number in range(5)]
    assert run(texts, min_count=6).texts == texts
    assert run([*texts, "menu"], min_count=6).texts == ["menu\n0", "1", "2", "3", "4", ""]


def test_lines_are_compared_within_their_scope() -> None:
    decided = run(["x\na", "x\nb", "x\nc"], scope="dump", columns={"dump": ["1", "2", "1"]})
    assert decided.texts == ["x\na", "x\nb", "c"]


def test_with_ids_as_scope_lines_are_compared_within_a_document() -> None:
    decided = run(["x\nx\na", "x\nb"], scope="id", count="occurrences")
    assert decided.texts == ["x\na", "x\nb"]


def test_a_preferred_source_keeps_its_line() -> None:
    decided = run(
        ["x\na", "x\nb", "x\nc"], prefer=("books",), bounds=[1, 2],
        columns={"source": ["web", "books", "web"]},
    )  # fmt: skip
    assert decided.texts == ["a", "x\nb", "c"]


def test_an_unknown_preferred_source_is_refused() -> None:
    with pytest.raises(UsageError, match=r"prefer: there is no source 'book'. Did you"):
        LineDedup(prefer=("book",)).check(Known(("web", "books")))


def test_documents_that_left_before_have_no_lines() -> None:
    decided = run(["x\na", "x\nb", "x\nc"], alive=[False, True, True])
    assert decided.texts[1:] == ["x\nb", "c"]
    assert len(decided.ledger) == 1


def test_annotate_measures_and_cuts_nothing() -> None:
    texts = ["x\na", "xx\nx\nx"]
    decided = run(texts, action="annotate")
    assert decided.texts == texts
    assert decided.ledger == []
    assert decided.columns["repeated_units"].tolist() == [0, 2]
    assert decided.columns["repeated_ratio"].tolist() == [0, 0.5]


def test_a_document_goes_when_too_little_is_left_of_it() -> None:
    decided = run(["menu\nlong enough", "menu\nabc", "abcd\nmenu", "ab"], min_document=4)
    assert decided.keep.tolist() == [True, False, True, True]
    dropped, cut_from = decided.ledger
    assert (dropped["action"], dropped["rule"]) == ("drop", "too_little_left")
    assert (dropped["value"], dropped["threshold"]) == (3, 4)
    assert dropped["spans"] == [{"start": 0, "end": 5}]
    assert (cut_from["action"], cut_from["value"]) == ("cut", 1)


def test_a_document_goes_when_too_much_of_it_is_repeated() -> None:
    decided = run(["12345", "12345\nabcde", "12345\nabc"], max_ratio=0.5)
    assert decided.keep.tolist() == [True, True, False]
    row = decided.ledger[-1]
    assert (row["rule"], row["value"], row["threshold"]) == ("mostly_repeated", 5 / 8, 0.5)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x\r\na\r\n", "a\r\n"),
        ("a\nx", "a"),
        ("", ""),
        ("\n\n\r\n \n", "\n\n\r\n \n"),
        ("x\n\nx\n", ""),
        ("x\u2028a", "x\u2028a"),
        ("x\ra", "x\ra"),
        ("x\0", "x\0"),
        ("\0\nx\n\u00e9", "\0\n\u00e9"),
    ],
)
def test_edges_of_lines(text: str, left: str) -> None:
    decided = run(["x", text])
    assert decided.texts == ["x", left]
    assert decided.keep.all()


def test_paragraphs_are_cut_whole_or_not_at_all() -> None:
    decided = run(["a\nb\n\nc", "a\n\nc\n\na\nb\n\nd"], unit="paragraph")
    assert decided.texts == ["a\nb\n\nc", "a\n\nd"]


def test_runs_of_three_sentences_go_with_all_their_sentences() -> None:
    texts = [
        "One is 1. Two is here. Three it is. Four.",
        "Before it. One is 2. Two, is here! Three it is. Last.\n",
        "Two is here. Three it is.\n\nEnd.\n",
    ]
    three = {"unit": "sentence", "window": 3, "normalize": "simplify"}
    assert run(texts, **three).texts == [texts[0], "Before it. Last.\n", texts[2]]
    decided = run(texts, **three, min_units=3)
    assert decided.keep.tolist() == [True, False, True]
    assert (decided.ledger[0]["rule"], decided.ledger[0]["value"]) == ("too_few_left", 2)
    texts = ["an. bees. cat.", "six. an. bees. cat.\n"]
    assert run(texts, unit="sentence", window=3).texts == ["an. bees. cat.", "six."]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="10 MB, byte by byte")
def test_a_line_of_10_mb_is_a_line() -> None:
    long = "\u00e9 9" * 2_500_000
    decided = run([f"a\n{long}", f"{long}\nb", f"{long}!"], normalize="case_digits")
    assert [len(text) for text in decided.texts] == [len(long) + 2, 1, len(long) + 1]


def test_an_empty_corpus_has_no_lines() -> None:
    assert run([]).keep.tolist() == []


def test_what_waits_to_be_counted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{n % 3}\n{n % 5}\n{n % 3}\n{n}" for n in range(30)]
    for count in ("documents", "occurrences"):
        whole = run(texts, count=count, min_count=7)
        with monkeypatch.context() as patch:
            patch.setattr(line_dedup, "WAITING_SEGMENTS", 5)
            assert run(texts, count=count, min_count=7).texts == whole.texts != texts


@pytest.mark.parametrize("memory", [1200, 1 << 30])
def test_a_second_level_of_the_exchange_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    texts = [f"menu {n % 7}\n{n}\nfooter" for n in range(40)]
    bounds = [4, 9, 15, 22, 30]
    expected = run(texts, bounds=bounds, memory_bytes={"count": memory})
    monkeypatch.setattr(_routing, "MAX_OPENS", 0)
    limits = {"count": memory, "deal": memory, "route": 1500}
    decided = run(texts, bounds=bounds, memory_bytes=limits)
    for name in ("deal", "route"):
        assert expected.units[name] == 0 < decided.units[name]
    assert decided.texts == expected.texts != texts
    assert decided.ledger == expected.ledger


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="2 MB, byte by byte")
@pytest.mark.parametrize("folder", ["bench_en", "bench_multi"])
def test_real_texts_are_cut_as_by_a_dictionary(shared_data: Path, folder: str) -> None:
    path = sorted((shared_data / folder).glob("*.parquet"))[0]
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()[:250]
    stage = LineDedup(min_count=2, normalize="case_digits", count="occurrences", max_ratio=0.8)
    texts = [re.sub("[\u0130\u03a3\u03c2]", "", text) for text in texts]
    nothing = [""] * len(texts)
    decided = run_global(stage, texts, bounds=[60, 100], batch_docs=16)
    check(decided, texts, stage, nothing, nothing)
    assert np.count_nonzero(decided.columns["repeated_units"]) > 50


def test_units_with_equal_first_hashes_are_told_apart_by_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blunt(*given_units: Any) -> Any:
        high, low, docs = hash_units(*given_units)
        return np.full_like(high, 7), low, docs

    monkeypatch.setattr(line_dedup, "hash_units", blunt)
    decided = run(["x\na", "x\nb"], action="annotate")
    assert decided.counters["hash"] == {"units_with_equal_first_hashes": 2}
    assert decided.counters["count"] == {"repeated_units": 1}
