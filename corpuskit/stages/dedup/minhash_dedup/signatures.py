"""Whole signatures as files of the run directory, for indexes outside of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.errors import DataError
from corpuskit.kernels.arrays import AnyArray, Int64s
from corpuskit.stage import UnitContext, View
from corpuskit.stages.dedup.minhash_dedup.schemes import (
    Scheme,
    SignatureParameters,
    Signatures,
    hashing,
)

ROLE = "signatures:"
"""Role of the parts of a stage, without its label."""

GROUP_ROWS = 8192
"""Signatures of a row group: 4 to 8 MB with the defaults."""


class SignatureSettings(NamedTuple):
    """What signatures were made with; the footer of their files holds it.

    Attributes:
        hash_function, precision: of shingles; None for scheme `fast`.
        dtype: of the values, `uint32` or `uint64`.
    """

    scheme: Scheme
    ngram: int
    bands: int
    rows: int
    seed: int
    language: str
    hash_function: str | None
    precision: int | None
    dtype: str

    @property
    def num_perm(self) -> int:
        """Values of a signature, K."""
        return self.bands * self.rows


class Signed(NamedTuple):
    """Signatures of some documents: keys and ids, N long, and values, (N, K)."""

    keys: Int64s
    ids: pa.Array
    values: AnyArray


def signed_rows(view: View, signatures: Signatures) -> Signed:
    """Return the signatures of a batch that was read with `id`, without unsigned documents."""
    assert signatures.values is not None, "sign(.., values=True)"
    ids = view.column("id").filter(pa.array(signatures.signed))
    return Signed(view.keys[signatures.signed], ids, signatures.values[signatures.signed])


def write_signatures(
    context: UnitContext, stage: SignatureParameters, batches: Sequence[Signed]
) -> None:
    """Publish the signatures of a cell as `signatures/<label>/part-*.parquet`, if it has any.

    Columns: `key` int64, `id` string, `signature` fixed_size_binary, the values little endian;
    the footer says with what they were made (`SignatureSettings`).
    """
    num_rows = sum(len(batch.keys) for batch in batches)
    if not num_rows:
        return
    dtype = next(batch.values.dtype for batch in batches)
    width = stage.bands * stage.rows * dtype.itemsize
    fields = [("key", pa.int64()), ("id", pa.string()), ("signature", pa.binary(width))]
    footer = json.dumps({"format": 1, **_settings(stage, dtype.name)._asdict()}, sort_keys=True)
    schema = pa.schema(fields, metadata={"corpuskit": footer})
    columns = [
        pa.array(np.concatenate([batch.keys for batch in batches])),
        pa.chunked_array([batch.ids for batch in batches], pa.string()),
        pa.chunked_array([_binary(batch.values, width) for batch in batches], pa.binary(width)),
    ]
    table = pa.table(columns, schema)

    def write(path: Path) -> None:
        pq.write_table(
            table, path, row_group_size=GROUP_ROWS, write_page_checksum=True,
            compression={"key": "zstd", "id": "zstd", "signature": "none"},
            use_dictionary=False, write_statistics=["key"],
        )  # fmt: skip

    context.write_part(
        f"{ROLE}{context.label}", f"signatures/{context.label}", write, rows=num_rows,
        first=int(batches[0].keys[0]), last=int(batches[-1].keys[-1]), source=context.unit.source,
    )  # fmt: skip


def read_settings(file: pq.ParquetFile, path: str) -> SignatureSettings:
    """Return what the signatures of a part were made with; `path` is for errors.

    Raises:
        DataError: it is not a part of signatures, or of another format.
    """
    footer = (file.schema_arrow.metadata or {}).get(b"corpuskit")
    try:
        fields = json.loads(footer or b"{}")
        if fields.pop("format") != 1:
            raise DataError(f"{path}: not signatures of format 1.")
        return SignatureSettings(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a part of signatures: {error!r}.") from None


def read_signatures(file: pq.ParquetFile, settings: SignatureSettings) -> Iterator[Signed]:
    """Yield the signatures of a part, one row group at a time."""
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False).combine_chunks()
        keys, ids, column = (table.column(name).combine_chunks() for name in table.column_names)
        kind = np.dtype(settings.dtype).newbyteorder("<")
        content = np.frombuffer(column.buffers()[1], kind, len(column) * settings.num_perm)
        yield Signed(keys.to_numpy(), ids, content.reshape(len(column), settings.num_perm))


def _settings(stage: SignatureParameters, dtype: str) -> SignatureSettings:
    function, precision = (None, None) if stage.scheme == "fast" else hashing(stage)
    return SignatureSettings(
        stage.scheme, stage.ngram, stage.bands, stage.rows, stage.seed, stage.language, function,
        precision, dtype,
    )  # fmt: skip


def _binary(values: AnyArray, width: int) -> pa.Array:
    content = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    buffers = [None, pa.py_buffer(content)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), buffers)
