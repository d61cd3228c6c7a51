"""Exports the documents of a finished run as JSON lines."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from corpuskit.engine.documents import read_part
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.zstd import zstd
from corpuskit.integrations.export import DONE, check_apart
from corpuskit.integrations.hub import finished_documents
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

ENDING = ".jsonl.zst"


def export_documents(run_dir: str, out: str, sources: Sequence[str] = ()) -> dict[str, Any]:
    """Write a file of JSON lines for each part of `documents/`, and return `export.json`.

    Files are named after their parts, whose names contain a hash of the content, so files that an
    earlier call finished are kept.

    Args:
        run_dir: a finished run.
        out: a folder, or an address of an object store.
        sources: only these; empty for all.

    Raises:
        UsageError: the run is not finished, or `out` has other files.
        DataError: a part is damaged.
    """
    run, _, parts = finished_documents(run_dir)
    names = [source.label for source in run.plan.file.sources]
    for name in sources:
        if name not in names:
            raise UsageError(f"--source: the run has no source {name!r}. {suggest(name, names)}")
    check_apart(run_dir, out)
    store = open_store(out)
    part_of = {
        part.path.rpartition("/")[2].removesuffix(".parquet") + ENDING: part
        for part in parts
        if not sources or part.source in sources
    }
    if unknown := sorted(store.top() - part_of.keys() - {DONE, "lock", "scratch"}):
        raise UsageError(f"{out}: is not empty, it has {unknown[0]!r}. Give a new folder.")
    with store.lock():
        store.clear_scratch()
        for name, part in part_of.items():
            if not store.exists(name):
                with store.scratch() as folder:
                    with zstd.open(folder / name, "wb") as file:
                        for batch in read_part(run, part):
                            file.write(_lines(batch))
                    store.publish(folder / name, name)
        sizes = store.sizes("")
        files = [
            {"name": name, "source": part.source, "rows": part.rows, "size_bytes": sizes[name]}
            for name, part in part_of.items()
        ]
        facts = {"format": 1, "target": "jsonl", "name": run.plan.settings.name, "files": files}
        store.put(DONE, json.dumps(facts, indent=1).encode() + b"\n")
        store.clear_scratch()
        if not store.is_remote:
            store.delete(["lock"])
    return facts


def _lines(batch: pa.RecordBatch) -> bytes:
    """Return a line for each document: its columns without `key`, and `extra` as an object."""
    lines = []
    for row in batch.drop_columns(["key"]).to_pylist():
        extra = row.pop("extra", None)
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                row[name] = None  # JSON has no such number
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        lines.append(f'{line[:-1]},"extra":{extra}}}\n' if extra else f"{line}\n")
    return "".join(lines).encode()
