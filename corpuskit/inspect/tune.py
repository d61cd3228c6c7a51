"""What other thresholds of a stage would keep and drop, from what it measured; nothing is run."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from corpuskit.engine.config import dump_value, step_yaml
from corpuskit.engine.records import FIXED, MEASURES
from corpuskit.engine.status import outdated, sealed
from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import sampled
from corpuskit.formats.shards import read_documents
from corpuskit.inspect.archive import kept_shards, open_part, select, texts_seen, with_prefix
from corpuskit.inspect.counts import read_counts
from corpuskit.inspect.report.distributions import measures, takes_whole
from corpuskit.stage import StreamingStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import RoleParts, Seal
    from corpuskit.inspect.report.distributions import Measure


FORMAT = 3  # of the JSON that `corpuskit tune --json` prints
POINTS = 21  # thresholds of a sweep where no number is asked for

MOST_POINTS = 1000
LOOKED_AT_PARTS = 64  # parts whose first row group tells about where the values lie

MOST_PARTS = 4096
"""Profile parts that are read: of larger runs evenly spaced ones, so shares stay about right."""

SHOWN_CHARS = 200


@dataclasses.dataclass
class Share:
    """Documents and bytes of text: kept ones of a source, or those that a rule drops.

    Attributes:
        documents, text_bytes: that the stage saw (of a source).
        documents_now, text_bytes_now: by the thresholds of the run.
        documents_then, text_bytes_then: by the other ones.
    """

    documents: int = 0
    text_bytes: int = 0
    documents_now: int = 0
    text_bytes_now: int = 0
    documents_then: int = 0
    text_bytes_then: int = 0

    def add(
        self, sizes: NDArray[np.int64], now: NDArray[np.bool_], then: NDArray[np.bool_]
    ) -> None:
        """Count documents of these sizes."""
        self.documents_now += int(now.sum())
        self.text_bytes_now += int(sizes[now].sum())
        self.documents_then += int(then.sum())
        self.text_bytes_then += int(sizes[then].sum())


@dataclasses.dataclass(frozen=True)
class MovedDocument:
    """A document that would be dropped, or would not be dropped any more.

    Attributes:
        rule: that drops it, by the thresholds of the run or by the other ones.
        value, threshold: what the rule measured; the threshold it breaks.
        text: its beginning, None where the run does not have it.
        later: `stage: rule` that dropped it afterwards, of documents that this stage kept.
    """

    key: int
    id: str
    source: str
    text_bytes: int
    rule: str
    value: float | None
    threshold: float | None
    text: str | None = None
    later: str | None = None


@dataclasses.dataclass
class Tuning:
    """What other thresholds would do.

    Attributes:
        changes: parameter -> (value in the run, other value).
        yaml: the stage with the other values, as a line of the pipeline file.
        command: that runs the pipeline so, without an edit of the file.
        thresholds: rule -> (in the run, other one), None where it is off or has none.
        parameters: rule -> the parameter that is its threshold.
        sources: what is kept, of each.
        rules: what is dropped, by each; a document counts for the first one it breaks.
        newly_dropped, newly_kept: documents and bytes of text that are not what they were.
        unsure: of the newly kept documents, those that a rule without measures was never asked
            about, since an earlier rule had dropped them.
    """

    stage: str
    changes: dict[str, tuple[Any, Any]]
    yaml: str
    command: str
    thresholds: dict[str, tuple[float | None, float | None]]
    parameters: dict[str, str]
    sources: dict[str, Share] = dataclasses.field(default_factory=dict)
    rules: dict[str, Share] = dataclasses.field(default_factory=dict)
    newly_dropped: Share = dataclasses.field(default_factory=Share)
    newly_kept: Share = dataclasses.field(default_factory=Share)
    unsure: int = 0
    dropped_samples: list[MovedDocument] = dataclasses.field(default_factory=list)
    kept_samples: list[MovedDocument] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> Share:
        """All sources together."""
        names = [field.name for field in dataclasses.fields(Share)]
        rows = self.sources.values()
        return Share(**{name: sum(getattr(row, name) for row in rows) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        totals = {
            name: {"documents": share.documents, "text_bytes": share.text_bytes}
            for name, share in (
                ("newly_dropped", self.newly_dropped),
                ("newly_kept", self.newly_kept),
            )
        }
        return {**dataclasses.asdict(self), "total": dataclasses.asdict(self.total), **totals}


def tune(tunable: Tunable, changes: Sequence[str], *, samples: int = 5) -> Tuning:
    """Return what other thresholds of a stage would keep and drop.

    Args:
        tunable: the stage, with measures.
        changes: `parameter=value` each.
        samples: documents of either kind to show.

    Raises:
        UsageError: a parameter is not the threshold of a measured rule.
        DataError: what was measured does not explain what was decided.
    """
    run, label, stage = tunable.run, tunable.label, tunable.stage
    variant, changed = with_changes(tunable, changes)
    rules = [rule for rule in stage.rules if rule not in tunable.silent]
    thresholds = {rule: (_threshold(stage, rule), _threshold(variant, rule)) for rule in rules}
    pasted = to_paste(run, label, variant, changed)
    parameters = {rule: stage.bounds[rule] for rule in tunable.names if rule in stage.bounds}
    result = Tuning(label, changed, *pasted, thresholds, parameters)
    result.rules = {rule: Share() for rule in rules}
    seed = run.plan.settings.seed
    dropped, restored = _Picks(samples, seed), _Picks(samples, seed)
    for batch in batches(tunable):
        now = decided(tunable, batch)
        then, unsure = decide(variant, batch, tunable.silent)
        _count(result, stage.rules, batch, now, then)
        result.unsure += int(unsure.sum())
        dropped.add(batch, np.flatnonzero((now == 0) & (then > 0)), then)
        restored.add(batch, np.flatnonzero((now > 0) & (then == 0)), now)
    result.dropped_samples = _samples(tunable, variant, dropped.rows(), is_kept=True)
    result.kept_samples = _samples(tunable, stage, restored.rows(), is_kept=False)
    return result


def to_paste(
    run: RunDirectory, label: str, stage: StreamingStage, changed: Iterable[str]
) -> tuple[str, str]:
    """Return a changed stage as a line of the pipeline file, and as a command.

    A mapping is given whole on the command line: an entry alone would replace it.

    Args:
        changed: parameters, or `parameter.entry`.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in changed)
    values = stage.model_dump(mode="json")
    words = [run.plan.file.path]
    for name in names:
        words += ["--set", f"{label}.{name}={dump_value(values[name])}"]
    step = dataclasses.replace(run.plan.step(label), stage=stage)
    return step_yaml(step), f"corpuskit run {shlex.join(words)}"


def _threshold(stage: StreamingStage, rule: str) -> float | None:
    threshold = stage.threshold(rule)
    return None if np.isnan(threshold) else threshold


def _count(
    result: Tuning, rules: Sequence[str], batch: pa.RecordBatch,
    now: NDArray[np.uint8], then: NDArray[np.uint8],
) -> None:  # fmt: skip
    sizes = numbers(batch.column("text_bytes"))
    for source, rows in by_source(batch):
        share = result.sources.setdefault(source, Share())
        share.documents += int(rows.sum())
        share.text_bytes += int(sizes[rows].sum())
        share.add(sizes, rows & (now == 0), rows & (then == 0))
    for code, rule in enumerate(rules, start=1):
        if rule in result.rules:
            result.rules[rule].add(sizes, now == code, then == code)
    for total, rows in (
        (result.newly_dropped, (now == 0) & (then > 0)),
        (result.newly_kept, (now > 0) & (then == 0)),
    ):
        total.documents += int(rows.sum())
        total.text_bytes += int(sizes[rows].sum())


def by_source(batch: pa.RecordBatch) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return each source of a batch, and which rows are its own."""
    names = batch.column("source").dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False)
    return [(name, codes == code) for code, name in enumerate(names.dictionary.to_pylist())]


class _Picks:
    """Documents to show: first those whose text the ledger keeps, then by a hash of the key."""

    def __init__(self, num: int, seed: int) -> None:
        self._num, self._seed = num, seed
        self._rows: list[tuple[bool, int, dict[str, Any]]] = []

    def add(self, batch: pa.RecordBatch, rows: NDArray[np.int64], codes: NDArray[np.uint8]) -> None:
        keys = numbers(batch.column("key"))[rows]
        is_rare = ~sampled(keys, self._seed)
        hashes = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for i in np.lexsort((hashes, is_rare))[: self._num].tolist():
            row = batch.slice(int(rows[i]), 1).to_pylist()[0] | {"code": int(codes[rows[i]])}
            self._rows.append((bool(is_rare[i]), int(hashes[i]), row))
        self._rows = sorted(self._rows, key=lambda pick: pick[:2])[: self._num]

    def rows(self) -> list[dict[str, Any]]:
        """Return the chosen rows in key order; `code` is that of the rule that drops them."""
        return sorted((row for *_, row in self._rows), key=lambda row: row["key"])


def _samples(
    tunable: Tunable, stage: StreamingStage, rows: list[dict[str, Any]], *, is_kept: bool
) -> list[MovedDocument]:
    """Return documents with their texts, as far as the run has them.

    Args:
        stage: whose thresholds they break.
        is_kept: the run kept them, so they lie in document shards or in a later stage's ledger.
    """
    keys = [row["key"] for row in rows]
    texts = _texts(tunable, keys)
    drops = _later_drops(tunable, keys) if is_kept else {}
    samples = []
    for row in rows:
        rule, key = stage.rules[row["code"] - 1], row["key"]
        samples.append(
            MovedDocument(
                key, row["id"], row["source"], row["text_bytes"], rule, row.get(rule),
                _threshold(stage, rule), texts.get(key), drops.get(key),
            )
        )  # fmt: skip
    return samples


# ---------------------------------------------------------------- a stage, with other thresholds


class Tunable(NamedTuple):
    """A stage of a run whose thresholds can be moved, and what it measured.

    Attributes:
        phase, seal: that ran it.
        parts: of its measures; empty where it stored none, so that only the profile's counts by
            bins are there.
        names: rules with measures.
        silent: rules without, that dropped nothing.
    """

    run: RunDirectory
    label: str
    stage: StreamingStage
    phase: Phase
    seal: Seal
    finished: Sealed
    parts: RoleParts
    names: tuple[str, ...]
    silent: frozenset[str]

    @property
    def has_measures(self) -> bool:
        """Whether what it measured in each document is stored."""
        return len(self.parts) > 0

    @property
    def parameters(self) -> list[str]:
        """Parameters that are the threshold of a measured rule."""
        bounds = self.stage.bounds.items()
        return sorted({name for rule, name in bounds if rule in self.names})


def find_tunable(run: RunDirectory, label: str) -> Tunable:
    """Return a stage whose thresholds can be moved, and its measures as far as it stored them.

    Raises:
        UsageError: there is no such stage, it has no thresholds, or has not run.
    """
    labels = [step.label for step in run.plan.file.steps]
    if label not in labels:
        raise UsageError(f"{run.store.address} has no stage {label!r}. {suggest(label, labels)}")
    stage = run.plan.step(label).stage
    if not isinstance(stage, StreamingStage) or not stage.bounds:
        raise UsageError(f"{label} has no thresholds to tune.")
    if "measures" not in type(stage).model_fields:
        raise UsageError(f"{label} cannot store what its rules measure, so it cannot be tuned.")
    phase = next((p for p in run.plan.phases if p.is_stream and label in p.labels), None)
    finished = sealed(run)
    seal = next((seal for sealed_phase, seal in finished if sealed_phase == phase), None)
    if phase is None or seal is None:
        raise UsageError(f"{label}: its phase is not finished. Run the pipeline first.")
    if phase in outdated(run, [(phase, seal)]):
        raise UsageError(
            f"{label}: its phase was made with other parameters, files or inputs than the plan now "
            "has. Run the pipeline again."
        )
    parts = seal.by_role(MEASURES + label)
    names: tuple[str, ...] = ()
    if len(parts):
        with open_part(run.at(parts[0])) as file:
            names = tuple(name for name in file.schema_arrow.names if name not in FIXED)
    counters = (name.split("/") for name in seal.counters if name.startswith("dropped/"))
    dropped = {rule for _, step, rule, *_ in counters if step == label}
    silent = frozenset(stage.rules) - set(names) - dropped
    return Tunable(run, label, stage, phase, seal, finished, parts, names, silent)


def with_changes(
    tunable: Tunable, changes: Sequence[str]
) -> tuple[StreamingStage, dict[str, tuple[Any, Any]]]:
    """Return the stage with changed thresholds, and parameter -> (old, new).

    Args:
        changes: `parameter=value` each; entries of a mapping are `parameter.entry=value`.

    Raises:
        UsageError: a parameter does not exist, is not the threshold of a measured rule, or has no
            such value.
    """
    stage, label = tunable.stage, tunable.label
    params = json.loads(stage.model_dump_json())
    changed: dict[str, tuple[Any, Any]] = {}
    for text in changes:
        if "=" not in text:
            raise UsageError(f"--set {text}: must look like parameter=value.")
        target, raw = _target(tunable, text)
        name, _, entry = target.partition(".")
        check_name(tunable, name, f"--set {text}", raw)
        value = _value(raw, text)
        if target in changed:
            raise UsageError(
                f"--set {text}: another --set makes {target} {changed[target][1]}. Leave one out."
            )
        if not entry:
            changed[target] = (params[name], value)
            params[name] = value
            continue
        entries = params[name] if isinstance(params[name], dict) else {}
        if entry not in entries:
            hint = suggest(entry, entries) if entries else f"{name} is a single value."
            raise UsageError(f"--set {text}: {name} has no entry {entry!r}. {hint}")
        changed[target] = (entries[entry], value)
        params[name] = {**entries, entry: value}
    try:
        variant = type(stage).model_validate_json(json.dumps(params))
    except ValidationError as error:
        raise UsageError(_explained(label, error)) from None
    for rule in set(stage.bounds) - set(tunable.names):
        old, new = stage.threshold(rule), variant.threshold(rule)
        if old != new and not (isnan(old) and isnan(new)):
            raise UsageError(
                f"{label}: {rule} was not measured in this run. Leave its threshold alone."
            )
    return variant, changed


def batches(tunable: Tunable) -> Iterator[pa.RecordBatch]:
    """Yield what was measured, one row group at a time.

    Raises:
        DataError: a part is not whole.
    """
    for part in tunable.parts:
        yield from read_documents(tunable.run.at(part))


def decided(tunable: Tunable, batch: pa.RecordBatch) -> NDArray[np.uint8]:
    """Return what was decided, after checking that the measures say the same.

    Raises:
        DataError: they do not.
    """
    codes: NDArray[np.uint8] = numbers(batch.column("code"))
    replayed, _ = decide(tunable.stage, batch, tunable.silent)
    wrong = np.flatnonzero(replayed != codes)
    if len(wrong):
        identity = batch.column("id")[int(wrong[0])].as_py()
        raise DataError(
            f"{tunable.label}: what it measured in {identity!r} does not explain what it decided. "
            "Either its thresholds differ from document to document, and it cannot be tuned; or it "
            "ran with other parameters than the plan now has: run the pipeline again."
        )
    return codes


def decide(
    stage: StreamingStage, batch: pa.RecordBatch, silent: frozenset[str] = frozenset()
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the code of each document by the thresholds of `stage`, and where that is unsure.

    A rule without measures fails where it did; it never saw documents that an earlier
    rule had dropped.

    Args:
        batch: rows of measures.
        silent: rules without measures that dropped nothing.
    """
    old_codes = numbers(batch.column("code"))
    codes = np.zeros(len(old_codes), np.uint8)
    unsure = np.zeros(len(old_codes), np.bool_)
    names = set(batch.schema.names)
    for code, rule in enumerate(stage.rules, start=1):
        if rule in silent:
            continue
        if rule in names:
            fails = stage.fails(rule, numbers(batch.column(rule)))
        else:
            fails = old_codes == code
            unsure |= (old_codes != 0) & (old_codes < code)
        codes[fails & (codes == 0)] = code
    return codes, unsure & (codes == 0)


def without_measures(tunable: Tunable) -> str:
    """Return what to say where there are no measures."""
    run, label, seal = tunable.run, tunable.label, tunable.seal
    if getattr(tunable.stage, "measures", False):
        return f"{label}: measured nothing in this run: it saw no documents, or its rules are off."
    num_bytes = sum(with_prefix(seal.counters, "read_bytes/").values())
    neighbours = [name for name in tunable.phase.labels if name != label]
    fused = f", with {', '.join(neighbours)}" if neighbours else ""
    return (
        f"{label}: stored no measures in {run.store.address}. Set `measures: true` for it and run "
        f"again, as in --set {label}.measures=true: its phase is run again once "
        f"({num_bytes / 1e6:,.1f} MB of text{fused})."
    )


def check_name(tunable: Tunable, name: str, option: str, raw: str = "...") -> None:
    """Refuse a parameter that cannot be tuned.

    Args:
        option: that names it.
        raw: the value that was asked for.
    """
    if name not in type(tunable.stage).model_fields:
        hint = suggest(name, tunable.parameters)
        raise UsageError(f"{option}: {tunable.label} has no parameter {name!r}. {hint}")
    if name not in tunable.parameters:
        raise UsageError(
            f"{option}: {name} is not the threshold of a measured rule, so another value takes "
            f"another run, with --set {tunable.label}.{name}={raw}. Thresholds: "
            f"{', '.join(tunable.parameters)}."
        )


def _target(tunable: Tunable, text: str) -> tuple[str, str]:
    """Split `parameter=value`, or `stage.parameter=value`; the value may be left out."""
    target, _, value = text.removeprefix(f"{tunable.label}.").partition("=")
    return target, value


def _value(raw: str, text: str) -> Any:
    """Return the value of a threshold: a number, null, or a mapping to such."""
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


def _texts(tunable: Tunable, keys: Sequence[int]) -> dict[int, str]:
    """Return key -> beginning of the text: as it was kept, else as the stage saw it."""
    shards = kept_shards(tunable.run, tunable.finished)
    texts = {key: text for key, (_, text) in shards.texts(keys).items()} if shards else {}
    missing = [key for key in keys if key not in texts]
    units = {key: part.unit for key in missing for part in tunable.parts.within(key, key + 1)}
    replayed = texts_seen(tunable.run, tunable.phase, tunable.label, units, read_inputs=True).texts
    texts |= {key: seen.text for key, seen in replayed.items()}
    for row in _ledger_rows(tunable, [key for key in missing if key not in replayed]):
        if row["text"] is not None:
            texts.setdefault(row["doc_key"], row["text"])
    return {key: text[:SHOWN_CHARS] for key, text in texts.items()}


def _later_drops(tunable: Tunable, keys: Sequence[int]) -> dict[int, str]:
    """Return key -> `stage: rule` of documents that the stage kept and a later one dropped."""
    rows = _ledger_rows(tunable, keys)
    return {
        row["doc_key"]: f"{row['stage']}: {row['rule']}" for row in rows if row["action"] == "drop"
    }


def _ledger_rows(tunable: Tunable, keys: Sequence[int]) -> Iterator[dict[str, Any]]:
    columns = ["doc_key", "stage", "rule", "action", "text"]
    for _, seal in tunable.finished if keys else ():
        for part in seal.by_role("ledger"):
            in_part = [key for key in keys if part.first <= key <= part.last]
            if in_part:
                condition = pc.field("doc_key").isin(pa.array(in_part, pa.int64()))
                yield from select(tunable.run.at(part), columns, condition).to_pylist()


# ---------------------------------------------------------------- many thresholds of one parameter


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is kept as one threshold moves.

    Attributes:
        now: the threshold in the run, None = off; then: that of `changes`, None = the same.
        values: the thresholds, ascending; `now` and `then` are among them.
        sources: source -> `documents`, `text_bytes` that the stage saw, and lists, an entry for
            each threshold: `kept_documents`, `kept_bytes`; `unsure`, those of the kept ones that a
            rule without measures was never asked about; `newly_dropped`, `newly_kept`.
        total: of all sources together.
    """

    parameter: str
    now: float | None
    then: float | None
    values: list[float]
    sources: dict[str, dict[str, Any]]
    total: dict[str, Any]


_COLUMNS = ("kept_documents", "kept_bytes", "unsure", "newly_dropped", "newly_kept")


def sweep(tunable: Tunable, changes: Sequence[str], request: str) -> Sweep:
    """Return what a stage keeps as one threshold moves.

    Args:
        tunable: the stage, with measures.
        changes: `parameter=value` of other thresholds, or of the same one: a line to mark.
        request: `parameter`, `parameter=first:last[:count]` or `parameter=value,value,...`.

    Raises:
        UsageError: `request` is of another form, or its parameter is not the threshold of a rule.
        DataError: what was measured does not explain what was decided.
    """
    parameter, span = _target(tunable, request)
    name, _, entry = parameter.partition(".")
    check_name(tunable, name, f"--sweep {request}")
    now = _entry(tunable.stage, name, entry)
    then = _entry(with_changes(tunable, changes)[0], name, entry)
    others = [text for text in changes if _target(tunable, text)[0] != parameter]
    is_whole = not entry and takes_whole(tunable.stage, name)
    lines = {line for line in (now, then) if line is not None}
    points = _parse_span(request, span) if span else _quantiles(tunable, name, entry)
    stages = {}
    for value in {float(round(v)) if is_whole else round(v, 12) for v in points} | lines:
        number = int(value) if is_whole else value
        try:
            stages[value], _ = with_changes(tunable, [*others, f"{parameter}={number}"])
        except UsageError:
            if span or value in lines:  # quantiles of what was measured may be out of bounds
                raise
    if not stages:
        raise UsageError(f"--sweep {request}: nothing was measured. Give values.")
    values = sorted(stages)
    tables: dict[str, NDArray[np.int64]] = {}
    for batch in batches(tunable):
        was_kept = decided(tunable, batch) == 0
        sizes, sources = numbers(batch.column("text_bytes")), by_source(batch)
        for source, rows in sources:
            counts = tables.setdefault(source, np.zeros((len(_COLUMNS) + 2, len(values)), np.int64))
            counts[0] += int(rows.sum())
            counts[1] += int(sizes[rows].sum())
        for column, value in enumerate(values):
            codes, unsure = decide(stages[value], batch, tunable.silent)
            kept = codes == 0
            for source, rows in sources:
                is_kept = rows & kept
                dropped, restored = rows & was_kept & ~kept, is_kept & ~was_kept
                sums = (is_kept, sizes[is_kept], is_kept & unsure, dropped, restored)
                tables[source][2:, column] += [int(array.sum()) for array in sums]
    summaries = {source: _swept(counts) for source, counts in sorted(tables.items())}
    total = _swept(sum(tables.values(), np.zeros((len(_COLUMNS) + 2, len(values)), np.int64)))
    return Sweep(parameter, now, None if then == now else then, values, summaries, total)


def _swept(counts: NDArray[np.int64]) -> dict[str, Any]:
    lists = {name: counts[2 + i].tolist() for i, name in enumerate(_COLUMNS)}
    return {"documents": int(counts[0, 0]), "text_bytes": int(counts[1, 0]), **lists}


def _entry(stage: StreamingStage, name: str, entry: str) -> float | None:
    value = getattr(stage, name)
    if isinstance(value, dict):
        entries = {str(key): threshold for key, threshold in value.items()}
        if entry not in entries:
            names = [f"{name}.{key}" for key in entries]
            hint = suggest(f"{name}.{entry}", names) if entry else f"Name one: {', '.join(names)}."
            raise UsageError(f"--sweep {name}.{entry}: {name} has several thresholds. {hint}")
        value = entries[entry]
    elif entry:
        raise UsageError(f"--sweep {name}.{entry}: {name} is a single value.")
    return value  # type: ignore[no-any-return]


def _parse_span(request: str, span: str) -> list[float]:
    try:
        if ":" not in span:
            values = [float(piece) for piece in span.split(",")]
            if np.isfinite(values).all() and len(values) <= MOST_POINTS:
                return values
        else:
            low, high, *points = span.split(":")
            first, last = float(low), float(high)
            [count] = [int(number) for number in points] or [POINTS]
            if -np.inf < first < last < np.inf and 2 <= count <= MOST_POINTS:
                return [float(value) for value in np.linspace(first, last, count)]
    except ValueError:
        pass
    raise UsageError(
        f"--sweep {request}: must look like parameter, parameter=first:last[:count] or "
        "parameter=value,value, as in min_words=20:200:10; first is below last, and there are at "
        f"most {MOST_POINTS} values."
    )


def _quantiles(tunable: Tunable, name: str, entry: str) -> list[float]:
    """Return thresholds that each drop about as much: of one row group of many parts."""
    stage, probe = tunable.stage, 123.0
    old = getattr(stage, name)
    new = {k: probe if str(k) == entry else v for k, v in old.items()} if entry else probe
    probed = stage.model_copy(update={name: new})
    bounded = [rule for rule in tunable.names if stage.bounds.get(rule) == name]
    rules = [rule for rule in bounded if probed.threshold(rule) == probe] or bounded
    columns: list[NDArray[np.float64]] = []
    for part in list(tunable.parts)[:: -(-len(tunable.parts) // LOOKED_AT_PARTS)]:
        with open_part(tunable.run.at(part)) as file:
            table = file.read_row_group(0, columns=rules)
        columns += [numbers(table.column(rule)) for rule in rules]
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    cuts = np.quantile(values, np.linspace(0.0, 1.0, POINTS)) if len(values) else values
    return [float(f"{cut:.4g}") for cut in cuts]


def single_rules(tunable: Tunable) -> list[Measure]:
    """Return what each rule measured and fails by itself, from counts by bins that all runs have.

    Raises:
        UsageError: the run counted nothing of the stage.
    """
    phase = [(tunable.phase, tunable.seal)]
    counts = read_counts(tunable.run, phase, MOST_PARTS, at=tunable.label)
    if not counts.has(tunable.label):
        raise UsageError(without_measures(tunable))
    rows = measures(tunable.run, counts, Counter())
    return [row for row in rows if row.stage == tunable.label and row.rule is not None]
