"""What cell stages and passes of global stages work on, and all that they may touch."""

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
    """What a pass works on: a cell of the documents, or a key range `[low, high)`.

    Attributes:
        number: names parts; units are ordered by it.
        source: of a cell.
        low, high: range of keys (cells: first and last key + 1) or of hashes.
        rows, text_bytes: of a cell's part before masks.
        part: of a cell: the part that holds its documents or packed rows.
        producers: of a range that is routed: which of the shuffle files it reads.
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
    """All that a cell stage or a pass may touch while it works on one unit."""

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
        """Return the documents whose text the ledger keeps: others need not be read."""

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
    """What a pass may ask, also when its units are cut: finished phases, never a running one."""

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
    """What a pass of a global stage may touch besides."""

    def read(self, *columns: str, keys: Int64s | None = None) -> Iterator[View]:
        """Yield the documents of this cell that are still alive, with `key` and these columns.

        Args:
            keys: documents wanted, ascending; others come along, if it is cheaper to read them.
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

        Rows come producer by producer (in unit order), each producer's sorted.

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
        """Write what was decided about each row of this cell's part.

        Args:
            keep: False drops the row.
            columns: as in `adds()`.
            cuts: spans to cut from the texts that the stage saw (`batch.span_lists`); whatever
                comes next reads the texts without them.
        """


@dataclasses.dataclass(frozen=True)
class Volume:
    """How much a stage will have to work on: an upper bound until it is known.

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
    """What a stage, or one pass of it, needs for a Volume; nothing here changes an output byte.

    Its figures are measured: docs/concepts.md says how, and how near they come.

    Attributes:
        cpu_seconds: for all of it.
        start_seconds: for each process that works on it, once (opening a model).
        resident_bytes: memory that each process holds from then on.
        unit_bytes: memory for the unit in hand, besides a batch of a few MB.
        disk_bytes: written to the run directory, all of it; documents and packed rows that a later
            phase reads are counted by whoever writes them.
        units: how many units there are; None = one per cell.
        must_fit: `unit_bytes` is for one task that cannot be cut, and fails if that is more than
            `task_memory_bytes`; `advice`: what else to set in that case, as in "rounds to 8, or ".
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
        is_cell_alone: what it writes about a cell depends on that cell alone, so it need not run
            again when others change; it may not read what other passes wrote. It reads the
            documents once: as the first pass of a plan it may see them as they come from the input.
        at_end: the pass waits for all other phases of the plan (the mixture's table).
        owns: folders of the run directory that only this pass writes (`tokens/`); `{label}` stands
            for what the stage is called in the pipeline.
        done_with: shuffle files of earlier passes that nobody reads after this one, `<pass>/<name>`
            or `<pass>/` for all of a pass. With `shuffle_files: delete` they are deleted when it is
            sealed. Of several passes that name a file, the first one that has units counts.
    """

    name: str
    run: Callable[[PassContext], None]
    units: Callable[[PassPlan], list[Unit]] | None = None
    is_cell_alone: bool = False
    at_end: bool = False
    owns: tuple[str, ...] = ()
    done_with: tuple[str, ...] = ()
