"""Exact duplicates, by a 128-bit hash of the text.

pass                   reads                       writes              memory
hash (cells)           documents                   `hashes`, by hash   100 bytes a document
group (hash ranges)    `hashes`                    `clusters`          160 bytes a row
route_hashes, survivors, route, apply: see `_cluster_stage`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from corpuskit.errors import UsageError
from corpuskit.formats.batch import Utf8, numbers, utf8
from corpuskit.kernels.arrays import AnyArray, Bools
from corpuskit.kernels.folding import fold_texts
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.unionfind import first_of_group
from corpuskit.stage import Cost, Known, Pass, PassContext, View, Volume
from corpuskit.stages._numbers import check_strings, to_strings
from corpuskit.stages.dedup._cluster_stage import ClusterStage, rank, write_clusters

_HASHES = [("hash", pa.uint64()), ("hash_low", pa.uint64()), ("key", pa.int64())]

_URL = "url"


class ExactDedup(ClusterStage):
    """Keep one document of those whose texts are equal.

    Use it first: it is far cheaper than minhash_dedup and leaves it less to do. Adds `cluster_id`
    (key of the cluster's first document; below zero if a reference run has it), `cluster_size`,
    which a mixture can weight by, and `cluster_rank`. Texts are compared by two 64-bit hashes
    (XXH64 with two seeds): among 1e10 documents the odds of one wrong drop are 1e-19.

    Source: FineWeb2 (Penedo et al. 2025) for the cluster size; OLMo 3 for exact before fuzzy;
    RefinedWeb (Penedo et al. 2023) for addresses across dumps.
    """

    rules = ("exact_duplicate",)
    hashed_by, hashes = "hash", "hashes"
    hash_bytes = 160

    column: str = "text"
    """What is compared: text, url (the address of the document), or another column of strings.
    Documents without a value have no duplicates."""
    normalize: Literal["none", "whitespace_case"] = "none"
    """Compare raw bytes, or texts in lower case with each run of whitespace as one space."""

    def clustering(self) -> str:
        return "group"

    def identity(self) -> Mapping[str, Any]:
        return {"column": self.column, "normalize": self.normalize}

    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().needs(), self._column())))

    def origins(self) -> tuple[str, ...]:
        return (*super().origins(), *((_URL,) if self.column == _URL else ()))

    def check(self, known: Known) -> None:
        super().check(known)
        if self.column == _URL and _URL not in known.origins:
            raise UsageError(
                "column: none of its sources has a url, so there are no duplicates. Set url_column "
                "of a source, or compare another column."
            )
        if self.column not in ("text", _URL):
            check_strings(known, "column", self.column)

    def passes(self) -> tuple[Pass, ...]:
        return (
            *self.first_passes(self.hash_cell, (), "group", self.group_range),
            *self.last_passes(),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        if pass_name == "hash":
            memory = 100 * volume.cell_documents
            disk = (25 + 60 * self.index) * volume.documents
            return Cost(volume.text_bytes / 450e6, unit_bytes=memory, disk_bytes=disk)
        if pass_name in {"route_hashes", "group"}:
            return self.cost_of_hashes(volume, pass_name, volume.documents, 25)
        return super().cost(volume, pass_name)

    def hash_cell(self, context: PassContext) -> None:
        """Write the hashes of a cell's documents, sorted by the first half."""
        batches: list[list[AnyArray]] = []
        ids: list[pa.Array] = []
        columns = {"id", *self.needs()} if self.index else set(self.needs())
        is_raw_text = self.column == "text" and self.normalize == "none"
        for view in context.read(*sorted(columns)):
            text, has_value = self._values(view)
            # The reader of an input file hashes its texts already, and leaves them as a fact.
            high, low = view.fact(hash_texts) if is_raw_text else hash_texts(*text)
            batch = [high ^ self.scopes(view), low, view.keys]
            if self.has_priorities():
                batch.append(self.priorities(view))
            batches.append([column[has_value] for column in batch])
            if self.index:
                ids.append(view.column("id").filter(pa.array(has_value)))
        if batches:
            arrays = [np.concatenate(column) for column in zip(*batches, strict=True)]
            hashes = dict(zip(self.hash_schema().names, arrays, strict=True))
            context.write_shuffle("hashes", hashes)
            self.write_index(context, hashes["key"], ids)

    def hash_schema(self) -> pa.Schema:
        priority = [("priority", pa.uint64())] if self.has_priorities() else []
        return pa.schema([*_HASHES, *priority])

    def group_range(self, context: PassContext) -> None:
        """Find the documents of a hash range that share their hash."""
        rows = self.read_hashes(context)
        first_half, second_half, keys, *priorities = (numbers(column) for column in rows.columns)
        first = first_of_group(first_half, second_half, keys)
        sizes = np.bincount(first, minlength=len(first))
        clustered = np.flatnonzero(sizes[first] > 1)
        cluster_priorities = [column[clustered] for column in priorities]
        write_clusters(context, rank(keys[clustered], keys[first[clustered]], *cluster_priorities))

    def _column(self) -> str:
        return "origin" if self.column == _URL else self.column

    def _values(self, view: View) -> tuple[Utf8, Bools]:
        """Return what is compared, and which documents have it."""
        if self.column == "text":
            text, has_value = view.text, np.ones(view.num_docs, np.bool_)
        else:
            column = view.column(self._column())
            values = column.field("url") if self.column == _URL else column
            strings = to_strings(values, self.column)
            has_value = numbers(strings.is_valid())
            text = utf8(strings.fill_null("").cast(pa.large_string()))
        return text if self.normalize == "none" else Utf8(*fold_texts(*text)), has_value
