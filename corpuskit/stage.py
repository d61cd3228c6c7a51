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

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from corpuskit.batch import Utf8, large_strings, numbers, utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.ledger import Entries
    from corpuskit.manifest import Part

Fact = TypeVar("Fact")


class Example(NamedTuple):
    """A document and the rule that drops it (None keeps it): shown in docs, run in tests.

    Attributes:
        text: the document.
        rule: the expected rule.
        params: parameters that differ from the defaults.
        becomes: the text afterwards, for rewriters.
    """

    text: str
    rule: str | None = None
    params: Mapping[str, Any] = {}
    becomes: str | None = None


class View:
    """One batch of documents, as a stage sees it.

    Facts about the text (words, lines) are computed once, by whoever asks first, and shared by all
    stages of a fused phase until a stage rewrites the text.
    """

    def __init__(self, batch: pa.RecordBatch, facts: dict[Any, Any] | None = None) -> None:
        self.batch = batch
        self._facts: dict[Any, Any] = facts if facts is not None else {}
        self._text: Utf8 | None = None

    @property
    def num_docs(self) -> int:
        """Rows of the batch, N."""
        return len(self.batch)

    @property
    def text(self) -> Utf8:
        """The texts as buffers."""
        if self._text is None:
            self._text = utf8(self.batch.column("text"))
        return self._text

    @property
    def keys(self) -> NDArray[np.int64]:
        """Document keys, (N,)."""
        return numbers(self.batch.column("key")).astype(np.int64, copy=False)

    def column(self, name: str) -> pa.Array:
        """Return another column; annotation columns are called `<stage>.<field>`."""
        return self.batch.column(name)

    def fact(self, compute: Callable[[NDArray[np.int64], NDArray[np.uint8]], Fact]) -> Fact:
        """Return `compute(offsets, data)` of this text, computed once per text.

        A fact with a method `select(rows)` survives filtering; others are computed again.
        """
        if compute not in self._facts:
            self._facts[compute] = compute(self.text.offsets, self.text.data)
        return self._facts[compute]  # type: ignore[no-any-return]

    def select(self, rows: NDArray[np.int64]) -> View:
        """Return the view of some rows."""
        facts = {k: f.select(rows) for k, f in self._facts.items() if hasattr(f, "select")}
        return View(self.batch.take(pa.array(rows)), facts)

    def with_text(self, text: Utf8) -> View:
        """Return the view with other texts: facts about the old ones are forgotten."""
        array = large_strings(text.offsets, text.data)
        place = self.batch.schema.get_field_index("text")
        return View(self.batch.set_column(place, "text", array))

    def with_columns(self, columns: Mapping[str, pa.Array]) -> View:
        """Return the view with columns appended."""
        batch = self.batch
        for name, values in columns.items():
            batch = batch.append_column(name, values)
        return View(batch, self._facts)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Byte ranges of the text a stage saw, that it cut or replaced; sorted by row, then start.

    Attributes:
        rows, starts, ends: (n,) int64: document in the batch, bytes from its beginning.
        codes: (n,) uint8; k names `rules[k - 1]`.
        action: `cut` or `replace`.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    codes: NDArray[np.uint8]
    action: Literal["cut", "replace"] = "cut"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a streaming stage found; a stage fills the fields that concern it.

    Attributes:
        codes: (N,) uint8: 0 keeps, k drops by `rules[k - 1]`; the first failing rule wins.
        values: (N,) float64: the measured value of the failing rule, NaN where it has none.
        text: the new texts of all rows, dropped ones included.
        spans: what was cut from or replaced in the text that the stage saw.
        columns: field -> values of all rows, as declared by `adds()`.
        measures: name -> (N,) float64 of every rule's value, when asked for.
    """

    codes: NDArray[np.uint8] | None = None
    values: NDArray[np.float64] | None = None
    text: Utf8 | None = None
    spans: Spans | None = None
    columns: Mapping[str, pa.Array] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, NDArray[np.float64]] = dataclasses.field(default_factory=dict)


class Stage(BaseModel, ABC):
    """Base of all stages; the fields of a subclass are its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rules: ClassVar[tuple[str, ...]] = ()
    """Named reasons to drop, cut or replace."""
    bounds: ClassVar[Mapping[str, str]] = {}
    """Rule -> the parameter that is its threshold."""
    examples: ClassVar[tuple[Example, ...]] = ()
    version: ClassVar[int] = 1
    """Raise it when results change for a reason that is not in the source (a table, a library)."""

    @classmethod
    def stage_name(cls) -> str:
        """Return the name in YAML: the stem of the defining file."""
        return cls.__module__.rpartition(".")[2]

    def threshold(self, rule: str) -> float:
        """Return the bound that `rule` compares with, NaN if it has none."""
        name = self.bounds.get(rule)
        value = None if name is None else getattr(self, name)
        return float("nan") if value is None else float(value)

    def files(self) -> tuple[str, ...]:
        """Return paths of files that decide (models, word lists); their content is fingerprinted."""
        return ()

    def libraries(self) -> tuple[str, ...]:
        """Return distributions whose version decides; it is fingerprinted."""
        return ()

    def needs(self) -> tuple[str, ...]:
        """Return the columns read, beyond the required ones."""
        return ()

    def adds(self) -> Mapping[str, pa.DataType]:
        """Return field -> type of the columns appended; they are called `<stage>.<field>`."""
        return {}

    def provides(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return facts for later stages, from those of earlier ones; JSON values only.

        Asked once, when the plan is made; `tokenize` provides `tokenizer`, `pack` `packing`.
        """
        return {}


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One input file: `path` opens it, `name` is its path relative to the source's root."""

    ordinal: int
    source: str
    path: str
    name: str
    size_bytes: int
    stamp: str
    """What changes when the content does: modification time in nanoseconds, or an ETag."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A piece of an input file that is read alone; bounds mean what the source says they mean."""

    begin: int
    end: int
    size_bytes: int
    """Bytes of text in it, or of the file where only that is known."""


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
        size_bytes: bytes of input consumed for this batch (for progress).
    """

    positions: NDArray[np.int64]
    texts: pa.Array
    ids: pa.Array | None = None
    columns: Mapping[str, pa.Array] = dataclasses.field(default_factory=dict)
    urls: pa.Array | None = None
    dates: pa.Array | None = None
    extra: pa.Array | None = None
    rejects: tuple[Reject, ...] = ()
    replaced: tuple[int, ...] = ()
    size_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Reject:
    """A document that did not become a row; `text` is what could be read of it, for the ledger."""

    position: int
    rule: str
    value: float = float("nan")
    threshold: float = float("nan")
    text: str | None = None


class Source(Stage):
    """Reads one file format. `paths` is what stands after the format's name in YAML."""

    rules: ClassVar[tuple[str, ...]] = ("bad_text", "invalid_utf8", "too_long", "lone_surrogate")

    paths: tuple[str, ...]
    """Files or glob patterns, relative to the working directory."""

    @abstractmethod
    def declared(self) -> Mapping[str, pa.DataType]:
        """Return the declared columns and their types."""

    @abstractmethod
    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        """Cut a file into slices of about `target_bytes` of text, from its size and footer alone.

        Raises:
            DataError: the file cannot be read; names file and offset.
        """

    @abstractmethod
    def read(
        self, file: InputFile, piece: Slice, max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        """Yield the documents of a slice in bounded batches that depend on the input alone.

        Raises:
            DataError: the file is broken; names file and offset.
        """


class StreamingStage(Stage):
    """Sees one batch at a time; how batches are cut must not matter."""

    diverts: ClassVar[str] = ""
    """Folder of the run directory where dropped documents go on living (`holdout`)."""

    @abstractmethod
    def apply(self, view: View) -> Outcome:
        """Decide, annotate or rewrite; fill the fields of the outcome that concern the stage."""

    def oracle(self) -> Callable[[str], tuple[str | None, str]] | None:
        """Return the slow reference: text -> (rule that drops it or None, text afterwards)."""
        return None


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a pass works on: a cell of the documents, or a key range `[low, high)`.

    Attributes:
        number: names parts; units are ordered by it.
        source: of a cell.
        low, high: range of keys (cells: first and last key + 1) or of hashes.
        rows, text_bytes: of a cell's part before masks.
        part: of a cell: the part that holds its documents or packed rows.
    """

    number: int
    source: str = ""
    low: int = 0
    high: int = 0
    rows: int = 0
    text_bytes: int = 0
    part: Part | None = None


class UnitContext(ABC):
    """All that a cell stage or a pass may touch while it works on one unit."""

    unit: Unit
    seed: int
    given: Mapping[str, Any]
    """What earlier stages provide (`tokenizer`, `packing`)."""

    @abstractmethod
    def count(self, name: str, value: int = 1) -> None:
        """Add to a counter of the manifest; counters are part of what a phase decided."""

    @abstractmethod
    def add_ledger(self, entries: Entries) -> None:
        """Add rows to the ledger part of this unit."""

    @abstractmethod
    def write_run(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        """Write an exchange run, sorted by its first column; an empty one is not written."""

    @abstractmethod
    def write_part(
        self,
        role: str,
        folder: str,
        write: Callable[[Path], None],
        *,
        suffix: str = ".parquet",
        source: str = "",
        rows: int = 0,
        first: int = 0,
        last: int = -1,
    ) -> None:
        """Publish a file that `write(scratch path)` creates, as `<folder>/part-<unit>-<hash>`."""


class PassContext(UnitContext):
    """What a pass of a global stage may touch besides."""

    memory_bytes: int
    """The most memory that one task should use."""

    @abstractmethod
    def read(self, *columns: str) -> Iterator[View]:
        """Yield the documents of this cell that are still alive, with `key` and these columns."""

    @abstractmethod
    def part_keys(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the keys of all rows of this cell's part, and which are still alive."""

    @abstractmethod
    def run_range(
        self, name: str, low: int | None, high: int | None, schema: pa.Schema
    ) -> pa.Table:
        """Return the rows in `[low, high)` of a run that an earlier pass of this stage wrote.

        Rows come producer by producer (in unit order), each producer's sorted. `name` is
        `<pass>/<run>`, as in `sign/bands`.
        """

    @abstractmethod
    def path(self, part: Part) -> Path:
        """Return where the file of a part can be read."""

    @abstractmethod
    def parts(self, name: str) -> list[Part]:
        """Return parts of finished phases; see PassPlan.parts."""

    @abstractmethod
    def counters(self, name: str) -> Mapping[str, int]:
        """Return counters of a finished phase; see PassPlan.counters."""

    @abstractmethod
    def write_file(self, name: str, content: bytes) -> None:
        """Write a file of a fixed name inside the run directory (`mix/plan.json`)."""

    @abstractmethod
    def write_sidecar(
        self, keep: NDArray[np.bool_], columns: Mapping[str, pa.Array] | None = None
    ) -> None:
        """Write what was decided about each row of this cell's part; columns as in `adds()`."""


class PassPlan(ABC):
    """What a pass may ask when its units are cut: finished phases, never a running one."""

    seed: int
    given: Mapping[str, Any]
    memory_bytes: int

    @abstractmethod
    def cells(self) -> list[Unit]:
        """Return the cells of the documents (or packed rows) that the stage reads, in order."""

    @abstractmethod
    def parts(self, name: str) -> list[Part]:
        """Return parts of finished phases in unit order.

        `<pass>/<run>`: the run of an earlier pass of this stage (`sign/bands`).
        `<phase>/<role>`: a role of another phase, such as `pack/run:ids` or `shuffle.gather/tokens`.
        """

    @abstractmethod
    def counters(self, name: str) -> Mapping[str, int]:
        """Return the counters of an earlier pass of this stage (`sign`), or of a phase (`pack`)."""


class CellStage(Stage):
    """Ends a fused phase: sees the documents of one cell in order, writes rows of another kind."""

    @abstractmethod
    def collect(self, views: Iterator[View], context: UnitContext) -> None:
        """Consume the documents of one cell and write parts."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of a global stage.

    Attributes:
        name: short; the phase is called `<stage>.<name>`.
        run: works on one unit; a bound method.
        units: cuts the work; None = one unit per cell of the input.
        at_end: the pass waits for all other phases of the plan (the mixture's table).
        owns: folders of the run directory that only this pass writes (`tokens/`).
    """

    name: str
    run: Callable[[PassContext], None]
    units: Callable[[PassPlan], list[Unit]] | None = None
    at_end: bool = False
    owns: tuple[str, ...] = ()


class GlobalStage(Stage):
    """Needs to see all documents; each pass becomes one phase.

    Keys move between passes, documents do not: a decision about documents ends as a sidecar.
    """

    reads: ClassVar[Literal["documents", "packed", "tokens"]] = "documents"
    """Role of the parts that are its cells."""

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes in order."""
