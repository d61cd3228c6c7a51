"""Filters and formatters of datatrove as a stage."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator

from corpuskit.closure import closure, is_library
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import utf8, without_surrogates
from corpuskit.stage import Example, Known, Outcome, Spans, StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from datatrove.data import Document


_FILTERS = "datatrove.pipeline.filters"
_REGEX = {"step": f"{_FILTERS}.RegexFilter", "params": {"regex_exp": r"a\.a|b"}}
_PII = {"step": "datatrove.pipeline.formatters.PIIFormatter"}
_DROPPED, _ERROR, _REWRITTEN = 1, 2, 3
_REASON_CHARS = 300
_DEEPEST = 100

_NAMES = {"language.label": "language", "language.score": "language_score"}
"""Our columns -> what datatrove calls the same."""

_FAILURES = (ImportError, OSError, MemoryError)
"""Failures that no document causes: a missing model or package, no network, no memory."""


class Datatrove(StreamingStage):
    r"""Apply any filter or formatter of datatrove, or one derived from its base classes.

    Use it for filters that have no stage here, and for your own classes. It is as fast as
    datatrove, some hundred times slower than our kernels. A filter's reason is the rule in the
    ledger (`dropped` without one). A changed text has one span, `rewritten`, from the first changed
    character to the last. Steps see the input's other columns as metadata, with `url`, `date`,
    `file_path`, `source`, the metadata of earlier `datatrove` stages, and the columns of `language`
    under datatrove's names; what they change becomes the column `datatrove.metadata`, a JSON
    object.

    A document on which a step raises an exception is dropped, with a rule such as
    `error ZeroDivisionError: division by zero`; so is one with a meaningless result (a number as
    text, metadata that contain themselves). NaN in metadata becomes null. Missing packages and
    files, a lost network, lack of memory and exceptions in the constructor fail the task instead. A
    step with a `run()` of its own is refused.

    There is one step per process, so models open once. The decisions of a step that remembers
    earlier documents depend on what else its worker has read, and so on the number of workers. With
    `fresh` each document gets a new step, with a `seed` (if it has that parameter) derived from the
    given one and the document's key.

    Source: datatrove 0.10.1, pipeline/filters/base_filter.py and pipeline/formatters/base.py. There
    an exception ends the task, and SamplerFilter and PIIFormatter carry their state from document
    to document, here only with `fresh: false`.
    """

    rules: ClassVar[tuple[str, ...]] = ("dropped", "error", "rewritten")
    text_speed: ClassVar[float] = 2e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example("kept", None, _REGEX),
        Example("a.a", "dropped", _REGEX),
        Example("...", "dropped", {"step": f"{_FILTERS}.FineWebQualityFilter",
                                   "params": {"stop_chars": ["!"]}}),
        Example("Write to jo@x.org.", "error", {**_PII, "params": {"email_replacement": []}}),
        Example("Write to jo@x.org.", "rewritten", _PII, "Write to email@example.com."),
    )  # fmt: skip

    step: str = Field(min_length=1)
    """Class path, as in `datatrove.pipeline.filters.SamplerFilter`; imported, so trust it."""
    params: dict[str, Any] = Field(default={}, validate_default=True)
    """Parameters of its constructor, as in {rate: 0.5, seed: 1}."""
    fresh: bool | None = None
    """Make a new step for each document; null does so for SamplerFilter and PIIFormatter."""

    @field_validator("step")
    @classmethod
    def _check_step(cls, value: str) -> str:
        find_step(value)
        return value

    @field_validator("params")
    @classmethod
    def _check_params(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "step" in info.data:
            check_params(find_step(info.data["step"]), value)
        return value

    def check(self, known: Known) -> None:
        """Make a step, if it is one of datatrove's, whose constructors open nothing."""
        del known
        step = find_step(self.step)
        if not step.__module__.startswith("datatrove."):
            return
        try:
            self._shared()
        except OSError:
            return  # what it fetches may be available when it runs
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"params: {step.__name__} cannot be made with them: {reason}"
            ) from None

    def libraries(self) -> tuple[str, ...]:
        return distributions(find_step(self.step))

    def files(self) -> tuple[str, ...]:
        """Return the sources of a class that is not installed, and files among the params."""
        strings = (value for value in self.params.values() if isinstance(value, str))
        return (
            *source_files(find_step(self.step)),
            *(path for path in strings if os.path.isfile(path)),
        )

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"metadata": pa.string()}

    def apply(self, view: View) -> Outcome:
        documents = list(_documents(view))
        originals = [(document.text, dict(document.metadata)) for document in documents]
        verdicts = [
            _verdict(document, result, text, metadata)
            for (document, result), (text, metadata) in zip(
                self._results(view, documents), originals, strict=True
            )
        ]
        codes = np.array([verdict.code for verdict in verdicts], np.uint8)
        texts = [verdict.text for verdict in verdicts]
        columns = {"metadata": pa.array([verdict.metadata for verdict in verdicts], pa.string())}
        reasons = pa.array([verdict.reason for verdict in verdicts], pa.string())
        if all(new_text == text for new_text, (text, _) in zip(texts, originals, strict=True)):
            return Outcome(codes=codes, reasons=reasons, columns=columns)
        edited = utf8(pa.array(texts, pa.large_string()))
        spans = _spans([text for text, _ in originals], texts)
        return Outcome(codes=codes, reasons=reasons, columns=columns, text=edited, spans=spans)

    def _results(self, view: View, documents: list[Document]) -> Iterator[tuple[Document, Any]]:
        """Yield each document with the result of the step, or the exception it raised.

        Documents are given in the batches that the step asks for. If one fails, its documents are
        made again and passed one by one.
        """
        size = 1 if self._is_fresh else max(getattr(self._shared(), "batch_size", 1), 1)
        keys = view.keys.tolist()
        for begin in range(0, len(documents), size):
            batch = documents[begin : begin + size]
            try:
                results = self._run_step(keys[begin], batch)
            except _FAILURES:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a step is anybody's code
                if size == 1:
                    results = [error]
                else:
                    rows = np.arange(begin, begin + len(batch))
                    batch[:] = _documents(view.select(rows))
                    documents[begin : begin + size] = batch
                    results = [self._alone(document) for document in batch]
            yield from zip(batch, results, strict=True)

    def _alone(self, document: Document) -> Any:
        try:
            return self._run_step(None, [document])[0]
        except _FAILURES:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a step is anybody's code
            return error

    def _run_step(self, key: int | None, documents: list[Document]) -> list[Any]:
        """Return the results of the step: those of a filter, or whether it could format."""
        step = self._shared()
        if self._is_fresh:
            step = make_step(find_step(self.step), self.params, key)
        if hasattr(step, "filter_batch"):
            results = list(step.filter_batch(documents))
            if len(results) != len(documents):
                raise ValueError(f"{len(results)} results for {len(documents)} documents")
            return results
        for document in documents:
            document.text = step.format(document.text)
        return [True] * len(documents)

    def _shared(self) -> Any:
        return shared_step(self.step, json.dumps(self.params, sort_keys=True))

    @property
    def _is_fresh(self) -> bool:
        name = self.step.rpartition(".")[2]
        is_known = self.step.startswith("datatrove.") and name in STATEFUL
        return is_known if self.fresh is None else self.fresh


def _documents(view: View) -> Iterator[Document]:
    """Yield the documents of a batch as datatrove's readers would."""
    from datatrove.data import Document

    names = [name for name in view.batch.schema.names if name not in {"key", "id", "text"}]
    columns = {name: view.column(name).to_pylist() for name in names}
    texts, ids = (view.column(name).to_pylist() for name in ("text", "id"))
    for row, (text, identity) in enumerate(zip(texts, ids, strict=True)):
        metadata: dict[str, Any] = {}
        extra = json.loads(columns["extra"][row] or "{}") if "extra" in columns else {}
        nested = extra.pop("metadata", None)
        metadata |= (nested if isinstance(nested, dict) else {}) | extra
        origin = (columns["origin"][row] if "origin" in columns else None) or {}
        fields = {"url": origin.get("url"), "date": origin.get("date")}
        fields["file_path"] = origin.get("file")
        for name, values in columns.items():
            if name in {"extra", "origin"}:
                continue
            if name.startswith("datatrove") and name.endswith(".metadata"):
                metadata |= json.loads(values[row] or "{}")
            else:
                fields[_NAMES.get(name, name)] = values[row]
        metadata |= {name: value for name, value in fields.items() if value is not None}
        yield Document(text=text, id=identity, metadata=metadata)


class _Verdict(NamedTuple):
    """The outcome of a document."""

    code: int
    reason: str | None
    text: str
    metadata: str | None


def _verdict(document: Document, result: Any, text: str, metadata: Mapping[str, Any]) -> _Verdict:
    """Return the decision of a step on a document: yes or no, no and why, or an exception.

    Args:
        document: as the step left it.
        result: what it returned.
        text: that of the document before the step.
        metadata: of the document before the step.
    """
    if isinstance(result, BaseException):
        return _Verdict(_ERROR, _described(result), text, None)
    try:
        if not isinstance(document.text, str):
            raise TypeError(f"the text became {type(document.text).__name__}")
        if isinstance(result, tuple) and len(result) != 2:
            raise ValueError(f"a result of {len(result)} values, not of whether and why")
        passes, reason = result if isinstance(result, tuple) else (result, None)
        if passes:
            return _Verdict(
                0, None, without_surrogates(document.text), _added(metadata, document.metadata)
            )
        explanation = without_surrogates(str(reason))[:_REASON_CHARS] if reason else None
        return _Verdict(_DROPPED, explanation, text, None)
    except Exception as error:  # noqa: BLE001 - what a step leaves may hold anybody's code
        return _Verdict(_ERROR, _described(error), text, None)


def _described(error: BaseException) -> str:
    name = f"error {type(error).__name__}"
    try:
        text = re.sub(r"0x[0-9a-f]+", "0x", str(error))  # addresses differ from run to run
    except Exception:  # noqa: BLE001 - an exception is anybody's code, too
        text = ""
    return without_surrogates(f"{name}: {text}" if text else name)[:_REASON_CHARS]


def _added(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return what a step added to the metadata or changed there, as JSON.

    Raises:
        TypeError: it is no longer a mapping, or JSON cannot hold a key.
        ValueError: it is nested too deep, or holds itself.
    """
    if not isinstance(new, dict):
        raise TypeError(f"the metadata became {type(new).__name__}")
    changes = {k: v for k, v in new.items() if k not in old or not _is_equal(old[k], v)}
    if not changes:
        return None
    return json.dumps(_plain(changes), sort_keys=True, ensure_ascii=False, allow_nan=False)


def _is_equal(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and bool(left == right))


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it: NaN and infinity as null, what it does not know as text."""
    if depth > _DEEPEST:
        raise ValueError(f"the metadata is nested more than {_DEEPEST} deep, or holds itself")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return without_surrogates(str(value))


def _plain_key(key: Any) -> str:
    if isinstance(key, str):
        return without_surrogates(key)
    if isinstance(key, bool | int | float | None):
        return json.dumps(key)
    raise TypeError(f"the metadata has a key that is a {type(key).__name__}")


def _spans(old_texts: list[str], new_texts: list[str]) -> Spans:
    """Return one span for each changed text, from its first changed character to the last."""
    rows = [
        (row, *_changed_span(old, new))
        for row, (old, new) in enumerate(zip(old_texts, new_texts, strict=True))
        if old != new and old
    ]
    table = np.array(rows, np.int64).reshape(-1, 3)
    codes = np.full(len(table), _REWRITTEN, np.uint8)
    return Spans(table[:, 0], table[:, 1], table[:, 2], codes, "replace")


def _changed_span(old: str, new: str) -> tuple[int, int]:
    """Return the bytes of `old` outside of which both texts agree; at least one character.

    For an insertion, it is the character before it, or the first one.
    """
    begin = _common_prefix(old, new)
    end = len(old) - _common_prefix(old[begin:][::-1], new[begin:][::-1])
    if begin == end:
        begin, end = (begin - 1, end) if begin else (0, 1)
    return len(old[:begin].encode()), len(old[:end].encode())


def _common_prefix(left: str, right: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# ----------------------------------------------------------------------
# Look up, check and make steps of datatrove.

StepClass: TypeAlias = Any
"""A class derived from datatrove's BaseFilter or BaseFormatter; known at run time only."""

MODULES = ("datatrove.pipeline.filters", "datatrove.pipeline.formatters")
"""Modules of classes that are named without a module."""

STATEFUL = ("SamplerFilter", "PIIFormatter")
"""Classes of datatrove whose instances remember earlier documents: a random state, a turn."""

OBJECTS = ("exclusion_writer",)
"""Parameters that no pipeline file can give."""

_FASTTEXT = tuple(f"datatrove.pipeline.filters.{name}_filter" for name in ("language", "fasttext"))

_REQUIRED = inspect.Parameter.empty

INSTEAD = {
    "datatrove.pipeline.filters.language_filter.": "The stage `language` does what it does.",
    "datatrove.pipeline.filters.fasttext_filter.": "The stage `quality` does what it does.",
    "datatrove.pipeline.dedup.": "It has to see all documents: take exact_dedup, minhash_dedup, "
    "substring_dedup or line_dedup.",
    "datatrove.pipeline.decont.": "The stage `decontaminate` indexes benchmarks by itself.",
    "datatrove.pipeline.tokens.": "The stages `tokenize` and `pack` write tokens; `corpuskit "
    "status` and the report count them.",
    "datatrove.pipeline.stats.": "The report has the distributions of a run.",
    "datatrove.pipeline.readers.": "Files are read by what is under `sources`.",
    "datatrove.pipeline.writers.": "A run writes `documents/` by itself.",
    "datatrove.pipeline.extractors.": "The source `warc` and the stage `html` extract text.",
    "datatrove.pipeline.inference.": "Nothing here runs language models.",
}
"""Module of datatrove whose steps cannot be stages -> what to do instead."""


def _instead(step: StepClass) -> str:
    path = f"{getattr(step, '__module__', '')}."
    return next((f" {hint}" for module, hint in INSTEAD.items() if path.startswith(module)), "")


@functools.cache
def find_step(path: str) -> StepClass:
    """Import the filter or formatter at a class path.

    Raises:
        ValueError: it cannot be imported, or is neither; says which ones there are.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        names = {f"{module}.{item}" for module in MODULES for item in _steps_of(module)}
        best = next((item for item in names if item.endswith(f".{name}")), None)
        hint = f"Did you mean {best!r}?" if best else f"For example {MODULES[0]}.SamplerFilter."
        raise ValueError(f"{path!r} is no class path: give module and class. {hint}")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        best = suggest(module_name, MODULES)
        hint = best if best.startswith("Did") else "It must be importable on every machine."
        raise ValueError(f"{module_name!r} cannot be imported: {error}. {hint}") from None
    step: Any = getattr(module, name, None)
    if step is None:
        names = [item for item in vars(module) if _is_step(getattr(module, item))]
        raise ValueError(f"{module_name} has no {name!r}. {suggest(name, names)}")
    if not _is_step(step):
        raise ValueError(
            f"{path} is no filter or formatter: no class derived from BaseFilter or BaseFormatter."
            f"{_instead(step)}"
        )
    if step.__module__.startswith(_FASTTEXT):
        # datatrove asks for a distribution that overwrites the module of the one corpuskit needs.
        raise ValueError(f"{path} needs fasttext-numpy2-wheel instead of fasttext.{_instead(step)}")
    if step.run not in _runs():
        raise ValueError(
            f"{path} has a run() of its own, which decides about streams. Here documents are given "
            "one by one: put what it does into filter(), filter_batch() or format()."
        )
    if inspect.isabstract(step):
        raise ValueError(f"{path} is abstract: give a class derived from it.")
    try:
        step.__new__(step)  # datatrove checks the requirements of the class, and opens nothing
    except ImportError as error:
        raise ValueError(str(error)) from None
    return step


def check_params(step: StepClass, params: Mapping[str, Any]) -> None:
    """Check the names of parameters against the constructor; nothing is made.

    Raises:
        ValueError: one is unknown, missing, or cannot be given in a file.
    """
    parameters = _parameters(step)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = [
        name
        for name, p in parameters.items()
        if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY} and name not in OBJECTS
    ]
    for name in params:
        if name in OBJECTS:
            raise ValueError(f"{name} cannot be given: what is dropped goes to the ledger.")
        if name not in names and not takes_all:
            raise ValueError(f"{step.__name__} has no parameter {name!r}. {suggest(name, names)}")
    for name in names:
        if "Callable" in str(parameters[name].annotation) and parameters[name].default is _REQUIRED:
            raise ValueError(
                f"{step.__name__} needs {name}, a function, which no file can give. Derive a class "
                "from BaseFilter and name that."
            )
    for name in names:
        if parameters[name].default is _REQUIRED and name not in params:
            raise ValueError(f"{step.__name__} needs the parameter {name!r}. Set it.")


def make_step(step: StepClass, params: Mapping[str, Any], key: int | None = None) -> Any:
    """Make an instance.

    Args:
        key: of the document that it is made for; its `seed`, if it has one, follows from it.
    """
    arguments = dict(params)
    fields = _parameters(step)
    for name, value in arguments.items():
        if isinstance(value, list) and name in fields and "tuple" in str(fields[name].annotation):
            arguments[name] = tuple(value)  # JSON has none, and `str.endswith` takes no list
    if key is not None and "seed" in fields:
        text = f"{arguments.get('seed')}/{key}".encode()
        arguments["seed"] = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
    return step(**arguments)


@functools.lru_cache(maxsize=16)
def shared_step(path: str, params: str) -> Any:
    """Return the one instance of this process; `params` is JSON."""
    return make_step(find_step(path), json.loads(params))


def distributions(step: StepClass) -> tuple[str, ...]:
    """Return the distributions that a class comes from and requires."""
    root = step.__module__.partition(".")[0]
    names = {"datatrove"}
    if root != "datatrove":
        names.update(_packages().get(root, ()))
    for base in step.mro():
        for requirement in getattr(base, "_requires_dependencies", ()):
            names.add(requirement if isinstance(requirement, str) else requirement[1])
    if "language" in _parameters(step):
        names.add("spacy")  # splits words
    return tuple(sorted(names))


def source_files(step: StepClass) -> tuple[str, ...]:
    """Return the module of a class and what it imports of code that is no installed library."""
    spec = importlib.util.find_spec(step.__module__)
    if spec is None or not spec.has_location or spec.origin is None:
        return ()
    file = Path(spec.origin)
    if is_library(file):
        return ()
    return tuple(str(path) for path in closure(file))


def _is_step(value: object) -> bool:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    return isinstance(value, type) and issubclass(value, (BaseFilter, BaseFormatter))


def _runs() -> tuple[Any, ...]:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    return BaseFilter.run, BaseFormatter.run


def _steps_of(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return [name for name in vars(module) if _is_step(getattr(module, name))]


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    """Return top-level module -> distributions; looking takes half a second."""
    return importlib.metadata.packages_distributions()


@functools.cache
def _parameters(step: StepClass) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(step).parameters
