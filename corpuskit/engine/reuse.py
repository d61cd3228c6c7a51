"""Units that need not run again: those of an earlier seal of the same phase, here or elsewhere.

A unit is the same as an earlier one if all that decides what it writes is the same: the chain
(stages, parameters, code, model files, libraries) and what it read. Then its parts get names of
this run, and nothing is computed. Which units are reused decides no output byte.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from corpuskit.errors import DataError
from corpuskit.formats.manifest import UNITS, Part, UnitTable
from corpuskit.storage import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corpuskit.formats.manifest import Seal
    from corpuskit.stage import Unit
    from corpuskit.storage import Store

CELLS_PER_UNIT = 1 << 16
"""What cannot be split before it is read becomes several cells: number = unit * this + i."""

REUSED_UNITS = "reused_units"
"""In the timing of manifests and seals: how many of their units an earlier run had computed."""


VOLUMES = ("text_bytes", "source_bytes")
"""What names of measured bytes of text begin with."""


@dataclasses.dataclass(frozen=True)
class UnitResult:
    """What came of a unit, now or in an earlier run; its parts have names of this run.

    Attributes:
        timing: of an earlier run, its share of what the phase took then.
    """

    parts: tuple[Part, ...]
    counters: Mapping[str, int]
    timing: Mapping[str, float]

    def volumes(self) -> dict[str, int]:
        """Return the bytes of text that stages saw."""
        return {k: int(v) for k, v in self.timing.items() if k.startswith(VOLUMES)}


@dataclasses.dataclass(frozen=True)
class EarlierUse:
    """What a phase took when it was last sealed.

    Attributes:
        read_bytes: of text; 0 where it reads keys.
        size_bytes, kept_bytes: of what it wrote, and of what is left of that.
    """

    cpu_seconds: float
    read_bytes: int
    size_bytes: int
    kept_bytes: int


class SealedUnits:
    """The units of one sealed phase.

    Args:
        store: the run directory of the seal.
        is_reading: the parts of a unit are those of its cells.
    """

    def __init__(self, store: Store, seal: Seal, *, is_reading: bool) -> None:
        self.store, self.seal = store, seal
        self._cells = CELLS_PER_UNIT if is_reading else 1

    @functools.cached_property
    def table(self) -> UnitTable | None:
        """The unit table; None if there is none, or none that can be read."""
        for part in self.seal.by_role(UNITS):
            [content] = self.store.read_each([part.path])
            try:
                return UnitTable.from_json(content or b"", self.store.where(part.path))
            except DataError:
                return None
        return None

    @functools.cached_property
    def _by_inputs(self) -> dict[tuple[str, str], int]:
        table = self.table
        if table is None:
            return {}
        keys = zip(table.sources, table.inputs, strict=True)
        return {key: row for row, key in enumerate(keys) if key[1]}

    @functools.cached_property
    def _by_number(self) -> dict[int, int]:
        table = self.table
        return {} if table is None else {number: i for i, number in enumerate(table.units)}

    def find(self, unit: Unit, inputs: str, chain: str, fingerprint: str) -> int | None:
        """Return the row of the table for the unit that did the same; None if there is none.

        Nor is there one where files of the phase were deleted when they had been read.
        """
        if self.seal.deleted or self.table is None:
            return None
        if self.seal.fingerprint == fingerprint:
            return self._by_number.get(unit.number)
        if not inputs or self.table.chains.get(unit.source) != chain:
            return None
        return self._by_inputs.get((unit.source, inputs))

    def take(self, row: int, unit: Unit, store: Store) -> UnitResult | None:
        """Give the parts of a unit names in a run directory; None if they are not whole.

        Args:
            row: of the table.
            unit: what the unit is called there.
        """
        assert self.table is not None, "it has this row"
        parts: list[Part] = []
        for part in self._parts(self.table.units[row]):
            number = unit.number * self._cells + part.unit % self._cells
            renamed = dataclasses.replace(part, unit=number, path=_renamed(part, number))
            if not self._adopt(part, renamed, store):
                return None
            parts.append(renamed)
        share = 1 / len(self.table.units)
        timing = {
            name: value * share
            for name, value in self.seal.timing.items()
            if name.startswith("cpu_seconds")
        }
        timing |= {**self.table.volumes[row], REUSED_UNITS: 1.0}
        return UnitResult(tuple(parts), self.table.counters[row], timing)

    def _parts(self, number: int) -> Iterator[Part]:
        low = number * self._cells
        for role in self.seal.parts.roles():
            if role.role != UNITS:
                yield from role.of_units(low, low + self._cells - 1)

    def _adopt(self, part: Part, renamed: Part, store: Store) -> bool:
        """Give a part its name in this run; return whether it is there."""
        if part.role.startswith("file:"):
            return True  # the copy is a part of its own, and sealing the phase writes the file
        if self.store.size(part.path) != part.size_bytes:
            return False
        if renamed.path == part.path and self.store.address == store.address:
            return True
        try:  # also where the name is taken: its writer may have died before it was durable
            store.adopt(self.store.at(part.path, digest=part.digest), renamed.path)
        except (DamagedError, FileNotFoundError):  # gone since, with a run that was made again
            return False
        return True


class EarlierUnits:
    """Looks for units of a phase in its earlier seals.

    Args:
        store: the run directory.
        fingerprint: of the phase now.
        sealed: earlier seals of the phase, the preferred one first.
    """

    def __init__(self, store: Store, fingerprint: str, sealed: Sequence[SealedUnits]) -> None:
        self._store, self._fingerprint, self._sealed = store, fingerprint, sealed

    def has(self, unit: Unit, inputs: str, chain: str) -> bool:
        """Return whether a unit was computed before, by what seals say."""
        return any(
            sealed.find(unit, inputs, chain, self._fingerprint) is not None
            for sealed in self._sealed
        )

    def is_edited(self, source: str, chain: str) -> bool:
        """Return whether all earlier units of a source differ in more than what they read."""
        tables = [sealed.table for sealed in self._sealed if sealed.table]
        chains = [table.chains[source] for table in tables if source in table.chains]
        return bool(chains) and chain not in chains

    def take(self, unit: Unit, inputs: str, chain: str) -> UnitResult | None:
        """Return a unit that was computed before, with its parts named for this run; else None."""
        for sealed in self._sealed:
            row = sealed.find(unit, inputs, chain, self._fingerprint)
            if row is not None and (reused := sealed.take(row, unit, self._store)):
                return reused
        return None


def unit_name(number: int) -> str:
    """Return a unit's number as in file names: slice, and cell within it."""
    return f"{number >> 16:06d}-{number & 0xFFFF:04d}"


def _renamed(part: Part, number: int) -> str:
    """Return what a part is called that belongs to a unit of another number."""
    folder, _, name = part.path.rpartition("/")
    before, after = f"part-{unit_name(part.unit)}-", f"part-{unit_name(number)}-"
    return f"{folder}/{name.replace(before, after, 1)}"
