"""The parts of a phase, held as columns.

A phase may have 100,000 tasks and several parts for each, and every worker that starts reads the
seals it works from. So the parts of a role are columns; a `Part` is made when it is asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from corpuskit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Part:
    """One published file.

    Attributes:
        unit: the cell or key range it belongs to; parts of a role are ordered by unit.
        role: what it is to its readers: `documents`, `ledger`, `measures:<label>`, `sidecar`,
            `run:<name>`, `tokens`...
        path: relative to the run directory.
        source: the source it came from, empty when it holds several.
        rows, size_bytes: of the file; text_bytes: of the text inside (documents only).
        first, last: smallest and largest key (documents, runs), or rows covered (tokens).
        digest: xxh3-128 of the file; footer: of its Parquet or Arrow footer alone, so that whoever
            reads a range need not read all.
    """

    unit: int
    role: str
    path: str
    source: str = ""
    rows: int = 0
    size_bytes: int = 0
    text_bytes: int = 0
    first: int = 0
    last: int = -1
    digest: str = ""
    footer: str = ""


_NUMBERS = ("unit", "rows", "size_bytes", "text_bytes", "first", "last")
_TEXTS = ("path", "source", "digest", "footer")
FIELDS = tuple(field.name for field in dataclasses.fields(Part))


class RoleParts(Sequence[Part]):
    """The parts of one role in unit order, held as columns; a Part is made when it is asked for.

    Args:
        numbers: integer column by name, units ascending.
        texts: text column by name, or the one value of all parts.
    """

    def __init__(
        self, role: str, numbers: Mapping[str, NDArray[Any]], texts: Mapping[str, list[str] | str]
    ) -> None:
        self.role, self._numbers, self._texts = role, numbers, texts

    def __len__(self) -> int:
        return len(self._numbers["unit"])

    @overload
    def __getitem__(self, place: int) -> Part: ...
    @overload
    def __getitem__(self, place: slice) -> RoleParts: ...
    def __getitem__(self, place: int | slice) -> Part | RoleParts:
        if isinstance(place, int):
            at = range(len(self))[place]  # raises IndexError as lists do
            return next(iter(self[at : at + 1]))
        numbers = {name: values[place] for name, values in self._numbers.items()}
        texts = {k: v if isinstance(v, str) else v[place] for k, v in self._texts.items()}
        return RoleParts(self.role, numbers, texts)

    def __iter__(self) -> Iterator[Part]:
        columns: dict[str, Iterable[Any]] = {"role": itertools.repeat(self.role)}
        columns |= {name: values.tolist() for name, values in self._numbers.items()}
        for name, values in self._texts.items():
            columns[name] = itertools.repeat(values) if isinstance(values, str) else values
        return map(Part, *(columns[name] for name in FIELDS))

    def column(self, name: str) -> NDArray[np.integer[Any]]:
        """Return a column of numbers (`rows`, `first`...)."""
        return self._numbers[name]

    def paths(self) -> list[str]:
        """Return the paths of all parts."""
        paths = self._texts["path"]
        return [paths] if isinstance(paths, str) else paths

    def within(self, low: int | None, high: int | None) -> list[Part]:
        """Return the parts whose `[first, last]` meets `[low, high)`."""
        chosen = np.ones(len(self), np.bool_)
        if high is not None:
            chosen &= self._numbers["first"] < high
        if low is not None:
            chosen &= self._numbers["last"] >= low
        return [self[place] for place in np.flatnonzero(chosen).tolist()]

    def of_unit(self, number: int) -> RoleParts:
        """Return the parts of one unit."""
        units = self._numbers["unit"]
        begin, end = np.searchsorted(units, number, "left"), np.searchsorted(units, number, "right")
        return self[int(begin) : int(end)]


class Parts(Collection[Part]):
    """All parts of a phase: role by role, each in unit order.

    Args:
        lines: JSON of the columns of each role, as `of` makes them.
        where: the file they come from, for messages.
    """

    def __init__(self, lines: Mapping[str, bytes], where: str = "seal") -> None:
        self._lines, self._where = dict(sorted(lines.items())), where
        self._parsed: dict[str, RoleParts] = {}
        self.digests = {role: digest_bytes(line) for role, line in self._lines.items()}
        """Hash of the line of each role; equal parts have equal lines."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Parts:
        """Return the parts in the order of seals, whatever order they come in."""
        by_role: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parts:
            by_role[part.role].append(part)
        return cls({role: _line(role, found) for role, found in by_role.items()})

    def __len__(self) -> int:
        return sum(len(self.role(role)) for role in self._lines)

    def __iter__(self) -> Iterator[Part]:
        return itertools.chain.from_iterable(map(self.role, self._lines))

    def __contains__(self, part: object) -> bool:
        return isinstance(part, Part) and part in self.role(part.role)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parts) and self.digests == other.digests

    def __hash__(self) -> int:
        return hash(tuple(self.digests.items()))

    def role(self, name: str) -> RoleParts:
        """Return the parts of a role; none when there is no such role.

        Raises:
            DataError: the line is not one that a seal may hold.
        """
        if name not in self._parsed:
            line = self._lines.get(name)
            self._parsed[name] = _NO_PARTS if line is None else _parse_role(name, line, self._where)
        return self._parsed[name]

    def roles(self) -> list[RoleParts]:
        """Return all roles."""
        return [self.role(name) for name in self._lines]

    def lines(self) -> list[bytes]:
        """Return the lines of all roles."""
        return list(self._lines.values())


def is_sound(part: Part) -> bool:
    """Return whether a part has fields of the right types; numbers fit 64 bits."""
    numbers = [getattr(part, name) for name in _NUMBERS]
    return (
        set(map(type, numbers)) == {int}
        and min(numbers) >= -(1 << 63)
        and max(numbers) < 1 << 64
        and all(type(getattr(part, name)) is str for name in ("role", *_TEXTS))
    )


def _line(role: str, parts: list[Part]) -> bytes:
    """Return the columns of a role as JSON; a column of equal values is that value."""
    parts.sort(key=attrgetter("unit", "path"))
    columns: dict[str, Any] = {"role": role}
    for name in (*_NUMBERS, *_TEXTS):
        values = list(map(attrgetter(name), parts))
        is_same = name != "path" and values.count(values[0]) == len(values)
        columns[name] = values[0] if is_same else values
    return dump(columns)


def _parse_role(role: str, line: bytes, where: str) -> RoleParts:
    try:
        found = json.loads(line)
        paths = found["path"]
        if found["role"] != role or not isinstance(paths, list):
            raise TypeError(f"no parts of the role {role!r}")
        numbers = {name: _numbers(found[name], len(paths)) for name in _NUMBERS}
        texts = {name: _texts(found[name], len(paths)) for name in _TEXTS}
        if np.any(numbers["unit"][1:] < numbers["unit"][:-1]):
            raise ValueError("units are out of order")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{where}: not a seal: {error!r}.") from None
    check_paths(paths, where)
    return RoleParts(role, numbers, texts)


def _numbers(values: Any, num: int) -> NDArray[Any]:
    """Return a column of integers; int64, or uint64 where hashes ask for it."""
    if set(map(type, values if isinstance(values, list) else [values])) != {int}:
        raise TypeError("a column of numbers holds something else")
    try:
        found = np.array(values, np.int64)
    except OverflowError:
        found = np.array(values, np.uint64)
    return np.broadcast_to(found, (num,)) if found.ndim == 0 else found.reshape(num)


def _texts(values: Any, num: int) -> list[str] | str:
    """Return a column of texts, or the one value of all."""
    if isinstance(values, str):
        return values
    if not isinstance(values, list) or len(values) != num or set(map(type, values)) != {str}:
        raise ValueError("a column of texts is none")
    return values


def check_paths(paths: Iterable[str], where: str) -> None:
    """Refuse paths that leave the run directory.

    Raises:
        DataError: one does.
    """
    for path in paths:
        leaves = path.startswith("/") or (".." in path and ".." in path.split("/"))
        if leaves or not path or "\0" in path:
            raise DataError(f"{where}: the path {path!r} leaves the run directory.")


def digest_bytes(content: bytes) -> str:
    """Return the blake2b-128 of a line or a file as hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def dump(value: dict[str, Any]) -> bytes:
    """Return canonical JSON: equal values have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


_NO_PARTS = RoleParts("", dict.fromkeys(_NUMBERS, np.zeros(0, np.int64)), dict.fromkeys(_TEXTS, ""))
