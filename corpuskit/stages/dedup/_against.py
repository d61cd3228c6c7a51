"""Hashes that finished runs left, for new documents to be compared with; see `against`.

A run whose stage has `index: true` keeps, beside the hashes of its documents, their ids. A later
run reads both by ranges, as it reads its own. Its documents come first: keys of an older run are
moved below zero, in the order in which the runs are named, so that whatever prefers small keys
prefers older documents, and every key below zero is theirs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from corpuskit.batch import MAX_ORDINAL, POSITION_BITS, numbers
from corpuskit.errors import UsageError
from corpuskit.exchange import read_run
from corpuskit.manifest import OtherFormatError, Seal
from corpuskit.stage import Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from corpuskit.manifest import RoleParts

IDS = pa.schema([("key", pa.int64()), ("id", pa.string())])

_MARK = "index:"


def index_counter(parameters: Mapping[str, Any]) -> str:
    """Return the counter by which a seal says with which parameters its hashes were made."""
    return _MARK + json.dumps(parameters, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Index:
    """What one run left.

    Attributes:
        seal: of the phase that wrote hashes and ids.
        shift: what is added to keys.
    """

    folder: Path
    seal: Seal
    shift: int

    def parts(self, run: str) -> RoleParts:
        """Return the parts of a run of exchange."""
        return self.seal.by_role(f"run:{run}")

    def read(self, run: str, low: int, high: int, schema: pa.Schema) -> pa.Table:
        """Return rows by range of the first column, with its own keys."""
        paths = [self.folder / part.path for part in self.parts(run).within(low, high)]
        rows = [read_run(path, low, high).select(schema.names) for path in paths]
        return pa.concat_tables([schema.empty_table(), *rows])


@dataclasses.dataclass(frozen=True)
class Against:
    """All older runs that a stage compares with, in order."""

    indexes: tuple[Index, ...]

    @classmethod
    def open(cls, runs: Sequence[str], phase: str, parameters: Mapping[str, Any]) -> Against:
        """Open the indexes of finished runs.

        Args:
            runs: run directories.
            phase: which of their phases wrote hashes.
            parameters: with which they must have been made.

        Raises:
            UsageError: there is none, or it was made with other parameters.
        """
        seals = [_read_seal(run, phase, parameters) for run in runs]
        files = [1 + (_last_key(seal) >> POSITION_BITS) for seal in seals]
        if sum(files) > MAX_ORDINAL:
            raise UsageError(f"against: {sum(files):,} input files, {MAX_ORDINAL:,} are the most.")
        before = itertools.accumulate(files, initial=-sum(files))
        return cls(
            tuple(
                Index(Path(run), seal, ordinal << POSITION_BITS)
                for run, seal, ordinal in zip(runs, seals, before, strict=False)
            )
        )

    def hashes(self, run: str, low: int, high: int, schema: pa.Schema) -> pa.Table:
        """Return the rows of a range of hashes, run after run; `schema` has a column `key`."""
        return pa.concat_tables(
            [schema.empty_table()]
            + [_moved(one.read(run, low, high, schema), one.shift) for one in self.indexes]
        )

    def ids(self, low: int, high: int) -> pa.Table:
        """Return the ids of a range of (moved) keys, ascending."""
        return pa.concat_tables(
            [IDS.empty_table()]
            + [
                _moved(one.read("ids", low - one.shift, high - one.shift, IDS), one.shift)
                for one in self.indexes
            ]
        )

    def units(self, first: int) -> list[Unit]:
        """Return a unit for each part of ids, numbered from `first` on."""
        found = [
            (part.first + one.shift, part.last + one.shift + 1, part.rows)
            for one in self.indexes
            for part in one.parts("ids")
        ]
        return [Unit(first + i, "", low, high, rows) for i, (low, high, rows) in enumerate(found)]


def seal_path(run: str, phase: str) -> Path:
    """Return the file by whose content an index is told from another."""
    return Path(run) / "manifests" / phase / "seal.json"


def _read_seal(run: str, phase: str, parameters: Mapping[str, Any]) -> Seal:
    path = seal_path(run, phase)
    advice = f"Name the directory of a finished run whose {phase.partition('.')[0]} has index: true"
    try:
        seal = Seal.from_json(path.read_bytes(), str(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"against: {run}: no index: {path}: {reason}. {advice}.") from None
    except OtherFormatError as error:
        raise UsageError(f"against: {error}") from None
    made = next((name for name in seal.counters if name.startswith(_MARK)), None)
    if made is None:
        raise UsageError(f"against: {run}: its {phase} kept no index. {advice}.")
    if made != index_counter(parameters):
        theirs = json.loads(made.removeprefix(_MARK))
        other = {k: v for k, v in theirs.items() if parameters.get(k) != v}
        raise UsageError(
            f"against: {run}: its index was made with other parameters: {other}. "
            "Set the same here, or index that run again."
        )
    return seal


def _last_key(seal: Seal) -> int:
    return max((part.last for part in seal.by_role("run:ids")), default=-1)


def _moved(rows: pa.Table, shift: int) -> pa.Table:
    """Return rows with the keys of an older run moved."""
    place = rows.schema.get_field_index("key")
    keys = numbers(rows.column("key")) + np.int64(shift)
    return rows.set_column(place, "key", pa.array(keys))
