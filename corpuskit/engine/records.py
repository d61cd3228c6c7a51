"""What is recorded of each cell besides its documents.

Measures   what stages measured, a row per document, for `corpuskit tune`; one file per stage
Profile    counts before and after each stage: lengths, domains, languages, scores, measures, drops;
           exact over all documents, a few kilobytes per cell, for the report
Identities under which ids and URLs documents are found, for `corpuskit why`; one shuffle file,
           sorted by hash. Ids that a source derived from file and position need none.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import ShardWriter
from corpuskit.formats.shuffle_files import write_shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.stage import Outcome, StreamingStage, View

GROUP_ROWS = 1 << 16
"""Rows per row group."""

FIXED = {
    "key": pa.int64(),
    "id": pa.string(),
    "source": pa.string(),
    "text_bytes": pa.int64(),
    "code": pa.uint8(),
}
"""The columns before the measures."""

MEASURES = "measures:"
"""Role of the parts that hold measures, before the label of the stage."""


class Measures:
    """Collects what the stages of a cell measured.

    Used as a context manager: left through an exception it closes its files without a footer.

    Args:
        new_path: gives a scratch file, by its suffix.
    """

    def __init__(self, new_path: Callable[[str], Path]) -> None:
        self._new_path = new_path
        self._files: dict[str, MeasuresFile] = {}
        self._stack = contextlib.ExitStack()

    def add(self, label: str, view: View, outcome: Outcome) -> None:
        """Append a row for every document of the view that the stage saw.

        Raises:
            ValueError: a measure has the name of another column.
        """
        if label not in self._files:
            file = MeasuresFile(self._new_path(".parquet"), label, outcome.measures)
            self._files[label] = self._stack.enter_context(file)
        self._files[label].write(view, outcome)

    def files(self) -> list[MeasuresFile]:
        """Return the files, finished once the context was left."""
        return list(self._files.values())

    def __enter__(self) -> Measures:
        self._stack.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class MeasuresFile(ShardWriter):
    """The file of one stage: a row for each document; row groups do not depend on batches."""

    def __init__(self, path: Path, label: str, measures: Mapping[str, object]) -> None:
        clash = sorted(measures.keys() & FIXED.keys())
        if clash:
            raise ValueError(f"{label}: a measure cannot be called {clash[0]!r}. Rename the rule.")
        schema = pa.schema([*FIXED.items(), *((name, pa.float64()) for name in measures)])
        super().__init__(path, schema, use_dictionary=["source"], use_byte_stream_split=False)
        self.label = label
        self._waiting_rows = 0

    def write(self, view: View, outcome: Outcome) -> None:
        sizes = view.text.sizes()
        codes = np.zeros(view.num_docs, np.uint8) if outcome.codes is None else outcome.codes
        columns = {
            **{name: view.column(name) for name in ("key", "id", "source")},
            "text_bytes": pa.array(sizes, pa.int64()),
            "code": pa.array(codes, pa.uint8()),
            **{name: pa.array(values, pa.float64()) for name, values in outcome.measures.items()},
        }
        self._note(columns["key"], sizes)
        self._waiting.append(pa.record_batch(columns, self.schema))
        self._waiting_rows += view.num_docs
        while self._waiting_rows >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        """Write one row group, if there are rows; what is over waits."""
        if not self._waiting_rows:
            return
        table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
        self._writer.write_table(table.slice(0, GROUP_ROWS), row_group_size=GROUP_ROWS)
        self._waiting = table.slice(GROUP_ROWS).to_batches()
        self._waiting_rows = max(table.num_rows - GROUP_ROWS, 0)


# ---------------------------------------------------------------- the profile

PROFILE = "profile"
"""Role, and folder, of the parts that hold counts."""

PROFILE_SCHEMA = pa.schema(
    [
        ("at", pa.string()),
        ("what", pa.string()),
        ("field", pa.string()),
        ("name", pa.string()),
        ("source", pa.string()),
        ("bin", pa.int32()),
        ("documents", pa.int64()),
        ("text_bytes", pa.int64()),
    ]
)

READ, LEFT = "read", "left"
"""In `at`: as the phase of the inputs read documents, and as a phase leaves them."""

MAX_NAMES = {"domain": 1000, "value": 200}
"""Names of a kind that are kept per cell: the most frequent ones; the others lose theirs."""

MAX_NAME_BYTES = 253
"""Longer names are no domains (RFC 1035: 253 characters) and no labels; they lose their name."""

STEPS = 200
"""Bins of values up to 1."""

PER_OCTAVE = 16
"""Bins of each doubling above 1: whole numbers up to 16 have bins of their own."""

LAST = STEPS + 64 * PER_OCTAVE
"""The bin of everything from 2**64 on."""

_EDGES = np.array(
    [k / STEPS for k in range(STEPS + 1)]
    + [2 ** (k / PER_OCTAVE) for k in range(1, LAST - STEPS + 1)]
)
"""Upper edges of the bins from 0 on; looked up, since computing a bin rounds some edges up."""

_DOMAIN = (
    r"^[A-Za-z][A-Za-z0-9+.\-]*://(?:[^/?#@]*@)?(?:[wW]{3}\.)?"
    r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s\x00-\x20\x7f/?#:<>\"'\\^`{|}\[\]]+)(?:[/?#:]|$)"
)
"""The host of a URL by RFC 3986; with characters that no host has, there is no host."""


def bins(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each value: 0 for 0, 200 even steps up to 1, then 16 for each doubling.

    Negative values have the negative bin of their size.

    Args:
        values: (N,), none of them NaN.

    Returns:
        (N,) int64 in [-LAST, LAST].
    """
    size = np.abs(values)
    numbers = np.minimum(np.searchsorted(_EDGES, size), LAST)
    return np.where(values < 0, -numbers, numbers)


def edges(number: int) -> tuple[float, float]:
    """Return (low, high) of a bin: it holds `low < value <= high`, mirrored below 0; bin 0 holds 0.

    The last bin reaches to infinity.
    """
    if number < 0:
        low, high = edges(-number)
        return -high, -low
    high = np.inf if number >= LAST else float(_EDGES[number])
    return float(_EDGES[max(number - 1, 0)]), high


def measuring(stage: StreamingStage) -> StreamingStage:
    """Return the stage that the run uses: with `measures: true` where it has that parameter.

    Decisions are the same; it costs a third of the time of filters, 5 % of that of a pipeline with
    language identification (benchmarks/RESULTS.md). A stage whose parameters do not allow it
    stays unchanged.
    """
    fields = type(stage).model_fields
    if "measures" not in fields or getattr(stage, "measures", True):
        return stage
    values = {name: getattr(stage, name) for name in fields} | {"measures": True}
    try:
        return type(stage).model_validate(values)
    except ValueError:  # of pydantic, too
        return stage


class Profile:
    """Counts what passes through one cell.

    Args:
        source: of all documents of the cell.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._counts: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
        self._binned: dict[tuple[str, str, str], NDArray[np.int64]] = {}
        self._names_by_key: dict[tuple[str, str, str], dict[str | None, list[int]]] = {}

    def count_documents(self, at: str, view: View) -> None:
        """Count documents where they are read, or where they leave the phase."""
        sizes = view.text.sizes()
        self._histogram((at, "length", ""), sizes.astype(np.float64), sizes)
        urls = pc.struct_field(view.column("origin"), "url")
        if urls.null_count < len(urls):
            hosts = pc.struct_field(pc.extract_regex(urls, _DOMAIN), "name")
            self._names((at, "domain", ""), pc.utf8_lower(hosts), sizes)
        if at == LEFT:
            for index, field in enumerate(view.batch.schema):
                if "." in field.name and field.type == pa.string():
                    self._names((at, "value", field.name), view.batch.column(index), sizes)

    def applied(self, label: str, stage: StreamingStage, view: View, outcome: Outcome) -> None:
        sizes = view.text.sizes()
        self._add((label, "seen", ""), len(sizes), int(sizes.sum()))
        if outcome.codes is not None:
            self._dropped(label, stage, outcome, sizes)
        if outcome.text is not None:
            self._rewritten(label, view, outcome, sizes)
        for name, values in outcome.measures.items():
            self._histogram((label, "measure", name), values, sizes)
        for name, column in outcome.columns.items():
            if column.type == pa.string():
                self._names((label, "value", name), column, sizes)
            elif pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                numbers = column.cast(pa.float64(), safe=False).fill_null(float("nan"))
                self._histogram((label, "score", name), numbers.to_numpy(), sizes)

    def write(self, path: Path) -> int:
        """Write the counts and return how many rows there are; without any, nothing is written."""
        rows = [
            (*key, None, self._source, None, *counts)
            for key, counts in self._counts.items()
            if any(counts)
        ]
        for key, totals in self._binned.items():
            rows += [
                (*key, None, self._source, column - LAST, *totals[:, column].tolist())
                for column in np.flatnonzero(totals[0]).tolist()
            ]
        for key, by_name in self._names_by_key.items():
            rows += [
                (*key, name, self._source, None, *counts)
                for name, counts in _most_frequent(by_name, MAX_NAMES[key[1]])
            ]
        if rows:
            rows.sort(key=lambda row: (row[:3], row[3] is None, row[3] or "", row[5] or 0))
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, PROFILE_SCHEMA, strict=True)]
            with pa.OSFile(str(path), "wb") as file:
                pq.write_table(
                    pa.Table.from_arrays(arrays, schema=PROFILE_SCHEMA), file, compression="zstd"
                )
        return len(rows)

    def _dropped(
        self, label: str, stage: StreamingStage, outcome: Outcome, sizes: NDArray[np.int64]
    ) -> None:
        assert outcome.codes is not None, "called for stages that decide"
        rows = np.flatnonzero(outcome.codes)
        reasons = outcome.reasons_of(rows, stage.rules).dictionary_encode()
        indices = reasons.indices.to_numpy(zero_copy_only=False)
        for index, reason in enumerate(reasons.dictionary.to_pylist()):
            dropped_rows = rows[indices == index]
            size = int(sizes[dropped_rows].sum())
            self._add((label, "dropped", rule_of(reason)), len(dropped_rows), size)

    def _rewritten(
        self, label: str, view: View, outcome: Outcome, sizes: NDArray[np.int64]
    ) -> None:
        """Count documents that stay and whose text changed, and the bytes they lost."""
        assert outcome.text is not None, "called for stages that rewrite"
        stays = np.ones(len(sizes), np.bool_) if outcome.codes is None else outcome.codes == 0
        after = outcome.text.sizes()
        changed = np.flatnonzero(stays & (after != sizes))
        same_size = np.flatnonzero(stays & (after == sizes))
        if outcome.text.data is not view.text.data and len(same_size):
            rewritten = [r for r in same_size.tolist() if outcome.text.row(r) != view.text.row(r)]
            changed = np.append(changed, np.array(rewritten, np.int64))
        self._add(
            (label, "rewritten", ""), len(changed), int((sizes[changed] - after[changed]).sum())
        )

    def _add(self, key: tuple[str, str, str], documents: int, text_bytes: int) -> None:
        counts = self._counts[key]
        counts[0] += documents
        counts[1] += text_bytes

    def _histogram(
        self, key: tuple[str, str, str], values: NDArray[np.float64], sizes: NDArray[np.int64]
    ) -> None:
        is_number = ~np.isnan(values)
        if not is_number.all():
            values, sizes = values[is_number], sizes[is_number]
        if len(values) == 0:
            return
        columns, inverse, counts = np.unique(
            bins(values) + LAST, return_inverse=True, return_counts=True
        )
        totals = self._binned.setdefault(key, np.zeros((2, 2 * LAST + 1), np.int64))
        totals[0, columns] += counts
        summed = np.zeros(len(columns), np.int64)
        np.add.at(summed, inverse, sizes)
        totals[1, columns] += summed

    def _names(self, key: tuple[str, str, str], names: pa.Array, sizes: NDArray[np.int64]) -> None:
        encoded = names.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        values = encoded.dictionary.to_pylist()
        counts = np.bincount(indices, minlength=len(values))
        summed = np.zeros(len(values), np.int64)
        np.add.at(summed, indices, sizes)
        by_name = self._names_by_key.setdefault(key, {})
        for name, documents, text_bytes in zip(
            values, counts.tolist(), summed.tolist(), strict=True
        ):
            short = name if name and len(name.encode()) <= MAX_NAME_BYTES else None
            row = by_name.setdefault(short, [0, 0])
            row[0] += documents
            row[1] += text_bytes


def rule_of(reason: str) -> str:
    """Return the rule that counters name, of a reason that may have details after a colon."""
    return reason.partition(": ")[0].replace("/", "|")


def _most_frequent(
    by_name: Mapping[str | None, list[int]], limit: int
) -> list[tuple[str | None, list[int]]]:
    """Return the most frequent names, and what is left under no name."""
    others = list(by_name.get(None, [0, 0]))
    order = sorted(
        ((name, counts) for name, counts in by_name.items() if name is not None),
        key=lambda pair: (-pair[1][0], pair[0]),
    )
    for _, counts in order[limit:]:
        others = [others[0] + counts[0], others[1] + counts[1]]
    rows: list[tuple[str | None, list[int]]] = [*order[:limit]]
    return [*rows, (None, others)] if others[0] else rows


# ---------------------------------------------------------------- ids and URLs

IDS = "ids"
"""Role, and folder, of the parts by which `corpuskit why` finds ids and URLs."""

ID_COLUMNS = ("hash", "key", "kind")

ID, URL = 0, 1
"""In `kind`: what was hashed."""


def hash_of(name: str) -> int:
    """Return the hash of an id or URL: the first 8 bytes of its blake2b, little endian.

    Two of 1e7 names share one with a probability of 3e-6, so a hit is to be looked at.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def derived_ids(source: str, files: pa.Array, positions: pa.Array) -> pa.StringArray:
    """Return `<source>/<file>#<position>`, the ids of documents that have none."""
    names = pc.binary_join_element_wise(pa.scalar(f"{source}/", pa.string()), files, "")
    return pc.binary_join_element_wise(names, positions.cast(pa.string()), "#")


class Identities:
    """Collects the ids and URLs of one cell.

    Args:
        source: of the cell; its name begins derived ids.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._columns: list[tuple[NDArray[np.generic], ...]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the documents of a batch, as they were read."""
        origin = batch.column("origin")
        files, positions = (pc.struct_field(origin, name) for name in ("file", "position"))
        derived = derived_ids(self._source, files, positions)
        keys = numbers(batch.column("key"))
        self.add_ids(batch.column("id"), derived, keys)
        urls = pc.struct_field(origin, "url")
        if urls.null_count < len(urls):
            self._add(urls, numbers(urls.is_valid()), keys, URL)

    def add_ids(self, ids: pa.Array, derived: pa.Array, keys: NDArray[np.int64]) -> None:
        """Take ids, (N,), but those that are derived from file and position."""
        self._add(ids, numbers(pc.not_equal(ids, derived)), keys, ID)

    def write(self, path: Path) -> int:
        """Write a shuffle file and return its rows; without any, nothing is written."""
        num = sum(len(hashes) for hashes, *_ in self._columns)
        if num:
            columns = map(np.concatenate, zip(*self._columns, strict=True))
            write_shuffle(path, dict(zip(ID_COLUMNS, columns, strict=True)))
        return num

    def _add(
        self, names: pa.Array, mask: NDArray[np.bool_], keys: NDArray[np.int64], kind: int
    ) -> None:
        rows = np.flatnonzero(mask)
        if len(rows) == 0:
            return
        chosen_names = names.take(pa.array(rows)).cast(pa.binary()).to_pylist()
        digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in chosen_names)
        hashes = np.frombuffer(digests, "<u8").astype(np.uint64)
        self._columns.append((hashes, keys[rows], np.full(len(rows), kind, np.uint8)))
