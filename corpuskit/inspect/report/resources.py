"""Where time, memory and disk went, phase by phase and stage by stage."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from corpuskit.engine.compiling import COMPILING
from corpuskit.engine.status import funnel, modified, overheads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import RunStatus, Sealed
    from corpuskit.formats.manifest import Seal

MAX_MANIFESTS = 512
"""Of a phase; with more of them, how long it took from first to last is not worked out."""

_FIGURES = (
    "units", "units_done", "tasks", "cpu_seconds", "task_wall_seconds", "elapsed_seconds",
    "text_bytes", "bytes_per_cpu_second", "peak_rss_bytes",
)  # fmt: skip
"""Of a phase, None where not known yet: `task_wall_seconds` summed over tasks; `elapsed_seconds`
from the beginning of its first to the end of its last task; `text_bytes` read (None for passes that
read keys), per CPU second without the compilation of kernels; memory of the largest worker."""


def resources(run: RunDirectory, finished: Sealed, state: RunStatus) -> dict[str, Any]:
    """Return what the finished phases took, and how far the open ones are.

    CPU seconds are those of tasks, the start of workers excluded; those of a stage are of all its
    passes together.
    """
    seals = {phase.index: seal for phase, seal in finished}
    over = overheads(run, finished)
    peaks = [seal.timing.get("peak_rss_bytes", 0.0) for seal in seals.values()]
    return {
        "cpu_seconds": {
            **{name: over.get(name, 0.0) for name in ("read", "write", "compiling")},
            "total": over.get("cpu_seconds", 0.0),
        },
        "peak_rss_bytes": max(peaks, default=0.0),
        "phases": [
            _of_seal(run, phase, seals[phase.index])
            if phase.index in seals
            else _open(phase, state)
            for phase in run.plan.phases
        ],
        "stages": [
            {
                "stage": row.stage, "cpu_seconds": row.cpu_seconds,
                "text_bytes": row.text_bytes or None,
                "bytes_per_cpu_second": _rate(row.text_bytes, row.cpu_seconds),
                "documents": row.num_in,
            }
            for row in funnel(run, finished)
            if row.state == "done" and not row.is_source
        ],
        "disk": _written(seals.values()),
    }  # fmt: skip


def _of_seal(run: RunDirectory, phase: Phase, seal: Seal) -> dict[str, Any]:
    names = run.manifest_names(phase, seal.fingerprint)
    read = [v for k, v in seal.counters.items() if k.startswith("read_bytes/")]
    size = sum(read) if phase.is_stream else round(seal.timing.get("text_bytes", 0.0))
    cpu = seal.timing.get("cpu_seconds", 0.0)
    return {
        **_named(phase, "done"),
        "units": len(seal.units),
        "units_done": len(seal.units),
        "tasks": len(names),
        "cpu_seconds": cpu,
        "task_wall_seconds": seal.timing.get("wall_seconds", 0.0),
        "elapsed_seconds": _elapsed(run, names),
        "text_bytes": size or None,
        "bytes_per_cpu_second": _rate(size, cpu - seal.timing.get(COMPILING, 0.0)),
        "peak_rss_bytes": seal.timing.get("peak_rss_bytes"),
        "written": _written([seal]),
    }


def _open(phase: Phase, state: RunStatus) -> dict[str, Any]:
    is_running = state.state == "running" and state.phase == phase.name
    facts: dict[str, Any] = {**_named(phase, "running" if is_running else "waiting")}
    for status in state.phase_statuses:
        if status.phase.name == phase.name and status.units is not None:
            facts["units"] = status.units
            if status.units_left is not None:
                facts["units_done"] = status.units - status.units_left
    return facts


def _named(phase: Phase, state: str) -> dict[str, Any]:
    names = {"phase": phase.name, "labels": phase.labels, "pass": phase.pass_name or None}
    return {**dict.fromkeys(_FIGURES), "written": (), **names, "state": state}


def _elapsed(run: RunDirectory, names: list[str]) -> float | None:
    if not names or len(names) > MAX_MANIFESTS:
        return None
    begins, ends = [], []
    for name, content in zip(names, run.store.read_each(names), strict=True):
        end = modified(run, name)
        try:
            wall = float(json.loads(content or b"")["timing"]["wall_seconds"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if end is None:
            return None
        begins.append(end - wall)
        ends.append(end)
    return max(ends) - min(begins)


def _rate(size: int, seconds: float) -> float | None:
    return size / seconds if size and seconds > 0 else None


def _written(seals: Iterable[Seal]) -> list[dict[str, Any]]:
    """Return files by role; of several runs of one kind (`run:rows-web`) only the kind is named."""
    by_role: dict[str, Counter[str]] = {}
    for seal in seals:
        for parts in seal.parts.roles():
            role = "file" if parts.role.startswith(("file:", "copy:")) else parts.role
            sums = by_role.setdefault(role, Counter())
            sums["files"] += len(parts)
            for name in ("rows", "size_bytes"):
                sums[name] += int(parts.column(name).sum())
    rows = [{"role": role, **sums} for role, sums in by_role.items()]
    return sorted(rows, key=lambda row: (-row["size_bytes"], row["role"]))
