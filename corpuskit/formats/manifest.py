"""What a task wrote (manifest) and what a phase wrote (seal, unit table).

A manifest's atomic appearance is the completion of its task; a seal's is the completion of its
phase. Readers trust these, never a folder listing. Deterministic facts (parts, counters) make the
content hash; measured ones (`timing`) are kept beside it.

A phase may have 100,000 tasks and several parts for each, and every worker that starts reads the
seals it works from. So the parts of a role are held as columns; a `Part` is made when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from corpuskit.errors import DataError
from corpuskit.storage import digest_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


DIGEST = "digest"


def dump_checked(fields: dict[str, Any]) -> bytes:
    """Return canonical JSON of `fields` and of their blake2b-128, under the key `digest`."""
    return dump({**fields, DIGEST: digest_bytes(dump(fields))})


def load_checked(content: bytes, where: str) -> dict[str, Any]:
    """Return the fields that `dump_checked` wrote, without the digest.

    Args:
        where: the file, for messages.

    Raises:
        DataError: it is not a JSON object, or not what was written.
    """
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be read: {error}.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{where}: cannot be read: it holds no JSON object.")
    if fields.pop(DIGEST, None) != digest_bytes(dump(fields)):
        raise DataError(f"{where}: is damaged: its content and its digest differ.")
    return fields


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
    """The parts of one role in unit order, held as columns; a Part is made on access.

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
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> RoleParts: ...
    def __getitem__(self, index: int | slice) -> Part | RoleParts:
        if isinstance(index, int):
            index = range(len(self))[index]  # raises IndexError as lists do
            return next(iter(self[index : index + 1]))
        numbers = {name: values[index] for name, values in self._numbers.items()}
        texts = {k: v if isinstance(v, str) else v[index] for k, v in self._texts.items()}
        return RoleParts(self.role, numbers, texts)

    def __iter__(self) -> Iterator[Part]:
        columns: dict[str, Iterable[Any]] = {"role": itertools.repeat(self.role)}
        columns |= {name: values.tolist() for name, values in self._numbers.items()}
        for name, values in self._texts.items():
            columns[name] = itertools.repeat(values) if isinstance(values, str) else values
        return map(Part, *(columns[name] for name in FIELDS))

    def column(self, name: str) -> NDArray[np.integer[Any]]:
        return self._numbers[name]

    def paths(self) -> list[str]:
        return self.texts("path")

    def texts(self, name: str) -> list[str]:
        values = self._texts[name]
        return [values] * len(self) if isinstance(values, str) else values

    def within(self, low: int | None, high: int | None) -> list[Part]:
        """Return the parts whose `[first, last]` meets `[low, high)`."""
        is_within = np.ones(len(self), np.bool_)
        if high is not None:
            is_within &= self._numbers["first"] < high
        if low is not None:
            is_within &= self._numbers["last"] >= low
        return [self[index] for index in np.flatnonzero(is_within).tolist()]

    def of_unit(self, number: int) -> RoleParts:
        return self.of_units(number, number)

    def of_units(self, first: int, last: int) -> RoleParts:
        """Return the parts of the units from `first` to `last`."""
        units = self._numbers["unit"]
        begin, end = np.searchsorted(units, first, "left"), np.searchsorted(units, last, "right")
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
        return cls({role: _role_json(role, role_parts) for role, role_parts in by_role.items()})

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
        return [self.role(name) for name in self._lines]

    def lines(self) -> list[bytes]:
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


def _role_json(role: str, parts: list[Part]) -> bytes:
    """Return the columns of a role as JSON; a column of equal values is that value."""
    parts.sort(key=attrgetter("unit", "path"))
    columns: dict[str, Any] = {"role": role}
    for name in (*_NUMBERS, *_TEXTS):
        values = list(map(attrgetter(name), parts))
        is_constant = name != "path" and values.count(values[0]) == len(values)
        columns[name] = values[0] if is_constant else values
    return dump(columns)


def _parse_role(role: str, line: bytes, where: str) -> RoleParts:
    try:
        columns = json.loads(line)
        paths = columns["path"]
        if columns["role"] != role or not isinstance(paths, list):
            raise TypeError(f"no parts of the role {role!r}")
        numbers = {name: _numbers(columns[name], len(paths)) for name in _NUMBERS}
        texts = {name: _texts(columns[name], len(paths)) for name in _TEXTS}
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
        array = np.array(values, np.int64)
    except OverflowError:
        array = np.array(values, np.uint64)
    return np.broadcast_to(array, (num,)) if array.ndim == 0 else array.reshape(num)


def _texts(values: Any, num: int) -> list[str] | str:
    """Return a column of texts, or the one value of all."""
    if isinstance(values, str):
        return values
    if not isinstance(values, list) or len(values) != num or set(map(type, values)) != {str}:
        raise ValueError("a column of texts holds something else")
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


Record = TypeVar("Record")

FORMAT = 3
SEAL_FORMAT = 3

NOT_APPLIED = "not_applied/"
"""Counters of documents that a condition (`where`) keeps from a stage: `<stage>/<source>`."""

NO_VALUE = "no_value/"
"""Counters of documents that lack what their source should read for them: `<column>/<source>`, of
`origin.url` and `origin.date` as of declared columns."""

COUNTED = "counted_units"
"""Counter of units; a seal without it is of a version that did not count what `expect` needs."""

FUNNEL = (
    "read/", "read_bytes/", "kept/", "kept_bytes/", "dropped/", "cut/", "replace/",
    "seen_bytes/", "shortened/", "cut_bytes/", "labels/", NOT_APPLIED, NO_VALUE,
    COUNTED,
)  # fmt: skip
"""Counters that only people read."""

UNITS = "units"
"""Role of the unit table of a phase."""

_UNREAD = ("ledger", "profile", "ids", UNITS)
"""Roles of parts that no later phase reads."""


def total(counters: Mapping[str, int], prefix: str) -> int:
    """Return the sum of the counters whose names begin with `prefix`."""
    return sum(count for name, count in counters.items() if name.startswith(prefix))


_OPENING = b',"parts":['
_ENDING = [b"]}", b""]


class OtherFormatError(DataError):
    """A seal that another version of corpuskit wrote: whole, but to be made again."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What one task wrote.

    Attributes:
        units: the units this task finished, whether or not they wrote parts.
        inputs: hash of what each unit read; empty where a unit depends on more than that.
        counters: deterministic counts of each unit; nested names are joined by "/" (`kept/web`).
        volumes: bytes of text that stages saw in each unit; they are in `timing`, too.
        timing: measured figures by name, summed over units (`cpu_seconds/language`).
    """

    phase: str
    fingerprint: str
    units: tuple[int, ...]
    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    counters: tuple[dict[str, int], ...]
    timing: dict[str, float]
    volumes: tuple[dict[str, int], ...]

    def counted(self) -> Counter[str]:
        """Return the counters of all units together."""
        merged: Counter[str] = Counter()
        for counters in self.counters:
            merged.update(counters)
        return merged

    def to_json(self) -> bytes:
        parts = [{name: getattr(part, name) for name in FIELDS} for part in self.parts]
        fields = {**self.__dict__, "parts": parts}
        return dump_checked({"format": FORMAT, "kind": "manifest", **fields})

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Parse a manifest file.

        Raises:
            DataError: it is not a manifest of a format this version reads, or it is damaged.
        """
        try:
            fields = load_checked(content, where)
            if fields.pop("format") != FORMAT or fields.pop("kind") != "manifest":
                raise DataError(f"{where}: not a manifest of format {FORMAT}.")
            fields["parts"] = tuple(Part(**part) for part in fields["parts"])
            fields["inputs"] = tuple(fields["inputs"])
            fields["counters"] = tuple(fields["counters"])
            fields["volumes"] = tuple(fields["volumes"])
            lengths = {len(fields[name]) for name in ("units", "inputs", "counters", "volumes")}
            if len(lengths) > 1 or not set(map(type, fields["inputs"])) <= {str}:
                raise TypeError("lists about its units differ in length")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{where}: not a manifest: {error!r}.") from None
        for part in fields["parts"]:
            if not is_sound(part):
                raise DataError(f"{where}: not a manifest: {part} has a field of a wrong type.")
        check_paths([part.path for part in fields["parts"]], where)
        return _build(cls, fields, where, *fields["counters"], *fields["volumes"])


@dataclasses.dataclass(frozen=True)
class Seal:
    """What a phase wrote: all its manifests merged, in unit order.

    Attributes:
        inputs: content hashes of the seals it was made from; tells which seals belong together.
        deleted: roles whose files were deleted when no later phase needed them.
    """

    phase: str
    fingerprint: str
    units: tuple[int, ...]
    parts: Parts
    counters: dict[str, int]
    timing: dict[str, float]
    accepted_code_change: bool = False
    inputs: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @classmethod
    def merge(
        cls, phase: str, fingerprint: str, manifests: Iterable[Manifest], extra: Iterable[Part] = ()
    ) -> Seal:
        """Merge the manifests of a phase; a unit that two manifests name counts once.

        Args:
            extra: parts that no task wrote.
        """
        units: set[int] = set()
        parts: list[Part] = []
        counters: Counter[str] = Counter()
        timing: defaultdict[str, float] = defaultdict(float)
        for manifest in sorted(manifests, key=lambda manifest: manifest.units):
            if not units.isdisjoint(manifest.units):
                if units.issuperset(manifest.units):
                    continue
                raise DataError(f"phase {phase}: two manifests share some of their units.")
            units.update(manifest.units)
            parts += manifest.parts
            counters.update(manifest.counted())
            for name, value in manifest.timing.items():
                is_peak = name == "peak_rss_bytes"
                timing[name] = max(timing[name], value) if is_peak else timing[name] + value
        return cls(
            phase,
            fingerprint,
            tuple(sorted(units)),
            Parts.of([*parts, *extra]),
            dict(sorted(counters.items())),
            {name: round(value, 6) for name, value in sorted(timing.items())},
        )

    @property
    def is_counted(self) -> bool:
        """Whether all units counted what `expect` may ask for."""
        return self.counters.get(COUNTED, 0) >= len(self.units)

    @functools.cached_property
    def content(self) -> str:
        """The hash of what later phases may read, free of timing and of tasks.

        The ledger, measures, profiles and the counts of the funnel are left out: no later phase
        reads them, so a phase that drops the same documents for another reason makes no later
        phase run again.
        """
        parts = {
            role: digest
            for role, digest in self.parts.digests.items()
            if role not in _UNREAD and not role.startswith("measures:")
        }
        counters = {k: v for k, v in self.counters.items() if not k.startswith(FUNNEL)}
        return digest_bytes(dump({"phase": self.phase, "parts": parts, "counters": counters}))

    def content_of(self, sources: Collection[str]) -> str:
        """Return the hash of what later phases may read of the documents of some sources."""
        parts = [
            [parts.role, unit, digest]
            for parts in map(self.by_role, ("documents", "sidecar"))
            for unit, source, digest in zip(
                parts.column("unit").tolist(), parts.texts("source"), parts.texts("digest"),
                strict=True,
            )
            if source in sources
        ]  # fmt: skip
        return digest_bytes(dump({"phase": self.phase, "sources": parts}))

    def by_role(self, role: str) -> RoleParts:
        return self.parts.role(role)

    def kept(self) -> list[RoleParts]:
        """Return all roles but those whose files were deleted."""
        return [role for role in self.parts.roles() if role.role not in self.deleted]

    def to_json(self) -> bytes:
        """Return the file content: a JSON object whose first line has all but the parts."""
        left_out = ("parts",) if self.deleted else ("parts", "deleted")
        names = [f.name for f in dataclasses.fields(self) if f.name not in left_out]
        head = dump_checked(
            {
                "format": SEAL_FORMAT,
                "kind": "seal",
                "content": self.content,
                "roles": self.parts.digests,
                **{name: getattr(self, name) for name in names},
            }
        )
        body = b",\n".join(self.parts.lines())
        return head[:-1] + _OPENING + b"\n" + body + (b"\n" if body else b"") + b"]}\n"

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Seal:
        """Parse a seal file; the parts of a role are parsed on access.

        Raises:
            OtherFormatError: a seal that another version wrote.
            DataError: not a seal, or a hash in it is wrong.
        """
        lines = content.split(b"\n")
        try:
            if lines[-2:] != _ENDING or not lines[0].endswith(_OPENING):
                raise _not_a_seal(json.loads(content), where)
            head = json.loads(lines[0] + b"]}")
            if head.get("format") != SEAL_FORMAT:
                raise _not_a_seal(head, where)
            fields = load_checked(lines[0].removesuffix(_OPENING) + b"}", where)
            if fields.pop("format") != SEAL_FORMAT or fields.pop("kind") != "seal":
                raise _not_a_seal(json.loads(content), where)
            bodies = [line.removesuffix(b",") for line in lines[1:-2]]
            digests, claimed = fields.pop("roles"), fields.pop("content")
            fields["parts"] = Parts(dict(zip(digests, bodies, strict=True)), where)
            fields["inputs"] = tuple(fields["inputs"])
            fields["deleted"] = tuple(fields.get("deleted", ()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{where}: not a seal: {error!r}.") from None
        seal = _build(cls, fields, where, fields["counters"])
        if seal.parts.digests != digests or seal.content != claimed:
            raise DataError(
                f"{where}: the content hash of the seal is wrong. Run again to rebuild."
            )
        return seal


def _not_a_seal(content: Any, where: str) -> DataError:
    """Return the error for JSON that is not a seal of this format."""
    if isinstance(content, dict) and content.get("kind") == "seal":
        number = content.get("format")
        return OtherFormatError(
            f"{where}: not a seal of format {SEAL_FORMAT}, but {number!r}. Run again to rebuild."
        )
    return DataError(f"{where}: not a seal of format {SEAL_FORMAT}.")


def _build(
    kind: type[Record], fields: dict[str, Any], where: str, *counters: dict[str, int]
) -> Record:
    """Make a manifest or a seal of the content of JSON."""
    name = kind.__name__.lower()
    try:
        fields["units"] = tuple(fields["units"])
        is_sound = (
            set(map(type, fields["units"])) <= {int}
            and all(set(map(type, counts.values())) <= {int} for counts in counters)
            and set(map(type, fields["timing"].values())) <= {int, float}
        )
        record = kind(**fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: not a {name}: {error!r}.") from None
    if not is_sound:
        raise DataError(f"{where}: not a {name}: units, counters or timing are no numbers.")
    return record


# ---------------------------------------------------------------- the unit table

TABLE_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class UnitTable:
    """What is known of the units of a phase, in unit order; columns are equally long.

    It is stored beside the seal, which names it as a part of the role `units`. Only the next run of
    the phase reads it, to find the units that need not be computed again.

    Attributes:
        chains: source -> fingerprint of all that decides but the inputs.
        units: their numbers.
        sources: of each; empty for ranges.
        inputs: hash of what each read; empty where a unit depends on more than that.
        counters: what each counted.
        volumes: bytes of text that stages saw in each.
    """

    chains: Mapping[str, str]
    units: Sequence[int]
    sources: Sequence[str]
    inputs: Sequence[str]
    counters: Sequence[Mapping[str, int]]
    volumes: Sequence[Mapping[str, int]]

    def to_json(self) -> bytes:
        """Return the file content; equal tables have equal bytes."""
        return dump_checked(
            {
                **vars(self),
                "format": TABLE_FORMAT,
                "counters": _columns(self.counters),
                "volumes": _columns(self.volumes),
            }
        )

    @classmethod
    def from_json(cls, content: bytes, where: str) -> UnitTable:
        """Parse the file.

        Raises:
            DataError: it is damaged, or of another version.
        """
        fields = load_checked(content, where)
        try:
            if fields["format"] != TABLE_FORMAT:
                raise DataError(f"{where}: not a unit table of format {TABLE_FORMAT}.")
            num = len(fields["units"])
            counters, volumes = (_rows(fields[name], num) for name in ("counters", "volumes"))
            units = [int(number) for number in fields["units"]]
            sources, inputs = ([str(v) for v in fields[name]] for name in ("sources", "inputs"))
            if {len(sources), len(inputs)} != {num}:
                raise ValueError("its columns differ in length")
            return cls(dict(fields["chains"]), units, sources, inputs, counters, volumes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: not a unit table: {error!r}.") from None

    def part(self, phase: str) -> tuple[Part, bytes]:
        """Return the table as a part of a phase, and the content of its file."""
        content = self.to_json()
        digest = digest_content(content)
        name = f"manifests/{phase}/units-{digest[:12]}.json"
        size = len(content)
        part = Part(0, UNITS, name, rows=len(self.units), size_bytes=size, digest=digest)
        return part, content


def _columns(rows: Sequence[Mapping[str, int]]) -> dict[str, list[int | None]]:
    names = sorted({name for row in rows for name in row})
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[int | None]], num: int) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = [{} for _ in range(num)]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[str(name)] = int(value)
    return rows
