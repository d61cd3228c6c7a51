"""Near duplicates, by MinHash signatures and locality-sensitive hashing.

    pass                    reads                       writes                  memory
    sign (cells)            documents                   `bands`, `priorities`   70 bytes a band key
    edges (hash ranges)     `bands`                     `forest`                128 bytes a row
    cluster (one unit)      `forest` of all ranges      `components`            48 bytes an edge
      join_1, join_2... before it, and ranges of it, where there are too many: see `components`
    gather (cells)          `components`, documents     `sets`, `sizes`         24 bytes a shingle
    route_sets              `sets`, `sizes`             the same, merged; only for very many cells
    verify (hash ranges)    `sets`, `sizes`             `clusters`              18 bytes a shingle
    route_bands, survivors, route, apply: see `_cluster_stage`

`schemes` turns texts into band keys and shingles, `verification` has the two passes that compare
them, `signatures` the files of `signatures: true`. With `verify: null` the pass `cluster` writes
`clusters` itself, and `gather` and `verify` do not run. No pass holds more than its unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.errors import UsageError
from corpuskit.formats.batch import numbers
from corpuskit.kernels.arrays import Int64s, Uint64s
from corpuskit.kernels.unionfind import connect, first_of_group
from corpuskit.stage import Cost, Known, Pass, PassContext, PassPlan, Unit, Volume
from corpuskit.stages import _routing
from corpuskit.stages._numbers import check_strings
from corpuskit.stages.dedup import _cluster_stage
from corpuskit.stages.dedup._cluster_stage import ClusterStage
from corpuskit.stages.dedup._keep import Keep, scope_columns, scope_hashes
from corpuskit.stages.dedup._reference import is_reference
from corpuskit.stages.dedup.minhash_dedup import components, schemes
from corpuskit.stages.dedup.minhash_dedup.direct import direct_clusters
from corpuskit.stages.dedup.minhash_dedup.signatures import signed_rows, write_signatures
from corpuskit.stages.dedup.minhash_dedup.verification import (
    COMPONENTS,
    SETS_AND_SIZES,
    ShingleSets,
    cost_of_verify,
    cut_routes_to_verify,
    cut_verify,
    read_index_sets,
    single_link_clusters,
    verify_components,
    write_index_sets,
    write_sets,
)

_BANDS = pa.schema([("hash", pa.uint64()), ("band", pa.uint8()), ("key", pa.int64())])
_PRIORITIES = pa.schema([("key", pa.int64()), ("priority", pa.uint64())])

_COMPONENTS = "cluster/components"

_ROW_BYTES = 128
"""Memory of the pass `edges` per row, where every document has a near duplicate."""

_SIGN_SPEEDS = {"fast": 200e6, "datatrove": 28e6, "datasketch": 45e6}
"""Bytes of text per CPU second, at 14 bands of 8."""


class MinhashDedup(schemes.SignatureParameters, ClusterStage):
    r"""Keep one document of those that share most of their word (or character) n-grams.

    Bands propose; the documents' sets of shingles, compared exactly, decide. Two documents of
    Jaccard similarity J share a band with probability 1 - (1 - J**rows)**bands: with the defaults
    0.05 at J 0.5, 0.56 at 0.7, 0.92 at 0.8, 1.00 at 0.9. Of what bands join, directly or through
    others, a document goes only if one that stays is similar to it (`verify`) and has all but
    `max_lost` of its shingles; it is put into the cluster of the first such one, in the order of
    `prefer` and `keep`. So a form that is filled in differently stays, and no chain of small
    changes removes a document that resembles nothing which stays. Decisions depend on the documents
    and that order alone, not on how the work is cut. Documents without a word are never duplicates.
    The ledger has the similarity to the survivor (`value`) and the share of shingles that the
    survivor lacks (`lost`); `corpuskit verify --dedup` proves both again from the texts.

    As other tools do: `clusters: chained` keeps one document of all that pairs of this similarity
    connect; with `verify: null` all that bands join is a cluster, and one pair in 20 of J 0.5 goes
    (the ledger's value is the size of the cluster then).

    Source: FineWeb (Penedo et al. 2024): 5-grams, 14 bands of 8; Nemotron-CC (Su et al. 2024) for
    `{shingles: characters, ngram: 24, bands: 20, rows: 13}`. Differs from datatrove's MinHash
    unless `scheme: datatrove`: words are runs of letters, digits and underscores in lower case,
    signatures are Fast Similarity Sketches (Dahlgaard, Knudsen, Thorup 2017), documents of fewer
    than `ngram` words have one shingle. `verify` and `max_lost` are ours; the latter extends a rule
    of Marin (2026), by which no word 3-gram may be lost: 0 implies it, since 5-grams hold 3-grams.
    """

    rules = ("near_duplicate",)
    bounds = {"near_duplicate": "verify"}  # noqa: RUF012 - as Stage declares it
    hashed_by, hashes = "sign", "bands"
    hash_bytes = _ROW_BYTES

    keep: Keep = "longest"
    """Which of two near duplicates stays rather than the other: the longest, first (in reading
    order), newest (by the date of its source), {best: <column>} (highest number); none of a cluster
    with clusters: chained. Ties go to the first."""
    verify: float | None = Field(0.8, gt=0, le=1)
    r"""Least Jaccard similarity of the sets of n-grams: of characters, or of `\w+` words in lower
    case whatever the scheme. null: bands alone decide, and delete much that is less similar."""
    clusters: Literal["direct", "chained"] = "direct"
    """What makes a document a duplicate: direct, that one which stays is similar to it; chained,
    that it is connected, through others, too, to one that stays (as with verify: null)."""
    # Each text removed between 0.01 and 0.02 costs 1.2 to 2.1 % of its 5-grams, up to 0.03 2.4 to
    # 3.3 %, without a bound 7 to 13 % (benchmarks/neardup_loss.py).
    max_lost: float | None = Field(0.02, ge=0, le=1)
    """Largest share of a document's shingles that its survivor may lack; 0 loses none, null allows
    all that `verify` does. For clusters: direct."""
    one_per: str | None = None
    """Keep at least one document of each cluster in every source (source), or for every value of
    another column of strings. For clusters: direct."""
    rounds: int = Field(0, ge=0, le=64)
    """The most rounds in which many tasks join near duplicates that are too many for one task: 4
    are usual, so set 8. With 0 one task joins them all. Results are the same."""
    signatures: bool = False
    """Keep whole signatures, as `signatures/<stage>/part-*.parquet`."""

    def libraries(self) -> tuple[str, ...]:
        return schemes.libraries(self)

    def clustering(self) -> str:
        return "cluster" if self.verify is None else "verify"

    def identity(self) -> Mapping[str, Any]:
        names = ("ngram", "bands", "rows", "seed", "scheme")
        parameters = {name: getattr(self, name) for name in names}
        if self.shingles != "words":
            parameters["shingles"] = self.shingles
        if self.scheme == "datatrove":
            parameters["language"] = self.language
        if self.scheme != "fast":
            parameters["hash_function"], parameters["precision"] = schemes.hashing(self)
        return parameters

    def check(self, known: Known) -> None:
        schemes.check(self)
        super().check(known)
        if not self.is_direct():
            self._check_chained()
            return
        if self.keep == "none":
            raise UsageError(
                "keep: with none, no document stays. Set clusters: chained, or another."
            )
        if self.one_per is not None:
            check_strings(known, "one_per", self.one_per)
            if self.against:
                raise UsageError("one_per: not with against: older runs do not say their sources.")

    def _check_chained(self) -> None:
        chained = "verify: null" if self.verify is None else "clusters: chained"
        if self.clusters == "direct" and "clusters" in self.model_fields_set:
            raise UsageError("clusters: direct needs verify. Set verify to 0.8, say.")
        for name in ("max_lost", "one_per"):
            if name in self.model_fields_set and getattr(self, name) is not None:
                raise UsageError(f"{name}: has no effect with {chained}. Leave out one of the two.")

    def is_direct(self) -> bool:
        """Return whether documents go only if they are similar to one that stays."""
        return self.clusters == "direct" and self.verify is not None

    def bounds_of_removal(self) -> tuple[float, float]:
        """Return the least similarity to the survivor, and the largest share that it may lack."""
        return self.verify or 0.0, 1.0 if self.max_lost is None else self.max_lost

    def needs(self) -> tuple[str, ...]:
        groups = () if self.one_per is None else scope_columns(self.one_per)
        return tuple(dict.fromkeys((*super().needs(), *groups)))

    def passes(self) -> tuple[Pass, ...]:
        folders = ("signatures/{label}/",) if self.signatures else ()
        return (
            *self.first_passes(self.sign_cell, folders, "edges", self.link_range),
            *components.passes(self),
            Pass(
                "cluster",
                self.merge_forests,
                partial(components.cut_cluster, self),
                done_with=("sign/priorities", *components.read_by_cluster(self)),
            ),
            *(() if self.verify is None else self._verifying_passes()),
            *self.last_passes(),
        )

    def _verifying_passes(self) -> tuple[Pass, ...]:
        units = self.cut_survivors if self.against else None
        gather = Pass(
            "gather", self.gather_cell, units, done_with=(_COMPONENTS, "route_components/")
        )
        verify = Pass("verify", self.verify_range, cut_verify, done_with=("gather/", "route_sets/"))
        # `gather/sets` is kept for `verify`, which reads a component too large for a task from it,
        # cell by cell.
        route_sets = _routing.route_pass(self, SETS_AND_SIZES, cut_routes_to_verify, done_with=())
        if not self.rounds:  # one task has written `components`: nothing to merge
            return gather, route_sets, verify
        components = {_COMPONENTS: COMPONENTS}
        route_components = _routing.route_pass(self, components, self.cut_routes_to_cells)
        return route_components, gather, route_sets, verify

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        if self.shingles == "characters":  # a shingle a character, not one a word
            text, cell = 5 * volume.text_bytes, 5 * volume.cell_bytes
            volume = dataclasses.replace(volume, text_bytes=text, cell_bytes=cell)
        rows = volume.documents * self.bands
        if pass_name == "sign":
            # At 112 of them, permutations are half of it.
            speed = _SIGN_SPEEDS[self.scheme] / (0.5 + self.bands * self.rows / 224)
            memory = 70 * self.bands * volume.cell_documents
            disk = 17 * rows + rows // 16
            if not self.index:
                return Cost(volume.text_bytes / speed, unit_bytes=memory, disk_bytes=disk)
            sets = cost_of_verify(volume, "gather", 1.0)
            memory = max(memory, sets.unit_bytes)
            seconds = volume.text_bytes / speed + sets.cpu_seconds
            return Cost(seconds, unit_bytes=memory, disk_bytes=disk + sets.disk_bytes)
        if pass_name in {"route_bands", "edges"}:
            return self.cost_of_hashes(volume, pass_name, rows, 17)
        if pass_name == "cluster" or pass_name.startswith("join_"):
            return components.cost(self, volume, pass_name)
        if pass_name == "route_components":
            documents = int(volume.documents * _cluster_stage.CLUSTERED)
            writers = components.cost(self, volume, "cluster").units or 0
            size, cpu = documents * _ROW_BYTES, documents / 3e6
            return _routing.cost_of_route(volume, writers, size, cpu, 16 * documents)
        if pass_name in ("gather", "route_sets", "verify"):
            return cost_of_verify(volume, pass_name)
        return super().cost(volume, pass_name)

    def sign_cell(self, context: PassContext) -> None:
        """Write the band keys of a cell's documents, sorted by hash."""
        keys: list[Int64s] = []
        hashes, priorities, ids, signatures, sets = [], [], [], [], []
        num_docs = 0
        wants_ids = self.index or self.signatures
        for view in context.read(*sorted({"text", *self.needs(), *(("id",) if wants_ids else ())})):
            batch = schemes.sign(view, self, values=self.signatures)
            signed = batch.signed
            num_docs += view.num_docs
            keys.append(view.keys[signed])
            hashes.append((batch.bands ^ self.scopes(view)[:, None])[signed])
            if self.has_priorities() and self.verify is None:
                priorities.append(self.priorities(view)[signed])
            if self.index:
                ids.append(view.column("id").filter(pa.array(signed)))
                sets.append(ShingleSets(view.keys, None, *schemes.shingles(view, self)))
            if self.signatures:
                signatures.append(signed_rows(view, batch))
        if not keys:
            return
        signed_keys = np.concatenate(keys)
        context.count("signed", len(signed_keys))
        context.count("without_words", num_docs - len(signed_keys))
        columns = {
            "hash": np.concatenate(hashes).ravel(),
            "band": np.tile(np.arange(self.bands, dtype=np.uint8), len(signed_keys)),
            "key": np.repeat(signed_keys, self.bands),
        }
        context.write_shuffle("bands", columns)
        self.write_index(context, signed_keys, ids)
        if sets:
            write_index_sets(context, sets)
        if signatures:
            write_signatures(context, self, signatures)
        if priorities:
            columns = {"key": signed_keys, "priority": np.concatenate(priorities)}
            context.write_shuffle("priorities", columns, is_sorted=True)

    def hash_schema(self) -> pa.Schema:
        return _BANDS

    def link_range(self, context: PassContext) -> None:
        """Write the spanning forest of what this hash range links: document -> smallest key."""
        hashes, bands, keys = (numbers(column) for column in self.read_hashes(context).columns)
        first = first_of_group(hashes, bands, keys)
        linked = np.flatnonzero(first != np.arange(len(first)))
        nodes, roots = connect(keys[linked], keys[first[linked]])
        inner = np.flatnonzero(nodes != roots)
        components.write_forest(self, context, nodes[inner], roots[inner])

    def merge_forests(self, context: PassContext) -> None:
        """Write the connected components of all forests, or of a range of keys."""
        nodes, roots = components.find_components(self, context)
        if self.verify is not None:
            context.count("joined_documents", len(nodes))
            context.write_shuffle("components", {"key": nodes, "component": roots}, is_sorted=True)
            return
        priorities = self._priorities_of(context, nodes) if self.has_priorities() else None
        _cluster_stage.write_clusters(context, _cluster_stage.rank(nodes, roots, priorities))

    def cut_routes_to_cells(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of documents where ranges of components and cells are very many."""
        references = self.references().units(0)
        return _routing.route_to_cells(plan, _COMPONENTS, _ROW_BYTES, *references)

    def gather_cell(self, context: PassContext) -> None:
        """Write the shingle sets of the documents that bands have joined."""
        unit = context.unit
        file = _routing.routed_file(context, _COMPONENTS) if self.rounds else _COMPONENTS
        rows = context.read_shuffle(file, unit.low, unit.high, COMPONENTS)
        if rows.num_rows:
            rows = rows.sort_by("key")  # with `rounds`, ranges of hashes have written them
            keys, components = (numbers(column) for column in rows.columns)
            write_sets(context, keys, components, self._sets(context, keys))

    def verify_range(self, context: PassContext) -> None:
        """Find the clusters of a range of components."""
        bounds = self.bounds_of_removal()
        if self.is_direct():
            is_grouped = self.one_per is not None
            cluster = partial(direct_clusters, bounds=bounds, is_grouped=is_grouped)
        else:
            cluster = partial(single_link_clusters, threshold=bounds[0])
        verify_components(context, cluster)

    def _priorities_of(self, context: PassContext, keys: Int64s) -> Uint64s:
        """Return the priorities of documents; 0 for reference documents. `keys` ascend."""
        priorities = np.zeros(len(keys), np.uint64)
        for part in context.parts("sign/priorities"):
            begin, end = np.searchsorted(keys, [part.first, part.last + 1])
            if begin < end:
                low, high = int(keys[begin]), int(keys[end - 1]) + 1
                rows = context.read_shuffle("sign/priorities", low, high, _PRIORITIES)
                order = np.searchsorted(numbers(rows.column("key")), keys[begin:end])
                priorities[begin:end] = numbers(rows.column("priority"))[order]
        return priorities

    def _sets(self, context: PassContext, keys: Int64s) -> Iterator[ShingleSets]:
        """Yield the shingle sets of some documents of this unit."""
        unit = context.unit
        if is_reference(unit):
            for index in self.references().indexes:
                yield from read_index_sets(index, unit.low, unit.high, keys)
            return
        for view in context.read(*sorted({"text", *self.needs()}), keys=keys):
            rows = np.flatnonzero(np.isin(view.keys, keys))
            if len(rows):
                batch = view.select(rows)
                priorities = self.priorities(batch) if self.has_priorities() else None
                groups = None if self.one_per is None else scope_hashes(batch, self.one_per)
                yield ShingleSets(batch.keys, priorities, *schemes.shingles(batch, self), groups)
