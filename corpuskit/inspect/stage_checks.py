"""The contract of a stage as checks: `corpuskit stages NAME --check`, and our own contract tests.

Each promise is one function. Promises about documents are tried on batches of texts that break code
which treats text as bytes, as ASCII or as lines, with parameters that equal what small texts
measure. A batch that breaks a promise is reported as its smallest part that still does.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import pickle
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from corpuskit import yamlreader
from corpuskit.engine import registry
from corpuskit.engine.config import dump_yaml
from corpuskit.engine.records import measuring
from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import ORIGIN, REQUIRED, make_keys
from corpuskit.stage import (
    CellStage,
    GlobalStage,
    InputFile,
    Outcome,
    Slice,
    Source,
    Stage,
    StreamingStage,
    View,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Decide = Callable[[str], tuple[str | None, str]]
    Row = dict[str, Any]

PIECES = (
    *("\n", "\n\n", "\r", "\r\n", "\t", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0"),
    *("\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff"),
    *(" ", "  ", ".", "...", "....", "\u2026", "\u2022", "-", "- ", "#", "?", "!", ":", "::", ","),
    *('"', "'", "\u201d", "(", ")", "{", "[1]", "[citation needed]", "@", "\u3002", "\U00011a42"),
    *("the", "The", "and", "of", "with", "to", "a", "b", "a b c", "word", "Word.", "don't"),
    *("\xe9", "e\u0301", "\xdf", "\u0130", "\u212a", "\u01c5", "\u0660", "\uff11", "\xb2", "12"),
    *("\u65e5\u672c\u8a9e", "\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001d4b3"),
    *("\U0001f469\u200d", "javascript", "lorem ipsum", "x" * 31, "\xe9" * 20, "terms of use"),
    *("\0", "\x7f", "\ufffd", "jo@x.org", "81.2.69.142", "10.0.0.99", "2a00:1450:4001:81b::200e"),
    *("%20", "\U0010ffff"),
)
"""Where code that treats text as bytes, or as ASCII, or line by line, goes wrong."""

WORLD = ["".join(chars) for num in range(6) for chars in itertools.product("a. \n", repeat=num)]
"""All 1,365 texts of up to five characters: every tie and every empty line there can be."""

CASES, REFERENCE_CASES = 12, 60  # batches per promise, and of comparing with a reference
MAX_TEXTS = 8  # of a batch
COMBINATIONS = 12  # stages that are tried with several parameters changed at once
MAX_SHRINKS = 400  # tries to make a batch that breaks a promise smaller

KINDS = (Source, StreamingStage, CellStage, GlobalStage)


class BrokenPromiseError(Exception):
    """A stage does something else than its contract says."""


class NotApplicableError(Exception):
    """A promise cannot be checked for this stage; the message says why."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """One sentence of the contract, the kind of stage that it binds, and its check."""

    text: str
    kind: type[Stage]
    check: Callable[[Subject], None]


PROMISES: list[Promise] = []


class Subject:
    """A stage under check.

    Args:
        cls: the class.
        params: values that it needs and that neither its defaults nor its examples give.
        oracle: stage -> its slow reference; None: what the stage's `oracle()` returns.
    """

    def __init__(
        self,
        cls: type[Stage],
        params: Mapping[str, Any] | None = None,
        oracle: Callable[[StreamingStage], Decide | None] | None = None,
    ) -> None:
        self.cls = cls
        self.params = dict(params or {})
        self.oracle = oracle or (lambda stage: stage.oracle())

    @functools.cached_property
    def stage(self) -> Any:
        """The stage with its defaults, or with the first parameters that work."""
        paths = {"paths": ("nowhere/*",)} if issubclass(self.cls, Source) else {}
        for example_params in ({}, *(example.params for example in self.cls.examples)):
            params = {**paths, **self.params, **example_params}
            stage = _try(self.cls, params)
            if stage is not None:
                missing = [path for path in stage.files() if not Path(path).exists()]
                if missing:
                    raise NotApplicableError(f"needs the file {missing[0]}")
                return stage
        self.cls(**params)
        raise AssertionError("the last parameters were refused before")

    @functools.cached_property
    def loose(self) -> Any:
        """The stage with all rules off that can be: bounds null, or where they never fail."""
        off: dict[str, Any] = {}
        for name, bound in numeric(self.cls).items():
            if bound["nullable"]:
                off[name] = None
            elif name.startswith(("min_", "max_")):
                off[name] = bound["low"] if name.startswith("min_") else bound["high"]
        return _try(self.cls, {**params_of(self.stage), **off}) or self.stage

    def examples(self) -> list[tuple[Any, Any]]:
        """Return (stage, example): each example with the stage that its parameters make."""
        return [
            (self.cls(**{**self.params, **case.params}) if case.params else self.stage, case)
            for case in self.cls.examples
        ]

    def tied(self) -> Iterator[Any]:
        """Yield stages whose parameters tie with what small texts measure.

        One parameter at a time with all others off, then some with several at once.
        """
        seen = {repr(self.loose)}
        choices = {name: ties(bound) for name, bound in numeric(self.cls).items()}
        changes = [{name: value} for name, values in choices.items() for value in values]
        dice = random.Random(0)
        for _ in range(COMBINATIONS):
            values = {name: dice.choice([*values, None]) for name, values in choices.items()}
            changes.append({name: value for name, value in values.items() if value is not None})
        yield self.loose
        for change in changes:
            stage = _try(self.cls, {**params_of(self.loose), **change})
            if stage is not None and repr(stage) not in seen:
                seen.add(repr(stage))
                yield stage

    def draw(self, dice: random.Random) -> Any:
        """Return the stage with parameters within their declared bounds.

        Half of them have all other rules off: by default the first rules catch all small texts.
        """
        choices: dict[str, list[Any]] = {}
        for name, schema in properties(self.cls).items():
            if name in numeric(self.cls):
                bound = numeric(self.cls)[name]
                choices[name] = [*ties(bound), *([None] if bound["nullable"] else [])]
            elif schema.get("type") == "boolean":
                choices[name] = [False, True]
            elif "enum" in schema:
                choices[name] = schema["enum"]
        for _ in range(20 if choices else 0):
            change = {
                k: dice.choice(values) for k, values in choices.items() if dice.random() < 0.5
            }
            base = dice.choice([self.stage, self.loose])
            stage = _try(self.cls, {**params_of(base), **change})
            if stage is not None and _works(stage):
                return stage
        return self.stage


def promises_of(cls: type[Stage]) -> list[Promise]:
    """Return what a stage of this kind promises."""
    return [promise for promise in PROMISES if issubclass(cls, promise.kind)]


def check_stage(
    subject: Subject, promises: Iterable[Promise] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Check one promise after the other; yield (promise, `kept`, `BROKEN` or `skipped`, why)."""
    for promise in promises_of(subject.cls) if promises is None else promises:
        try:
            promise.check(subject)
        except NotApplicableError as reason:
            yield promise.text, "skipped", str(reason)
        except Exception as error:  # noqa: BLE001 - whatever a stage raises, it broke the promise
            yield promise.text, "BROKEN", _words(error)
        else:
            yield promise.text, "kept", ""


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        return f"{'; '.join(problems)}. Give --params, or examples that have it."
    kind = "" if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: "
    return f"{kind}{error}"


def _expect(is_kept: object, problem: object) -> None:
    if not is_kept:
        raise BrokenPromiseError(str(problem))


def _equal(actual: object, expected: object, what: str) -> None:
    _expect(actual == expected, f"{what}: {_short(actual)}, expected {_short(expected)}")


def _short(value: object) -> str:
    return text if len(text := repr(value)) <= 300 else f"{text[:297]}..."


def _promise(kind: type[Stage], text: str) -> Callable[[Callable[[Subject], None]], None]:
    """Return a decorator that registers the check of a promise."""
    return lambda check: PROMISES.append(Promise(text, kind, check))


def _on_batches(
    text: str, *, varied: bool = False, cases: int = CASES
) -> Callable[[Callable[..., None]], None]:
    """Register a promise about batches: `check(subject, stage, texts, dice)` is tried on many.

    Args:
        text: the promise.
        varied: whether parameters are drawn too.
        cases: how many batches.
    """

    def register(check: Callable[..., None]) -> None:
        def run(subject: Subject) -> None:
            for case in range(cases):
                seed = f"{text} {subject.cls.stage_name()} {case}"
                dice = random.Random(seed)
                stage = subject.draw(dice) if varied else subject.stage

                def problem(texts: list[str], stage: Any = stage, seed: str = seed) -> str:
                    try:
                        check(subject, stage, texts, random.Random(seed))
                    except NotApplicableError:
                        raise
                    except Exception as error:  # noqa: BLE001 - as in `check_stage`
                        return _words(error)
                    return ""

                texts = draw_texts(dice)
                if problem(texts):
                    texts = smallest(texts, problem)
                    raise BrokenPromiseError(f"{stage!r} on {_short(texts)}: {problem(texts)}")

        PROMISES.append(Promise(text, StreamingStage, run))

    return register


def draw_texts(dice: random.Random) -> list[str]:
    """Draw texts: traps strung together, small ones full of ties, and anything at all."""

    def anything() -> str:
        code = dice.randrange(2 ** dice.choice([7, 8, 11, 16, 20]))
        return chr(code) if not 0xD800 <= code < 0xE000 else "\ud7ff"

    def text() -> str:
        kind = dice.randrange(3)
        if kind == 0:
            return "".join(dice.choices(PIECES, k=dice.randint(0, 14)))
        if kind == 1:
            return "".join(dice.choices("a.\n ", k=dice.randint(0, 14)))
        return "".join(anything() for _ in range(dice.randint(0, 60)))

    texts = [text() for _ in range(dice.randint(0, MAX_TEXTS))]
    return [*texts, *texts[:1]] if dice.random() < 0.3 else texts


def smallest(texts: list[str], problem: Callable[[list[str]], str]) -> list[str]:
    """Return a part of a batch that still is a problem: fewer documents, then shorter ones."""
    tries = 0
    smaller = True
    while smaller and tries < MAX_SHRINKS:
        smaller = False
        for candidate in _parts(texts):
            tries += 1
            if tries > MAX_SHRINKS:
                break
            if problem(candidate):
                texts, smaller = candidate, True
                break
    return texts


def _parts(texts: list[str]) -> Iterator[list[str]]:
    for row in range(len(texts)):
        yield [*texts[:row], *texts[row + 1 :]]
    for row, text in enumerate(texts):
        size = len(text)
        while size := size // 2:
            for start in range(0, len(text), size):
                yield [*texts[:row], text[:start] + text[start + size :], *texts[row + 1 :]]
        if len(text) == 1:
            yield [*texts[:row], "", *texts[row + 1 :]]


# ---------------------------------------------------------------- parameters


def _try(cls: type[Stage], params: Mapping[str, Any]) -> Any:
    """Return the stage, None if its own checks refuse the combination."""
    try:
        return cls(**params)
    except ValidationError:
        return None


def _works(stage: Stage) -> bool:
    """Return whether it does not refuse its parameters when it meets a text."""
    if isinstance(stage, StreamingStage):
        try:
            stage.apply(view(["a text"], stage))
        except UsageError:  # an engine that is not installed, a token the file does not have
            return False
    return True


def params_of(stage: Stage) -> dict[str, Any]:
    """Return the parameters of a stage, as objects."""
    return {name: getattr(stage, name) for name in type(stage).model_fields}


def reload(stage: Any) -> Any:
    """Return the stage as another process reads it from a plan."""
    return type(stage).model_validate(json.loads(stage.model_dump_json()))


def properties(cls: type[Stage]) -> dict[str, dict[str, Any]]:
    """Return parameter -> its JSON Schema."""
    schemas: dict[str, dict[str, Any]] = cls.model_json_schema().get("properties", {})
    return schemas


@functools.cache
def numeric(cls: type[Stage]) -> dict[str, dict[str, Any]]:
    """Return the numbers among the parameters: type, whether null is allowed, lowest, highest."""
    bounds = {}
    for name, schema in properties(cls).items():
        options = schema.get("anyOf", [schema])
        numbers = [o for o in options if o.get("type") in {"integer", "number"}]
        if numbers:
            kind = numbers[0]
            bounds[name] = {
                "type": kind["type"],
                "nullable": any(option.get("type") == "null" for option in options),
                "low": kind.get("minimum", kind.get("exclusiveMinimum", 0)),
                "high": kind.get("maximum", kind.get("exclusiveMaximum", 10**6)),
                "open_low": "exclusiveMinimum" in kind,
                "open_high": "exclusiveMaximum" in kind,
            }
    return bounds


def ties(bound: Mapping[str, Any]) -> list[float]:
    """Return small values and simple fractions within the bounds of a parameter."""
    low, high = bound["low"], bound["high"]
    if bound["type"] == "integer":
        first = int(low) + bound["open_low"]
        values: list[float] = [*range(first, first + 5), first + 9]
    else:
        fractions = sorted({k / n for n in range(1, 7) for k in range(n + 1)})
        values = [*(low + value for value in fractions), 1.5, 2.0, 3.0]
    inside = [
        value
        for value in values
        if low <= value <= high
        and not (bound["open_low"] and value == low)
        and not (bound["open_high"] and value == high)
    ]
    return inside or [low]


# ---------------------------------------------------------------- documents and outcomes


def view(texts: Sequence[str], stage: Stage | None = None, first: int = 0) -> View:
    """Return documents as a batch, with the columns that a stage needs.

    Args:
        texts: the documents.
        stage: whose `needs()` are made up, from the text alone so that cutting does not matter.
        first: position of the first document.
    """
    positions = np.arange(first, first + len(texts))
    columns: dict[str, pa.Array] = {
        "key": pa.array(make_keys(0, positions)),
        "id": pa.array([f"web/x.jsonl#{position}" for position in positions], pa.string()),
        "text": pa.array(texts, pa.large_string()),
        "source": pa.array(["web"] * len(texts), pa.string()),
    }
    for name in stage.needs() if stage is not None else ():
        if name not in columns:
            columns[name] = _made_up(name, texts)
    return View(pa.record_batch(columns))


def _made_up(name: str, texts: Sequence[str]) -> pa.Array:
    """Return a column that another stage would have added, or that the input would declare."""
    if name == "origin":
        rows = [
            {"file": "x.jsonl", "position": 0, "url": _url(text), "date": None} for text in texts
        ]
        return pa.array(rows, ORIGIN)
    if name == "tokens":
        return pa.array([[ord(char) for char in text] for text in texts], pa.list_(pa.uint32()))
    stage, _, field = name.partition(".")
    kind = pa.float64() if field else pa.string()
    if field and stage in registry.names():
        kind = Subject(registry.load(stage)).stage.adds().get(field, kind)
    if pa.types.is_floating(kind):
        return pa.array([len(text) % 8 / 7 for text in texts], kind)
    if pa.types.is_integer(kind):
        return pa.array([len(text) % 8 for text in texts], kind)
    if pa.types.is_boolean(kind):
        return pa.array([len(text) % 2 == 0 for text in texts], kind)
    urls = [f"https://example.org/{len(text) % 8}" for text in texts]
    return pa.array(urls, pa.string()).cast(kind)


def _url(text: str) -> str | None:
    """Return where a document comes from: a text that is a URL means a page there."""
    if text == "no url":
        return None
    return text if "//" in text else f"https://example.org/{len(text) % 8}"


def rules(stage: StreamingStage, outcome: Outcome, num_docs: int) -> list[str | None]:
    """Return what dropped each document."""
    codes = outcome.codes if outcome.codes is not None else np.zeros(num_docs, np.uint8)
    _equal(len(codes), num_docs, "length of `codes`")
    return [stage.rules[code - 1] if code else None for code in codes.tolist()]


def texts_after(docs: View, outcome: Outcome) -> list[bytes]:
    """Return the texts that go on, those of dropped documents included."""
    text = outcome.text if outcome.text is not None else docs.text
    _equal(len(text), docs.num_docs, "length of `text`")
    return [text.row(row) for row in range(len(text))]


def plain(stage: StreamingStage, docs: View) -> list[Row]:
    """Return all of an outcome, one dictionary per document, comparable with ==."""
    outcome = stage.apply(docs)
    num = docs.num_docs
    rows: list[Row] = [
        {"rule": rule, "text": text}
        for rule, text in zip(rules(stage, outcome, num), texts_after(docs, outcome), strict=True)
    ]
    columns = {
        **{f"column {name}": values.to_pylist() for name, values in outcome.columns.items()},
        **{f"measure {name}": values.tolist() for name, values in outcome.measures.items()},
        "value": [None] * num if outcome.values is None else outcome.values.tolist(),
    }
    for name, values in columns.items():
        _equal(len(values), num, f"length of {name}")
        for row, value in zip(rows, values, strict=True):
            row[name] = "nan" if value != value else value
    for row in rows:
        row["spans"] = []
    if outcome.spans is not None:
        spans = outcome.spans
        quads = (spans.rows, spans.starts, spans.ends, spans.codes)
        for index, start, end, code in zip(*(part.tolist() for part in quads), strict=True):
            rows[index]["spans"].append((start, end, stage.rules[code - 1], spans.action))
    return rows


# ---------------------------------------------------------------- promises of every stage


@_promise(Stage, "a stage is a source, a streaming, a cell or a global stage")
def _kind(subject: Subject) -> None:
    _equal(sum(issubclass(subject.cls, kind) for kind in KINDS), 1, "kinds it is of")


@_promise(Stage, "its name in YAML is the name of its file")
def _name(subject: Subject) -> None:
    name = subject.cls.stage_name()
    names = [candidate for candidate in registry.names() if registry.load(candidate) is subject.cls]
    _equal(names, [name], "names that lead to it")


@_promise(Stage, "the docstring says what it does, and from where it comes")
def _docstring(subject: Subject) -> None:
    first, _, body = (inspect.getdoc(subject.cls) or "").partition("\n")
    _expect(first.endswith("."), f"the first line is not a sentence: {first!r}")
    _expect(len(first) <= 100, f"the first line has {len(first)} characters, at most 100 are shown")
    _expect("Source:" in body, "the docstring has no line `Source:` with the paper or the code")
    _equal(registry.summary(subject.cls.stage_name()), first, "the line in `corpuskit stages`")


@_promise(Stage, "every parameter has a string below it that describes it")
def _described(subject: Subject) -> None:
    for name, schema in properties(subject.cls).items():
        text = schema.get("description", "").strip()
        _expect(text, f"{name} has no description")
        starts = text[0] in "`0123456789" or text[0].isupper()
        _expect(starts and text.endswith((".", ")")), f"{name}: not a sentence: {text!r}")


@_promise(Stage, "a misspelt parameter is refused")
def _misspelt(subject: Subject) -> None:
    params = {**subject.stage.model_dump(), "no_such_parameter": 1}
    _expect(_try(subject.cls, params) is None, "no_such_parameter: 1 is accepted")


@_promise(Stage, "parameters cannot be changed")
def _frozen(subject: Subject) -> None:
    for name in subject.cls.model_fields:
        try:
            setattr(subject.stage, name, getattr(subject.stage, name))
        except ValidationError:
            continue
        raise BrokenPromiseError(f"{name} can be set: keep `frozen=True` in `model_config`")


@_promise(Stage, "parameters survive JSON, YAML and pickle")
def _survive(subject: Subject) -> None:
    for stage in (subject.stage, *(stage for stage, _ in subject.examples())):
        _equal(reload(stage), stage, "after JSON")
        read = yamlreader.load(dump_yaml(stage.model_dump(mode="json")), "parameters")
        _equal(subject.cls.model_validate(read), stage, "after YAML")
        _equal(pickle.loads(pickle.dumps(stage)), stage, "after pickle")


@_promise(Stage, "the schema of its parameters is JSON")
def _schema(subject: Subject) -> None:
    schema = json.loads(json.dumps(subject.cls.model_json_schema()))
    _equal(set(schema.get("properties", {})), set(subject.cls.model_fields), "parameters in it")


@_promise(Stage, "rules are at most 255 distinct words")
def _rules(subject: Subject) -> None:
    names = subject.cls.rules
    _expect(len(set(names)) == len(names) < 256, f"{len(names)} rules: {_short(names)}")
    _equal([rule for rule in names if not rule.isidentifier()], [], "rules that are not words")


@_promise(Stage, "bounds name rules and numeric parameters")
def _bounds(subject: Subject) -> None:
    for rule, name in subject.cls.bounds.items():
        _expect(rule in subject.cls.rules, f"{rule} is not a rule")
        _expect(name in subject.cls.model_fields, f"{name} is not a parameter")
        subject.stage.threshold(rule)


@_promise(Stage, "what it needs and adds are names; facts for later stages are JSON")
def _names(subject: Subject) -> None:
    stage = subject.stage
    names = (*stage.needs(), *stage.adds(), *stage.files(), *stage.libraries())
    _equal([name for name in names if not isinstance(name, str)], [], "what is not a name")
    _equal([name for name in stage.adds() if "." in name], [], "dots in what it adds")
    facts = dict(stage.provides({}))
    _equal(json.loads(json.dumps(facts)), facts, "what it provides, after JSON")


# ---------------------------------------------------------------- promises of streaming stages


@_promise(StreamingStage, "every rule has an example, and one document is left alone")
def _every_rule(subject: Subject) -> None:
    rules = {example.rule for example in subject.cls.examples}
    _equal(sorted(set(subject.cls.rules) - rules), [], "rules without an example")
    _expect(None in rules or not subject.cls.rules, "no example of a document that stays")


@_promise(StreamingStage, "examples hold")
def _examples(subject: Subject) -> None:
    for stage, example in subject.examples():
        documents = view([example.text], stage)
        outcome = stage.apply(documents)
        (rule,) = rules(stage, outcome, 1)
        if rule is None and outcome.spans is not None and len(outcome.spans.codes):
            rule = stage.rules[outcome.spans.codes[0] - 1]
        _equal(rule, example.rule, f"{stage!r}: the rule of {_short(example.text)}")
        if rule is None or example.becomes is not None:
            after = texts_after(documents, outcome)[0].decode()
            expected = example.text if example.becomes is None else example.becomes
            _equal(after, expected, f"{stage!r}: {_short(example.text)} becomes")


@_promise(StreamingStage, "an empty batch works")
def _empty(subject: Subject) -> None:
    stage = subject.stage
    _equal(plain(stage, view([], stage)), [], "of no documents")
    _equal(plain(stage, View(view(["one text"], stage).batch.slice(1))), [], "of an empty slice")


@_promise(StreamingStage, "an outcome has the types and columns that it declares")
def _declared(subject: Subject) -> None:
    stage = subject.stage
    documents = view(["", "a text\nof two lines", "jo@x.org " * 3], stage)
    outcome = stage.apply(documents)
    if outcome.codes is not None:
        _equal(outcome.codes.dtype, np.dtype(np.uint8), "type of `codes`")
        _expect(outcome.codes.max() <= len(stage.rules), "a code above the number of rules")
    kinds = {name: values.type for name, values in outcome.columns.items()}
    _equal(kinds, dict(stage.adds()), "columns")
    values = {} if outcome.values is None else {"values": outcome.values}
    for name, column in {**values, **outcome.measures}.items():
        _equal((column.dtype, len(column)), (np.dtype(np.float64), 3), f"type of {name}")
    if outcome.text is not None:
        _equal(outcome.text.offsets.dtype, np.dtype(np.int64), "type of the offsets of `text`")
        for text in texts_after(documents, outcome):
            text.decode()
    _expect(not stage.diverts or (stage.rules and "/" not in stage.diverts), "`diverts`: no folder")


@_on_batches("a slice of a batch decides as the whole batch", varied=True)
def _slice(_: Subject, stage: Any, texts: list[str], dice: random.Random) -> None:
    docs = view(texts, stage)
    expected = plain(stage, docs)
    cut = dice.randint(0, len(texts))
    _equal(plain(stage, View(docs.batch.slice(0, cut))), expected[:cut], f"the first {cut} alone")
    _equal(plain(stage, View(docs.batch.slice(cut))), expected[cut:], f"all after {cut} alone")


@_on_batches("a document alone decides as in its batch", varied=True)
def _each_alone(_: Subject, stage: Any, texts: list[str], __: random.Random) -> None:
    rows = [plain(stage, view([text], stage, first))[0] for first, text in enumerate(texts)]
    _equal(rows, plain(stage, view(texts, stage)), "one by one")


@_on_batches("the order of documents is kept, and selected rows decide as before")
def _order(_: Subject, stage: Any, texts: list[str], dice: random.Random) -> None:
    docs = view(texts, stage)
    expected = plain(stage, docs)
    order = dice.sample(range(len(texts)), len(texts))
    shuffled = View(docs.batch.take(np.array(order, np.int64)))
    _equal(plain(stage, shuffled), [expected[row] for row in order], f"in the order {order}")
    rows = [row for row in range(len(texts)) if dice.random() < 0.5]
    selected = docs.select(np.array(rows, np.int64))
    _equal(plain(stage, selected), [expected[row] for row in rows], f"`view.select({rows})`")


@_on_batches("the same input has the same outcome, in another process too, and is not written to")
def _repeatable(_: Subject, stage: Any, texts: list[str], __: random.Random) -> None:
    docs = view(texts, stage)
    before = _digest(docs.batch)
    first = plain(stage, docs)
    _equal(plain(stage, docs), first, "a second time")
    _equal(plain(pickle.loads(pickle.dumps(stage)), view(texts, stage)), first, "after pickle")
    _equal(plain(reload(stage), view(texts, stage)), first, "after JSON")
    _equal(_digest(docs.batch), before, "digest of the batch afterwards")


def _digest(batch: pa.RecordBatch) -> str:
    hashed = hashlib.blake2b()
    for column in batch.columns:
        for buffer in column.buffers():
            hashed.update(b"" if buffer is None else memoryview(buffer))
    return hashed.hexdigest()


@_on_batches("neither the clock nor global random numbers decide, and none are used up")
def _pure(_: Subject, stage: Any, texts: list[str], dice: random.Random) -> None:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    first = plain(stage, view(texts, stage))
    unused = random.getstate() == states[0] and str(np.random.get_state()) == str(states[1])  # noqa: NPY002
    _expect(unused, "it draws from `random` or `numpy.random`: make a generator from a parameter")
    offset = dice.randrange(10**6, 10**9)
    try:
        for name, clock in clocks.items():
            setattr(time, name, lambda clock=clock: clock() + offset)
        random.seed(offset)
        np.random.seed(offset)  # noqa: NPY002
        _equal(plain(stage, view(texts, stage)), first, "with another clock and other seeds")
    finally:
        for name, clock in clocks.items():
            setattr(time, name, clock)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


_IO = ("open", "os.", "shutil.", "socket.", "subprocess.", "urllib.")
_watched: dict[int, list[str]] = {}  # thread -> what it did, while it is watched


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if (events := _watched.get(threading.get_ident())) is not None and event.startswith(_IO):
        events.append(f"{event}({', '.join(map(repr, arguments[:1]))})")


@functools.cache
def _watch() -> None:
    sys.addaudithook(_audit)  # for good: Python cannot remove one


@_on_batches("after the first batch it reads and writes nothing but its arguments", cases=3)
def _no_io(_: Subject, stage: Any, texts: list[str], __: random.Random) -> None:
    docs = view(texts, stage)
    plain(stage, docs)  # models are opened, kernels compiled
    _watch()
    events = _watched[threading.get_ident()] = []
    try:
        stage.apply(View(docs.batch))
    finally:
        del _watched[threading.get_ident()]
    _equal(events, [], "input and output")


@_on_batches("the measured value of a dropped document breaks the bound of its rule", varied=True)
def _breaks(_: Subject, stage: Any, texts: list[str], __: random.Random) -> None:
    outcome = stage.apply(view(texts, stage))
    if outcome.values is None:
        return
    for rule, value in zip(rules(stage, outcome, len(texts)), outcome.values, strict=True):
        name = stage.bounds.get(rule, "")
        # `Outcome.bounds` are of single documents; other names bound in ways of their own.
        if name.startswith(("min", "max")) and outcome.bounds is None and not math.isnan(value):
            breaks = stage.fails(rule, np.array([value]))
            _expect(breaks, f"{rule}: {value} does not break {name}={stage.threshold(rule)}")


@_on_batches("spans lie within their text, apart and in order; what is outside of them stays")
def _spans(_: Subject, stage: Any, texts: list[str], __: random.Random) -> None:
    for text, row in zip(texts, plain(stage, view(texts, stage)), strict=True):
        data, remaining, pos = text.encode(), row["text"], 0
        edges = [edge for start, end, _, _ in row["spans"] for edge in (start, end)]
        _equal(edges, sorted(edges), "edges of spans")
        _expect(all(0 <= edge <= len(data) for edge in edges), f"spans outside: {edges}")
        for start, end, _, _ in row["spans"]:
            _expect(start < end, f"the span [{start}, {end}) is empty")
            copied = data[pos:start]
            _expect(copied in remaining, f"{copied!r} is outside of the spans and gone")
            remaining = remaining[remaining.index(copied) + len(copied) :]
            pos = end
        tail = data[pos:]
        _expect(not edges or remaining.endswith(tail), f"{tail!r} is after the spans and gone")


@_on_batches("measuring changes no decision, which follows from measures and bounds", varied=True)
def _measuring(subject: Subject, stage: Any, texts: list[str], _: random.Random) -> None:
    if "measures" not in subject.cls.model_fields:
        return
    quiet, docs = stage.model_copy(update={"measures": False}), view(texts, stage)
    loud = measuring(quiet)
    rows = [
        {name: value for name, value in row.items() if not name.startswith("measure ")}
        for row in plain(loud, docs)
    ]
    _equal(rows, plain(quiet, docs), "with measures: true")
    outcome = loud.apply(docs)
    decided = rules(loud, outcome, len(texts))
    # Some rules are not measured; some documents have bounds of their own.
    if outcome.bounds is None and {*decided} - {None} <= outcome.measures.keys():
        fails = {name: loud.fails(name, values) for name, values in outcome.measures.items()}
        broken = [
            next((name for name, bad in fails.items() if bad[row]), None)
            for row in range(len(texts))
        ]
        _equal(decided, broken, "rules, by measures and bounds")


def _compare(subject: Subject, stage: Any, texts: Iterable[str]) -> None:
    """Hold a stage against its reference, text by text."""
    texts = list(texts)
    decide = subject.oracle(stage)
    if decide is None:
        raise NotApplicableError("it has no reference: `oracle()` returns None")
    stage_text = repr(stage)  # for each text it would be a quarter of the time
    for text, row in zip(texts, plain(stage, view(texts, stage)), strict=True):
        rule, after = decide(text)
        actual = (row["rule"], row["text"].decode() if rule is None else after)
        _equal(actual, (rule, after), f"{stage_text} on {text!r}")


@_promise(StreamingStage, "it equals its reference on its examples")
def _reference_examples(subject: Subject) -> None:
    for stage, example in subject.examples():
        _compare(subject, stage, [example.text])


@_promise(StreamingStage, "it equals its reference on all 1,365 texts of up to five characters")
def _reference_world(subject: Subject) -> None:
    for stage in subject.tied():
        _compare(subject, stage, WORLD)


@_on_batches("it equals its reference on random texts", varied=True, cases=REFERENCE_CASES)
def _reference_random(subject: Subject, stage: Any, texts: list[str], _: random.Random) -> None:
    _compare(subject, stage, texts)


# ---------------------------------------------------------------- promises of sources


@_promise(Source, "declared columns have types, and names of their own")
def _columns(subject: Subject) -> None:
    for name, kind in subject.stage.declared().items():
        _expect(isinstance(kind, pa.DataType), f"{name}: {kind!r} is not a type")
        _expect(name not in {*REQUIRED, "extra"} and "." not in name, f"{name} is taken")


@_promise(Source, "paths are required, and too long documents are rejected under a name")
def _paths(subject: Subject) -> None:
    _expect("paths" in subject.cls.model_json_schema().get("required", ()), "`paths` is optional")
    _expect("too_long" in subject.cls.rules, "`too_long` is not in `rules`")


@_promise(Source, "a missing file is an error that names it; an empty one has no documents")
def _files(subject: Subject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("missing", "empty"):
            path = Path(folder) / f"{name}.{subject.cls.stage_name()}"
            if name == "empty":
                path.touch()
            size = 0 if name == "empty" else 100
            file = InputFile(0, "web", str(path), path.name, size, "0")
            try:
                num_docs = _count(subject.stage, file)
            except (DataError, OSError) as error:
                _expect(path.name in str(error), f"{error}: does not name {path.name}")
                # An empty Parquet file is broken, an empty text file is not.
                _expect(
                    name == "missing" or isinstance(error, DataError), f"an empty file: {error}"
                )
            else:
                _equal((name, num_docs), ("empty", 0), "documents")


def _count(source: Any, file: InputFile) -> int:
    pieces = source.slices(file, 1 << 20) or [Slice(0, file.size_bytes, file.size_bytes)]
    batches = (batch for piece in pieces for batch in source.read(file, piece, 1 << 20))
    return sum(len(batch.texts) for batch in batches)


# ---------------------------------------------------------------- promises of global stages


@_promise(GlobalStage, "passes have names of their own and follow from the parameters")
def _passes(subject: Subject) -> None:
    names = [step.name for step in subject.stage.passes()]
    _expect(names and len(set(names)) == len(names), f"names of passes: {names}")
    _equal([name for name in names if not name.isidentifier()], [], "names that are not words")
    _equal([step.name for step in reload(subject.stage).passes()], names, "after JSON")


@_promise(GlobalStage, "passes are methods that another process can run")
def _methods(subject: Subject) -> None:
    for step in subject.stage.passes():
        for run in (step.run, pickle.loads(pickle.dumps(step.run))):
            owner = run.args[0] if isinstance(run, functools.partial) else run.__self__
            _equal(owner, subject.stage, f"owner of {step.name}")
        _expect(step.units is None or callable(step.units), f"units of {step.name}: {step.units!r}")


@_promise(GlobalStage, "folders it owns are below the run directory, and what it reads is known")
def _owned(subject: Subject) -> None:
    _expect(
        subject.stage.reads in {"documents", "packed", "tokens"}, f"reads {subject.stage.reads!r}"
    )
    owned = [name for step in subject.stage.passes() for name in step.owns]
    _equal([name for name in owned if name.startswith(("/", "."))], [], "folders outside")
