"""Finds documents of a run by id, key or URL without a scan.

Derived ids are parsed; the others, and URLs, are looked up in the sorted hashes of the first phase
(role `ids`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.engine.records import ID, IDS, URL, hash_of
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import sealed
from corpuskit.errors import UsageError
from corpuskit.formats.batch import POSITION_BITS, numbers
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.inspect.archive import first_values, key_at, rows_of
from corpuskit.loader.edits import FOLDER
from corpuskit.loader.index import read_mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.status import Sealed
    from corpuskit.formats.manifest import Part, Seal
    from corpuskit.stage import InputFile

Kind = Literal["id", "key", "url"]

MAX_KEY = 1 << 63
_NEAR_IDS, _NEAR_PARTS = 4000, 8
"""Ids, and evenly spaced parts that they are read from, in which a similar id is looked for."""


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
    """Keys of the documents that match, ascending, and by what (`by id`, `by key`, `by URL`)."""

    keys: tuple[int, ...]
    how: str


class RunDocuments:
    """The documents of a run, found by key.

    Args:
        finished: phases with their seals; None reads them.

    Attributes:
        seal: of the phase that reads the input; None while it is not finished.
        packed: address of the run whose mixture takes them, and what is added to keys there.
    """

    def __init__(self, run: RunDirectory, finished: Sealed | None = None) -> None:
        self.run = run
        self.packed = (run.store.address, 0)
        self.finished = sealed(run) if finished is None else finished
        self.seals = {phase.index: seal for phase, seal in self.finished}
        self.seal: Seal | None = self.seals.get(0)
        self.files = {file.ordinal: file for file in run.inputs.files}
        self._known: dict[int, Identity] = {}

    def part(self, index: int, role: str, key: int) -> Part | None:
        """Return the part of a phase that can hold a document."""
        seal = self.seals.get(index)
        parts = [] if seal is None else seal.by_role(role).within(key, key + 1)
        return parts[0] if parts else None

    @property
    def phase(self) -> Phase:
        """The phase that reads the input."""
        return self.run.plan.phases[0]

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
        for phase, seal in self.finished:
            is_complete = not phase.index
            for role, column in (("documents", "key"), ("ledger", "doc_key")):
                for part in seal.by_role(role).within(key, key + 1):
                    try:
                        path = self.run.at(part)
                        yield from rows_of(path, key, column, without={"text", "extra"})
                    except FileNotFoundError:
                        is_complete = False
            if is_complete:
                return

    def keys_of_hash(self, name: str, kind: int) -> list[int]:
        """Return the keys of documents with this id (or URL), by its hash; they may be others.

        Raises:
            UsageError: the files with the hashes were deleted.
        """
        if self.seal is None:
            return []
        digest, keys = hash_of(name), []
        for part in self.seal.by_role(IDS):
            try:
                rows = read_shuffle(self.run.at(part), digest, digest + 1)
            except FileNotFoundError:
                raise UsageError(
                    f"{self.run.store.where(part.path)}: is gone, and with it the index of ids and "
                    "URLs. Name the document by its key (--key), or run the pipeline again."
                ) from None
            if rows.num_rows:
                keys += numbers(rows.column("key"))[numbers(rows.column("kind")) == kind].tolist()
        return sorted(set(keys))

    def derived_key(self, name: str) -> int | None:
        """Return the key of an id `<source>/<file>#<position>`, if it is one."""
        path, hash_sign, position = name.rpartition("#")
        if not hash_sign or not position.isdecimal() or int(position) >= 1 << POSITION_BITS:
            return None
        for file in self.run.inputs.files:
            if f"{file.source}/{file.name}" == path:
                return key_at(file.ordinal, int(position))
        return None


def find(documents: RunDocuments, kind: Kind, value: str) -> Hits:
    """Return the documents of a run that have this id, key or URL.

    A value of kind `id` is tried as an id, then as a key if it is a number, then as a URL.

    Raises:
        UsageError: there is none; says what ids look like here.
    """
    if kind == "key":
        return _by_key(documents, value)
    if kind == "url":
        return _by_url(documents, value)
    hits = _by_id(documents, value)
    if not hits.keys and _is_key(value):
        return _by_key(documents, value)
    if not hits.keys and documents.keys_of_hash(value, URL):
        return _by_url(documents, value)
    if not hits.keys:
        raise UsageError(_unknown(documents, value))
    return hits


def find_added(
    run: RunDirectory, kind: Kind, value: str, note: Callable[[str], None]
) -> tuple[RunDocuments, Hits] | None:
    """Return documents of the runs whose sources edits have added to this one; None without any."""
    for added in read_mix(run.store.address).added if run.store.list(FOLDER) else ():
        shift = added.first_ordinal << POSITION_BITS
        is_key = kind != "url" and _is_key(value) and int(value) >= shift
        try:
            documents = RunDocuments(RunDirectory.open(added.address))
            documents.packed = (run.store.address, shift)
            if is_key:
                return documents, _by_key(documents, str(int(value) - shift))
            hits = find(documents, kind, value)
        except UsageError as error:
            note(str(error))
            continue
        if hits.how != "by key":
            return documents, hits
    return None


def _by_id(documents: RunDocuments, name: str) -> Hits:
    key = documents.derived_key(name)
    candidates = set() if key is None else {key}
    if documents.seal is None:
        return Hits(tuple(candidates), "by file and position")
    candidates.update(documents.keys_of_hash(name, ID))
    documents_with = map(documents.identify, sorted(candidates))
    return Hits(tuple(d.key for d in documents_with if d.is_known and d.id == name), "by id")


def _is_key(value: str) -> bool:
    """Return whether a text is how a key is written: 00297 is an id, if anything."""
    return value.isdecimal() and value == str(int(value)) and int(value) < MAX_KEY


def _by_key(documents: RunDocuments, value: str) -> Hits:
    if not _is_key(value):
        raise UsageError(
            f"{value!r} is not a key: keys are whole numbers below 2**63. For an id leave --key "
            "out."
        )
    key = int(value)
    identity = documents.identify(key)
    if not identity.is_known and (documents.seal is not None or identity.file is None):
        raise UsageError(_unknown(documents, value, key))
    return Hits((key,), "by key")


def _by_url(documents: RunDocuments, url: str) -> Hits:
    address = documents.run.store.address
    if documents.seal is None:
        raise UsageError(
            f"{address}: phase {documents.phase.name}, which reads the documents, is not finished, "
            "so URLs cannot be looked up yet."
        )
    # What the first phase dropped has no URL any more; of all others it is compared.
    keys = [
        key
        for key in documents.keys_of_hash(url, URL)
        if documents.identify(key).url in (url, None)
    ]
    if not keys:
        raise UsageError(f"{address}: no document with the URL {url!r}. {_url_hint(documents)}")
    return Hits(tuple(keys), "by URL")


def _url_hint(documents: RunDocuments) -> str:
    seal = documents.seal
    for part in [] if seal is None else list(seal.by_role("documents"))[:_NEAR_PARTS]:
        with contextlib.suppress(FileNotFoundError):
            for origin in first_values(documents.run.at(part), "origin", 50):
                if origin and (url := origin["url"]):
                    return f"URLs here look like {url!r}, and are compared letter by letter."
    return "The documents of this run have no URLs: set url_column in its sources."


def _unknown(documents: RunDocuments, name: str, key: int | None = None) -> str:
    """Say that there is no such document, and what could have been meant."""
    address = documents.run.store.address
    kind = "key" if key is not None else "id"
    message = f"{address}: no document with the {kind} {name!r}."
    if documents.seal is None:
        return (
            f"{message} Phase {documents.phase.name}, which reads the documents, is not finished: "
            "until then documents are found by key or by <source>/<file>#<position> only."
        )
    examples = list(_examples(documents, _NEAR_IDS))
    matches = difflib.get_close_matches(name[:200], examples, n=1, cutoff=0.8)
    if matches:
        return f"{message} Did you mean {matches[0]!r}?"
    path = name.rpartition("#")[0]
    files = [f"{file.source}/{file.name}" for file in documents.run.inputs.files[:_NEAR_IDS]]
    matches = difflib.get_close_matches(path, files, n=1, cutoff=0.6) if path else []
    if matches:
        return f"{message} Did you mean a document of {matches[0]!r}?"
    samples = " or ".join(map(repr, dict.fromkeys([*examples[:1], *examples[-1:]])))
    hint = f" Ids here look like {samples}." if samples else ""
    return f"{message}{hint} `--url` finds documents by URL, `inspect --containing` by text."


def _examples(documents: RunDocuments, num: int) -> Iterable[str]:
    seal = documents.seal
    parts = [] if seal is None else seal.by_role("documents")
    last = len(parts) - 1
    indices = {last * number // (_NEAR_PARTS - 1) for number in range(_NEAR_PARTS)}
    for index in sorted(indices) if parts else ():
        with contextlib.suppress(FileNotFoundError):
            path = documents.run.at(parts[index])
            yield from first_values(path, "id", num // _NEAR_PARTS)
