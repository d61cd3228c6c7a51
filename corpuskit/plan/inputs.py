"""Finds input files, gives them ordinals that never change, and cuts them into slices."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import os
import posixpath
import stat
from typing import TYPE_CHECKING, Any

from corpuskit import registry
from corpuskit.batch import MAX_ORDINAL
from corpuskit.errors import DataError, UsageError
from corpuskit.plan.fingerprint import code_digest
from corpuskit.stage import InputFile, Slice, Source
from corpuskit.storage import Found, find_objects, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from corpuskit.config import Step
    from corpuskit.storage import Store

INPUTS = "inputs.json"
_GLOB = "*?["

SHARED_CELLS = 8
"""Slices share a unit up to cell_bytes / SHARED_CELLS of text. More would leave workers without
work: 16 files of 5 MB are 16 units, not 2. The 11 files of a cell cost 30 to 60 CPU ms in a
pipeline whose stages take 1 to 2 s for 8 MB."""

OPENING_BYTES = 4096
"""Counts as text of a slice, for opening its file: 0.3 to 0.6 CPU ms."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """All input files in ordinal order, each with its slices.

    Attributes:
        begins: (U,) where in `numbered` each unit of the reading phase begins.
    """

    files: tuple[InputFile, ...]
    slices: tuple[tuple[Slice, ...], ...]
    begins: tuple[int, ...]

    def size_bytes(self) -> int:
        """Return the size of all files as they lie on disk."""
        return sum(file.size_bytes for file in self.files)

    @functools.cached_property
    def numbered(self) -> list[tuple[InputFile, Slice]]:
        """Every slice with its file."""
        pairs = zip(self.files, self.slices, strict=True)
        return [(file, piece) for file, pieces in pairs for piece in pieces]

    @functools.cached_property
    def units(self) -> list[list[tuple[InputFile, Slice]]]:
        """The units of the reading phase: neighbouring slices of one source."""
        bounds = itertools.pairwise([*self.begins, len(self.numbered)])
        return [self.numbered[begin:end] for begin, end in bounds]

    def facts(self) -> list[Any]:
        """Return what the fingerprint of the reading phase says about its raw inputs."""
        pairs = zip(self.files, self.slices, strict=True)
        files = [
            [f.ordinal, f.source, f.name, f.size_bytes, f.stamp, [[s.begin, s.end] for s in cut]]
            for f, cut in pairs
        ]
        return [*files, list(self.begins)]


def find_inputs(
    store: Store,
    sources: Iterable[Step],
    cell_bytes: int,
    *,
    on_file: Callable[[int, int], None] = lambda done, total: None,
) -> Inputs:
    """Expand the patterns of all sources and cut the files.

    Ordinals given by an earlier run of this directory stay; new files come behind. Slices of
    unchanged files are taken from there, too, so that footers are read once.

    Raises:
        UsageError: a pattern matches nothing.
        DataError: a footer cannot be read.
    """
    known, cuts = _earlier(store)
    found: list[tuple[Step, Found, str]] = []
    tails = {}
    for step in sources:
        found += [(step, one, name) for one, name in _expand(step)]
        tails[step.label] = _tail(step, cell_bytes)
    ordinal = max(known.values(), default=-1)
    files: list[tuple[InputFile, tuple[Slice, ...]]] = []
    for done, (step, one, name) in enumerate(found):
        if (step.label, name) not in known:
            ordinal += 1
            known[step.label, name] = ordinal
        if ordinal > MAX_ORDINAL:
            raise UsageError(f"{ordinal + 1} input files: at most {MAX_ORDINAL + 1} are possible.")
        file = InputFile(
            known[step.label, name], step.label, one.address, name, one.size_bytes, one.stamp
        )
        assert isinstance(step.stage, Source), "config.py makes sure of it"
        mark = _mark(file, tails[step.label])
        if mark not in cuts:
            cuts[mark] = tuple(step.stage.slices(file, cell_bytes))
        files.append((file, cuts[mark]))
        on_file(done + 1, len(found))
    files.sort(key=lambda pair: pair[0].ordinal)
    begins = _cut_units(
        [(file, piece) for file, pieces in files for piece in pieces],
        {step.label: step.stage for step, _, _ in found if isinstance(step.stage, Source)},
        cell_bytes // SHARED_CELLS,
    )
    return Inputs(tuple(f for f, _ in files), tuple(s for _, s in files), begins)


def _cut_units(
    pieces: list[tuple[InputFile, Slice]], sources: Mapping[str, Source], most: int
) -> tuple[int, ...]:
    """Return where units begin: neighbours of a source share one up to `most` bytes of text.

    A file that is added behind the others of its source changes its last unit only.
    """
    begins: list[int] = []
    held, before = 0, ""
    for place, (file, piece) in enumerate(pieces):
        size = sources[file.source].text_size(file, piece)[0] + OPENING_BYTES
        held += size
        if held > most or file.source != before:
            begins.append(place)
            held, before = size, file.source
    return tuple(begins)


def save_inputs(store: Store, inputs: Inputs, sources: Iterable[Step], cell: int) -> None:
    """Remember ordinals and slices, those of vanished files included."""
    known, _ = _earlier(store)
    tails = {step.label: _tail(step, cell) for step in sources}
    rows: dict[tuple[str, str], dict[str, Any]] = {
        place: {"ordinal": number} for place, number in known.items()
    }
    for file, cut in zip(inputs.files, inputs.slices, strict=True):
        rows[file.source, file.name] = {
            "ordinal": file.ordinal,
            "mark": _mark(file, tails[file.source]),
            "slices": [[s.begin, s.end, s.size_bytes] for s in cut],
        }
    entries = [{"source": s, "name": n, **row} for (s, n), row in rows.items()]
    entries.sort(key=lambda entry: entry["ordinal"])
    store.put(INPUTS, json.dumps({"format": 1, "files": entries}).encode())


def _earlier(
    store: Store,
) -> tuple[dict[tuple[str, str], int], dict[str, tuple[Slice, ...]]]:
    if not store.exists(INPUTS):
        return {}, {}
    try:
        content = json.loads(store.read(INPUTS))
        if content["format"] != 1:
            raise DataError(f"{store.where(INPUTS)}: not of format 1.")
        entries = content["files"]
        known = {(e["source"], e["name"]): int(e["ordinal"]) for e in entries}
        cuts = {e["mark"]: tuple(Slice(*s) for s in e["slices"]) for e in entries if "mark" in e}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{store.where(INPUTS)}: cannot be read: {error!r}. Without it, keys would "
            "change: restore it, or start in another output."
        ) from None
    return known, cuts


def _mark(file: InputFile, tail: str) -> str:
    """Return what must be equal for an earlier cut to serve again."""
    return f"{file.path}|{file.size_bytes}|{file.stamp}|{tail}"


def _tail(step: Step, cell_bytes: int) -> str:
    """Return what marks of all files of a source have in common."""
    params = step.stage.model_dump_json(exclude={"paths"})
    code = code_digest(registry.path(step.name))  # decides what a slice's bounds mean
    facts = "|".join([step.name, str(cell_bytes), params, code])
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def _expand(step: Step) -> list[tuple[Found, str]]:
    """Return a source's files, each with its path relative to the source's root, sorted by it.

    The root is the deepest folder that is common to all patterns, wildcards left out; so names, and
    with them keys and ids, are the same on disk and in object storage.
    """
    assert isinstance(step.stage, Source), "config.py makes sure of it"
    patterns = step.stage.paths
    try:
        given = step.stage.find()
        if given is not None:
            return sorted(given, key=lambda pair: pair[1])
        kinds = {is_remote(pattern) for pattern in patterns}
    except UsageError as error:
        raise UsageError(f"{step.where}: source {step.label!r}: {error}") from None
    if len(kinds) > 1:
        raise UsageError(
            f"{step.where}: source {step.label!r} mixes local paths and addresses. Make two of it."
        )
    remote = kinds.pop()
    found: dict[str, Found] = {}
    for pattern in patterns:
        matches = find_objects(pattern) if remote else _matches(pattern, step)
        if not matches:
            hint = "Check the path" if not set(pattern) & set(_GLOB) else "Check the pattern"
            hint += "." if remote else f"; it is relative to the working directory {os.getcwd()!r}."
            raise UsageError(
                f"{step.where}: source {step.label!r}: no file matches {pattern!r}. {hint}"
            )
        found.update((one.address, one) for one in matches)
    if remote:
        bare = [pattern.partition("://")[2] for pattern in patterns]
        root = posixpath.commonpath([_root(pattern, "/") for pattern in bare])
        places = [(one, one.address.partition("://")[2]) for one in found.values()]
        named = [(one, place[len(root) :].lstrip("/")) for one, place in places]
    else:
        root = os.path.commonpath([os.path.abspath(_root(one, os.sep)) for one in patterns])
        named = [(one, os.path.relpath(os.path.abspath(path), root)) for path, one in found.items()]
    return sorted(named, key=lambda pair: pair[1])


def _matches(pattern: str, step: Step) -> list[Found]:
    """Return the files that a pattern names; a file of that very name comes first."""
    pattern = pattern.removeprefix("file://")
    if os.path.isdir(pattern):
        hint = os.path.join(pattern, "*")
        raise UsageError(f"{step.where}: {pattern!r} is a folder. Name its files, as in {hint!r}.")
    listed = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    found = []
    for path in listed:
        if os.path.isdir(path):
            continue
        if not os.path.exists(path):
            raise UsageError(f"{step.where}: {path!r} is a link that leads nowhere.")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{step.where}: the name {path!r} is not UTF-8. Rename it.") from None
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{step.where}: {path!r} is no regular file. Leave it out.")
        found.append(Found(os.path.normpath(path), status.st_size, str(status.st_mtime_ns)))
    return found


def _root(pattern: str, separator: str) -> str:
    """Return the folder in front of the first wildcard, or of the file."""
    parts = pattern.removeprefix("file://").split(separator)
    for index, part in enumerate(parts[:-1]):
        if set(part) & set(_GLOB):
            return separator.join(parts[:index]) or ("/" if pattern.startswith("/") else ".")
    return separator.join(parts[:-1]) or ("/" if pattern.startswith("/") else ".")
