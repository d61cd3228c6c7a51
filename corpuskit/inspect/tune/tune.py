"""What other bounds of a stage would keep and drop, from what it measured; nothing is run."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.engine.config import dump_value, step_yaml
from corpuskit.errors import UsageError
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import sampled
from corpuskit.inspect.tune.measured import batches, decide, decided, find_measured, with_changes
from corpuskit.inspect.tune.moved import texts_and_fates
from corpuskit.inspect.tune.swept import even_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.tune.measured import Measured
    from corpuskit.stage import StreamingStage

MOST_VALUES = 1000
"""Values of a sweep, at most."""


@dataclasses.dataclass
class Share:
    """Documents and bytes of text: kept ones of a source, or those that a rule drops.

    Attributes:
        documents, text_bytes: that the stage saw (of a source).
        documents_now, text_bytes_now: by the bounds of the run.
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
class Sample:
    """A document whose fate would change.

    Attributes:
        rule: that drops it, by the bounds of the run or by the other ones.
        value, bound: what the rule measured; the bound it breaks.
        text: its beginning, None where the run does not have it.
        later: `stage: rule` that dropped it afterwards, of documents that this stage kept.
    """

    key: int
    id: str
    source: str
    text_bytes: int
    rule: str
    value: float | None
    bound: float | None
    text: str | None = None
    later: str | None = None


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """What one value of a swept parameter would keep, and how that differs from the run."""

    value: float
    documents: int
    text_bytes: int
    newly_dropped: int
    newly_kept: int


@dataclasses.dataclass
class Tuning:
    """What other bounds would do.

    Attributes:
        changes: parameter -> (value in the run, other value).
        yaml: the stage with the other values, as a line of the pipeline file.
        command: that runs the pipeline so, without an edit of the file.
        bounds: rule -> (bound in the run, other bound), None where it is off or has none.
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
    bounds: dict[str, tuple[float | None, float | None]]
    tunable: list[str]
    sources: dict[str, Share] = dataclasses.field(default_factory=dict)
    rules: dict[str, Share] = dataclasses.field(default_factory=dict)
    newly_dropped: Share = dataclasses.field(default_factory=Share)
    newly_kept: Share = dataclasses.field(default_factory=Share)
    unsure: int = 0
    dropped_samples: list[Sample] = dataclasses.field(default_factory=list)
    kept_samples: list[Sample] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> Share:
        """All sources together."""
        names = [field.name for field in dataclasses.fields(Share)]
        rows = self.sources.values()
        return Share(**{name: sum(getattr(row, name) for row in rows) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        moved = {
            name: {"documents": share.documents, "text_bytes": share.text_bytes}
            for name, share in (
                ("newly_dropped", self.newly_dropped),
                ("newly_kept", self.newly_kept),
            )
        }
        return {**dataclasses.asdict(self), "total": dataclasses.asdict(self.total), **moved}


def tune(run: RunDirectory, label: str, changes: Sequence[str], *, samples: int = 5) -> Tuning:
    """Return what other bounds of a stage would keep and drop.

    Args:
        label: of the stage, as in the funnel.
        changes: `parameter=value` each.
        samples: documents of either kind to show.

    Raises:
        UsageError: the stage stored no measures, or a parameter is no bound of a measured rule.
        DataError: what was measured does not explain what was decided.
    """
    found = find_measured(run, label)
    stage = found.stage
    other, changed = with_changes(found, changes)
    rules = [rule for rule in stage.rules if rule not in found.silent]
    bounds = {rule: (_bound(stage, rule), _bound(other, rule)) for rule in rules}
    result = Tuning(label, changed, *to_paste(run, label, other, changed), bounds, found.tunable)
    result.rules = {rule: Share() for rule in rules}
    seed = run.plan.settings.seed
    lost, back = _Picks(samples, seed), _Picks(samples, seed)
    for batch in batches(found):
        now = decided(found, batch)
        then, unsure = decide(other, batch, found.silent)
        _count(result, stage.rules, batch, now, then)
        result.unsure += int(unsure.sum())
        lost.add(batch, np.flatnonzero((now == 0) & (then > 0)), then)
        back.add(batch, np.flatnonzero((now > 0) & (then == 0)), now)
    result.dropped_samples = _samples(found, other, lost.rows(), is_kept=True)
    result.kept_samples = _samples(found, stage, back.rows(), is_kept=False)
    return result


def sweep(run: RunDirectory, label: str, changes: Sequence[str], swept: str) -> list[SweepRow]:
    """Return what each of many values of one parameter would keep.

    Args:
        changes: `parameter=value` of other parameters, for all rows.
        swept: `parameter=first:last:count`.

    Raises:
        UsageError, DataError: as `tune`; or `swept` is of another form.
    """
    found = find_measured(run, label)
    name, values = _range(found.stage, swept.removeprefix(f"{label}."))
    others = [with_changes(found, [*changes, f"{name}={value!r}"])[0] for value in values]
    counts = np.zeros((len(values), 4), np.int64)
    for batch in batches(found):
        now = decided(found, batch) == 0
        sizes = numbers(batch.column("text_bytes"))
        for row, other in zip(counts, others, strict=True):
            kept = decide(other, batch, found.silent)[0] == 0
            row += [kept.sum(), sizes[kept].sum(), (now & ~kept).sum(), (~now & kept).sum()]
    return [SweepRow(value, *row) for value, row in zip(values, counts.tolist(), strict=True)]


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


def _bound(stage: StreamingStage, rule: str) -> float | None:
    bound = stage.threshold(rule)
    return None if np.isnan(bound) else bound


def _range(stage: StreamingStage, swept: str) -> tuple[str, list[float]]:
    """Return parameter and values of `parameter=first:last:count`; integers are rounded."""
    name, _, raw = swept.partition("=")
    try:
        first, last, number = raw.split(":")
        low, high, count = float(first), float(last), int(number)
    except ValueError:
        count = 0
    if not 2 <= count <= MOST_VALUES:
        raise UsageError(
            f"--sweep {swept}: must look like parameter=first:last:count, as in "
            f"min_words=20:200:10; count is 2 to {MOST_VALUES}."
        )
    schema = stage.model_json_schema().get("properties", {}).get(name, {})
    is_whole = {"integer"} <= {one.get("type") for one in schema.get("anyOf", [schema])}
    return name, even_values(low, high, count, is_whole=is_whole)


def _count(
    result: Tuning, rules: Sequence[str], batch: pa.RecordBatch,
    now: NDArray[np.uint8], then: NDArray[np.uint8],
) -> None:  # fmt: skip
    sizes = numbers(batch.column("text_bytes"))
    named = batch.column("source").dictionary_encode()
    places = named.indices.to_numpy(zero_copy_only=False)
    for place, source in enumerate(named.dictionary.to_pylist()):
        rows = places == place
        share = result.sources.setdefault(source, Share())
        share.documents += int(rows.sum())
        share.text_bytes += int(sizes[rows].sum())
        share.add(sizes, rows & (now == 0), rows & (then == 0))
    for code, rule in enumerate(rules, start=1):
        if rule in result.rules:
            result.rules[rule].add(sizes, now == code, then == code)
    for moved, rows in (
        (result.newly_dropped, (now == 0) & (then > 0)),
        (result.newly_kept, (now > 0) & (then == 0)),
    ):
        moved.documents += int(rows.sum())
        moved.text_bytes += int(sizes[rows].sum())


class _Picks:
    """Documents to show: first those whose text the ledger keeps, then by a hash of the key."""

    def __init__(self, wanted: int, seed: int) -> None:
        self._wanted, self._seed = wanted, seed
        self._rows: list[tuple[bool, int, dict[str, Any]]] = []

    def add(self, batch: pa.RecordBatch, rows: NDArray[np.int64], codes: NDArray[np.uint8]) -> None:
        keys = numbers(batch.column("key"))[rows]
        is_rare = ~sampled(keys, self._seed)
        hashes = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for at in np.lexsort((hashes, is_rare))[: self._wanted].tolist():
            row = batch.slice(int(rows[at]), 1).to_pylist()[0] | {"fate": int(codes[rows[at]])}
            self._rows.append((bool(is_rare[at]), int(hashes[at]), row))
        self._rows = sorted(self._rows, key=lambda pick: pick[:2])[: self._wanted]

    def rows(self) -> list[dict[str, Any]]:
        """Return the chosen rows in key order; `fate` is the code of the rule that drops them."""
        return sorted((row for *_, row in self._rows), key=lambda row: row["key"])


def _samples(
    found: Measured, stage: StreamingStage, rows: list[dict[str, Any]], *, is_kept: bool
) -> list[Sample]:
    """Return documents with their texts, as far as the run has them.

    Args:
        stage: whose bounds they break.
        is_kept: the run kept them, so they lie in document shards or in a later stage's ledger.
    """
    keys = [row["key"] for row in rows]
    texts, fates = texts_and_fates(found, *((keys, ()) if is_kept else ((), keys)))
    samples = []
    for row in rows:
        rule, key = stage.rules[row["fate"] - 1], row["key"]
        samples.append(
            Sample(
                key, row["id"], row["source"], row["text_bytes"], rule, row.get(rule),
                _bound(stage, rule), texts.get(key), fates.get(key),
            )
        )  # fmt: skip
    return samples
