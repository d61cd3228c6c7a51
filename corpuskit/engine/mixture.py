"""What packing did to each source, and what training takes from it.

The table of a mixture is estimated at first, counted once documents are packed, then planned. One
function computes it from `sources` and `stages` of a mix plan. Before the mix plan is written, both
are derived here: from the counters of the phase that packs, or, before that, from estimates.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from corpuskit.engine.resources import text_of_sources
from corpuskit.errors import DataError, UsageError
from corpuskit.loader.edits import FOLDER, apply_edits, read_edits
from corpuskit.loader.index import open_files, read_mix
from corpuskit.loader.order import apportion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.plan import Phase
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
        fill_ratio: of the tokens stored those that are not padding.
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
        state: `estimated`, `counted` (all rows are packed) or `planned` (from `mix/plan.json`).
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
            return _scheduled(run, mix, seals[PACK].counters, state)
        counters, notes = estimate_counters(run, seals, _seq_len(run) + 1)
        return _scheduled(run, mix, counters, state, notes)
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
    return _scheduled(run, mix, run.seal(index[PACK]).counters, "counted").problem


def mixture_table(plan: Mapping[str, Any]) -> list[MixtureRow]:
    """Return what each stage of a mix plan takes from each source, stage after stage."""
    return [row for stage in plan["stages"] for row in _rows_of_stage(plan, stage)]


def mixture_totals(plan: Mapping[str, Any]) -> list[MixtureRow]:
    """Return what a mix plan takes from each source, all stages together."""
    rows_taken: Counter[str] = Counter()
    planned: defaultdict[str, Fraction] = defaultdict(Fraction)
    for stage in plan["stages"]:
        total = sum(stage["weights"].values())
        for row in _rows_of_stage(plan, stage):
            rows_taken[row.source] += row.rows
            weight = stage["weights"].get(row.source, 0)
            planned[row.source] += Fraction(stage["rows"] * weight, total)
    num = sum(rows_taken.values())
    shares = [float(planned[source["name"]] / num) if num else 0.0 for source in plan["sources"]]
    return _rows(plan, "", [rows_taken[source["name"]] for source in plan["sources"]], shares)


def _rows_of_stage(plan: Mapping[str, Any], stage: Mapping[str, Any]) -> list[MixtureRow]:
    weights = [stage["weights"].get(source["name"], 0) for source in plan["sources"]]
    shares = [weight / sum(weights) for weight in weights]
    counts = apportion(stage["rows"], weights).tolist() if stage["rows"] else [0] * len(weights)
    return _rows(plan, stage["name"], counts, shares)


def _rows(
    plan: Mapping[str, Any], stage: str, counts: Sequence[int], shares: Sequence[float]
) -> list[MixtureRow]:
    sources, width = plan["sources"], plan["seq_len"] + 1
    tokens = [_of_rows(source, "tokens", num) for source, num in zip(sources, counts, strict=True)]
    total = sum(tokens)
    return [
        MixtureRow(
            stage=stage,
            source=source["name"],
            rows=rows,
            tokens=num,
            documents=_of_rows(source, "documents", rows),
            epochs=rows / source["rows"],
            max_epochs=source["max_epochs"],
            planned_ratio=share,
            token_ratio=num / total if total else 0.0,
            fill_ratio=num / (rows * width) if rows else 0.0,
        )
        for source, rows, num, share in zip(sources, counts, tokens, shares, strict=True)
    ]


def _of_rows(source: Mapping[str, Any], name: str, rows: int) -> int:
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
    counters: Mapping[str, int],
    state: State,
    notes: Iterable[str] = (),
) -> Mixture:
    """Return the mixture of sources whose rows are known or guessed."""
    from corpuskit.stages.mixing._schedule import problem_of
    from corpuskit.stages.mixing.mix import stage_entries

    seq_len = _seq_len(run)
    sources = mix.source_entries([step.label for step in run.plan.file.sources], counters)
    notes = (*notes, *_without_rows(run, sources))
    schedule = mix.schedule(sources, seq_len)
    plan = {"seq_len": seq_len, "sources": sources, "stages": stage_entries(schedule)}
    problem = problem_of(schedule, seq_len)
    table, totals = mixture_table(plan), mixture_totals(plan)
    return Mixture(state, notes, problem, tuple(table), tuple(totals))


def _without_rows(run: RunDirectory, sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a note about the sources that give nothing, as nothing is left of them."""
    names = {source["name"] for source in sources}
    without = [step.label for step in run.plan.file.sources if step.label not in names]
    return [f"without rows: {names_of(without)}"] if without else []


def _planned(run: RunDirectory) -> Mixture:
    """Return the mixture of `mix/plan.json`, with the edits of a running mixture."""
    location = run.store.where("mix/plan.json")
    try:
        plan, notes = _with_edits(run, json.loads(run.read_file("mix.plan", "mix/plan.json")))
        num_skipped = sum(end - first for first, end in plan["skip"])
        notes += [f"{num_skipped:,} rows of it are skipped."] if num_skipped else []
        notes += _without_rows(run, plan["sources"])
        table, totals = mixture_table(plan), mixture_totals(plan)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise DataError(f"{location}: cannot be read: {error!r}. Run again to rebuild.") from None
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


def lost_edits(run: RunDirectory, phase: str) -> str:
    """Return what is lost if a phase makes a mix again that has edits, or ""."""
    edits = run.store.list(FOLDER) if phase == MIX else []
    edits = [name for name in edits if name.count("/") == 1]  # below are shards of other runs
    if not edits:
        return ""
    return (
        f"{run.store.where(FOLDER)}: {len(edits)} edits of the mix that this run would make again;"
        " a training run may be using them. Run the former pipeline, or move the folder away (and"
        " give takedowns again), or go on with --force: edits hold if the mix turns out the same."
    )


def edit_problems(run: RunDirectory) -> list[str]:
    """Return what is wrong with the edits of a finished run, and with the shards that they add."""
    if not (sizes := run.store.sizes(FOLDER)):
        return []
    try:
        parts = read_mix(run.store.address).parts
    except (UsageError, DataError) as error:
        return [str(error)]
    return [
        f"{path}: is not what the run that it came from wrote. Restore it from there."
        for path, digest in zip(parts.paths, parts.digests, strict=True)
        if path.startswith(f"{FOLDER}/") and (path not in sizes or run.store.digest(path) != digest)
    ]


PACK = "pack"
"""The phase that packs, called after its last stage."""


class SourceText(NamedTuple):
    """What there is of a source."""

    documents: int
    size_bytes: int


def estimate_counters(
    run: RunDirectory, seals: Mapping[str, Seal], width: int
) -> tuple[dict[str, int], list[str]]:
    """Return what `pack` will about count, and why it is a guess.

    Phases that are not finished are taken to do what they did when they were last sealed in this
    directory, or nothing.

    Args:
        seals: of the finished phases, by name.
        width: tokens per row.
    """
    sizes = text_of_sources(run)
    guessed = [name for name, (_, _, is_known) in sizes.items() if not is_known]
    text = {name: SourceText(documents, size) for name, (documents, size, _) in sizes.items()}
    unknown: dict[str, None] = {}
    as_before: dict[str, None] = {}
    for phase in run.plan.phases:
        labels = [label for label in phase.labels if label not in ("tokenize", PACK)]
        if phase.name in seals:
            guessed = [] if phase.is_stream else guessed
            text = _left_after(phase, seals[phase.name].counters, text)
        elif labels:
            before = run.usable_seal(phase)
            (unknown if before is None else as_before).update(dict.fromkeys(labels))
            if before is not None and phase.name != PACK:
                text = _as_before(phase, before.counters, text)
        if phase.name == PACK:
            break
    notes = []
    if guessed:
        notes.append(f"the text of {names_of(guessed)} is guessed from the size of files")
    if unknown:
        stages = names_of(unknown)
        notes.append(f"not run yet, taken to change nothing: {stages}; what they drop adds epochs")
    if as_before:
        notes.append(f"to run again, taken to drop as much as last time: {names_of(as_before)}")
    counters, packed_notes = _packed(run, text, width)
    return counters, notes + packed_notes


def names_of(names: Iterable[str]) -> str:
    """Return names as a list for people, the first ones if there are many."""
    names = list(names)
    rest = f" and {len(names) - 6} more" if len(names) > 7 else ""
    return ", ".join(names[:6] if rest else names) + rest


def _left_after(
    phase: Phase, counters: Mapping[str, int], text: Mapping[str, SourceText]
) -> dict[str, SourceText]:
    """Return what is left after a finished phase."""
    if phase.is_stream:
        return {
            n: SourceText(counters.get(f"kept/{n}", 0), counters.get(f"kept_bytes/{n}", 0))
            for n in text
        }
    dropped: Counter[str] = Counter()
    for name, value in counters.items():
        if name.startswith("dropped/"):
            dropped[name.rpartition("/")[2]] += value
    # Which documents a mask drops is known, how long they are is not: as long as the others.
    return {
        name: _share(source, source.documents - dropped[name], source.documents)
        for name, source in text.items()
    }


def _as_before(
    phase: Phase, counters: Mapping[str, int], text: Mapping[str, SourceText]
) -> dict[str, SourceText]:
    """Return what will be left if a phase keeps the share that it kept before."""
    if not phase.is_stream:
        return _left_after(phase, counters, text)
    if_final = _left_after(phase, counters, text)
    remaining = {}
    for name, source in text.items():
        total = counters.get(f"read_bytes/{name}", 0)
        remaining[name] = _share(if_final[name], source.size_bytes, total) if total else source
    return remaining


def _share(text: SourceText, share: int, total: int) -> SourceText:
    return SourceText(*(max(value * share // max(total, 1), 0) for value in text))


def _packed(
    run: RunDirectory, text: Mapping[str, SourceText], width: int
) -> tuple[dict[str, int], list[str]]:
    """Return counters of rows and tokens, at least one each, and what they rest on.

    If this directory has packed all sources before, the phase that packs makes as much again of a
    byte that it reads: whatever it drops, copies and pads.
    """
    from corpuskit.stages.sequences._rows import TOKENS_PER_BYTE

    seal = run.usable_seal(next(phase for phase in run.plan.phases if phase.name == PACK))
    before = {} if seal is None else seal.counters
    counters: dict[str, int] = {}
    is_measured = True
    for name, source in text.items():
        size, packed, padding, documents = (
            before.get(f"{key}/{name}", 0)
            for key in ("read_bytes", "tokens", "padding", "documents")
        )
        is_measured &= bool(size and packed)
        if size and packed:
            num = source.size_bytes * documents // size
            tokens, fill = source.size_bytes * packed // size, packed / (packed + padding)
        else:
            num, tokens, fill = source.documents, round(source.size_bytes * TOKENS_PER_BYTE), 1.0
        counters |= {
            f"rows/{name}": math.ceil(max(tokens, 1) / width / fill),
            f"tokens/{name}": max(tokens, 1),
            f"documents/{name}": num,
            f"text_bytes/{name}": source.size_bytes,
        }
    if is_measured:
        return counters, ["tokens per byte of text as this directory packed them last"]
    notes = [f"{TOKENS_PER_BYTE} tokens per byte of text assumed"]
    if any(step.name == "upsample" for step in run.plan.file.steps):
        notes.append("copies of documents (upsample) are not counted")
    return counters, notes


@dataclasses.dataclass(frozen=True)
class PackingRow:
    """What packing did to the documents of a source, or of one of its bands.

    Attributes:
        band: of the source, from 0; None = the whole source.
        documents, copies: how many there are, and how often they were packed; 0 for a band.
        num_cut: copies that lie in more than one row; num_cut_fitting: of these, those that would
            have fitted one.
        rows, tokens, padding: of the packed rows; padding in tokens, tokens without it.
    """

    source: str
    band: int | None
    documents: int
    copies: int
    num_cut: int
    num_cut_fitting: int
    rows: int
    tokens: int
    padding: int

    @property
    def fill_ratio(self) -> float:
        """Share of the stored tokens that is not padding."""
        return self.tokens / max(self.tokens + self.padding, 1)

    @property
    def cut_ratio(self) -> float:
        """Share of the copies that lie in more than one row."""
        return self.num_cut / max(self.copies, 1)


def packing(finished: Iterable[tuple[Phase, Seal]]) -> list[PackingRow]:
    """Return a row per source, each followed by one per band; none before `pack` is done."""
    counters = next((seal.counters for phase, seal in finished if phase.name == "pack"), {})
    prefix = "documents/"
    names = [name.removeprefix(prefix) for name in sorted(counters) if name.startswith(prefix)]
    return [row for source in names for row in _packing_rows(counters, source)]


def _packing_rows(counters: Mapping[str, int], source: str) -> list[PackingRow]:
    def of(name: str) -> int:
        return counters.get(f"{name}/{source}", 0)

    rows, padding = of("rows"), of("padding")
    width = (of("tokens") + padding) // max(rows, 1)
    total = PackingRow(
        source, None, of("documents"), of("copies"), of("cut_documents"), of("cut_fitting"), rows,
        of("tokens"), padding,
    )  # fmt: skip
    num_bands = sum(f"band_rows/{band}/{source}" in counters for band in range(256))
    bands = []
    for band in range(num_bands):
        rows, padding = of(f"band_rows/{band}"), of(f"band_padding/{band}")
        bands.append(PackingRow(source, band, 0, 0, 0, 0, rows, rows * width - padding, padding))
    return [total, *bands]
