"""The mix plan and the index of its parts: all that a loader reads before the first row.

Two small files, `mix/plan.json` and `mix/index.parquet`, whatever the size of the corpus; no part
is opened here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.edits import FOLDER, REPLACING, Edit, Takedowns, apply_edits, read_edits
from corpuskit.loader.files import (
    MAX_NUMBER,
    LocalFiles,
    RunFiles,
    digest_bytes,
    digest_json,
    get,
    inside,
    one_line,
    parse_table,
    read_json,
)
from corpuskit.loader.order import MixSource, MixStage, RowOrder, SkipSpans
from corpuskit.loader.steps import as_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

PLAN_FORMAT = 2  # of mix/plan.json
MAX_EPOCHS = 10**9
ROWS_PER_GROUP = 64
MAX_ROW_BYTES = 1 << 26  # of the tokens of a packed row: a row group of 64 is read at once

_INDEX_COLUMNS = ("source", "path", "rows", "first_row", "size_bytes", "digest")
_NOT_HASHED = ("plan_hash", "index", "lookups", "files", "digests")


def plan_hash(fields: Mapping[str, object], index_digest: str) -> str:
    """Return the hash of a mix plan: blake2b-128 of its canonical JSON and its index's digest.

    Args:
        fields: the object of `mix/plan.json`, with or without `plan_hash`.
        index_digest: `digest_bytes` of the index file.
    """
    hashed = {key: value for key, value in fields.items() if key not in _NOT_HASHED}
    return digest_json(hashed | {"index_digest": index_digest})


class Remix(NamedTuple):
    """Another length and mixture over the rows of a plan, for the small runs of a mixture search.

    Attributes:
        rows: of the run.
        weights: source -> integer share; a source that is left out gives none.
        windows: source -> (first row, rows): the rows that the run takes, and repeats.
    """

    rows: int
    weights: Mapping[str, int]
    windows: Mapping[str, tuple[int, int]]

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a plan with this length and mixture.

        Raises:
            UsageError: a number or a name is impossible.
        """
        sizes = {entry["name"]: entry["rows"] for entry in fields["sources"]}
        with contextlib.suppress(TypeError, ValueError, AttributeError, KeyError):
            length: Any = as_whole(self.rows)
            weights: Any = {name: as_whole(weight) for name, weight in self.weights.items()}
            windows: Any = {name: (0, rows) for name, rows in sizes.items()}
            windows |= {name: (*map(as_whole, window),) for name, window in self.windows.items()}
            are_shares = min(weights.values()) >= 0 < sum(weights.values())
            are_named = {*weights, *windows} == {*sizes} and None not in sum(windows.values(), ())
            if length > 0 and are_shares and are_named:
                sources: list[dict[str, Any]] = [{**entry} for entry in fields["sources"]]
                for entry in sources:
                    first, rows = windows[entry["name"]]
                    entry.update(first=first, rows=rows, max_epochs=MAX_EPOCHS)
                stage = {"name": "main", "rows": length, "weights": weights}
                return {**fields, "sources": sources, "stages": [stage], "skip": []}
        raise UsageError(
            "loader: remix must have rows above 0, weights that are whole numbers, one above 0, and"
            f" windows (first row, rows), of sources of {sizes}, got {self}."
        )


class RowLocations(NamedTuple):
    """Where M rows are stored: (M,) int64 part numbers, row groups, and rows within the group."""

    parts: NDArray[np.int64]
    groups: NDArray[np.int64]
    rows: NDArray[np.int64]


class PartIndex:
    """Every part of every source, in source order then row order."""

    def __init__(self, table: pa.Table, path: str, names: Sequence[str]) -> None:
        self.path = path
        self.paths = _texts(table, "path", path)
        for name in self.paths:
            inside(name, path)
        self.digests = _texts(table, "digest", path)
        sources = _texts(table, "source", path)
        unknown = sorted(set(sources) - set(names))
        if unknown:
            raise DataError(f"{path}: the plan has no source {unknown[0]!r}. Run the mix again.")
        self.sources = np.array([names.index(source) for source in sources], np.int64)
        self.rows = _int64(table, "rows", path)
        self.first_rows = _int64(table, "first_row", path)
        self.sizes = _int64(table, "size_bytes", path)
        self._arrange(len(names))

    def _arrange(self, num_sources: int) -> None:
        path = self.path
        if (self.rows < 1).any() or self.rows.astype(np.float64).sum() > MAX_NUMBER:
            raise DataError(f"{path}: parts must have rows, and at most {MAX_NUMBER} in all.")
        ends = np.cumsum(self.rows)
        self._begins = ends - self.rows
        self.source_rows = np.bincount(self.sources, self.rows, num_sources).astype(np.int64)
        self._source_begins = np.cumsum(self.source_rows) - self.source_rows
        expected = self._begins - self._source_begins[self.sources]
        if (np.diff(self.sources) < 0).any() or (self.first_rows != expected).any():
            raise DataError(
                f"{path}: parts must be in source order, then row order, without gaps."
                " Run the mix again."
            )

    def extended(self, added: Sequence[AddedRun]) -> PartIndex:
        """Return this index with the sources of other runs appended."""
        index = copy.copy(self)
        index.__dict__.pop("_chain", None)
        index.paths, index.digests = [*self.paths], [*self.digests]
        columns = [[self.sources], [self.rows], [self.first_rows], [self.sizes]]
        number = len(self.source_rows)
        for run in added:
            parts = run.base.parts
            names = [source["name"] for source in run.base.fields["sources"]]
            for name in run.names:
                numbers = np.flatnonzero(parts.sources == names.index(name))
                index.paths += [f"{run.prefix}{parts.paths[i]}" for i in numbers]
                index.digests += [parts.digests[i] for i in numbers]
                new = np.full(len(numbers), number), parts.rows[numbers], parts.first_rows[numbers]
                for column, values in zip(columns, (*new, parts.sizes[numbers]), strict=True):
                    column.append(values)
                number += 1
        index.sources, index.rows, index.first_rows, index.sizes = map(np.concatenate, columns)
        index._arrange(number)
        return index

    def chain_at(self, source: int, row: int) -> str:
        """Return a hash over the parts of a source up to and with the one that holds `row`."""
        location = self.locate(np.array([source], np.int32), np.array([row], np.int64))
        return self._chain[int(location.parts[0])]

    @functools.cached_property
    def _chain(self) -> list[str]:
        """For each part, the blake2b-128 of the part and of the source's chain before it."""
        chain: list[str] = []
        columns = (self.first_rows.tolist(), self.rows.tolist(), self.digests)
        for first, rows, digest in zip(*columns, strict=True):
            link = f"{chain[-1] if first else ''} {rows} {digest}"
            chain.append(digest_bytes(link.encode()))
        return chain

    def row_numbers(self, sources: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers, counted over all sources, of rows counted within sources."""
        row_numbers: NDArray[np.int64] = self._source_begins[sources] + rows
        return row_numbers

    def begin(self, source: int) -> int:
        """Return the number of the first row of a source, counted over all sources."""
        return int(self._source_begins[source])

    def locate(self, sources: NDArray[np.int32], rows: NDArray[np.int64]) -> RowLocations:
        """Return the part, row group and row in the group of each row of a source."""
        row_numbers = self.row_numbers(sources, rows)
        parts = np.searchsorted(self._begins, row_numbers, side="right") - 1
        groups, rows_in_group = np.divmod(row_numbers - self._begins[parts], ROWS_PER_GROUP)
        return RowLocations(parts, groups, rows_in_group)


@dataclass(frozen=True)
class MixPlan:
    """A mix plan with its edits applied.

    Attributes:
        hash: of the plan with its edits.
        base: the plan without them.
        stored_names: the name of each source in its parts.
        added: the runs whose sources edits have added.
    """

    files: RunFiles
    hash: str
    base: BasePlan
    name: str
    seed: int
    seq_len: int
    dtype: np.dtype[np.unsignedinteger]
    tokenizer: Mapping[str, object]
    order: RowOrder
    skips: SkipSpans
    parts: PartIndex
    edits: tuple[Edit, ...]
    takedowns: Takedowns
    stored_names: tuple[str, ...]
    added: tuple[AddedRun, ...]

    @property
    def hashes(self) -> list[str]:
        """The hashes of the plan without edits, with its first edit, and so on."""
        return [self.base.hash, *(edit.after for edit in self.edits)]

    @property
    def sources(self) -> tuple[MixSource, ...]:
        """The sources, in the order of their ids."""
        return self.order.sources


class BasePlan(NamedTuple):
    """The plan in `mix/` without edits: fields, hash, and the index of its parts."""

    path: str
    fields: Mapping[str, Any]
    hash: str
    parts: PartIndex


class AddedRun(NamedTuple):
    """Another run whose sources an edit has added.

    Attributes:
        prefix: of the names of its files in this run directory.
        address: of its run directory when it was added.
        base: its own plan.
        names: name of a source in that run -> name in this one.
        first_ordinal: number of its first input file here, so that keys differ.
    """

    prefix: str
    address: str
    base: BasePlan
    names: Mapping[str, str]
    first_ordinal: int


def open_files(
    run_dir: str | Path,
    *,
    deadline_seconds: float = 120.0,
    cache_dir: str | Path | None = None,
    cache_bytes: int = 8 << 30,
) -> RunFiles:
    """Return the files of a run directory; nothing is read yet.

    Args:
        run_dir: a folder, or an address in object storage.
        deadline_seconds: after which a request to object storage fails.
        cache_dir: folder for ranges from object storage; None to cache nothing.
        cache_bytes: bound on the files in it.

    Raises:
        UsageError: the address or the cache can't be used, or the extra `s3` is not installed.
    """
    locations: dict[str, Any] = {"run_dir": run_dir}
    locations |= {} if cache_dir is None else {"cache_dir": cache_dir}
    for name, location in locations.items():
        if not isinstance(location, str | os.PathLike) or "\0" in str(location):
            raise UsageError(f"loader: {name} must be a folder or an address, got {location!r}.")
    address = str(run_dir)
    if re.match(r"[A-Za-z0-9+.-]{2,}:/", address):
        from corpuskit.storage import is_remote

        if is_remote(address):
            from corpuskit.loader.cache import open_cache
            from corpuskit.loader.remote import RemoteFiles

            cache = None if cache_dir is None else open_cache(Path(cache_dir), cache_bytes)
            return RemoteFiles(address, deadline_seconds, cache)
    return LocalFiles(Path(address.removeprefix("file://")))


def read_mix(
    run_dir: str | Path | RunFiles, order_seed: int | None = None, remix: Remix | None = None
) -> MixPlan:
    """Open and check the mix plan of a run directory, with its edits.

    Args:
        run_dir: a folder, an address in object storage, or what `open_files` returned.
        order_seed: permute the rows of each source, in all epochs, by this seed instead of the
            plan's. The result has the same rows and weights, and another hash.
        remix: length, weights and rows of sources instead of the plan's.

    Raises:
        UsageError: there is no plan, it takes a source more often than its `max_epochs`, or it has
            edits, which name rows of its own order, and `order_seed` or `remix` is given.
        DataError: the plan, its index or an edit breaks the format, or they don't fit together.
    """
    files = open_files(run_dir) if isinstance(run_dir, str | os.PathLike) else run_dir
    if not isinstance(remix, Remix | None):
        raise UsageError(f"loader: remix must be a Remix, got {remix!r}.")
    base = _read_base(files)
    edits = read_edits(files, base.hash)
    if order_seed is not None or remix is not None:
        if edits:
            raise UsageError(
                f"{base.path}: has {len(edits)} edits, which name rows of its own order. "
                "Leave order_seed and remix out."
            )
        fields = remix.apply(base.fields) if remix else base.fields
        if order_seed is not None:
            entries = [{**source, "shuffled": False} for source in fields["sources"]]
            fields = {**fields, "seed": order_seed, "sources": entries}
        base = base._replace(fields=fields, hash=plan_hash(fields, base.hash))
    return edited(files, base, edits)


def _read_base(files: RunFiles, prefix: str = "") -> BasePlan:
    path = files.where(f"{prefix}mix/plan.json")
    fields = read_json(files, f"{prefix}mix/plan.json", PLAN_FORMAT)
    names = [get(path, entry, "name", str) for entry in get(path, fields, "sources", list)]
    if len(set(names)) != len(names):
        raise DataError(f"{path}: source names must differ, got {names}. Run the mix again.")
    for key in ("lookups", "files"):  # read later, by names that are checked now
        inside(fields.get(key), path)
    index = prefix + inside(fields.get("index"), path)
    try:
        content = files.read(index)
    except OSError as error:
        raise DataError(
            f"{files.where(index)}: can't be read: {one_line(error)}. Run the mix again."
        ) from error
    table = parse_table(content, files.where(index), _INDEX_COLUMNS)
    parts = PartIndex(table, files.where(index), names)
    stored_hash, expected = fields.get("plan_hash"), plan_hash(fields, digest_bytes(content))
    if stored_hash != expected:
        raise DataError(
            f"{path}: plan_hash is {stored_hash!r}, but this plan and its index give {expected!r}."
            " One of them was changed by hand; run the mix again."
        )
    return BasePlan(path, fields, expected, parts)


def edited(
    files: RunFiles, base: BasePlan, edits: Sequence[Edit], new: MixPlan | None = None
) -> MixPlan:
    """Return a plan with edits.

    Args:
        files: of the run directory.
        base: its plan.
        edits: to apply.
        new: plan of an added run whose files are not yet in the run directory.

    Raises:
        UsageError: the plan takes a source more often than its `max_epochs`.
        DataError: the plan or an edit breaks the format.
    """
    path, parts = base.path, base.parts
    fields = apply_edits(path, base.fields, edits)
    added = [_added_run(files, edit, new) for edit in edits if edit.kind == "source"]
    if added:
        parts = parts.extended(added)
    sources = tuple(_source(path, entry) for entry in get(path, fields, "sources", list))
    names = [source.name for source in sources]
    order = RowOrder(
        get(path, fields, "seed", int),
        sources,
        tuple(_stage(path, entry, names) for entry in get(path, fields, "stages", list)),
    )
    _check_rows(path, order, parts, fields["sources"])
    _check_epochs(path, order, get(path, fields, "sources", list))
    seq_len = _positive(path, fields, "seq_len")
    dtype = _dtype(path, get(path, fields, "dtype", str))
    if (seq_len + 1) * dtype.itemsize > MAX_ROW_BYTES:
        raise DataError(f"{path}: rows of {seq_len} tokens are over {MAX_ROW_BYTES:,} bytes.")
    first_rows = {name: parts.begin(k) for k, name in enumerate(names)}
    rows = {source.name: source.rows for source in sources}
    return MixPlan(
        files=files,
        hash=edits[-1].after if edits else base.hash,
        base=base,
        name=get(path, fields, "name", str),
        seed=get(path, fields, "seed", int),
        seq_len=seq_len,
        dtype=dtype,
        tokenizer=get(path, fields, "tokenizer", dict),
        order=order,
        skips=SkipSpans(_skips(path, get(path, fields, "skip", list)), order.num_rows),
        parts=parts,
        edits=tuple(edits),
        takedowns=Takedowns(path, edits, first_rows, rows),
        stored_names=tuple(entry.get("stored", entry["name"]) for entry in fields["sources"]),
        added=tuple(added),
    )


def _added_run(files: RunFiles, edit: Edit, new: MixPlan | None) -> AddedRun:
    path = files.where(edit.name)
    run = get(path, edit.fields, "run", str)
    prefix = inside(f"{FOLDER}/{run}", path) + "/"
    base = new.base if new and new.base.hash == run else _read_base(files, prefix)
    if base.hash != run:
        raise DataError(f"{base.path}: is of plan {base.hash}, not of {run}. Restore {prefix}.")
    names = {entry["stored"]: entry["name"] for entry in edit.fields["sources"]}
    first_ordinal = get(path, edit.fields, "first_ordinal", int)
    return AddedRun(prefix, get(path, edit.fields, "from", str), base, names, first_ordinal)


def without_rows(plan: MixPlan, skip: Sequence[tuple[int, int] | tuple[int, int, str]]) -> MixPlan:
    """Return the plan of a training that skips rows of its own.

    Args:
        plan: which all trainings share; its hash stays.
        skip: spans [first, end) of its rows, as a rule with the hash of the plan that they were
            chosen under: they end where a later edit has replaced the rows.

    Raises:
        UsageError: a span is not within the plan.
    """
    entries: Any = skip
    spans = []
    for first, end, plan_hash in map(_span, entries if np.iterable(entries) else [entries]):
        later: Sequence[Edit] = ()
        if plan_hash and plan_hash[0] in plan.hashes:
            later = plan.edits[plan.hashes.index(plan_hash[0]) :]
        spans.append((first, min([end, *(edit.row for edit in later if edit.kind in REPLACING)])))
    if not spans:
        return plan
    return replace(plan, skips=SkipSpans([*plan.skips.spans, *spans], plan.order.num_rows))


def _span(span: Any) -> tuple[int, int, list[str]]:
    """Return a span [first, end) of rows to skip, and the hash after it, if there is one."""
    with contextlib.suppress(TypeError, ValueError):
        begin, stop, *plan_hash = span
        first: Any = as_whole(begin)
        end: Any = as_whole(stop)
        is_hash = len(plan_hash) < 2 and all(isinstance(text, str) for text in plan_hash)
        if is_hash and 0 <= first < end:  # None cannot be compared
            return first, end, plan_hash
    raise UsageError(f"loader: skip must hold spans [first, end), got {span!r}.")


def _positive(path: str, fields: object, key: str) -> int:
    value = get(path, fields, key, int)
    if value < 1:
        raise DataError(f"{path}: {key} must be at least 1, got {value}. Run the mix again.")
    return value


def _source(path: str, entry: Any) -> MixSource:
    rows = get(path, entry, "rows", int)
    if rows < 0:
        raise DataError(f"{path}: rows of a source must be at least 0, got {rows}.")
    first = get(path, entry, "first", int) if "first" in entry else 0
    name, shuffled = get(path, entry, "name", str), get(path, entry, "shuffled", bool)
    return MixSource(name, rows, shuffled, first)


def _stage(path: str, entry: object, names: Sequence[str]) -> MixStage:
    name, rows = get(path, entry, "name", str), get(path, entry, "rows", int)
    weights = get(path, entry, "weights", dict)
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


def _skips(path: str, entries: list[object]) -> list[tuple[int, int]]:
    spans = []
    for entry in entries:
        match entry:
            case [int(first), int(end)] if 0 <= first <= end:
                spans.append((first, end))
            case _:
                raise DataError(f"{path}: skip must hold pairs [first, end), got {entry!r}.")
    return spans


def _dtype(path: str, name: str) -> np.dtype[np.unsignedinteger]:
    if name not in ("uint16", "uint32"):
        raise DataError(f"{path}: dtype must be 'uint16' or 'uint32', got {name!r}.")
    return np.dtype(name).newbyteorder("<")


def _texts(table: pa.Table, name: str, path: str) -> list[str]:
    column = table[name]
    if not pa.types.is_dictionary(column.type) or column.null_count:
        raise DataError(f"{path}: {name} must be texts without nulls. Run the mix again.")
    # Not `to_pylist` or `cast`: `to_pylist` of a dictionary takes 1 us a value, and `cast` imports
    # pyarrow.compute; both take longer than all else that a loader does before its first row.
    texts: list[str] = []
    for chunk in column.chunks:
        distinct = chunk.dictionary.to_numpy(zero_copy_only=False)
        texts += distinct[chunk.indices.to_numpy()].tolist()
    return texts


def _int64(table: pa.Table, name: str, path: str) -> NDArray[np.int64]:
    column = table[name]
    if not pa.types.is_int64(column.type) or column.null_count:
        raise DataError(f"{path}: {name} must be int64 without nulls. Run the mix again.")
    return np.asarray(column.to_numpy(), np.int64)


def _check_rows(
    path: str, order: RowOrder, parts: PartIndex, entries: Sequence[Mapping[str, Any]]
) -> None:
    for k, (source, entry) in enumerate(zip(order.sources, entries, strict=True)):
        excess = parts.source_rows[k] - source.first - source.rows
        if excess and ("first" not in entry or excess < 0 or source.first < 0):
            raise DataError(
                f"{path}: source {source.name!r} has {source.rows} rows, but its parts in the"
                f" index hold {parts.source_rows[k]}. Run the mix again."
            )


def _check_epochs(path: str, order: RowOrder, entries: Sequence[object]) -> None:
    """Refuse a plan that takes a source more often than its cap allows."""
    for source, entry, num_taken in zip(
        order.sources, entries, order.taken(order.num_rows).tolist(), strict=True
    ):
        cap = entry.get("max_epochs") if isinstance(entry, dict) else None
        if not isinstance(cap, int | float) or not 0 < cap <= MAX_EPOCHS:
            raise DataError(
                f"{path}: max_epochs of {source.name!r} must be above 0 and at most"
                f" {MAX_EPOCHS:,}, got {cap!r}."
            )
        if num_taken and not source.rows:
            raise UsageError(f"{path}: source {source.name!r} has a weight but no rows.")
        # The decimal as written: 1.1 x 10 rows are 11, not 11.000000000000002.
        if num_taken > Fraction(str(cap)) * source.rows:
            raise UsageError(
                f"{path}: the plan takes {num_taken} rows of source {source.name!r}, which has"
                f" {source.rows}: {num_taken / source.rows:.2f} epochs, max_epochs is {cap}."
                " Lower its weight, shorten the run, or raise max_epochs."
            )
