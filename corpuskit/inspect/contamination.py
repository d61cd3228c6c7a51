"""Which benchmark items a run found in which documents."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from corpuskit.engine.documents import read_part
from corpuskit.engine.status import sealed
from corpuskit.errors import CorpuskitError, UsageError, suggest
from corpuskit.formats.shards import read_documents
from corpuskit.inspect.archive import select
from corpuskit.stages.dedup.decontaminate import Decontaminate
from corpuskit.stages.dedup.decontaminate.benchmarks import SEPARATOR, BenchmarkStage
from corpuskit.stages.dedup.decontaminate_ngrams import CONTAMINATED, ITEMS, DecontaminateNgrams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import Stage


@dataclasses.dataclass(frozen=True)
class Hit:
    """A document that holds something of an item.

    Attributes:
        action: `drop`, `cut`, `annotate`, or `report` of what may be a common phrase.
        rule: that matched; of documents that stay, the one that the spans were cut for.
        value: what the rule measured in a dropped document; of others the largest score.
        spans: bytes of the text that the stage saw.
    """

    id: str
    key: int
    source: str
    stage: str
    action: str
    rule: str | None
    value: float | None
    spans: tuple[tuple[int, int], ...]


@dataclasses.dataclass
class ItemHits:
    """The documents that hold something of one item, by rule; `examples` are the first of them."""

    item: str
    documents: int = 0
    rules: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: list[Hit] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Contamination:
    """The matches of all stages that look for benchmark items.

    Attributes:
        documents: that hold something of any item, of those that `contamination_report` counts.
        benchmarks: name -> documents that hold something of its items.
        items: those with most documents first.
        phrases: the same of runs of words that may be common phrases, which are counted here only.
        contaminated: benchmark -> contaminated items and all that are long enough to be compared,
            by `rule: llama3`; of several stages, `benchmark (stage)` from the second on.
        not_found: stage -> benchmark -> items that it never finds, and all, in the files as they
            are now; `warnings` say why, or which file cannot be read.
    """

    documents: int
    benchmarks: dict[str, int]
    items: list[ItemHits]
    phrases: list[ItemHits]
    contaminated: dict[str, tuple[int, int]]
    not_found: dict[str, dict[str, tuple[int, int]]]
    warnings: list[str]


def contamination_report(
    run: RunDirectory, *, benchmark: str | None = None, examples: int = 5
) -> Contamination:
    """Return which items were found, in how many documents, and some of those.

    A document names up to 20 items. All documents that the stage dropped are counted, but of those
    that it cut or annotated only the ones that its phase kept: what a later stage of the same phase
    dropped is not counted. What later phases dropped is.

    Args:
        run: the run.
        benchmark: look at the items of this one only.
        examples: documents to keep of each item.

    Raises:
        UsageError: no finished phase looked for items, or there is no such benchmark.
    """
    kinds = Decontaminate | DecontaminateNgrams
    labels = [s.label for s in run.plan.file.steps if isinstance(s.stage, kinds)]
    if not labels:
        raise UsageError(f"{run.store.address} has no stage `decontaminate`.")
    by_item: defaultdict[str, _ItemTally] = defaultdict(_ItemTally)
    phrases: defaultdict[str, _ItemTally] = defaultdict(_ItemTally)
    contaminated: dict[str, tuple[int, int]] = {}
    finished: dict[str, Stage] = {}
    for phase, seal in sealed(run):
        for label in (name for name in phase.labels if name in labels):
            finished[label] = run.plan.step(label).stage
            counters = seal.counters if phase.pass_name == "judge" else {}
            for name, num in counters.items():
                if name.endswith(ITEMS):
                    name = name.removesuffix(ITEMS)
                    shown = f"{name} ({label})" if name in contaminated else name
                    contaminated[shown] = (counters.get(f"{name}{CONTAMINATED}", 0), num)
            for hit, items in _hits(run, phase, seal, label):
                # A phrase is never beside other rules in a document.
                tallies = phrases if hit.action == "report" else by_item
                for item in items:
                    tallies[item].add(hit, examples)
    if not finished:
        raise UsageError(f"{labels[0]}: its phase is not finished. Run the pipeline first.")
    if benchmark is not None:
        _check_benchmark(benchmark, {item.partition("/")[0] for item in (*by_item, *phrases)})
    keys = _by_benchmark(by_item)
    return Contamination(
        len(set().union(*keys.values())), {name: len(held) for name, held in keys.items()},
        _ordered(by_item, benchmark), _ordered(phrases, benchmark),
        dict(sorted(contaminated.items())), *_never_found(finished),
    )  # fmt: skip


def _never_found(
    stages: Mapping[str, Stage],
) -> tuple[dict[str, dict[str, tuple[int, int]]], list[str]]:
    """Return `not_found` and `warnings` of a report."""
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    texts: list[str] = []
    for label, stage in stages.items():
        assert isinstance(stage, BenchmarkStage)
        try:
            counts[label] = stage.not_found()[1]
            texts += [f"{label}: {text}" for text in stage.warnings()]
        except CorpuskitError as error:
            texts.append(f"{label}: which items are never found is not known: {error}")
    return counts, texts


def _check_benchmark(name: str, names: Collection[str]) -> None:
    if name not in names:
        hint = suggest(name, names) if names else "Nothing was found at all."
        raise UsageError(f"nothing was found of a benchmark {name!r}. {hint}")


def _by_benchmark(tallies: Mapping[str, _ItemTally]) -> dict[str, set[int]]:
    """Return benchmark -> keys of the documents that hold something of its items."""
    keys: defaultdict[str, set[int]] = defaultdict(set)
    for item, tally in tallies.items():
        keys[item.partition("/")[0]] |= tally.documents()
    return dict(sorted(keys.items()))


def _ordered(tallies: Mapping[str, _ItemTally], benchmark: str | None) -> list[ItemHits]:
    """Return the items of a benchmark, or of all, those with most documents first."""
    hits = [
        ItemHits(
            item, len(tally.documents()),
            {rule: len(keys) for rule, keys in tally.rules.items()}, tally.examples,
        )
        for item, tally in tallies.items()
        if benchmark in (None, item.partition("/")[0])
    ]  # fmt: skip
    return sorted(hits, key=lambda item: (-item.documents, item.item))


class _ItemTally:
    """The documents that hold something of an item: their keys by rule, and the first few."""

    def __init__(self) -> None:
        self.rules: defaultdict[str, set[int]] = defaultdict(set)
        self.examples: list[Hit] = []

    def add(self, hit: Hit, max_examples: int) -> None:
        """Count a document, which another stage may have counted already."""
        if len(self.examples) < max_examples and not any(
            hit.key in keys for keys in self.rules.values()
        ):
            self.examples.append(hit)
        self.rules[hit.rule or hit.action].add(hit.key)

    def documents(self) -> set[int]:
        """Return the keys of all documents."""
        return set().union(*self.rules.values())


def _hits(
    run: RunDirectory, phase: Phase, seal: Seal, label: str
) -> Iterator[tuple[Hit, list[str]]]:
    """Yield the documents of a stage that hold something of items, and the items."""
    cuts: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for part in seal.by_role("ledger"):
        table = select(run.at(part), None, pc.field("stage") == label)
        for row in table.drop_columns(["text"]).to_pylist():
            rule, _, names = row["rule"].partition(": ")
            if not names:  # a cut of `decontaminate`: the items are in a column
                cuts[row["doc_key"]].append(row)
                continue
            hit = Hit(
                row["doc_id"], row["doc_key"], row["source"], label, row["action"], rule,
                row["value"], _spans(row["spans"]),
            )  # fmt: skip
            yield hit, names.split(SEPARATOR)
    stage = run.plan.step(label).stage
    if isinstance(stage, DecontaminateNgrams):
        if stage.action == "annotate" and len(seal.by_role("sidecar")):  # its last pass
            yield from _annotated(run, phase, seal, label)
    elif isinstance(stage, Decontaminate) and (stage.action != "drop" or stage.phrases == "report"):
        yield from _kept_hits(run, seal, label, stage, cuts)


def _kept_hits(
    run: RunDirectory, seal: Seal, label: str, stage: Decontaminate,
    cuts: Mapping[int, list[dict[str, Any]]],
) -> Iterator[tuple[Hit, list[str]]]:  # fmt: skip
    """Yield the documents that `decontaminate` cut, annotated or found phrases in.

    Args:
        cuts: the rows of the ledger about its cuts, by document key.
    """
    names = [f"{label}.{name}" for name in stage.adds()]
    for part in seal.by_role("documents"):
        columns = ["key", "id", "source", *names]
        for batch in read_documents(run.at(part), columns):
            if f"{label}.items" not in batch.schema.names:
                break  # of a source to which the stage does not apply
            yield from _phrase_hits(batch, label)
            num_items = pc.list_value_length(batch.column(f"{label}.items"))
            for row in batch.filter(pc.greater(num_items, 0)).to_pylist():
                rows = sorted(
                    cuts.get(row["key"], ()), key=lambda cut: stage.rules.index(cut["rule"])
                )
                spans = row.get(f"{label}.spans") or [s for cut in rows for s in cut["spans"] or ()]
                hit = Hit(
                    row["id"], row["key"], row["source"], label, stage.action,
                    rows[0]["rule"] if rows else None, row[f"{label}.score"], _spans(spans),
                )  # fmt: skip
                yield hit, row[f"{label}.items"]


def _annotated(
    run: RunDirectory, phase: Phase, seal: Seal, label: str
) -> Iterator[tuple[Hit, list[str]]]:
    """Yield the documents that a global stage has only added columns to, and their items."""
    masks = (*(run.seal(index) for index in phase.sidecars), seal)
    columns = ["key", "id", "source", f"{label}.hits", f"{label}.items"]
    for cell in run.cells(phase):
        assert cell.part is not None, "cells have parts"
        sidecars = [
            run.at(p) for mask in masks for p in mask.by_role("sidecar").of_unit(cell.number)
        ]
        for batch in read_part(run, cell.part, columns, sidecars=sidecars):
            for row in batch.filter(pc.greater(batch.column(columns[3]), 0)).to_pylist():
                where = (row["id"], row["key"], row["source"], label)
                yield Hit(*where, "annotate", "ngram", row[columns[3]], ()), row[columns[4]]


def _phrase_hits(batch: pa.RecordBatch, label: str) -> Iterator[tuple[Hit, list[str]]]:
    """Yield the documents that hold runs of words that may be common phrases, by item."""
    name = f"{label}.phrases"
    if name not in batch.schema.names:
        return
    flagged = batch.filter(pc.greater(pc.list_value_length(batch.column(name)), 0))
    for row in flagged.to_pylist():
        by_item: defaultdict[str, list[dict[str, int]]] = defaultdict(list)
        for phrase in row[name]:
            by_item[phrase["item"]].append(phrase)
        for item, spans in by_item.items():
            document = (row["id"], row["key"], row["source"], label)
            yield Hit(*document, "report", "phrase", None, _spans(spans)), [item]


def _spans(rows: list[dict[str, int]] | None) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((row["start"], row["end"]) for row in rows or ()))
