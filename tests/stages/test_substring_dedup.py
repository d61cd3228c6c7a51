from __future__ import annotations

import functools
import pickle
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.errors import TaskError, UsageError
from corpuskit.stage import Known
from corpuskit.stages.dedup.substring_dedup import SubstringDedup
from corpuskit.stages.dedup.substring_dedup.suffix_array import _lay_out
from tests.stages.global_runner import run_global

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest.importorskip("pydivsufsort")

ENGINES = ("suffix_array", "partitioned")
LEAST = 10
"""The shortest window there is."""

Spans = list[list[tuple[int, int]]]

pieces = st.text("ab", max_size=14) | st.sampled_from(
    ["abcdefghijkl", "a" * 25, "ab" * 13, "\u00e9x"]
)
corpora = st.lists(st.lists(pieces, max_size=4).map("".join), max_size=7)


def plain_spans(
    texts: Sequence[Sequence[Any]],
    window: int,
    keep: str = "first",
    *,
    scopes: Sequence[str] = (),
    ranks: Sequence[int] = (),
) -> Spans:
    """Return the repeated spans of each text, by a dictionary of all windows."""
    scopes, ranks = scopes or [""] * len(texts), ranks or [0] * len(texts)
    positions: dict[tuple[str, Any], list[tuple[int, int]]] = {}
    for number in sorted(range(len(texts)), key=lambda number: (ranks[number], number)):
        text = texts[number]
        for at in range(len(text) - window + 1):
            key = scopes[number], text[at : at + window]
            positions.setdefault(key, []).append((number, at))
    spans: Spans = [[] for _ in texts]
    for number, at in sorted(
        position
        for found in positions.values()
        if len(found) > 1
        for position in found[keep == "first" :]
    ):
        mine = spans[number]
        start = mine.pop()[0] if mine and mine[-1][1] >= at else at
        mine.append((start, at + window))
    return spans


def find(texts: Sequence[str], *, run: dict[str, Any] | None = None, **params: Any) -> Spans:
    """Return the spans that the stage annotates, untrimmed unless asked for."""
    params = {"action": "annotate", "trim": "char", "min_fragment": 0} | params
    decided = run_global(SubstringDedup(**params), texts, **(run or {}))
    assert decided.keep.all()
    assert decided.ledger == []
    return [[(s["start"], s["end"]) for s in lists] for lists in decided.columns["spans"]]


def bytes_of(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@settings(max_examples=60)
@given(
    corpora, st.integers(LEAST, 13), st.sampled_from(["first", "none"]), st.sampled_from(ENGINES)
)
def test_spans_equal_those_of_a_dictionary(texts, window, keep, engine) -> None:
    ascii_only = [text.replace("\u00e9", "e") for text in texts]
    found = find(ascii_only, engine=engine, min_bytes=window, keep=keep)
    assert found == plain_spans(bytes_of(ascii_only), window, keep)


stretches = st.sampled_from(["abcdefgh", "ijklmn", "opq", "rst" * 5, "uvw" * 3, "x"])
overlaps = st.lists(st.lists(stretches, max_size=4).map("".join), max_size=7)


@settings(max_examples=60)
@given(corpora | overlaps, st.integers(LEAST, 13), st.sampled_from(ENGINES))
def test_every_repeated_window_stays_whole_somewhere(texts, window, engine) -> None:
    texts = [text.replace("\u00e9", "e") for text in texts]
    spans = find(texts, engine=engine, min_bytes=window, keep="whole", min_fragment=window)
    left = []
    for text, cuts in zip(texts, spans, strict=True):
        edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
        parts = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        left += parts if sum(map(len, parts)) >= window else []  # else min_document drops it
    counts = Counter(
        text[at : at + window] for text in texts for at in range(len(text) - window + 1)
    )
    lost = [one for one, count in counts.items() if count > 1 and not any(one in p for p in left)]
    assert not lost


def test_what_is_in_a_first_copy_stays_where_a_later_one_overlaps_it(engine) -> None:
    texts = ["--abcdefghij", "abcdefghijkl", "bcdefghijkl~"]
    first, whole = (find(texts, engine=engine, min_bytes=10, keep=k) for k in ("first", "whole"))
    assert first == [[], [(0, 10)], [(0, 11)]]  # nowhere is bcdefghijkl left
    assert whole == [[], [(0, 1)], [(0, 11)]]


@settings(max_examples=30)
@given(corpora, st.data(), st.sampled_from(ENGINES))
def test_spans_do_not_depend_on_how_the_work_was_cut(texts, data, engine) -> None:
    params = {
        "engine": engine,
        "min_bytes": LEAST,
        "keep": data.draw(st.sampled_from(["first", "whole", "none"])),
    }
    sources = [data.draw(st.sampled_from("xyz")) for _ in texts]
    if data.draw(st.booleans()):
        params["prefer"] = ("z", "x")
    if data.draw(st.booleans()):
        params["scope"] = "source"
    bounds = sorted(data.draw(st.sets(st.integers(0, len(texts)), max_size=4)))
    whole = find(texts, **params, run={"columns": {"source": sources}, "batch_docs": 100})
    cut = find(
        texts,
        **params,
        run={
            "columns": {"source": sources},
            "bounds": bounds,
            "batch_docs": data.draw(st.integers(1, 5)),
            "memory_bytes": data.draw(st.sampled_from([1 << 13, 1 << 30])),
        },
    )
    assert cut == whole


@settings(max_examples=30)
@given(corpora, st.data(), st.sampled_from(ENGINES))
def test_preferred_sources_come_first_and_scopes_stand_apart(texts, data, engine) -> None:
    texts = [text.replace("\u00e9", "e") for text in texts]
    sources = [data.draw(st.sampled_from("xyz")) for _ in texts]
    dumps = [data.draw(st.sampled_from(["d1", "d2"])) for _ in texts]
    found = find(
        texts,
        engine=engine,
        min_bytes=LEAST,
        prefer=("z", "x"),
        scope="dump",
        run={
            "columns": {"source": sources, "dump": dumps},
            "bounds": [2] if len(texts) > 2 else [],
        },
    )
    ranks = ["zxy".index(source) for source in sources]
    assert found == plain_spans(bytes_of(texts), LEAST, scopes=dumps, ranks=ranks)


def test_documents_dropped_before_are_not_compared(engine) -> None:
    texts = ["one passage that is repeated", "other", "one passage that is repeated"]
    alive = {"alive": [False, True, True]}
    assert find(texts, engine=engine, min_bytes=LEAST, run=alive) == [[], [], []]


PASSAGE = "the same long passage that stands in many places of it all"
TEXTS = [
    f"First of all {PASSAGE}, and then goes on with words of its own.",
    f"Another one: {PASSAGE}; it has quite a lot to say of its very own, too.",
    f"x{PASSAGE}y",
    "Nothing of it here, and nothing anywhere else, either.",
]


def test_what_is_cut_stands_in_the_ledger(engine) -> None:
    stage = SubstringDedup(engine=engine, min_bytes=30, min_document=12)
    decided = run_global(stage, TEXTS, bounds=[1])
    assert decided.keep.tolist() == [True, True, False, True]
    assert decided.texts[0] == TEXTS[0]
    assert decided.texts[1] == "Another one: all; it has quite a lot to say of its very own, too."
    cut, dropped = decided.ledger
    assert (cut["doc_id"], cut["rule"], cut["action"]) == ("doc-1", "repeated_substring", "cut")
    assert (cut["value"], cut["threshold"], cut["text"]) == (1.0, None, TEXTS[1])
    (span,) = cut["spans"]
    whole = TEXTS[1].encode()
    assert PASSAGE.encode().startswith(whole[span["start"] : span["end"]].rstrip())
    assert (dropped["doc_id"], dropped["rule"], dropped["action"]) == (
        "doc-2",
        "too_little_left",
        "drop",
    )


def test_the_ledger_puts_back_what_was_cut(engine) -> None:
    stage = SubstringDedup(engine=engine, min_bytes=20, min_document=0, min_fragment=0)
    decided = run_global(stage, TEXTS, bounds=[1, 3])
    assert decided.keep.all()
    spans = {row["doc_id"]: row["spans"] for row in decided.ledger}
    assert len(spans) == 2
    for number, text in enumerate(TEXTS):
        left = decided.texts[number].encode()
        for span in spans.get(f"doc-{number}", []):
            passage = text.encode()[span["start"] : span["end"]]
            left = left[: span["start"]] + passage + left[span["start"] :]
        assert left.decode() == text


@pytest.mark.parametrize(("least", "stays"), [(26, True), (27, False)])
def test_a_document_goes_when_too_little_is_left(least: int, stays: bool) -> None:
    texts = ["a passage of some length.", "a passage of some length. And then a tail of it all"]
    decided = run_global(
        SubstringDedup(engine="suffix_array", min_bytes=20, min_document=least), texts
    )
    assert decided.keep.tolist() == [True, stays]
    (row,) = decided.ledger
    if stays:
        assert decided.texts[1] == " And then a tail of it all"
    else:
        assert (row["rule"], row["value"], row["threshold"]) == ("too_little_left", 26.0, 27.0)
        assert row["spans"] == [{"start": 0, "end": 25}]


@pytest.mark.parametrize(("ratio", "stays"), [(0.5, True), (0.49, False), (0.0, False)])
def test_documents_are_dropped_by_the_share_that_is_repeated(ratio: float, stays: bool) -> None:
    texts = ["0123456789 123456789 ", "0123456789 123456789 abcdefghijabcdefghi.."]
    stage = SubstringDedup(engine="suffix_array", action="drop", min_bytes=20, max_ratio=ratio)
    decided = run_global(stage, texts)
    assert decided.keep.tolist() == [True, stays]
    assert decided.texts == texts
    assert [row["rule"] for row in decided.ledger] == ([] if stays else ["repeated_share"])
    if not stays:
        (row,) = decided.ledger
        assert (row["value"], row["threshold"]) == (0.5, ratio)
        assert row["spans"] == [{"start": 0, "end": 21}]


def test_annotations_say_what_would_be_cut(engine) -> None:
    stage = SubstringDedup(engine=engine, action="annotate", min_bytes=20, keep="none")
    decided = run_global(stage, TEXTS, bounds=[2])
    assert decided.texts == TEXTS
    ratios = decided.columns["duplicated_ratio"]
    for text, spans, ratio in zip(TEXTS, decided.columns["spans"], ratios, strict=True):
        assert ratio == sum(s["end"] - s["start"] for s in spans) / len(text)
    assert (ratios > 0).tolist() == [True, True, True, False]


def test_fragments_between_two_spans_go_with_them(engine) -> None:
    one, other = "a first passage of text:", ":a second passage of text."
    texts = [one + "and much in between" + other, one + "or little" + other]
    apart = [(0, len(one)), (len(one) + 9, len(texts[1]))]
    assert find(texts, engine=engine, min_bytes=20, min_fragment=9) == [[], apart]
    assert find(texts, engine=engine, min_bytes=20, min_fragment=10) == [[], [(0, len(texts[1]))]]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["\u4f60\u597d", "\u00e9t\u00e9 ", "word ", "a", "x\n"]), max_size=30)
)
def test_cut_texts_are_text_of_whole_words(parts: list[str]) -> None:
    texts = ["".join(parts), "".join(parts[3:] + parts[:9])]
    for trim in ("char", "word", "line"):
        stage = SubstringDedup(engine="suffix_array", min_bytes=LEAST, trim=trim, min_document=0)
        for text, cut in zip(texts, run_global(stage, texts).texts, strict=True):
            words = r"[a-z\u00e9]+"
            is_whole = set(re.findall(words, cut)) <= set(re.findall(words, text))
            assert is_whole or trim == "char"


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"min_bytes": 50, "min_tokens": 20, "tokenizer": "t"}, "not both"),
        ({"min_tokens": 20}, "need each other"),
        ({"tokenizer": "t.json"}, "need each other"),
        ({"min_bytes": 9}, "greater than or equal to 10"),
    ],
)
def test_windows_are_of_bytes_or_of_tokens(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SubstringDedup(**params)


def test_a_preferred_source_must_exist() -> None:
    with pytest.raises(UsageError, match=r"no source 'bookz'. Did you mean 'books'"):
        SubstringDedup(prefer=("bookz",)).check(Known(("web", "books")))


@pytest.mark.parametrize("scope", ["global", "source"])
def test_a_suffix_array_that_does_not_fit_is_refused_with_the_figure(scope: str) -> None:
    stage = SubstringDedup(engine="suffix_array", min_bytes=LEAST, scope=scope)
    texts = ["some text that is long enough"] * 9
    with pytest.raises(TaskError, match=r"270 symbols of one scope need 3,780 bytes .* 1,000"):
        run_global(stage, texts, memory_bytes=1000)


def test_scopes_that_fit_one_by_one_are_searched_one_by_one() -> None:
    stage = SubstringDedup(engine="suffix_array", min_bytes=LEAST, scope="source")
    texts = ["some text that is long enough"] * 9
    columns = {"source": [f"s{number % 3}" for number in range(9)]}
    decided = run_global(stage, texts, memory_bytes=1400, columns=columns)
    assert decided.keep.tolist() == [True] * 3 + [False] * 6
    assert decided.units["sort"] == 3


def word_tokenizer(folder: Path, texts: list[str]) -> str:
    """Write a small byte-level BPE trained on texts, with a post-processor that trims offsets."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


@pytest.mark.slow
def test_windows_of_tokens_equal_a_dictionary_of_ids(engine, tmp_path) -> None:
    from tokenizers import Tokenizer

    texts = [
        *TEXTS,
        "\u4f60\u597d\u5417\uff1f \U0001f600\U0001f601 <|endoftext|> \u00e9t\u00e9 " * 2,
        "\u4f60\u597d\u5416\uff1f \U0001f600\U0001f601 <|endoftext|> \u00e9t\u00e9 \u4f60",
        "",
        "\u5417: a tail that both share",  # the first characters differ in the first byte alone
        "\u4417: a tail that both share",
    ]
    path = word_tokenizer(tmp_path, texts[:4])
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    expected = plain_spans(ids, 8)
    found = find(texts, engine=engine, min_tokens=8, tokenizer=path)
    assert [len(spans) for spans in found] == [len(spans) for spans in expected]
    for text, mine, spans, bytes_found in zip(texts, ids, expected, found, strict=True):
        for (first, last), (start, end) in zip(spans, bytes_found, strict=True):
            cut = text.encode()[start:end].decode()
            covered = tokenizer.decode(list(mine[first:last]), skip_special_tokens=False)
            # Characters that are only partly in the span decode to replacement characters.
            assert cut == covered.strip("\ufffd")


@pytest.mark.slow
def test_special_tokens_in_a_text_are_text(tmp_path) -> None:
    path = word_tokenizer(tmp_path, TEXTS)
    texts = ["<|endoftext|>" * 3, "<|endoftext|>" * 3]
    found = find(texts, min_tokens=10, tokenizer=path, engine="suffix_array")
    assert found[1] == [(0, len(texts[1]))]


def test_passes_can_be_pickled(engine) -> None:
    stage = SubstringDedup(engine=engine)
    for one in stage.passes():
        run = pickle.loads(pickle.dumps(one)).run
        assert (run.args[0] if isinstance(run, functools.partial) else run.__self__) == stage


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("window", [100, 250])
def test_every_planted_passage_is_found(engine, shared_data, window: int) -> None:
    documents = pq.read_table(shared_data / "substring" / "docs.parquet")
    texts = documents.column("text").to_pylist()
    numbers = {name: number for number, name in enumerate(documents.column("id").to_pylist())}
    run = {"bounds": [400, 900], "batch_docs": 100}
    found = find(texts, engine=engine, min_bytes=window, keep="none", run=run)
    planted = pq.read_table(shared_data / "substring" / "planted_spans.parquet").to_pylist()
    eligible = 0
    for row in planted:
        number = numbers[row["doc_id"]]
        start = len(texts[number][: row["start"]].encode())
        end = len(texts[number][: row["end"]].encode())
        if end - start < window:
            continue
        eligible += 1
        assert any(low <= start and end <= high for low, high in found[number])
    assert eligible == {100: 614, 250: 462}[window]
    assert np.mean([len(spans) > 0 for spans in found]) < 1


@pytest.mark.parametrize("kind", [np.uint8, np.uint32])
def test_the_separator_of_a_suffix_array_is_in_no_text(kind):
    values = np.array([244, 7, 255, 7] if kind is np.uint32 else [244, 7, 9, 7], kind)
    offsets, symbols = _lay_out(np.array([1, 0]), np.array([0, 1, 4]), values)
    assert offsets.tolist() == [0, 4, 6]
    assert [symbols[0:3].tolist(), symbols[4:5].tolist()] == [values[1:].tolist(), [244]]
    assert symbols[3] == symbols[5]
    assert symbols[3] not in values
