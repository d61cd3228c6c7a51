from __future__ import annotations

import gzip
import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.cli.contamination import command
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import ConfigError, UsageError
from corpuskit.formats.batch import utf8
from corpuskit.inspect.contamination import contamination_report
from corpuskit.stage import Known, View
from corpuskit.stages.dedup.decontaminate import (
    REACH_BYTES,
    Decontaminate,
    index,
    merge_spans,
    search,
    widen_spans,
)
from corpuskit.stages.dedup.decontaminate import index as item_index
from corpuskit.stages.dedup.decontaminate.benchmarks import MAX_NAMED
from corpuskit.stages.dedup.decontaminate.index import Recipe, open_index
from corpuskit.stages.dedup.decontaminate.items import (
    BenchmarkColumns,
    benchmark_files,
    read_benchmarks,
    read_items,
)
from corpuskit.stages.dedup.decontaminate.search import MAX_REPEATS, SKIP, align_windows, find_items
from tests.conftest import ROOT
from tests.contract.strategies import plain, view
from tests.engine.conftest import Lab

SAMPLE = "sample_data/benchmark.jsonl"
FERRY = (
    "A ferry leaves Port Amsel at noon with 48 crates of pears and loses a third of them in a "
    "storm. How many crates of pears reach the island?"
)
BEES = "Why do beekeepers blow cool smoke into a hive before they lift out the honeycombs?"
CHESS = "Mira wins two chess games for every three that she plays against her uncle Anton?"
FILLER = "Nothing in this sentence is in any benchmark, and neither is anything in the next. "


def find(text, **params):
    """Return the rule, the items, the spans' texts and what is left of one document."""
    stage = Decontaminate(**{"benchmarks": SAMPLE, **params})
    outcome = stage.apply(view([text], stage))
    rule = None
    if outcome.codes is not None and outcome.codes[0]:
        rule = stage.rules[outcome.codes[0] - 1]
    content = text.encode()
    spans = outcome.spans
    pairs = () if spans is None else zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    return (
        rule,
        outcome.columns["items"][0].as_py(),
        [content[start:end].decode() for start, end in pairs],
        None if outcome.text is None else outcome.text.row(0).decode(),
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        lambda text: text.replace(" ", "\n   "),
        lambda text: "".join(char for char in text if char.isalnum() or char == " "),
        lambda text: text.replace(" ", "-"),
        lambda text: "".join(chr(ord(char) + 0xFEE0) if char.isalpha() else char for char in text),
        lambda text: text.replace("e", "e\u0301"),
        lambda text: text.replace("pears", "pe\u00adars"),
        lambda text: text.replace("Port Amsel", "PortAmsel"),
        lambda text: text.replace("ferry", "fer ry"),
        lambda text: text.replace(" with", " , very roughly speaking , with"),
        lambda text: text.replace("noon", "dawn").replace("storm", "gale"),
    ],
    ids=["case", "wrapped", "no punctuation", "hyphens", "full width", "accents", "soft hyphens",
         "joined", "split", "inserted", "replaced"],
)  # fmt: skip
def test_a_question_is_found_however_it_is_written(change):
    rule, items, *_ = find(FILLER + change(FERRY) + " " + FILLER)
    assert (rule, items) == ("question", ["benchmark/ferry-1"])


def test_the_span_is_what_was_planted():
    _, _, spans, _ = find(f"\u00dcber {FILLER}{FERRY} {FILLER}")
    assert spans == [FERRY.rstrip("?")]


def test_the_span_of_an_answer_is_apart_from_that_of_its_question():
    rule, _, spans, _ = find(f"{FERRY} One after the other: 32 crates of pears reach the island.")
    assert rule == "question"
    text = (
        "Two of three are two thirds, and two thirds of eighteen are twelve. Mira has won twelve "
        "games."
    )
    question = (
        "Mira wins two chess games for every three that she plays against her uncle. After "
        "eighteen games, how many has she won?"
    )
    rule, _, spans, _ = find(f"{question}\n\nSolution, by her brother:\n{text}")
    assert rule == "question_answer"
    assert spans == [question.rstrip("?"), text.rstrip(".")]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Which metal melts in your hand?", None),
        ("Which metal melts in your hand? Lead, gallium or iron?", "question_answer"),
        ("Gallium! Which metal melts in your hand?", None),
        ("What is seven times eight? 56", None),
        ("What is seven times eight? It is fifty six.", "question_answer"),
    ],
)
def test_a_short_question_needs_its_answer_behind_it(text, rule):
    assert find(FILLER + text + FILLER)[0] == rule


@pytest.mark.parametrize(
    ("ident", "answer"),
    [
        ("bees-4", "It masks the alarm scent of the guard bees."),
        ("orbit-5", "the outer one"),
        ("verse-11", "found that one of them was growing"),
    ],
)
def test_an_answer_may_be_the_letter_or_number_of_a_choice(ident, answer):
    items = {one.name: one for one in read_items("benchmark", SAMPLE, BenchmarkColumns())}
    assert items[f"benchmark/{ident}"].answer == answer


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"choices": {"text": ["x", "y"], "label": ["3", "4"]}, "answerKey": "4"}, "y"),
        ({"choices": ["7", "0"], "answer": "0"}, "0"),
        ({"choices": ["x", "y"], "answer": "C"}, "C"),
        ({"choices": ["x", "y"], "label": 0}, "x"),
        ({"answers": {"text": ["one", "two", "one"], "answer_start": [1, 2, 3]}}, "one\ntwo"),
        ({"answers": None}, ""),
        ({"answers": {"text": None}}, ""),
        ({"choices": {"text": ["x", "y"], "label": 5}, "answerKey": "B"}, "y"),
        ({"choices": {"text": ["x", "y"], "label": None}, "answerKey": "5"}, "5"),
        ({"choices": {"text": 5, "label": ["A"]}, "answerKey": "A"}, "A"),
        ({"choices": 5, "answer": 1}, "1"),
        ({"choices": ["x", "y"], "answer": "1" * 5000}, "1" * 5000),
    ],
)
def test_answers_are_taken_as_publishers_write_them(tmp_path, row, answer):
    path = write(tmp_path / "b.jsonl", [{"question": "Why?", **row}])
    assert read_items("b", path, BenchmarkColumns())[0].answer == answer


def test_a_question_of_words_that_all_items_have_is_not_found(tmp_path):
    rows = [{"question": f"Which of these is true about the {n}?"} for n in range(200)]
    path = write(tmp_path / "b.jsonl", [*rows, {"question": f"{FERRY} Say how."}])
    assert find("Which of these is true about the 7?", benchmarks=path, chunk_words=0)[0] is None
    assert find(FERRY, benchmarks=path)[0] == "question"


@pytest.mark.parametrize(
    ("row", "params", "is_found"),
    [
        ({"question": FERRY}, {}, True),
        ({"question": "Who was it then?"}, {}, False),
        ({"question": "Who was it then?", "answer": "Gustav"}, {}, True),
        ({"question": "Who then?", "answer": "Uncle Gustav"}, {}, False),
        ({"question": "Who then?", "answer": FERRY}, {}, True),
        ({"question": "", "answer": "Uncle Gustav came"}, {}, False),
        ({"question": "", "passage": FERRY, "answer": "so"}, {}, False),
        ({"question": "", "passage": FERRY, "answer": "so"}, {"passages": True}, True),
        ({"question": FERRY}, {"min_weight": 90.0, "chunk_words": 0}, False),
        ({"question": FERRY}, {"min_weight": 90.0}, True),
    ],
)
def test_items_that_are_never_found_are_counted(tmp_path, row, params, is_found):
    path = write(tmp_path / "b.jsonl", [row, {"question": f"{CHESS} {BEES}"}])
    stage = Decontaminate(benchmarks=path, **params)
    text = "\n".join([row.get("passage", ""), row["question"], row.get("answer", "")])
    assert (find(text, benchmarks=path, **params)[0] is not None) == is_found
    found_too = find(f"{CHESS} {BEES}", benchmarks=path, **params)[0] is not None
    why, counts = stage.not_found()
    assert counts == {"b": (2 - is_found - found_too, 2)}
    assert stage.warnings() == (
        (f"items {why} are never found: b {counts['b'][0]} of 2.",) if counts["b"][0] else ()
    )


def test_words_that_are_common_in_the_reference_weigh_less(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"question": f"{FERRY}"}, {"question": "Who was it then?"}])
    common = write(tmp_path / "c.jsonl", [{"text": f"{FERRY} {'x ' * 40}"}] * 50)
    weights = [
        open_index(Decontaminate(benchmarks=path, reference=given)._recipe()).parts.weights
        for given in ((), (common,))
    ]
    assert weights[0][0] > 2 * weights[1][0] > 0


RUN = "beekeepers blow cool smoke into a hive before"


@pytest.mark.parametrize(
    ("phrases", "rule"), [("report", None), ("drop", "phrase"), ("ignore", None)]
)
def test_a_run_of_words_that_weighs_little_may_be_a_phrase(phrases, rule):
    stage = Decontaminate(benchmarks=SAMPLE, chunk_weight=20, phrases=phrases)
    outcome = stage.apply(view([f"\u00dcber {RUN} now.", FERRY, f"{FERRY} {RUN}"], stage))
    rules = [stage.rules[code - 1] if code else None for code in outcome.codes.tolist()]
    assert rules == [rule, "question", "question"]
    start = len("\u00dcber ".encode())
    where = {"item": "benchmark/bees-4", "start": start, "end": start + len(RUN)}
    if phrases == "report":  # only where nothing else is found
        assert outcome.columns["phrases"].to_pylist() == [[where], [], []]
    else:
        assert set(outcome.columns) == {"score", "items"}
    assert outcome.columns["items"].to_pylist()[0] == ([where["item"]] if rule else [])


def plain_runs(text, items, size):
    """Return the runs of words of which any `size` in a row are in a row in an item: first, end."""
    known = {tuple(item[at : at + size]) for item in items for at in range(len(item) - size + 1)}
    hits = [at for at in range(len(text)) if tuple(text[at : at + size]) in known]
    runs = []
    for at in hits:
        if at - 1 in hits:
            runs[-1] = (runs[-1][0], at + size)
        else:
            runs.append((at, at + size))
    return runs


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=6, max_size=12), min_size=1, max_size=4),
    st.lists(st.sampled_from("abcd"), max_size=30),
)
@settings(max_examples=40, deadline=None)
def test_runs_of_words_are_those_of_plain_python(tmp_path_factory, questions, text):
    unique = list(dict.fromkeys(map(tuple, questions)))
    path = write(
        tmp_path_factory.mktemp("b") / "b.jsonl", [{"question": " ".join(one)} for one in unique]
    )
    made = Decontaminate(
        benchmarks=path, ngram=3, min_words=6, chunk_words=6, chunk_weight=0, min_weight=1e9
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "LEAST_PHRASE", 0.0)
        found = find_items(
            utf8(pa.array([" ".join(text)], pa.large_string())),
            open_index(made._recipe()), 3, made._thresholds(),
        )  # fmt: skip
    spans = sorted(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    expected = plain_runs(text, unique, 6)
    assert spans == [(2 * first, 2 * end - 1) for first, end in expected]
    assert sorted(found.values.tolist()) == sorted(end - first for first, end in expected)


def test_texts_of_a_reference_are_in_a_column_text(tmp_path):
    wrong = write(tmp_path / "c.jsonl", [{"body": "words"}])
    with pytest.raises(UsageError, match="has no texts in a column 'text'"):
        find("text", reference=(wrong,))


def test_a_document_that_holds_many_items_names_some(tmp_path):
    rows = [{"id": f"q;{n}", "question": " ".join(f"w{n}x{at}" for at in range(9))}
            for n in range(MAX_NAMED + 5)]  # fmt: skip
    path = write(tmp_path / "b.jsonl", rows)
    stage = Decontaminate(benchmarks=path)
    outcome = stage.apply(view([" . ".join(row["question"] for row in rows), "none"], stage))
    names = [f"b/q,{n}" for n in range(MAX_NAMED)]
    assert outcome.columns["items"].to_pylist() == [names, []]
    assert outcome.reasons.to_pylist() == ["question: " + "; ".join(names), None]
    assert len(outcome.spans.rows) == MAX_NAMED + 5


def test_a_question_that_is_there_twice_is_found_twice():
    _, items, spans, _ = find(f"{FERRY} {FILLER * 3} {FERRY.upper()}")
    assert items == ["benchmark/ferry-1"]
    assert spans == [FERRY.rstrip("?"), FERRY.upper().rstrip("?")]


@pytest.mark.parametrize("action", ["drop", "cut", "annotate"])
def test_documents_alone_and_slices_decide_as_the_whole(action):
    stage = Decontaminate(benchmarks=SAMPLE, action=action)
    metal = "Which metal melts in your hand? Gallium."
    texts = [FERRY, "", f"{FILLER * 9}{BEES}", metal, f"{BEES} {FERRY}", FILLER, FERRY[:70]]
    whole = view(texts, stage)
    expected = plain(stage, whole)
    assert [plain(stage, view([text], stage))[0] for text in texts] == expected
    for cut in range(len(texts)):
        assert plain(stage, View(whole.batch.slice(cut))) == expected[cut:]
        assert plain(stage, View(whole.batch.slice(0, cut))) == expected[:cut]


def test_endless_repeats_are_bounded():
    index = open_index(Decontaminate(benchmarks=SAMPLE)._recipe())
    text = utf8(pa.array([f"{FERRY} {FILLER * 4}" * (MAX_REPEATS + 9)], pa.large_string()))
    bounds = Decontaminate(benchmarks=SAMPLE, chunk_words=0)._thresholds()
    assert len(find_items(text, index, 5, bounds)) == MAX_REPEATS


def test_only_the_beginning_of_a_long_part_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(item_index, "MAX_WORDS", 12)
    words = [f"word{at}" for at in range(40)]
    path = write(tmp_path / "b.jsonl", [{"question": " ".join(words)}])
    index = open_index(Recipe((("b", path),), BenchmarkColumns(), 5, 8))
    assert index.lengths.tolist() == [12]
    assert len(index.parts.words) == 12


def test_a_cut_takes_sentences_and_the_rest_stays():
    text = f"{FILLER}Look: {FERRY} {FILLER * 3}"
    rule, items, spans, left = find(text, action="cut")
    assert rule is None
    assert items == ["benchmark/ferry-1"]
    assert spans == [f"Look: {FERRY} "]
    assert left == FILLER + FILLER * 3


@pytest.mark.parametrize(
    ("widen", "left"),
    [("no", "1. ?\n2. More.\n"), ("sentence", "1. \n2. More.\n"), ("line", "2. More.\n")],
)
def test_a_cut_takes_as_much_as_asked_for(widen, left):
    text = f"1. {FERRY}\n2. More.\n"
    assert find(text, action="cut", widen=widen, min_left=0)[3] == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("One. [X here] (so.) Two. Three.", "One. Two. Three."),
        ("One is 3.5 [X of] 4.5. Two.", "Two."),
        ("\u4e00\u3002\u4e8c[X]\u4e09\uff01\u201d\u56db\u3002", "\u4e00\u3002\u56db\u3002"),
        ("\u0915\u0964 \u0916 [X] \u0917\u0964\u0918", "\u0915\u0964 \u0918"),
        ("\u0627\u061f \u0628 [X]\u061f \u062a", "\u0627\u061f \u062a"),
        ("one\ntwo [X] three\nfour", "one\n\nfour"),
        ("One? [X]. \u00a0Two [Y]! [Z].", "One? "),
        ("[X]", ""),
    ],
)
def test_a_sentence_ends_where_readers_see_it_end(text, left):
    assert widened(text, "sentence") == left


def test_a_sentence_is_followed_for_some_bytes_only():
    before, behind = "\u4e00" * 400, "\xe9" * 400
    left = widened(f"{before}[X]{behind}", "sentence")
    num = REACH_BYTES // 3
    assert left == "\u4e00" * (400 - num) + "\xe9" * (400 - REACH_BYTES // 2)


def test_lines_are_cut_whole_however_many_spans_they_hold():
    line = "x [a] y [b] z " * 50
    assert widened(f"one\n{line}\ntwo\n{line}", "line") == "one\ntwo\n"
    assert widened("one\n[a\nb] c\ntwo [d]\nthree", "line") == "one\nthree"


def widened(text, to):
    """Return what is left of a text without the widened spans, given in brackets."""
    offsets = [at for at, char in enumerate(text) if char in "[]"]
    content = text.replace("[", "").replace("]", "")
    bounds = [len(text[:at].replace("[", "").replace("]", "").encode()) for at in offsets]
    starts, ends = np.array(bounds[::2], np.int64), np.array(bounds[1::2], np.int64)
    rows = np.zeros(len(starts), np.int64)
    column = utf8(pa.array([content], pa.large_string()))
    new = widen_spans(column, rows, starts, ends, to)
    rows, starts, ends, _ = merge_spans(rows, *new, np.ones(len(rows), np.int64))
    kept, at = b"", 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        kept += content.encode()[at:start]
        at = end
    return (kept + content.encode()[at:]).decode()


def test_a_document_of_which_little_is_left_is_dropped():
    text = f"{FERRY} {FILLER}"
    assert find(text, action="cut", min_left=len(FILLER) + 1)[0] == "question"
    assert find(text, action="cut", min_left=len(FILLER))[0] is None


def test_annotating_drops_nothing_and_says_where():
    stage = Decontaminate(benchmarks=SAMPLE, action="annotate")
    outcome = stage.apply(view([FERRY, "none"], stage))
    assert outcome.codes is None
    assert outcome.text is None
    assert outcome.columns["spans"].to_pylist() == [[{"start": 0, "end": len(FERRY) - 1}], []]
    assert outcome.columns["score"].to_pylist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("given_spans", "merged"),
    [
        ([], []),
        ([(0, 1, 4, 2), (0, 3, 6, 1)], [(0, 1, 6, 1)]),
        ([(0, 1, 4, 2), (0, 4, 6, 3)], [(0, 1, 6, 2)]),
        ([(1, 1, 4, 2), (0, 3, 6, 1), (0, 5, 5, 1)], [(0, 3, 6, 1), (1, 1, 4, 2)]),
    ],
)
def test_spans_that_meet_are_one(given_spans, merged):
    columns = np.array(given_spans, np.int64).reshape(-1, 4).T
    assert list(zip(*(one.tolist() for one in merge_spans(*columns)), strict=True)) == merged


# What a part scores, worked out once more in plain Python.

SYLLABLES = ("na", "tokula", "re", "misto", "bel", "tokulare", "x")


def plain_weight(word, items):
    num = sum(word in item for item in items)
    rarity = 1 - math.log(num) / math.log(len(items) + 1)
    return math.ceil(rarity * min(len(word) / 4, 1) * 2**20) / 2**20


def plain_score(part, text, weights):
    """Return the best alignments' scores: of all pairs of beginnings the best one so far."""
    best = {(row, at): (0.0, 0.0) for row in range(len(part) + 1) for at in range(len(text) + 1)}
    for row, at in itertools.product(range(1, len(part) + 1), range(1, len(text) + 1)):
        kept, passed = best[row, at - 1]
        choices = [best[row - 1, at], (kept, passed + SKIP)]
        for rows, words in ((1, 1), (2, 1), (1, 2)):
            if row < rows or at < words:
                continue
            if "".join(part[row - rows : row]) == "".join(text[at - words : at]):
                kept, passed = best[row - rows, at - words]
                choices.append((kept + sum(weights[row - rows : row]), passed))
        most = max(kept - passed for kept, passed in choices)
        best[row, at] = max(one for one in choices if one[0] - one[1] == most)
        if most <= 0:
            best[row, at] = (0.0, 0.0)
    most = max(kept - passed for kept, passed in best.values())
    return {kept / sum(weights) for kept, passed in best.values() if kept - passed == most}


@given(
    st.lists(st.lists(st.sampled_from(SYLLABLES), min_size=5, max_size=9), min_size=1, max_size=4),
    st.lists(st.sampled_from(SYLLABLES), max_size=14),
)
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_plain_python(tmp_path_factory, questions, text):
    unique = list(dict.fromkeys(map(tuple, questions)))
    path = write(
        tmp_path_factory.mktemp("b") / "b.jsonl", [{"question": " ".join(one)} for one in unique]
    )
    index = open_index(Recipe((("b", path),), BenchmarkColumns(), 5, 5))
    documents = utf8(pa.array([" ".join(text)], pa.large_string()))
    windows = np.array([[0, part, 0, len(text)] for part in range(len(unique))], np.int64)
    found = align_windows(documents, windows, index).scores.tolist()
    for part, score in zip(unique, found, strict=True):
        weights = [plain_weight(word, unique) for word in part]
        assert score in plain_score(part, text, weights)


# Files.


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_formats_hold_the_same_items(tmp_path, kind):
    content = Path(SAMPLE).read_bytes()
    path = tmp_path / f"benchmark.{kind}"
    if kind == "parquet":
        rows = [json.loads(line) for line in content.splitlines()]
        names = ("id", "question", "answer", "passage", "choices")
        full = [{name: row.get(name) for name in names} for row in rows]
        for row in full:
            row["answer"] = str(row["answer"])
        pq.write_table(pa.Table.from_pylist(full), path)
    else:
        pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}[kind]
        path.write_bytes(pack(content))
    assert read_items("benchmark", str(path), BenchmarkColumns()) == read_items(
        "benchmark", SAMPLE, BenchmarkColumns()
    )


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([], {}, "has no items. Take the file out"),
        ([{"body": "x", "n": 1}], {},
         "no column holds the question; has 'body', 'n'. Set question_column."),
        ([{"question": "x"}], {"answer": "a"},
         "column 'a' is missing; has 'question'. Set answer_column."),
        ([{"id": 1, "question": "x"}, {"id": 1, "question": "y"}], {},
         "row 1: id '1' is that of row 0, too. Make ids unique, or number the rows: `id_column:"),
        ([{"id": 1, "question": "x"}, {"question": "y"}], {},
         "row 1: 'id' is empty. Make ids unique"),
        ([{"id": "a; b", "question": "x"}, {"id": "a, b", "question": "y"}], {},
         "row 1: id 'a, b' is that of row 0, too."),
        ([{"id": "0", "question": "x"}, {"id": "b/0", "question": "y"}], {},
         "row 1: id '0' is that of row 0, too."),
        ([{"question": {"a": 1}}], {}, "row 0: 'question' holds a value of type dict, not a text."),
        ([{"question": ""}, {"question": None}], {}, "no row has a question in 'question'."),
    ],
)  # fmt: skip
def test_an_unusual_file_is_refused_with_what_to_do(tmp_path, rows, columns, message):
    path = write(tmp_path / "b.jsonl", rows)
    with pytest.raises(UsageError) as error:
        read_items("b", path, BenchmarkColumns(**columns))
    assert message in str(error.value)
    assert str(error.value).startswith(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", b"{]", "line 1 is not JSON"),
        ("b.jsonl", b"[1]", "line 1 is not a JSON object"),
        ("b.jsonl.gz", b"text", "the name says gzip"),
        ("b.parquet", b"text", "is not a Parquet file"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_items("b", str(tmp_path / name), BenchmarkColumns())


def test_rows_may_be_numbered(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"id": 1, "question": "x"}, {"id": 1, "question": "y"}])
    names = [one.name for one in read_items("b", path, BenchmarkColumns(id="#"))]
    assert names == ["b/0", "b/1"]


def test_equal_items_are_one_and_the_first_gives_its_name(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"id": n, "question": FERRY} for n in "xyz"])
    index = open_index(Recipe((("b", path),), BenchmarkColumns(), 5, 8))
    assert index.names.to_pylist() == ["b/x"]


def test_benchmarks_are_called_like_their_files_or_as_given(tmp_path):
    for name in ("one.jsonl", "two.parquet", "note.txt"):
        (tmp_path / name).write_bytes(b"")
    pattern = str(tmp_path / "[ot]*")
    assert [name for name, _ in benchmark_files((pattern,))] == ["one", "two"]
    assert benchmark_files({"mine": pattern})[1] == ("mine", str(tmp_path / "two.parquet"))


def test_files_of_one_benchmark_that_share_ids_name_their_items_by_file(tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = write(tmp_path / folder / "test.jsonl", [{"question": f"{folder} {FERRY}"}])
        paths.append(("hill", path))
    names = [one.name for one in read_benchmarks(paths, BenchmarkColumns())]
    assert names == ["hill/a/test/0", "hill/b/test/0"]
    apart = [paths[0], ("mine", paths[1][1])]
    assert [one.name for one in read_benchmarks(apart, BenchmarkColumns())] == ["hill/0", "mine/0"]


def test_files_of_one_benchmark_with_ids_of_their_own_do_not(tmp_path):
    paths = [
        ("hill", write(tmp_path / f"{name}.jsonl", [{"id": name, "question": FERRY}]))
        for name in "xy"
    ]
    assert [one.name for one in read_benchmarks(paths, BenchmarkColumns())] == ["hill/x", "hill/y"]


def test_items_that_cannot_have_names_of_their_own_are_refused(tmp_path):
    first = write(tmp_path / "t.jsonl", [{"question": FERRY}])
    other = write(tmp_path / "t.json", [{"question": BEES}])
    with pytest.raises(UsageError, match=r"'hill/t/0' is also in .*t\.jsonl\. Name the files"):
        read_benchmarks([("hill", first), ("hill", other)], BenchmarkColumns())


@pytest.mark.parametrize("name", ["a/b", "a;b"])
def test_a_benchmark_whose_name_would_be_ambiguous_is_refused(name):
    with pytest.raises(UsageError, match=f"'{name}' is not a name for a benchmark"):
        benchmark_files({name: SAMPLE})


def plan(folder, stage):
    """Compile a pipeline of one stage, from a YAML file in a folder."""
    text = json.dumps(stage) if isinstance(stage, dict) else stage
    text = f"output: out\nsources: {{web: {{jsonl: 'in/*.jsonl'}}}}\n{text}\n"
    (folder / "p.yaml").write_text(text)
    return read_plan(folder / "p.yaml").step("decontaminate").stage


@pytest.mark.parametrize("form", ["[{path}]", "{path}", "{{benchmark: {path}}}"])
def test_a_pipeline_file_names_benchmarks_in_each_form(tmp_path, form):
    path = ROOT / SAMPLE
    common = write(tmp_path / "c.jsonl", [{"text": FILLER}])
    benchmarks = form.format(path=path)
    params = f"{{benchmarks: {benchmarks}, reference: [{common}]}}"
    stage = plan(tmp_path, f"stages: [decontaminate: {params}]")
    assert stage.files() == (str(path), common)


def test_the_page_plans(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "decontamination.md").read_text("utf-8")
    (tmp_path / "benchmarks").mkdir()
    pq.write_table(pa.table({"question": [FERRY]}), tmp_path / "benchmarks" / "x.parquet")
    packed = zstandard.compress(json.dumps({"question": BEES}).encode())
    (tmp_path / "benchmarks" / "gsm8k.jsonl.zst").write_bytes(packed)
    monkeypatch.chdir(tmp_path)
    stage = plan(tmp_path, page.partition("```yaml\n")[2].partition("```")[0])
    assert len(stage.files()) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", b"{]", "line 1 is not JSON"),
        ("b.jsonl", b"", "has no items"),
        ("b.jsonl", b'{"body": "x"}', "no column holds the question"),
        ("b.jsonl", b'{"id": 1, "query": "x"}\n{"id": 1, "query": "y"}', "'1' is that of row 0"),
        ("b.parquet", b"text", "is not a Parquet file"),
    ],
)
@pytest.mark.parametrize("kept", [0, 1_000_000])
def test_a_bad_file_fails_when_the_plan_is_made(
    tmp_path, monkeypatch, name, content, message, kept
):
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(item_index, "KEPT_BYTES", kept)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, f"stages: [decontaminate: {{benchmarks: {tmp_path / name}}}]")


def test_a_bad_reference_fails_when_the_plan_is_made(tmp_path):
    wrong = write(tmp_path / "c.jsonl", [{"body": "words"}])
    with pytest.raises(UsageError, match="has no texts in a column 'text'"):
        Decontaminate(benchmarks=SAMPLE, reference=(wrong,)).check(Known())


def test_an_index_that_is_there_proves_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(item_index, "KEPT_BYTES", 0)
    path = write(tmp_path / "b.jsonl", [{"question": FERRY}])
    stage = Decontaminate(benchmarks=path)
    index._opened.cache_clear()
    open_index(stage._recipe())
    monkeypatch.setattr(item_index, "read_benchmarks", None)  # cannot be called
    stage.check(Known())
    index._opened.cache_clear()


def test_files_that_cannot_be_told_apart_or_are_none_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match=r"a benchmark called 'x' is also .*a/x.jsonl"):
        benchmark_files((str(tmp_path / "*" / "x.jsonl"),))
    with pytest.raises(UsageError, match="no file matches"):
        benchmark_files((str(tmp_path / "none*"),))
    (tmp_path / "x.csv").write_bytes(b"")
    with pytest.raises(UsageError, match="neither JSON lines nor Parquet"):
        benchmark_files((str(tmp_path / "x.csv"),))


def test_a_file_that_is_not_there_is_an_error_when_it_is_read():
    stage = Decontaminate(benchmarks="nowhere/b.jsonl")
    assert stage.files() == ("nowhere/b.jsonl",)
    with pytest.raises(UsageError, match=r"nowhere/b.jsonl: cannot be read: no such file"):
        stage.apply(view(["text"], stage))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"chunk_words": 4}, "chunk_words: 4 is below ngram 5"),
        ({"min_words": 4}, "min_words: 4 is below ngram 5"),
        ({"min_words": 25}, "loose_words: 24 is below min_words 25"),
        ({"question_column": "q", "passage_column": "q"},
         "passage_column: 'q' is the question_column, too"),
        ({"reference": 5}, "must be a path, a list of paths"),
        ({"benchmarks": [5]}, "must be a path, a list of paths, or {name: path}"),
    ],
)  # fmt: skip
def test_parameters_that_contradict_one_another_are_refused(params, message):
    with pytest.raises(ValidationError, match=message):
        Decontaminate(**{"benchmarks": SAMPLE, **params})


def test_an_index_that_is_kept_is_the_index(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path))
    recipe = Recipe((("benchmark", SAMPLE),), BenchmarkColumns(), 5, 8)
    built = open_index(recipe)
    monkeypatch.setattr(item_index, "KEPT_BYTES", 0)
    for _ in range(2):
        index._opened.cache_clear()
        kept = open_index(recipe)
        assert kept.names == built.names
        for one, other in zip(
            (*kept.grams, *kept.parts), (*built.grams, *built.parts), strict=True
        ):
            assert np.array_equal(one, other)
    assert len(list(tmp_path.glob("lists/benchmarks-*.map"))) == 1
    index._opened.cache_clear()


def test_another_version_of_a_file_is_another_index(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"question": FERRY}])
    assert find(FERRY, benchmarks=path)[0] == "question"
    write(
        tmp_path / "b.jsonl",
        [{"question": "Something else, of no less than eight words, is asked."}],
    )
    assert find(FERRY, benchmarks=path)[0] is None


# Runs, and real texts.


@pytest.fixture(scope="module")
def decontaminated(tmp_path_factory):
    """A run of three stages that annotate, cut and drop an item each, the first of one source."""
    folder = tmp_path_factory.mktemp("decontaminated")
    lab = Lab(folder, Path("no tokenizer"))
    phrase = "crates of pears and loses a third of"
    documents = [("one", FERRY), ("clean", phrase), ("all", f"{BEES} {FERRY}"), ("gone", CHESS)]
    texts = [{"id": name, "text": f"{FILLER * 4} {text} {FILLER}"} for name, text in documents]
    lab.write("web0.jsonl", texts)
    books = [{"id": "two", "text": f"{CHESS} {BEES}"}, {"id": "plain", "text": FILLER}]
    lab.write("books.jsonl", books)
    stages = []
    for action, text in (("annotate", FERRY), ("cut", BEES), ("drop", CHESS)):
        path = write(folder / f"{action}s.jsonl", [{"id": "x", "question": text}])
        params = {"benchmarks": path, "action": action, "chunk_weight": 20}
        if action == "annotate":
            params["sources"] = ["web"]
        stages.append({"decontaminate": params})
    stages.append({"exact_dedup": {"action": "annotate"}})
    lab.pipeline |= {"stages": stages, "documents": True}
    lab.run()
    return lab


@pytest.mark.slow
def test_a_run_says_which_documents_hold_which_item(decontaminated):
    found = contamination_report(RunDirectory.open(str(decontaminated.out)))
    assert found.documents == 4  # `all` holds two items
    hits = {one.item: {hit.id: hit for hit in one.examples} for one in found.items}
    assert {item: set(ids) for item, ids in hits.items()} == {
        "annotates/x": {"one", "all"},
        "cuts/x": {"all", "two"},
        "drops/x": {"gone"},
    }
    assert found.benchmarks == {"annotates": 2, "cuts": 2, "drops": 1}
    (phrase,) = found.phrases
    assert (phrase.item, phrase.documents, phrase.rules) == ("annotates/x", 1, {"phrase": 1})
    assert [(hit.id, hit.action) for hit in phrase.examples] == [("clean", "report")]
    kinds = {(h.stage, h.action, h.rule) for one in hits.values() for h in one.values()}
    assert kinds == {
        ("decontaminate", "annotate", None),
        ("decontaminate_2", "cut", "question"),
        ("decontaminate_2", "drop", "question"),  # less than 200 bytes were left of it
        ("decontaminate_3", "drop", "question"),
    }
    start = len(f"{FILLER * 4} ")
    assert hits["drops/x"]["gone"].spans == ((start, start + len(CHESS) - 1),)
    assert hits["annotates/x"]["one"].spans == ((start, start + len(FERRY) - 1),)


@pytest.mark.slow
def test_what_a_run_left_is_without_what_was_cut(decontaminated):
    tables = [pq.read_table(path) for path in (decontaminated.out / "documents").glob("*.parquet")]
    texts = {row["id"]: row["text"] for table in tables for row in table.to_pylist()}
    assert texts["all"] == f"{FILLER * 4} {FERRY} {FILLER}"
    assert set(texts) == {"one", "clean", "all", "plain"}


@pytest.mark.slow
def test_the_command_shows_benchmarks_items_and_documents(decontaminated):
    def shown(*arguments):
        return CliRunner().invoke(command, [str(decontaminated.out), *arguments])

    text = shown("--benchmark", "drops").output
    assert "drops/x  1 documents: question 1" in text
    assert "gone  drop question" in text
    assert "\\n" not in text
    facts = json.loads(shown("--json", "-n", "1").output)
    assert [one["item"] for one in facts["items"]] == ["annotates/x"]
    assert "1 more items" in shown("-n", "2").output
    error = shown("--benchmark", "drop").exception
    assert isinstance(error, UsageError)
    assert "Did you mean 'drops'?" in str(error)


@pytest.mark.slow
@pytest.mark.real
def test_planted_items_are_found_and_clean_documents_are_not(shared_data):
    names = ("gsm8k_test", "humaneval", "arc_challenge", "truthfulqa")
    paths = tuple(str(shared_data / "benchmarks" / f"{name}.parquet") for name in names)
    stage = Decontaminate(benchmarks=paths, phrases="drop")
    rows = pq.read_table(shared_data / "decontam" / "planted.parquet").to_pylist()
    rows = [row for row in rows if not row["contaminated"] or row["benchmark"] in names]
    rows = random.Random(5).sample(rows, 300)
    outcome = stage.apply(view([row["text"] for row in rows], stage))
    hits = dict.fromkeys(("clean", "part", "whole"), (0, 0))
    for row, code in zip(rows, outcome.codes.tolist(), strict=True):
        is_part = row["kind"] in {"chunk8", "chunk13", "first_half"}
        kind = "clean" if not row["contaminated"] else "part" if is_part else "whole"
        hits[kind] = (hits[kind][0] + bool(code), hits[kind][1] + 1)
    assert hits["clean"][0] <= 0.01 * hits["clean"][1]
    assert hits["whole"][0] >= 0.95 * hits["whole"][1]
    assert hits["part"][0] >= 0.8 * hits["part"][1]
