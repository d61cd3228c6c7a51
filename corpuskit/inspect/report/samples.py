"""Samples of kept, dropped, cut and replaced text within a budget of bytes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import SAMPLE_BYTES
from corpuskit.inspect.archive import column_of, kept_shards, open_part, texts_seen
from corpuskit.inspect.report.excerpts import masked, segments, shortened
from corpuskit.inspect.samples import jaccard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part
    from corpuskit.inspect.archive import Shards
    from corpuskit.inspect.report.clusters import Duplicates
    from corpuskit.inspect.report.excerpts import Kind, Segments
    from corpuskit.inspect.report.ledger import Group, LedgerRow, Scan


BUDGET_BYTES = 400_000  # text of all samples together
MOST_BYTES = 20_000  # text of one of them
LEAST_BYTES = 600  # with less it tells nothing: there are fewer samples instead

SMALL_INPUT_BYTES = 100_000_000
"""Input files of this size are read again, if the ledger lacks a text."""

TEXTS_PER_GROUP = 5
"""Samples of each stage, rule, action and source whose text is looked for outside of the ledger."""

PARTS_PER_SOURCE = 4  # document shards that kept documents are taken from, one row group of each

_STAND_INS = ("email@example.com", "192.0.2.1", "2001:db8::1", "202-555-0143", "4111 1111 1111",
              "GB82 WEST", "000-00-0000", "REDACTED")  # fmt: skip


@dataclasses.dataclass
class _SampleDraft:
    """A sample before its texts are cut to size.

    Attributes:
        sample: JSON values. `action` is `keep`, `drop`, `cut` or `replace`; `reason` what the
            ledger says, where that is more than the rule; `num_spans` those of the row, some
            of them are marked in the text; `survivor` the document that was kept instead.
        text, survivor: of the document, and of the one kept instead, as far as they are to be had.
        masks: mask personal data in the text; that of the ledger is masked already.
    """

    sample: dict[str, Any]
    text: Segments | None = None
    survivor: Segments | None = None
    masks: bool = True


def shown_samples(
    run: RunDirectory, finished: Sealed, scan: Scan, clusters: Sequence[Duplicates],
    num: int, seed: int, budget_bytes: int = BUDGET_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """Return samples of every stage, rule, action and source, and of what is kept, as JSON values.

    Personal data is masked in them, as in the samples of the ledger, unless the run keeps
    texts (`ledger: {keep_text: true}`).

    Args:
        num: of each stage, rule, action and source, and of the kept documents of each source.
    """
    drafts = [*_ledger_drafts(run, scan, clusters), *_of_kept(run, finished, num, seed)]
    drafts = _prefer_with_text(drafts)
    order = _in_turns(drafts)
    has_mask = not run.plan.settings.ledger.keep_text
    drafted = [drafts[index] for index in order]
    limit, num_shown = _limit(drafted, budget_bytes)
    drafted = drafted[:num_shown]
    if has_mask:
        _mask(drafted)
    items = [_cut(draft, limit) for draft in drafted]
    by_draft = sorted(range(len(items)), key=lambda index: order[index])
    texts = [item["text"] for item in items]
    texts += [item["survivor"]["text"] for item in items if item["survivor"]]
    return {
        "budget_bytes": budget_bytes, "used_bytes": sum(text.shown_bytes for text in texts if text),
        "seed": seed, "masked": has_mask, "sampled": scan.sampled,
        "items": [items[index] for index in by_draft],
    }  # fmt: skip


def _ledger_drafts(
    run: RunDirectory, scan: Scan, clusters: Sequence[Duplicates]
) -> Iterable[_SampleDraft]:
    texts = _texts(run, scan.rows)
    survivors = {cluster.stage: cluster.survivors for cluster in clusters}
    kept_texts = _survivor_texts(run, scan.rows, survivors)
    keeps_text = run.plan.settings.ledger.keep_text
    for row in scan.rows:
        replayed = texts.get((row.phase.index, row.group.stage, row.key))
        is_ledger = replayed is None
        text = row.text if replayed is None else replayed
        spans = row.spans
        if is_ledger and text is not None and not keeps_text and _has_moved(text, spans):
            spans = ()
        kind = cast("Kind", row.group.action)
        stage = row.group.stage
        kept_text = kept_texts.get((stage, survivors.get(stage, {}).get(row.key, -1)))
        yield _SampleDraft(
            _sample(run, row, text, kept_text),
            None if text is None else segments(text, spans, kind),
            None if kept_text is None else segments(kept_text, (), ""),
            masks=not is_ledger,
        )


def _has_moved(text: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether spans may point elsewhere: the ledger masks and cuts what it samples."""
    size = len(text.encode())
    is_cut = size >= SAMPLE_BYTES - 4 and any(end > size for _, end in spans)
    return not is_cut and (
        any(end > size for _, end in spans) or any(word in text for word in _STAND_INS)
    )


def _sample(
    run: RunDirectory, row: LedgerRow, text: str | None, survivor_text: str | None
) -> dict[str, Any]:
    survivor: dict[str, Any] | None = None
    if row.survivor_id is not None:
        survivor = {"id": row.survivor_id, "text": None, "jaccard": None}
        if text is not None and survivor_text is not None:
            stage = run.plan.step(row.group.stage).stage
            survivor["jaccard"] = jaccard(text, survivor_text, stage)
    return {
        "action": row.group.action, "stage": row.group.stage, "rule": row.group.rule,
        "reason": row.reason if row.reason != row.group.rule else None,
        "source": row.group.source, "key": str(row.key), "id": row.id, "url": None,
        "value": row.value, "threshold": row.threshold, "text": None, "num_spans": len(row.spans),
        "survivor": survivor,
    }  # fmt: skip


def _texts(run: RunDirectory, rows: Sequence[LedgerRow]) -> dict[tuple[int, str, int], str]:
    """Return (phase, stage, key) -> text as the stage saw it, of the first rows of each group.

    Texts that the ledger has are enough, unless spans are to be marked in them.
    """
    units_of: defaultdict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    phases = {}
    seen_of: defaultdict[tuple[int, Group], int] = defaultdict(int)
    for row in rows:
        seen_of[row.phase.index, row.group] += 1
        is_first = seen_of[row.phase.index, row.group] <= TEXTS_PER_GROUP
        if is_first and (row.text is None or row.spans):
            units_of[row.phase.index, row.group.stage][row.key] = row.unit
            phases[row.phase.index] = row.phase
    size = sum(file.size_bytes for file in run.inputs.files)
    texts: dict[tuple[int, str, int], str] = {}
    for (index, stage), units in units_of.items():
        with contextlib.suppress(DataError, OSError):  # `work/` was deleted
            replayed = texts_seen(
                run, phases[index], stage, units, read_inputs=size <= SMALL_INPUT_BYTES
            ).texts
            texts |= {(index, stage, key): text.text for key, text in replayed.items()}
    return texts


def _survivor_texts(
    run: RunDirectory, rows: Sequence[LedgerRow], survivors: Mapping[str, Mapping[int, int]]
) -> dict[tuple[str, int], str]:
    """Return (stage, key) -> text of documents that were kept instead of others."""
    keys_of: defaultdict[str, set[int]] = defaultdict(set)
    num_of: defaultdict[Group, int] = defaultdict(int)
    phases = {}
    for row in rows:
        key = survivors.get(row.group.stage, {}).get(row.key, -1)
        num_of[row.group] += 1
        if row.survivor_id is not None and key >= 0 and num_of[row.group] <= TEXTS_PER_GROUP:
            keys_of[row.group.stage].add(key)
            phases[row.group.stage] = row.phase
    return {
        (stage, key): text
        for stage, keys in keys_of.items()
        for key, text in column_of(run, phases[stage], sorted(keys), "text").items()
    }


def _of_kept(run: RunDirectory, finished: Sealed, num: int, seed: int) -> Iterable[_SampleDraft]:
    for row in kept_documents(run, finished, num, seed):
        sample = {
            **dict.fromkeys(("stage", "rule", "reason", "value", "threshold", "text", "survivor")),
            "action": "keep", "source": row["source"], "key": str(row["key"]), "id": row["id"],
            "url": row["origin"]["url"], "num_spans": 0,
        }  # fmt: skip
        yield _SampleDraft(sample, segments(row["text"], (), ""))


def _prefer_with_text(drafts: Sequence[_SampleDraft]) -> list[_SampleDraft]:
    """Return samples with a text, and one of each group that has none with a text."""
    groups = {_group(draft) for draft in drafts if draft.text is not None}
    kept_drafts = []
    for draft in drafts:
        if draft.text is not None or _group(draft) not in groups:
            kept_drafts.append(draft)
            groups.add(_group(draft))
    return kept_drafts


def _group(draft: _SampleDraft) -> tuple[Any, ...]:
    return tuple(draft.sample[name] for name in ("action", "stage", "rule", "source"))


def _in_turns(drafts: Sequence[_SampleDraft]) -> list[int]:
    """Return indices in an order that takes one of each stage, rule, action and source in turn."""
    counts: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    turns = []
    for index, draft in enumerate(drafts):
        turns.append((counts[_group(draft)], index))
        counts[_group(draft)] += 1
    return [index for _, index in sorted(turns)]


def _limit(drafts: Sequence[_SampleDraft], budget: int) -> tuple[int, int]:
    """Return bytes for each text, and how many drafts fit the budget with as much."""
    sizes = [
        sum(len(text.encode()) for _, text in part)
        for draft in drafts
        for part in (draft.text, draft.survivor)
        if part is not None
    ]
    low, high = LEAST_BYTES, MOST_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(min(size, middle) for size in sizes) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    used = 0
    for index, draft in enumerate(drafts):
        for part in (draft.text, draft.survivor):
            used += min(sum(len(t.encode()) for _, t in part), low) if part is not None else 0
        if used > budget:
            return low, index
    return low, len(drafts)


def _mask(drafts: Sequence[_SampleDraft]) -> None:
    """Mask personal data in what did not come from the ledger, which has masked its own."""
    texts = [(d, "text", d.text) for d in drafts if d.text is not None and d.masks]
    texts += [(d, "survivor", d.survivor) for d in drafts if d.survivor is not None]
    if not texts:
        return
    for (draft, name, _), safe in zip(texts, masked(text for *_, text in texts), strict=True):
        setattr(draft, name, safe)


def _cut(draft: _SampleDraft, limit: int) -> dict[str, Any]:
    sample = draft.sample
    if draft.text is not None:
        sample["text"] = shortened(draft.text, limit)
    if draft.survivor is not None and sample["survivor"] is not None:
        sample["survivor"]["text"] = shortened(draft.survivor, limit)
    return sample


# ---------------------------------------------------------------- documents that are kept


def kept_documents(
    run: RunDirectory, finished: Sealed, num: int, seed: int
) -> list[dict[str, Any]]:
    """Return rows of documents of each source that nothing has dropped so far.

    Args:
        num: of each source, from PARTS_PER_SOURCE shards at most.

    Raises:
        DataError: a shard or a sidecar cannot be read.
    """
    shards = kept_shards(run, finished)
    if shards is None:
        return []
    by_source: defaultdict[str, list[Part]] = defaultdict(list)
    for part in shards.parts:
        if run.store.exists(part.path):
            by_source[part.source].append(part)
    rng = np.random.default_rng(seed)
    documents: list[dict[str, Any]] = []
    for _, parts in sorted(by_source.items()):
        sampled = parts[:: max(-(-len(parts) // PARTS_PER_SOURCE), 1)]
        per_part = max(-(-num // len(sampled)), 1)
        rows: list[dict[str, Any]] = []
        for part in sampled:
            with contextlib.suppress(FileNotFoundError):  # a run that goes on has replaced it
                rows += _part_documents(shards, part, per_part, rng)
        documents += rows[:num]
    return documents


def _part_documents(
    shards: Shards, part: Part, num: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    with open_part(shards.run.at(part)) as file:
        group = int(rng.integers(file.num_row_groups))
        keys = numbers(file.read_row_group(group, columns=["key"], use_threads=False).column("key"))
    # Row groups of a shard have disjoint keys, so these are those of the group that are kept.
    kept_keys = [numbers(batch.column("key")) for batch in shards.read(part, ["key"], keys)]
    alive_keys = keys[np.isin(keys, np.concatenate([keys[:0], *kept_keys]))]
    if len(alive_keys) == 0:
        return []
    drawn_keys = np.sort(rng.choice(alive_keys, min(num, len(alive_keys)), replace=False))
    columns = ["key", "id", "source", "origin", "text"]
    return [
        row
        for batch in shards.read(part, columns, drawn_keys)
        for row in batch.filter(pc.is_in(batch.column("key"), pa.array(drawn_keys))).to_pylist()
    ]
