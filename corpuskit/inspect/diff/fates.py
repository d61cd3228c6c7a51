"""What became of every document of a run, read in ranges of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.formats.batch import numbers, utf8
from corpuskit.inspect.samples.kept import kept_shards
from corpuskit.storage import open_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, RoleParts

ABSENT, KEPT = 0, 1
"""Codes of fates; from 2 on they name a stage and a rule."""


MOST_NAMES = 100_000
"""Rules with a number of their own; other people's code may give each document a reason."""


class FateNames:
    """Numbers stages and rules as they are met."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}
        self.names: list[tuple[str, str]] = [("", ""), ("", "")]

    def code(self, stage: str, rule: str) -> int:
        """Return the code of what a rule drops."""
        if (stage, rule) not in self._codes and len(self.names) > MOST_NAMES:
            rule = "(other rules)"
        if (stage, rule) not in self._codes:
            self._codes[stage, rule] = len(self.names)
            self.names.append((stage, rule))
        return self._codes[stage, rule]


class Fates(NamedTuple):
    """Documents in the order of their keys.

    Attributes:
        keys: (N,) int64, ascending, no two alike.
        codes: (N,) int32: KEPT, or what dropped the document.
        texts: (N,) uint64: hash of the text as it was kept, 0 where that was not read.
        survivors: (N,) uint64: hash of the id of the document that was kept instead, or 0.
        ids: (N,) uint64: hash of the id, 0 where that was not asked for.
    """

    keys: NDArray[np.int64]
    codes: NDArray[np.int32]
    texts: NDArray[np.uint64]
    survivors: NDArray[np.uint64]
    ids: NDArray[np.uint64]

    def take(self, rows: NDArray[np.intp]) -> Fates:
        """Return some of them."""
        return Fates(
            self.keys[rows], self.codes[rows], self.texts[rows], self.survivors[rows],
            self.ids[rows],
        )  # fmt: skip


class FateReader:
    """Reads what became of documents from the ledger and the last document shards.

    Args:
        finished: phases to believe.
        names: numbers fates; readers that share it can be compared.
        ignored: stages whose drops do not count: such documents were kept so far.
        with_texts: hash the texts of kept documents.
        with_ids: hash ids.
    """

    def __init__(
        self, run: RunDirectory, finished: Sealed, names: FateNames, *,
        ignored: frozenset[str] = frozenset(), with_texts: bool = False, with_ids: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.names, self.ignored = run, names, ignored
        self.with_texts, self.with_ids = with_texts, with_ids
        found = (seal.by_role("ledger") for _, seal in finished)
        self.ledgers = [_Ordered(parts) for parts in found if len(parts)]
        self.shards = kept_shards(run, finished)
        self._kept = _Ordered(self.shards.parts) if self.shards else None

    def rows(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Return (first key, last key, rows) of the files that hold documents of a range."""
        every = [*self.ledgers, *([self._kept] if self._kept else [])]
        return [(p.first, p.last, p.rows) for parts in every for p in parts.within(low, high)]

    def read(self, low: int, high: int) -> Fates:
        """Return what became of the documents with keys in `[low, high)`."""
        pieces = [*self._dropped(low, high), *self._living(low, high)]
        if not pieces:
            empty = np.empty(0, np.uint64)
            return Fates(np.empty(0, np.int64), np.empty(0, np.int32), empty, empty, empty)
        whole = Fates(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        # Drops come first: of a document that a phase to be ignored dropped, nothing else is known.
        return whole.take(np.unique(whole.keys, return_index=True)[1])

    def _dropped(self, low: int, high: int) -> Iterator[Fates]:
        columns = [
            "doc_key",
            "stage",
            "rule",
            "survivor_id",
            *(["doc_id"] if self.with_ids else []),
        ]
        within = (pc.field("doc_key") >= low) & (pc.field("doc_key") < high)
        for parts in self.ledgers:
            for part in parts.within(low, high):
                with open_whole(self.run.at(part)) as file:
                    table = pq.read_table(
                        file, columns=columns, filters=within & (pc.field("action") == "drop"),
                        partitioning=None, use_threads=False,
                        read_dictionary=["stage", "rule"],
                    )  # fmt: skip
                if table.num_rows:
                    yield self._fates(table)

    def _fates(self, table: pa.Table) -> Fates:
        keys = numbers(table.column("doc_key"))
        none = np.zeros(len(keys), np.uint64)
        survivors = table.column("survivor_id")
        if survivors.null_count < len(survivors):
            hashes = _hashed(survivors.fill_null(""))
            survivors = np.where(numbers(survivors.is_valid()), hashes, np.uint64(0))
        else:
            survivors = none
        ids = _hashed(table.column("doc_id")) if self.with_ids else none
        return Fates(keys, self._codes(table), none, survivors, ids)

    def _codes(self, table: pa.Table) -> NDArray[np.int32]:
        """Return the codes of ledger rows."""
        columns = [table.column(name).unify_dictionaries() for name in ("stage", "rule")]
        whole = [column.combine_chunks() for column in columns]
        coded = [one.chunk(0) if isinstance(one, pa.ChunkedArray) else one for one in whole]
        stages, rules = (one.indices.to_numpy().astype(np.int64) for one in coded)
        labels, reasons = (one.dictionary.to_pylist() for one in coded)
        # Reasons may have details behind a colon: many of them, and one rule.
        pairs, places = np.unique(stages * len(reasons) + rules, return_inverse=True)
        found = np.empty(len(pairs), np.int32)
        for at, pair in enumerate(pairs.tolist()):
            stage, reason = labels[pair // len(reasons)], reasons[pair % len(reasons)]
            is_ignored = stage in self.ignored
            found[at] = KEPT if is_ignored else self.names.code(stage, reason.partition(": ")[0])
        return found[places]

    def _living(self, low: int, high: int) -> Iterator[Fates]:
        if self.shards is None or self._kept is None:
            return
        columns = [
            "key",
            *(["text"] if self.with_texts else []),
            *(["id"] if self.with_ids else []),
        ]
        for part in self._kept.within(low, high):
            for batch in self.shards.read(part, columns):
                keys = numbers(batch.column("key"))
                mine = np.flatnonzero((keys >= low) & (keys < high))
                if not len(mine):
                    continue
                none = np.zeros(len(keys), np.uint64)
                texts = _hashed(batch.column("text")) if self.with_texts else none
                ids = _hashed(batch.column("id")) if self.with_ids else none
                codes = np.full(len(keys), KEPT, np.int32)
                yield Fates(keys, codes, texts, none, ids).take(mine)


class _Ordered:
    """The parts of a role, found by key without a look at all of them."""

    def __init__(self, parts: RoleParts) -> None:
        first, last = parts.column("first"), parts.column("last")
        order = np.argsort(first, kind="stable")
        self._parts, self._places = parts, order
        self._first = first[order]
        self._last = np.maximum.accumulate(last[order])

    def within(self, low: int, high: int) -> Iterator[Part]:
        """Yield the parts that may hold keys in `[low, high)`."""
        begin = int(np.searchsorted(self._last, low, "left"))
        end = int(np.searchsorted(self._first, high, "left"))
        for place in self._places[begin:end].tolist():
            part = self._parts[place]
            if part.last >= low:
                yield part


def _hashed(column: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 64 bits of each string, never 0."""
    from corpuskit.kernels.hashing import hash_texts  # loads numba

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    high, _ = hash_texts(*utf8(column.cast(pa.large_string())))
    found: NDArray[np.uint64] = np.maximum(high, np.uint64(1))
    return found
