"""All that happened to one document: where it came from, what every stage said, where it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.batch import split_key
from corpuskit.errors import UsageError
from corpuskit.run.status import sealed

if TYPE_CHECKING:
    from corpuskit.manifest import Part
    from corpuskit.run.rundir import RunDirectory

SHOWN_CHARS = 300


def history(run: RunDirectory, document: str) -> dict[str, Any]:
    """Return the history of a document as JSON values, with `lines` to print.

    Args:
        document: an id, or a key.

    Raises:
        UsageError: no shard and no ledger row knows it.
    """
    found = _history(run, document, None)
    if found is None and document.isdigit():
        found = _history(run, document, int(document))
    if found is None:
        raise UsageError(f"{document!r}: no document has this id or key in {run.store.address}.")
    return found


def _history(run: RunDirectory, document: str, key: int | None) -> dict[str, Any] | None:
    rows: list[dict[str, Any]] = []
    text: str | None = None
    phases = sealed(run)
    for phase, seal in phases:
        for part in seal.by_role("ledger"):
            rows += [{"phase": phase.name, **row} for row in _find(run, part, "doc", key, document)]
        if phase.is_stream:
            parts = [p for p in seal.parts if p.role == "documents" or p.role.startswith("aside:")]
            for part in parts:
                for row in _find(run, part, "", key, document):
                    key, text = row["key"], row["text"]
    if key is None and rows:
        key = rows[0]["doc_key"]
    if key is None or (not rows and text is None):
        return None
    ordinal, position = split_key(key)
    file = next((f for f in run.inputs.files if f.ordinal == ordinal), None)
    is_gone = any(row["action"] == "drop" for row in rows)
    origin = {"file": file.path if file else None, "position": position}
    lines = [f"{document}: key {key}, from {origin['file']} at {position}"]
    lines += [_line(row) for row in rows]
    is_whole = len(phases) == len(run.plan.phases)
    fate = "kept" if is_whole else "not dropped so far; the run is not finished"
    lines.append("gone" if is_gone else fate)
    if text is not None and not is_gone:
        lines.append(repr(text[:SHOWN_CHARS]))
    return {"key": key, "origin": origin, "kept": not is_gone, "ledger": rows, "lines": lines}


def _find(
    run: RunDirectory, part: Part, prefix: str, key: int | None, document: str
) -> list[dict[str, Any]]:
    if key is not None and not part.first <= key <= part.last:
        return []
    names = ("doc_key", "doc_id") if prefix else ("key", "id")
    condition = pc.field(names[1]) == document
    if key is not None:
        condition = pc.field(names[0]) == pa.scalar(key, pa.int64())
    with run.store.open(part.path) as source:
        table = pq.read_table(source, filters=condition, partitioning=None)
    return table.to_pylist()  # type: ignore[no-any-return]


def _line(row: dict[str, Any]) -> str:
    parts = [f"{row['stage']}: {row['action']} by {row['rule']}"]
    if row["value"] is not None:
        parts.append(f"value {row['value']:g}")
    if row["threshold"] is not None:
        parts.append(f"threshold {row['threshold']:g}")
    if row["survivor_id"] is not None:
        parts.append(f"kept instead: {row['survivor_id']}")
    if row["spans"]:
        parts.append(f"{len(row['spans'])} spans")
    return ", ".join(parts)
