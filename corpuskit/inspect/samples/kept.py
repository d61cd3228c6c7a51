"""Documents that a run kept: where they lie, a sample of them, and their texts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.engine.records import FIXED, MEASURES
from corpuskit.engine.status import sealed
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import open_parquet, read_documents
from corpuskit.inspect.samples.samples import MAX_PARTS, Sample, Samples, shuffled
from corpuskit.stage import StreamingStage
from corpuskit.storage import open_place, open_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, RoleParts, Seal
    from corpuskit.inspect.samples.samples import Band
    from corpuskit.storage import Readable

_NUMBERS = (pa.float64(), pa.float32(), pa.int64(), pa.int32(), pa.int8(), pa.uint8())


class Shards(NamedTuple):
    """The last document shards of a run, and what finished phases say about them.

    Attributes:
        phase: that wrote them.
        masks: seals whose sidecars apply to them, oldest first.
        packing: seal of the phase that packed them, or None; its ledger names what it dropped.
        packed_by: stages of that phase; what they rewrote is not in the shards.
    """

    run: RunDirectory
    phase: Phase
    parts: RoleParts
    masks: tuple[Seal, ...]
    packing: Seal | None
    packed_by: tuple[str, ...]

    def sidecars(self, part: Part) -> list[Readable]:
        """Return the sidecars of a part."""
        of_part = (seal.by_role("sidecar").of_unit(part.unit) for seal in self.masks)
        return [self.run.at(one) for found in of_part for one in found]

    def read(
        self, part: Part, columns: Sequence[str], keys: NDArray[np.int64] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the documents of a part that were kept.

        Args:
            columns: `key` must be one of them.
            keys: as in `read_documents`.
        """
        gone = self._gone(part)
        path, sidecars = self.run.at(part), self.sidecars(part)
        for batch in read_documents(path, columns, sidecars=sidecars, keys=keys):
            if len(gone):
                stays = pc.invert(pc.is_in(batch.column("key"), gone))
                batch = batch.filter(stays)
            if len(batch):
                yield batch

    def _gone(self, part: Part) -> pa.Array:
        """Return the documents of a part that stages fused with packing dropped."""
        found = [pa.array([], pa.int64())]
        if self.packing is not None:
            for one in self.packing.by_role("ledger").of_unit(part.unit):
                with open_whole(self.run.at(one)) as file:
                    chosen = pc.field("action") == "drop"
                    table = pq.read_table(
                        file, columns=["doc_key"], filters=chosen, partitioning=None
                    )
                found += table.column("doc_key").chunks
        return pa.concat_arrays(found)


def kept_shards(run: RunDirectory, finished: Sealed | None = None) -> Shards | None:
    """Return the last document shards of the finished phases; None if there are none.

    Args:
        finished: what `sealed` returned, where it is at hand.
    """
    finished = sealed(run) if finished is None else finished
    found: Shards | None = None
    for phase, seal in finished:
        if phase.is_stream and len(seal.by_role("documents")):
            found = Shards(run, phase, seal.by_role("documents"), (), None, ())
        elif found is None or phase.base != found.phase.index:
            continue
        elif phase.is_stream:
            found = found._replace(packing=seal, packed_by=phase.labels[:-1])
        elif len(seal.by_role("sidecar")):
            found = found._replace(masks=(*found.masks, seal))
    return found


def kept_texts(shards: Shards, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return key -> (id, text) of documents that were kept, as they were kept."""
    wanted = np.array(sorted(keys), np.int64)
    found: dict[int, tuple[str, str]] = {}
    if not len(wanted):
        return found
    for part in shards.parts.within(int(wanted[0]), int(wanted[-1]) + 1):
        mine = wanted[(wanted >= part.first) & (wanted <= part.last)]
        if not len(mine):
            continue
        for batch in shards.read(part, ["key", "id", "text"], mine):
            some = batch.filter(pc.is_in(batch.column("key"), pa.array(mine)))
            for row in some.to_pylist():
                found[row["key"]] = (row["id"], row["text"])
    return found


@dataclasses.dataclass(frozen=True)
class _Value:
    """Where a value of kept documents is found.

    Attributes:
        name: a rule or a field.
        column: of the shards, or empty: it lies in `measures`.
    """

    stage: str
    name: str
    threshold: float | None
    column: str = ""
    measures: RoleParts | None = None


def find_kept(
    run: RunDirectory, stage: str = "", rule: str = "", num: int = 5, seed: int = 0, *,
    source: str = "", band: Band | None = None,
) -> Samples:  # fmt: skip
    """Return a seeded sample of the documents that the finished phases kept.

    Args:
        stage, rule: whose value to show and to compare with `band`: a rule that a stage with
            `measures: true` measured, or a column of numbers that it added.
        num: documents.
        source: one source only.

    Raises:
        UsageError: there are no documents, or no such values.
    """
    finished = sealed(run)
    shards = kept_shards(run, finished)
    if shards is None:
        raise UsageError(f"{run.store.address}: no document shards so far.")
    labels = sorted(step.label for step in run.plan.file.sources)
    if source and source not in labels:
        raise UsageError(f"{run.store.address}: no source {source!r}. {suggest(source, labels)}")
    value = _value_of(run, shards, finished, stage, rule) if stage or rule or band else None
    if band is not None and band.near_ratio is not None and (not value or value.threshold is None):
        raise UsageError("--near-threshold: what was asked for has no threshold. Use --between.")
    parts = [part for part in shards.parts if source in ("", part.source)]
    chosen = parts[:: max(-(-len(parts) // MAX_PARTS), 1)]
    counted = 0
    extremes: list[float] = []
    best: list[tuple[int, int, Part, float | None]] = []
    for part in chosen:
        keys, values = _keys_and_values(shards, part, value)
        if band is not None:
            bound = np.nan if value is None or value.threshold is None else value.threshold
            wanted = band.holds(values, np.full(len(values), bound))
            if not np.isnan(values).all():
                extremes += [float(np.nanmin(values)), float(np.nanmax(values))]
            keys, values = keys[wanted], values[wanted]
        counted += len(keys)
        at = dict(zip(keys.tolist(), values.tolist(), strict=True))
        some = [(mark, key, part, at[key]) for mark, key in shuffled(keys, seed, num)]
        best = sorted([*best, *some], key=lambda one: one[:2])[:num]
    if not best:
        of = f": values go from {min(extremes):g} to {max(extremes):g}" if extremes else ""
        raise UsageError(f"{run.store.address}: no kept document is like that{of}.")
    texts = kept_texts(shards, [key for _, key, *_ in best])
    rows = [_sample(key, part, found, value, texts[key]) for _, key, part, found in best]
    rows.sort(key=lambda row: row.key)
    stage = "" if value is None else value.stage
    return Samples(stage, tuple(rows), {"kept": counted}, len(chosen), len(parts))


def _sample(
    key: int, part: Part, found: float | None, value: _Value | None, text: tuple[str, str]
) -> Sample:
    return Sample(
        key, text[0], part.source, "" if value is None else value.name, "kept",
        None if value is None or found is None or np.isnan(found) else found,
        None if value is None else value.threshold, (), text[1], None, text_from="documents",
    )  # fmt: skip


def _keys_and_values(
    shards: Shards, part: Part, value: _Value | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    columns = ["key", *([value.column] if value is not None and value.column else [])]
    keys: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    values: list[NDArray[np.float64]] = [np.empty(0)]
    for batch in shards.read(part, columns):
        keys.append(numbers(batch.column("key")))
        if value is not None and value.column:
            column = batch.column(value.column).cast(pa.float64()).fill_null(float("nan"))
            values.append(numbers(column))
        else:
            values.append(np.full(len(batch), np.nan))
    found = np.concatenate(keys)
    if value is None or value.measures is None or not len(found):
        return found, np.concatenate(values)
    return found, _measured(shards.run, value, found)


def _measured(run: RunDirectory, value: _Value, keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what was measured in documents; NaN where nothing was."""
    assert value.measures is not None, "the caller looked"
    low, high = int(keys[0]), int(keys[-1]) + 1
    found = np.full(len(keys), np.nan)
    for part in value.measures.within(low, high):
        for batch in read_documents(run.at(part), ["key", value.name], keys=keys):
            there = numbers(batch.column("key"))
            places = np.minimum(np.searchsorted(keys, there), len(keys) - 1)
            mine = keys[places] == there
            found[places[mine]] = numbers(batch.column(value.name))[mine]
    return found


def _value_of(run: RunDirectory, shards: Shards, finished: Sealed, stage: str, rule: str) -> _Value:
    """Return where the values of a stage are.

    Raises:
        UsageError: there are none.
    """
    labels = [step.label for step in run.plan.file.steps]
    if not stage:
        raise UsageError("a rule or a band of kept documents needs --stage: whose value is meant?")
    if stage not in labels:
        raise UsageError(f"{stage!r} is no stage. {suggest(stage, labels)}")
    known = {one.name: one for one in _columns(run, shards, stage)}
    known |= {one.name: one for one in _measures(run, finished, stage)}
    if rule in known:
        return known[rule]
    if not rule and len(known) == 1:
        return next(iter(known.values()))
    if not known:
        raise UsageError(
            f"{stage}: the run has no value of it for documents that it kept. A stage with "
            f"measures stores them: --set {stage}.measures=true."
        )
    names = ", ".join(sorted(known))
    what = f"no value {rule!r} of kept documents. {suggest(rule, known)}" if rule else "name one."
    raise UsageError(f"{stage}: {what} Choose with --rule: {names}.")


def _columns(run: RunDirectory, shards: Shards, stage: str) -> Iterator[_Value]:
    """Yield the columns of numbers that a stage added."""
    if not len(shards.parts):
        return
    path = run.at(shards.parts[0])
    with open_place(path) as source, open_parquet(source, path) as file:
        fields = list(file.schema_arrow)
    bounds = run.plan.step(stage).stage
    for field in fields:
        label, _, name = field.name.rpartition(".")
        if label == stage and field.type in _NUMBERS:
            yield _Value(stage, name, _least(bounds, name), column=field.name)


def _least(stage: Any, name: str) -> float | None:
    """Return the bound of the one rule that compares a column, as far as its name tells."""
    value = getattr(stage, f"min_{name}", getattr(stage, f"max_{name}", None))
    return float(value) if isinstance(value, int | float) else None


def _measures(run: RunDirectory, finished: Sealed, stage: str) -> Iterator[_Value]:
    """Yield the rules that a stage measured."""
    configured = run.plan.step(stage).stage
    for phase, seal in finished:
        parts = seal.by_role(MEASURES + stage)
        if not (phase.is_stream and len(parts) and isinstance(configured, StreamingStage)):
            continue
        path = run.at(parts[0])
        with open_place(path) as source, open_parquet(source, path) as file:
            names = [name for name in file.schema_arrow.names if name not in FIXED]
        for name in names:
            bound = configured.threshold(name) if name in configured.rules else float("nan")
            yield _Value(stage, name, None if np.isnan(bound) else bound, measures=parts)
