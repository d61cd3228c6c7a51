"""The ledger looked through: spans by rule and source, and a few rows of each to show."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.records import rule_of
from corpuskit.formats.batch import numbers, split_key
from corpuskit.formats.ledger import SCHEMA, sampled
from corpuskit.inspect.archive import open_part
from corpuskit.inspect.counts import Sampled
from corpuskit.inspect.samples import marks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, Seal


MAX_PARTS = 400  # ledger parts that are looked through, chosen evenly of each phase and source
MAX_ROWS = 4_000_000  # rows of them, about; of large parts row groups are left out
_STEP_ROWS = 512  # rows in memory while texts are read

_COLUMNS = ["doc_key", "source", "stage", "rule", "action", "spans"]


class Group(NamedTuple):
    """What ledger rows have in common."""

    stage: str
    rule: str
    action: str
    source: str


@dataclasses.dataclass
class SpanTally:
    """Of the rows that were read."""

    rows: int = 0
    spans: int = 0
    span_bytes: int = 0


class RowLocation(NamedTuple):
    """The position of a ledger row; smaller marks are taken first."""

    mark: int
    key: int
    part: Part
    group: int
    row: int


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """A ledger row with its phase; `reason` is the rule with its details."""

    phase: Phase
    unit: int
    group: Group
    key: int
    id: str
    reason: str
    value: float | None
    threshold: float | None
    survivor_id: str | None
    spans: tuple[tuple[int, int], ...]
    text: str | None


@dataclasses.dataclass(frozen=True)
class Scan:
    """Spans and rows of the ledger; `sampled` is None if all of it was read."""

    tallies: dict[Group, SpanTally]
    rows: tuple[LedgerRow, ...]
    sampled: Sampled | None


def scan_ledger(
    run: RunDirectory, finished: Sealed, num: int, seed: int, max_rows: int = MAX_ROWS
) -> Scan:
    """Look through the ledger, or through an even part of a large one.

    Args:
        num: rows of each stage, rule, action and source that are returned: first those whose text
            the ledger has, then in an order that seed and keys decide.
        max_rows: that are read, about.

    Raises:
        DataError: a part cannot be read.
    """
    tallies: defaultdict[Group, SpanTally] = defaultdict(SpanTally)
    rows: list[LedgerRow] = []
    num_read = 0
    parts = [(phase, seal, part) for phase, seal in finished for part in seal.by_role("ledger")]
    sampled = _parts_to_read(run, parts, max_rows)
    step = max(-(-sum(part.rows for _, _, part in sampled) // max_rows), 1)
    by_phase: defaultdict[int, list[Part]] = defaultdict(list)
    phases = {phase.index: phase for phase, *_ in parts}
    for phase, _, part in sampled:
        by_phase[phase.index].append(part)
    for index, phase_parts in sorted(by_phase.items()):
        best: defaultdict[Group, list[RowLocation]] = defaultdict(list)
        for part in phase_parts:
            try:
                groups = list(_look(run, part, step, num, seed))
            except FileNotFoundError:  # a run that goes on has replaced it
                continue
            num_read += 1
            for group, tally, locations in groups:
                total = tallies[group]
                total.rows += tally.rows
                total.spans += tally.spans
                total.span_bytes += tally.span_bytes
                best[group] = sorted([*best[group], *locations])[:num]
        with contextlib.suppress(FileNotFoundError):
            rows += _read_rows(run, phases[index], best)
    is_all = step == 1 and num_read == len(parts)
    return Scan(dict(tallies), tuple(rows), None if is_all else Sampled(num_read, len(parts)))


def _parts_to_read(
    run: RunDirectory, parts: Sequence[tuple[Phase, Seal, Part]], max_rows: int
) -> list[tuple[Phase, Seal, Part]]:
    """Return the parts to read: the same share of each phase and source, chosen evenly."""
    rows = sum(part.rows for *_, part in parts)
    step = max(-(-len(parts) // MAX_PARTS), -(-rows // max_rows), 1)
    sources = {file.ordinal: file.source for file in run.inputs.files}
    groups: defaultdict[tuple[int, str], list[tuple[Phase, Seal, Part]]] = defaultdict(list)
    for entry in parts:
        groups[entry[0].index, sources.get(split_key(entry[2].first)[0], "")].append(entry)
    return [entry for group in groups.values() for entry in group[::step]]


def _look(
    run: RunDirectory, part: Part, step: int, num: int, seed: int
) -> Iterator[tuple[Group, SpanTally, list[RowLocation]]]:
    """Yield what some row groups of a part hold, group by group."""
    settings = run.plan.settings
    with open_part(run.at(part)) as file:
        for number in range(0, file.num_row_groups, step):
            table = file.read_row_group(number, columns=_COLUMNS, use_threads=False)
            keys = numbers(table.column("doc_key"))
            groups, codes = _group_rows(table)
            counts, sizes = _spans(table.column("spans").combine_chunks())
            marks = marks_of(keys, seed) >> np.uint64(1)
            if not settings.ledger.keep_text:
                # The highest bit: rows whose text the ledger keeps come first.
                marks |= np.where(sampled(keys, settings.seed), np.uint64(0), np.uint64(1 << 63))
            order = np.lexsort((marks, codes))
            starts = np.searchsorted(codes[order], np.arange(len(groups) + 1))
            for index, group in enumerate(groups):
                rows = order[starts[index] : starts[index + 1]]
                tally = SpanTally(len(rows), int(counts[rows].sum()), int(sizes[rows].sum()))
                locations = [
                    RowLocation(int(marks[row]), int(keys[row]), part, number, int(row))
                    for row in rows[:num].tolist()
                ]
                yield group, tally, locations


def _group_rows(table: pa.Table) -> tuple[list[Group], NDArray[np.int64]]:
    """Return the groups of a table, and which of them each row is of."""
    codes = np.zeros(table.num_rows, np.int64)
    values: list[list[str]] = []
    for name in ("stage", "rule", "action", "source"):
        column = table.column(name).combine_chunks().dictionary_encode()
        labels = [str(value) for value in column.dictionary.to_pylist()]
        indices = numbers(column.indices).astype(np.int64)
        if name == "rule":
            short = [rule_of(value) for value in labels]
            labels = sorted(set(short))
            indices = np.array([labels.index(value) for value in short], np.int64)[indices]
        codes = codes * max(len(labels), 1) + indices
        values.append(labels)
    present, inverse = np.unique(codes, return_inverse=True)
    groups = []
    for code in present.tolist():
        names: list[str] = []
        for labels in reversed(values):
            code, index = divmod(code, max(len(labels), 1))
            names.append(labels[index])
        groups.append(Group(*reversed(names)))
    return groups, inverse


def _spans(spans: pa.ListArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many spans each row has, and their bytes."""
    num = len(spans)
    counts = numbers(pc.fill_null(pc.list_value_length(spans), 0)).astype(np.int64)
    pairs = spans.flatten()
    sizes = numbers(pairs.field("end")) - numbers(pairs.field("start"))
    rows = np.repeat(np.arange(num), counts)
    return counts, np.bincount(rows, weights=sizes, minlength=num).astype(np.int64)


def _read_rows(
    run: RunDirectory, phase: Phase, best: dict[Group, list[RowLocation]]
) -> Iterator[LedgerRow]:
    """Yield the chosen rows with all their columns; each row group is read once."""
    rows_of: defaultdict[tuple[str, int], dict[int, RowLocation]] = defaultdict(dict)
    order: dict[tuple[str, int, int], Group] = {}
    for group, locations in best.items():
        for location in locations:
            rows_of[location.part.path, location.group][location.row] = location
            order[location.part.path, location.group, location.row] = group
    by_group: defaultdict[Group, list[tuple[int, LedgerRow]]] = defaultdict(list)
    for (path, number), rows in sorted(rows_of.items(), key=lambda ledger_row: ledger_row[0]):
        for row, values in _values(run, path, number, sorted(rows)):
            group = order[path, number, row]
            ledger_row = _row(phase, rows[row].part, group, values)
            by_group[group].append((rows[row].mark, ledger_row))
    for group in best:
        for _, ledger_row in sorted(by_group[group], key=lambda pair: (pair[0], pair[1].key)):
            yield ledger_row


def _values(
    run: RunDirectory, path: str, number: int, rows: Sequence[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows of a row group, which are ascending; little of it is in memory at a time."""
    numbers = np.array(rows, np.int64)
    begin = 0
    with open_part(run.store.at(path)) as file:
        for batch in file.iter_batches(
            batch_size=_STEP_ROWS, row_groups=[number], columns=SCHEMA.names, use_threads=False
        ):
            low, high = np.searchsorted(numbers, [begin, begin + len(batch)])
            offsets = numbers[low:high] - begin
            batch_rows = batch.take(pa.array(offsets)).to_pylist()
            yield from zip((begin + offsets).tolist(), batch_rows, strict=True)
            begin += len(batch)
            if begin > rows[-1]:
                return


def _row(phase: Phase, part: Part, group: Group, values: dict[str, Any]) -> LedgerRow:
    spans = tuple((span["start"], span["end"]) for span in values["spans"] or ())
    return LedgerRow(
        phase, part.unit, group, values["doc_key"], values["doc_id"], values["rule"],
        values["value"], values["threshold"], values["survivor_id"], spans, values["text"],
    )  # fmt: skip
