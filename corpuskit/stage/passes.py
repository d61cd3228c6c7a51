"""The units that cell stages and passes of global stages process, and their contexts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from corpuskit.formats.ledger import Entries
    from corpuskit.formats.manifest import Part
    from corpuskit.kernels.arrays import Bools, Int64s
    from corpuskit.stage.view import View
    from corpuskit.storage import Readable


@dataclasses.dataclass(frozen=True)
class Unit:
    """The work of one call of a pass: a cell of the documents, or a key range `[low, high)`.

    Attributes:
        number: orders units, and names their parts.
        source: of a cell.
        low, high: range of keys (cells: first and last key + 1) or of hashes.
        rows, text_bytes: of a cell's part before masks.
        part: of a cell: the part that holds its documents or packed rows.
        producers: of a routed range: which shuffle files it reads.
    """

    number: int
    source: str = ""
    low: int = 0
    high: int = 0
    rows: int = 0
    text_bytes: int = 0
    part: Part | None = None
    producers: tuple[int, int] | None = None


class UnitContext(Protocol):
    """All that a cell stage or a pass may use while it processes one unit."""

    unit: Unit
    label: str
    """Name of the stage in this pipeline, or `name_2` for its second use."""
    seed: int
    given: Mapping[str, Any]
    """What earlier stages provide (`tokenizer`, `packing`)."""

    def count(self, name: str, value: int = 1) -> None:
        """Add to a counter of the manifest; counters are part of what a phase decided."""

    def add_ledger(self, entries: Entries) -> None:
        """Add rows to the ledger part of this unit."""

    def keeps_text(self, keys: Int64s) -> Bools:
        """Return which documents' texts the ledger keeps; those of others need not be read."""

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        """Write a shuffle file, sorted by its first column; an empty one is not written."""

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


class PassPlan(Protocol):
    """What a pass may read, also when its units are cut: finished phases, never a running one."""

    seed: int
    given: Mapping[str, Any]
    memory_bytes: int
    """The most memory that one task should use."""

    def cells(self) -> list[Unit]:
        """Return the cells of the documents (or packed rows) that the stage reads, in order."""

    def parts(self, name: str) -> Sequence[Part]:
        """Return parts of finished phases in unit order.

        `<pass>/<name>`: shuffle files of an earlier pass of this stage (`sign/bands`).
        `<phase>/<role>`: a role of another phase: `pack/run:ids`, `shuffle.gather/tokens`.
        """

    def counters(self, name: str) -> Mapping[str, int]:
        """Return the counters of an earlier pass of this stage (`sign`), or of a phase (`pack`)."""


class PassContext(UnitContext, PassPlan, Protocol):
    """What a pass of a global stage may use besides."""

    def read(self, *columns: str, keys: Int64s | None = None) -> Iterator[View]:
        """Yield the documents of this cell that are still alive, with `key` and these columns.

        Args:
            keys: documents to read, ascending; others may be among them, if that is cheaper.
        """

    def part_keys(self) -> tuple[Int64s, Bools]:
        """Return the keys of all rows of this cell's part, and which are still alive."""

    def read_shuffle(
        self,
        name: str,
        low: int | None,
        high: int | None,
        schema: pa.Schema,
        producers: tuple[int, int] | None = None,
    ) -> pa.Table:
        """Return the rows in `[low, high)` that an earlier pass of this stage wrote.

        Rows are grouped by producer, in unit order, and sorted within each.

        Args:
            name: `<pass>/<name>`, as in `sign/bands`.
            producers: read the first to the last (exclusive) of its parts only.
        """

    def path(self, part: Part) -> Readable:
        """Return the file of a part, for `shards.open_parquet` and its like."""

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file of a fixed name inside the run directory (`mix/plan.json`)."""

    def write_sidecar(
        self,
        keep: Bools,
        columns: Mapping[str, pa.Array] | None = None,
        cuts: pa.ListArray | None = None,
    ) -> None:
        """Write the decision about each row of this cell's part.

        Args:
            keep: False drops the row.
            columns: as in `adds()`.
            cuts: spans to cut from the texts that the stage saw (`batch.span_lists`); later phases
                read the texts without them.
        """


@dataclasses.dataclass(frozen=True)
class Volume:
    """How much a stage will process: an upper bound until it is known.

    Attributes:
        documents, text_bytes: of all cells.
        cells: how many there are; `cell_bytes`: text of the largest.
        packed_bytes: size of the packed rows; 0 while there are none.
        task_memory_bytes: the most that one task of a global stage may plan with.
        given: what earlier stages provide.
    """

    documents: int
    text_bytes: int
    cells: int = 1
    cell_bytes: int = 0
    packed_bytes: int = 0
    task_memory_bytes: int = 1 << 30
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def cell_documents(self) -> int:
        """Documents in the largest cell, if all are of mean length."""
        return -(-self.documents * self.cell_bytes // max(self.text_bytes, 1))

    @property
    def mean_document_bytes(self) -> int:
        """Mean text of a document."""
        return self.text_bytes // max(self.documents, 1)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a stage, or one pass of it, needs for a Volume; it changes no output.

    Based on measured figures: docs/concepts.md says how, and how accurate they are.

    Attributes:
        cpu_seconds: for all of it.
        start_seconds: once per process (opening a model).
        resident_bytes: memory that each process then keeps.
        unit_bytes: memory for the current unit, besides a batch of a few MB.
        disk_bytes: all that it writes to the run directory; documents and packed rows are counted
            by the stage that writes them.
        units: how many units there are; None = one per cell.
        must_fit: `unit_bytes` is for one task that cannot be split, and that fails with more than
            `task_memory_bytes`; `advice`: what else to set then, as in "rounds to 8, or ".
    """

    cpu_seconds: float = 0.0
    start_seconds: float = 0.0
    resident_bytes: int = 0
    unit_bytes: int = 0
    disk_bytes: int = 0
    units: int | None = None
    must_fit: bool = False
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of a global stage.

    Attributes:
        name: short; the phase is called `<stage>.<name>`.
        run: works on one unit; a method of the stage, or a partial of a function of it.
        units: cuts the work; None = one unit per cell of the input.
        is_cell_alone: its output for a cell depends on that cell only, so it need not run again
            when others change; it may not read the output of other passes. It reads the documents
            once: as the first pass of a plan it may get them directly from the input.
        at_end: waits for all other phases of the plan (the mixture's table).
        owns: folders of the run directory that only this pass writes (`tokens/`); `{label}` is the
            name of the stage in the pipeline.
        done_with: shuffle files of earlier passes that no later pass reads, `<pass>/<name>`, or
            `<pass>/` for all of a pass. With `shuffle_files: delete` they are deleted when this
            pass is sealed. If several passes name a file, the first one that has units counts.
    """

    name: str
    run: Callable[[PassContext], None]
    units: Callable[[PassPlan], list[Unit]] | None = None
    is_cell_alone: bool = False
    at_end: bool = False
    owns: tuple[str, ...] = ()
    done_with: tuple[str, ...] = ()
