"""Near duplicates, by MinHash signatures and locality-sensitive hashing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.errors import TaskError
from corpuskit.formats.batch import numbers
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.stage import Cost, Pass, Unit
from corpuskit.stages.dedup import _clusters, _schemes, _sets, _verify
from corpuskit.stages.dedup._cluster_stage import ClusterStage
from corpuskit.stages.dedup._signatures import signed_rows, write_signatures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from corpuskit.stage import Known, PassContext, PassPlan, Volume

_BANDS = pa.schema([("hash", pa.uint64()), ("band", pa.uint8()), ("key", pa.int64())])
_PLACES = pa.schema([("key", pa.int64()), ("place", pa.uint64())])
_FOREST = pa.schema([("key", pa.int64()), ("root", pa.int64())])

_ROW_BYTES = 128
"""Memory of the pass `edges` per row, where every document has a near duplicate."""

_SIGN_SPEEDS = {"fast": 200e6, "datatrove": 28e6, "datasketch": 45e6}
"""Bytes of text per CPU second, at 14 bands of 8."""

_EDGES = 4
"""Edges per clustered document that an estimate takes: 10 million synthetic ones had 3.8."""

_EDGE_BYTES = 48
"""Memory of the pass `cluster` per edge: the edges as read, their ends once more, sorted."""

_NODE_BYTES = 64
"""Memory of that pass per document where clusters are ranked later, when they are verified."""


class MinhashDedup(ClusterStage):
    r"""Keep one document of those that share most of their word n-grams.

    Bands propose, `verify` decides. Two documents of Jaccard similarity J share a band with
    probability 1 - (1 - J**rows)**bands: with the defaults 0.05 at J 0.5, 0.56 at 0.7, 0.92 at 0.8,
    1.00 at 0.9. What bands join, directly or through others, is compared in all pairs by the true
    similarity of their shingle sets, and clusters are the connected components of pairs that reach
    `verify`: exact single-link clusters, but for pairs that no band brought together. With
    `verify: null` all that bands join is a cluster, as elsewhere, and one pair in 20 of J 0.5 goes.
    Two members may resemble each other only through a third. Clusters don't depend on order.
    Documents without a word are never duplicates. The ledger's value is the similarity to the
    survivor (without `verify` the size of the cluster).

    Source: FineWeb (Penedo et al. 2024): 5-grams, 14 bands of 8. Differs from datatrove's MinHash
    unless `scheme: datatrove`: words are runs of letters, digits and underscores in lower case,
    signatures are Fast Similarity Sketches (Dahlgaard, Knudsen, Thorup 2017), documents of fewer
    than `ngram` words have one shingle. In any case the first document in reading order survives,
    and `verify` is ours.
    """

    rules = ("near_duplicate",)
    bounds = {"near_duplicate": "verify"}  # noqa: RUF012 - as Stage declares it
    hashed_by = "sign"

    ngram: int = Field(5, ge=1, le=64)
    """Words per shingle."""
    bands: int = Field(14, ge=1, le=255)
    """Bands; more of them find less similar pairs, and cost time and scratch disk."""
    rows: int = Field(8, ge=1, le=255)
    """Hashes per band; more of them find fewer pairs that are not similar."""
    verify: float | None = Field(0.8, gt=0, le=1)
    r"""Least Jaccard similarity of the sets of word n-grams, in `\w+` words in lower case whatever
    the scheme. null: bands alone decide, and delete much that is less similar."""
    scheme: _schemes.Scheme = "fast"
    """`fast`, or signatures equal to those of datatrove, or of datasketch."""
    language: str = "en"
    """Language of the words, for scheme datatrove."""
    hash_function: _schemes.HashFunction | None = None
    """Of shingles; null: the scheme's own."""
    precision: _schemes.Precision | None = None
    """Bits of that hash; null: the scheme's own."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of the permutations."""
    signatures: bool = False
    """Keep whole signatures, as `signatures/<stage>/part-*.parquet`."""

    def libraries(self) -> tuple[str, ...]:
        return _schemes.libraries(self)

    def clustering(self) -> str:
        return "cluster" if self.verify is None else "verify"

    def identity(self) -> Mapping[str, Any]:
        names = ("ngram", "bands", "rows", "seed", "scheme")
        found = {name: getattr(self, name) for name in names}
        if self.scheme == "datatrove":
            found["language"] = self.language
        if self.scheme != "fast":
            found["hash_function"], found["precision"] = _schemes.hashing(self)
        return found

    def check(self, known: Known) -> None:
        _schemes.check(self)
        super().check(known)

    def passes(self) -> tuple[Pass, ...]:
        verifying = (
            Pass("gather", self.gather_cell, self.cut_survivors if self.against else None),
            Pass("verify", self.verify_range, _verify.cut_ranges),
        )
        return (
            Pass("sign", self.sign_cell, owns=("signatures/{label}/",) if self.signatures else ()),
            Pass("edges", self.link_range, self.cut_ranges),
            Pass("cluster", self.merge_forests, self.cut_nothing),
            *(() if self.verify is None else verifying),
            *self.last_passes(),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        rows = volume.documents * self.bands
        if pass_name == "sign":
            # At 112 of them, permutations are half of it.
            speed = _SIGN_SPEEDS[self.scheme] / (0.5 + self.bands * self.rows / 224)
            held = 70 * self.bands * volume.cell_documents
            disk = 17 * rows + rows // 16
            if not self.index:
                return Cost(volume.text_bytes / speed, unit_bytes=held, disk_bytes=disk)
            sets = _verify.cost(volume, "gather", 1.0)
            held = max(held, sets.unit_bytes)
            seconds = volume.text_bytes / speed + sets.cpu_seconds
            return Cost(seconds, unit_bytes=held, disk_bytes=disk + sets.disk_bytes)
        if pass_name == "edges":
            rows += self.older().rows("bands")
            return _clusters.cost_of_range(volume, rows, _ROW_BYTES)
        if pass_name == "cluster":
            clustered = int(volume.documents * _clusters.CLUSTERED)
            held = clustered * (_EDGES * _EDGE_BYTES + self._node_bytes())
            disk = clustered * (44 if self.verify is None else 16)
            return Cost(clustered / 2e6, unit_bytes=held, disk_bytes=disk, units=1, must_fit=True)
        if pass_name in ("gather", "verify"):
            return _verify.cost(volume, pass_name)
        return super().cost(volume, pass_name)

    def sign_cell(self, context: PassContext) -> None:
        """Write the band keys of a cell's documents, sorted by hash."""
        keys: list[NDArray[np.int64]] = []
        hashes, lines, ids, whole, sets = [], [], [], [], []
        num_docs = 0
        wants_ids = self.index or self.signatures
        for view in context.read(*sorted({"text", *self.needs(), *(("id",) if wants_ids else ())})):
            found = _schemes.sign(view, self, values=self.signatures)
            signed = found.signed
            num_docs += view.num_docs
            keys.append(view.keys[signed])
            hashes.append((found.bands ^ self.scopes(view)[:, None])[signed])
            if self.has_places():
                lines.append(self.places(view)[signed])
            if self.index:
                ids.append(view.column("id").filter(pa.array(signed)))
                sets.append(_sets.Batch(view.keys, None, *_schemes.shingles(view, self)))
            if self.signatures:
                whole.append(signed_rows(view, found))
        if not keys:
            return
        num_signed = sum(map(len, keys))
        context.count("signed", num_signed)
        context.count("without_words", num_docs - num_signed)
        columns = {
            "hash": np.concatenate(hashes).ravel(),
            "band": np.tile(np.arange(self.bands, dtype=np.uint8), num_signed),
            "key": np.repeat(np.concatenate(keys), self.bands),
        }
        context.write_shuffle("bands", columns)
        self.write_index(context, keys, ids)
        if sets:
            _sets.write_index(context, sets)
        if whole:
            write_signatures(context, self, whole)
        if lines:
            named = {"key": np.concatenate(keys), "place": np.concatenate(lines)}
            context.write_shuffle("places", named, is_sorted=True)

    def cut_ranges(self, plan: PassPlan) -> list[Unit]:
        """Return hash ranges whose rows a task can hold."""
        older_rows = self.older().rows("bands")
        return _clusters.hash_units(plan, "sign/bands", _ROW_BYTES, older_rows)

    def link_range(self, context: PassContext) -> None:
        """Write the spanning forest of what this hash range links: document -> smallest key."""
        low, high = context.unit.low, context.unit.high
        rows = context.read_shuffle("sign/bands", low, high, _BANDS)
        if self.against:
            older = self.older().hashes("bands", low, high, _BANDS)
            wanted = np.unique(numbers(rows.column("hash")))
            met = np.isin(numbers(older.column("hash")), wanted)
            rows = pa.concat_tables([older.filter(pa.array(met)), rows])
        hashes, bands, keys = (numbers(column) for column in rows.columns)
        first = first_of_group(hashes, bands, keys)
        linked = np.flatnonzero(first != np.arange(len(first)))
        nodes, roots = connect(keys[linked], keys[first[linked]])
        inner = np.flatnonzero(nodes != roots)
        context.write_shuffle("forest", {"key": nodes[inner], "root": roots[inner]}, is_sorted=True)

    def cut_nothing(self, plan: PassPlan) -> list[Unit]:
        """Return the one unit that merges all forests.

        Raises:
            TaskError: they don't fit the memory of a task.
        """
        num_edges = sum(part.rows for part in plan.parts("edges/forest"))
        num_nodes = 2 * num_edges
        if not self.against:
            num_nodes = min(num_nodes, plan.counters("sign").get("signed", 0))
        needed = num_edges * _EDGE_BYTES + num_nodes * self._node_bytes()
        if needed > plan.memory_bytes:
            raise TaskError(
                f"{self.stage_name()}.cluster: up to {num_nodes:,} near duplicates joined by "
                f"{num_edges:,} edges need {needed:,} bytes in one task, which may use "
                f"{plan.memory_bytes:,}. Set task_memory_bytes to {needed} or more."
            )
        return [Unit(0)]

    def _node_bytes(self) -> int:
        return _clusters.CLUSTER_BYTES if self.verify is None else _NODE_BYTES

    def merge_forests(self, context: PassContext) -> None:
        """Write the connected components of all forests."""
        rows = context.read_shuffle("edges/forest", None, None, _FOREST)
        nodes, roots = connect(*(numbers(column) for column in rows.columns))
        del rows
        if self.verify is not None:
            context.count("joined_documents", len(nodes))
            context.write_shuffle("components", {"key": nodes, "component": roots}, is_sorted=True)
            return
        lines = (self.places_of(context, nodes),) if self.has_places() else ()
        _clusters.write_clusters(context, _clusters.rank(nodes, roots, *lines))

    def gather_cell(self, context: PassContext) -> None:
        """Write the shingle sets of the documents that bands have joined."""
        unit = context.unit
        rows = context.read_shuffle("cluster/components", unit.low, unit.high, _sets.COMPONENTS)
        if rows.num_rows:
            wanted, components = (numbers(column) for column in rows.columns)
            is_older = unit.part is None and unit.high <= 0
            sets = self._older_sets(unit, wanted) if is_older else self._sets_here(context, wanted)
            _sets.write_sets(context, wanted, components, sets)

    def verify_range(self, context: PassContext) -> None:
        """Find the clusters of a range of components."""
        if self.verify is not None:
            _verify.verify_range(context, self.verify)

    def places_of(self, context: PassContext, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return where documents stand in line to be kept; 0 for older ones. `keys` ascend."""
        found = np.zeros(len(keys), np.uint64)
        for part in context.parts("sign/places"):
            begin, end = np.searchsorted(keys, [part.first, part.last + 1])
            if begin < end:
                low, high = int(keys[begin]), int(keys[end - 1]) + 1
                rows = context.read_shuffle("sign/places", low, high, _PLACES)
                there = numbers(rows.column("key"))
                lines = numbers(rows.column("place"))
                found[begin:end] = lines[np.searchsorted(there, keys[begin:end])]
        return found

    def _sets_here(self, context: PassContext, wanted: NDArray[np.int64]) -> Iterator[_sets.Batch]:
        """Yield the shingle sets of some documents of a cell."""
        for view in context.read(*sorted({"text", *self.needs()})):
            found = np.flatnonzero(np.isin(view.keys, wanted))
            if len(found):
                part = view.select(found)
                lines = self.places(part) if self.has_places() else None
                yield _sets.Batch(part.keys, lines, *_schemes.shingles(part, self))

    def _older_sets(self, unit: Unit, wanted: NDArray[np.int64]) -> Iterator[_sets.Batch]:
        """Yield the shingle sets of some older documents."""
        for one in self.older().indexes:
            yield from _sets.read_index(one, unit.low, unit.high, wanted)
