"""The position of a loader: a row index, and the proof that it still means the same rows.

Also the shares of sources up to a position, compared with their weights.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.edits import FOLDER
from corpuskit.loader.files import MAX_NUMBER, digest_json
from corpuskit.loader.steps import as_whole

if TYPE_CHECKING:
    from corpuskit.loader.edits import Edit
    from corpuskit.loader.index import MixPlan

STATE_FORMAT = 3

_SAVED = "Load a state that this version wrote."


@dataclass(frozen=True, slots=True)
class LoaderState:
    """The position of a run between two steps.

    `rows` alone is the position: the row index after the last row consumed. The rest is redundant,
    and is recomputed and compared on load; but `step` is the trainer's count, which does not follow
    from rows once the batch size has changed.

    Attributes:
        plan: hash of the plan.
        history: `history` of the plan up to `rows`.
        step: steps done.
        rows: the row index after the last step.
        tokens: input positions consumed, seq_len for each row, padding included.
        consumed: rows consumed of each source.
        digest: `digest_of` the rest.
    """

    plan: str
    base: str
    history: str
    step: int
    rows: int
    tokens: int
    consumed: dict[str, int]
    digest: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the state as JSON-ready values."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, fields: object) -> LoaderState:
        """Return the state that `to_dict` gave as values.

        Raises:
            DataError: the format is not known, or a field (named) is missing or impossible.
        """
        if not isinstance(fields, Mapping):
            raise DataError(f"loader state: must be a dict, got {_short(fields)}. {_SAVED}")
        if as_whole(fields.get("format")) != STATE_FORMAT:
            raise DataError(
                f"loader state: format must be {STATE_FORMAT}, got {_short(fields.get('format'))}."
                f" {_SAVED}"
            )
        consumed = fields.get("consumed")
        if not isinstance(consumed, Mapping) or not all(isinstance(k, str) for k in consumed):
            raise DataError(
                f"loader state: consumed must be a dict of rows by source, got {_short(consumed)}."
                f" {_SAVED}"
            )
        for name in ("plan", "base", "history", "digest"):
            if not isinstance(value := fields.get(name), str):
                raise DataError(
                    f"loader state: {name} must be a text, got {_short(value)}. {_SAVED}"
                )
        counts: dict[str, Any] = {name: fields.get(name) for name in ("step", "rows", "tokens")}
        counts |= {f"consumed of source {name!r}": rows for name, rows in consumed.items()}
        for name, number in counts.items():
            # A JSON true is an int to Python.
            is_whole = isinstance(number, int) and not isinstance(number, bool)
            if not is_whole or not 0 <= number < MAX_NUMBER:
                raise DataError(
                    f"loader state: {name} must be a whole number of at least 0,"
                    f" got {_short(number)}. {_SAVED}"
                )
        names = [field.name for field in dataclass_fields(cls)]
        return cls(**{name: fields[name] for name in names} | {"consumed": dict(consumed)})


def _short(value: object) -> str:
    return " ".join(reprlib.repr(value).split())


def digest_of(state: LoaderState) -> str:
    """Return the blake2b-128, in hex, of the canonical JSON of a state without its digest."""
    return digest_json({k: value for k, value in state.to_dict().items() if k != "digest"})


def state_at(plan: MixPlan, step: int, rows: int) -> LoaderState:
    """Return the state of a run that has done `step` steps and is at row index `rows`."""
    state = LoaderState(
        plan=plan.hash,
        base=plan.base.hash,
        history=history(plan, rows),
        step=step,
        rows=rows,
        tokens=plan.skips.consumed_before(rows) * plan.seq_len,
        consumed=consumed_by_source(plan, rows),
    )
    return replace(state, digest=digest_of(state))


def consumed_by_source(plan: MixPlan, rows: int) -> dict[str, int]:
    """Return how many rows of each source the first `rows` rows consume, skipped ones left out."""
    counts = plan.order.taken(rows)
    for first, end in plan.skips.before(rows):
        counts = counts - (plan.order.taken(end) - plan.order.taken(first))
    return {source.name: count for source, count in zip(plan.sources, counts.tolist(), strict=True)}


def check_state(state: LoaderState, plan: MixPlan) -> None:
    """Refuse a state whose rows are not the first rows of this plan.

    Raises:
        UsageError: the state is of a plan with another history.
        DataError: the state contradicts its own plan.
    """
    kind = DataError if state.plan == plan.hash else UsageError
    if edit := _edit_since(state, plan):
        raise UsageError(
            f"loader state: it is at row {state.rows}, but {plan.files.where(edit.name)} was"
            f" made since and changes the rows from {edit.row} on. Load a checkpoint from before"
            " that row, or delete that edit and those after it."
        )
    if state.base == plan.base.hash and state.plan not in plan.hashes:
        raise UsageError(
            f"loader state: it was saved under plan {state.plan}, which is this plan with an edit"
            f" that is missing or was replaced: {len(plan.edits)} are in"
            f" {plan.files.where(FOLDER)}. Restore the files that were there."
        )
    owner = (
        "this plan" if state.plan == plan.hash else f"plan {plan.hash} (the state's: {state.plan})"
    )
    if not 0 <= state.rows <= plan.order.num_rows:
        raise kind(
            f"loader state: rows must be within the {plan.order.num_rows} of {owner},"
            f" got {state.rows}. Load it with the plan that it was saved with."
        )
    expected = state_at(plan, state.step, state.rows)
    for name in sorted(set(state.consumed) | set(expected.consumed)):
        actual, rows = state.consumed.get(name, 0), expected.consumed.get(name, 0)
        if actual != rows:
            raise kind(
                f"loader state: {actual!r} rows consumed of source {name!r}, but {owner} takes"
                f" {rows} in its first {state.rows} rows. Load it with the plan that it was saved"
                " with."
            )
    if state.history != expected.history or state.tokens != expected.tokens:
        raise kind(
            f"loader state: the first {state.rows} rows are not those of {owner}: history"
            f" {state.history} and {state.tokens} tokens, expected {expected.history} and"
            f" {expected.tokens}. Load it with the plan and the spans to skip that it was saved"
            " with, or with others that differ only after these rows."
        )
    num_consumed = plan.skips.consumed_before(state.rows)
    if not min(1, num_consumed) <= state.step <= num_consumed:
        raise kind(
            f"loader state: {state.step} steps can't have taken {num_consumed} rows. {_SAVED}"
        )
    if state.digest != (digest := digest_of(state)):
        raise DataError(
            f"loader state: digest is {_short(state.digest)}, but its other fields give"
            f" {digest!r}: one of them was changed. {_SAVED}"
        )


def _edit_since(state: LoaderState, plan: MixPlan) -> Edit | None:
    """Return the first edit since the state's plan that changes rows before the state."""
    hashes = plan.hashes
    if state.plan not in hashes:
        return None
    since = plan.edits[hashes.index(state.plan) :]
    return next((edit for edit in since if edit.row < state.rows), None)


def history(plan: MixPlan, rows: int) -> str:
    """Return a blake2b-128 over all that decides the first `rows` rows of a run, and nothing else.

    Equal values mean equal rows, even under different plans: later stages and sources, the length
    of the run, names of stages and common factors of weights are left out. A source that is still
    in a first epoch in stored order counts with the parts it has reached, any other with all.
    """
    order = plan.order
    stages, start = [], 0
    for stage in order.stages:
        if start >= rows:
            break
        used = min(stage.rows, rows - start)
        factor = math.gcd(*stage.weights)
        weights = [
            [source.name, weight // factor]
            for source, weight in zip(order.sources, stage.weights, strict=True)
            if weight
        ]
        stages.append([used, weights])
        start += stage.rows
    sources = []
    for k, (source, num_taken) in enumerate(
        zip(order.sources, order.taken(rows).tolist(), strict=True)
    ):
        if num_taken:
            as_stored = source.shuffled and num_taken <= source.rows
            reached = num_taken if as_stored else source.rows
            chain = plan.parts.chain_at(k, source.first + reached - 1)
            facts = [source.name, None if as_stored else source.rows, chain]
            sources.append([*facts, source.first] if source.first else facts)
    fields = {
        "seed": plan.seed,
        "seq_len": plan.seq_len,
        "dtype": plan.dtype.name,
        "tokenizer": plan.tokenizer.get("hash"),
        "stages": stages,
        "sources": sources,
        "skip": plan.skips.before(rows),
    }
    if takedowns := plan.takedowns.history(rows):
        fields["takedowns"] = takedowns
    return digest_json(fields)


@dataclass(frozen=True, slots=True)
class SourceShare:
    """One source up to a point of a run.

    Attributes:
        source: its name.
        rows: rows consumed.
        tokens: input positions consumed, padding included.
        epochs: rows consumed / rows of the source.
        share: of all rows consumed.
        planned_share: share by the weights of the stages.
        error_rows: rows consumed beyond the planned share; skipped spans count in both.
    """

    source: str
    rows: int
    tokens: int
    epochs: float
    share: float
    planned_share: float
    error_rows: float


def shares_before(plan: MixPlan, rows: int) -> list[SourceShare]:
    """Return what each source gives in the first `rows` rows of a run, without skipped ones."""
    consumed = consumed_by_source(plan, rows)
    ideal = dict.fromkeys(consumed, Fraction(0))
    start = 0
    for stage in plan.order.stages:
        end = start + stage.rows
        used = max(0, min(rows, end) - start)
        # Skipped rows reduce what each source should give, in proportion to its weight.
        for first, last in plan.skips.before(rows):
            used -= max(0, min(last, end, rows) - max(first, start))
        total = sum(stage.weights)
        for source, weight in zip(plan.sources, stage.weights, strict=True):
            ideal[source.name] += Fraction(used * weight, total)
        start = end
    num_consumed = sum(consumed.values()) or 1
    return [
        SourceShare(
            source=source.name,
            rows=consumed[source.name],
            tokens=consumed[source.name] * plan.seq_len,
            epochs=consumed[source.name] / source.rows if source.rows else 0.0,
            share=consumed[source.name] / num_consumed,
            planned_share=float(ideal[source.name] / num_consumed),
            error_rows=float(consumed[source.name] - ideal[source.name]),
        )
        for source in plan.sources
    ]
