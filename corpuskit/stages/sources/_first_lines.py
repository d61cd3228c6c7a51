"""Looks at the first lines of JSON lines, so that a wrong name is found before anything runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.stages.sources._stream import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAD_BYTES = 1 << 18
"""Looked at of a file: 60 web documents; 2 CPU milliseconds."""

MAX_FILES = 8
"""Files that are looked at, if the first ones lack something."""


class Wanted(NamedTuple):
    """A member that lines should have: the parameter that names it, and the JSON types it may have.

    Attributes:
        type_name: of the types, for messages.
    """

    parameter: str
    types: tuple[type, ...]
    type_name: str


TEXT = ((str,), "string")
LABEL = ((str, int, float), "string or number")
TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": TEXT,
    "int64": ((int,), "integer"),
    "float64": ((int, float), "number"),
    "bool": ((bool,), "true or false"),
}
"""Declared type -> types of JSON."""


def check_members(paths: Sequence[str], wanted: Mapping[str, Wanted]) -> None:
    """Check that some of the first lines have the members that parameters name.

    Lines that lack one, or hold another type, are data and no error. But where no line of any file
    looked at serves, every document would go to the ledger, or lack its value.

    Raises:
        UsageError: a member is in none of them, or always of another type; or no line is an object.
    """
    seen = _Seen(wanted)
    step = max(len(paths) // MAX_FILES, 1)
    for path in paths[::step][:MAX_FILES]:
        for line in _first_lines(path):
            seen.add(line)
        if seen.objects and not seen.missing:
            return
    if seen.lines and not seen.objects:
        raise UsageError(
            f"{paths[0]}: none of the first {seen.lines} lines is a JSON object. Write one object "
            "a line, or name another format."
        )
    for name in seen.missing if seen.objects else ():
        if problem := seen.problem(name):
            raise UsageError(f"{wanted[name].parameter}: {paths[0]}: in its first lines {problem}")


class _Seen:
    """What the first lines of some files hold of the members that are wanted."""

    def __init__(self, wanted: Mapping[str, Wanted]) -> None:
        self.wanted, self.missing = wanted, dict.fromkeys(wanted)
        self.lines = self.objects = 0
        self._names: set[str] = set()
        self._types: dict[str, set[str]] = {name: set() for name in wanted}

    def add(self, line: bytes) -> None:
        self.lines += 1
        row = _object(line)
        if row is None:
            return
        self.objects += 1
        self._names.update(row)
        for name in list(self.missing):
            value = row.get(name)
            if _fits(value, self.wanted[name].types):
                del self.missing[name]
            elif value is not None:
                self._types[name].add(_type_name(value))

    def problem(self, name: str) -> str:
        """Return what is wrong with a member that no line has as it should be."""
        if types := self._types[name]:
            kinds, needed = " or ".join(sorted(types)), self.wanted[name].type_name
            return f"{name!r} is always {kinds}, not {needed}. Name another member."
        if name not in self._names:
            return f"no object has {name!r}. {suggest(name, self._names)}"
        return ""  # it is null in all of them


def _first_lines(path: str) -> list[bytes]:
    """Return the first lines that are not blank; none if the file cannot be read."""
    try:
        with Stream(path) as stream:
            head = stream.read(HEAD_BYTES)
    except (DataError, OSError):  # whoever reads the file says more
        return []
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(head) == HEAD_BYTES:
        lines.pop()
    return [line for line in lines if line.strip()]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _type_name(value: Any) -> str:
    names = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "an array")
