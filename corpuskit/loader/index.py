"""The mix plan and its parts, as files: what a loader reads before the first row.

Two small files, `mix/plan.json` and `mix/index.parquet`, whatever the size of the corpus; no part
is opened here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.order import MixSource, MixStage, RowOrder, SkipSpans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")

FORMAT = 1
ROWS_PER_GROUP = 64
MAX_JSON_BYTES = 1 << 30
MAX_NUMBER = 1 << 62
MAX_ROW_BYTES = 1 << 26
"""Of the tokens of a packed row: 64 of them, a row group, are read at once."""

MAX_TEXT_BYTES = 4096
TABLE_BYTES, TABLE_EXPANSION = 1 << 28, 1000
"""A small table may take so much, or so many times the size of its file."""
_INDEX_COLUMNS = ("source", "path", "rows", "first_row", "size_bytes", "digest")
_NOT_HASHED = ("plan_hash", "index", "lookups", "files")


def plan_hash(fields: Mapping[str, object], index_digest: str) -> str:
    """Return the hash of a mix plan: blake2b-128 of its canonical JSON and its index's digest.

    Args:
        fields: the object of `mix/plan.json`, with or without `plan_hash`.
        index_digest: `file_digest` of the index file.
    """
    hashed = {key: value for key, value in fields.items() if key not in _NOT_HASHED}
    text = json.dumps(
        hashed | {"index_digest": index_digest}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """Return the blake2b-128 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def inside(run_dir: Path, name: object, where: Path) -> Path:
    """Return the place of a file that a plan or an index names.

    Raises:
        DataError: the name, found in `where`, would leave the run directory.
    """
    if not isinstance(name, str) or not name or "\0" in name or name.startswith("/"):
        raise DataError(f"{where}: {name!r} is no path within the run directory.")
    if ".." in name.split("/"):
        raise DataError(f"{where}: the path {name!r} leaves the run directory.")
    return run_dir / name


class Place(NamedTuple):
    """Where rows are stored: (M,) int64 part numbers, row groups, and rows within the group."""

    parts: NDArray[np.int64]
    groups: NDArray[np.int64]
    rows: NDArray[np.int64]


class PartIndex:
    """Every part of every source, in source order then row order."""

    def __init__(self, run_dir: Path, path: Path, names: Sequence[str]) -> None:
        table = read_table(path, _INDEX_COLUMNS)
        self.path = path
        self.paths: list[str] = table["path"].to_pylist()
        for name in self.paths:
            inside(run_dir, name, path)
        self.digests: list[str] = table["digest"].to_pylist()
        sources: list[str] = table["source"].to_pylist()
        unknown = sorted(set(sources) - set(names))
        if unknown:
            raise DataError(f"{path}: the plan has no source {unknown[0]!r}. Run the mix again.")
        self.sources = np.array([names.index(source) for source in sources], np.int64)
        self.rows = _int64(table, "rows", path)
        self.first_rows = _int64(table, "first_row", path)
        self.sizes = _int64(table, "size_bytes", path)
        if (self.rows < 1).any() or self.rows.astype(np.float64).sum() > MAX_NUMBER:
            raise DataError(f"{path}: parts must have rows, and at most {MAX_NUMBER} in all.")
        ends = np.cumsum(self.rows)
        self._begins = ends - self.rows
        self.source_rows = np.bincount(self.sources, self.rows, len(names)).astype(np.int64)
        self._source_begins = np.cumsum(self.source_rows) - self.source_rows
        expected = self._begins - self._source_begins[self.sources]
        if (np.diff(self.sources) < 0).any() or (self.first_rows != expected).any():
            raise DataError(
                f"{path}: parts must be in source order, then row order, without gaps."
                " Run the mix again."
            )

    def chain_at(self, source: int, row: int) -> str:
        """Return a hash over the parts of a source up to the one that holds `row`."""
        where = self.locate(np.array([source], np.int32), np.array([row], np.int64))
        return self._chain[int(where.parts[0])]

    @functools.cached_property
    def _chain(self) -> list[str]:
        """Per part, the blake2b-128 of the part and of the source's chain before it."""
        chain: list[str] = []
        columns = (self.first_rows.tolist(), self.rows.tolist(), self.digests)
        for first, rows, digest in zip(*columns, strict=True):
            link = f"{chain[-1] if first else ''} {rows} {digest}"
            chain.append(hashlib.blake2b(link.encode(), digest_size=16).hexdigest())
        return chain

    def locate(self, sources: NDArray[np.int32], rows: NDArray[np.int64]) -> Place:
        """Return the part, row group and row in the group of each row of a source."""
        places = self._source_begins[sources] + rows
        parts = np.searchsorted(self._begins, places, side="right") - 1
        groups, within = np.divmod(places - self._begins[parts], ROWS_PER_GROUP)
        return Place(parts, groups, within)


@dataclass(frozen=True)
class MixPlan:
    """An opened mix plan."""

    run_dir: Path
    hash: str
    name: str
    seed: int
    seq_len: int
    dtype: np.dtype[np.unsignedinteger]
    block_rows: int
    tokenizer: Mapping[str, object]
    order: RowOrder
    skips: SkipSpans
    parts: PartIndex
    lookups: Path
    files: Path

    @property
    def sources(self) -> tuple[MixSource, ...]:
        """The sources, in the order of their ids."""
        return self.order.sources


def read_mix(run_dir: str | Path) -> MixPlan:
    """Open and check the mix plan of a run directory.

    Raises:
        UsageError: there is no plan, or it takes a source more often than its `max_epochs`.
        DataError: the plan or its index breaks the format, or they don't belong together.
    """
    if "://" in str(run_dir):
        raise UsageError(
            f"{run_dir}: the loader reads local folders only. Copy the run directory here first, "
            "for example with: aws s3 sync."
        )
    run_dir = Path(run_dir)
    path = run_dir / "mix" / "plan.json"
    fields = read_json(path)
    sources = tuple(_source(path, entry) for entry in _get(path, fields, "sources", list))
    names = [source.name for source in sources]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: source names must differ, got {names}. Run the mix again.")
    stages = tuple(_stage(path, entry, names) for entry in _get(path, fields, "stages", list))
    order = RowOrder(
        _get(path, fields, "seed", int),
        _positive(path, fields, "block_rows"),
        sources,
        stages,
    )
    index = inside(run_dir, fields.get("index"), path)
    parts = PartIndex(run_dir, index, names)
    _check_hash(path, fields, index)
    _check_rows(path, order, parts)
    _check_epochs(path, order, _get(path, fields, "sources", list))
    seq_len, dtype = _positive(path, fields, "seq_len"), _get(path, fields, "dtype", str)
    if (seq_len + 1) * _dtype(path, dtype).itemsize > MAX_ROW_BYTES:
        raise DataError(f"{path}: rows of {seq_len} tokens are over {MAX_ROW_BYTES:,} bytes.")
    return MixPlan(
        run_dir=run_dir,
        hash=_get(path, fields, "plan_hash", str),
        name=_get(path, fields, "name", str),
        seed=_get(path, fields, "seed", int),
        seq_len=seq_len,
        dtype=_dtype(path, dtype),
        block_rows=_get(path, fields, "block_rows", int),
        tokenizer=_get(path, fields, "tokenizer", dict),
        order=order,
        skips=SkipSpans(_skips(path, _get(path, fields, "skip", list)), order.num_rows),
        parts=parts,
        lookups=inside(run_dir, fields.get("lookups"), path),
        files=inside(run_dir, fields.get("files"), path),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file of our format."""
    try:
        fields = json.loads(_content(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file. Give the directory of a run that has finished `mix`."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}. Run the mix again.") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        found = fields.get("format") if isinstance(fields, dict) else fields
        raise DataError(f"{path}: format must be {FORMAT}, got {found!r}. Update corpuskit.")
    return fields


def _get(path: Path, fields: object, key: str, kind: type[T]) -> T:
    """Return `fields[key]`, which must be of `kind`."""
    value = fields.get(key) if isinstance(fields, dict) else None
    # A JSON true is an int to Python.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DataError(f"{path}: {key} must be {kind.__name__}, got {value!r}. Run the mix again.")
    if isinstance(value, int) and abs(value) >= MAX_NUMBER:
        raise DataError(f"{path}: {key} is beyond {MAX_NUMBER}. Run the mix again.")
    return value


def _positive(path: Path, fields: object, key: str) -> int:
    value = _get(path, fields, key, int)
    if value < 1:
        raise DataError(f"{path}: {key} must be at least 1, got {value}. Run the mix again.")
    return value


def _source(path: Path, entry: object) -> MixSource:
    rows = _get(path, entry, "rows", int)
    if rows < 0:
        raise DataError(f"{path}: rows of a source must be at least 0, got {rows}.")
    return MixSource(_get(path, entry, "name", str), rows, _get(path, entry, "shuffled", bool))


def _stage(path: Path, entry: object, names: Sequence[str]) -> MixStage:
    name, rows = _get(path, entry, "name", str), _get(path, entry, "rows", int)
    weights = _get(path, entry, "weights", dict)
    for source, weight in weights.items():
        if source not in names:
            raise DataError(f"{path}: stage {name!r} weighs {source!r}, which is not a source.")
        is_number = isinstance(weight, int) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < MAX_NUMBER:
            raise DataError(
                f"{path}: stage {name!r}: weight of {source!r} must be an integer of at least 0,"
                f" got {weight!r}."
            )
    if rows < 0 or not any(weights.values()):
        raise DataError(f"{path}: stage {name!r} must have rows and a weight above 0, got {entry}.")
    return MixStage(name, rows, tuple(weights.get(name, 0) for name in names))


def _skips(path: Path, entries: list[object]) -> list[tuple[int, int]]:
    spans = []
    for entry in entries:
        match entry:
            case [int(first), int(end)] if 0 <= first <= end:
                spans.append((first, end))
            case _:
                raise DataError(f"{path}: skip must hold pairs [first, end), got {entry!r}.")
    return spans


def _dtype(path: Path, name: str) -> np.dtype[np.unsignedinteger]:
    if name not in ("uint16", "uint32"):
        raise DataError(f"{path}: dtype must be 'uint16' or 'uint32', got {name!r}.")
    return np.dtype(name).newbyteorder("<")


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return columns of a small Parquet file: an index, or the lookups.

    Texts come as dictionaries: one that is repeated costs 4 bytes a row.

    Raises:
        DataError: it can't be read, or claims to hold far more than such a file does.
    """
    try:
        content = _content(path)
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(columns))
        footer = file.metadata
        groups = map(footer.row_group, range(footer.num_row_groups))
        size = 64 * footer.num_rows + sum(group.total_byte_size for group in groups)
        if size > max(TABLE_BYTES, TABLE_EXPANSION * len(content)):
            raise DataError(
                f"{path}: {len(content):,} bytes can't hold {size:,}. Run the mix again."
            )
        table = file.read(columns=list(columns), use_threads=False)
        longest = _longest_texts(table)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: can't be read: {error}. Run the mix again.") from error
    if longest > MAX_TEXT_BYTES:
        raise DataError(f"{path}: has a text of {longest:,} bytes. Run the mix again.")
    return table


def _longest_texts(table: pa.Table) -> int:
    longest = 0
    for chunk in (chunk for column in table.columns for chunk in column.chunks):
        if pa.types.is_dictionary(chunk.type):
            texts = chunk.dictionary
            if texts.type != pa.string():
                raise pa.ArrowInvalid(f"{texts.type} instead of texts")
            if len(texts):
                offsets = np.frombuffer(texts.buffers()[1], np.int32)
                sizes = np.diff(offsets[texts.offset : texts.offset + len(texts) + 1])
                longest = max(longest, int(sizes.max()))
    return longest


def _content(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file: a device or a pipe would never end.

    Raises:
        DataError: it is something else, or larger than `most` bytes.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path}: is no regular file. Run the mix again.")
    if most is not None and found.st_size > most:
        raise DataError(f"{path}: {found.st_size:,} bytes, at most {most:,} are possible.")
    return path.read_bytes()


def _int64(table: pa.Table, name: str, path: Path) -> NDArray[np.int64]:
    column = table[name]
    if not pa.types.is_int64(column.type) or column.null_count:
        raise DataError(f"{path}: {name} must be int64 without nulls. Run the mix again.")
    return np.asarray(column.to_numpy(), np.int64)


def _check_hash(path: Path, fields: Mapping[str, object], index: Path) -> None:
    found, expected = fields.get("plan_hash"), plan_hash(fields, file_digest(index))
    if found != expected:
        raise DataError(
            f"{path}: plan_hash is {found!r}, but this plan and its index give {expected!r}."
            " One of them was changed by hand; run the mix again."
        )


def _check_rows(path: Path, order: RowOrder, parts: PartIndex) -> None:
    for k, source in enumerate(order.sources):
        if source.rows != parts.source_rows[k]:
            raise DataError(
                f"{path}: source {source.name!r} has {source.rows} rows, but its parts in the index"
                f" hold {parts.source_rows[k]}. Run the mix again."
            )


def _check_epochs(path: Path, order: RowOrder, entries: Sequence[object]) -> None:
    """Refuse a plan that takes a source more often than its cap allows."""
    for source, entry, taken in zip(
        order.sources, entries, order.taken(order.num_rows).tolist(), strict=True
    ):
        given = entry.get("max_epochs") if isinstance(entry, dict) else None
        if not isinstance(given, int | float) or not given > 0:
            raise DataError(
                f"{path}: max_epochs of {source.name!r} must be above 0, got {given!r}."
            )
        if taken and not source.rows:
            raise UsageError(f"{path}: source {source.name!r} has a weight but no rows.")
        # The decimal as written: 1.1 x 10 rows are 11, not 11.000000000000002.
        if taken > Fraction(str(given)) * source.rows:
            raise UsageError(
                f"{path}: the plan takes {taken} rows of source {source.name!r}, which has"
                f" {source.rows}: {taken / source.rows:.2f} epochs, max_epochs is {given}."
                " Lower its weight, shorten the run, or raise max_epochs."
            )
