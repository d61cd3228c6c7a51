"""What a task wrote (manifest) and what a phase wrote (seal), as the files that say so."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from corpuskit.errors import DataError
from corpuskit.formats.manifest.checked import dump_checked, load_checked
from corpuskit.formats.manifest.parts import (
    FIELDS,
    Part,
    Parts,
    check_paths,
    digest_bytes,
    dump,
    is_sound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.formats.manifest.parts import RoleParts

Record = TypeVar("Record")

FORMAT = 2
SEAL_FORMAT = 3

FUNNEL = ("read/", "read_bytes/", "kept/", "kept_bytes/", "dropped/", "cut/", "replace/")
"""Counters that only people read."""

_FOR_PEOPLE = ("ledger", "profile", "ids")
"""Roles of parts that no later phase reads."""

_OPENING = b',"parts":['
_ENDING = [b"]}", b""]


class OtherFormatError(DataError):
    """A seal that another version of corpuskit wrote: whole, but to be made again."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What one task wrote.

    Attributes:
        units: the units this task finished, whether or not they wrote parts.
        counters: deterministic counts; nested names are joined by "/" (`kept/web`).
        timing: measured figures by name, summed over units (`cpu_seconds/language`).
    """

    phase: str
    fingerprint: str
    units: tuple[int, ...]
    parts: tuple[Part, ...]
    counters: dict[str, int]
    timing: dict[str, float]
    accepted_code_change: bool = False

    def to_json(self) -> bytes:
        """Return the file content."""
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{where}: not a manifest: {error!r}.") from None
        for part in fields["parts"]:
            if not is_sound(part):
                raise DataError(f"{where}: not a manifest: {part} has a field of a wrong type.")
        check_paths([part.path for part in fields["parts"]], where)
        return _build(cls, fields, where)


@dataclasses.dataclass(frozen=True)
class Seal:
    """What a phase wrote: all its manifests merged, in unit order.

    Attributes:
        inputs: content hashes of the seals it was made from; tells which seals belong together.
    """

    phase: str
    fingerprint: str
    units: tuple[int, ...]
    parts: Parts
    counters: dict[str, int]
    timing: dict[str, float]
    accepted_code_change: bool = False
    inputs: tuple[str, ...] = ()

    @classmethod
    def merge(cls, phase: str, fingerprint: str, manifests: Iterable[Manifest]) -> Seal:
        """Merge the manifests of a phase; a unit that two manifests name counts once."""
        units: set[int] = set()
        parts: list[Part] = []
        counters: Counter[str] = Counter()
        timing: defaultdict[str, float] = defaultdict(float)
        accepted = False
        for manifest in sorted(manifests, key=lambda one: one.units):
            if not units.isdisjoint(manifest.units):
                if units.issuperset(manifest.units):
                    continue
                raise DataError(f"phase {phase}: two manifests share some of their units.")
            units.update(manifest.units)
            parts += manifest.parts
            for name, count in manifest.counters.items():
                counters[name] += count
            for name, value in manifest.timing.items():
                is_peak = name == "peak_rss_bytes"
                timing[name] = max(timing[name], value) if is_peak else timing[name] + value
            accepted = accepted or manifest.accepted_code_change
        return cls(
            phase,
            fingerprint,
            tuple(sorted(units)),
            Parts.of(parts),
            dict(sorted(counters.items())),
            {name: round(value, 6) for name, value in sorted(timing.items())},
            accepted,
        )

    def content(self) -> str:
        """Return the hash of what later phases may read, free of timing and of tasks.

        The ledger, measures, profiles and the counts of the funnel are left out: no later phase
        reads them, so a phase that drops the same documents for another reason makes nothing behind
        it run again.
        """
        return self._content

    @functools.cached_property
    def _content(self) -> str:
        parts = {
            role: digest
            for role, digest in self.parts.digests.items()
            if role not in _FOR_PEOPLE and not role.startswith("measures:")
        }
        counters = {k: v for k, v in self.counters.items() if not k.startswith(FUNNEL)}
        return digest_bytes(dump({"phase": self.phase, "parts": parts, "counters": counters}))

    def by_role(self, role: str) -> RoleParts:
        """Return the parts of a role in unit order."""
        return self.parts.role(role)

    def to_json(self) -> bytes:
        """Return the file content: a JSON object whose first line has all but the parts."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "parts"]
        head = dump_checked(
            {
                "format": SEAL_FORMAT,
                "kind": "seal",
                "content": self.content(),
                "roles": self.parts.digests,
                **{name: getattr(self, name) for name in names},
            }
        )
        body = b",\n".join(self.parts.lines())
        return head[:-1] + _OPENING + b"\n" + body + (b"\n" if body else b"") + b"]}\n"

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Seal:
        """Parse a seal file; a role's parts are parsed when they are asked for.

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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{where}: not a seal: {error!r}.") from None
        seal = _build(cls, fields, where)
        if seal.parts.digests != digests or seal.content() != claimed:
            raise DataError(
                f"{where}: the content hash of the seal is wrong. Run again to rebuild."
            )
        return seal


def _not_a_seal(found: Any, where: str) -> DataError:
    """Return what to raise for JSON that is no seal of this format."""
    if isinstance(found, dict) and found.get("kind") == "seal":
        number = found.get("format")
        return OtherFormatError(
            f"{where}: not a seal of format {SEAL_FORMAT}, but {number!r}. Run again to rebuild."
        )
    return DataError(f"{where}: not a seal of format {SEAL_FORMAT}.")


def _build(kind: type[Record], fields: dict[str, Any], where: str) -> Record:
    """Make a manifest or a seal of what JSON held.

    Raises:
        DataError: a field is missing, is not known, or is of a wrong type.
    """
    name = kind.__name__.lower()
    try:
        fields["units"] = tuple(fields["units"])
        is_sound = (
            set(map(type, fields["units"])) <= {int}
            and set(map(type, fields["counters"].values())) <= {int}
            and set(map(type, fields["timing"].values())) <= {int, float}
        )
        made = kind(**fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: not a {name}: {error!r}.") from None
    if not is_sound:
        raise DataError(f"{where}: not a {name}: units, counters or timing are no numbers.")
    return made
