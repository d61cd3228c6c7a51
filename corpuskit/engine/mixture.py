"""What training takes from each source: estimated at first, counted once packed, then planned.

The table is always computed from what a mix plan says (`sources` and `stages`), by one function.
Before the mix plan is written, these two are worked out here: from the counters of the phase that
packs, or, before that, from estimates of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.estimate import PACK, estimate_counters, names_of
from corpuskit.errors import DataError, UsageError
from corpuskit.loader.edits import FOLDER, apply_edits, read_edits
from corpuskit.loader.index import open_files, read_mix
from corpuskit.loader.order import apportion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal
    from corpuskit.stages.mixing.mix import Mix

MIX = "mix.plan"
State = Literal["estimated", "counted", "planned"]


@dataclasses.dataclass(frozen=True)
class MixtureRow:
    """What one stage of the run, or all of it, takes from one source.

    Attributes:
        stage: empty = the whole run.
        tokens, documents: rows times the means of the source's rows.
        epochs: how often that is all that the source has; the whole run may take `max_epochs`.
        planned_ratio: share of the rows that the weights ask for.
        token_ratio: share of the tokens; differs for padding, and as rows are whole.
        fill_ratio: of the tokens stored those that are no padding.
    """

    stage: str
    source: str
    rows: int
    tokens: int
    documents: int
    epochs: float
    max_epochs: float
    planned_ratio: float
    token_ratio: float
    fill_ratio: float


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The table of a mixture, and how far it can be believed.

    Attributes:
        state: `estimated`, `counted` (all rows are packed) or `planned` (`mix/plan.json` says so).
        notes: why figures are estimates, or what they leave out.
        problem: why the run can't take that; empty if it can.
        rows: stage after stage; `sources`: over the whole run.
    """

    state: State
    notes: tuple[str, ...]
    problem: str
    rows: tuple[MixtureRow, ...]
    sources: tuple[MixtureRow, ...]

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dataclasses.asdict(self)


def mixture(run: RunDirectory, finished: Iterable[tuple[Phase, Seal]]) -> Mixture | None:
    """Return what the run takes from each source, as far as it is known; None without a mixture.

    Args:
        finished: phases whose seals are current.

    Raises:
        DataError: the mix plan can't be read.
    """
    mix = _stage_of(run)
    if mix is None:
        return None
    seals = {phase.name: seal for phase, seal in finished}
    if MIX in seals:
        return _planned(run)
    state: State = "counted" if PACK in seals else "estimated"
    notes: list[str] = []
    try:
        if PACK in seals:
            return _scheduled(run, mix, _entries(run, mix, seals[PACK].counters), state)
        counters, notes = estimate_counters(run, seals, _seq_len(run) + 1)
        return _scheduled(run, mix, _entries(run, mix, counters), state, notes)
    except (UsageError, DataError) as error:
        return Mixture(state, tuple(notes), str(error), (), ())


def mixture_problem(run: RunDirectory, first: int) -> str:
    """Return why the mixture can't be made, once its rows are counted; "" if it can, and before.

    Args:
        first: the phase that is about to begin; those before it are sealed.

    Raises:
        UsageError: a token budget is less than one row.
        DataError: a source that has a weight has no rows.
    """
    index = {phase.name: phase.index for phase in run.plan.phases}
    mix = _stage_of(run)
    if mix is None or PACK not in index or not index[PACK] < first <= index[MIX]:
        return ""
    found = _entries(run, mix, run.seal(index[PACK]).counters)
    return _scheduled(run, mix, found, "counted").problem


def mixture_table(plan: Mapping[str, Any]) -> list[MixtureRow]:
    """Return what each stage of a mix plan takes from each source, stage after stage."""
    return [row for stage in plan["stages"] for row in _rows_of_stage(plan, stage)]


def mixture_totals(plan: Mapping[str, Any]) -> list[MixtureRow]:
    """Return what a mix plan takes from each source, all stages together."""
    taken: Counter[str] = Counter()
    planned: defaultdict[str, Fraction] = defaultdict(Fraction)
    for stage in plan["stages"]:
        total = sum(stage["weights"].values())
        for row in _rows_of_stage(plan, stage):
            taken[row.source] += row.rows
            weight = stage["weights"].get(row.source, 0)
            planned[row.source] += Fraction(stage["rows"] * weight, total)
    num = sum(taken.values())
    shares = [float(planned[one["name"]] / num) if num else 0.0 for one in plan["sources"]]
    return _rows(plan, "", [taken[one["name"]] for one in plan["sources"]], shares)


def _rows_of_stage(plan: Mapping[str, Any], stage: Mapping[str, Any]) -> list[MixtureRow]:
    weights = [stage["weights"].get(source["name"], 0) for source in plan["sources"]]
    shares = [weight / sum(weights) for weight in weights]
    counts = apportion(stage["rows"], weights).tolist() if stage["rows"] else [0] * len(weights)
    return _rows(plan, stage["name"], counts, shares)


def _rows(
    plan: Mapping[str, Any], stage: str, counts: Sequence[int], shares: Sequence[float]
) -> list[MixtureRow]:
    """Return the table of rows taken of each source."""
    sources, width = plan["sources"], plan["seq_len"] + 1
    tokens = [_part(one, "tokens", num) for one, num in zip(sources, counts, strict=True)]
    total = sum(tokens)
    return [
        MixtureRow(
            stage=stage,
            source=source["name"],
            rows=rows,
            tokens=num,
            documents=_part(source, "documents", rows),
            epochs=rows / source["rows"],
            max_epochs=source["max_epochs"],
            planned_ratio=share,
            token_ratio=num / total if total else 0.0,
            fill_ratio=num / (rows * width) if rows else 0.0,
        )
        for source, rows, num, share in zip(sources, counts, tokens, shares, strict=True)
    ]


def _part(source: Mapping[str, Any], name: str, rows: int) -> int:
    return round(Fraction(source[name] * rows, source["rows"]))


def _stage_of(run: RunDirectory) -> Mix | None:
    """Return the configured `mix`, if the plan goes so far."""
    from corpuskit.stages.mixing.mix import Mix

    if not any(phase.name == MIX for phase in run.plan.phases):
        return None
    stage = run.plan.step("mix").stage
    assert isinstance(stage, Mix), "its phase is called mix.plan"
    return stage


def _seq_len(run: RunDirectory) -> int:
    phase = next(phase for phase in run.plan.phases if phase.name == MIX)
    seq_len: int = run.plan.given_to(phase)["packing"]["seq_len"]
    return seq_len


def _scheduled(
    run: RunDirectory,
    mix: Mix,
    sources: list[dict[str, Any]],
    state: State,
    notes: Iterable[str] = (),
) -> Mixture:
    """Return the mixture of sources whose rows are known or guessed."""
    from corpuskit.stages.mixing._shortages import problem_of
    from corpuskit.stages.mixing.mix import stage_entries

    seq_len = _seq_len(run)
    notes = (*notes, *_without_rows(run, sources))
    schedule = mix.schedule(sources, seq_len)
    plan = {"seq_len": seq_len, "sources": sources, "stages": stage_entries(schedule)}
    problem = problem_of(schedule, seq_len)
    table, totals = mixture_table(plan), mixture_totals(plan)
    return Mixture(state, notes, problem, tuple(table), tuple(totals))


def _without_rows(run: RunDirectory, sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note about the sources that give nothing, as nothing is left of them."""
    there = {source["name"] for source in sources}
    gone = [step.label for step in run.plan.file.sources if step.label not in there]
    return [f"without rows: {names_of(gone)}"] if gone else []


def _planned(run: RunDirectory) -> Mixture:
    """Return the mixture that `mix/plan.json` says, with the edits of a running mixture."""
    where = run.store.where("mix/plan.json")
    try:
        plan, notes = _with_edits(run, json.loads(run.read_file("mix.plan", "mix/plan.json")))
        passed = sum(end - first for first, end in plan["skip"])
        notes += [f"{passed:,} rows of it are skipped."] if passed else []
        notes += _without_rows(run, plan["sources"])
        table, totals = mixture_table(plan), mixture_totals(plan)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise DataError(f"{where}: cannot be read: {error!r}. Run again to rebuild.") from None
    return Mixture("planned", tuple(notes), "", tuple(table), tuple(totals))


def _with_edits(run: RunDirectory, plan: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a mix plan with its edits, and what to say about them."""
    if not run.store.list(FOLDER):
        return plan, []
    try:
        files = open_files(run.store.address)
        edits = read_edits(files, plan["plan_hash"])
        edited = apply_edits(files.where("mix/plan.json"), plan, edits)
    except (UsageError, DataError) as error:
        return plan, [f"Edits are left out: {error}"]
    many = "s" if len(edits) > 1 else ""
    return edited, [f"With {len(edits)} edit{many} (corpuskit edit)."]


def edits_in_the_way(run: RunDirectory, phase: str) -> str:
    """Say what is lost if a phase that has edits behind it makes the mix again, or ""."""
    edits = run.store.list(FOLDER) if phase == MIX else []
    if not edits:
        return ""
    return (
        f"{run.store.where(FOLDER)}: {len(edits)} edits of the mix that this run would make again;"
        " a training run may be using them. Run the former pipeline, or move the folder away (and"
        " give takedowns again), or go on with --force: edits hold if the mix turns out the same."
    )


def edit_problems(run: RunDirectory) -> list[str]:
    """Return what is wrong with the chain of edits of a finished run."""
    if not run.store.list(FOLDER):
        return []
    try:
        read_mix(run.store.address)
    except (UsageError, DataError) as error:
        return [str(error)]
    return []


def _entries(run: RunDirectory, mix: Mix, counters: Mapping[str, int]) -> list[dict[str, Any]]:
    names = [step.label for step in run.plan.file.sources]
    return mix.source_entries(names, counters)
