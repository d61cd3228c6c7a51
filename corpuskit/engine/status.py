"""What a run directory says about its run: state of phases, funnel, accounts, integrity."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine import registry
from corpuskit.engine.plan.fingerprint import same_but_code
from corpuskit.stage import Source

if TYPE_CHECKING:
    from corpuskit.engine.config import Step
    from corpuskit.engine.phase import Prospect
    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal


KINDS = {
    "sources": "source", "annotators": "annotator", "filters": "filter", "rewriters": "rewriter",
    "dedup": "dedup", "mixing": "mixing", "sequences": "sequence",
}  # fmt: skip

StageState = Literal["done", "waiting", "not run"]


@dataclasses.dataclass(frozen=True)
class FunnelRow:
    """What was read of one source, or what one stage did.

    Attributes:
        stage: label of the source or the stage.
        kind: `source`, or that of the stage: `filter`, `dedup`, ...
        name: format of the source; registered name of the stage.
        state: `done`, `waiting` (for the rest of the run), or `not run` (after `--until`).
        num_in, num_out: documents before and after; None unless the state is `done`.
        sources: source -> (documents before, documents after); empty unless the state is `done`.
        dropped: rule -> source -> documents.
        changed: rule -> documents that were cut or rewritten.
        cpu_seconds: spent in the stage, all passes.
        text_bytes: seen by the stage, in all passes.
    """

    stage: str
    kind: str
    name: str
    state: StageState
    num_in: int | None
    num_out: int | None
    sources: dict[str, tuple[int, int]]
    dropped: dict[str, dict[str, int]]
    changed: dict[str, int]
    cpu_seconds: float = 0.0
    text_bytes: int = 0

    @property
    def is_source(self) -> bool:
        """Whether the row is that of a source."""
        return self.kind == "source"

    @property
    def num_lost(self) -> int:
        """Documents that were dropped."""
        return sum(sum(by_source.values()) for by_source in self.dropped.values())


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
    from corpuskit.engine.phase import PhaseWork, Prospect

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
    """Return what was read of every source, then what every stage dropped and cost, in plan order.

    Args:
        finished: what `sealed` returned, where it is at hand; seals of large runs are large.
    """
    finished = sealed(run) if finished is None else finished
    counters: Counter[str] = Counter()
    timing: defaultdict[str, float] = defaultdict(float)
    for phase, seal in finished:
        for name, value in seal.counters.items():
            if name.startswith("read/") and phase.base is not None:
                continue
            counters[name] += value
        for name, seconds in seal.timing.items():
            timing[_timing_name(phase, name)] += seconds
    rows = []
    alive: dict[str, int] = {}
    for step, state in stage_states(run, finished):
        is_source = isinstance(step.stage, Source)
        dropped = _nested(counters, f"dropped/{step.name if is_source else step.label}/")
        changed = {
            rule: by_source
            for action in ("cut", "replace")
            for rule, by_source in _nested(
                counters, f"{action}/{step.name if is_source else step.label}/"
            ).items()
        }
        if is_source:
            alive[step.label] = counters[f"read/{step.label}"]
            dropped, changed = (_of_source(by_rule, step.label) for by_rule in (dropped, changed))
        before = {step.label: alive[step.label]} if is_source else dict(alive)
        for by_source in dropped.values():
            for source, num in by_source.items():
                alive[source] -= num
        sources = {source: (num, alive[source]) for source, num in before.items()}
        is_done = state == "done"
        rows.append(
            FunnelRow(
                stage=step.label,
                kind=kind_of(step),
                name=step.name,
                state=state,
                num_in=sum(before.values()) if is_done else None,
                num_out=sum(num for _, num in sources.values()) if is_done else None,
                sources=sources if is_done else {},
                dropped=dropped,
                changed={rule: sum(by_source.values()) for rule, by_source in changed.items()},
                cpu_seconds=0.0 if is_source else timing[f"cpu_seconds/{step.label}"],
                text_bytes=0 if is_source else int(timing[f"text_bytes/{step.label}"]),
            )
        )
    return rows


def stage_states(run: RunDirectory, finished: Sealed) -> list[tuple[Step, StageState]]:
    """Return every source and every stage, in plan order, and how far it is."""
    done = {phase.index for phase, _ in finished}
    found: list[tuple[Step, StageState]] = [
        (step, "done" if 0 in done else "waiting") for step in run.plan.file.sources
    ]
    for step in run.plan.file.steps:
        phases = {phase.index for phase in run.plan.phases if step.label in phase.labels}
        if not phases and run.plan.until is not None:
            found.append((step, "not run"))
        else:
            found.append((step, "done" if phases <= done else "waiting"))
    return found


def kind_of(step: Step) -> str:
    """Return the kind of a source or a stage, in one word."""
    if isinstance(step.stage, Source):
        return "source"
    return KINDS.get(registry.kind_of(step.name), "other")


def overheads(run: RunDirectory, finished: Sealed | None = None) -> dict[str, float]:
    """Return CPU seconds of reading, writing and compiling, and of everything but starting up."""
    total: defaultdict[str, float] = defaultdict(float)
    for _, seal in sealed(run) if finished is None else finished:
        for name in (
            "cpu_seconds/read",
            "cpu_seconds/write",
            "cpu_seconds/compiling",
            "cpu_seconds",
        ):
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
    from corpuskit.engine.mixture import edit_problems  # loads the loader, which others do without

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
    from corpuskit.engine.mixture import mixture
    from corpuskit.engine.packing import packing

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


def _of_source(by_rule: dict[str, dict[str, int]], source: str) -> dict[str, dict[str, int]]:
    return {rule: {source: by[source]} for rule, by in by_rule.items() if source in by}


def _nested(counters: Counter[str], prefix: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, value in sorted(counters.items()):
        if name.startswith(prefix):
            rule, _, source = name.removeprefix(prefix).partition("/")
            found.setdefault(rule, {})[source] = value
    return found
