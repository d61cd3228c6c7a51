"""The duplicates of a document: its cluster, as the stage that found it has written it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.why.keyed import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, RoleParts
    from corpuskit.inspect.why.lookup import Documents

MEMBERS = 10
"""So many other documents of a cluster are named; the rest are counted."""

_RUNS = 64
"""So many files with clusters are looked into; with more of them, members are not told."""


def cluster_facts(
    documents: Documents,
    finished: Sealed,
    phase: Phase,
    key: int,
    decided: Mapping[str, Any],
    survivor_id: str | None,
) -> dict[str, Any] | None:
    """Return the cluster of a document as JSON values, None if it has no duplicate.

    Args:
        phase: the last pass of the stage that found it.
        decided: what the stage says of the document: `cluster_id`, `cluster_size`, `cluster_rank`.
        survivor_id: id of the document that was kept instead; None if this is it.

    Returns:
        `id`, `size`, `rank`, `survivor` (its key, None if it is not of this run), `members` (key,
        id, rank, similarity to the survivor; at most MEMBERS others), or `unknown`: why there are
        none.
    """
    size = decided.get("cluster_size")
    if not size or size < 2:
        return None
    facts: dict[str, Any] = {
        "id": decided["cluster_id"], "size": size, "rank": decided["cluster_rank"], "members": [],
    }  # fmt: skip
    runs = _runs(documents, finished, phase)
    if len(runs) > _RUNS:
        return {**facts, "unknown": f"clusters are in {len(runs):,} files"}
    try:
        # Without a survivor this is it; or all went (`keep: none`), and the first names them.
        survivors = (
            [key, decided["cluster_id"]]
            if survivor_id is None
            else keys_named(documents, survivor_id)
        )
        rows = _cluster_of(documents, runs, key, survivors)
        if not rows:
            return {**facts, "unknown": "the document kept instead is not one of this run"}
        ledger = next(seal.by_role("ledger") for one, seal in finished if one.index == phase.index)
        others = [row for row in rows if row["key"] != key][:MEMBERS]
        facts["survivor"] = rows[0]["survivor"]
        facts["members"] = [_member(documents, ledger, row, survivor_id) for row in others]
    except CorpuskitError as error:
        return {**facts, "unknown": str(error)}
    except OSError:
        return {**facts, "unknown": f"the files of {phase.labels[0]} in work/ are gone"}
    return facts


def _runs(documents: Documents, finished: Sealed, phase: Phase) -> list[Part]:
    """Return the runs of clusters that a stage has written."""
    stage = documents.run.plan.step(phase.labels[0]).stage
    named = stage.clustering() if hasattr(stage, "clustering") else ""
    return [
        part
        for one, seal in finished
        if one.index in phase.earlier and one.pass_name == named
        for part in seal.by_role("run:clusters")
    ]


def _cluster_of(
    documents: Documents, runs: Sequence[Part], key: int, survivors: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows of the cluster that has a document, by its survivor; none if it is another's.

    Args:
        survivors: keys that may be that of the survivor: ids can repeat.
    """
    for survivor in survivors:
        rows = [
            row
            for part in runs
            if part.first <= survivor <= part.last
            for row in read_shuffle(documents.run.at(part), survivor, survivor + 1).to_pylist()
        ]
        if any(row["key"] == key for row in rows):
            return rows
    return []


def keys_named(documents: Documents, name: str) -> list[int]:
    """Return the keys of documents that can have this id; nothing is scanned."""
    from corpuskit.engine.records import ID

    derived = documents.derived_key(name)
    found = documents.keys_of_hash(name, ID)
    return found if derived is None else [derived, *found]


def _member(
    documents: Documents, ledger: RoleParts, row: Mapping[str, Any], survivor_id: str | None
) -> dict[str, Any]:
    key, name = row["key"], survivor_id if row["rank"] == 0 else None
    if name is None:
        for part in ledger.within(key, key + 1):
            path = documents.run.at(part)
            for found in rows_of(path, key, "doc_key", only={"doc_id"}):
                name = found["doc_id"]
    similarity = row["similarity"]
    return {
        "key": key,
        "id": documents.identify(key).id if name is None else name,
        "rank": row["rank"],
        "similarity": similarity if similarity == similarity else None,
    }
