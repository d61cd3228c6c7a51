"""Document parts whose texts are in the input files; see `Phase.refers`.

The phase that reads the input stores all columns of a document but its text, and the hash of the
text. A reader of texts reads the input file again and compares the hashes.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.engine.inputs import read_pieces
from corpuskit.engine.reuse import CELLS_PER_UNIT
from corpuskit.formats.shards import TEXT_HASH, read_documents
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Part
    from corpuskit.formats.shards import Texts
    from corpuskit.stage import View
    from corpuskit.storage import Readable


def read_part(
    run: RunDirectory, part: Part, columns: Sequence[str] | None = None, *,
    sidecars: Sequence[Readable] = (), keys: NDArray[np.int64] | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield the documents of a part, wherever their texts lie; see `read_documents`.

    Raises:
        DataError: the part is damaged, or its input file changed since.
    """
    return read_documents(
        run.at(part), columns, sidecars=sidecars, keys=keys, texts=lambda: _texts(run, part)
    )


def referring_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a shard that has the hashes of texts, and null for most texts."""
    return schema.append(pa.field(TEXT_HASH, pa.uint64()))


def without_texts(batch: pa.RecordBatch, view: View, keep: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return documents without their texts, but with the hashes of these.

    Args:
        batch: the documents of the view, in the columns of a shard.
        keep: (N,) whose text stays.
    """
    from corpuskit.kernels.hashing import hash_texts  # loads numba, which `plan` does without

    column = batch.schema.get_field_index("text")
    rows = np.where(keep, np.arange(len(batch)), 0)
    texts = batch.column(column).take(pa.array(rows, mask=~keep))
    changed = batch.set_column(column, batch.schema.field(column), texts)
    return changed.append_column(TEXT_HASH, pa.array(view.fact(hash_texts)[0]))


def _texts(run: RunDirectory, part: Part) -> Texts:
    source = run.plan.source(part.source).for_texts()
    assert source is not None, "the plan made sure of it"
    pieces = [
        (dataclasses.replace(file, path=_absolute(run, file.path)), piece)
        for file, piece in run.inputs.units[part.unit // CELLS_PER_UNIT]
    ]
    for batch in read_pieces(source, pieces, run.plan.settings.max_document_bytes):
        if not len(batch.positions) or batch.positions[-1] < part.first:
            continue  # of a cell before this one
        yield batch.positions, batch.texts
        if batch.positions[-1] >= part.last:
            return


def _absolute(run: RunDirectory, path: str) -> str:
    """Return the path of an input file, which may be relative to where the run was planned."""
    if is_remote(path) or path.startswith("file://"):
        return path
    return os.path.join(run.folder, path)
