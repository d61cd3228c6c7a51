"""Which benchmark items a run found in which documents."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from corpuskit.engine.status import sealed
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.shards import read_documents
from corpuskit.inspect.archive import select
from corpuskit.stages.dedup.decontaminate import Decontaminate
from corpuskit.stages.dedup.decontaminate.benchmarks import SEPARATOR
from corpuskit.stages.dedup.decontaminate_ngrams import CONTAMINATED, ITEMS, DecontaminateNgrams

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal


@dataclasses.dataclass(frozen=True)
class Hit:
    """A document that holds something of an item.

    Attributes:
        action: `drop`, `cut`, `annotate`, or `report` of what may be a common phrase.
        rule: that found it; of documents that stay, that which the spans were cut for.
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
    """What was found, of all stages that look for benchmark items.

    Attributes:
        documents: that hold something of any item, of those that `contamination_report` counts.
        benchmarks: name -> documents that hold something of its items.
        items: those with most documents first.
        phrases: the same of runs of words that may be common phrases, which are counted here only.
        contaminated: benchmark -> contaminated items and all items, by `rule: llama3`.
    """

    documents: int
    benchmarks: dict[str, int]
    items: list[ItemHits]
    phrases: list[ItemHits]
    contaminated: dict[str, tuple[int, int]]


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
    by_item: dict[str, ItemHits] = {}
    phrases: dict[str, ItemHits] = {}
    benchmarks: Counter[str] = Counter()
    documents = 0
    contaminated: dict[str, tuple[int, int]] = {}
    is_finished = False
    for phase, seal in sealed(run):
        for label in (name for name in phase.labels if name in labels):
            is_finished = True
            for name, num in seal.counters.items():
                if name.endswith(ITEMS):
                    name = name.removesuffix(ITEMS)
                    contaminated[name] = (seal.counters.get(f"{name}{CONTAMINATED}", 0), num)
            for hit, items in _hits(run, phase, seal, label):
                is_phrase = hit.action == "report"  # never beside other rules in a document
                for item in items:
                    hits_of = phrases if is_phrase else by_item
                    _count(hits_of.setdefault(item, ItemHits(item)), hit, examples)
                documents += not is_phrase
                names = () if is_phrase else {item.partition("/")[0] for item in items}
                benchmarks.update(names)
    if not is_finished:
        raise UsageError(f"{labels[0]}: its phase is not finished. Run the pipeline first.")
    if benchmark is not None:
        _check_benchmark(benchmark, {item.partition("/")[0] for item in (*by_item, *phrases)})
    return Contamination(
        documents, dict(sorted(benchmarks.items())), _ordered(by_item, benchmark),
        _ordered(phrases, benchmark), dict(sorted(contaminated.items())),
    )  # fmt: skip


def _check_benchmark(name: str, names: Collection[str]) -> None:
    if name not in names:
        hint = suggest(name, names) if names else "Nothing was found at all."
        raise UsageError(f"nothing was found of a benchmark {name!r}. {hint}")


def _ordered(hits_by_item: Mapping[str, ItemHits], benchmark: str | None) -> list[ItemHits]:
    """Return the items of a benchmark, or of all, those with most documents first."""
    items = [item for item in hits_by_item if benchmark in (None, item.partition("/")[0])]
    return sorted((hits_by_item[i] for i in items), key=lambda hits: (-hits.documents, hits.item))


def _count(item: ItemHits, hit: Hit, examples: int) -> None:
    item.documents += 1
    rule = hit.rule or hit.action
    item.rules[rule] = item.rules.get(rule, 0) + 1
    if len(item.examples) < examples:
        item.examples.append(hit)


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
    if not isinstance(stage, Decontaminate):
        return
    if stage.action == "drop" and stage.phrases != "report":
        return
    action = stage.action
    names = [f"{label}.{name}" for name in stage.adds()]
    for part in seal.by_role("documents"):
        columns = ["key", "id", "source", *names]
        for batch in read_documents(run.at(part), columns):
            yield from _phrase_hits(batch, label)
            num_items = pc.list_value_length(batch.column(f"{label}.items"))
            for row in batch.filter(pc.greater(num_items, 0)).to_pylist():
                rows = sorted(cuts[row["key"]], key=lambda cut: stage.rules.index(cut["rule"]))
                spans = row.get(f"{label}.spans") or [s for cut in rows for s in cut["spans"] or ()]
                hit = Hit(
                    row["id"], row["key"], row["source"], label, action,
                    rows[0]["rule"] if rows else None, row[f"{label}.score"], _spans(spans),
                )  # fmt: skip
                yield hit, row[f"{label}.items"]


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
