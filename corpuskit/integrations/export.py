"""Exports of a finished run to the formats of other trainers.

An export is a folder: files of ids with their indexes, and `export.json`, which appears last and
says what they hold. The same request goes on where an earlier one was killed, and gives the same
bytes as if it had not been.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any, Literal, Protocol

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.integrations import megatron, nanotron
from corpuskit.integrations._folder import (
    DONE,
    UNFINISHED,
    begun,
    check_apart,
    content_of,
    read_record,
)
from corpuskit.integrations._packed import PackedRows, sequences
from corpuskit.storage import LocalStore, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from corpuskit.integrations._digested import Written
    from corpuskit.integrations._packed import Rows

Format = Literal["megatron", "nanotron"]
Order = Literal["stored", "run"]
Unit = Literal["document", "row"]

FORMAT = 1
RUN = "run"
"""What the files of a run are called, as a source's are called like the source."""


class Writer(Protocol):
    """Writes sequences of ids in some format."""

    dtype: np.dtype[np.integer]
    rows_by_size: bool
    num_sequences: int

    def add(self, ids: NDArray[np.unsignedinteger], lengths: NDArray[np.int64]) -> None:
        """Append sequences."""

    def abandon(self) -> None:
        """Close the files as they are."""

    def close(self) -> list[Written]:
        """Return the complete files, in the order in which they are to appear."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        order: `stored`, a set of files for each source; or `run`, one in the order of the run.
        unit: what a sequence is: a document without padding, or a packed row with it. None: the
            document for Megatron, the row for nanotron.
        sources: only these; empty for all.
        rows: only so many rows, of each source or of the run.
        tokenizer: its name for nanotron's metadata; None for the file that the pipeline names.
    """

    to: Format
    order: Order = "stored"
    unit: Unit | None = None
    sources: tuple[str, ...] = ()
    rows: int | None = None
    tokenizer: str | None = None


@dataclasses.dataclass(frozen=True)
class Progress:
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
        unit = request.unit or ("row" if request.to == "nanotron" else "document")
        self.request = dataclasses.replace(
            request, unit=unit, sources=tuple(n for n in names if n in (request.sources or names)),
        )  # fmt: skip
        if request.to == "nanotron" and request.tokenizer is None:
            name = _tokenizer_name(run_dir) or str(plan.tokenizer.get("hash"))
            self.request = dataclasses.replace(self.request, tokenizer=name)
        self.run_dir = run_dir
        if request.order == "run":
            self.targets = {RUN: plan.skips.num_delivered}
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
            "target": request.to,
            "order": request.order,
            "unit": request.unit,
            "rows": request.rows,
            "sources": list(request.sources),
            "name": plan.name,
            "plan_hash": plan.hash,
            "seq_len": plan.seq_len,
            "dtype": self.writer_type().name,
            "tokenizer": {**plan.tokenizer, "name": request.tokenizer},
        }

    def writer_type(self) -> np.dtype[np.integer]:
        """Return the type of the ids that are written."""
        plan = self.packed.plan
        if self.request.to == "nanotron":
            return plan.dtype
        return megatron.stored_type(plan.dtype, self._vocab_size())

    def writer(self, folder: Path, name: str) -> Writer:
        """Open the writer of one set of files."""
        plan = self.packed.plan
        if self.request.to == "nanotron":
            return nanotron.NanotronWriter(folder, name, plan.dtype, str(self.request.tokenizer))
        return megatron.MegatronWriter(folder, name, plan.dtype, self._vocab_size())

    def rows(self, name: str) -> Iterator[Rows]:
        """Yield the rows of one set of files."""
        if self.request.order == "run":
            return self.packed.of_run(self.targets[name])
        names = [source.name for source in self.packed.plan.sources]
        return self.packed.of_source(names.index(name), self.targets[name])

    def place(self, name: str, file: str) -> str:
        """Return where a file goes; nanotron reads folders, each of them one data set."""
        return f"{name}/{file}" if self.request.to == "nanotron" else file

    def size_bytes(self, names: list[str]) -> int:
        """Return about how much some sets of files take, the spools of the largest included.

        Ids are counted as if nothing was padding; documents are those of the plan, and each row may
        hold the piece of one more.
        """
        plan = self.packed.plan
        width, size = self.packed.width, self.writer_type().itemsize
        documents = {e["name"]: int(e.get("documents", 0)) for e in plan.base.fields["sources"]}
        stored = {source.name: source.rows for source in plan.sources}
        stored[RUN], documents[RUN] = sum(stored.values()), sum(documents.values())
        index = megatron if self.request.to == "megatron" else nanotron
        total = spool = 0
        for name in names:
            sequences = rows = self.targets[name]
            if self.request.unit == "document" or self.request.to == "nanotron":
                sequences += rows * documents[name] // max(1, stored[name])
            total += rows * width * size + sequences * index.INDEX_BYTES
            spool = max(spool, sequences * index.SPOOL_BYTES)
        return total + spool

    def pad(self) -> int:
        """Return the id of padding."""
        return self._number("pad")

    def _vocab_size(self) -> int:
        return self._number("vocab_size")

    def _number(self, name: str) -> int:
        value = self.packed.plan.tokenizer.get(name)
        if not isinstance(value, int):
            raise DataError(f"{self.run_dir}: the mix plan has no {name}. Run the mix again.")
        return value


def export(
    run_dir: str, out: str, request: Request, progress: Callable[[Progress], None] = lambda _: None
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
    _check_room(store, work, begun(store, facts))
    with store.lock():
        store.clear_scratch()
        record = begun(store, facts)
        files = {entry["source"]: entry for entry in record["files"]}
        if record["is_finished"]:
            store.delete([UNFINISHED, "lock"])
            return read_record(store, DONE)
        store.put(UNFINISHED, content_of(facts | {"files": list(files.values())}))
        all_rows = sum(work.targets.values())
        for name in work.targets:
            if name in files:
                continue
            done = Progress(
                sum(entry["rows"] for entry in files.values()),
                all_rows,
                sum(file["size_bytes"] for e in files.values() for file in e["files"].values()),
            )
            files[name] = _write(work, store, name, done, progress)
            store.put(UNFINISHED, content_of(facts | {"files": list(files.values())}))
        manifest = facts | {"files": [files[name] for name in work.targets]}
        store.put(DONE, content_of(manifest))
        store.delete([UNFINISHED, "lock"])
        store.clear_scratch()
    return manifest


def _write(
    work: Export,
    store: LocalStore,
    name: str,
    done: Progress,
    progress: Callable[[Progress], None],
) -> dict[str, Any]:
    """Write one set of files, the index last, and return what they hold."""
    counts = dict.fromkeys(("sequences", "tokens", "padding", "taken_down", "continued"), 0)
    entry: dict[str, Any] = {"source": name, "rows": work.targets[name], **counts, "files": {}}
    if not work.targets[name]:
        return entry
    pad, unit = work.pad(), work.request.unit
    with store.scratch() as folder:
        writer = work.writer(folder, name)
        try:
            for rows in work.rows(name):
                ids, lengths = sequences(rows, pad, unit=unit, by_size=writer.rows_by_size)
                writer.add(ids, lengths)
                _count(entry, rows)
                done = Progress(
                    done.rows + len(rows.tokens),
                    done.all_rows,
                    done.size_bytes + len(ids) * writer.dtype.itemsize,
                )
                progress(done)
            files = writer.close()
        finally:
            writer.abandon()
        entry["sequences"] = writer.num_sequences
        for file in files:
            place = work.place(name, file.path.name)
            store.publish(file.path, place)
            entry["files"][place] = {"size_bytes": file.size_bytes, "digest": file.digest}
    return entry


def _count(entry: dict[str, Any], rows: Rows) -> None:
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


def _tokenizer_name(run_dir: str) -> str | None:
    """Return the tokenizer's file as the pipeline names it; None where there is no pipeline."""
    from corpuskit.engine.rundir import RunDirectory

    try:
        steps = RunDirectory.open(run_dir).plan.file.steps
    except UsageError:
        return None
    found = [getattr(step.stage, "tokenizer", None) for step in steps if step.name == "tokenize"]
    return str(found[0]) if found else None
