"""What a stage measured in a run, and the same stage with other bounds."""

from __future__ import annotations

import json
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from corpuskit.engine.records import FIXED, MEASURES
from corpuskit.engine.status import outdated, sealed
from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import open_parquet, read_documents
from corpuskit.stage import StreamingStage
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import RoleParts, Seal


class Measured(NamedTuple):
    """A stage of a run and what it measured.

    Attributes:
        names: rules with measures.
        silent: rules without, that dropped nothing.
    """

    run: RunDirectory
    label: str
    stage: StreamingStage
    parts: RoleParts
    names: tuple[str, ...]
    silent: frozenset[str]
    finished: Sealed

    @property
    def tunable(self) -> list[str]:
        """Parameters that bound a measured rule."""
        bounds = self.stage.bounds.items()
        return sorted({name for rule, name in bounds if rule in self.names})


class Bounded(NamedTuple):
    """A stage of a run that has bounds, and the seal of its phase."""

    run: RunDirectory
    label: str
    stage: StreamingStage
    phase: Phase
    seal: Seal
    finished: Sealed

    @property
    def has_measures(self) -> bool:
        """Whether what it measured in each document is stored."""
        return len(self.seal.by_role(MEASURES + self.label)) > 0


def find_bounded(run: RunDirectory, label: str) -> Bounded:
    """Return a stage whose bounds can be tuned.

    Raises:
        UsageError: there is no such stage, it has no such bounds, or has not run.
    """
    labels = [step.label for step in run.plan.file.steps]
    if label not in labels:
        raise UsageError(f"{run.store.address} has no stage {label!r}. {suggest(label, labels)}")
    stage = run.plan.step(label).stage
    if not isinstance(stage, StreamingStage) or not stage.bounds:
        raise UsageError(f"{label} has no bounds to tune.")
    if "measures" not in type(stage).model_fields:
        raise UsageError(f"{label} cannot store what its rules measure, so it cannot be tuned.")
    phase = next((p for p in run.plan.phases if p.is_stream and label in p.labels), None)
    finished = sealed(run)
    seal = next((seal for one, seal in finished if one == phase), None)
    if phase is None or seal is None:
        raise UsageError(f"{label}: its phase is not finished. Run the pipeline first.")
    if phase in outdated(run, [(phase, seal)]):
        raise UsageError(
            f"{label}: its phase was made with other parameters, files or inputs than the plan now "
            "has. Run the pipeline again."
        )
    return Bounded(run, label, stage, phase, seal, finished)


def find_measured(run: RunDirectory, label: str) -> Measured:
    """Return a stage and its measures.

    Raises:
        UsageError: there are none; says what to do.
    """
    found = find_bounded(run, label)
    parts = found.seal.by_role(MEASURES + label)
    if not len(parts):
        raise UsageError(without_measures(found))
    path = run.at(parts[0])
    with open_place(path) as source, open_parquet(source, path) as file:
        names = tuple(name for name in file.schema_arrow.names if name not in FIXED)
    counted = (name.split("/") for name in found.seal.counters if name.startswith("dropped/"))
    dropped = {rule for _, where, rule, *_ in counted if where == label}
    silent = frozenset(found.stage.rules) - set(names) - dropped
    return Measured(run, label, found.stage, parts, names, silent, found.finished)


def with_changes(
    found: Measured, changes: Sequence[str]
) -> tuple[StreamingStage, dict[str, tuple[Any, Any]]]:
    """Return the stage with changed bounds, and parameter -> (old, new).

    Args:
        changes: `parameter=value` each; entries of a mapping are `parameter.entry=value`.

    Raises:
        UsageError: a parameter does not exist, bounds no measured rule, or has no such value.
    """
    stage, label = found.stage, found.label
    params = json.loads(stage.model_dump_json())
    changed: dict[str, tuple[Any, Any]] = {}
    for text in changes:
        target, equals, raw = text.removeprefix(f"{label}.").partition("=")
        if not equals:
            raise UsageError(f"--set {text}: must look like parameter=value.")
        name, _, entry = target.partition(".")
        check_name(found, name, f"--set {text}", raw)
        value = _value(raw, text)
        if not entry:
            changed[target] = (params[name], value)
            params[name] = value
            continue
        known = params[name] if isinstance(params[name], dict) else {}
        if entry not in known:
            hint = suggest(entry, known) if known else f"{name} is a single value."
            raise UsageError(f"--set {text}: {name} has no entry {entry!r}. {hint}")
        changed[target] = (known[entry], value)
        params[name] = {**known, entry: value}
    try:
        other = type(stage).model_validate_json(json.dumps(params))
    except ValidationError as error:
        raise UsageError(_explained(label, error)) from None
    for rule in set(stage.bounds) - set(found.names):
        old, new = stage.threshold(rule), other.threshold(rule)
        if old != new and not (isnan(old) and isnan(new)):
            raise UsageError(
                f"{label}: {rule} was not measured in this run. Leave its bound alone."
            )
    return other, changed


def batches(found: Measured) -> Iterator[pa.RecordBatch]:
    """Yield what was measured, one row group at a time.

    Raises:
        DataError: a part is not whole.
    """
    for part in found.parts:
        yield from read_documents(found.run.at(part))


def decided(found: Measured, batch: pa.RecordBatch) -> NDArray[np.uint8]:
    """Return what was decided, after checking that the measures say the same.

    Raises:
        DataError: they do not.
    """
    made: NDArray[np.uint8] = numbers(batch.column("code"))
    again, _ = decide(found.stage, batch, found.silent)
    wrong = np.flatnonzero(again != made)
    if len(wrong):
        identity = batch.column("id")[int(wrong[0])].as_py()
        raise DataError(
            f"{found.label}: what it measured in {identity!r} does not explain what it decided. "
            "Either its bounds differ from document to document, and it cannot be tuned; or it ran "
            "with other parameters than the plan now has: run the pipeline again."
        )
    return made


def decide(
    stage: StreamingStage, batch: pa.RecordBatch, silent: frozenset[str] = frozenset()
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the code of each document by the bounds of `stage`, and where that is unsure.

    A rule without measures fails where it did; nobody asked it about documents that an earlier
    rule had dropped.

    Args:
        batch: rows of measures.
        silent: rules without measures that dropped nothing.
    """
    made = numbers(batch.column("code"))
    codes = np.zeros(len(made), np.uint8)
    unsure = np.zeros(len(made), np.bool_)
    names = set(batch.schema.names)
    for code, rule in enumerate(stage.rules, start=1):
        if rule in silent:
            continue
        if rule in names:
            fails = stage.fails(rule, numbers(batch.column(rule)))
        else:
            fails = made == code
            unsure |= (made != 0) & (made < code)
        codes[fails & (codes == 0)] = code
    return codes, unsure & (codes == 0)


def without_measures(found: Bounded) -> str:
    """Return what to say where there are no measures."""
    run, label, seal = found.run, found.label, found.seal
    if getattr(found.stage, "measures", False):
        return f"{label}: measured nothing in this run: it saw no documents, or its rules are off."
    read = sum(v for name, v in seal.counters.items() if name.startswith("read_bytes/"))
    also = [other for other in found.phase.labels if other != label]
    fused = f", with {', '.join(also)}" if also else ""
    return (
        f"{label}: stored no measures in {run.store.address}. Set `measures: true` for it and run "
        f"again, as in --set {label}.measures=true: once, its phase is made anew "
        f"({read / 1e6:,.1f} MB of text{fused})."
    )


def check_name(found: Measured, name: str, said: str, raw: str = "...") -> None:
    """Refuse a parameter that cannot be tuned.

    Args:
        said: the option that names it.
        raw: the value that was asked for.
    """
    if name not in type(found.stage).model_fields:
        hint = suggest(name, found.tunable)
        raise UsageError(f"{said}: {found.label} has no parameter {name!r}. {hint}")
    if name not in found.tunable:
        raise UsageError(
            f"{said}: {name} is no bound of what was measured, so another value takes "
            f"another run, with --set {found.label}.{name}={raw}. Bounds: "
            f"{', '.join(found.tunable)}."
        )


def _value(raw: str, text: str) -> Any:
    """Return the value of a bound: a number, null, or a mapping to such."""
    try:
        value = json.loads(raw)
    except ValueError:
        value = None if raw in {"~", ""} else raw
    if isinstance(value, bool | str | list):
        raise UsageError(f"--set {text}: must be a number or null, got {raw!r}.")
    return value


def _explained(label: str, error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join([label, *(str(part) for part in first["loc"])])
    message = str(first["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "must be").replace("a valid ", "a ")
    message = message.replace("a integer", "an integer").partition(", got")[0]
    if not message.startswith("must be"):
        return f"{name}: {message}."
    return f"{name} {message}, got {first['input']!r}."
