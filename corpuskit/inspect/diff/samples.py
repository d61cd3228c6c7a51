"""Documents that changed between two runs, with what both runs say about them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.engine.status import sealed
from corpuskit.inspect.samples.kept import kept_texts
from corpuskit.inspect.samples.texts import ledger_text, texts_seen
from corpuskit.storage import open_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.formats.manifest import Part
    from corpuskit.inspect.diff.changes import Pick
    from corpuskit.inspect.diff.fates import FateReader

MOST_CHARS = 20_000
"""Longer texts are cut."""


@dataclasses.dataclass(frozen=True)
class DocumentSide:
    """What one run says about a document.

    Attributes:
        reason: the rule that dropped it, with its details; empty if it was kept.
        text: as the run kept it, or as the stage saw it that dropped it; None if it is nowhere.
        text_from: `documents`, `input`, `ledger` or `sample`, as in `texts.Text`.
    """

    key: int
    stage: str = ""
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    survivor_id: str | None = None
    text: str | None = None
    text_from: str = ""


@dataclasses.dataclass(frozen=True)
class ChangedDocument:
    """A document; None for a run that did not read it."""

    id: str
    source: str
    a: DocumentSide | None
    b: DocumentSide | None


def changed_documents(
    one: FateReader, other: FateReader, picks: Sequence[Sequence[Pick]]
) -> list[list[ChangedDocument]]:
    """Return the picked documents, with texts where a run has them, or its input files."""
    every = [pick for group in picks for pick in group]
    left = _side(one, {pick.key_a for pick in every if pick.key_a is not None})
    right = _side(other, {pick.key_b for pick in every if pick.key_b is not None})
    found = []
    for group in picks:
        documents = []
        for pick in group:
            mine = left.get(-1 if pick.key_a is None else pick.key_a)
            theirs = right.get(-1 if pick.key_b is None else pick.key_b)
            names = [name for name, _ in filter(None, (mine, theirs))]
            sides = [None if one is None else one[1] for one in (mine, theirs)]
            documents.append(ChangedDocument(names[0] if names else "", pick.source, *sides))
        found.append(documents)
    return found


def _side(reader: FateReader, keys: set[int]) -> dict[int, tuple[str, DocumentSide]]:
    """Return key -> (id, what the run says)."""
    if not keys:
        return {}
    found: dict[int, tuple[str, DocumentSide]] = {}
    living = kept_texts(reader.shards, keys) if reader.shards else {}
    for key, (name, text) in living.items():
        found[key] = name, DocumentSide(key, text=text[:MOST_CHARS], text_from="documents")
    unknown: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    phases: dict[int, Phase] = {}
    for phase, part, row in _rows(reader, sorted(keys)):
        text, key = row["text"], row["doc_key"]
        side = DocumentSide(
            key, row["stage"], row["rule"], row["value"], row["threshold"], row["survivor_id"],
            None if text is None else text[:MOST_CHARS],
            "" if text is None else ledger_text(reader.run, text).place,
        )  # fmt: skip
        found[key] = row["doc_id"], side
        if text is None:
            phases[phase.index] = phase
            unknown[phase.index, row["stage"]][key] = part.unit
    for (index, stage), units in unknown.items():
        texts = texts_seen(reader.run, phases[index], stage, units, read_inputs=True).texts
        for key, (text, place) in texts.items():
            name, side = found[key]
            some = dataclasses.replace(side, text=text[:MOST_CHARS], text_from=place)
            found[key] = name, some
    return found


def _rows(reader: FateReader, keys: list[int]) -> Iterable[tuple[Phase, Part, dict[str, Any]]]:
    """Yield the ledger rows that dropped documents, with the phase and part they are of."""
    low, high = keys[0], keys[-1] + 1
    for phase, seal in sealed(reader.run):
        for part in seal.by_role("ledger").within(low, high):
            mine = [key for key in keys if part.first <= key <= part.last]
            if not mine:
                continue
            chosen = pc.field("doc_key").isin(pa.array(mine, pa.int64()))
            with open_whole(reader.run.at(part)) as file:
                table = pq.read_table(
                    file, filters=chosen & (pc.field("action") == "drop"), partitioning=None
                )
            for row in table.drop_columns(["spans"]).to_pylist():
                if row["stage"] not in reader.ignored:
                    yield phase, part, row
