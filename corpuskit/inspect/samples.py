"""Samples of what a stage dropped or cut, of what was kept, and of what contains a text."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.documents import read_part
from corpuskit.engine.records import FIXED, MEASURES, rule_of
from corpuskit.engine.status import sealed
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import numbers
from corpuskit.formats.shards import read_documents
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.archive import (
    Shards,
    cluster_parts,
    document_rows,
    kept_shards,
    ledger_text,
    open_part,
    rows_of,
    select,
    texts_seen,
)
from corpuskit.inspect.counts import ledger_counts
from corpuskit.stage import StreamingStage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, RoleParts, Seal

MAX_PARTS = 200  # ledger parts that a sample is taken from; more keep the reader waiting
DEFAULT_NGRAM = 5  # words per shingle where the stage has none of its own

_NUMBERS = (pa.float64(), pa.float32(), pa.int64(), pa.int32(), pa.int8(), pa.uint8())
"""Types of columns that `inspect --kept` can choose by."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A ledger row or a kept document, with its text and that of the survivor.

    Attributes:
        rule: of the ledger, details included; of kept documents what `value` is called.
        action: `drop`, `cut`, `replace`, `kept` or `contains`.
        spans: bytes of `text`.
        text: what the stage saw, of kept documents as they were kept; None if it is nowhere.
        survivor_text: of the document kept instead, if it is one of this run.
        jaccard: of the word n-grams of both texts; None without both.
        text_from: `documents`, `input` (the files of the run, as they still are), `ledger`, or
            `sample`: of the ledger, personal data masked, so that spans may not fit; or empty.
        problem: why there is no text.
    """

    key: int
    id: str
    source: str
    rule: str
    action: str
    value: float | None
    threshold: float | None
    spans: tuple[tuple[int, int], ...]
    text: str | None
    survivor_id: str | None
    survivor_text: str | None = None
    jaccard: float | None = None
    text_from: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Samples:
    """Samples in key order.

    Attributes:
        stage: that did it; of kept documents the one that `value` is of, or empty.
        rules: ledger rows by rule, of the parts that were read and in the chosen source, action and
            band; of kept documents how many there are, under `kept`.
        parts_read, parts: of the ledger of this stage, or of the kept documents.
    """

    stage: str
    rows: tuple[Sample, ...]
    rules: dict[str, int]
    parts_read: int
    parts: int


@dataclasses.dataclass(frozen=True)
class Band:
    """A range of values, or a distance from the threshold.

    Attributes:
        low, high: both included; None = no bound.
        near_ratio: no further from the threshold than this share of it.
    """

    low: float | None = None
    high: float | None = None
    near_ratio: float | None = None

    def contains(
        self, values: NDArray[np.float64], thresholds: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return which values are in the band; NaN never is."""
        is_inside = ~np.isnan(values)
        if self.low is not None:
            is_inside &= values >= self.low
        if self.high is not None:
            is_inside &= values <= self.high
        if self.near_ratio is not None:
            # Decimal bounds are not exact: 0.44 lies within 10 % of 0.4.
            reach = self.near_ratio * np.abs(thresholds) * (1 + 1e-9)
            is_inside &= np.abs(values - thresholds) <= reach
        return is_inside


class StageLedger(NamedTuple):
    """A finished phase that has ledger rows of a stage, and how many, by action, rule, source."""

    phase: Phase
    seal: Seal
    stage: str
    counts: Mapping[tuple[str, str, str], int]


def find_samples(
    run: RunDirectory, stage: str = "", rule: str = "", num: int = 5, seed: int = 0, *,
    source: str = "", action: str = "", band: Band | None = None,
) -> Samples:  # fmt: skip
    """Return a seeded sample of what a stage dropped, cut or replaced.

    Args:
        stage: its label; empty = the last one with ledger rows of this rule, source and action.
        rule, source: one of them only.
        num: rows.
        action: `drop`, `cut` or `replace`; empty = all.
        band: which measured values; None = all, rows without a value included.

    Raises:
        UsageError: there is no such stage, rule or source, or it has no such ledger rows.
    """
    stage_ledger = _stage_ledger(run, stage, rule, source, action)
    stage = stage_ledger.stage
    parts = stage_ledger.seal.by_role("ledger")
    sampled = parts[:: max(-(-len(parts) // MAX_PARTS), 1)]
    counts: dict[str, int] = defaultdict(int)
    best: list[tuple[int, int, Part]] = []
    extremes: list[float] = []
    for part in sampled:
        rows = _rows(run, part, stage, source, action)
        if band is not None:
            rows = _rows_of(rows, rule)  # values of other rules say nothing
            extremes += _extremes(rows)
            rows = rows.filter(pa.array(_in_band(rows, band)))
        for entry in rows.column("name").value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
        rows = _rows_of(rows, rule)
        order = shuffled(np.unique(numbers(rows.column("doc_key"))), seed, num)
        best = sorted([*best, *((mark, key, part) for mark, key in order)])[:num]
    if not best:
        raise UsageError(_no_rows(stage, rule, len(sampled), len(parts), extremes))
    keys_by_part: dict[str, tuple[Part, list[int]]] = {}
    for _, key, part in best:
        keys_by_part.setdefault(part.path, (part, []))[1].append(key)
    ledger_rows: list[dict[str, Any]] = []
    units: dict[int, int] = {}
    for part, keys in keys_by_part.values():
        units |= dict.fromkeys(keys, part.unit)
        rows = _rows(run, part, stage, source, action, keys)
        rows = rows if band is None else rows.filter(pa.array(_in_band(rows, band)))
        ledger_rows += _rows_of(rows, rule).to_pylist()
    rows = tuple(_with_texts(run, stage_ledger, ledger_rows, units))
    return Samples(stage, rows, dict(sorted(counts.items())), len(sampled), len(parts))


def _stage_ledger(
    run: RunDirectory, stage: str, rule: str, source: str, action: str
) -> StageLedger:
    """Return the last finished phase and stage that have ledger rows with these values."""
    ledgers = list(_stage_ledgers(run))
    if not ledgers:
        num_done = len(sealed(run))
        num = len(run.plan.phases)
        so_far = "" if num_done == num else f" by the {num_done} of {num} phases that are finished"
        raise UsageError(f"{run.store.address}: nothing was dropped, cut or replaced{so_far}.")
    labels = [ledger.stage for ledger in ledgers]
    if stage and stage not in labels:
        names = [step.label for step in run.plan.file.steps]
        is_known = stage in names
        why = "dropped and cut nothing." if is_known else f"is not a stage. {suggest(stage, names)}"
        raise UsageError(f"{stage!r} {why} Stages with ledger rows: {', '.join(labels)}.")
    ledgers = [ledger for ledger in ledgers if stage in ("", ledger.stage)]
    scope = stage or run.store.address
    for column, (phrase, value) in enumerate(
        (("with action", action), ("of rule", rule_of(rule)), ("of source", source))
    ):
        if not value:
            continue
        names = sorted({key[column] for ledger in ledgers for key in ledger.counts})
        matching = []
        for ledger in ledgers:
            counts = {key: num for key, num in ledger.counts.items() if key[column] == value}
            matching += [ledger._replace(counts=counts)] if counts else []
        if not matching:
            hint = suggest(value, names)
            hint = f"{hint} " if hint.startswith("Did") else ""
            raise UsageError(
                f"{scope}: no ledger rows {phrase} {value!r}. {hint}There are: {', '.join(names)}."
            )
        ledgers = matching
    return ledgers[-1]


def _stage_ledgers(run: RunDirectory) -> Iterator[StageLedger]:
    """Yield the finished phases with ledger rows, once for each of their stages that have some."""
    formats = list(dict.fromkeys(step.name for step in run.plan.file.sources))
    for phase, seal in sealed(run):
        counts: defaultdict[str, dict[tuple[str, str, str], int]] = defaultdict(dict)
        for (action, label, rule, source), value in ledger_counts(seal):
            counts[label][action, rule, source] = value
        for label in [*(formats if phase.base is None else ()), *phase.labels]:
            if label in counts and len(seal.by_role("ledger")):
                yield StageLedger(phase, seal, label, counts[label])


def _rows(
    run: RunDirectory, part: Part, stage: str, source: str, action: str,
    keys: list[int] | None = None,
) -> pa.Table:  # fmt: skip
    """Return ledger rows; with `name`, the rule as counters call it.

    Args:
        keys: of these documents, with all columns; None = of all, with few.
    """
    condition = pc.field("stage") == stage
    if source:
        condition &= pc.field("source") == source
    if action:
        condition &= pc.field("action") == action
    if keys is not None:
        condition &= pc.field("doc_key").isin(pa.array(keys, pa.int64()))
    columns = ["doc_key", "rule", "value", "threshold"] if keys is None else None
    table = select(run.at(part), columns, condition)
    names = pc.list_element(pc.split_pattern(table.column("rule"), ": ", max_splits=1), 0)
    return table.append_column("name", pc.replace_substring(names, "/", "|"))


def _in_band(rows: pa.Table, band: Band) -> NDArray[np.bool_]:
    columns = (rows.column(name).fill_null(float("nan")) for name in ("value", "threshold"))
    return band.contains(*map(numbers, columns))


def _rows_of(rows: pa.Table, rule: str) -> pa.Table:
    return rows.filter(pc.equal(rows.column("name"), rule_of(rule))) if rule else rows


def _extremes(rows: pa.Table) -> list[float]:
    ends = pc.min_max(rows.column("value")).as_py()
    return [] if ends["min"] is None else [ends["min"], ends["max"]]


def _no_rows(stage: str, rule: str, read: int, parts: int, values: Sequence[float]) -> str:
    subject = f"{stage}: no ledger rows" + (f" of rule {rule!r}" if rule else "")
    scope = "" if read == parts else f" in the {read} of {parts} ledger files that were read"
    if not values:
        return f"{subject} have a value{scope}."
    return f"{subject} are in that band{scope}: values go from {min(values):g} to {max(values):g}."


def shuffled(keys: NDArray[np.int64], seed: int, num: int) -> list[tuple[int, int]]:
    """Return the first (mark, key) in an order that the seed and the keys alone decide."""
    marks = marks_of(keys, seed) >> np.uint64(1)
    few = np.argpartition(marks, num - 1)[:num] if len(marks) > num else np.arange(len(marks))
    return sorted(zip(marks[few].tolist(), keys[few].tolist(), strict=True))


def marks_of(keys: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Return 64 bits for each key that look drawn at random, and that these two alone decide."""
    with np.errstate(over="ignore"):
        marks = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed)
        return (marks ^ (marks >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)


def _with_texts(
    run: RunDirectory, ledger: StageLedger, rows: list[dict[str, Any]], units: Mapping[int, int]
) -> list[Sample]:
    """Return samples with texts: as the stage read them, or those that the ledger keeps."""
    phase, stage = ledger.phase, ledger.stage
    step = next((step for step in run.plan.file.steps if step.label == stage), None)
    survivors = _survivors(run, phase, set(units))
    lookups = dict(units)
    if phase.base is None:
        # Spans are of the text as it was, and the ledger masks what it samples.
        is_whole = run.plan.settings.ledger.keep_text
        texts = [row for row in rows if row["text"] is not None]
        in_ledger = {row["doc_key"] for row in texts if is_whole or not row["spans"]}
        lookups = {key: unit for key, unit in units.items() if key not in in_ledger}
    lookups |= dict.fromkeys(survivors.values(), 0)
    replay = texts_seen(run, phase, stage, lookups, read_inputs=True)
    samples = []
    for row in sorted(rows, key=lambda row: (row["doc_key"], row["rule"])):
        key = row["doc_key"]
        text = replay.texts.get(key)
        if text is None and row["text"] is not None:
            text = ledger_text(run, row["text"])
        survivor = None if row["survivor_id"] is None else replay.texts.get(survivors.get(key, -1))
        pair = None if text is None or survivor is None else (text.text, survivor.text)
        samples.append(
            Sample(
                key, row["doc_id"], row["source"], row["rule"], row["action"],
                row["value"], row["threshold"],
                tuple((span["start"], span["end"]) for span in row["spans"] or ()),
                None if text is None else text.text, row["survivor_id"],
                None if survivor is None else survivor.text,
                None if pair is None else jaccard(*pair, None if step is None else step.stage),
                "" if text is None else text.text_from,
                replay.problems.get(key, "") if text is None else "",
            )
        )  # fmt: skip
    return samples


def _survivors(run: RunDirectory, phase: Phase, keys: set[int]) -> dict[int, int]:
    """Return the keys of the documents that were kept instead, where they are of this run."""
    survivors: dict[int, int] = {}
    for part in cluster_parts(run, phase):
        rows = read_shuffle(run.at(part))
        rows = rows.filter(pc.is_in(rows.column("key"), pa.array(sorted(keys), pa.int64())))
        pairs = zip(*(rows.column(name).to_pylist() for name in ("key", "survivor")), strict=True)
        survivors |= {key: survivor for key, survivor in pairs if survivor >= 0}
    return survivors


def shingles(text: str, stage: object) -> set[tuple[str, ...]]:
    """Return the n-grams that `minhash_dedup` compares (of another stage, 5-grams of words)."""
    ngram = getattr(stage, "ngram", DEFAULT_NGRAM)
    by_character = getattr(stage, "shingles", "words") == "characters"
    words = list(text) if by_character else re.findall(r"\w+", text.lower())
    if 0 < len(words) < ngram:
        return {tuple(words)}
    return set(zip(*(words[start:] for start in range(ngram)), strict=False))


def jaccard(a: str, b: str, stage: object) -> float:
    """Return the Jaccard similarity of two texts, 0 if neither has a word."""
    left, right = shingles(a, stage), shingles(b, stage)
    return len(left & right) / max(len(left | right), 1)


def excerpts(
    text: str, spans: Sequence[tuple[int, int]], margin: int
) -> Iterable[tuple[str, str, str]]:
    """Yield (before, span, after) of spans of bytes, with at most `margin` bytes around each."""
    data = text.encode()
    for start, end in spans:
        pieces = (data[max(start - margin, 0) : start], data[start:end], data[end : end + margin])
        before, inside, after = (piece.decode(errors="ignore") for piece in pieces)
        yield before, inside, after


# ---------------------------------------------------------------- documents that were kept


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
        raise UsageError("--near-threshold: this value has no threshold. Use --between.")
    parts = [part for part in shards.parts if source in ("", part.source)]
    if value is not None:
        parts = _parts_with(run, parts, value.stage)
    sampled = parts[:: max(-(-len(parts) // MAX_PARTS), 1)]
    num_kept = 0
    extremes: list[float] = []
    best: list[tuple[int, int, Part, float | None]] = []
    for part in sampled:
        keys, values = _keys_and_values(shards, part, value)
        if band is not None:
            bound = np.nan if value is None or value.threshold is None else value.threshold
            in_band = band.contains(values, np.full(len(values), bound))
            if not np.isnan(values).all():
                extremes += [float(np.nanmin(values)), float(np.nanmax(values))]
            keys, values = keys[in_band], values[in_band]
        num_kept += len(keys)
        value_of = dict(zip(keys.tolist(), values.tolist(), strict=True))
        draws = [(mark, key, part, value_of[key]) for mark, key in shuffled(keys, seed, num)]
        best = sorted([*best, *draws], key=lambda row: row[:2])[:num]
    if not best:
        range_note = f": values go from {min(extremes):g} to {max(extremes):g}" if extremes else ""
        raise UsageError(f"{run.store.address}: no kept document is like that{range_note}.")
    texts = shards.texts([key for _, key, *_ in best])
    rows = [_sample(key, part, value_read, value, texts[key]) for _, key, part, value_read in best]
    rows.sort(key=lambda row: row.key)
    stage = "" if value is None else value.stage
    return Samples(stage, tuple(rows), {"kept": num_kept}, len(sampled), len(parts))


def _sample(
    key: int, part: Part, number: float | None, value: _Value | None, text: tuple[str, str]
) -> Sample:
    return Sample(
        key, text[0], part.source, "" if value is None else value.name, "kept",
        None if value is None or number is None or np.isnan(number) else number,
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
    all_keys = np.concatenate(keys)
    if value is None or value.measures is None or not len(all_keys):
        return all_keys, np.concatenate(values)
    return all_keys, _measures_of(shards.run, value, all_keys)


def _measures_of(run: RunDirectory, value: _Value, keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what was measured in documents; NaN where nothing was."""
    assert value.measures is not None, "the caller looked"
    low, high = int(keys[0]), int(keys[-1]) + 1
    values = np.full(len(keys), np.nan)
    for part in value.measures.within(low, high):
        for batch in read_documents(run.at(part), ["key", value.name], keys=keys):
            batch_keys = numbers(batch.column("key"))
            rows = np.minimum(np.searchsorted(keys, batch_keys), len(keys) - 1)
            is_match = keys[rows] == batch_keys
            values[rows[is_match]] = numbers(batch.column(value.name))[is_match]
    return values


def _value_of(run: RunDirectory, shards: Shards, finished: Sealed, stage: str, rule: str) -> _Value:
    """Return where the values of a stage are.

    Raises:
        UsageError: there are none.
    """
    labels = [step.label for step in run.plan.file.steps]
    if not stage:
        raise UsageError("a rule or a band of kept documents needs --stage: whose value is meant?")
    if stage not in labels:
        raise UsageError(f"{stage!r} is not a stage. {suggest(stage, labels)}")
    values = {value.name: value for value in _columns(run, shards, stage)}
    values |= {value.name: value for value in _measures(run, finished, stage)}
    if rule in values:
        return values[rule]
    if not rule and len(values) == 1:
        return next(iter(values.values()))
    if not values:
        raise UsageError(
            f"{stage}: the run has no value of it for documents that it kept. A stage with "
            f"measures stores them: --set {stage}.measures=true."
        )
    names = ", ".join(sorted(values))
    why = f"no value {rule!r} of kept documents. {suggest(rule, values)}" if rule else "name one."
    raise UsageError(f"{stage}: {why} Choose with --rule: {names}.")


def _parts_with(run: RunDirectory, parts: Iterable[Part], stage: str) -> list[Part]:
    """Return the parts of the sources that a stage applies to; others may lack its columns."""
    applies = run.plan.step(stage).applies
    return [part for part in parts if applies.to_source(part.source)]


def _columns(run: RunDirectory, shards: Shards, stage: str) -> Iterator[_Value]:
    parts = _parts_with(run, shards.parts, stage)
    if not parts:
        return
    with open_part(run.at(parts[0])) as file:
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
    configured = run.plan.step(stage).stage
    for phase, seal in finished:
        parts = seal.by_role(MEASURES + stage)
        if not (phase.is_stream and len(parts) and isinstance(configured, StreamingStage)):
            continue
        with open_part(run.at(parts[0])) as file:
            names = [name for name in file.schema_arrow.names if name not in FIXED]
        for name in names:
            bound = configured.threshold(name) if name in configured.rules else float("nan")
            yield _Value(stage, name, None if np.isnan(bound) else bound, measures=parts)


# ---------------------------------------------------------------- documents that contain a text


def find_containing(run: RunDirectory, piece: str, num: int = 5, *, source: str = "") -> Samples:
    """Return documents with this piece of text, letter for letter, in any text that is stored.

    Documents are searched in the form in which each finished phase left them, the latest first,
    then the ledger.

    Args:
        num: the search stops after this many documents.
        source: one source only.

    Raises:
        UsageError: no stored text contains it, or it is empty.
    """
    try:
        piece.encode()
    except UnicodeEncodeError:
        raise UsageError("--containing: the text is not UTF-8, so no document has it.") from None
    if not piece.strip():
        raise UsageError("--containing: the text to look for is empty. Give a piece of a document.")
    shards: list[Part] = []
    ledger: list[Part] = []
    for phase, seal in sealed(run):
        if phase.is_stream:
            roles = (parts for parts in seal.parts.roles() if parts.role.startswith("aside:"))
            shards = [*seal.by_role("documents"), *(part for p in roles for part in p), *shards]
        ledger += seal.by_role("ledger")
    labels = [step.label for step in run.plan.file.sources]
    if source and source not in labels:
        raise UsageError(f"{run.store.address}: no source {source!r}. {suggest(source, labels)}")
    # Parts of the ledger may hold documents of several sources; they name none.
    parts = [part for part in (*shards, *ledger) if not source or part.source in ("", source)]
    matches: dict[int, Sample] = {}
    for key, part in _search(run, parts, piece):
        if key not in matches:
            sample = _containing(run, part, key, piece)
            matches |= {key: sample} if source in ("", sample.source) else {}
        if len(matches) == num:
            break
    if not matches:
        raise UsageError(
            f"{run.store.address}: no stored text contains this piece. Texts that were dropped are "
            "stored where `ledger: {keep_text: true}` is set."
        )
    rows = sorted(matches.values(), key=lambda sample: sample.key)
    return Samples("", tuple(rows), {"containing": len(rows)}, len(parts), len(parts))


def _search(run: RunDirectory, parts: Iterable[Part], piece: str) -> Iterator[tuple[int, Part]]:
    """Yield the documents with a piece in their text; a part that is gone has none."""
    for part in parts:
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            batches: Iterable[pa.RecordBatch]
            if part.role == "ledger":
                file = stack.enter_context(open_part(run.at(part)))
                columns = ["doc_key", "text"]
                batches = file.iter_batches(batch_size=4096, columns=columns, use_threads=False)
            else:
                batches = read_part(run, part, ["key", "text"])
            for batch in batches:
                keys, texts = batch.columns
                rows = numbers(pc.match_substring(texts, piece).fill_null(False))
                for key in numbers(keys)[rows].tolist():
                    yield key, part


def _containing(run: RunDirectory, part: Part, key: int, piece: str) -> Sample:
    """Return a document with the spans of a piece of its text."""
    is_ledger = part.role == "ledger"
    rows = rows_of(run.at(part), key, "doc_key") if is_ledger else document_rows(run, part, key)
    row = next(row for row in rows if piece in (row["text"] or ""))
    data, needle = row["text"].encode(), piece.encode()
    starts = [match.start() for match in re.finditer(re.escape(needle), data)]
    return Sample(
        key, row["doc_id" if is_ledger else "id"], row["source"], "", "contains", None, None,
        tuple((start, start + len(needle)) for start in starts), row["text"], None,
        text_from=ledger_text(run, "").text_from if is_ledger else "documents",
    )  # fmt: skip
