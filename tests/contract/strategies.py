"""Texts, parameters and batches for tests that hold for any stage."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.engine import registry
from corpuskit.errors import UsageError
from corpuskit.formats.batch import ORIGIN, make_keys
from corpuskit.stage import Outcome, Source, Stage, StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Where code that treats text as bytes, or as ASCII, or line by line, goes wrong.
PIECES = (
    *("\n", "\n\n", "\r", "\r\n", "\t", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0"),
    *("\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff"),
    *(" ", "  ", ".", "...", "....", "\u2026", "\u2022", "-", "- ", "#", "?", "!", ":", "::", ","),
    *('"', "'", "\u201d", "(", ")", "{", "[1]", "[citation needed]", "@", "\u3002", "\U00011a42"),
    *("the", "The", "and", "of", "with", "to", "a", "b", "a b c", "word", "Word.", "don't"),
    *("\xe9", "e\u0301", "\xdf", "\u0130", "\u212a", "\u01c5", "\u0660", "\uff11", "\xb2", "12"),
    *(
        "\u65e5\u672c\u8a9e",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
        "\U0001d4b3",
        "\U0001f469\u200d",
    ),
    *("javascript", "lorem ipsum", "x" * 31, "\xe9" * 20, "terms of use", "\0", "\x7f", "\ufffd"),
    *("jo@x.org", "81.2.69.142", "10.0.0.99", "2a00:1450:4001:81b::200e", "%20", "\U0010ffff"),
)


def texts(max_size: int = 8) -> st.SearchStrategy[list[str]]:
    """Lists of texts: traps strung together, small ones full of ties, and anything at all."""
    anything = st.characters(codec="utf-8")
    return st.lists(
        st.one_of(
            st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
            st.text(alphabet="a.\n ", max_size=14),
            st.text(alphabet=anything, max_size=60),
        ),
        max_size=max_size,
    )


WORLD = ["".join(chars) for num in range(6) for chars in itertools.product("a. \n", repeat=num)]
"""All 1,365 texts of up to five characters: every tie and every empty line there can be."""

_FRACTIONS = sorted({part / whole for whole in range(1, 7) for part in range(whole + 1)})


def make(cls: type[Stage]) -> Stage:
    """Return the stage with its defaults, or with the first parameters known to do."""
    for params in ({}, *(example.params for example in cls.examples), *_known(cls)):
        stage = _try(cls, params)
        if stage is None:
            continue
        for path in stage.files():
            if not Path(path).exists():
                pytest.skip(f"{cls.stage_name()} needs the file {path}")
        return stage
    raise AssertionError(f"{cls.stage_name()}: needs parameters, and no example gives them")


def _known(cls: type[Stage]) -> Iterator[dict[str, Any]]:
    """Yield parameters that no example can give, since they name files."""
    if issubclass(cls, Source):
        yield {"paths": ("nowhere/*",)}
    if "tokenizer" in cls.model_fields:
        yield {"tokenizer": tiny_tokenizer()}


@functools.cache
def tiny_tokenizer() -> str:
    """Write a byte-level tokenizer without merges, return its path."""
    import tokenizers

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, "<s>", "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    path = Path(folder) / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def loose(cls: type[Stage]) -> Stage:
    """Return the stage with all rules off that can be: bounds null, or where they never fail."""
    stage = make(cls)
    off: dict[str, Any] = {}
    for name, schema in _numeric(cls).items():
        if schema["nullable"]:
            off[name] = None
        elif name.startswith(("min_", "max_")):
            off[name] = schema["low"] if name.startswith("min_") else schema["high"]
    return _try(cls, {**_params(stage), **off}) or stage


def tied(cls: type[Stage], random_ones: int = 12) -> Iterator[Stage]:
    """Yield stages whose parameters tie with what small texts measure.

    One parameter at a time with all others off, then some with several at once.
    """
    base, numeric = loose(cls), _numeric(cls)
    seen = {repr(base)}
    choices = {name: _ties(schema) for name, schema in numeric.items()}
    changes: list[dict[str, Any]] = [
        {name: value} for name, values in choices.items() for value in values
    ]
    dice = random.Random(0)
    changes += [
        {name: dice.choice([*values, None]) for name, values in choices.items()}
        for _ in range(random_ones)
    ]
    yield base
    for change in changes:
        usable = {k: v for k, v in change.items() if v is not None}
        stage = _try(cls, {**_params(base), **usable})
        if stage is not None and repr(stage) not in seen:
            seen.add(repr(stage))
            yield stage


def stages(cls: type[Stage]) -> st.SearchStrategy[Stage]:
    """Draw stages whose parameters lie within their declared bounds.

    Half of them have all other rules off: by default the first rules catch all small texts.
    """
    base = make(cls)
    draws: dict[str, st.SearchStrategy[Any]] = {}
    for name, schema in _properties(cls).items():
        if name in _numeric(cls):
            known = _numeric(cls)[name]
            values = st.sampled_from(_ties(known))
            draws[name] = st.none() | values if known["nullable"] else values
        elif schema.get("type") == "boolean":
            draws[name] = st.booleans()
        elif "enum" in schema:
            draws[name] = st.sampled_from(schema["enum"])
    if not draws:
        return st.just(base)
    start = st.sampled_from([_params(base), _params(loose(cls))])
    built = st.tuples(start, st.fixed_dictionaries({}, optional=draws)).map(
        lambda pair: _try(cls, pair[0] | pair[1])
    )
    return st.just(base) | built.filter(_works)


def _works(stage: Stage | None) -> bool:
    """Return whether the stage exists, and does not refuse its parameters when it meets a text."""
    if isinstance(stage, StreamingStage):
        try:
            stage.apply(view(["a text"], stage))
        except UsageError:  # an engine that is not installed, a token the file does not have
            return False
    return stage is not None


def _try(cls: type[Stage], params: dict[str, Any]) -> Stage | None:
    """Return the stage, None if its own checks refuse the combination."""
    try:
        return cls(**params)
    except ValidationError:
        return None


def _params(stage: Stage) -> dict[str, Any]:
    return {name: getattr(stage, name) for name in type(stage).model_fields}


def _properties(cls: type[Stage]) -> dict[str, dict[str, Any]]:
    schema = cls.model_json_schema()
    assert isinstance(schema.get("properties", {}), dict)
    return schema.get("properties", {})


def _numeric(cls: type[Stage]) -> dict[str, dict[str, Any]]:
    """Return the numbers among the parameters: type, whether null is allowed, lowest, highest."""
    found = {}
    for name, schema in _properties(cls).items():
        options = schema.get("anyOf", [schema])
        numbers = [o for o in options if o.get("type") in {"integer", "number"}]
        if not numbers:
            continue
        kind = numbers[0]
        found[name] = {
            "type": kind["type"],
            "nullable": any(option.get("type") == "null" for option in options),
            "low": kind.get("minimum", kind.get("exclusiveMinimum", 0)),
            "high": kind.get("maximum", kind.get("exclusiveMaximum", 10**6)),
            "open_low": "exclusiveMinimum" in kind,
            "open_high": "exclusiveMaximum" in kind,
        }
    return found


def _ties(schema: dict[str, Any]) -> list[float]:
    """Return small values and simple fractions within the bounds of a parameter."""
    low, high = schema["low"], schema["high"]
    if schema["type"] == "integer":
        first = int(low) + schema["open_low"]
        values: list[float] = [*range(first, first + 5), first + 9]
    else:
        values = [low + value for value in _FRACTIONS]
        values += [1.5, 2.0, 3.0]
    inside = [
        value
        for value in values
        if low <= value <= high
        and not (schema["open_low"] and value == low)
        and not (schema["open_high"] and value == high)
    ]
    return inside or [low]


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
        "id": pa.array([f"web/x.jsonl#{at}" for at in positions], pa.string()),
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
        urls = [_url(text) for text in texts]
        rows = [{"file": "x.jsonl", "position": 0, "url": url, "date": None} for url in urls]
        return pa.array(rows, ORIGIN)
    if name == "tokens":
        return pa.array([[ord(char) for char in text] for text in texts], pa.list_(pa.uint32()))
    stage, _, field = name.partition(".")
    kind = pa.string()
    if field and stage in registry.names():
        kind = make(registry.load(stage)).adds().get(field, pa.float64())  # type: ignore[type-abstract]
    elif field:
        kind = pa.float64()
    if pa.types.is_floating(kind):
        return pa.array([len(text) % 8 / 7 for text in texts], kind)
    if pa.types.is_integer(kind):
        return pa.array([len(text) % 8 for text in texts], kind)
    if pa.types.is_boolean(kind):
        return pa.array([len(text) % 2 == 0 for text in texts], kind)
    return pa.array([f"https://example.org/{len(text) % 8}" for text in texts], pa.string()).cast(
        kind
    )


def _url(text: str) -> str | None:
    """Return where a document comes from: a text that is a URL stands for a page there."""
    if text == "no url":
        return None
    return text if "//" in text else f"https://example.org/{len(text) % 8}"


def rules(stage: StreamingStage, outcome: Outcome, num_docs: int) -> list[str | None]:
    """Return what dropped each document."""
    codes = outcome.codes if outcome.codes is not None else np.zeros(num_docs, np.uint8)
    assert len(codes) == num_docs
    return [stage.rules[code - 1] if code else None for code in codes.tolist()]


def texts_after(given: View, outcome: Outcome) -> list[bytes]:
    """Return the texts that go on, those of dropped documents included."""
    text = outcome.text if outcome.text is not None else given.text
    assert len(text) == given.num_docs
    return [text.row(row) for row in range(len(text))]


def plain(stage: StreamingStage, given: View) -> list[dict[str, Any]]:
    """Return all that a stage found, one dictionary per document, comparable with ==."""
    outcome = stage.apply(given)
    num = given.num_docs
    found: list[dict[str, Any]] = [
        {"rule": rule, "text": text}
        for rule, text in zip(rules(stage, outcome, num), texts_after(given, outcome), strict=True)
    ]
    columns = {
        **{f"column {name}": values.to_pylist() for name, values in outcome.columns.items()},
        **{f"measure {name}": values.tolist() for name, values in outcome.measures.items()},
        "value": [None] * num if outcome.values is None else outcome.values.tolist(),
    }
    for name, values in columns.items():
        assert len(values) == num, name
        for row, value in zip(found, values, strict=True):
            row[name] = "nan" if value != value else value
    for row in found:
        row["spans"] = []
    if outcome.spans is not None:
        spans = outcome.spans
        quads = (spans.rows, spans.starts, spans.ends, spans.codes)
        for at, start, end, code in zip(*(part.tolist() for part in quads), strict=True):
            found[at]["spans"].append((start, end, stage.rules[code - 1], spans.action))
    return found


def reload(stage: Stage) -> Stage:
    """Return the stage as another process reads it from a plan."""
    return type(stage).model_validate(json.loads(stage.model_dump_json()))


def of_kind(kind: type[Stage]) -> list[Any]:
    """Return all stages of a kind as test parameters; the name of the stage is the test's id."""
    loaded = [(name, registry.load(name)) for name in registry.names()]
    return [pytest.param(cls, id=name) for name, cls in loaded if issubclass(cls, kind)]
