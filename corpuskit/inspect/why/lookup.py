"""Finds documents of a run: by id, key or URL without a scan.

Derived ids are parsed; the others, and URLs, are looked up in the sorted hashes of the first phase
(docs/formats.md, role `ids`). Runs of before that have none: they are scanned, see `report.scan`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpuskit.engine.identity import ID, ROLE, URL, hash_of
from corpuskit.engine.profile import ROLE as PROFILE
from corpuskit.errors import UsageError
from corpuskit.formats.batch import MAX_ORDINAL, POSITION_BITS, make_keys, numbers
from corpuskit.formats.exchange import read_run
from corpuskit.inspect.why.keyed import first_values, keys_around, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part
    from corpuskit.stage import InputFile

Kind = Literal["id", "key", "url", "text", "containing"]

MAX_KEY = 1 << 63
_NEAR_IDS, _NEAR_PARTS = 4000, 8
"""Ids, and parts that they come from, among which one like the one asked for is sought."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """What is known of a document by its key alone.

    Attributes:
        file: the input file; None if this run has none of this ordinal.
        is_known: whether a part of the run has it; if not, the first phase may be unfinished.
    """

    key: int
    id: str | None
    source: str | None
    url: str | None
    date: str | None
    file: InputFile | None
    position: int
    is_known: bool


@dataclasses.dataclass(frozen=True)
class Hits:
    """Keys of the documents that were asked for, ascending, and how they were found.

    Attributes:
        how: for people; tells of scans.
        is_partial: there may be more.
    """

    keys: tuple[int, ...]
    how: str
    is_partial: bool = False


class Documents:
    """The documents of a run, as its first phase read them.

    Args:
        finished: phases with their seals.

    Attributes:
        seal: of the first phase; None while it is not finished.
    """

    def __init__(self, run: RunDirectory, finished: Sealed) -> None:
        self.run, self._finished = run, finished
        self.seal = next((seal for phase, seal in finished if not phase.index), None)
        self.files = {file.ordinal: file for file in run.inputs.files}
        self._known: dict[int, Identity] = {}
        self._lost = False

    @property
    def phase(self) -> Phase:
        """The phase that reads the input."""
        return self.run.plan.phases[0]

    @property
    def has_hashes(self) -> bool:
        """Whether ids and URLs can be looked up: without rows there are no parts, but a profile."""
        seal = self.seal
        return (
            not self._lost
            and seal is not None
            and bool(len(seal.by_role(ROLE)) or len(seal.by_role(PROFILE)))
        )

    def identify(self, key: int) -> Identity:
        """Return what the first phase knows of a document; remembered."""
        if key not in self._known:
            self._known[key] = self._identify(key)
        return self._known[key]

    def _identify(self, key: int) -> Identity:
        ordinal, position = key >> POSITION_BITS, key & ((1 << POSITION_BITS) - 1)
        file = self.files.get(ordinal)
        row = next(self._rows(key), None)
        if row is None:
            source = file.source if file else None
            name = f"{file.source}/{file.name}#{position}" if file else None
            return Identity(key, name, source, None, None, file, position, is_known=False)
        origin = row.get("origin") or {}
        name = row.get("id", row.get("doc_id"))
        return Identity(
            key, name, row["source"], origin.get("url"), origin.get("date"), file, position,
            is_known=True,
        )  # fmt: skip

    def _rows(self, key: int) -> Iterator[dict[str, Any]]:
        """Yield rows of a document: those of later phases only where earlier files are gone."""
        for phase, seal in self._finished:
            is_whole = not phase.index
            for role, column in (("documents", "key"), ("ledger", "doc_key")):
                for part in seal.by_role(role).within(key, key + 1):
                    try:
                        path = self.run.at(part)
                        yield from rows_of(path, key, column, without={"text", "extra"})
                    except FileNotFoundError:
                        is_whole = False
            if is_whole:
                return

    def parts(self, role: str, key: int) -> list[Part]:
        """Return the parts of the first phase that can hold a key."""
        return [] if self.seal is None else self.seal.by_role(role).within(key, key + 1)

    def keys_of_hash(self, name: str, kind: int) -> list[int]:
        """Return the keys of documents with this id (or URL), by its hash; they may be others."""
        if self.seal is None:
            return []
        wanted, keys = hash_of(name), []
        for part in self.seal.by_role(ROLE):
            try:
                rows = read_run(self.run.at(part), wanted, wanted + 1)
            except FileNotFoundError:  # somebody has deleted it: from now on documents are scanned
                self._lost = True
                continue
            if rows.num_rows:
                found = numbers(rows.column("key"))[numbers(rows.column("kind")) == kind]
                keys += found.tolist()
        return sorted(set(keys))

    def derived_key(self, name: str) -> int | None:
        """Return the key that an id `<source>/<file>#<position>` stands for, if it is one."""
        path, mark, position = name.rpartition("#")
        if not mark or not position.isdecimal() or int(position) >= 1 << POSITION_BITS:
            return None
        for file in self.run.inputs.files:
            if f"{file.source}/{file.name}" == path:
                return int(make_keys(file.ordinal, np.array([int(position)]))[0])
        return None


def find(
    documents: Documents,
    kind: Kind,
    value: str,
    *,
    limit: int = 1000,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Hits:
    """Return the documents of a run that have this id, key, URL or text.

    What is asked for as an id is an id first, else a key if it is a number, else a URL.

    Args:
        limit: of the scans for texts: so many are enough.
        progress: of scans: parts read, parts in all, and what they are.

    Raises:
        UsageError: there is none; says what ids look like here.
    """
    if kind in ("text", "containing"):
        from corpuskit.inspect.why.scan import scan_texts

        if not value.strip():
            raise UsageError("why: the text to look for is empty. Give a piece of the document.")
        hits = scan_texts(documents, value, kind == "containing", limit, progress)
        if not hits.keys:
            raise UsageError(f"{documents.run.store.address}: no document {hits.how}.")
        return hits
    if kind == "key":
        return _by_key(documents, value)
    if kind == "url":
        return _by_url(documents, value, progress)
    hits = _by_id(documents, value, progress)
    if not hits.keys and _is_key(value):
        return _by_key(documents, value)
    if not hits.keys and documents.has_hashes and documents.keys_of_hash(value, URL):
        return _by_url(documents, value, progress)
    if not hits.keys:
        raise UsageError(_unknown(documents, value))
    return hits


def _by_id(documents: Documents, name: str, progress: Callable[[int, int, str], None]) -> Hits:
    key = documents.derived_key(name)
    derived = [] if key is None else [key]
    if documents.seal is None:
        return Hits(tuple(derived), "by file and position")
    if documents.has_hashes:
        candidates = {*documents.keys_of_hash(name, ID), *derived}
    else:
        candidates = set(derived) or _packed(documents, name)
    known = [documents.identify(one) for one in sorted(candidates)]
    keys = tuple(one.key for one in known if one.is_known and one.id == name)
    if keys or documents.has_hashes:
        return Hits(keys, "by id")
    from corpuskit.inspect.why.scan import scan_names

    return scan_names(documents, "id", name, progress)


def _packed(documents: Documents, name: str) -> set[int]:
    """Return the keys of packed documents with this id, where the run has the loader's lookups."""
    from corpuskit.errors import CorpuskitError
    from corpuskit.loader.index import read_mix
    from corpuskit.loader.provenance import Lookups

    try:
        plan = read_mix(documents.run.store.address)
        return Lookups(plan).keys_of([name])[name]
    except CorpuskitError:  # there is none, or not yet
        return set()


def _is_key(value: str) -> bool:
    """Return whether a text is how a key is written: 00297 is an id, if anything."""
    return value.isdecimal() and value == str(int(value)) and int(value) < MAX_KEY


def _by_key(documents: Documents, value: str) -> Hits:
    if not _is_key(value):
        raise UsageError(
            f"{value!r} is no key: keys are whole numbers below 2**63. Leave --key out for an id."
        )
    key = int(value)
    known = documents.identify(key)
    if not known.is_known and (documents.seal is not None or known.file is None):
        raise UsageError(_unknown(documents, value, key))
    return Hits((key,), "by key")


def _by_url(documents: Documents, url: str, progress: Callable[[int, int, str], None]) -> Hits:
    where = documents.run.store.address
    if documents.seal is None:
        raise UsageError(
            f"{where}: phase {documents.phase.name}, which reads the documents, is not finished, "
            "so URLs cannot be looked up yet."
        )
    if documents.has_hashes:
        # What the first phase dropped has no URL any more; of all others it is compared.
        keys = [
            key
            for key in documents.keys_of_hash(url, URL)
            if documents.identify(key).url in (url, None)
        ]
        hits = Hits(tuple(keys), "by URL")
    else:
        from corpuskit.inspect.why.scan import scan_names

        hits = scan_names(documents, "url", url, progress)
    if not hits.keys:
        raise UsageError(f"{where}: no document with the URL {url!r}. {_url_hint(documents)}")
    return hits


def _url_hint(documents: Documents) -> str:
    seal = documents.seal
    for part in [] if seal is None else list(seal.by_role("documents"))[:_NEAR_PARTS]:
        with contextlib.suppress(FileNotFoundError):
            for origin in first_values(documents.run.at(part), "origin", 50):
                if origin and (url := origin["url"]):
                    return f"URLs here look like {url!r}, and are compared letter by letter."
    return "The documents of this run have no URLs: set url_column in its sources."


def _unknown(documents: Documents, name: str, key: int | None = None) -> str:
    """Say that there is no such document, and what could have been meant."""
    where = documents.run.store.address
    kind = "key" if key is not None else "id"
    message = f"{where}: no document with the {kind} {name!r}."
    if documents.seal is None:
        return (
            f"{message} Phase {documents.phase.name}, which reads the documents, is not finished: "
            "until then documents are found by key or by <source>/<file>#<position> only."
        )
    place = documents.derived_key(name) if key is None else key
    if place is not None and (around := _around(documents, place)):
        return f"{message} Next to it: {', '.join(around)}."
    examples = list(_examples(documents, _NEAR_IDS))
    near = difflib.get_close_matches(name[:200], examples, n=1, cutoff=0.8)
    if near:
        return f"{message} Did you mean {near[0]!r}?"
    path = name.rpartition("#")[0]
    files = [f"{file.source}/{file.name}" for file in documents.run.inputs.files[:_NEAR_IDS]]
    near = difflib.get_close_matches(path, files, n=1, cutoff=0.6) if path else []
    if near:
        return f"{message} Did you mean a document of {near[0]!r}?"
    shown = " or ".join(repr(one) for one in dict.fromkeys([*examples[:1], *examples[-1:]]))
    hint = f" Ids here look like {shown}." if shown else ""
    return f"{message}{hint} --url, --text and --containing find documents by other things."


def _examples(documents: Documents, num: int) -> Iterable[str]:
    seal = documents.seal
    parts = [] if seal is None else seal.by_role("documents")
    places = sorted({len(parts) * piece // (_NEAR_PARTS - 1) for piece in range(_NEAR_PARTS)})
    for place in {min(place, len(parts) - 1): None for place in places if parts}:
        with contextlib.suppress(FileNotFoundError):
            path = documents.run.at(parts[place])
            yield from first_values(path, "id", num // _NEAR_PARTS)


def _around(documents: Documents, key: int) -> list[str]:
    """Return the ids of the documents before and behind a place in the same file."""
    if key >> POSITION_BITS > MAX_ORDINAL:
        return []
    found: set[int] = set()
    for role, column in (("documents", "key"), ("ledger", "doc_key")):
        for part in documents.parts(role, key):
            with contextlib.suppress(FileNotFoundError):
                found |= set(keys_around(documents.run.at(part), key, column))
    same = [one for one in found if one >> POSITION_BITS == key >> POSITION_BITS]
    below, above = [k for k in same if k < key], [k for k in same if k > key]
    near = [*([max(below)] if below else []), *([min(above)] if above else [])]
    return [repr(documents.identify(one).id) for one in near]
