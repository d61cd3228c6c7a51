"""The stage that applies filters and formatters of datatrove."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import datatrove.pipeline
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters.base import BaseFormatter
from pydantic import ValidationError

from corpuskit.engine.config import read_pipeline
from corpuskit.errors import ConfigError
from corpuskit.formats.batch import ORIGIN
from corpuskit.stage import View
from corpuskit.stages.filters import datatrove as _steps
from corpuskit.stages.filters.datatrove import Datatrove
from tests.conftest import ROOT
from tests.contract.strategies import view
from tests.engine.conftest import Lab, tree

if TYPE_CHECKING:
    from datatrove.data import Document

FILTERS = "datatrove.pipeline.filters"
FORMATTERS = "datatrove.pipeline.formatters"
HERE = __name__


class Marking(BaseFilter):
    """Keeps long texts, and says in the metadata how long they are."""

    name = "marking"

    def __init__(self, limit: int = 5, batch_size: int = 1):
        super().__init__(batch_size=batch_size)
        self.limit = limit
        self.batches: list[int] = []

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        if "\x00" in doc.text:
            raise ValueError(f"a zero in {doc.id}, seen by {object()}")
        doc.metadata["size"] = np.int64(len(doc.text))
        doc.metadata["url"] = doc.metadata.get("url")
        if len(doc.text) < self.limit:
            return False, f"short/text: {len(doc.text)}"
        return True

    def filter_batch(self, batch):
        self.batches.append(len(batch))
        return super().filter_batch(batch)


class Counting(BaseFilter):
    """Keeps every other document it sees."""

    name = "counting"

    def __init__(self):
        super().__init__()
        self.seen = 0

    def filter(self, doc: Document) -> bool:
        self.seen += 1
        return self.seen % 2 == 1


class Broken(BaseFormatter):
    name = "broken"

    def format(self, text: str) -> Any:
        if text == "disk":
            raise OSError("no space")
        return None if text == "none" else text.replace("x", "\ud800")


def apply(texts, step, params=None, **more):
    stage = Datatrove(step=step, params=params or {}, **more)
    documents = view(texts)
    return stage, stage.apply(documents)


def reasons(stage, outcome) -> list[str | None]:
    rows = np.flatnonzero(outcome.codes)
    named = dict(zip(rows, outcome.reasons_of(rows, stage.rules).to_pylist(), strict=True))
    return [named.get(row) for row in range(len(outcome.codes))]


def after(outcome) -> list[str]:
    return [outcome.text.row(row).decode() for row in range(len(outcome.text))]


def test_reasons_of_the_filter_are_the_rules():
    texts = ["", "no mark\n" * 9, "Short.\n" * 9]
    stage, outcome = apply(texts, f"{FILTERS}.FineWebQualityFilter")
    assert reasons(stage, outcome) == ["empty", "line_punct_ratio", "short_line_ratio"]


def test_a_filter_without_reasons_drops_by_the_rule_dropped():
    stage, outcome = apply(["a b", "c"], f"{FILTERS}.RegexFilter", {"regex_exp": "b"})
    assert reasons(stage, outcome) == ["dropped", None]


def test_an_exception_drops_one_document_and_says_which():
    texts = ["long enough", "a \x00", "also long"]
    stage, outcome = apply(texts, f"{HERE}.Marking")
    found = reasons(stage, outcome)
    assert found[::2] == [None, None]
    assert found[1].startswith("error ValueError: a zero in web/x.jsonl#1, seen by <object")
    assert "0x7" not in found[1], "addresses would differ from run to run"
    assert outcome.codes.tolist() == [0, 2, 0]


def test_one_bad_document_does_not_take_its_batch_along():
    texts = ["long enough", "a \x00", "also long", "no", "again long"]
    _, outcome = apply(texts, f"{HERE}.Marking", {"batch_size": 4})
    assert outcome.codes.tolist() == [0, 2, 0, 1, 0]
    sizes = [None if row is None else json.loads(row)["size"] for row in metadata(outcome)]
    assert sizes == [11, None, 9, None, 10]


def test_batches_are_as_long_as_the_filter_asks():
    stage, _ = apply(["a long text"] * 7, f"{HERE}.Marking", {"batch_size": 3, "limit": 1})
    assert stage._shared().batches[-3:] == [3, 3, 1]


def test_what_is_no_fault_of_a_document_fails():
    with pytest.raises(OSError, match="no space"):
        apply(["a", "disk"], f"{HERE}.Broken")


def test_a_text_that_is_none_is_an_error():
    stage, outcome = apply(["a", "none"], f"{HERE}.Broken")
    assert reasons(stage, outcome) == [None, "error TypeError: the text became NoneType"]


def test_lone_surrogates_are_replaced():
    _, outcome = apply(["a", "axb"], f"{HERE}.Broken")
    assert after(outcome) == ["a", "a\ufffdb"]


def metadata(outcome) -> list[str | None]:
    return outcome.columns["metadata"].to_pylist()


def test_what_a_step_adds_to_the_metadata_becomes_a_column():
    _, outcome = apply(["a long text", "no"], f"{HERE}.Marking")
    assert metadata(outcome) == ['{"size": 11, "url": null}', None]


def test_a_step_sees_the_other_columns_as_metadata():
    given = view(["a long text"])
    batch = given.batch
    origin = {"file": "a.jsonl", "position": 3, "url": "https://example.org", "date": None}
    more = {
        "origin": pa.array([origin], ORIGIN),
        "extra": pa.array(['{"lang": "de", "metadata": {"score": 1, "lang": "en"}}']),
        "language.label": pa.array(["de"]),
        "datatrove.metadata": pa.array(['{"size": 3}']),
        "rank": pa.array([7]),
    }
    for name, values in more.items():
        batch = batch.append_column(name, values)
    seen = next(iter(_documents(View(batch))))
    assert (seen.text, seen.id) == ("a long text", "web/x.jsonl#0")
    assert seen.metadata == {
        "lang": "de", "score": 1, "size": 3, "url": "https://example.org", "file_path": "a.jsonl",
        "source": "web", "language": "de", "rank": 7,
    }  # fmt: skip
    stage = Datatrove(step=f"{HERE}.Marking")
    assert metadata(stage.apply(View(batch))) == ['{"size": 11}']


def _documents(given):
    from corpuskit.stages.filters.datatrove import _documents

    return _documents(given)


@pytest.mark.parametrize(
    ("old", "new", "span"),
    [
        ("a jo@x.org b", "a email@example.com b", (2, 6)),
        ("one\ntwo\nthree", "one\nthree", (5, 9)),
        ("ab", "axb", (0, 1)),
        ("b", "ab", (0, 1)),
        ("aaa", "aa", (2, 3)),
        ("\xe9a\xe9", "\xe9b\xe9", (2, 3)),
        ("a\xe9", "a\xe8", (1, 3)),
        ("abc", "", (0, 3)),
    ],
)
def test_a_span_covers_what_changed(old, new, span):
    from corpuskit.stages.filters.datatrove import _changed_span

    begin, end = _changed_span(old, new)
    data = old.encode()
    assert new.encode().startswith(data[:begin])
    assert new.encode().endswith(data[end:])
    data[:begin].decode()
    data[end:].decode()
    if old != "one\ntwo\nthree" and "jo@" not in old:
        assert (begin, end) == span


def test_random_choices_follow_from_the_document():
    texts = ["text"] * 400
    params = {"rate": 0.5, "seed": 3}
    _, outcome = apply(texts, f"{FILTERS}.SamplerFilter", params)
    kept = outcome.codes == 0
    assert 150 < kept.sum() < 250
    again = Datatrove(step=f"{FILTERS}.SamplerFilter", params=params)
    parts = [again.apply(view(["text"] * 100, None, first)).codes for first in (0, 100, 200, 300)]
    assert np.concatenate(parts).tolist() == outcome.codes.tolist()
    _, other = apply(texts, f"{FILTERS}.SamplerFilter", {**params, "seed": 4})
    assert other.codes.tolist() != outcome.codes.tolist()


def test_replacements_do_not_rotate_from_document_to_document():
    texts = ["jo@x.org", "al@x.org and jo@x.org"]
    _, outcome = apply(texts, f"{FORMATTERS}.PIIFormatter")
    first, second = "email@example.com", "firstname.lastname@example.org"
    assert after(outcome) == [first, f"{first} and {second}"]
    _, outcome = apply(texts, f"{FORMATTERS}.PIIFormatter", fresh=False)
    assert after(outcome) == [first, f"{second} and {first}"]


def test_a_step_of_ones_own_is_made_anew_only_when_asked():
    _, outcome = apply(["a", "b", "c"], f"{HERE}.Counting", fresh=True)
    assert outcome.codes.tolist() == [0, 0, 0]
    _, outcome = apply(["a", "b", "c"], f"{HERE}.Counting")
    assert outcome.codes.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("step", "params", "message"),
    [
        ("SamplerFilter", {}, f"Did you mean '{FILTERS}.SamplerFilter'?"),
        (f"{FILTERS}.SamplerFiltr", {}, "Did you mean 'SamplerFilter'?"),
        ("datatrove.pipeline.filter.X", {}, f"Did you mean '{FILTERS}'?"),
        ("no_such_module.X", {}, "importable on every machine"),
        ("datatrove.data.Document", {}, "is no filter or formatter"),
        (f"{FILTERS}.base_filter.BaseFilter", {}, "is abstract"),
        ("datatrove.pipeline.readers.JsonlReader", {}, "is no filter or formatter"),
        (f"{FILTERS}.SamplerFilter", {"rat": 1}, "no parameter 'rat'. Did you mean 'rate'?"),
        (f"{FILTERS}.RegexFilter", {}, "needs the parameter 'regex_exp'"),
        (f"{FILTERS}.SamplerFilter", {"exclusion_writer": 1}, "goes to the ledger"),
    ],
)
def test_mistakes_are_found_before_anything_runs(step, params, message):
    with pytest.raises(ValidationError) as caught:
        Datatrove(step=step, params=params)
    assert message in str(caught.value)


def test_a_mistake_names_its_place_in_the_file(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        'output: out\nsources: {web: {jsonl: "*.jsonl"}}\nstages:\n'
        f"  - datatrove: {{step: {FILTERS}.SamplerFilter, params: {{rat: 1}}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_pipeline(path)
    assert str(caught.value) == (
        f"{path}:4:73: datatrove.params: SamplerFilter has no parameter 'rat'. Did you mean 'rate'?"
    )


def test_the_fingerprint_covers_what_decides(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a")
    stage = Datatrove(step=f"{FORMATTERS}.FTFYFormatter")
    assert set(stage.libraries()) == {"datatrove", "ftfy"}
    stage = Datatrove(step=f"{FILTERS}.RegexFilter", params={"regex_exp": str(words)})
    assert stage.files() == (str(words),)


def test_the_fingerprint_covers_a_local_class_and_its_helpers(tmp_path, monkeypatch):
    (tmp_path / "my_step.py").write_text(
        "from datatrove.pipeline.filters.base_filter import BaseFilter\n"
        "class Mine(BaseFilter):\n"
        "    def filter(self, doc):\n"
        "        from my_helper import LIMIT\n"
        "        return len(doc.text) > LIMIT\n"
    )
    (tmp_path / "my_helper.py").write_text("LIMIT = 10\n")
    monkeypatch.syspath_prepend(tmp_path)
    stage = Datatrove(step="my_step.Mine")
    assert stage.files() == (str(tmp_path / "my_helper.py"), str(tmp_path / "my_step.py"))


@pytest.mark.slow
def test_a_run_accounts_for_every_document(tmp_path):
    lab = Lab(tmp_path, tmp_path / "no_tokenizer")
    texts = ["a long text, kept", "no", "a \x00 raises", "nil", "another long text"] * 30
    documents = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    lab.write("web.jsonl", documents[:90])
    lab.write("books.jsonl", documents[90:])
    lab.pipeline["cell_bytes"] = 1024
    lab.pipeline["stages"] = [
        {"datatrove": {"step": "tests.stages.test_datatrove_stage.Marking"}},
        {"datatrove": {"step": f"{FILTERS}.SamplerFilter", "params": {"rate": 0.5, "seed": 1}}},
    ]
    lab.run()
    lab.cli("verify", str(lab.out))
    ledger = pq.read_table(lab.out / "ledger").to_pylist()
    rules = Counter(row["rule"] for row in ledger if row["stage"] == "datatrove")
    assert rules["short/text: 2"] == rules["short/text: 3"] == 30
    assert sum(count for rule, count in rules.items() if rule.startswith("error Val")) == 30
    assert "error ValueError: a zero in d2, seen by <object object at 0x>" in rules
    [row] = [row for row in lab.facts()["funnel"] if row["stage"] == "datatrove"]
    counts = {rule: sum(by_source.values()) for rule, by_source in row["dropped"].items()}
    assert counts == {"short|text": 60, "error ValueError": 30}
    kept = pq.read_table(lab.out / "documents")
    assert 15 < len(kept) < 45
    assert json.loads(kept["datatrove.metadata"][0].as_py())["size"] in {17, 9}
    before = tree(lab.out)
    lab.pipeline["output"] = str(tmp_path / "again")
    lab.run_apart("--workers", "3")
    assert tree(lab.out) == before


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Odd(BaseFilter):
    """Does to a document what its text says."""

    name = "odd"

    def filter(self, doc: Document) -> Any:
        match doc.text:
            case "three":
                return False, "a", "b"
            case "reason":
                return False, "bad \ud800"
            case "message":
                raise ValueError("x\ud800")
            case "unspeakable":
                raise UnspeakableError
            case "exit":
                raise SystemExit(0)
            case "no metadata":
                doc.metadata = None
            case "tuple":
                doc.metadata["a"] = {(1, 2): 3}
            case "circle":
                doc.metadata["a"] = circle = {}
                circle["a"] = circle
            case "plain":
                doc.metadata.update({1: float("nan"), "a": ["x\ud800", np.float32(0.5)]})
        return True


class Short(BaseFilter):
    name = "short"

    def filter(self, doc: Document) -> bool:
        return True

    def filter_batch(self, batch: Any) -> list[bool]:
        return [True] * (len(batch) - any(doc.text == "bad" for doc in batch))


class Running(BaseFilter):
    name = "running"

    def filter(self, doc: Document) -> bool:
        return True

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        yield from data


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("three", "error ValueError: a result of 3 values, not of whether and why"),
        ("reason", "bad \ufffd"),
        ("message", "error ValueError: x\ufffd"),
        ("unspeakable", "error UnspeakableError"),
        ("exit", "error SystemExit: 0"),
        ("no metadata", "error TypeError: the metadata became NoneType"),
        ("tuple", "error TypeError: the metadata has a key that is a tuple"),
        ("circle", "error ValueError: the metadata is nested more than 100 deep, or holds itself"),
    ],
)
def test_a_document_on_which_a_step_fails_is_dropped_alone(text, reason):
    stage, outcome = apply(["good", text, "good"], f"{HERE}.Odd")
    assert reasons(stage, outcome) == [None, reason, None]


def test_metadata_that_json_lacks_become_null_or_text():
    _, outcome = apply(["plain"], f"{HERE}.Odd")
    metadata = outcome.columns["metadata"][0].as_py()
    assert json.loads(metadata) == {"1": None, "a": ["x\ufffd", 0.5]}


def test_a_batch_of_another_length_is_an_error():
    stage, outcome = apply(["good", "bad"], f"{HERE}.Short")
    expected = "error ValueError: 0 results for 1 documents"
    assert reasons(stage, outcome) == [None, expected]


def test_a_step_that_runs_in_its_own_way_is_refused():
    with pytest.raises(ValidationError, match=r"has a run\(\) of its own"):
        Datatrove(step=f"{HERE}.Running")


def _blocks() -> dict[str, str]:
    """Return name -> class path of every block of datatrove."""
    found = {}
    for module in pkgutil.walk_packages(datatrove.pipeline.__path__, "datatrove.pipeline."):
        try:
            content = vars(importlib.import_module(module.name))
        except ImportError:  # it needs what nobody installs for this
            continue
        for name, value in content.items():
            is_block = isinstance(value, type) and issubclass(value, PipelineStep)
            if is_block and value.__module__ == module.name:
                found[name] = f"{module.name}.{name}"
    return found


BLOCKS = _blocks()
PARAMS: dict[str, dict[str, Any]] = {
    "NGramsDecontFilter": {"index_folder": "index"},
    "RegexFilter": {"regex_exp": "x"},
    "URLFilter": {"use_integrated_lists": False, "extra_domains": ["x.org"]},
}
FETCHES = {"C4BadWordsFilter", "UnigramLogProbFilter", "NGramsDecontFilter"}
"""Blocks that need a network, or an index of datatrove's, before they decide."""


def _documented() -> set[str]:
    page = (ROOT / "docs" / "datatrove.md").read_text()
    listed = page.partition("run in the stage `datatrove`:")[2].partition("\n\n")[0]
    return set(re.findall(r"`(\w+(?:Filter|Formatter))`", listed))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datatrove's use of tldextract
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_block_runs_or_is_refused_with_the_reason_as_the_page_says(name):
    if name in _documented():
        stage = Datatrove(step=BLOCKS[name], params=PARAMS.get(name, {}))
        if name not in FETCHES:
            documents = view(["A text of a few words, twice.\nAnd a second line."] * 2)
            outcome = stage.apply(documents.with_columns({"url": pa.array(["https://y.org"] * 2)}))
            assert not [why for why in reasons(stage, outcome) if str(why).startswith("error")]
        return
    with pytest.raises(ValidationError) as caught:
        Datatrove(step=BLOCKS[name], params=PARAMS.get(name, {}))
    text = str(caught.value)
    assert "fasttext-numpy2-wheel`" not in text  # which would break ours
    assert name in text
    assert any(hint in text for hint in _steps.INSTEAD.values()) or name in {
        "BaseFilter", "BaseFormatter", "LambdaFilter", "PipelineStep",
    }  # fmt: skip


def test_the_page_names_blocks_that_there_are():
    assert len(_documented()) == 14
    assert _documented() <= set(BLOCKS)
