"""Texts of documents that other bounds would move, and what became of those that were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.inspect.samples.texts import texts_seen
from corpuskit.storage import open_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.tune.measured import Measured

SHOWN_CHARS = 200


def texts_and_fates(
    found: Measured, kept: Sequence[int], dropped: Sequence[int]
) -> tuple[dict[int, str], dict[int, str]]:
    """Return key -> beginning of the text, and key -> `stage: rule` that dropped it afterwards.

    Args:
        kept: keys of documents that the stage kept: they lie in document shards, or in the ledger
            of a later stage.
        dropped: keys of documents that it dropped: the ledger keeps the texts of some, others are
            looked up in what the phase read, input files included while they are as they were.
    """
    texts: dict[int, str] = {}
    fates: dict[int, str] = {}
    keys = [*kept, *dropped]
    stays = set(kept)
    for phase, seal in found.finished:
        shards = seal.by_role("documents") if phase.is_stream else ()
        for row in _rows_of(found.run, shards, "key", kept):
            texts.setdefault(row["key"], row["text"])
        for row in _rows_of(found.run, seal.by_role("ledger"), "doc_key", keys):
            key, is_ours = row["doc_key"], row["stage"] == found.label
            if row["text"] is not None and (key in stays or is_ours):
                texts.setdefault(key, row["text"])
            if row["action"] == "drop" and key in stays:
                fates.setdefault(key, f"{row['stage']}: {row['rule']}")
    missing = [key for key in keys if key not in texts]
    units = {key: part.unit for key in missing for part in found.parts.within(key, key + 1)}
    if units:
        phase = next(phase for phase, _ in found.finished if found.label in phase.labels)
        seen = texts_seen(found.run, phase, found.label, units, read_inputs=True)
        texts |= {key: one.text for key, one in seen.texts.items()}
    return {key: text[:SHOWN_CHARS] for key, text in texts.items()}, fates


def _rows_of(
    run: RunDirectory, parts: Iterable[Any], name: str, keys: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of some documents; each lies in one part, if any."""
    columns = ["key", "text"] if name == "key" else ["doc_key", "stage", "rule", "action", "text"]
    for part in parts if keys else ():
        wanted = [key for key in keys if part.first <= key <= part.last]
        if wanted:
            condition = pc.field(name).isin(pa.array(wanted, pa.int64()))
            with open_whole(run.at(part)) as source:
                table = pq.read_table(source, columns=columns, filters=condition, partitioning=None)
            yield from table.to_pylist()
