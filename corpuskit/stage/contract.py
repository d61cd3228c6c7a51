"""What a stage is: frozen parameters, a docstring, and one method over Arrow buffers.

Source          reads input files as batches of documents
StreamingStage  sees one batch at a time: annotates, filters, rewrites
CellStage       sees the documents of one cell, in order, and writes rows of another schema
GlobalStage     needs to see all documents: a tuple of passes, each a phase of the plan

One file in `stages/<kind>/` defines one stage; the file stem is its name in YAML. Stages are pure:
no clock, no global random state, no input or output but what their arguments give (sources read
their files). Models are opened on first use, once per process, never in construction.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler

from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import POSITION_BITS, make_keys
from corpuskit.paths import PathText
from corpuskit.stage.passes import Cost, Pass, UnitContext, Volume
from corpuskit.stage.view import Example, Outcome, View

ORIGINS = ("url", "date")
"""Fields of `origin` that a source may lack."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from corpuskit.kernels.arrays import Bools, Float64s, Int64s
    from corpuskit.storage import FoundFile


class Parameters(BaseModel):
    """Frozen values that a YAML file sets; the string under a field describes it.

    Pydantic would read these strings when the class is defined (`use_attribute_docstrings`), at 5
    to 10 CPU milliseconds each; here they are read when a schema is needed. Validators, too, are
    built on first use: most models are validated as a part of another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for base in cls.__mro__:
            for name, text in _descriptions(base).items() if issubclass(base, Parameters) else ():
                if name in properties:
                    properties[name].setdefault("description", text)
        return schema


@dataclasses.dataclass(frozen=True)
class Known:
    """What a plan knows of the documents that a stage will see.

    Attributes:
        sources: names of the sources.
        apart: sources that the stage does not apply to.
        origins: what `origin` can hold of documents that the stage applies to: `url`, `date`.
        columns: column -> type.
        values: column -> all its possible values, if known: of `source`, and the labels of a
            language model.
    """

    sources: tuple[str, ...] = ()
    columns: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)
    values: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    apart: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset(ORIGINS)

    def check_source(self, parameter: str, name: str) -> None:
        """Raise UsageError if the stage sees no source of this name."""
        visible = [source for source in self.sources if source not in self.apart]
        if name in self.apart:
            raise UsageError(
                f"{parameter}: the stage does not apply to the source {name!r}. Add it to `sources`"
                f" of the stage, or name one of {', '.join(visible)}."
            )
        if name not in visible:
            hint = suggest(name, visible)
            raise UsageError(f"{parameter}: there is no source {name!r}. {hint}")


class Stage(Parameters, ABC):
    """Base of all stages; the fields of a subclass are its parameters."""

    rules: ClassVar[tuple[str, ...]] = ()
    """Named reasons to drop, cut or replace."""
    bounds: ClassVar[Mapping[str, str]] = {}
    """Rule -> the parameter that is its threshold."""
    examples: ClassVar[tuple[Example, ...]] = ()
    version: ClassVar[int] = 1
    """Increase it when results change for a reason outside the source code (a table, a library)."""
    text_speed: ClassVar[float] = 50e6
    """Bytes of text per CPU second, measured; `cost` estimates from it."""

    @classmethod
    def stage_name(cls) -> str:
        """Return the name in YAML: the stem of the defining file."""
        return cls.__module__.rpartition(".")[2]

    def threshold(self, rule: str) -> float:
        """Return the threshold that `rule` compares with, NaN if it has none."""
        name = self.bounds.get(rule)
        value = None if name is None else getattr(self, name)
        return float("nan") if value is None else float(value)

    def fails(self, rule: str, values: Float64s) -> Bools:
        """Return which measured values break a rule; NaN breaks none.

        A value breaks a rule below a parameter called `min_*` and above any other. A rule that is
        off is never broken, one without a parameter is broken by more than 0. `corpuskit tune`
        calls this again with other thresholds, so a stage with `measures` must drop accordingly.
        """
        if rule not in self.bounds:
            return values > 0
        limit = self.threshold(rule)
        return values < limit if self.bounds[rule].startswith("min") else values > limit

    def files(self) -> tuple[str, ...]:
        """Return files that affect results (models, word lists); fingerprinted by content."""
        return ()

    def libraries(self) -> tuple[str, ...]:
        """Return distributions whose version affects results; it is fingerprinted."""
        return ()

    def needs(self) -> tuple[str, ...]:
        """Return the columns read, beyond the required ones."""
        return ()

    def origins(self) -> tuple[str, ...]:
        """Return the optional fields of `origin` that are read: `url`, `date`."""
        return ()

    def adds(self) -> Mapping[str, pa.DataType]:
        """Return field -> type of the columns appended; they are called `<stage>.<field>`."""
        return {}

    def check(self, known: Known) -> None:
        """Check what depends on more than the parameters; called once, when the plan is made.

        Refuse whatever would fail a task later and can be known now: files of a wrong kind, names
        that a model or a list does not have, columns of a wrong type, missing libraries. A message
        that begins with the name of a parameter and a colon is reported with its line in the
        pipeline file.

        Raises:
            UsageError: something is wrong.
            DataError: a file that a parameter names is broken.
        """

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about these parameters and files, in full sentences.

        Called when a plan is shown and when a run begins, if `check` raised nothing.
        """
        return ()

    def values(self) -> Mapping[str, frozenset[str]]:
        """Return field -> all its possible values, for fields of `adds` where they are known.

        Called when the plan is made, if `check` raised nothing.
        """
        return {}

    def reference_runs(self) -> tuple[str, ...]:
        """Return directories of other runs that the stage reads; never the run's own."""
        return ()

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return facts for later stages, from those of earlier ones; JSON values only.

        Called once, when the plan is made; `tokenize` provides `tokenizer`, `pack` `packing`.
        """
        return {}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return an estimate of what the stage, or a pass of it, needs, from measured figures.

        Called before anything runs.
        """
        return Cost(cpu_seconds=volume.text_bytes / self.text_speed)


@functools.cache
def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> the string under it in the source of a class."""
    try:
        [source] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except (OSError, TypeError):  # the class was not defined in a file
        return {}
    assert isinstance(source, ast.ClassDef), "the source of a class is a class"
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(source.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One input file: `path` opens it, `name` is its path relative to the source's root."""

    ordinal: int
    source: str
    path: str
    name: str
    size_bytes: int
    stamp: str
    """Changes with the content: modification time in nanoseconds, an ETag, or a hash."""
    state: str = ""
    """Modification time in nanoseconds, or ETag, that the file must have while it is read."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of an input file that is read alone: `[begin, end)` in units of the source."""

    begin: int
    end: int
    size_bytes: int
    """Bytes of its text, or of the file if only these are known."""
    whole: int | None = None
    """Units in the file (row groups, documents); None if units are bytes."""


@dataclasses.dataclass(frozen=True)
class SourceBatch:
    """Documents as read, before they get keys.

    Attributes:
        positions: (N,) int64, ascending: row or byte offset in the (decompressed) file.
        texts: large_string array, N long, valid UTF-8, no nulls.
        ids: string array or None; null or None = derived from file and position.
        columns: declared columns; urls and dates go to `origin`; `extra`: JSON objects.
        rejects: documents that do not become rows.
        replaced: (n,) rows whose lone surrogates were replaced.
        noted: rule -> rows that stay but have a ledger row of the rule.
        size_bytes: bytes of input consumed for this batch (for progress).
    """

    positions: Int64s
    texts: pa.Array
    ids: pa.Array | None = None
    columns: Mapping[str, pa.Array] = dataclasses.field(default_factory=dict)
    urls: pa.Array | None = None
    dates: pa.Array | None = None
    extra: pa.Array | None = None
    rejects: tuple[Reject, ...] = ()
    replaced: tuple[int, ...] = ()
    noted: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    size_bytes: int = 0

    def keyed(self, ordinal: int) -> SourceBatch:
        """Return the batch with keys instead of positions; `ordinal` is that of the file."""
        first = ordinal << POSITION_BITS
        moved = (
            dataclasses.replace(reject, position=first | reject.position) for reject in self.rejects
        )
        keys = make_keys(ordinal, self.positions)
        return dataclasses.replace(self, positions=keys, rejects=tuple(moved))


@dataclasses.dataclass(frozen=True)
class Reject:
    """A document that does not become a row; `id` and `text` as far as they could be read."""

    position: int
    rule: str
    value: float = float("nan")
    threshold: float = float("nan")
    text: str | None = None
    id: str | None = None


class Source(Stage):
    """Reads one file format. `paths` is the value of the format's name in YAML."""

    rules: ClassVar[tuple[str, ...]] = ("bad_text", "invalid_utf8", "too_long", "lone_surrogate")

    paths: tuple[PathText, ...] = Field(min_length=1)
    """Files or glob patterns, relative to the working directory. `**` is any number of folders."""

    @abstractmethod
    def declared(self) -> Mapping[str, pa.DataType]:
        """Return the declared columns and their types."""

    def origins(self) -> tuple[str, ...]:
        """Return which of `url` and `date` its documents may have."""
        return ORIGINS

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        """Return the bytes of text in a slice, and whether that is exact; opens no file."""
        return piece.size_bytes, False

    def for_texts(self) -> Source | None:
        """Return a source of the same texts at the same positions that reads little else.

        None if it is cheaper to keep the texts than to read the files again. The returned source
        may yield documents that this one rejects.
        """
        return None

    def find(self) -> list[tuple[FoundFile, str]] | None:
        """Return the input files, each with its name, or None: `paths` are patterns of paths.

        Called once per command, before anything is planned. Names must be equal on all machines,
        stamps must change with the content.

        Raises:
            UsageError: there are none.
        """
        return None

    def check_files(self, paths: Sequence[str]) -> None:
        """Check that the files have what parameters name, as far as their first bytes show.

        Called when the plan is made, before any file is cut into slices.

        Raises:
            UsageError: a name occurs nowhere, or the files are of another format.
        """

    @abstractmethod
    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        """Cut a file into slices of about `target_bytes` of text, from its size and footer alone.

        Slices tile the file: the first begins at 0, each of the others where the one before it
        ends, and the last ends at `whole`. Only a file of 0 bytes may have none.

        Raises:
            UsageError: it does not have what a parameter names.
            DataError: the file cannot be read; names file and offset.
        """

    @abstractmethod
    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        """Yield the documents of a slice in bounded batches that depend only on the input.

        Raises:
            DataError: the file is broken; names file and offset.
        """

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        """Yield the documents of consecutive slices, with keys instead of positions.

        A source whose batches have a fixed cost overrides this to read small files together.

        Args:
            pieces: of files in ascending order; the next is fetched when one is read to its end.
            max_document_bytes: as in `read`.

        Raises:
            DataError: a file is broken; names file and offset.
        """
        for file, piece in pieces:
            for batch in self.read(file, piece, max_document_bytes):
                yield batch.keyed(file.ordinal)


class StreamingStage(Stage):
    """Sees one batch at a time; results must not depend on how batches are cut."""

    diverts: ClassVar[str] = ""
    """Folder of the run directory that receives the dropped documents (`holdout`)."""

    @abstractmethod
    def apply(self, view: View) -> Outcome:
        """Decide, annotate or rewrite; fill the fields of the outcome that concern the stage."""

    def oracle(self) -> Callable[[str], tuple[str | None, str]] | None:
        """Return the slow reference: text -> (rule that drops it or None, text afterwards).

        Used by the contract tests; the oracles of our own stages are in tests/oracles.
        """
        return None


class CellStage(Stage):
    """Ends a fused phase: sees the documents of a cell in order, writes rows of another schema."""

    @abstractmethod
    def collect(self, views: Iterator[View], context: UnitContext) -> None:
        """Consume the documents of one cell and write parts."""


class GlobalStage(Stage):
    """Needs to see all documents; each pass becomes one phase.

    Passes exchange keys, not documents; decisions about documents are written as sidecars.
    """

    reads: ClassVar[Literal["documents", "packed", "tokens"]] = "documents"
    """Role of the parts that it reads as cells."""

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes in order."""
