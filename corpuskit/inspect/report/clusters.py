"""Clusters of duplicates: counts by size, the largest ones, and survivors by key."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers, split_key
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.archive import CLUSTERS, column_of, with_prefix
from corpuskit.inspect.counts import Sampled
from corpuskit.inspect.report.excerpts import Excerpt, masked, segments, shortened
from corpuskit.stages.dedup._cluster_stage import ClusterStage
from corpuskit.storage import open_ranged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import RoleParts, Seal


MAX_ROWS = 20_000_000  # clustered documents that are read of a stage: parts are left out evenly

NUM_LARGEST = 5
NUM_MEMBERS = 8
TEXT_BYTES = 4000


@dataclasses.dataclass(frozen=True)
class Duplicates:
    """The clusters of one stage.

    Attributes:
        clusters, documents: of the whole run, older documents included.
        dropped: documents, by the ledger.
        sizes: clusters and documents by size, each with its bounds `low` and `high`, included.
        largest: clusters with their first members, and the text of the first that has one.
        survivors: key -> key of the document kept instead, for the keys looked for.
        sampled: None = all clusters were read; none where `work/` was deleted.
    """

    stage: str
    kind: str
    clusters: int
    documents: int
    dropped: int
    threshold: float | None
    sizes: list[dict[str, int]]
    largest: list[dict[str, Any]]
    survivors: dict[int, int]
    sampled: Sampled | None

    def to_json(self) -> dict[str, Any]:
        """Return what a report shows."""
        facts = {name: value for name, value in vars(self).items() if name != "survivors"}
        return facts | {"state": "done"}


@dataclasses.dataclass
class _ClusterTally:
    by_power: Counter[int] = dataclasses.field(default_factory=Counter)
    documents: Counter[int] = dataclasses.field(default_factory=Counter)
    largest: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)
    survivors: dict[int, int] = dataclasses.field(default_factory=dict)


def find_duplicates(
    run: RunDirectory, finished: Sealed, keys: dict[str, set[int]]
) -> list[Duplicates]:
    """Return the clusters of each finished stage that clusters documents.

    Args:
        keys: stage -> keys whose survivors are looked for.

    Raises:
        DataError: a shuffle file of clusters cannot be read.
    """
    seals = {phase.index: (phase, seal) for phase, seal in finished}
    duplicates = []
    for phase, seal in finished:
        clustering = _clustering(run, phase)
        last = max(p.index for p in run.plan.phases if p.labels == phase.labels)
        if clustering and phase.pass_name == clustering and last in seals:
            duplicates.append(_of_stage(run, phase, seal, seals[last], keys))
    return duplicates


def _clustering(run: RunDirectory, phase: Phase) -> str:
    """Return the pass of a phase's stage that names clusters; "" if it has none."""
    stage = None if phase.is_stream else run.plan.step(phase.labels[0]).stage
    return stage.clustering() if isinstance(stage, ClusterStage) else ""


def _of_stage(
    run: RunDirectory, phase: Phase, seal: Seal, last: tuple[Phase, Seal],
    keys: dict[str, set[int]],
) -> Duplicates:  # fmt: skip
    label = phase.labels[0]
    stage = run.plan.step(label).stage
    parts = seal.by_role(CLUSTERS)
    is_there = all(run.store.exists(part.path) for part in parts)
    step = max(-(-sum(part.rows for part in parts) // MAX_ROWS), 1) if is_there else 0
    sampled = parts[::step] if is_there else parts[:0]
    tally = _ClusterTally()
    stage_keys = np.array(sorted(keys.get(label, ())), np.int64)
    for number, part in enumerate(sampled):
        _count(run, part.path, number * step, stage_keys, tally)
    dropped = sum(with_prefix(last[1].counters, f"dropped/{label}/").values())
    bound = stage.threshold(stage.rules[0])
    sizes = [
        {
            "low": max(1 << power, 2), "high": (2 << power) - 1, "clusters": num,
            "documents": tally.documents[power],
        }
        for power, num in sorted(tally.by_power.items())
    ]  # fmt: skip
    return Duplicates(
        stage=label,
        kind=run.plan.step(label).name,
        clusters=seal.counters.get("clusters", 0),
        documents=seal.counters.get("clustered_documents", 0),
        dropped=dropped,
        threshold=None if np.isnan(bound) else bound,
        sizes=sizes,
        largest=list(_largest(run, last[0], parts, tally, is_dropped=dropped > 0)),
        survivors=tally.survivors,
        sampled=None if step == 1 else Sampled(len(sampled), len(parts)),
    )


def _count(
    run: RunDirectory, path: str, number: int, stage_keys: NDArray[np.int64], tally: _ClusterTally
) -> None:
    """Add one shuffle file of clusters; rows of a cluster follow each other."""
    before: int | None = None
    for batch in _batches(run, path):
        clusters, sizes = numbers(batch.column("cluster")), numbers(batch.column("size"))
        if len(stage_keys):
            keys = numbers(batch.column("key"))
            rows = np.flatnonzero(np.isin(keys, stage_keys))
            survivors = numbers(batch.column("survivor"))
            tally.survivors.update(zip(keys[rows].tolist(), survivors[rows].tolist(), strict=True))
        is_first = np.diff(clusters, prepend=clusters[:1] - 1) != 0
        is_first[0] = before is None or before != int(clusters[0])
        before = int(clusters[-1])
        first = np.flatnonzero(is_first)
        cluster_sizes = sizes[first].astype(np.int64)
        powers = np.log2(np.maximum(cluster_sizes, 1)).astype(np.int64)
        counts = np.bincount(powers)
        weights = np.bincount(powers, weights=cluster_sizes)
        for power in np.flatnonzero(counts).tolist():
            tally.by_power[power] += int(counts[power])
            tally.documents[power] += int(weights[power])
        top = first[np.argsort(-cluster_sizes, kind="stable")[:NUM_LARGEST]]
        survivors = numbers(batch.column("survivor"))
        tally.largest = heapq.nlargest(
            NUM_LARGEST,
            [
                *tally.largest,
                *(
                    (int(sizes[row]), -int(clusters[row]), int(survivors[row]), number)
                    for row in top.tolist()
                ),
            ],
        )


def _batches(run: RunDirectory, path: str) -> Iterator[pa.RecordBatch]:
    location = run.store.at(path)
    try:
        with open_ranged(location) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if len(batch):
                    yield batch
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{location}: cannot be read: {error}. Run again.") from None


def _largest(
    run: RunDirectory, last: Phase, parts: RoleParts, tally: _ClusterTally, *, is_dropped: bool
) -> Iterator[dict[str, Any]]:
    """Yield the largest clusters with their first members; ids of older runs are not looked up."""
    stage = run.plan.step(last.labels[0]).stage
    keeps_none = getattr(stage, "keep", "") == "none"
    sources = {file.ordinal: file.source for file in run.inputs.files}
    for size, cluster, survivor, number in tally.largest:
        rows = read_shuffle(run.at(parts[number]), survivor, survivor + 1)
        members = [row for row in rows.to_pylist() if row["cluster"] == -cluster]
        members = sorted(members, key=lambda row: (row["rank"], row["key"]))[:NUM_MEMBERS]
        names = column_of(run, last, [row["key"] for row in members], "id")
        yield {
            "cluster": str(-cluster),  # JavaScript has integers of 53 bits, keys have 63
            "size": size,
            "members": [
                {
                    "key": str(row["key"]),
                    "id": names.get(row["key"]),
                    "source": sources.get(split_key(row["key"])[0]) if row["key"] >= 0 else None,
                    "rank": row["rank"],
                    "kept": not is_dropped or (row["rank"] == 0 and not keeps_none),
                    "similarity": _similarity(row),
                }
                for row in members
            ],
            "text": _text(run, last, [row["key"] for row in members[:1]]),
        }


def _similarity(row: dict[str, Any]) -> float | None:
    value = row["similarity"]
    return None if row["rank"] == 0 or value is None or np.isnan(value) else float(value)


def _text(run: RunDirectory, phase: Phase, keys: list[int]) -> Excerpt | None:
    """Return the beginning of a text, with personal data masked."""
    texts = column_of(run, phase, keys, "text")
    if not texts:
        return None
    text = segments(next(iter(texts.values())), (), "")
    [safe] = [text] if run.plan.settings.ledger.keep_text else masked([text])
    return shortened(safe, TEXT_BYTES)
