"""Exports of a finished run to the formats of other trainers.

An export is a folder: files of ids with their indexes, and `export.json`, which appears last and
says what they hold. Until then `export.unfinished.json` marks the folder as ours and lists the
files that are complete: the same request continues where an earlier one was killed, and gives the
same bytes as if it had not been.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.integrations._packed import PackedRows, sequences
from corpuskit.integrations.megatron import INDEX_BYTES, SPOOL_BYTES, MegatronWriter, stored_type
from corpuskit.storage import LocalStore, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corpuskit.integrations._packed import RowBatch

Order = Literal["stored", "run"]
Unit = Literal["document", "row"]

FORMAT, TARGET = 1, "megatron"
RUN = "run"  # what the files of a run are called, as a source's are called like the source

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
        """Return what identifies the export: the same facts, the same bytes."""
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
        """Return the bytes that some sets of files take, about, with the largest temporary file.

        Ids are counted as if nothing was padding; documents are those of the plan, and each row may
        hold the piece of one more.
        """
        plan = self.packed.plan
        documents = {e["name"]: int(e.get("documents", 0)) for e in plan.base.fields["sources"]}
        stored = {source.name: source.rows for source in plan.sources}
        stored[RUN], documents[RUN] = sum(stored.values()), sum(documents.values())
        total = spool = 0
        for name in names:
            sequences = rows = self.targets[name]
            if self.request.unit == "document":
                sequences += rows * documents[name] // max(1, stored[name])
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
    """Export a run and return the content of its `export.json`; a finished export is left alone.

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
            done = ExportProgress(
                sum(entry["rows"] for entry in files.values()),
                all_rows,
                sum(file["size_bytes"] for e in files.values() for file in e["files"].values()),
            )
            files[name] = _write(work, store, name, done, progress)
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
    done: ExportProgress,
    progress: Callable[[ExportProgress], None],
) -> dict[str, Any]:
    """Write one set of files, the index last, and return what they hold."""
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
                done = ExportProgress(
                    done.rows + len(rows.tokens),
                    done.all_rows,
                    done.size_bytes + len(ids) * work.dtype.itemsize,
                )
                progress(done)
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
    kept = ~(rows.is_padding | rows.is_down)
    entry["tokens"] += int(lengths[kept].sum())
    entry["padding"] += int(lengths[rows.is_padding].sum())
    entry["taken_down"] += int(lengths[rows.is_down].sum())
    entry["continued"] += int((rows.continues & kept).sum())


def _check_room(store: LocalStore, work: Export, record: dict[str, Any]) -> None:
    """Refuse what will not fit.

    Raises:
        UsageError: it won't; with both numbers.
    """
    done = {entry["source"] for entry in record["files"]}
    needed = work.size_bytes([name for name in work.targets if name not in done])
    folder = store.root.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free and not record["is_finished"]:
        raise UsageError(
            f"{store.address}: needs about {needed / 1e9:,.3f} GB, {free / 1e9:,.3f} GB are free. "
            "Free space, or export fewer sources or rows."
        )


def _resume(store: LocalStore, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what an earlier call of this export left: complete `files`, and `is_finished`.

    Raises:
        UsageError: the folder holds something else.
        DataError: a finished export is broken.
    """
    others = store.top() - {"lock"}
    for name in (DONE, UNFINISHED):
        if name not in others:
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
            if all(
                store.size(file) == known["size_bytes"] for file, known in entry["files"].items()
            )
        ]
        if name == DONE and entries != record["files"]:
            raise DataError(
                f"{store.where(DONE)}: names files that are missing or of another size. Delete the "
                "folder and export again."
            )
        return {"files": entries, "is_finished": name == DONE}
    if others:
        raise UsageError(
            f"{store.address}: is not empty, it has {sorted(others)[0]!r}. Give a new folder."
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
    """Refuse to write into the run directory, whose files are all named by seals.

    Raises:
        UsageError: `out` is in it.
    """
    if is_remote(run_dir):
        return
    run, folder = Path(run_dir).resolve(), Path(out).resolve()
    if folder == run or run in folder.parents:
        raise UsageError(f"{out}: is inside the run directory. Give a folder outside of it.")
