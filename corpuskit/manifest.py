"""What a task wrote (manifest) and what a phase wrote (seal).

A manifest's atomic appearance is the completion of its task; a seal's is the completion of its
phase. Readers trust these, never a folder listing. Deterministic facts (parts, counters) make the
content hash; measured ones (`timing`) are kept beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from corpuskit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Record = TypeVar("Record")

FORMAT = 1

FUNNEL = ("read/", "read_bytes/", "kept/", "kept_bytes/", "dropped/", "cut/", "replace/")
"""Counters that only people read."""


@dataclasses.dataclass(frozen=True, order=True)
class Part:
    """One published file.

    Attributes:
        unit: the cell or key range it belongs to; parts of a phase are ordered by unit, then role.
        role: what it is to its readers: `documents`, `ledger`, `sidecar`, `run:<name>`, `tokens`...
        path: relative to the run directory.
        source: the source it came from, empty when it holds several.
        rows, size_bytes: of the file; text_bytes: of the text inside (documents only).
        first, last: smallest and largest key (documents, runs), or rows covered (tokens).
        digest: blake2b-128 of the file.
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
        return _dump({"format": FORMAT, "kind": "manifest", **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """Parse a manifest file.

        Raises:
            DataError: it is not a manifest of a format this version reads.
        """
        return _build(cls, _fields(content, where, "manifest"), where)


@dataclasses.dataclass(frozen=True)
class Seal:
    """What a phase wrote: all its manifests merged, in unit order.

    Attributes:
        inputs: content hashes of the seals it was made from; tells which seals belong together.
    """

    phase: str
    fingerprint: str
    units: tuple[int, ...]
    parts: tuple[Part, ...]
    counters: dict[str, int]
    timing: dict[str, float]
    accepted_code_change: bool = False
    inputs: tuple[str, ...] = ()

    @classmethod
    def merge(cls, phase: str, fingerprint: str, manifests: Iterable[Manifest]) -> Seal:
        """Merge the manifests of a phase; a unit that two manifests name counts once."""
        units: set[int] = set()
        parts: set[Part] = set()
        counters: Counter[str] = Counter()
        timing: defaultdict[str, float] = defaultdict(float)
        accepted = False
        for manifest in sorted(manifests, key=lambda one: one.units):
            if set(manifest.units) & units:
                if set(manifest.units) <= units:
                    continue
                raise DataError(f"phase {phase}: two manifests share some of their units.")
            units.update(manifest.units)
            parts.update(manifest.parts)
            counters.update(manifest.counters)
            for name, value in manifest.timing.items():
                is_peak = name == "peak_rss_bytes"
                timing[name] = max(timing[name], value) if is_peak else timing[name] + value
            accepted = accepted or manifest.accepted_code_change
        return cls(
            phase,
            fingerprint,
            tuple(sorted(units)),
            tuple(sorted(parts)),
            dict(sorted(counters.items())),
            {name: round(value, 6) for name, value in sorted(timing.items())},
            accepted,
        )

    def content(self) -> str:
        """Return the hash of what later phases may read, free of timing and of tasks.

        The ledger and the counts of the funnel are left out: no later phase reads them, so a phase
        that drops the same documents for another reason makes nothing behind it run again.
        """
        return self._content

    @functools.cached_property
    def _content(self) -> str:
        parts = [dataclasses.asdict(part) for part in self.parts if part.role != "ledger"]
        counters = {k: v for k, v in self.counters.items() if not k.startswith(FUNNEL)}
        facts = {"phase": self.phase, "parts": parts, "counters": counters}
        return hashlib.blake2b(_dump(facts), digest_size=16).hexdigest()

    def by_role(self, role: str) -> list[Part]:
        """Return the parts of a role in unit order."""
        return [part for part in self.parts if part.role == role]

    def to_json(self) -> bytes:
        """Return the file content."""
        fields = dataclasses.asdict(self)
        return _dump({"format": FORMAT, "kind": "seal", "content": self.content(), **fields})

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Seal:
        """Parse a seal file.

        Raises:
            DataError: not a seal of a format this version reads, or its content hash is wrong.
        """
        fields = _fields(content, where, "seal")
        claimed = fields.pop("content", "")
        seal = _build(cls, fields, where)
        if seal.content() != claimed:
            raise DataError(
                f"{where}: the content hash of the seal is wrong. Run again to rebuild."
            )
        return seal


def _fields(content: bytes, where: str, kind: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
        if found.pop("format") != FORMAT or found.pop("kind") != kind:
            raise DataError(f"{where}: not a {kind} of format {FORMAT}.")
        found["units"] = tuple(found["units"])
        found["parts"] = tuple(Part(**part) for part in found["parts"])
        if kind == "seal":
            found["inputs"] = tuple(found["inputs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a {kind}: {error!r}.") from None
    _check_paths(found["parts"], where)
    return found  # type: ignore[no-any-return]


def _build(kind: type[Record], fields: dict[str, Any], where: str) -> Record:
    try:
        return kind(**fields)
    except TypeError as error:
        raise DataError(f"{where}: not a {kind.__name__.lower()}: {error}.") from None


def _check_paths(parts: Sequence[Part], where: str) -> None:
    for part in parts:
        if part.path.startswith("/") or ".." in part.path.split("/"):
            raise DataError(f"{where}: the path {part.path!r} leaves the run directory.")


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
