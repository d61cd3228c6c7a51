from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import string
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.cli.contamination import command
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import UsageError
from corpuskit.inspect.contamination import contamination_report
from corpuskit.stage import Known
from corpuskit.stages.dedup.decontaminate_ngrams import DecontaminateNgrams
from corpuskit.storage import faults
from tests.engine.conftest import Lab, tree
from tests.stages.global_runner import number_of, run_global

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.stages.global_runner import Decided

Hit = tuple[tuple[str, ...], int, int, int]
"""An n-gram, its first character and end, and its first word."""

WORDS = ["a", "b", "A", "b.", "\u00e9", "\u00c9", "--", "\u2013", "b'c", "'", "c"]
SPACES = [" ", " ", "  ", "\n", "\u2003", "\x1c", "\x85"]
texts = st.lists(st.sampled_from(WORDS), max_size=14).flatmap(
    lambda words: st.lists(st.sampled_from(SPACES), min_size=len(words), max_size=len(words)).map(
        lambda spaces: "".join(itertools.chain(*zip(words, spaces, strict=True)))
    )
)
items = st.lists(
    st.fixed_dictionaries({"question": texts.filter(str.split), "answer": texts}),
    min_size=1, max_size=4,
)  # fmt: skip

# The rules once more in plain Python: sets of words, characters of strings.

_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase, string.punctuation)


def plain_words(text: str, rule: str) -> list[tuple[str, int, int]]:
    """Return the words of a text with their first character and end."""
    if rule == "chunks":
        marks = r"\w+|(?<!\S)[!-/:-@\[-^`{-~]+(?!\S)"
        return [(m.group().lower().replace("\u00e9", "e"), *m.span())
                for m in re.finditer(marks, text)]  # fmt: skip
    found = [(m.group().translate(_FOLDED), *m.span()) for m in re.finditer(r"\S+", text)]
    return [one for one in found if one[0] or rule == "janitor"]


def grams(words: Sequence[Any], num: int) -> list[tuple[Any, ...]]:
    return [tuple(words[at : at + num]) for at in range(len(words) - num + 1)]


def item_words(row: dict[str, str], rule: str = "gpt3") -> list[str]:
    rule = "chunks" if rule == "chunks" else "gpt3"  # empty words are none
    return [word for word, *_ in plain_words(f"{row['question']}\n{row['answer']}", rule)]


def plain_gpt3(text: str, spans: list[tuple[int, int]], window: int, least: int, most: int):
    """Return the pieces that stay, None if there are too many, characters marked one by one."""
    gone = [any(start - window <= at < end + window for start, end in spans)
            for at in range(len(text))]  # fmt: skip
    pieces = [
        "".join(text[at] for at in group)
        for is_gone, group in itertools.groupby(range(len(text)), gone.__getitem__)
        if not is_gone
    ]
    return None if len(pieces) > most else [one for one in pieces if len(one) >= least]


def plain_rule(
    documents: Sequence[str], rows: list[dict[str, str]], stage: DecontaminateNgrams
) -> list[tuple[list[tuple[int, int]], str | None]]:
    """Return of each document the hits that count and what is left of it, None if it goes."""
    num, rule = stage.ngram or 13, stage.rule
    known = {gram for row in rows for gram in grams(item_words(row, rule), num)}
    hits = []
    for text in documents:
        words = enumerate(grams(plain_words(text, rule), num))
        found = [(tuple(w for w, *_ in g), g[0][1], g[-1][2], at) for at, g in words]
        hits.append([one for one in found if one[0] in known])
    frequency = Counter(gram for found in hits for gram in {one[0] for one in found})
    default = {"gpt3": 10, "chunks": 1}.get(rule, len(documents))
    most = stage.max_documents or default
    counts = {gram for gram, documents_with in frequency.items() if documents_with <= most}
    if rule == "llama3":
        dirty = [
            row for row in rows if plain_share(item_words(row), counts, num) >= stage.min_share
        ]
        counts &= {gram for row in dirty for gram in grams(item_words(row), num)}
    answers: list[tuple[list[tuple[int, int]], str | None]] = []
    for text, found in zip(documents, hits, strict=True):
        chosen = [one for one in found if one[0] in counts]
        if rule == "chunks":
            chosen = plain_runs(chosen, rows, stage)
        spans = [(start, end) for _, start, end, _ in chosen]
        left: str | None = text
        if spans and rule in {"llama3", "chunks"}:
            left = None
        elif spans:
            by = stage.window, stage.min_piece, stage.max_pieces
            if rule == "janitor":
                pieces = plain_janitor(text, {" ".join(gram) for gram in counts}, num, *by)
            else:
                pieces = plain_gpt3(text, spans, *by)
            left = "".join(pieces) if pieces else None
        answers.append((spans, left))
    return answers


def plain_runs(
    hits: list[Hit], rows: list[dict[str, str]], stage: DecontaminateNgrams
) -> list[Hit]:
    """Return the hits that are in a run of enough words that weigh enough."""
    chosen: list[Hit] = []
    frequency = Counter(word for row in rows for word in set(item_words(row, "chunks")))
    runs = itertools.groupby(enumerate(hits), lambda pair: pair[1][-1] - pair[0])
    for run in [[hit for _, hit in run] for _, run in runs]:
        words = [*run[0][0], *(gram[-1] for gram, *_ in run[1:])]
        weight = sum(plain_weight(word, frequency[word], len(rows)) for word in words)
        if len(words) >= stage.min_words and weight >= stage.min_weight:
            chosen += run
    return chosen


def plain_weight(word: str, num: int, num_items: int) -> float:
    if not re.fullmatch(r"\w+", word):
        return 0.0
    rarity = 1 - math.log(num) / math.log(num_items + 1)
    size = 2 if word == "e" else len(word)  # it was an e with an accent
    return math.ceil(rarity * min(size / 4, 1) * 2**20) / 2**20


def plain_share(words: list[str], counts: set[tuple[str, ...]], num: int) -> float:
    covered = {
        at + step
        for at, gram in enumerate(grams(words, num))
        if gram in counts
        for step in range(num)
    }
    return len(covered) / max(len(words), 1)


def plain_janitor(
    text: str, known: set[str], num: int, window: int, least: int, most: int
) -> list[str]:
    """Return what `Janitor.clean_python` of lm_eval 0.4.13 does, line by line.

    Source: lm_eval/decontamination/janitor.py, `clean_python` and `_split_chunks`.
    """
    words = [(match.group(), match.start(), match.end() - 1) for match in re.finditer(r"\S+", text)]
    dirty = [
        (gram[0][1], gram[-1][2])
        for gram in grams(words, num)
        if " ".join(word for word, *_ in gram).translate(_FOLDED) in known
    ]
    chunks, splice, end = [], 0, -1
    for number, (start, end) in enumerate(dirty):
        if number >= most:
            return []
        start, end = max(0, start - window), min(len(text), end + window)
        if start - splice > least:
            chunks.append(text[splice:start])
        splice = end
    if end < len(text) - least:
        chunks.append(text[end + 1 :])
    return chunks


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def spans_in_characters(row: dict[str, Any], text: str) -> list[dict[str, int]]:
    data = text.encode()
    return [{k: len(data[:at].decode()) for k, at in span.items()} for span in row["spans"]]


def check(decided: Decided, documents: Sequence[str], rows: Any, stage: Any) -> None:
    """Assert that texts, columns and ledger are those of the plain program."""
    ledger = {number_of(row["doc_key"]): row for row in decided.ledger}
    for number, (spans, left) in enumerate(plain_rule(documents, rows, stage)):
        num_hits = len(spans)
        assert decided.columns["hits"][number] == num_hits
        assert len(decided.columns["items"][number]) == (0 if num_hits == 0 else 1) or num_hits > 1
        assert decided.keep[number] == (left is not None)
        row = ledger.get(number)
        assert (row is None) == (num_hits == 0)
        if row is not None:
            assert row["action"] == ("cut" if left is not None else "drop")
        if left is not None:
            assert decided.texts[number] == left
        elif row is not None:
            text = documents[number]
            is_hit = [any(start <= at < end for start, end in spans) for at in range(len(text))]
            pieces = [text[s["start"] : s["end"]] for s in spans_in_characters(row, text)]
            assert "".join(pieces) == "".join(itertools.compress(text, is_hit))


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, max_size=8), items, st.data())
def test_decisions_equal_plain_python_however_the_work_is_cut(
    tmp_path_factory, documents: list[str], rows: list[dict[str, str]], data
) -> None:
    unique = list({(row["question"], row["answer"]): row for row in rows}.values())
    stage = DecontaminateNgrams(
        benchmarks=write(tmp_path_factory.mktemp("b") / "b.jsonl", unique),
        rule=data.draw(st.sampled_from(["gpt3", "janitor", "llama3", "chunks"])),
        ngram=data.draw(st.integers(1, 3)),
        max_documents=data.draw(st.sampled_from([None, 1, 2])),
        min_words=data.draw(st.integers(3, 5)),
        min_weight=data.draw(st.sampled_from([0.0, 0.25, 0.4, 1.0])),
        min_share=data.draw(st.sampled_from([0.1, 0.5, 1.0])),
        window=data.draw(st.integers(0, 3)),
        min_piece=data.draw(st.integers(0, 4)),
        max_pieces=data.draw(st.integers(0, 4)),
    )
    bounds = sorted(data.draw(st.sets(st.integers(0, len(documents)), max_size=4)))
    batch = data.draw(st.integers(1, 5))
    decided = run_global(stage, documents, bounds=bounds, batch_docs=batch)
    check(decided, documents, unique, stage)


ITEM = "why do bees blow cold smoke into the hive before lifting honey out of it"


def run(tmp_path: Path, documents: Sequence[str], item: str = ITEM, **params: Any) -> Decided:
    path = write(tmp_path / "b.jsonl", [{"id": "bees", "question": item, "answer": "ok"}])
    return run_global(DecontaminateNgrams(benchmarks=path, **params), documents)


def test_an_ngram_in_more_than_ten_documents_is_a_common_phrase(tmp_path: Path) -> None:
    far = f"{'x ' * 300}{ITEM} {'y ' * 300}"
    assert run(tmp_path, [far] * 11).texts == [far] * 11
    ten = run(tmp_path, [far] * 10)
    assert ten.texts == [far[:400] + far[600 + len(ITEM) + 200 :]] * 10
    assert {row["rule"] for row in ten.ledger} == {"ngram: b/bees"}
    assert not run(tmp_path, [far] * 11, max_documents=11).keep.tolist().count(False)


def test_a_document_in_many_pieces_goes(tmp_path: Path) -> None:
    text = f"{'x' * 500} {ITEM} " * 10
    assert run(tmp_path, [text], max_pieces=10).keep.tolist() == [True]
    decided = run(tmp_path, [text], max_pieces=9)
    assert [(row["rule"], row["value"]) for row in decided.ledger] == [("many_pieces: b/bees", 10)]
    (janitor,) = run(tmp_path, [text], rule="janitor").ledger  # it counts overlapping n-grams
    assert (janitor["rule"], janitor["value"], janitor["threshold"]) == (
        "many_pieces: b/bees", 30, 10,
    )  # fmt: skip


def test_a_document_of_which_no_piece_stays_goes(tmp_path: Path) -> None:
    decided = run(tmp_path, [f"short {ITEM}", "short"])
    assert decided.keep.tolist() == [False, True]
    assert decided.ledger[0]["rule"] == "little_left: b/bees"


def test_an_item_that_the_run_holds_in_pieces_is_contaminated(tmp_path: Path) -> None:
    words = ITEM.split()
    halves = [" ".join(words[:8]), " ".join(words[7:])]
    whole = run(tmp_path, [*halves, "bees"], rule="llama3")
    assert whole.keep.tolist() == [False, False, True]
    assert whole.counters["judge"] == {"b/items": 1, "b/contaminated": 1}
    half = run(tmp_path, halves[:1], rule="llama3")
    assert half.keep.tolist() == [True]
    assert half.counters["judge"] == {"b/items": 1, "b/contaminated": 0}


def test_a_contaminated_item_is_named_and_not_a_clean_one_with_the_same_words(
    tmp_path: Path,
) -> None:
    words = ITEM.split()
    clean = " ".join([*words[:8], *(f"other{num}" for num in range(20))])
    items = [{"id": "clean", "question": clean}, {"id": "bees", "question": ITEM}]
    stage = DecontaminateNgrams(benchmarks=write(tmp_path / "b.jsonl", items), rule="llama3")
    decided = run_global(stage, [" ".join(words[:8]), " ".join(words[7:])])
    assert [named.tolist() for named in decided.columns["items"]] == [["b/bees"], ["b/bees"]]


def test_a_rule_that_looks_at_one_document_is_two_passes(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", [{"question": ITEM}])
    for rule, num in (("janitor", 2), ("gpt3", 3), ("llama3", 3), ("chunks", 3)):
        assert len(DecontaminateNgrams(benchmarks=path, rule=rule).passes()) == num


def test_annotating_drops_and_cuts_nothing(tmp_path: Path) -> None:
    decided = run(tmp_path, [ITEM, "none"], action="annotate")
    assert decided.keep.all()
    assert decided.texts == [ITEM, "none"]
    assert decided.ledger == []
    assert decided.columns["hits"].tolist() == [3, 0]
    assert decided.columns["items"].tolist()[0].tolist() == ["b/bees"]


RUN = "beekeepers blow cool smoke into a hive before"


@pytest.mark.parametrize(
    ("documents", "params", "kept"),
    [
        ([f"So {RUN} noon.", "none"], {}, [False, True]),
        ([f"So {RUN} noon."] * 2, {}, [True, True]),
        ([f"So {RUN} noon."] * 2, {"max_documents": 2}, [False, False]),
        ([f"So {RUN} noon.", "cool smoke into a hive before"], {}, [True, True]),  # common
        ([f"So {RUN} they lift", "smoke into a hive before they"], {}, [False, True]),
        ([f"So {RUN} they", "smoke into a hive before they"], {"min_words": 9}, [True, True]),
        ([f"So {RUN} they lift out the honeycombs", "blow cool smoke into a hive"], {},
         [False, True]),
        ([f"So {RUN} noon."], {"min_weight": 2.0}, [False]),
        ([f"So {RUN} noon."], {"min_weight": 7.0}, [True]),  # a word weighs 1 at most
        ([f"So {RUN} noon.".replace("into", "-- into")], {}, [True]),
        ([f"So {RUN} noon.".replace("into", "\u2013 into")], {}, [False]),
        ([f"So {RUN} noon."], {"min_words": 9}, [True]),
        ([RUN.upper().replace(" ", "-")], {}, [False]),
        (["beekeepers blow cool smoke into a hive"], {}, [True]),
    ],
)  # fmt: skip
def test_rare_runs_of_words_drop_a_document(documents, params, kept) -> None:
    stage = DecontaminateNgrams(benchmarks="sample_data/benchmark.jsonl", rule="chunks", **params)
    assert run_global(stage, documents, bounds=[1]).keep.tolist() == kept


def test_a_mark_between_words_is_a_word_and_weighs_nothing(tmp_path: Path) -> None:
    words = "lift the lid || out of our hive"
    path = write(tmp_path / "b.jsonl", [{"question": f"They {words} now."}])
    stage = DecontaminateNgrams(benchmarks=path, rule="chunks", min_weight=5.5)
    assert run_global(stage, [f"So {words}."]).keep.tolist() == [False]
    assert run_global(stage, [f"So {words.replace('|| ', '')}."]).keep.tolist() == [True]
    heavy = stage.model_copy(update={"min_weight": 5.51})
    assert run_global(heavy, [f"So {words}."]).keep.tolist() == [True]


def test_the_span_of_a_run_is_in_bytes() -> None:
    stage = DecontaminateNgrams(benchmarks="sample_data/benchmark.jsonl", rule="chunks")
    (row,) = run_global(stage, [f"\u00dcber {RUN} noon."]).ledger
    start = len("\u00dcber ".encode())
    assert row["spans"] == [{"start": start, "end": start + len(RUN)}]
    assert row["rule"] == "ngram: benchmark/bees-4"


@pytest.mark.parametrize(
    ("params", "why", "num"),
    [
        ({"rule": "gpt3"}, "of fewer than 13 words", 3),
        ({"rule": "llama3"}, "of fewer than 8 words", 1),
        ({"rule": "chunks"}, "of fewer than 8 words", 1),
        ({"rule": "chunks", "min_words": 9, "ngram": 5}, "of fewer than 9 words", 2),
        ({"rule": "janitor", "ngram": 7}, "of fewer than 7 words", 0),
    ],
)
def test_items_that_are_never_compared_are_counted(tmp_path: Path, params, why, num) -> None:
    words = ITEM.split()
    rows = [{"question": " ".join(words[:size]), "answer": "-- ..."} for size in (7, 8, 12, 13)]
    path = write(tmp_path / "b.jsonl", rows)
    marks = 2 if params["rule"] == "chunks" else 0  # the punctuation of the answer
    stage = DecontaminateNgrams(benchmarks=path, **params)
    given = stage.model_copy(update={"min_words": stage.min_words + marks})
    why = why if not marks else f"of fewer than {given.min_words} words"
    assert given.not_found() == (why, {"b": (num, 4)})
    expected = (f"items {why} are never found: b {num} of 4.",) if num else ()
    assert given.warnings() == expected


def test_items_that_are_all_too_short_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", [{"question": ITEM}])
    stage = DecontaminateNgrams(benchmarks=path, ngram=17)
    with pytest.raises(UsageError, match="all items are of fewer than 17 words"):
        stage.check(Known())


def test_items_too_short_to_be_compared_are_not_called_clean(tmp_path: Path) -> None:
    rows = [{"question": ITEM}, {"question": "why do bees"}]
    stage = DecontaminateNgrams(benchmarks=write(tmp_path / "b.jsonl", rows), rule="llama3")
    assert run_global(stage, [ITEM]).counters["judge"] == {"b/items": 1, "b/contaminated": 1}


@pytest.mark.slow
def test_a_run_counts_documents_of_all_files_and_edited_equals_fresh(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Path("no tokenizer"))
    far = f"{'x ' * 300}{ITEM} {'y ' * 300}"
    lab.write("web0.jsonl", [{"id": str(num), "text": far} for num in range(6)])
    lab.write("books.jsonl", [{"id": f"b{num}", "text": far} for num in range(5)])
    benchmark = write(tmp_path / "b.jsonl", [{"id": "bees", "question": ITEM, "answer": "ok"}])
    common = {"decontaminate_ngrams": {"benchmarks": {"b": benchmark}}}
    llama = {"decontaminate_ngrams": {"benchmarks": {"b": benchmark}, "rule": "llama3"}}
    lab.pipeline |= {"stages": [common, llama], "documents": True}
    lab.run()
    assert kept(lab) == set()  # a phrase to GPT-3, a contaminated item to Llama 3
    report = contamination_report(RunDirectory.open(str(lab.out)))
    assert report.contaminated == {"b": (1, 1)}
    (item,) = report.items
    assert (item.item, item.documents, item.rules) == ("b/bees", 11, {"ngram": 11})
    shown = CliRunner().invoke(command, [str(lab.out)]).output
    assert "b: 1 of 1 items that can be compared are contaminated (100.0%)" in shown

    lab.write("books.jsonl", [{"id": f"b{num}", "text": far} for num in range(4)])
    lab.run()
    edited = tree(lab.out)
    assert kept(lab) == {*map(str, range(6)), *(f"b{num}" for num in range(4))}
    shutil.rmtree(lab.out)
    lab.run()
    assert tree(lab.out) == edited
    lab.cli("verify", str(lab.out))


def kept(lab: Lab) -> set[str]:
    """Return the ids of the documents that stay."""
    paths = (lab.out / "documents").glob("*.parquet")
    return {name for path in paths for name in pq.read_table(path)["id"].to_pylist()}


def test_a_run_that_is_shorter_than_its_ngrams_is_refused() -> None:
    with pytest.raises(ValueError, match=r"below ngram 6\. Set it to 6"):
        DecontaminateNgrams(benchmarks="sample_data/benchmark.jsonl", rule="chunks", min_words=4)


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Lab:
    """A run that annotates and then cuts, over several cells, with an item that is too short."""
    lab = Lab(tmp_path_factory.mktemp("counted"), Path("no tokenizer"))
    return of_ngrams(lab)


def of_ngrams(lab: Lab, *rules: dict[str, Any]) -> Lab:
    rules = rules or (
        {"rule": "chunks", "action": "annotate", "max_documents": 20}, {"rule": "gpt3"},
    )  # fmt: skip
    far = "x " * 300
    texts = [f"{far}{num} {ITEM if num % 9 == 0 else num} {far}" for num in range(80)]
    documents = [{"id": str(num), "text": text} for num, text in enumerate(texts)]
    lab.write("web0.jsonl", documents[:50])
    lab.write("books.jsonl", documents[50:])
    lab.pipeline["sources"]["items"] = lab.pipeline["sources"].pop("books")
    rows = [{"id": "bees", "question": ITEM}, {"id": "short", "question": "why do bees"}]
    path = write(lab.inputs.parent / "b.jsonl", rows)
    lab.pipeline["stages"] = [
        {"decontaminate_ngrams": {"benchmarks": {"b": path}, **params}} for params in rules
    ]
    lab.pipeline["documents"] = True
    lab.save()
    return lab


@pytest.mark.slow
def test_items_that_are_never_found_are_said_before_and_after(counted: Lab) -> None:
    short = "items of fewer than {} words are never found: b 1 of 2."
    for command_of in ("plan", "run"):
        done = counted.cli(command_of, str(counted.path))
        for label, num in (("decontaminate_ngrams", 8), ("decontaminate_ngrams_2", 13)):
            assert f"arning: {label}: {short.format(num)}" in done.stdout + done.stderr
    report = contamination_report(RunDirectory.open(str(counted.out)))
    labels = ("decontaminate_ngrams", "decontaminate_ngrams_2")
    assert report.not_found == {label: {"b": (1, 2)} for label in labels}
    assert short.format(13) in CliRunner().invoke(command, [str(counted.out)]).output


@pytest.mark.slow
def test_documents_that_are_only_annotated_are_reported(counted: Lab) -> None:
    counted.run()
    (item,) = contamination_report(RunDirectory.open(str(counted.out)), examples=9).items
    hits = [(hit.id, hit.action, hit.value) for hit in item.examples]
    ids = [str(num) for num in range(0, 80, 9)]
    assert [hit for hit in hits if hit[1] == "annotate"] == [(one, "annotate", 10.0) for one in ids]
    assert (item.documents, item.rules) == (9, {"ngram": 9})  # of two stages


@pytest.mark.slow
def test_contaminated_items_are_said_of_each_stage_and_of_no_source(tmp_path: Path) -> None:
    rules = [{"rule": "llama3", "action": "annotate", "max_documents": n} for n in (20, 1)]
    lab = of_ngrams(Lab(tmp_path, Path("no tokenizer")), *rules, {"rule": "llama3"})
    lab.run()
    report = contamination_report(RunDirectory.open(str(lab.out)))
    others = {"b (decontaminate_ngrams_2)": (0, 1), "b (decontaminate_ngrams_3)": (1, 1)}
    assert report.contaminated == {"b": (1, 1), **others}
    assert report.documents == 9  # of 80 every ninth, whatever stages find it


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(
    counted: Lab, tmp_path: Path
) -> None:
    """It dies at every 17th step of its commits, and goes on where it was."""
    counted.run()
    killed = of_ngrams(Lab(tmp_path, Path("no tokenizer")))
    died: Counter[str] = Counter()
    for _ in range(200):
        left = itertools.count(1)

        def hook(step: str, name: str, left: itertools.count[int] = left) -> None:
            mine = [one for one in PASSES if one in name]
            if mine and step.startswith(("put", "publish")) and next(left) == 17:
                died.update(mine)
                raise faults.Death

        faults.install_hook(hook)
        try:
            killed.run()
        except faults.Death:
            continue
        finally:
            faults.install_hook(None)
        break
    assert set(PASSES) == set(died)
    assert tree(killed.out, "documents", "ledger") == tree(counted.out, "documents", "ledger")


PASSES = (
    "ngrams.find",
    "ngrams.judge",
    "ngrams.apply",
    "ngrams_2.find",
    "ngrams_2.judge",
    "ngrams_2.apply",
)
