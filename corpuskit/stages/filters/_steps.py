"""Finds, checks and makes the pipeline steps of datatrove that the stage `datatrove` applies."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from corpuskit.closure import closure, is_library
from corpuskit.errors import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

StepClass: TypeAlias = Any
"""A class derived from datatrove's BaseFilter or BaseFormatter; known at run time only."""

PLACES = ("datatrove.pipeline.filters", "datatrove.pipeline.formatters")
"""Where a class is looked for whose name is given without a module."""

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
    "datatrove.pipeline.readers.": "Files are read by what stands under `sources`.",
    "datatrove.pipeline.writers.": "A run writes `documents/` by itself.",
    "datatrove.pipeline.extractors.": "The source `warc` and the stage `html` extract text.",
    "datatrove.pipeline.inference.": "Nothing here runs language models.",
}
"""Module of datatrove -> what to do instead of a step of it that cannot be a stage."""


def _instead(step: StepClass) -> str:
    path = f"{getattr(step, '__module__', '')}."
    return next((f" {hint}" for place, hint in INSTEAD.items() if path.startswith(place)), "")


@functools.cache
def find_step(path: str) -> StepClass:
    """Import the filter or formatter at a class path.

    Raises:
        ValueError: it cannot be imported, or is neither; says which ones there are.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        known = {f"{place}.{one}" for place in PLACES for one in _steps_of(place)}
        near = next((one for one in known if one.endswith(f".{name}")), None)
        hint = f"Did you mean {near!r}?" if near else f"For example {PLACES[0]}.SamplerFilter."
        raise ValueError(f"{path!r} is no class path: give module and class. {hint}")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        near = suggest(module_name, PLACES)
        hint = near if near.startswith("Did") else "It must be importable on every machine."
        raise ValueError(f"{module_name!r} cannot be imported: {error}. {hint}") from None
    found: Any = getattr(module, name, None)
    if found is None:
        known = [one for one in vars(module) if _is_step(getattr(module, one))]
        raise ValueError(f"{module_name} has no {name!r}. {suggest(name, known)}")
    if not _is_step(found):
        raise ValueError(
            f"{path} is no filter or formatter: no class derived from BaseFilter or BaseFormatter."
            f"{_instead(found)}"
        )
    if found.__module__.startswith(_FASTTEXT):
        # datatrove asks for a distribution that overwrites the module of the one corpuskit needs.
        raise ValueError(
            f"{path} needs fasttext-numpy2-wheel instead of fasttext.{_instead(found)}"
        )
    if found.run not in _runs():
        raise ValueError(
            f"{path} has a run() of its own, which decides about streams. Here documents are given "
            "one by one: put what it does into filter(), filter_batch() or format()."
        )
    if inspect.isabstract(found):
        raise ValueError(f"{path} is abstract: give a class derived from it.")
    try:
        found.__new__(found)  # datatrove looks for what the class requires, nothing is opened
    except ImportError as error:
        raise ValueError(str(error)) from None
    return found


def check_params(step: StepClass, params: Mapping[str, Any]) -> None:
    """Check the names of parameters against the constructor; nothing is made.

    Raises:
        ValueError: one is not known, missing, or cannot be given in a file.
    """
    wanted = _parameters(step)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in wanted.values())
    named = [
        name
        for name, one in wanted.items()
        if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY} and name not in OBJECTS
    ]
    for name in params:
        if name in OBJECTS:
            raise ValueError(f"{name} cannot be given: what is dropped goes to the ledger.")
        if name not in named and not takes_all:
            raise ValueError(f"{step.__name__} has no parameter {name!r}. {suggest(name, named)}")
    for name in named:
        if "Callable" in str(wanted[name].annotation) and wanted[name].default is _REQUIRED:
            raise ValueError(
                f"{step.__name__} needs {name}, a function, which no file can give. Derive a class "
                "from BaseFilter and name that."
            )
    for name in named:
        if wanted[name].default is _REQUIRED and name not in params:
            raise ValueError(f"{step.__name__} needs the parameter {name!r}. Set it.")


def takes_seed(step: StepClass) -> bool:
    """Return whether the constructor has a parameter `seed`."""
    return "seed" in _parameters(step)


def make_step(step: StepClass, params: Mapping[str, Any], key: int | None = None) -> Any:
    """Make an instance.

    Args:
        key: of the document that it is made for; its `seed`, if it has one, follows from it.
    """
    given = dict(params)
    wanted = _parameters(step)
    for name, value in given.items():
        if isinstance(value, list) and name in wanted and "tuple" in str(wanted[name].annotation):
            given[name] = tuple(value)  # JSON has none, and `str.endswith` takes no list
    if key is not None and "seed" in wanted:
        text = f"{given.get('seed')}/{key}".encode()
        given["seed"] = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
    return step(**given)


@functools.lru_cache(maxsize=16)
def shared_step(path: str, params: str) -> Any:
    """Return the one instance of this process; `params` is JSON."""
    return make_step(find_step(path), json.loads(params))


def distributions(step: StepClass) -> tuple[str, ...]:
    """Return the distributions that a class comes from and requires."""
    root = step.__module__.partition(".")[0]
    found = {"datatrove"}
    if root != "datatrove":
        found.update(_packages().get(root, ()))
    for one in step.mro():
        for required in getattr(one, "_requires_dependencies", ()):
            found.add(required if isinstance(required, str) else required[1])
    if "language" in _parameters(step):
        found.add("spacy")  # splits words
    return tuple(sorted(found))


def source_files(step: StepClass) -> tuple[str, ...]:
    """Return the module of a class and what it imports of code that is no installed library."""
    spec = importlib.util.find_spec(step.__module__)
    if spec is None or not spec.has_location or spec.origin is None:
        return ()
    file = Path(spec.origin)
    if is_library(file):
        return ()
    return tuple(str(one) for one in closure(file))


def _is_step(found: object) -> bool:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    return isinstance(found, type) and issubclass(found, (BaseFilter, BaseFormatter))


def _runs() -> tuple[Any, ...]:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.base import BaseFormatter

    return BaseFilter.run, BaseFormatter.run


def _steps_of(place: str) -> list[str]:
    module = importlib.import_module(place)
    return [name for name in vars(module) if _is_step(getattr(module, name))]


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    """Return top-level module -> distributions; looking takes half a second."""
    return importlib.metadata.packages_distributions()


@functools.cache
def _parameters(step: StepClass) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(step).parameters
