"""Exports a finished run to files of Megatron, without Megatron's own code.

An export is a folder: files of ids with their indexes, and `export.json`, which is written last and
describes them. Until then `export.unfinished.json` marks the folder as ours and lists the complete
files: the same request continues where an earlier one was killed, and writes the same bytes as if
it had not been.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.loader import read_mix
from corpuskit.loader.index import ROWS_PER_GROUP
from corpuskit.loader.parts import PADDING, READ_ERRORS, TOKEN_COLUMNS, OpenParts
from corpuskit.loader.provenance import CONTINUES
from corpuskit.loader.reader import ranges
from corpuskit.storage import LocalStore, is_remote
from corpuskit.storage.local import DigestedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from corpuskit.loader import MixPlan
    from corpuskit.loader.parts import SegmentColumns


Order = Literal["stored", "run"]
Unit = Literal["document", "row"]

FORMAT, TARGET = 1, "megatron"
RUN = "run"  # name of the files of a whole run; the files of a source have its name

DONE, UNFINISHED = "export.json", "export.unfinished.json"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to export.

    Attributes:
        order: `stored`, a set of files for each source; or `run`, one in the order of the run.
        unit: what a sequence is: a document without padding, or a packed row with it.
        sources: only these; empty for all.
        rows: at most this many rows, of each source or of the run.
    """

    order: Order = "stored"
    unit: Unit = "document"
    sources: tuple[str, ...] = ()
    rows: int | None = None


@dataclasses.dataclass(frozen=True)
class ExportProgress:
    """How far an export is: rows, and bytes of ids written."""

    rows: int
    all_rows: int
    size_bytes: int


class Export:
    """One request against one run.

    Raises:
        UsageError: the request does not fit the run.
        DataError: the run's mix plan is broken.
    """

    def __init__(self, run_dir: str, request: Request) -> None:
        self.packed = PackedRows(run_dir)
        plan = self.packed.plan
        names = [source.name for source in plan.sources]
        for name in request.sources:
            if name not in names:
                raise UsageError(
                    f"--source: the run has no source {name!r}. {suggest(name, names)}"
                )
        if request.order == "run" and request.sources:
            raise UsageError("--source goes with --order stored: a run takes from all its sources.")
        sources = tuple(name for name in names if name in (request.sources or names))
        self.request = dataclasses.replace(request, sources=sources)
        self.run_dir = run_dir
        self.pad, self.vocab_size = self._number("pad"), self._number("vocab_size")
        self.dtype = stored_type(plan.dtype, self.vocab_size)
        if request.order == "run":
            self.targets = {RUN: plan.skips.num_consumed}
        else:
            self.targets = {s.name: s.rows for s in plan.sources if s.name in self.request.sources}
        if request.rows is not None:
            self.targets = {name: min(num, request.rows) for name, num in self.targets.items()}
        if not any(self.targets.values()):
            raise UsageError(f"{run_dir}: there are no rows to export: {self.targets}.")

    def facts(self) -> dict[str, Any]:
        """Return what identifies the export: with equal facts, the bytes are equal."""
        plan, request = self.packed.plan, self.request
        return {
            "format": FORMAT,
            "target": TARGET,
            "order": request.order,
            "unit": request.unit,
            "rows": request.rows,
            "sources": list(request.sources),
            "name": plan.name,
            "plan_hash": plan.hash,
            "seq_len": plan.seq_len,
            "dtype": self.dtype.name,
            # Megatron stores no name; the key is of format 1.
            "tokenizer": {**plan.tokenizer, "name": None},
        }

    def rows(self, name: str) -> Iterator[RowBatch]:
        """Yield the rows of one set of files."""
        if self.request.order == "run":
            return self.packed.of_run(self.targets[name])
        names = [source.name for source in self.packed.plan.sources]
        return self.packed.of_source(names.index(name), self.targets[name])

    def size_bytes(self, names: list[str]) -> int:
        """Return an upper estimate of the bytes of sets of files, and the largest temporary file.

        No row is assumed to be padded. Documents are those of the plan, and each row may hold the
        piece of one more.
        """
        plan = self.packed.plan
        added = [e for edit in plan.edits if edit.kind == "source" for e in edit.fields["sources"]]
        entries = [*plan.base.fields["sources"], *added]
        documents = {entry["name"]: int(entry.get("documents", 0)) for entry in entries}
        num_rows = {source.name: source.rows for source in plan.sources}
        num_rows[RUN], documents[RUN] = sum(num_rows.values()), sum(documents.values())
        total = spool = 0
        for name in names:
            sequences = rows = self.targets[name]
            if self.request.unit == "document":
                sequences += rows * documents[name] // max(1, num_rows[name])
            total += rows * self.packed.width * self.dtype.itemsize + sequences * INDEX_BYTES
            spool = max(spool, sequences * SPOOL_BYTES)
        return total + spool

    def _number(self, name: str) -> int:
        value = self.packed.plan.tokenizer.get(name)
        if not isinstance(value, int):
            raise DataError(f"{self.run_dir}: the mix plan has no {name}. Run the mix again.")
        return value


def export(
    run_dir: str,
    out: str,
    request: Request,
    progress: Callable[[ExportProgress], None] = lambda _: None,
) -> dict[str, Any]:
    """Export a run and return the content of its `export.json`; keep a finished export.

    Raises:
        UsageError: the request does not fit the run, or `out` holds something else or is too small.
        DataError: the run, or a finished export, is broken.
    """
    if is_remote(out):
        raise UsageError(f"{out}: exports are written to local folders. Copy it there afterwards.")
    work = Export(run_dir, request)
    check_apart(run_dir, out)
    store, facts = LocalStore(out), work.facts()
    _check_room(store, work, _resume(store, facts))
    with store.lock():
        store.clear_scratch()
        record = _resume(store, facts)
        files = {entry["source"]: entry for entry in record["files"]}
        if record["is_finished"]:
            store.delete([UNFINISHED, "lock"])
            return _read_record(store, DONE)
        store.put(UNFINISHED, _to_json(facts | {"files": list(files.values())}))
        all_rows = sum(work.targets.values())
        for name in work.targets:
            if name in files:
                continue
            counts = ExportProgress(
                sum(entry["rows"] for entry in files.values()),
                all_rows,
                sum(file["size_bytes"] for e in files.values() for file in e["files"].values()),
            )
            files[name] = _write(work, store, name, counts, progress)
            store.put(UNFINISHED, _to_json(facts | {"files": list(files.values())}))
        manifest = facts | {"files": [files[name] for name in work.targets]}
        store.put(DONE, _to_json(manifest))
        store.delete([UNFINISHED, "lock"])
        store.clear_scratch()
    return manifest


def _write(
    work: Export,
    store: LocalStore,
    name: str,
    sizes: ExportProgress,
    progress: Callable[[ExportProgress], None],
) -> dict[str, Any]:
    """Write one set of files, the index last, and return its entry of `export.json`."""
    counts = dict.fromkeys(("sequences", "tokens", "padding", "taken_down", "continued"), 0)
    entry: dict[str, Any] = {"source": name, "rows": work.targets[name], **counts, "files": {}}
    if not work.targets[name]:
        return entry
    with store.scratch() as folder:
        writer = MegatronWriter(folder, name, work.packed.plan.dtype, work.vocab_size)
        try:
            for rows in work.rows(name):
                ids, lengths = sequences(rows, work.pad, unit=work.request.unit)
                writer.add(ids, lengths)
                _count(entry, rows)
                sizes = ExportProgress(
                    sizes.rows + len(rows.tokens),
                    sizes.all_rows,
                    sizes.size_bytes + len(ids) * work.dtype.itemsize,
                )
                progress(sizes)
            files = writer.close()
        finally:
            writer.abandon()
        entry["sequences"] = writer.num_sequences
        for file in files:
            path = Path(file.name)
            store.publish(path, path.name)
            fields = {"size_bytes": file.size_bytes, "digest": file.digest.hexdigest()}
            entry["files"][path.name] = fields
    return entry


def _count(entry: dict[str, Any], rows: RowBatch) -> None:
    lengths = rows.ends - rows.starts
    is_text = ~(rows.is_padding | rows.is_down)
    entry["tokens"] += int(lengths[is_text].sum())
    entry["padding"] += int(lengths[rows.is_padding].sum())
    entry["taken_down"] += int(lengths[rows.is_down].sum())
    entry["continued"] += int((rows.continues & is_text).sum())


def _check_room(store: LocalStore, work: Export, record: dict[str, Any]) -> None:
    """Refuse an export that does not fit the disk.

    Raises:
        UsageError: it does not; with both sizes.
    """
    finished = {entry["source"] for entry in record["files"]}
    num_bytes = work.size_bytes([name for name in work.targets if name not in finished])
    folder = store.root.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if num_bytes > free and not record["is_finished"]:
        raise UsageError(
            f"{store.address}: needs about {num_bytes / 1e9:,.3f} GB, {free / 1e9:,.3f} GB are "
            "free. Free space, or export fewer sources or rows."
        )


def _resume(store: LocalStore, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an earlier call of this export: complete `files`, and `is_finished`.

    Raises:
        UsageError: the folder holds something else.
        DataError: a finished export is broken.
    """
    names = store.top() - {"lock"}
    for name in (DONE, UNFINISHED):
        if name not in names:
            continue
        record = _read_record(store, name)
        kind = "an export" if name == DONE else "an unfinished export"
        differs = sorted(key for key in facts if record.get(key) != facts[key])
        if differs:
            key = differs[0]
            raise UsageError(
                f"{store.address}: holds {kind} with another {key}: {record.get(key)!r}, now "
                f"{facts[key]!r}. Give another folder, or delete this one."
            )
        entries = [
            entry
            for entry in record["files"]
            if all(store.size(name) == file["size_bytes"] for name, file in entry["files"].items())
        ]
        if name == DONE and entries != record["files"]:
            raise DataError(
                f"{store.where(DONE)}: names files that are missing or of another size. Delete the "
                "folder and export again."
            )
        return {"files": entries, "is_finished": name == DONE}
    if names:
        raise UsageError(
            f"{store.address}: is not empty, it has {sorted(names)[0]!r}. Give a new folder."
        )
    return {"files": [], "is_finished": False}


def _read_record(store: LocalStore, name: str) -> dict[str, Any]:
    """Return the content of a record.

    Raises:
        UsageError: it is not a record of an export.
    """
    try:
        record = json.loads(store.read(name))
        is_ours = isinstance(record, dict) and isinstance(record["files"], list)
    except (ValueError, KeyError, RecursionError):
        is_ours = False
    if not is_ours:
        raise UsageError(f"{store.where(name)}: is not a record of an export. Give another folder.")
    return dict(record)


def _to_json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, indent=1).encode() + b"\n"


def check_apart(run_dir: str, out: str) -> None:
    """Refuse to write into the run directory, where seals name all files.

    Raises:
        UsageError: `out` is in it.
    """
    if is_remote(run_dir):
        return
    run, folder = Path(run_dir).resolve(), Path(out).resolve()
    if folder == run or run in folder.parents:
        raise UsageError(f"{out}: is inside the run directory. Give a folder outside of it.")


# ---------------------------------------------------------------- packed rows, as stored or by step

READ_BYTES = 4 << 20  # of a part, read at a time
WINDOW_BYTES = (
    64 << 20
)  # of rows of a run, put in order at a time; a row group is read once for them

_AFTER_ALL_ROWS = np.int64(1) << 62  # copies leave out all takedowns, from whatever row they apply


class RowBatch(NamedTuple):
    """Some packed rows and their segments, in order.

    Attributes:
        tokens: (R, L + 1) unsigned; may be read-only.
        row: (G,) the row of each segment.
        starts: (G,) its first token in the row.
        ends: (G,) the token after its last.
        is_padding: (G,) whether it is the padded tail of its row.
        is_down: (G,) whether its document was taken down.
        continues: (G,) whether its document began in another row.
    """

    tokens: NDArray[np.unsignedinteger]
    row: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    is_padding: NDArray[np.bool_]
    is_down: NDArray[np.bool_]
    continues: NDArray[np.bool_]


class PackedRows:
    """The packed rows of a run directory, in bounded memory; every page is verified.

    Letters: R rows, L = seq_len, G segments.

    Raises:
        UsageError: there is no mix plan.
        DataError: the plan or its index breaks the format.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.plan: MixPlan = read_mix(run_dir)
        self.width = self.plan.seq_len + 1
        self.row_bytes = self.width * self.plan.dtype.itemsize
        self._groups_per_read = max(1, READ_BYTES // (ROWS_PER_GROUP * self.row_bytes))

    def of_source(self, source: int, num_rows: int) -> Iterator[RowBatch]:
        """Yield the first rows of a source, in stored order.

        Raises:
            DataError: two reads of a row group failed; names it.
        """
        index = self.plan.parts
        groups_per_read = self._groups_per_read
        num_done = 0
        with contextlib.closing(OpenParts(self.plan, max_open=1)) as parts:
            for part in np.flatnonzero(index.sources == source).tolist():
                num_groups = -(-int(index.rows[part]) // ROWS_PER_GROUP)
                for first in range(0, num_groups, groups_per_read):
                    if num_done >= num_rows:
                        return
                    groups = list(range(first, min(first + groups_per_read, num_groups)))
                    rows, segments, flags = _read(parts, part, groups)
                    num = min(num_rows - num_done, len(rows))
                    bounds = segments.bounds[: num + 1]
                    window = slice(int(bounds[0]), int(bounds[-1]))
                    row_numbers = index.begin(source) + num_done + np.arange(num)
                    tokens = rows[:num].view(self.plan.dtype)
                    yield self._rows(
                        tokens, bounds, segments.starts[window], flags[window], row_numbers
                    )
                    num_done += num

    def of_run(self, num_rows: int) -> Iterator[RowBatch]:
        """Yield the first consumed rows of a run, in its order; batches share one memory.

        Raises:
            DataError: two reads of a row group failed; names it.
        """
        plan = self.plan
        window_rows = max(1, min(WINDOW_BYTES // self.row_bytes, num_rows))
        # New memory for each window would take as long as putting its rows in order.
        memory = np.empty((window_rows, self.width), plan.dtype)
        with contextlib.closing(OpenParts(plan, max_open=16)) as parts:
            for begin in range(0, num_rows, window_rows):
                consumed = np.arange(begin, min(begin + window_rows, num_rows))
                source_rows = plan.order.rows_at(plan.skips.row_indices(consumed))
                tokens = memory[: len(consumed)]
                yield self._gather(parts, source_rows.sources, source_rows.rows, tokens)

    def _gather(
        self,
        parts: OpenParts,
        sources: NDArray[np.int32],
        rows: NDArray[np.int64],
        tokens: NDArray[np.unsignedinteger],
    ) -> RowBatch:
        """Copy rows of sources into `tokens` in this order; each row group is read once."""
        located = self.plan.parts.locate(sources, rows)
        num_rows = len(rows)
        item = np.dtype((np.void, self.row_bytes))  # so that a row is copied as one item
        counts = np.zeros(num_rows, np.int64)
        pieces = []
        for part, groups, into, from_rows in self._reads(
            located.parts, located.groups, located.rows
        ):
            rows_read, segments, flags = _read(parts, part, groups)
            tokens.view(item)[into] = np.ascontiguousarray(rows_read).view(item)[from_rows]
            sizes = np.diff(segments.bounds)[from_rows]
            indices = ranges(segments.bounds[from_rows], sizes)
            counts[into] = sizes
            pieces.append((into, sizes, segments.starts[indices], flags[indices]))
        bounds = np.append(0, np.cumsum(counts))
        starts = np.empty(bounds[-1], np.int64)
        flags = np.empty(bounds[-1], np.uint8)
        for into, sizes, starts_read, flags_read in pieces:
            targets = ranges(bounds[into], sizes)
            starts[targets], flags[targets] = starts_read, flags_read
        row_numbers = self.plan.parts.row_numbers(sources, rows)
        return self._rows(tokens, bounds, starts, flags, row_numbers)

    def _reads(
        self, parts: NDArray[np.int64], groups: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> Iterator[tuple[int, list[int], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield reads: part, row groups, rows of the window, and their rows within the groups."""
        order = np.lexsort((offsets, groups, parts))
        keys = parts[order] << 32 | groups[order]  # row groups of a part are far fewer than 2**32
        distinct, group_of_row = np.unique(keys, return_inverse=True)
        begin = 0
        while begin < len(distinct):
            part = int(distinct[begin] >> 32)
            end = min(
                begin + self._groups_per_read, int(np.searchsorted(distinct, (part + 1) << 32))
            )
            window = slice(*np.searchsorted(group_of_row, [begin, end]))
            from_rows = (group_of_row[window] - begin) * ROWS_PER_GROUP + offsets[order[window]]
            yield part, (distinct[begin:end] & 0xFFFFFFFF).tolist(), order[window], from_rows
            begin = end

    def _rows(
        self,
        tokens: NDArray[np.unsignedinteger],
        bounds: NDArray[np.integer],
        starts: NDArray[np.integer],
        flags: NDArray[np.uint8],
        row_numbers: NDArray[np.int64],
    ) -> RowBatch:
        """Return rows with their segments; `row_numbers` count the rows over all sources."""
        row = np.repeat(np.arange(len(tokens)), np.diff(bounds))
        firsts = starts.astype(np.int64)
        ends = np.append(firsts[1:], self.width)
        ends[np.flatnonzero(np.diff(row, append=-1))] = self.width
        is_down = np.zeros(len(row), np.bool_)
        masks = self.plan.takedowns.masks(row_numbers, np.full(len(row_numbers), _AFTER_ALL_ROWS))
        if masks is not None:
            offsets = row * self.width + firsts
            lows = np.searchsorted(offsets, masks.into * self.width + masks.firsts, "right") - 1
            highs = np.searchsorted(offsets, masks.into * self.width + masks.ends)
            is_down[ranges(lows, highs - lows)] = True
        return RowBatch(
            tokens, row, firsts, ends, flags & PADDING > 0, is_down, flags & CONTINUES > 0
        )


def sequences(
    rows: RowBatch, pad: int, *, unit: str
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """Return token ids, and the length of each sequence.

    Documents have no padding, rows have. Documents that were taken down are left out; in rows they
    are padding.

    Args:
        rows: packed rows.
        pad: id of padding.
        unit: `document` or `row`.
    """
    lengths = rows.ends - rows.starts
    width = rows.tokens.shape[1]
    if unit == "row":
        tokens = rows.tokens
        if rows.is_down.any():
            tokens = tokens.copy()
            for i in np.flatnonzero(rows.is_down).tolist():
                tokens[rows.row[i], rows.starts[i] : rows.ends[i]] = pad
        return tokens.reshape(-1), np.full(len(tokens), width)
    ids = rows.tokens.reshape(-1)
    is_text = ~(rows.is_padding | rows.is_down)
    firsts_of_text, ends = rows.row * width + rows.starts, rows.row * width + rows.ends
    firsts, stops = np.append(0, ends[~is_text]), np.append(firsts_of_text[~is_text], len(ids))
    if len(firsts) > 1:
        spans = zip(firsts.tolist(), stops.tolist(), strict=True)
        ids = np.concatenate([ids[first:stop] for first, stop in spans])
    return ids, lengths[is_text]


def _read(
    parts: OpenParts, part: int, groups: list[int]
) -> tuple[NDArray[np.uint8], SegmentColumns, NDArray[np.uint8]]:
    """Return rows of a part as bytes, their segments and flags; a failed read is repeated once."""
    try:
        table = parts.read(part, groups, TOKEN_COLUMNS)
    except READ_ERRORS:
        tables = [parts.read_again(part, group, TOKEN_COLUMNS) for group in groups]
        table = pa.concat_tables(tables).combine_chunks()
    segments = parts.segments_of(part, groups, table)
    return parts.tokens_of(table), segments, table.column("flags").chunk(0).values.to_numpy()


# ---------------------------------------------------------------- the files of Megatron

MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEADER = struct.Struct("<9sQBQQ")
CODES = {"uint16": 8, "int32": 4}
SMALL_VOCABULARY = 65_500  # Megatron stores ids of smaller vocabularies as uint16, others as int32
INDEX_BYTES, SPOOL_BYTES = 20, 4  # of a sequence, in the index and in the temporary file of lengths
CHUNK = 1 << 18  # entries of an index in memory at a time


def stored_type(dtype: np.dtype[np.unsignedinteger], vocab_size: int) -> np.dtype[np.integer]:
    """Return the type in which Megatron stores ids: that of its `DType.optimal_dtype`."""
    is_small = vocab_size < SMALL_VOCABULARY and dtype.itemsize == 2
    return np.dtype("<u2") if is_small else np.dtype("<i4")


class MegatronWriter:
    """Writes an indexed dataset of Megatron; each sequence is a document of its own.

    It is a `.bin` of token ids and an `.idx`: a header (magic, version, code of the ids' type, S,
    D), S int32 lengths of sequences, S int64 byte offsets into the `.bin`, and D int64 bounds of
    documents, each a number of sequences: the first is 0, the last is S. All little endian.

    Source: megatron-core 0.16.1, `megatron/core/datasets/indexed_dataset.py`. Letters: S sequences,
    D bounds (one more than documents), T token ids.

    Args:
        folder: of the files.
        name: of the files, without a suffix.
        dtype: of the ids to write.
        vocab_size: ids are smaller.
    """

    def __init__(
        self, folder: Path, name: str, dtype: np.dtype[np.unsignedinteger], vocab_size: int
    ) -> None:
        self.dtype = stored_type(dtype, vocab_size)
        self._stem, self._name = folder / name, name
        self._bin = _create(folder / f"{name}.bin")
        self._lengths = (folder / f"{name}.lengths").open("xb")
        self.num_sequences = 0

    def add(self, ids: NDArray[np.unsignedinteger], lengths: NDArray[np.int64]) -> None:
        """Append sequences: (T,) ids, and the length of each sequence.

        Raises:
            DataError: an id is beyond 2**31, which Megatron can't store.
        """
        if ids.dtype.itemsize == 4 and len(ids) and ids.max() >= 1 << 31:
            raise DataError(
                f"{self._name}: Megatron stores ids of 31 bits, got {ids.max()}. Use another "
                "tokenizer."
            )
        self._bin.write(ids.astype(self.dtype, copy=False).data)
        self._lengths.write(lengths.astype("<i4").data)
        self.num_sequences += len(lengths)

    def abandon(self) -> None:
        """Close the files as they are."""
        self._bin.close()
        self._lengths.close()

    def close(self) -> list[DigestedFile]:
        """Return the complete files, in the order in which to publish them."""
        self.abandon()
        with _create(self._stem.with_name(f"{self._name}.idx")) as index:
            code = CODES[self.dtype.name]
            index.write(
                HEADER.pack(MAGIC, VERSION, code, self.num_sequences, self.num_sequences + 1)
            )
            for lengths in self._spooled():
                index.write(lengths)
            end = np.int64(0)
            for lengths in self._spooled():
                ends = end + np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
                index.write(np.append(end, ends[:-1]))
                end = ends[-1]
            for first in range(0, self.num_sequences + 1, CHUNK):
                last = min(first + CHUNK, self.num_sequences + 1)
                index.write(np.arange(first, last, dtype="<i8"))
        return [self._bin, index]

    def _spooled(self) -> Iterator[NDArray[np.int32]]:
        with open(self._lengths.name, "rb") as file:
            while content := file.read(4 * CHUNK):
                yield np.frombuffer(content, "<i4")


def _create(path: Path) -> DigestedFile:
    return DigestedFile(path, hashlib.blake2b(digest_size=16))
