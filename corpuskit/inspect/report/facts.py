"""Everything that a report shows about a run, in one tree of JSON values.

It works on a run that is finished, running, failed or stopped: what is sealed has figures, the rest
says that it has none yet. Memory and time are bounded: of a large run an even part of the profile
and of the ledger is read, and the facts say so.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import json
import math
import platform
import time
from collections import Counter, defaultdict
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import corpuskit
from corpuskit.engine.compiling import COMPILING
from corpuskit.engine.contracts import contract_facts
from corpuskit.engine.mixture import mixture, packing
from corpuskit.engine.status import (
    accounts,
    modified,
    outdated_phases,
    overheads,
    run_status,
    sealed,
)
from corpuskit.engine.status import funnel as stage_rows
from corpuskit.errors import DataError, UsageError
from corpuskit.formats.manifest import Seal
from corpuskit.inspect.archive import with_prefix
from corpuskit.inspect.counts import read_counts
from corpuskit.inspect.report import distributions, funnel
from corpuskit.inspect.report.clusters import find_duplicates
from corpuskit.inspect.report.funnel import TextVolume, changed_params, flow, total
from corpuskit.inspect.report.ledger import scan_ledger
from corpuskit.inspect.report.samples import BUDGET_BYTES, shown_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.engine.mixture import Mixture, PackingRow
    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import RunStatus, Sealed
    from corpuskit.inspect.counts import ProfileTotals
    from corpuskit.inspect.report.clusters import Duplicates
    from corpuskit.inspect.report.funnel import Flow
    from corpuskit.inspect.report.ledger import Scan


FORMAT = 1


def gather(
    run: RunDirectory, *, samples: int, seed: int, training: Sequence[str] = (),
    budget_bytes: int = BUDGET_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """Return everything that a report shows, as JSON values; numbers that JSON lacks are null.

    Args:
        samples: of each stage, rule, action and source, and of the kept documents of each source.
        seed: of the choice of samples.
        training: folders of training runs, handed on as they are.
        budget_bytes: text of all samples together.

    Raises:
        DataError: a file that a seal names cannot be read.
    """
    began = time.process_time()
    finished = sealed(run)
    for phase, seal in finished:
        run.set_seal(phase, seal)
    state = run_status(run, finished)
    readable, so_far = with_open(run, finished, state)
    counts = read_counts(run, readable)
    stream = flow(run, readable, counts)
    stages = funnel.stage_facts(run, finished, state.phase if state.state == "running" else None)
    scan = scan_ledger(run, readable, samples, seed)
    clusters = _clusters(run, finished, scan, samples)
    costs = resources(run, finished, state)
    mix, notes = _mixture(run, finished)
    old, earlier = _outdated(run, finished)
    packed = list(packing(finished))
    facts = {
        "format": FORMAT,
        "made": {},
        "run": {k: v for k, v in vars(state).items() if k not in ("failures", "phase_statuses")},
        "failures": state.failures,
        "sources": [step.label for step in run.plan.file.sources],
        "stages": stages,
        "totals": _totals(
            run, readable, stream, counts, packed, mix, costs, [*so_far, *earlier, *notes]
        ),
        "funnel": funnel.funnel_rows(run, readable, stream, stages),
        "expect": contract_facts(run, finished),
        "drops": funnel.drops(stream, counts, stages),
        "changes": funnel.changes(stream, scan, stages),
        "rewritten": distributions.rewritten(run, counts),
        "measures": vars(counts.coverage)
        | {"items": distributions.measures(run, counts, stream.ledger, old)},
        "values": distributions.values(run, counts),
        "domains": distributions.domains(counts),
        "lengths": distributions.lengths(counts),
        "duplicates": clusters,
        "samples": shown_samples(run, readable, scan, clusters, samples, seed, budget_bytes),
        "mixture": None if mix is None else mix.facts(),
        "packing": [_with_properties(row, "fill_ratio", "cut_ratio") for row in packed],
        "resources": costs,
        "provenance": provenance(run, finished, state),
        "plan": plan_facts(run),
        "training": training,
    }  # fmt: skip
    return {**_json_value(facts), "made": _made(time.process_time() - began)}


def _with_properties(row: Any, *properties: str) -> dict[str, Any]:
    """Return the fields of a row, and some of its properties."""
    return {**vars(row), **{name: getattr(row, name) for name in properties}}


def _made(cpu_seconds: float) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"at": now, "corpuskit": corpuskit.__version__, "cpu_seconds": round(cpu_seconds, 3)}


def _clusters(run: RunDirectory, finished: Sealed, scan: Scan, samples: int) -> list[Duplicates]:
    """Return duplicates by cluster; without samples there are no texts in them, either."""
    keys_of: dict[str, set[int]] = {}
    for row in scan.rows:
        if row.survivor_id is not None:
            keys_of.setdefault(row.group.stage, set()).add(row.key)
    duplicates = find_duplicates(run, finished, keys_of)
    for cluster in (cluster for d in duplicates for cluster in d.largest if not samples):
        cluster["text"] = None
    return duplicates


def _outdated(run: RunDirectory, finished: Sealed) -> tuple[list[str], list[str]]:
    """Return the labels of stages that ran with other parameters, and a note that says so."""
    labels = [label for phase in outdated_phases(run, finished) for label in phase.labels]
    if not labels:
        return [], []
    return labels, [
        f"{', '.join(labels)}: parameters, files or inputs are no longer those that made these "
        "figures. Their bounds are not drawn; the plan below is the new one."
    ]


def _totals(
    run: RunDirectory, readable: Sealed, stream: Flow, counts: ProfileTotals,
    packed: Sequence[PackingRow], mix: Mixture | None, costs: dict[str, Any], notes: list[str],
) -> dict[str, Any]:  # fmt: skip
    return {
        "input": {
            "files": len(run.inputs.files),
            "size_bytes": sum(file.size_bytes for file in run.inputs.files),
        },
        "read": total(stream.volumes[stream.labels[0]].values()),
        "left": _remaining(stream),
        "dropped": sum(num for (kind, *_), num in stream.ledger.items() if kind == "drop"),
        # How often a stage cut, replaced or rewrote something in a document.
        "changed": funnel.changed_documents(stream, counts),
        "tokens": _tokens(run, packed, mix),
        "accounts": [_with_properties(row, "num_missing") for row in accounts(run, readable)],
        "cpu_seconds": costs["cpu_seconds"]["total"],
        "peak_rss_bytes": costs["peak_rss_bytes"],
        "notes": [*notes, *stream.notes],
    }


def _remaining(stream: Flow) -> TextVolume:
    volumes = [
        volume
        for label in (*stream.labels, "")
        if (volume := total(stream.volumes[label].values())).documents is not None
    ]
    return volumes[-1] if volumes else TextVolume()


def _mixture(run: RunDirectory, finished: Sealed) -> tuple[Mixture | None, list[str]]:
    """Return the mixture, and why there is none if its plan is damaged."""
    try:
        return mixture(run, finished), []
    except (DataError, UsageError) as error:
        return None, [str(error)]


def _tokens(
    run: RunDirectory, packed: Sequence[PackingRow], mix: Mixture | None
) -> dict[str, int | None]:
    totals = [row for row in packed if row.band is None]
    packing = run.plan.given.get("pack", {}).get("packing", {})
    is_taken = mix is not None and mix.state == "planned"
    return {
        "stored": sum(row.tokens for row in totals) if totals else None,
        "taken": sum(row.tokens for row in mix.sources) if mix and is_taken else None,
        "rows": sum(row.rows for row in totals) if totals else None,
        "seq_len": packing.get("seq_len"),
        "padding": sum(row.padding for row in totals) if totals else None,
    }


def _json_value(value: Any) -> Any:
    """Return a value as JSON has it: tuples as lists, dataclasses as objects, NaN as null."""
    if hasattr(value, "to_json"):
        return _json_value(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        return _json_value({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and not value.isascii():  # names of files may be no UTF-8
        return value.encode("utf-8", "backslashreplace").decode()
    return value


# ---------------------------------------------------------------- a run whose first phase goes on

MAX_MANIFESTS = 5000  # with more of them nothing is shown before the seal: half a millisecond each


def with_open(run: RunDirectory, finished: Sealed, state: RunStatus) -> tuple[Sealed, list[str]]:
    """Return the finished phases or, before there are any, what the first one has done so far.

    Returns:
        Phases with their seals, and notes about them.
    """
    first = state.phase_statuses[0] if state.phase_statuses else None
    if finished or first is None or not first.units:
        return finished, []
    names = run.manifest_names(first.phase, first.fingerprint)
    if not names or len(names) > MAX_MANIFESTS:
        return finished, []
    manifests = run.manifests(first.phase, first.fingerprint).values()
    seal = Seal.merge(first.phase.name, first.fingerprint, manifests)
    run.set_seal(first.phase, seal)
    note = (
        f"All figures are of {len(seal.units)} of {first.units} pieces of the input: phase "
        f"{first.phase.name}, which reads it, is not finished."
    )
    return [(first.phase, seal)], [note]


# ---------------------------------------------------------------- what made the run

MAX_FILES = 50  # input files of a source that are named

LIBRARIES = (
    "datasketch", "datatrove", "fasttext", "numba", "numpy", "pyarrow", "pydantic", "spacy",
    "tokenizers",
)  # fmt: skip


def provenance(run: RunDirectory, finished: Sealed, state: RunStatus) -> dict[str, Any]:
    """Return fingerprints and versions, as JSON values.

    Libraries whose version decides are part of the fingerprints; runs do not store versions by
    name, so the versions are those that are installed where the report is made.
    """
    current = {prospect.phase.name: prospect.state == "reuse" for prospect in state.phase_statuses}
    phases = [
        {
            "phase": phase.name, "fingerprint": seal.fingerprint, "content": seal.content,
            "inputs": list(seal.inputs), "is_current": current.get(phase.name),
            "accepted_code_change": seal.accepted_code_change,
        }
        for phase, seal in finished
    ]  # fmt: skip
    mix = _mix_plan(run)
    return {
        "phases": phases,
        "versions": {"here": _versions(), "recorded": None},
        "plan_hash": mix.get("plan_hash"),
        "tokenizer": mix.get("tokenizer"),
        "code": _planned_code(run),
    }


def _planned_code(run: RunDirectory) -> dict[str, str]:
    try:
        content = json.loads(run.store.read("plan.json"))
        return {str(name): str(digest) for name, digest in content["code"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _mix_plan(run: RunDirectory) -> dict[str, Any]:
    if not run.store.exists("mix/plan.json"):
        return {}
    try:
        plan = json.loads(run.store.read("mix/plan.json"))
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"corpuskit": corpuskit.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def plan_facts(run: RunDirectory) -> dict[str, Any]:
    """Return the plan as JSON values: settings, sources with their files, stages."""
    files: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    sizes: defaultdict[str, int] = defaultdict(int)
    nums: defaultdict[str, int] = defaultdict(int)
    for file in run.inputs.files:
        nums[file.source] += 1
        sizes[file.source] += file.size_bytes
        if len(files[file.source]) < MAX_FILES:
            files[file.source].append({"name": file.name, "size_bytes": file.size_bytes})
    sources = [
        {
            "label": step.label, "format": step.name, "params": changed_params(step.stage),
            "paths": list(getattr(step.stage, "paths", ())), "num_files": nums[step.label],
            "size_bytes": sizes[step.label], "files": files[step.label],
        }
        for step in run.plan.file.sources
    ]  # fmt: skip
    stages = [
        {
            "label": step.label, "name": step.name,
            "params": step.stage.model_dump(mode="json") | step.applies.to_json(),
            "changed": changed_params(step.stage) | step.applies.to_json(),
            "materialize": step.materialize,
        }
        for step in run.plan.file.steps
    ]  # fmt: skip
    settings = run.plan.settings.model_dump(mode="json", exclude_defaults=True)
    edits = len(run.store.list("edits"))
    return {"settings": settings, "sources": sources, "stages": stages, "edits": edits}


# ---------------------------------------------------------------- where time, memory and disk went

MAX_TIMED = 512
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
    over = overheads(finished)
    peaks = [seal.timing.get("peak_rss_bytes", 0.0) for seal in seals.values()]
    return {
        "cpu_seconds": {
            **{name: over.get(name, 0.0) for name in ("read", "write", "compiling")},
            "total": over.get("cpu_seconds", 0.0),
        },
        "peak_rss_bytes": max(peaks, default=0.0),
        "phases": [
            _sealed_facts(run, phase, seals[phase.index])
            if phase.index in seals
            else _unsealed_facts(phase, state)
            for phase in run.plan.phases
        ],
        "stages": [
            {
                "stage": row.stage, "cpu_seconds": row.cpu_seconds,
                "text_bytes": row.text_bytes or None,
                "bytes_per_cpu_second": _rate(row.text_bytes, row.cpu_seconds),
                "documents": row.num_in,
            }
            for row in stage_rows(run, finished)
            if row.state == "done" and not row.is_source
        ],
        "disk": _files_by_role(seals.values()),
    }  # fmt: skip


def _sealed_facts(run: RunDirectory, phase: Phase, seal: Seal) -> dict[str, Any]:
    names = run.manifest_names(phase, seal.fingerprint)
    read = with_prefix(seal.counters, "read_bytes/")
    size = sum(read.values()) if phase.is_stream else round(seal.timing.get("text_bytes", 0.0))
    cpu = seal.timing.get("cpu_seconds", 0.0)
    return {
        **_empty_facts(phase, "done"),
        "units": len(seal.units),
        "units_done": len(seal.units),
        "tasks": len(names),
        "cpu_seconds": cpu,
        "task_wall_seconds": seal.timing.get("wall_seconds", 0.0),
        "elapsed_seconds": _elapsed(run, names),
        "text_bytes": size or None,
        "bytes_per_cpu_second": _rate(size, cpu - seal.timing.get(COMPILING, 0.0)),
        "peak_rss_bytes": seal.timing.get("peak_rss_bytes"),
        "written": _files_by_role([seal]),
    }


def _unsealed_facts(phase: Phase, state: RunStatus) -> dict[str, Any]:
    is_running = state.state == "running" and state.phase == phase.name
    facts: dict[str, Any] = {**_empty_facts(phase, "running" if is_running else "waiting")}
    for status in state.phase_statuses:
        if status.phase.name == phase.name and status.units is not None:
            facts["units"] = status.units
            if status.units_left is not None:
                facts["units_done"] = status.units - status.units_left
    return facts


def _empty_facts(phase: Phase, state: str) -> dict[str, Any]:
    names = {"phase": phase.name, "labels": phase.labels, "pass": phase.pass_name or None}
    return {**dict.fromkeys(_FIGURES), "written": (), **names, "state": state}


def _elapsed(run: RunDirectory, names: list[str]) -> float | None:
    if not names or len(names) > MAX_TIMED:
        return None
    starts, ends = [], []
    for name, content in zip(names, run.store.read_each(names), strict=True):
        end = modified(run, name)
        try:
            wall = float(json.loads(content or b"")["timing"]["wall_seconds"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if end is None:
            return None
        starts.append(end - wall)
        ends.append(end)
    return max(ends) - min(starts)


def _rate(size: int, seconds: float) -> float | None:
    return size / seconds if size and seconds > 0 else None


def _files_by_role(seals: Iterable[Seal]) -> list[dict[str, Any]]:
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
