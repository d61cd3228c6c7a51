"""Reference runs: finished runs with whose documents new ones are compared; see `against`.

A run whose stage has `index: true` keeps the hashes and the ids of its documents. A later run reads
both by ranges, as it reads its own. Keys of reference runs are shifted below zero, in the order in
which the runs are named. So a key below zero is always that of a reference document, and whatever
prefers small keys prefers reference documents.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import UsageError
from corpuskit.formats.batch import MAX_ORDINAL, POSITION_BITS, numbers
from corpuskit.formats.manifest import OtherFormatError, RoleParts, Seal
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.stage import Unit
from corpuskit.storage import Store, open_store

IDS = pa.schema([("key", pa.int64()), ("id", pa.string())])

_PREFIX = "index:"  # of the counter that holds the parameters
_EMPTY = "index:empty"  # no counter has this name: it stands for an index of no documents


def index_counter(parameters: Mapping[str, Any]) -> str:
    """Return the counter that records in a seal with which parameters its hashes were made."""
    return _PREFIX + json.dumps(parameters, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The index of one reference run.

    Attributes:
        seal: of the phase that wrote hashes and ids.
        shift: added to the keys of the run, it makes them negative.
    """

    store: Store
    seal: Seal
    shift: int

    def parts(self, file: str) -> RoleParts:
        """Return the parts of a shuffle file."""
        return self.seal.by_role(f"run:{file}")

    def read(self, file: str, low: int, high: int, schema: pa.Schema) -> pa.Table:
        """Return the rows whose first column is in `[low, high)`; keys are not shifted."""
        # That run may have stored a `priority`, which `schema` leaves out.
        rows = [
            read_shuffle(self.store.at(part.path, footer=part.footer), low, high).select(
                schema.names
            )
            for part in self.parts(file).within(low, high)
        ]
        return pa.concat_tables([schema.empty_table(), *rows])


@dataclasses.dataclass(frozen=True)
class References:
    """All reference runs of a stage, in order."""

    indexes: tuple[Reference, ...]

    @classmethod
    def open(
        cls, runs: Sequence[str], stage: str, pass_name: str, parameters: Mapping[str, Any]
    ) -> References:
        """Open the indexes of finished runs.

        Args:
            runs: run directories.
            stage: name of the stage, and which of its passes wrote hashes.
            parameters: with which they must have been made.

        Raises:
            UsageError: there is none, or it was made with other parameters.
        """
        seals = [_read_seal(find_seal(run, stage, pass_name, parameters)) for run in runs]
        files = [1 + (_last_key(seal) >> POSITION_BITS) for seal in seals]
        if sum(files) > MAX_ORDINAL:
            raise UsageError(f"against: {sum(files):,} input files, {MAX_ORDINAL:,} are the most.")
        first_ordinals = itertools.accumulate(files, initial=-sum(files))
        return cls(
            tuple(
                Reference(open_store(run), seal, ordinal << POSITION_BITS)
                for run, seal, ordinal in zip(runs, seals, first_ordinals, strict=False)
            )
        )

    def check(self) -> None:
        """Check that all files exist.

        Raises:
            UsageError: one is missing.
        """
        for index in self.indexes:
            for path in (path for parts in index.seal.kept() for path in parts.paths()):
                if not index.store.exists(path):
                    raise UsageError(
                        f"against: {index.store.address}: {path} is gone: an index is part of "
                        "work/, which must stay. Run that run again."
                    )

    def rows(self, file: str) -> int:
        """Return how many rows a shuffle file has in all indexes."""
        return sum(int(index.parts(file).column("rows").sum()) for index in self.indexes)

    def matching(
        self, file: str, low: int, high: int, schema: pa.Schema, rows: pa.Table
    ) -> pa.Table:
        """Return those rows of a range of hashes whose `hash` also occurs in `rows`.

        Args:
            schema: has the columns `hash` and `key`; keys are shifted.
        """
        hashes = np.unique(numbers(rows.column("hash")))
        tables = [_shifted(index.read(file, low, high, schema), index) for index in self.indexes]
        references = pa.concat_tables([schema.empty_table(), *tables])
        return references.filter(pa.array(np.isin(numbers(references.column("hash")), hashes)))

    def ids(self, low: int, high: int) -> pa.Table:
        """Return the ids of a range of shifted keys, ascending."""
        tables = [
            _shifted(index.read("ids", low - index.shift, high - index.shift, IDS), index)
            for index in self.indexes
        ]
        return pa.concat_tables([IDS.empty_table(), *tables])

    def units(self, first: int) -> list[Unit]:
        """Return a unit for each part of ids, numbered from `first` on."""
        ranges = [
            (part.first + index.shift, part.last + index.shift + 1, part.rows)
            for index in self.indexes
            for part in index.parts("ids")
        ]
        return [Unit(first + i, "", low, high, rows) for i, (low, high, rows) in enumerate(ranges)]


def find_seal(run: str, stage: str, pass_name: str, parameters: Mapping[str, Any]) -> Path:
    """Return the seal of the phase that made a run's hashes with these parameters.

    A run may have several stages of a kind: `exact_dedup`, `exact_dedup_2`. The content of the
    seal identifies an index.

    Raises:
        UsageError: there is none, or more than one.
    """
    if "://" in run:
        raise UsageError(f"against: {run}: runs in object storage cannot be compared with yet.")
    advice = f"Name the directory of a finished run whose {stage} has index: true"
    folders = sorted(Path(run).glob(f"manifests/{stage}*.{pass_name}"))
    pattern = re.compile(re.escape(stage) + r"(_\d+)?")
    paths = [
        folder / "seal.json"
        for folder in folders
        if pattern.fullmatch(folder.name.removesuffix(f".{pass_name}"))
        and (folder / "seal.json").exists()
        and (folder.parent / f"{folder.name.removesuffix(pass_name)}apply" / "seal.json").exists()
    ]
    if not paths:
        raise UsageError(f"against: {run}: no finished {stage}. {advice}.")
    counter = index_counter(parameters)
    identities = {path: _identity(_read_seal(path)) for path in paths}
    matching = [path for path in paths if identities[path] in (counter, _EMPTY)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"against: {run}: {len(matching)} stages have such an index. "
            "Set index: true in one of them only."
        )
    identity = next((name for name in identities.values() if name), None)
    if identity is None:
        raise UsageError(f"against: {run}: its {stage} kept no index. {advice}.")
    stored = json.loads(identity.removeprefix(_PREFIX))
    differing = {name: value for name, value in stored.items() if parameters.get(name) != value}
    raise UsageError(
        f"against: {run}: its index was made with other parameters: {differing}. "
        "Set the same here, or index that run again."
    )


def _read_seal(path: Path) -> Seal:
    try:
        return Seal.from_json(path.read_bytes(), str(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"against: {path}: {reason}.") from None
    except OtherFormatError as error:
        raise UsageError(f"against: {error}") from None


def _identity(seal: Seal) -> str:
    """Return the counter that names the parameters; _EMPTY for a run without documents."""
    if not any(parts.role.startswith("run:") for parts in seal.parts.roles()):
        return _EMPTY
    return next((name for name in seal.counters if name.startswith(_PREFIX)), "")


def is_reference(unit: Unit) -> bool:
    """Return whether a unit is a range of documents of reference runs, not a cell."""
    return unit.part is None and unit.high <= 0  # keys of reference runs are negative


def _last_key(seal: Seal) -> int:
    return max((part.last for part in seal.by_role("run:ids")), default=-1)


def _shifted(rows: pa.Table, index: Reference) -> pa.Table:
    keys = numbers(rows.column("key")) + np.int64(index.shift)
    return rows.set_column(rows.schema.get_field_index("key"), "key", pa.array(keys))
