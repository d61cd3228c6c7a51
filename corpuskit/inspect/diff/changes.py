"""Documents whose fate is not the same in two runs: joined range by range, counted and sampled."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.formats.batch import POSITION_BITS
from corpuskit.inspect.diff.fates import ABSENT, KEPT, Fates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.inspect.diff.fates import FateReader
    from corpuskit.inspect.diff.pairing import Pairing
    from corpuskit.stage import InputFile

WINDOW_ROWS = 1 << 20
"""About so many documents of either run are in memory at a time."""

ID_ROWS = 1 << 23
"""So many, where documents are matched by their ids."""

SAME, FATE, TEXT, SURVIVOR = 0, 1, 2, 3
"""How a document differs: in its fate; kept with another text; another one was kept instead."""

_CODE_BITS = 20


class Key(NamedTuple):
    """What documents that changed alike have in common: how, and their codes in both runs."""

    how: int
    code_a: int
    code_b: int


class Pick(NamedTuple):
    """A document to show; a key is None in a run that does not have it."""

    mark: int
    source: str
    key_a: int | None
    key_b: int | None


@dataclasses.dataclass
class SourceCount:
    """Documents of one source.

    Attributes:
        documents_a, documents_b: that a run read, dropped ones included.
        kept_both: kept in both runs.
        changed: whose fate, text or survivor is not the same, those of one run only included.
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
    """Counts and samples of documents that changed.

    Args:
        samples: documents to pick of each kind of change.
        seed: another one picks others.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.counts: defaultdict[Key, Counter[str]] = defaultdict(Counter)
        self.picks: defaultdict[Key, list[Pick]] = defaultdict(list)
        self.sources: defaultdict[str, SourceCount] = defaultdict(SourceCount)
        self._samples, self._seed = samples, seed

    def add(self, source: str, joined: Joined) -> None:
        """Count joined documents of a source."""
        one, other = joined.codes_a, joined.codes_b
        count = self.sources[source]
        count.documents_a += int((one != ABSENT).sum())
        count.documents_b += int((other != ABSENT).sum())
        count.in_both += int(((one != ABSENT) & (other != ABSENT)).sum())
        count.kept_a += int((one == KEPT).sum())
        count.kept_b += int((other == KEPT).sum())
        count.kept_both += int(((one == KEPT) & (other == KEPT)).sum())
        rows = np.flatnonzero(joined.how != SAME)
        count.changed += len(rows)
        if not len(rows):
            return
        codes = joined.how[rows].astype(np.int64) << (2 * _CODE_BITS)
        codes |= one[rows].astype(np.int64) << _CODE_BITS
        codes |= other[rows].astype(np.int64)
        kinds, places = np.unique(codes, return_inverse=True)
        mask = (1 << _CODE_BITS) - 1
        for at, kind in enumerate(kinds.tolist()):
            key = Key(kind >> (2 * _CODE_BITS), (kind >> _CODE_BITS) & mask, kind & mask)
            mine = rows[places == at]
            self.counts[key][source] += len(mine)
            self._pick(key, source, joined, mine)

    def _pick(self, key: Key, source: str, joined: Joined, rows: NDArray[np.intp]) -> None:
        if not self._samples:
            return
        marks = _marks(joined.values[rows], self._seed)
        few = np.argsort(marks, kind="stable")[: self._samples]
        some = [
            Pick(
                int(marks[at]),
                source,
                _key_at(joined.keys_a, joined.codes_a, int(rows[at])),
                _key_at(joined.keys_b, joined.codes_b, int(rows[at])),
            )
            for at in few.tolist()
        ]
        every = [*self.picks[key], *some]
        self.picks[key] = sorted(every, key=lambda one: one.mark)[: self._samples]


class Joined(NamedTuple):
    """Documents of both runs, (N,) each; a code is ABSENT where a run does not have the document.

    Attributes:
        values: what documents were matched by.
        how: SAME, FATE, TEXT or SURVIVOR.
    """

    values: NDArray[np.uint64]
    keys_a: NDArray[np.int64]
    keys_b: NDArray[np.int64]
    codes_a: NDArray[np.int32]
    codes_b: NDArray[np.int32]
    how: NDArray[np.uint8]


def join(
    values_a: NDArray[np.uint64], one: Fates, values_b: NDArray[np.uint64], other: Fates
) -> Joined:
    """Match documents by equal values.

    Args:
        values_a, values_b: of each document; no two of a run alike, in any order.
    """
    values = np.union1d(values_a, values_b)
    sides = []
    for mine, fates in ((values_a, one), (values_b, other)):
        places = np.searchsorted(values, mine)
        columns = []
        for column in (fates.keys, fates.codes, fates.texts, fates.survivors):
            spread = np.zeros(len(values), column.dtype)  # a code of 0 is ABSENT
            spread[places] = column
            columns.append(spread)
        sides.append(columns)
    (keys_a, codes_a, texts_a, left), (keys_b, codes_b, texts_b, right) = sides
    how = np.where(codes_a == codes_b, SAME, FATE).astype(np.uint8)
    has_both = (how == SAME) & (texts_a != 0) & (texts_b != 0)
    how[has_both & (texts_a != texts_b)] = TEXT
    how[(how == SAME) & (codes_a > KEPT) & (left != right)] = SURVIVOR
    return Joined(values, keys_a, keys_b, codes_a, codes_b, how)


def find_changes(
    one: FateReader, other: FateReader, pairing: Pairing, *, samples: int, seed: int
) -> Changes:
    """Compare all documents of two runs.

    Memory is bounded by WINDOW_ROWS, or ID_ROWS where ids are matched, not by the runs.
    """
    found = Changes(samples, seed)
    pairs: list[tuple[InputFile | None, InputFile | None]] = [*pairing.pairs]
    pairs += [(file, None) for file in pairing.only_a]
    pairs += [(None, file) for file in pairing.only_b]
    for file_a, file_b in pairs:
        source = file_a.source if file_a is not None else _source(file_b)
        for low, high in _windows(one, other, file_a, file_b):
            fates_a, fates_b = _read(one, file_a, low, high), _read(other, file_b, low, high)
            values_a, values_b = (_positions(fates) for fates in (fates_a, fates_b))
            found.add(source, join(values_a, fates_a, values_b, fates_b))
    for source, (files_a, files_b) in pairing.by_id.items():
        _by_id(found, source, (one, files_a), (other, files_b))
    return found


def _source(file: InputFile | None) -> str:
    assert file is not None, "a pair has a file on one side at least"
    return file.source


def _read(reader: FateReader, file: InputFile | None, low: int, high: int) -> Fates:
    """Return what became of documents at some positions of a file."""
    first = 0 if file is None else file.ordinal << POSITION_BITS
    return reader.read(first, first) if file is None else reader.read(first + low, first + high)


def _positions(fates: Fates) -> NDArray[np.uint64]:
    positions: NDArray[np.uint64] = (fates.keys & ((1 << POSITION_BITS) - 1)).astype(np.uint64)
    return positions


def _windows(
    one: FateReader, other: FateReader, file_a: InputFile | None, file_b: InputFile | None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of positions that hold about WINDOW_ROWS documents each."""
    starts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    rows: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    end = 1 << POSITION_BITS
    for reader, file in ((one, file_a), (other, file_b)):
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


def _by_id(found: Changes, source: str, *sides: tuple[FateReader, Sequence[InputFile]]) -> None:
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
        (ids_a, one), (ids_b, other) = (
            _with_ids(found.sources[source], reader, files, share, shares)
            for reader, files in sides
        )
        found.add(source, join(ids_a, one, ids_b, other))


def _with_ids(
    count: SourceCount, reader: FateReader, files: Sequence[InputFile], share: int, shares: int
) -> tuple[NDArray[np.uint64], Fates]:
    """Return the documents of a share of all ids, of each id the first."""
    pieces = [reader.read(0, 0)]
    for file in files:
        for low, high in _windows(reader, reader, file, None):
            fates = _read(reader, file, low, high)
            mine = np.flatnonzero(fates.ids % np.uint64(shares) == share)
            pieces.append(fates.take(mine))
    whole = Fates(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
    rows = np.unique(whole.ids, return_index=True)[1]
    count.shared_ids += len(whole.ids) - len(rows)
    return whole.ids[rows], whole.take(rows)


def _key_at(keys: NDArray[np.int64], codes: NDArray[np.int32], row: int) -> int | None:
    return None if codes[row] == ABSENT else int(keys[row])


def _marks(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return an order of documents that the seed and what they are matched by decide."""
    with np.errstate(over="ignore"):
        marks = (values ^ np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        marks = (marks ^ (marks >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return marks ^ (marks >> np.uint64(32))
