"""Token ids to rows of equal length."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.kernels.packing import CONTINUES, GOES_ON
from corpuskit.shards import write_tokens
from corpuskit.stage import CellStage, Cost
from corpuskit.stages.sequences._rows import (
    Documents,
    cut,
    pack_window,
    packed_schema,
    packed_size,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from corpuskit.stage import UnitContext, View, Volume

FOLDER = "work/pack"


class Pack(CellStage):
    """Lay the documents of each cell into rows of `seq_len` + 1 tokens, each token exactly once.

    `best_fit` cuts only documents that are longer than a row, at a cost of less than 0.1 % padding;
    `concat` cuts wherever a row ends, and pads only the last row of a cell. Rows correlate with
    document length afterwards: `shuffle` them. A row has one token more than a step trains on, so
    that each of `seq_len` positions has a next token. Holds the rows of a cell in memory.

    Source: Ding et al. 2024, Fewer Truncations Improve Language Modeling (best-fit packing); works
    in windows of pieces instead of on the whole corpus (16,384 pieces lose 0.02-0.04 %).
    """

    seq_len: int = Field(2048, ge=1, le=1 << 24)
    """Tokens that a row trains on; one more is stored."""
    method: Literal["best_fit", "concat"] = "best_fit"
    """`best_fit` keeps documents whole where they fit, `concat` fills row after row."""
    window: int = Field(16384, ge=1)
    """Pieces of documents that are packed together (best_fit)."""

    def needs(self) -> tuple[str, ...]:
        return ("tokenize.tokens",)

    def provides(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"packing": {"seq_len": self.seq_len, "method": self.method}}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return what packing needs: the rows of a cell two and a half times, and ids twice."""
        size = packed_size(volume)
        cell = size * volume.cell_bytes // max(volume.text_bytes, 1)
        return Cost(
            cpu_seconds=volume.text_bytes / 400e6,
            unit_bytes=5 * cell // 2 + 400 * volume.cell_documents,
            disk_bytes=size + 100 * volume.documents,
        )

    def collect(self, views: Iterator[View], context: UnitContext) -> None:
        source, tokenizer = context.unit.source, context.given["tokenizer"]
        schema = packed_schema(context.given, source=source, shuffled=False)
        counts: Counter[str] = Counter()
        ids = _Ids()
        documents = _documents(views, np.dtype(tokenizer["dtype"]), ids, counts)
        width, joined = self.seq_len + 1, self.method == "concat"
        tables = [schema.empty_table()]
        for window in windows(
            cut(documents, width, joined=joined), self.window, width, joined=joined
        ):
            tables.append(pack_window(window, schema, width, tokenizer["pad"], joined=joined))
            begun_only = window.flags & (CONTINUES | GOES_ON) == GOES_ON
            counts["cut_documents"] += int(begun_only.sum())
        table = pa.concat_tables(tables)
        counts["rows"] = len(table)
        counts["padding"] = len(table) * width - counts["tokens"]
        for name, value in sorted(counts.items()):
            context.count(f"{name}/{source}", value)
        ids.write(context)
        if len(table):
            context.write_part(
                "packed",
                FOLDER,
                lambda path: write_tokens(path, table),
                source=source,
                rows=len(table),
            )


class _Ids:
    """Keys and ids of the documents of a cell, for the lookups between them."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []
        self.ids: list[pa.Array] = []

    def write(self, context: UnitContext) -> None:
        """Write the runs `ids` and `id_hashes` (docs/formats.md, mix plan)."""
        if not self.keys:
            return
        keys, ids = np.concatenate(self.keys), pa.concat_arrays(self.ids)
        digests = b"".join(
            hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids.to_pylist()
        )
        context.write_run("ids", {"key": keys, "id": ids})
        context.write_run("id_hashes", {"id_hash": np.frombuffer(digests, "<u8"), "key": keys})


def _documents(
    views: Iterator[View], dtype: np.dtype[np.generic], ids: _Ids, counts: Counter[str]
) -> Iterator[Documents]:
    """Yield the documents of a cell as token arrays, and note what is counted and looked up."""
    for view in views:
        lists, sizes = view.column("tokenize.tokens"), view.text.sizes()
        offsets = lists.offsets.to_numpy()
        # A copy, in the type of the rows: the batch goes, and with uint16 half the memory.
        tokens = lists.values.to_numpy()[offsets[0] : offsets[-1]].astype(dtype)
        ids.keys.append(view.keys)
        ids.ids.append(view.column("id"))
        counts["documents"] += view.num_docs
        counts["tokens"] += len(tokens)
        counts["text_bytes"] += int(sizes.sum())
        yield Documents(tokens, np.diff(offsets), sizes, view.keys)
