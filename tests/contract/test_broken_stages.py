"""Every check of `corpuskit stages NAME --check` fails for a stage that breaks the promise."""

from __future__ import annotations

import importlib
import sys

import pytest

from corpuskit.engine import registry
from corpuskit.errors import UsageError
from corpuskit.inspect.stage_checks import PROMISES, Subject, check_stage, smallest
from tests.conftest import ROOT
from tests.contract.strategies import PIECES
from tests.engine.here import command_line
from tests.pages import blocks_of

PAGE = ROOT / "docs" / "adding_a_stage.md"
FILTER, _ = (block.text for block in blocks_of(PAGE) if block.language == "python")
REST = """
    measures: bool = False
    \"\"\"Whether.\"\"\"
"""
SOURCE = '''
from corpuskit.errors import DataError
from corpuskit.stage import Slice, Source
import pyarrow as pa
from pathlib import Path

class Broken(Source):
    """Read nothing.

    Source: none.
    """
    def declared(self):
        return {"url": pa.string()}
    def slices(self, file, target_bytes):
        return [Slice(0, file.size_bytes, file.size_bytes)]
    def read(self, file, piece, max_document_bytes):
        Path(file.path).read_text()
        yield from ()
'''
GLOBAL = '''
from corpuskit.stage import GlobalStage, Pass

class Broken(GlobalStage):
    """Do nothing.

    Source: none.
    """
    def passes(self):
        return (Pass("one", self.work), Pass("two", self.work))
    def work(self, context):
        pass
'''
CUTTER = '''
import numpy as np
from corpuskit.formats.batch import utf8
from corpuskit.stage import Example, Outcome, Spans, StreamingStage
import pyarrow as pa

class Broken(StreamingStage):
    """Cut the first byte.

    Source: none.
    """
    rules = ("first",)
    examples = (Example("", None), Example("a", "first", becomes=""))

    def apply(self, view):
        texts = view.column("text").to_pylist()
        rows = [row for row, text in enumerate(texts) if text]
        after = [text[1:] for text in texts]
        sizes = [len(texts[row][0].encode()) for row in rows]
        spans = Spans(
            np.array(rows, np.int64), np.zeros(len(rows), np.int64), np.array(sizes, np.int64),
            np.ones(len(rows), np.uint8),
        )
        return Outcome(text=utf8(pa.array(after, pa.large_string())), spans=spans)
'''
SIZES = "sizes = view.text.sizes()"
CONFIG = "    rules: ClassVar"

# Promise (its beginning) -> the stage, what to replace in it, and by what.
BROKEN = {
    "a stage is a source": (FILTER, "StreamingStage", "Stage"),
    "the docstring": (FILTER, "Source:", "From:"),
    "every parameter has a string": (FILTER, '    """Largest size, in bytes of UTF-8."""\n', ""),
    "a misspelt parameter": (FILTER, CONFIG, f'    model_config = {{"extra": "ignore"}}\n{CONFIG}'),
    "parameters cannot be": (FILTER, CONFIG, f'    model_config = {{"frozen": False}}\n{CONFIG}'),
    "parameters survive": (
        FILTER, "    def apply", "    def model_post_init(self, _):\n"
        "        object.__setattr__(self, 'max_bytes', self.max_bytes + 1)\n\n    def apply",
    ),
    "the schema": (
        FILTER, "    def apply",
        "    @classmethod\n    def model_json_schema(cls):\n        return {}\n\n    def apply",
    ),
    "rules are": (FILTER, '("too_big",)', '("too_big", "too_big")'),
    "bounds name": (FILTER, '{"too_big": "max_bytes"}', '{"too_big": "most_bytes"}'),
    "what it needs": (
        FILTER, "    def apply", "    def provides(self, given):\n"
        "        return {'sizes': (1, 2)}\n\n    def apply",
    ),
    "every rule has": (FILTER, '("too_big",)', '("too_big", "never")'),
    "examples hold": (FILTER, 'Example("small")', 'Example("small", "too_big")'),
    "an empty batch": (FILTER, SIZES, f"{SIZES}\n        sizes[0]"),
    "an outcome has": (FILTER, "np.uint8", "np.int64"),
    "a slice of a batch": (FILTER, SIZES, f"{SIZES} + 10**6 * (view.num_docs > 2)"),
    "a document alone": (FILTER, SIZES, f"{SIZES} + 10**6 * (np.arange(view.num_docs) > 0)"),
    "the order of": (FILTER, SIZES, f"{SIZES} + 10**6 * (np.arange(view.num_docs) == 1)"),
    "the same input": (
        FILTER, SIZES, f"{SIZES} + len(CALLS) % 2 * 10**7\n        CALLS.append(1)",
    ),
    "neither the clock": (
        FILTER, SIZES, f"import time\n        {SIZES} + int(time.time() % 10**9)",
    ),
    "after the first batch": (FILTER, SIZES, f"{SIZES}\n        open(__file__).close()"),
    "the measured value": (FILTER, "sizes > self", "sizes >= self"),
    "spans lie": (CUTTER, "np.array(sizes, np.int64)", "np.array(sizes, np.int64) + 1"),
    "measuring changes": (
        FILTER, "    def apply", f"{REST}\n    def apply(self, view):\n"
        "        return self.real(view) if not self.measures else Outcome()\n\n    def real",
    ),
    "it equals its reference on its": (FILTER, "    def apply", "ORACLE    def apply"),
    "it equals its reference on all": (FILTER, "    def apply", "ORACLE    def apply"),
    "it equals its reference on random": (FILTER, "    def apply", "ORACLE    def apply"),
    "declared columns": (SOURCE, '{"url"', '{"text"'),
    "paths are required": (
        SOURCE, "    def declared", "    paths: tuple[str, ...] = ()\n    def declared",
    ),
    "a missing file": (SOURCE, "        Path(file.path).read_text()\n", ""),
    "passes have names": (GLOBAL, '"two"', '"one"'),
    "passes are methods": (GLOBAL, "self.work))", "lambda context: None))"),
    "folders it owns": (GLOBAL, "self.work))", 'self.work, owns=("/tmp",)))'),
}  # fmt: skip
ORACLE = "    def oracle(self):\n        return lambda text: ('too_big', text)\n\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that makes a module of a text, and its stage known under a name."""
    real = registry.modules()

    def forget():
        for cached in (registry.load, registry.summary):
            cached.cache_clear()
        sys.modules.pop("broken_stage", None)

    def load(text: str, name: str = "broken_stage"):
        (tmp_path / "broken_stage.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(registry, "modules", lambda: {**real, name: "broken_stage"})
        forget()
        importlib.invalidate_caches()
        return registry.load(name)

    yield load
    forget()


def promise_of(beginning: str):
    [promise] = [promise for promise in PROMISES if promise.text.startswith(beginning)]
    return promise


def outcome_of(cls, promise, params=None) -> tuple[str, str]:
    """Return what becomes of one promise, and why."""
    [outcome] = check_stage(Subject(cls, params), [promise])
    return outcome[1:]


@pytest.mark.parametrize("text", [FILTER, CUTTER, SOURCE, GLOBAL], ids=lambda text: text[-40:-30])
def test_a_stage_that_is_as_it_should_be_breaks_nothing(load, text):
    outcomes = list(check_stage(Subject(load(text))))
    assert {outcome for _, outcome, _ in outcomes} <= {"kept", "skipped"}, outcomes


@pytest.mark.parametrize("beginning", BROKEN)
def test_a_stage_that_breaks_a_promise_is_found(load, beginning):
    text, old, new = BROKEN[beginning]
    assert old in text
    cls = load(text.replace(old, new).replace("ORACLE", ORACLE) + "\nCALLS = []\n")
    outcome, why = outcome_of(cls, promise_of(beginning))
    assert outcome == "BROKEN"
    assert why


def test_a_stage_of_another_name_is_found(load):
    cls = load(FILTER, "other_name")
    outcome, why = outcome_of(cls, promise_of("its name"))
    assert (outcome, why) == (
        "BROKEN", "names that lead to it: ['other_name'], expected ['broken_stage']",
    )  # fmt: skip


def test_every_promise_has_a_stage_that_breaks_it():
    proven = {promise_of(beginning).text for beginning in [*BROKEN, "its name"]}
    assert proven == {promise.text for promise in PROMISES}


def test_the_smallest_batch_is_one_document_of_what_matters():
    batch = ["a b", "".join(PIECES), "x"]
    assert smallest(batch, lambda texts: "@" in "".join(texts) and "no") == ["@"]
    assert smallest(batch, lambda texts: len(texts) > 1 and "two") == ["", ""]


def test_a_stage_that_cannot_be_made_says_what_it_needs(load):
    needs = FILTER.replace("Field(1_000_000, ge=0)", "Field(ge=0)")
    cls = load(needs.replace('Example("small")', 'Example("small", None, {"max_bytes": 20})'))
    promise = promise_of("an empty batch")
    assert outcome_of(cls, promise) == ("kept", "")
    cls = load(needs.replace(', {"max_bytes": 10}', ""))
    assert outcome_of(cls, promise) == (
        "BROKEN", "max_bytes: Field required. Give --params, or examples that have it.",
    )  # fmt: skip
    assert outcome_of(cls, promise, {"max_bytes": 5}) == ("kept", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check"], "error: --check: which stage? Name it: `corpuskit stages NAME --check`."),
        (["threshold", "--check", "--params", "[1"], "error: --params: not a JSON object: '[1'"),
        (["threshold", "--check", "--params", "[1]"], "error: --params: not a JSON object: '[1]'"),
        (["nothing", "--check"], "error: There is no stage 'nothing'."),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, arguments, message):
    done = command_line(tmp_path, ["stages", *arguments])
    assert done.returncode == UsageError.exit_code
    assert done.stderr.startswith(message)
