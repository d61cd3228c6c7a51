"""The ledger: one row for every document that left, and for every span cut or replaced, and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.batch import SPAN, numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

SCHEMA = pa.schema(
    [
        ("doc_key", pa.int64()),
        ("doc_id", pa.string()),
        ("source", pa.string()),
        ("stage", pa.string()),
        ("rule", pa.string()),
        ("action", pa.string()),
        ("value", pa.float64()),
        ("threshold", pa.float64()),
        ("survivor_id", pa.string()),
        ("spans", pa.list_(SPAN)),
        ("text", pa.large_string()),
        ("lost", pa.float64()),
    ]
)

SAMPLE_SHIFT = 8
"""The text of one document in 2**SAMPLE_SHIFT is kept in the ledger, whatever the settings."""

SAMPLE_BYTES = 20_000
"""Longer sampled texts are cut at this size."""


@dataclasses.dataclass(frozen=True)
class Entries:
    """Ledger rows of one stage and one batch; all sequences are N long, or None.

    Attributes:
        keys: (N,) int64; `ids`, `sources`, `rules`: N strings as Arrow arrays.
        action: `drop`, `cut` or `replace`, for all rows.
        values, thresholds: (N,) float64, NaN where they have no meaning.
        survivors: ids of the kept duplicates.
        spans: per row the (start, end) pairs in bytes.
        texts: what the stage saw; kept or not by the ledger's own rule.
        lost: share of a duplicate's shingles that its survivor lacks, NaN where it is unknown.
    """

    keys: NDArray[np.int64]
    ids: pa.Array
    sources: pa.Array
    stage: str
    rules: pa.Array
    action: str
    values: NDArray[np.float64] | None = None
    thresholds: NDArray[np.float64] | None = None
    survivors: pa.Array | None = None
    spans: pa.Array | None = None
    texts: pa.Array | None = None
    lost: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, rows: NDArray[np.int64], stage: str, rules: pa.Array | str,
        values: NDArray[np.float64] | None = None,
        thresholds: NDArray[np.float64] | float = float("nan"), **others: Any,
    ) -> Entries:  # fmt: skip
        """Return entries of some rows of a batch with `key`, `id`, `source`, perhaps `text`.

        Args:
            batch: the documents.
            rows: of the batch; all else has an entry for each of them.
            stage, rules, values, thresholds: as above; a rule or threshold may be that of all.
            others: other fields; `action` is `drop` by default.
        """
        names = [name for name in ("key", "id", "source", "text") if name in batch.schema.names]
        documents = batch.select(names).take(pa.array(rows))
        fields = {
            "keys": numbers(documents.column("key")),
            "ids": documents.column("id"),
            "sources": documents.column("source"),
            "rules": pa.repeat(rules, len(rows)) if isinstance(rules, str) else rules,
            "thresholds": np.broadcast_to(np.float64(thresholds), len(rows)),
            "texts": documents.column("text") if "text" in names else None,
            "action": "drop",
        }
        return cls(**{**fields, "stage": stage, "values": values, **others})


class LedgerWriter:
    """Collects the ledger rows of one cell and writes them sorted by key.

    Args:
        seed: of the sample whose text is kept.
        keep_text: keep the text of every row, not only of the sample.
        mask: masks personal data in sampled text (`(texts) -> texts`); None leaves it unmasked.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        keep_text: bool = False,
        mask: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        self._seed, self._keep_text, self._mask = seed, keep_text, mask
        self._tables: list[pa.Table] = []

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def add(self, entries: Entries) -> None:
        num = len(entries.keys)
        if num == 0:
            return
        columns = {
            "doc_key": pa.array(entries.keys),
            "doc_id": entries.ids,
            "source": entries.sources,
            "stage": pa.repeat(entries.stage, num),
            "rule": entries.rules,
            "action": pa.repeat(entries.action, num),
            "value": _floats(entries.values, num),
            "threshold": _floats(entries.thresholds, num),
            "survivor_id": _or_null(entries.survivors, pa.string(), num),
            "spans": _or_null(entries.spans, pa.list_(SPAN), num),
            "text": self._texts(entries, num),
            "lost": _floats(entries.lost, num),
        }
        arrays = [columns[field.name].cast(field.type) for field in SCHEMA]
        self._tables.append(pa.Table.from_arrays(arrays, schema=SCHEMA))

    def write(self, path: Path) -> pa.Table:
        """Write all rows, sorted by key (rows of one document in the order of its stages)."""
        table = pa.concat_tables([SCHEMA.empty_table(), *self._tables]).combine_chunks()
        order = np.argsort(table.column("doc_key").to_numpy(), kind="stable")
        table = table.take(pa.array(order))
        with pa.OSFile(str(path), "wb") as file:  # PyArrow takes a path with a colon for an address
            pq.write_table(table, file, compression="zstd", row_group_size=1 << 16)
        return table

    def _texts(self, entries: Entries, num: int) -> pa.Array:
        if entries.texts is None:
            return pa.nulls(num, pa.large_string())
        if self._keep_text:
            return entries.texts
        rows = np.flatnonzero(sampled(entries.keys, self._seed))
        if len(rows) == 0:
            return pa.nulls(num, pa.large_string())
        texts = entries.texts.take(pa.array(rows))
        if self._mask is not None:
            texts = self._mask(texts)
        samples = [t.encode()[:SAMPLE_BYTES].decode(errors="ignore") for t in texts.to_pylist()]
        sample_rows = np.full(num, -1)
        sample_rows[rows] = np.arange(len(rows))
        return pa.array(samples, pa.large_string()).take(
            pa.array(sample_rows, mask=sample_rows < 0)
        )


def sampled(keys: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return which documents belong to the seeded sample: by key alone, so by nothing else."""
    x = keys.astype(np.uint64) ^ np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
    with np.errstate(over="ignore"):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):  # MurmurHash3's finaliser
            x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
    x ^= x >> np.uint64(33)
    return (x >> np.uint64(64 - SAMPLE_SHIFT)) == 0  # type: ignore[no-any-return]


def _floats(values: NDArray[np.float64] | None, num: int) -> pa.Array:
    if values is None:
        return pa.nulls(num, pa.float64())
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _or_null(values: pa.Array | None, kind: pa.DataType, num: int) -> pa.Array:
    return pa.nulls(num, kind) if values is None else values
