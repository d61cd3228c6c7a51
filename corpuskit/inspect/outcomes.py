"""Documents whose outcome is not the same in two runs: joined range by range, counted."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.batch import POSITION_BITS, numbers, utf8
from corpuskit.inspect.archive import kept_shards, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.stage import InputFile


WINDOW_ROWS = 1 << 20  # documents of either run in memory at a time, about
ID_ROWS = 1 << 23  # the same, where documents are matched by their ids

SAME, OUTCOME, TEXT, SURVIVOR = 0, 1, 2, 3
"""How a document differs: in its outcome; kept with another text; another one was kept instead."""

_CODE_BITS = 20


class Key(NamedTuple):
    """What documents that changed alike have in common: how, and their codes in both runs."""

    how: int
    code_a: int
    code_b: int


@dataclasses.dataclass
class SourceCount:
    """Documents of one source.

    Attributes:
        documents_a, documents_b: that a run read, dropped ones included.
        kept_both: kept in both runs.
        changed: whose outcome, text or survivor is not the same, those of one run only included.
        shared_ids: that have an id which an earlier document of their run has; not compared.
    """

    documents_a: int = 0
    documents_b: int = 0
    kept_a: int = 0
    kept_b: int = 0
    in_both: int = 0
    kept_both: int = 0
    changed: int = 0
    shared_ids: int = 0


class Changes:
    """Counts of documents that changed, by kind of change and source."""

    def __init__(self) -> None:
        self.counts: defaultdict[Key, Counter[str]] = defaultdict(Counter)
        self.sources: defaultdict[str, SourceCount] = defaultdict(SourceCount)

    def add(self, source: str, joined: JoinedDocuments) -> None:
        """Count joined documents of a source."""
        codes_a, codes_b = joined.codes_a, joined.codes_b
        count = self.sources[source]
        count.documents_a += int((codes_a != ABSENT).sum())
        count.documents_b += int((codes_b != ABSENT).sum())
        count.in_both += int(((codes_a != ABSENT) & (codes_b != ABSENT)).sum())
        count.kept_a += int((codes_a == KEPT).sum())
        count.kept_b += int((codes_b == KEPT).sum())
        count.kept_both += int(((codes_a == KEPT) & (codes_b == KEPT)).sum())
        rows = np.flatnonzero(joined.how != SAME)
        count.changed += len(rows)
        if not len(rows):
            return
        codes = joined.how[rows].astype(np.int64) << (2 * _CODE_BITS)
        codes |= codes_a[rows].astype(np.int64) << _CODE_BITS
        codes |= codes_b[rows].astype(np.int64)
        kinds, places = np.unique(codes, return_inverse=True)
        mask = (1 << _CODE_BITS) - 1
        for at, kind in enumerate(kinds.tolist()):
            key = Key(kind >> (2 * _CODE_BITS), (kind >> _CODE_BITS) & mask, kind & mask)
            self.counts[key][source] += int((places == at).sum())


class JoinedDocuments(NamedTuple):
    """Documents of both runs, (N,) each; a code is ABSENT where a run does not have the document.

    Attributes:
        how: SAME, OUTCOME, TEXT or SURVIVOR.
    """

    codes_a: NDArray[np.int32]
    codes_b: NDArray[np.int32]
    how: NDArray[np.uint8]


def join(
    values_a: NDArray[np.uint64],
    outcomes_a: Outcomes,
    values_b: NDArray[np.uint64],
    outcomes_b: Outcomes,
) -> JoinedDocuments:
    """Match documents by equal values.

    Args:
        values_a, values_b: of each document; no two of a run alike, in any order.
    """
    values = np.union1d(values_a, values_b)
    sides = []
    for mine, outcomes in ((values_a, outcomes_a), (values_b, outcomes_b)):
        places = np.searchsorted(values, mine)
        columns = []
        for column in (outcomes.codes, outcomes.texts, outcomes.survivors):
            spread = np.zeros(len(values), column.dtype)  # a code of 0 is ABSENT
            spread[places] = column
            columns.append(spread)
        sides.append(columns)
    (codes_a, texts_a, left), (codes_b, texts_b, right) = sides
    how = np.where(codes_a == codes_b, SAME, OUTCOME).astype(np.uint8)
    has_both = (how == SAME) & (texts_a != 0) & (texts_b != 0)
    how[has_both & (texts_a != texts_b)] = TEXT
    how[(how == SAME) & (codes_a > KEPT) & (left != right)] = SURVIVOR
    return JoinedDocuments(codes_a, codes_b, how)


def find_changes(reader_a: OutcomeReader, reader_b: OutcomeReader, pairing: Pairing) -> Changes:
    """Compare all documents of two runs.

    Memory is bounded by WINDOW_ROWS, or ID_ROWS where ids are matched, not by the runs.
    """
    changes = Changes()
    pairs: list[tuple[InputFile | None, InputFile | None]] = [*pairing.pairs]
    pairs += [(file, None) for file in pairing.only_a]
    pairs += [(None, file) for file in pairing.only_b]
    for file_a, file_b in pairs:
        [source, *_] = [file.source for file in (file_a, file_b) if file is not None]
        for low, high in _windows(reader_a, reader_b, file_a, file_b):
            outcomes_a, outcomes_b = (
                _read(reader_a, file_a, low, high),
                _read(reader_b, file_b, low, high),
            )
            values_a, values_b = (
                (outcomes.keys & ((1 << POSITION_BITS) - 1)).astype(np.uint64)
                for outcomes in (outcomes_a, outcomes_b)
            )
            changes.add(source, join(values_a, outcomes_a, values_b, outcomes_b))
    for source, (files_a, files_b) in pairing.by_id.items():
        _by_id(changes, source, (reader_a, files_a), (reader_b, files_b))
    return changes


def _read(reader: OutcomeReader, file: InputFile | None, low: int, high: int) -> Outcomes:
    first = 0 if file is None else file.ordinal << POSITION_BITS
    return reader.read(first, first) if file is None else reader.read(first + low, first + high)


def _windows(
    reader_a: OutcomeReader,
    reader_b: OutcomeReader,
    file_a: InputFile | None,
    file_b: InputFile | None,
) -> Iterator[tuple[int, int]]:
    """Yield ranges of positions that hold about WINDOW_ROWS documents each."""
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    rows: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    end = 1 << POSITION_BITS
    for reader, file in ((reader_a, file_a), (reader_b, file_b)):
        if file is None:
            continue
        begin = file.ordinal << POSITION_BITS
        for first, last, count in reader.rows(begin, begin + end):
            # A file is taken to be even; a large one is read in pieces.
            pieces = -(-count // WINDOW_ROWS) or 1
            spread = np.linspace(first, last, pieces, endpoint=False).astype(np.int64)
            starts.append(np.maximum(spread - begin, 0))
            rows.append(np.full(pieces, count // pieces, np.int64))
    places, sizes = np.concatenate(starts), np.concatenate(rows)
    order = np.argsort(places, kind="stable")
    places, sizes = places[order], sizes[order]
    windows = (np.cumsum(sizes) - sizes) // WINDOW_ROWS
    firsts = np.unique(windows, return_index=True)[1]
    cuts = [0, *np.unique(places[firsts[1:]]).tolist(), end]
    for low, high in itertools.pairwise(cuts):
        if low < high:
            yield low, high


def _by_id(
    changes: Changes, source: str, *sides: tuple[OutcomeReader, Sequence[InputFile]]
) -> None:
    """Compare the documents of some files by the hashes of their ids, a share of them at a time."""
    end = 1 << POSITION_BITS
    total = sum(
        rows
        for reader, files in sides
        for file in files
        for _, _, rows in reader.rows(file.ordinal << POSITION_BITS, (file.ordinal + 1) * end)
    )
    shares = -(-total // ID_ROWS) or 1
    for share in range(shares):
        (ids_a, outcomes_a), (ids_b, outcomes_b) = (
            _with_ids(changes.sources[source], reader, files, share, shares)
            for reader, files in sides
        )
        changes.add(source, join(ids_a, outcomes_a, ids_b, outcomes_b))


def _with_ids(
    count: SourceCount, reader: OutcomeReader, files: Sequence[InputFile], share: int, shares: int
) -> tuple[NDArray[np.uint64], Outcomes]:
    """Return the documents of a share of all ids, of each id the first."""
    pieces = [reader.read(0, 0)]
    for file in files:
        for low, high in _windows(reader, reader, file, None):
            outcomes = _read(reader, file, low, high)
            mine = np.flatnonzero(outcomes.ids % np.uint64(shares) == share)
            pieces.append(outcomes.take(mine))
    whole = Outcomes(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    rows = np.unique(whole.ids, return_index=True)[1]
    count.shared_ids += len(whole.ids) - len(rows)
    return whole.ids[rows], whole.take(rows)


ABSENT, KEPT = 0, 1  # codes of outcomes; from 2 on they name a stage and a rule


# ---------------------------------------------------------------- outcomes of a run

MOST_NAMES = 100_000
"""Rules with a number of their own; other people's code may give each document a reason."""


class OutcomeNames:
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


class Outcomes(NamedTuple):
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

    def take(self, rows: NDArray[np.intp]) -> Outcomes:
        """Return some of them."""
        return Outcomes(
            self.keys[rows], self.codes[rows], self.texts[rows], self.survivors[rows],
            self.ids[rows],
        )  # fmt: skip


class OutcomeReader:
    """Reads what became of documents from the ledger and the last document shards.

    Args:
        finished: phases to believe.
        names: numbers outcomes; readers that share it can be compared.
        ignored: stages whose drops do not count: such documents were kept so far.
        with_texts: hash the texts of kept documents.
        with_ids: hash ids.
    """

    def __init__(
        self, run: RunDirectory, finished: Sealed, names: OutcomeNames, *,
        ignored: frozenset[str] = frozenset(), with_texts: bool = False, with_ids: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.names, self.ignored = run, names, ignored
        self.with_texts, self.with_ids = with_texts, with_ids
        ledgers = (seal.by_role("ledger") for _, seal in finished)
        self.ledgers = [parts for parts in ledgers if len(parts)]
        self.shards = kept_shards(run, finished)

    def rows(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Return (first key, last key, rows) of the files that hold documents of a range."""
        every = [*self.ledgers, *([self.shards.parts] if self.shards else [])]
        return [(p.first, p.last, p.rows) for parts in every for p in parts.within(low, high)]

    def read(self, low: int, high: int) -> Outcomes:
        """Return what became of the documents with keys in `[low, high)`."""
        pieces = [*self._dropped(low, high), *self._living(low, high)]
        if not pieces:
            empty = np.empty(0, np.uint64)
            return Outcomes(np.empty(0, np.int64), np.empty(0, np.int32), empty, empty, empty)
        whole = Outcomes(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
        # Drops come first: of a document that a phase to be ignored dropped, nothing else is known.
        return whole.take(np.unique(whole.keys, return_index=True)[1])

    def _dropped(self, low: int, high: int) -> Iterator[Outcomes]:
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
                table = select(
                    self.run.at(part), columns, within & (pc.field("action") == "drop"),
                    use_threads=False, read_dictionary=["stage", "rule"],
                )  # fmt: skip
                if table.num_rows:
                    yield self._outcomes(table)

    def _outcomes(self, table: pa.Table) -> Outcomes:
        keys = numbers(table.column("doc_key"))
        none = np.zeros(len(keys), np.uint64)
        survivors = table.column("survivor_id")
        if survivors.null_count < len(survivors):
            hashes = _hashed(survivors.fill_null(""))
            survivors = np.where(numbers(survivors.is_valid()), hashes, np.uint64(0))
        else:
            survivors = none
        ids = _hashed(table.column("doc_id")) if self.with_ids else none
        return Outcomes(keys, self._codes(table), none, survivors, ids)

    def _codes(self, table: pa.Table) -> NDArray[np.int32]:
        columns = [table.column(name).unify_dictionaries() for name in ("stage", "rule")]
        whole = [column.combine_chunks() for column in columns]
        coded = [
            column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in whole
        ]
        stages, rules = (column.indices.to_numpy().astype(np.int64) for column in coded)
        labels, reasons = (column.dictionary.to_pylist() for column in coded)
        # Reasons may have details after a colon: many of them, and one rule.
        pairs, places = np.unique(stages * len(reasons) + rules, return_inverse=True)
        codes = np.empty(len(pairs), np.int32)
        for at, pair in enumerate(pairs.tolist()):
            stage, reason = labels[pair // len(reasons)], reasons[pair % len(reasons)]
            is_ignored = stage in self.ignored
            codes[at] = KEPT if is_ignored else self.names.code(stage, reason.partition(": ")[0])
        return codes[places]

    def _living(self, low: int, high: int) -> Iterator[Outcomes]:
        if self.shards is None:
            return
        columns = [
            "key",
            *(["text"] if self.with_texts else []),
            *(["id"] if self.with_ids else []),
        ]
        for part in self.shards.parts.within(low, high):
            for batch in self.shards.read(part, columns):
                keys = numbers(batch.column("key"))
                mine = np.flatnonzero((keys >= low) & (keys < high))
                if not len(mine):
                    continue
                none = np.zeros(len(keys), np.uint64)
                texts = _hashed(batch.column("text")) if self.with_texts else none
                ids = _hashed(batch.column("id")) if self.with_ids else none
                codes = np.full(len(keys), KEPT, np.int32)
                yield Outcomes(keys, codes, texts, none, ids).take(mine)


def _hashed(column: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return 64 bits of each string, never 0."""
    from corpuskit.kernels.hashing import hash_texts  # loads numba

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    high, _ = hash_texts(*utf8(column.cast(pa.large_string())))
    hashes: NDArray[np.uint64] = np.maximum(high, np.uint64(1))
    return hashes


# ---------------------------------------------------------------- input files of both runs


@dataclasses.dataclass(frozen=True)
class Pairing:
    """The input files of two runs.

    Attributes:
        pairs: files of the same source and name, read alike: documents are matched by where they
            are in them.
        by_id: source -> its other files in either run, whose documents are matched by their ids.
        only_a, only_b: files that the other run has nothing for.
        notes: what had to be taken for granted.
    """

    pairs: tuple[tuple[InputFile, InputFile], ...]
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]]
    only_a: tuple[InputFile, ...]
    only_b: tuple[InputFile, ...]
    notes: tuple[str, ...]


def pair_files(run_a: RunDirectory, run_b: RunDirectory) -> Pairing:
    """Return the pairing of the input files of two runs."""
    files_a, files_b = ({(f.source, f.name): f for f in run.inputs.files} for run in (run_a, run_b))
    pairs: list[tuple[InputFile, InputFile]] = []
    rest_a: dict[str, list[InputFile]] = {}
    rest_b: dict[str, list[InputFile]] = {}
    changed: dict[str, int] = {}
    for place, file in files_a.items():
        match = files_b.get(place)
        is_same = match is not None and (file.size_bytes, file.stamp) == (
            match.size_bytes, match.stamp
        )  # fmt: skip
        if match is not None and not is_same:
            changed[file.source] = changed.get(file.source, 0) + 1
        if match is None or not (is_same or not _has_ids(run_a, run_b, file.source)):
            rest_a.setdefault(file.source, []).append(file)
            if match is not None:
                rest_b.setdefault(file.source, []).append(match)
        else:
            pairs.append((file, match))
    for place, file in files_b.items():
        if place not in files_a:
            rest_b.setdefault(file.source, []).append(file)
    both = sorted(rest_a.keys() & rest_b.keys())
    by_id = {name: (rest_a.pop(name), rest_b.pop(name))
             for name in both if _has_ids(run_a, run_b, name)}  # fmt: skip
    only_a, only_b = (
        tuple(f for files in rest.values() for f in files) for rest in (rest_a, rest_b)
    )
    notes = _notes(run_a, run_b, by_id, changed, sorted({file.source for file, _ in pairs}))
    return Pairing(tuple(pairs), by_id, only_a, only_b, tuple(notes))


def _has_ids(run_a: RunDirectory, run_b: RunDirectory, source: str) -> bool:
    """Return whether the documents of a source have ids of their own in both runs."""
    for run in (run_a, run_b):
        stages = [s.stage for s in run.plan.file.sources if s.label == source]
        if not stages:
            return False
        if not (getattr(stages[0], "id_column", None) or getattr(stages[0], "ids", "") == "record"):
            return False
    return True


def _notes(
    run_a: RunDirectory, run_b: RunDirectory,
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]], changed: dict[str, int],
    paired: Sequence[str],
) -> list[str]:  # fmt: skip
    notes = [
        f"{name}: {len(left)} and {len(right)} files are not the same in both runs; their "
        "documents are matched by their ids."
        for name, (left, right) in by_id.items()
    ]
    notes += [
        f"{name}: {count} files have another size or date than in the other run, and their "
        "documents have no ids: they are matched by their position in the file."
        for name, count in changed.items()
        if name not in by_id
    ]
    for name in paired:
        steps = [
            next(s for s in run.plan.file.sources if s.label == name) for run in (run_a, run_b)
        ]
        params = [(s.name, s.stage.model_dump(exclude={"paths", "columns"})) for s in steps]
        if params[0] != params[1]:
            notes.append(
                f"{name}: the runs read it with other parameters, so that documents at the same "
                "place of a file may not be the same."
            )
    return notes
