"""Recipes of published corpora: their steps beside our stages, and the pipeline made of them.

A recipe is a YAML file in `corpuskit/recipes/`. The pipeline is written from its steps, and so is
the table that says which of them are equal, so the two cannot differ.
"""

from __future__ import annotations

import functools
import json
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.parquet as pq
from pydantic import Field

from corpuskit import yamlreader
from corpuskit.engine.config import dump_value, label_of, read_model, read_pipeline
from corpuskit.engine.settings import WebAddress
from corpuskit.errors import ConfigError, UsageError, listing, suggest
from corpuskit.stage import Parameters
from corpuskit.stages.sources._columns import is_textual
from corpuskit.stages.sources._stream import InputStream
from corpuskit.storage import find_files, find_objects, is_remote, open_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.config import Step

FOLDER = Path(__file__).parents[1] / "recipes"
_ORDER = ("equal", "close", "missing", "ours")

HEAD_BYTES = 1 << 24
"""A JSON-lines file is known by its first document, which must be shorter."""
PARAMETERS = {
    "text_column": ("text", "content", "raw_content", "body"),
    "id_column": ("id", "doc_id", "document_id", "blob_id", "uuid"),
    "url_column": ("url", "uri", "link"),
    "date_column": ("date", "timestamp", "crawl_date", "created"),
}
"""Parameter of a source -> names of columns, the usual one first."""


class RecipeStep(Parameters):
    """One published step, in the words of its `source` (a key of `links`), and its stages.

    Attributes:
        match: `equal`: the same decisions; `ours`: nobody published it; else `why` says more.
        stages: as in a pipeline file.
        needs: parameter that only the user can give, as in `--set` -> what to give.
    """

    step: str
    source: str = ""
    match: Literal["equal", "close", "missing", "ours"]
    why: str = ""
    stages: tuple[str | dict[str, Any], ...] = ()
    needs: dict[str, str] = Field({})


class CorpusRecipe(Parameters):
    """A published way to make a corpus.

    Attributes:
        version: month of publication, or the release of the library whose decisions it has.
        links: short name -> address, of code with its commit.
        inputs: source -> what its files hold.
        options: format of input files -> parameters of the source.
    """

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    version: str = Field(pattern=r"^[\w.-]+$")
    title: str
    links: dict[str, WebAddress]
    note: str = ""
    inputs: dict[str, str]
    options: dict[str, dict[str, Any]] = Field({})
    steps: tuple[RecipeStep, ...]

    @property
    def full_name(self) -> str:
        """Name and version, as in `fineweb@2024-04`."""
        return f"{self.name}@{self.version}"

    @property
    def exactness(self) -> str:
        """How many steps match how well, in words."""
        counts = Counter(sorted((step.match for step in self.steps), key=_ORDER.index))
        return ", ".join(f"{count} {match}" for match, count in counts.items())

    @functools.cached_property
    def labelled(self) -> list[tuple[RecipeStep, list[tuple[str, str, dict[str, Any]]]]]:
        """Each step with (label, name, parameters) of its stages; labels are those of plans."""
        counts: dict[str, int] = {}
        steps = []
        for step in self.steps:
            stages = []
            for entry in step.stages:
                [(name, params)] = ({entry: {}} if isinstance(entry, str) else entry).items()
                stages.append((label_of(name, counts, params), name, params))
            steps.append((step, stages))
        return steps


@functools.cache
def recipes() -> tuple[CorpusRecipe, ...]:
    """Return all recipes, sorted by name."""
    return tuple(read_model(path, CorpusRecipe) for path in sorted(FOLDER.glob("*.yaml")))


def find_recipe(name: str) -> CorpusRecipe:
    """Return a recipe by its name, with version or, where there is only one, without."""
    versions = [recipe for recipe in recipes() if name in (recipe.name, recipe.full_name)]
    if len(versions) > 1:
        names = " or ".join(recipe.full_name for recipe in versions)
        raise UsageError(f"{name}: which version? Name {names}.")
    if not versions:
        choices = {recipe.full_name if "@" in name else recipe.name for recipe in recipes()}
        raise UsageError(f"there is no recipe {name!r}. {suggest(name, choices)}")
    return versions[0]


def pipeline_text(
    recipe: CorpusRecipe, sources: Mapping[str, Any], output: str, overrides: Sequence[str] = ()
) -> tuple[str, dict[str, str]]:
    """Return a recipe as a pipeline file, each stage below the step it implements.

    A step that needs something, and of whose stages no parameter is given (by `overrides`, in the
    form `stage.parameter=value`), becomes a comment; parameter -> what to give is returned, too.
    """
    params_of: dict[str, Any] = {label: {} for _, stages in recipe.labelled for label, *_ in stages}
    for text in overrides:
        target, equals, raw = text.partition("=")
        label, dot, parameter = target.partition(".")
        if not (equals and dot and parameter):
            raise UsageError(f"--set {text}: must look like stage.parameter=value.")
        if label not in params_of:
            raise UsageError(f"--set {text}: no stage {label!r}. {suggest(label, params_of)}")
        if parameter in params_of[label]:
            value = params_of[label][parameter]
            raise UsageError(f"--set {text}: another --set makes it {value}. Leave one out.")
        params_of[label][parameter] = yamlreader.load(raw, f"--set {text}")
    lines = [
        *_comment(f"{recipe.full_name}, as `corpuskit init` writes it: {recipe.title}"),
        *_comment(recipe.note),
        *_comment(f"Steps: {recipe.exactness}. Table: corpuskit recipes show {recipe.full_name}"),
        f"name: {recipe.name}",
        f"output: {dump_value(output)}",
        "sources:",
        *(f"  {name}: {dump_value(value)}" for name, value in sources.items()),
        "stages:",
    ]
    missing: dict[str, str] = {}
    for number, (step, stages) in enumerate(recipe.labelled, start=1):
        lines += _comment(f"{number}. {step.step} [{step.match}] {step.why}", "  # ")
        is_left = bool(step.needs) and not any(params_of[label] for label, *_ in stages)
        for parameter, reason in step.needs.items() if is_left else ():
            missing[parameter] = reason
            lines += _comment(f"Left out. It needs {parameter}: {reason}", "  # ")
        for label, name, params in stages:
            entry = stage_words(name, {**params, **params_of[label]})
            lines.append(f"  {'# ' if is_left else ''}- {entry}")
    return "\n".join(lines) + "\n", missing


def stage_words(name: str, params: Mapping[str, Any]) -> str:
    """Return a stage as a pipeline file has it."""
    return f"{name}: {dump_value(dict(params))}" if params else name


def write_recipe(
    recipe: CorpusRecipe, folder: Path, inputs: Mapping[str, list[str]],
    overrides: Sequence[str] = (),
) -> tuple[Path, dict[str, str]]:  # fmt: skip
    """Write the pipeline of a recipe into a folder that is empty or does not exist.

    Of a recipe with one source, its name in `inputs` may be empty or another. Returns the file, and
    what steps are left out for: parameter -> what to give.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is not empty. Name a new folder: nothing is overwritten.")
    slots = list(recipe.inputs)
    if len(slots) > 1 and inputs.keys() != recipe.inputs.keys():
        raise UsageError(f"{recipe.full_name} reads {', '.join(slots)}. Give each of them with "
                         "--input SOURCE=FILES.")  # fmt: skip
    sources = {name or slots[0]: detect_source(files) for name, files in inputs.items()}
    sources = {k: v | recipe.options.get(next(iter(v)), {}) for k, v in sources.items()}
    output = (folder / "run").as_posix()
    text, missing = pipeline_text(recipe, sources, output, overrides)
    fields = {f"{s.label}.{name}" for s in read_steps(text) for name in s.stage.model_fields_set}
    needs = {
        parameter: reason for step, _ in recipe.labelled for parameter, reason in step.needs.items()
    }
    for parameter in needs.keys() - missing.keys() - fields:
        raise UsageError(f"{parameter} is missing: {needs[parameter]}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{recipe.name}.yaml"
    path.write_text(text, "utf-8")
    return path, missing


def read_steps(text: str) -> tuple[Step, ...]:
    """Return the stages of a pipeline that is not in a file yet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(text, "utf-8")
        try:
            return read_pipeline(path).steps
        except ConfigError as error:
            raise UsageError(f"--set: {error.problem} {error.hint}".rstrip()) from None


def _comment(text: str, before: str = "# ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=before, subsequent_indent=before,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


# ---------------------------------------------------------------- what input files are


def detect_source(patterns: list[str]) -> dict[str, Any]:
    """Return a source as a pipeline file has it; the first file of each pattern is looked at.

    Raises:
        UsageError: a pattern matches nothing, files differ in format or columns, or have no text.
    """
    sources = []
    for pattern in patterns:
        matches = find_objects(pattern) if is_remote(pattern) else find_files(pattern)
        if not matches:
            raise UsageError(f"no file matches {pattern!r}. Check the path.")
        sources.append(_describe(matches[0].address))
        if sources[-1] != sources[0]:
            raise UsageError(
                f"{pattern}: is {sources[-1]}, and {patterns[0]} is {sources[0]}. Make two sources "
                "of them."
            )
    kind, params = sources[0]
    return {kind: patterns[0] if len(patterns) == 1 else patterns, **params}


def _describe(path: str) -> tuple[str, dict[str, str]]:
    kind, names = string_columns(path)
    return kind, {} if names is None else _columns(path, names)


def string_columns(path: str) -> tuple[str, list[str] | None]:
    """Return the format of a file and its columns of strings, in order; None where it has none.

    Raises:
        UsageError: its first line is no JSON object.
        DataError, OSError, ArrowException: it cannot be read.
    """
    with open_input(path) as file:
        if file.read(4) == b"PAR1":
            schema = pq.read_schema(file)
            return "parquet", [field.name for field in schema if is_textual(field.type)]
    with InputStream(path) as stream:
        head = stream.read(HEAD_BYTES)
        if head.startswith((b"WARC/", b"filedesc:")):
            return "wet" if b"WARC-Type: conversion" in head else "warc", None
        if not head.lstrip().startswith(b"{"):
            return "text", None
    try:
        members = json.loads(head.partition(b"\n")[0])
    except ValueError:
        raise UsageError(f"{path}: begins with {{, but its first line is no JSON object. Write one "
                         "object a line.") from None  # fmt: skip
    return "jsonl", [key for key, v in members.items() if isinstance(v, str)]


def _columns(path: str, names: list[str]) -> dict[str, str]:
    """Return the parameters that name columns; `text_column` only where it is not `text`."""
    columns = {
        parameter: next((name for name in candidates if name in names), "")
        for parameter, candidates in PARAMETERS.items()
    }
    if not columns["text_column"]:
        raise UsageError(f"{path}: no column is called {' or '.join(PARAMETERS['text_column'])}; "
                         f"columns of strings: {listing(names, 20) or 'none'}. Rename the one with "
                         "the text, or write the pipeline by hand.")  # fmt: skip
    return {k: v for k, v in columns.items() if v and (k, v) != ("text_column", "text")}
