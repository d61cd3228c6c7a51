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

    Pydantic would read these strings as the class is made (`use_attribute_docstrings`), at 5 to 10
    CPU milliseconds each; here they are read when somebody asks for the schema. And what checks
    values is made when there are some: of most models it is a part of another's.
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
    """What is known when a plan is made of the documents that a stage will see.

    Attributes:
        sources: names of the sources.
        apart: those of them that the stage does not apply to.
        origins: what `origin` can hold of documents that the stage applies to: `url`, `date`.
        columns: column -> type.
        values: column -> all values that it can have, where that is known: `source`, and the
            labels of a language model.
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
    """Raise it when results change for a reason that is not in the source (a table, a library)."""
    text_speed: ClassVar[float] = 50e6
    """Bytes of text per CPU second, measured: what `cost` estimates from."""

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

        That is below a bound called `min_*` and above any other; a rule that is off breaks nothing,
        one that no parameter bounds is broken by more than 0. `corpuskit tune` asks this again with
        other bounds, so what a stage with `measures` drops must follow from it.
        """
        if rule not in self.bounds:
            return values > 0
        limit = self.threshold(rule)
        return values < limit if self.bounds[rule].startswith("min") else values > limit

    def files(self) -> tuple[str, ...]:
        """Return paths of files that decide (models, word lists); by content."""
        return ()

    def libraries(self) -> tuple[str, ...]:
        """Return distributions whose version decides; it is fingerprinted."""
        return ()

    def needs(self) -> tuple[str, ...]:
        """Return the columns read, beyond the required ones."""
        return ()

    def origins(self) -> tuple[str, ...]:
        """Return what is read of `origin` that sources may lack: `url`, `date`."""
        return ()

    def adds(self) -> Mapping[str, pa.DataType]:
        """Return field -> type of the columns appended; they are called `<stage>.<field>`."""
        return {}

    def check(self, known: Known) -> None:
        """Check what the parameters alone do not tell; asked once, when the plan is made.

        That is all that would fail a task later and can be seen now: files that are of another
        kind, names that a model or a list does not have, columns of the wrong type, libraries that
        are not installed. A message that begins with the name of a parameter and a colon is
        reported with its line in the pipeline file.

        Raises:
            UsageError: something is wrong.
            DataError: a file that a parameter names is broken.
        """

    def warnings(self) -> tuple[str, ...]:
        """Return what a user should know of these parameters and files, in full sentences.

        Asked when a plan is shown and when a run begins, and only if `check` raised nothing.
        """
        return ()

    def values(self) -> Mapping[str, frozenset[str]]:
        """Return field -> all values that it can have, of those in `adds` where that is known.

        Asked when the plan is made, and only if `check` raised nothing.
        """
        return {}

    def reference_runs(self) -> tuple[str, ...]:
        """Return directories of other runs that the stage reads; never the run's own."""
        return ()

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return facts for later stages, from those of earlier ones; JSON values only.

        Asked once, when the plan is made; `tokenize` provides `tokenizer`, `pack` `packing`.
        """
        return {}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return about what the stage (of a global one: a pass) needs, from measured figures.

        Asked before anything runs.
        """
        return Cost(cpu_seconds=volume.text_bytes / self.text_speed)


@functools.cache
def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> the string under it in the source of a class."""
    try:
        [source] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except (OSError, TypeError):  # it was not read from a file
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
    """What changes when the content does: modification time in nanoseconds, an ETag, or a hash."""
    state: str = ""
    """Modification time in nanoseconds, or ETag, that the file must have while it is read."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A piece of an input file that is read alone: `[begin, end)` of what the source counts."""

    begin: int
    end: int
    size_bytes: int
    """Bytes of text in it, or of the file where only that is known."""
    whole: int | None = None
    """How many there are in the file (row groups, documents); None: bounds are bytes of it."""


@dataclasses.dataclass(frozen=True)
class SourceBatch:
    """Documents as read, before they get keys.

    Attributes:
        positions: (N,) int64, ascending: row or byte offset in the (decompressed) file.
        texts: large_string array, N long, valid UTF-8, no nulls.
        ids: string array or None; null or None = derive from file and position.
        columns: declared columns; urls and dates go to `origin`; `extra`: JSON objects.
        rejects: documents that could not become rows.
        replaced: (n,) rows whose lone surrogates were replaced.
        noted: rule -> rows that the ledger names for it although they stay.
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
        """Return the batch with keys of the file with this ordinal in place of positions."""
        first = ordinal << POSITION_BITS
        moved = (
            dataclasses.replace(reject, position=first | reject.position) for reject in self.rejects
        )
        keys = make_keys(ordinal, self.positions)
        return dataclasses.replace(self, positions=keys, rejects=tuple(moved))


@dataclasses.dataclass(frozen=True)
class Reject:
    """A document that did not become a row; `id` and `text` are what could be read of it."""

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
        """Return the bytes of text in a slice, and whether that is known; nothing is opened."""
        return piece.size_bytes, False

    def for_texts(self) -> Source | None:
        """Return a source of the same texts at the same positions, and of as little else as it can.

        None: reading the files once more costs more than keeping their texts. The source that is
        returned may yield documents that this one rejects.
        """
        return None

    def find(self) -> list[tuple[FoundFile, str]] | None:
        """Return the input files, each with its name, or None: `paths` are patterns of paths.

        Asked once per command, before anything is planned. Names must be the same on every machine,
        stamps must change when contents do.

        Raises:
            UsageError: there are none.
        """
        return None

    def check_files(self, paths: Sequence[str]) -> None:
        """Check that what parameters name is in the files, as far as their first bytes tell.

        Asked when the plan is made, before any file is cut into slices.

        Raises:
            UsageError: a name occurs nowhere, or the files are of another format.
        """

    @abstractmethod
    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        """Cut a file into slices of about `target_bytes` of text, from its size and footer alone.

        Slices tile the file: the first begins at 0, each of the others where the one before it
        ends, and the last ends at `whole`. Only a file of 0 bytes may have none.

        Raises:
            UsageError: it lacks what a parameter names.
            DataError: the file cannot be read; names file and offset.
        """

    @abstractmethod
    def read(self, file: InputFile, piece: Slice, max_document_bytes: int) -> Iterator[SourceBatch]:
        """Yield the documents of a slice in bounded batches that depend on the input alone.

        Raises:
            DataError: the file is broken; names file and offset.
        """

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        """Yield the documents of neighbouring slices, with keys where `read` has positions.

        A source overrides it where a batch has a cost of its own, to read small files together.

        Args:
            pieces: of files in ascending order; the next is asked for when one is read to its end.
            max_document_bytes: as in `read`.

        Raises:
            DataError: a file is broken; names file and offset.
        """
        for file, piece in pieces:
            for batch in self.read(file, piece, max_document_bytes):
                yield batch.keyed(file.ordinal)


class StreamingStage(Stage):
    """Sees one batch at a time; how batches are cut must not matter."""

    diverts: ClassVar[str] = ""
    """Folder of the run directory where dropped documents go on living (`holdout`)."""

    @abstractmethod
    def apply(self, view: View) -> Outcome:
        """Decide, annotate or rewrite; fill the fields of the outcome that concern the stage."""

    def oracle(self) -> Callable[[str], tuple[str | None, str]] | None:
        """Return the slow reference: text -> (rule that drops it or None, text afterwards).

        The contract tests ask for it; those of our own stages are in tests/oracles.
        """
        return None


class CellStage(Stage):
    """Ends a fused phase: sees the documents of one cell in order, writes rows of another kind."""

    @abstractmethod
    def collect(self, views: Iterator[View], context: UnitContext) -> None:
        """Consume the documents of one cell and write parts."""


class GlobalStage(Stage):
    """Needs to see all documents; each pass becomes one phase.

    Keys move between passes, documents do not: a decision about documents ends as a sidecar.
    """

    reads: ClassVar[Literal["documents", "packed", "tokens"]] = "documents"
    """Role of the parts that are its cells."""

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes in order."""
