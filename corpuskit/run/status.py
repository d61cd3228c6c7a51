"""What a run directory says about its run: state of phases, funnel, accounts, integrity."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from corpuskit.plan.fingerprint import same_but_code

if TYPE_CHECKING:
    from corpuskit.manifest import Seal
    from corpuskit.plan.compile import Phase
    from corpuskit.run.phase import Prospect
    from corpuskit.run.rundir import RunDirectory


@dataclasses.dataclass(frozen=True)
class FunnelRow:
    """What one stage did.

    Attributes:
        dropped: rule -> source -> documents.
        changed: rule -> documents that were cut or rewritten.
        num_in, num_out: documents before and after.
        cpu_seconds: spent in the stage, all passes.
        text_bytes: seen by the stage.
    """

    stage: str
    num_in: int
    num_out: int
    dropped: dict[str, dict[str, int]]
    changed: dict[str, int]
    cpu_seconds: float
    text_bytes: int


@dataclasses.dataclass(frozen=True)
class Account:
    """Where the documents of one source are: read = kept + dropped, or rows are lost.

    `num_kept` is counted in the last document shards, `num_dropped` in the ledger.
    """

    source: str
    num_read: int
    num_dropped: int
    num_kept: int

    @property
    def num_missing(self) -> int:
        """Documents that are neither kept nor in the ledger."""
        return self.num_read - self.num_dropped - self.num_kept


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    num_files: int
    size_bytes: int
    problems: list[str]
    notes: list[str]


def prospects_of(
    run: RunDirectory, *, accept_code: bool = False, trust: bool = False
) -> list[Prospect]:
    """Return the state of every phase; those behind an unfinished one are `later`.

    Args:
        trust: believe what seals and names of manifests say, without a look at the parts: how far a
            run is, quickly. Missing files are what a run, or `verify`, finds.
    """
    from corpuskit.run.phase import PhaseWork, Prospect

    found: list[Prospect] = []
    is_open = False
    for phase in run.plan.phases:
        if is_open:
            found.append(Prospect(phase, "later", "after the phases before it"))
            continue
        work = PhaseWork(run, phase, accept_code=accept_code, trust=trust)
        found.append(work.prospect())
        if work.reused is None:
            is_open = True
        else:
            run.set_seal(phase, work.reused)
    return found


_NAMED = ("documents", "tokens", "ledger", "measures", "profile", "ids", "holdout", "mix")
"""Folders whose files seals must name."""

Sealed = list[tuple["Phase", "Seal"]]
"""Finished phases with their seals."""


def sealed(run: RunDirectory) -> Sealed:
    """Return the finished phases whose seals belong together, whatever changed since."""
    found: dict[int, tuple[Phase, Seal]] = {}
    for phase in run.plan.phases:
        if set(phase.waits) <= found.keys():
            seal = run.read_seal(phase)
            inputs = tuple(found[index][1].content() for index in phase.waits)
            if seal is not None and seal.inputs == inputs:
                found[phase.index] = (phase, seal)
    return list(found.values())


def funnel(run: RunDirectory, finished: Sealed | None = None) -> list[FunnelRow]:
    """Return what every stage dropped and what it cost, in plan order.

    Args:
        finished: what `sealed` returned, where it is at hand; seals of large runs are large.
    """
    counters: Counter[str] = Counter()
    timing: defaultdict[str, float] = defaultdict(float)
    for phase, seal in sealed(run) if finished is None else finished:
        for name, value in seal.counters.items():
            if name.startswith("read/") and phase.base is not None:
                continue
            counters[name] += value
        for name, seconds in seal.timing.items():
            timing[_timing_name(phase, name)] += seconds
    alive = sum(value for name, value in counters.items() if name.startswith("read/"))
    rows: list[FunnelRow] = []
    formats = list(dict.fromkeys(step.name for step in run.plan.file.sources))
    for label in [*formats, *(step.label for step in run.plan.file.steps)]:
        dropped = _nested(counters, f"dropped/{label}/")
        changed = {
            rule: sum(by_source.values())
            for action in ("cut", "replace")
            for rule, by_source in _nested(counters, f"{action}/{label}/").items()
        }
        lost = sum(sum(by_source.values()) for by_source in dropped.values())
        cost = timing[f"cpu_seconds/{label}"]
        seen = int(timing[f"text_bytes/{label}"])
        rows.append(FunnelRow(label, alive, alive - lost, dropped, changed, cost, seen))
        alive -= lost
    return rows


def overheads(run: RunDirectory, finished: Sealed | None = None) -> dict[str, float]:
    """Return CPU seconds of reading and writing documents, and of everything, start-up excluded."""
    total: defaultdict[str, float] = defaultdict(float)
    for _, seal in sealed(run) if finished is None else finished:
        for name in ("cpu_seconds/read", "cpu_seconds/write", "cpu_seconds"):
            total[name.rpartition("/")[2]] += seal.timing.get(name, 0.0)
    return dict(total)


def accounts(run: RunDirectory, finished: Sealed | None = None) -> list[Account]:
    """Return, per source, documents read, dropped and kept so far.

    Kept are the rows of the last document shards (or packed documents), less what later masks drop.
    """
    read: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for phase, seal in sealed(run) if finished is None else finished:
        for name, value in seal.counters.items():
            source = name.rpartition("/")[2]
            if name.startswith("read/") and phase.base is None:
                read[source] += value
            elif name.startswith("dropped/"):
                dropped[source] += value
        if phase.is_stream:
            kept = Counter()
            for part in seal.by_role("documents"):
                kept[part.source] += part.rows
            for step in run.plan.file.sources:  # packed: there are no document parts
                kept[step.label] += seal.counters.get(f"documents/{step.label}", 0)
        else:
            for name, value in seal.counters.items():
                if name.startswith("dropped/"):
                    kept[name.rpartition("/")[2]] -= value
    return [Account(s, read[s], dropped[s], kept[s]) for s in sorted(read)]


def verify(run: RunDirectory) -> Verification:
    """Compare every file with its seal; find missing, changed and unnamed files."""
    from corpuskit.run.mixture import edit_problems  # loads the loader, which others do without

    problems: list[str] = []
    named: set[str] = set()
    size = 0
    sealed_phases = sealed(run)
    for _, seal in sealed_phases:
        for part in seal.parts:
            named.add(part.path)
            found = run.store.size(part.path)
            if found is None:
                problems.append(f"{part.path}: missing.")
                continue
            size += part.size_bytes
            if found != part.size_bytes:
                problems.append(f"{part.path}: {found} bytes, not {part.size_bytes}.")
            elif run.store.digest(part.path) != part.digest:
                problems.append(
                    f"{part.path}: the content is not what was written. Delete it, run again."
                )
    finished = {phase.name for phase, _ in sealed_phases}
    problems += [
        f"phase {phase.name}: not finished."
        for phase in run.plan.phases
        if phase.name not in finished
    ]
    if not problems:
        for folder in () if run.plan.until else _NAMED:
            extra = [name for name in run.store.list(folder) if name not in named]
            problems += [f"{name}: no seal names it." for name in extra]
        problems += [
            f"source {one.source}: {one.num_missing} documents are neither kept nor in the ledger."
            for one in accounts(run, sealed_phases)
            if one.num_missing
        ]
        problems += edit_problems(run)
    notes = [
        f"phase {phase.name}: made with other parameters, inputs, files or libraries than the plan "
        "now names. Run again to bring it up to date."
        for phase in outdated(run, sealed_phases)
    ]
    return Verification(len(named), size, problems, notes)


def outdated(run: RunDirectory, finished: Sealed) -> list[Phase]:
    """Return the finished phases that were made with other parameters than the plan now has.

    Or with other inputs, files or libraries; code does not count. What the plan says is not what
    made their results.
    """
    return [
        phase
        for phase, seal in finished
        if not same_but_code(seal.fingerprint, run.fingerprint(phase))
    ]


def prospect_facts(one: Prospect) -> dict[str, Any]:
    """Return a prospect as JSON values."""
    facts = {**dataclasses.asdict(dataclasses.replace(one)), "phase": one.phase.name}
    return {**facts, "stages": list(one.phase.labels)}


def run_facts(run: RunDirectory) -> dict[str, Any]:
    """Return all of the above as JSON values, for programs."""
    from corpuskit.run.mixture import mixture
    from corpuskit.run.packing import packing

    finished = sealed(run)
    taken = mixture(run, finished)
    peak = max((seal.timing.get("peak_rss_bytes", 0.0) for _, seal in finished), default=0.0)
    return {
        "directory": run.store.address,
        "phases": [prospect_facts(one) for one in prospects_of(run, trust=True)],
        "funnel": [dataclasses.asdict(row) for row in funnel(run, finished)],
        "accounts": [
            {**dataclasses.asdict(one), "num_missing": one.num_missing}
            for one in accounts(run, finished)
        ],
        "packing": [dataclasses.asdict(row) for row in packing(finished)],
        "mixture": None if taken is None else taken.facts(),
        "cpu_seconds": overheads(run, finished),
        "peak_rss_bytes": peak,
    }


def _timing_name(phase: Phase, name: str) -> str:
    """Charge what a pass of a global stage costs and reads to its stage."""
    if not phase.is_stream:
        if name == f"cpu_seconds/{phase.name}":
            return f"cpu_seconds/{phase.labels[0]}"
        if name == "text_bytes":
            return f"text_bytes/{phase.labels[0]}"
    return name


def _nested(counters: Counter[str], prefix: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, value in sorted(counters.items()):
        if name.startswith(prefix):
            rule, _, source = name.removeprefix(prefix).partition("/")
            found.setdefault(rule, {})[source] = value
    return found
