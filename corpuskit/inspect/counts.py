"""What the streaming phases of a run counted: profile parts added up, as numbers by key."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.records import LEFT, PROFILE, PROFILE_SCHEMA
from corpuskit.errors import DataError
from corpuskit.inspect.archive import select

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, Seal

MAX_PARTS = 1000  # profile parts that are read, chosen evenly: some milliseconds and kilobytes each
MAX_DOMAINS = 20_000  # rows of domains in memory, the most frequent ones; the rest loses its name
_HELD = 64  # parts in memory at a time

_KEYS = ["phase", "at", "what", "field", "name", "source", "bin"]
_SCHEMA = pa.schema([("phase", pa.string()), *PROFILE_SCHEMA])


ACTIONS = {"dropped": "drop", "cut": "cut", "replace": "replace"}
"""First part of the counters of ledger rows -> action in the ledger."""


@dataclasses.dataclass(frozen=True)
class Sampled:
    """How much of something was read, where that is not all."""

    parts_read: int
    parts: int


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Whether a streaming phase is finished (`all`, else `none`); sampled: None = all was read."""

    recorded: str
    sampled: Sampled | None


@dataclasses.dataclass(frozen=True)
class Pair:
    """Documents and the bytes of their texts."""

    documents: int = 0
    text_bytes: int = 0


class ProfileTotals:
    """What the profile parts of a run say together.

    Args:
        table: columns phase, those of the profile schema; one row per key.
        last: the last phase whose documents are counted as they left it; "" without any.
    """

    def __init__(self, table: pa.Table, coverage: Coverage, last: str) -> None:
        self.coverage, self.last = coverage, last
        self._rows: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in table.to_pylist():
            self._rows[row["at"], row["what"]].append(row)

    @property
    def is_whole(self) -> bool:
        """Whether every cell was counted and read: sums are those of the run."""
        return self.coverage.recorded == "all" and self.coverage.sampled is None

    def rows(self, at: str, what: str) -> Iterator[dict[str, Any]]:
        """Yield what was counted at a stage, when read, or as the last phase left it."""
        for row in self._rows.get((at, what), ()):
            if at != LEFT or row["phase"] == self.last:
                yield row

    def by_source(self, at: str, what: str) -> dict[str, Pair]:
        """Return the sums by source."""
        return _by_source(self.rows(at, what))

    def left_of(self, phase: str) -> dict[str, Pair]:
        """Return documents and bytes as any phase left them, by source."""
        rows = self._rows.get((LEFT, "length"), ())
        return _by_source(row for row in rows if row["phase"] == phase)

    def has(self, at: str) -> bool:
        """Return whether anything was counted at a stage."""
        return (at, "seen") in self._rows


def _by_source(rows: Iterable[dict[str, Any]]) -> dict[str, Pair]:
    sums: dict[str, Pair] = {}
    for row in rows:
        before = sums.get(row["source"], Pair())
        sums[row["source"]] = Pair(
            before.documents + row["documents"], before.text_bytes + row["text_bytes"]
        )
    return sums


def read_counts(
    run: RunDirectory, finished: Sealed, max_parts: int = MAX_PARTS, *, at: str | None = None
) -> ProfileTotals:
    """Return what profile parts say, added up.

    Args:
        max_parts: to read, chosen evenly from each phase.
        at: read what was counted at this stage only.

    Raises:
        DataError: one cannot be read.
    """
    streams = [(phase, seal) for phase, seal in finished if phase.is_stream]
    by_phase = [(phase, seal.by_role(PROFILE)) for phase, seal in streams]
    total = sum(len(parts) for _, parts in by_phase)
    step = max(-(-total // max_parts), 1)
    sampled_parts = [(phase, parts[::step]) for phase, parts in by_phase if len(parts)]
    last = streams[-1][0].name if streams and len(by_phase[-1][1]) else ""
    listed = [(phase, part) for phase, parts in sampled_parts for part in parts]
    table, num = _summed(run, listed, last, at)
    sampled = Sampled(num, total) if num < total else None
    return ProfileTotals(table, Coverage("all" if listed else "none", sampled), last)


def _summed(
    run: RunDirectory, parts: Sequence[tuple[Phase, Part]], last: str, at: str | None
) -> tuple[pa.Table, int]:
    """Return the sums of all parts, and how many were there; few are in memory at a time."""
    total, num = _SCHEMA.empty_table(), 0
    for begin in range(0, len(parts), _HELD):
        window = parts[begin : begin + _HELD]
        tables = [_read(run, phase, part, last, at) for phase, part in window]
        present = [table for table in tables if table is not None]
        num += len(present)
        total = _short(_add_up(pa.concat_tables([total, *present])))
    return total, num


def _add_up(table: pa.Table) -> pa.Table:
    sums = [("documents", "sum"), ("text_bytes", "sum")]
    sums_of = table.group_by(_KEYS, use_threads=False).aggregate(sums)
    return sums_of.rename_columns([*_KEYS, "documents", "text_bytes"]).select(_SCHEMA.names)


def _short(table: pa.Table) -> pa.Table:
    """Return a table in which rare domains, if there are very many, have lost their names."""
    is_domain = pc.equal(table.column("what"), "domain")
    domains = table.filter(is_domain)
    if domains.num_rows <= MAX_DOMAINS:
        return table
    domains = domains.sort_by([("documents", "descending"), ("name", "ascending")])
    rare = domains.slice(MAX_DOMAINS)
    index = rare.schema.get_field_index("name")
    rare = rare.set_column(index, "name", pa.nulls(rare.num_rows, pa.string()))
    others = table.filter(pc.invert(is_domain))
    return _add_up(pa.concat_tables([others, domains.slice(0, MAX_DOMAINS), rare]))


def _read(
    run: RunDirectory, phase: Phase, part: Part, last: str, at: str | None
) -> pa.Table | None:
    """Return a part, without the names that documents had when they left a phase in between.

    None if it is gone: a run that goes on may have replaced it since its seal was read.
    """
    try:
        condition = None if at is None else pc.field("at") == at
        table = select(run.at(part), None, condition, schema=PROFILE_SCHEMA, use_threads=False)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{run.store.where(part.path)}: cannot be read: {error}. Delete it, run again."
        ) from None
    if phase.name != last:
        is_between = pc.and_(
            pc.equal(table.column("at"), LEFT), pc.not_equal(table.column("what"), "length")
        )
        table = table.filter(pc.invert(is_between))
    names = pa.repeat(pa.scalar(phase.name, pa.string()), table.num_rows)
    return table.add_column(0, "phase", names)


def ledger_counts(seal: Seal) -> Iterator[tuple[tuple[str, str, str, str], int]]:
    """Yield (action, stage, rule, source) of ledger rows, and how many a phase has written."""
    for name, value in seal.counters.items():
        kind, _, path = name.partition("/")
        if kind in ACTIONS and path.count("/") >= 2:
            stage, rule, source = path.split("/", 2)
            yield (ACTIONS[kind], stage, rule, source), value


def top_names(rows: Iterable[dict[str, Any]], limit: int) -> tuple[list[str], bool]:
    """Return the most frequent names of rows, and whether others are left out."""
    totals: defaultdict[str, int] = defaultdict(int)
    is_cut = False
    for row in rows:
        if row["name"] is None:
            is_cut = True
        else:
            totals[row["name"]] += row["documents"]
    order = sorted(totals, key=lambda name: (-totals[name], name))
    return order[:limit], is_cut or len(order) > limit
