"""Removals of near duplicates, proved again from the texts, in plain Python.

Shares no code with the stage: texts are read as it read them, their n-grams are sets of tuples.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.status import sealed
from corpuskit.formats.batch import numbers
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.archive import cluster_parts, documents_of, select
from corpuskit.inspect.samples import shingles
from corpuskit.stages._numbers import among
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal

ROWS = 4000  # removals whose texts, and those of their survivors, are in memory at a time

_COLUMNS = ["doc_key", "doc_id", "value", "lost", "survivor_id"]
_PAIRS = pa.schema([("key", pa.int64()), ("survivor", pa.int64())])


@dataclasses.dataclass
class Proof:
    """What the texts say about the removals of a stage.

    Attributes:
        proved: survivor, similarity and share lost are as the ledger has them, and as allowed.
        unread: the text of one of the two is not where the stage read it.
        older: the survivor is of an older run.
        problems: a line for each removal that is wrong.
    """

    stage: str
    removed: int = 0
    proved: int = 0
    unread: int = 0
    older: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def prove_removals(run: RunDirectory) -> list[Proof]:
    """Return a proof for each finished minhash_dedup whose similarities are known."""
    proofs = []
    for phase, seal in sealed(run):
        stage = None if phase.is_stream else run.plan.step(phase.labels[0]).stage
        if (
            isinstance(stage, MinhashDedup)
            and phase.pass_name == "apply"
            and stage.verify is not None
            and stage.keep != "none"
        ):
            proofs.append(_Prover(run, phase, seal, stage).prove())
    return proofs


class _Prover:
    """Proves the removals of one stage.

    Attributes:
        keys, survivors: of clustered documents, by key; gone: keys of what was dropped, ascending.
    """

    def __init__(self, run: RunDirectory, phase: Phase, seal: Seal, stage: MinhashDedup) -> None:
        self.run, self.phase, self.seal, self.stage = run, phase, seal, stage
        clusters = [
            read_shuffle(run.at(part)).select(_PAIRS.names)
            for part in cluster_parts(run, phase)
            if run.store.exists(part.path)
        ]
        pairs = pa.concat_tables([_PAIRS.empty_table(), *clusters]).sort_by("key")
        self.keys, self.survivors = (numbers(column) for column in pairs.columns)
        dropped = [numbers(rows.column("doc_key")) for rows in self._ledger()]
        self.gone = np.sort(np.concatenate([np.empty(0, np.int64), *dropped]))

    def prove(self) -> Proof:
        """Compare the texts of all removals."""
        proof = Proof(self.phase.labels[0], len(self.gone))
        for table in self._ledger():
            for start in range(0, table.num_rows, ROWS):
                self._prove_rows(table.slice(start, ROWS), proof)
        return proof

    def _ledger(self) -> Iterator[pa.Table]:
        drops = (pc.field("stage") == self.phase.labels[0]) & (pc.field("action") == "drop")
        for part in self.seal.by_role("ledger"):
            yield select(self.run.at(part), _COLUMNS, drops)

    def _prove_rows(self, rows: pa.Table, proof: Proof) -> None:
        keys = numbers(rows.column("doc_key"))
        in_cluster = np.flatnonzero(among(self.keys, keys))
        survivor_of = dict(
            zip(self.keys[in_cluster].tolist(), self.survivors[in_cluster].tolist(), strict=True)
        )
        keys_read = {*keys.tolist(), *(key for key in survivor_of.values() if key >= 0)}
        texts = {
            row["key"]: row
            for batch in documents_of(self.run, self.phase, keys_read, ["key", "id", "text"])
            for row in batch.to_pylist()
        }
        for row in rows.to_pylist():
            document, survivor = (
                texts.get(k) for k in (row["doc_key"], survivor_of.get(row["doc_key"]))
            )
            if survivor_of.get(row["doc_key"], 0) < 0:
                proof.older += 1
            elif document is None or survivor is None:
                proof.unread += 1
            elif why := self._wrong(row, document["text"], survivor):
                proof.problems.append(f"{row['doc_id']}, dropped for {row['survivor_id']}: {why}.")
            else:
                proof.proved += 1

    def _wrong(self, row: dict[str, Any], text: str, survivor: dict[str, Any]) -> str:
        """Return what is wrong with a removal, "" if nothing is."""
        words, kept_words = (shingles(t, self.stage) for t in (text, survivor["text"]))
        similarity = len(words & kept_words) / len(words | kept_words)
        share_lost = len(words - kept_words) / len(words)
        direct, (min_similarity, max_lost) = self.stage.is_direct(), self.stage.bounds_of_removal()
        problems = []
        if among(np.array([survivor["key"]]), self.gone)[0]:
            problems.append("that was dropped, too")
        if survivor["id"] != row["survivor_id"]:
            problems.append(f"the clusters name {survivor['id']}")
        if similarity != row["value"] or (direct and share_lost != row["lost"]):
            problems.append(
                f"similarity {similarity:.6g}, share lost {share_lost:.6g}, but the ledger says "
                f"similarity {row['value']}, share lost {row['lost']}"
            )
        if direct and similarity < min_similarity:
            problems.append(f"similarity {similarity:.6g} is below {min_similarity}")
        if direct and share_lost > max_lost:
            problems.append(f"share lost {share_lost:.6g} is above {max_lost}")
        return "; ".join(problems)
