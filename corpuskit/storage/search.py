"""Finds objects by pattern, with the meaning that `glob` gives it on a file system."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError
from corpuskit.storage.client import open_bucket, split
from corpuskit.storage.store import Found

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.storage.client import Bucket, Entry

WILDCARDS = frozenset("*?[")


def find(pattern: str) -> list[Found]:
    """Return the objects that a pattern matches, sorted by address.

    `*`, `?` and `[...]` stop at `/`; `**` alone between two `/` is any number of folders. As on a
    file system, names that start with a dot match only a pattern that does, too; and an object of
    the very name of the pattern comes first.

    Raises:
        UsageError: it names a folder.
        OSError: the bucket cannot be listed.
    """
    name, key = split(pattern)
    bucket = open_bucket(name)
    if key and not key.endswith("/") and (entry := bucket.head(key)):
        return [_found(bucket, entry)]
    if not WILDCARDS & set(key):
        folder = key.rstrip("/")
        if not folder or any(bucket.level(folder)):
            hint = bucket.place(f"{folder}/*" if folder else "*")
            raise UsageError(f"{pattern}: is a folder. Name its files, as in {hint!r}.")
        return []
    found = {entry.key: entry for entry in _walk(bucket, "", key.split("/"))}
    whole = [entry for entry in found.values() if entry.size_bytes or _is_there(bucket, entry)]
    return sorted((_found(bucket, entry) for entry in whole), key=lambda one: one.address)


def matches(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Return whether a path fits a pattern, both cut at `/`."""
    if not segments or not parts:
        return not segments and not parts
    if segments[0] != "**":
        return _fits(parts[0], segments[0]) and matches(parts[1:], segments[1:])
    depth = next((i for i, one in enumerate(parts) if one.startswith(".")), len(parts))
    if len(segments) == 1:
        return depth == len(parts)
    return any(matches(parts[skipped:], segments[1:]) for skipped in range(depth + 1))


def _fits(name: str, segment: str) -> bool:
    is_hidden = name.startswith(".") and not segment.startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(name, segment)


def _walk(bucket: Bucket, folder: str, segments: Sequence[str]) -> Iterator[Entry]:
    """Yield what matches below a folder; only `**` lists what lies deeper than it must."""
    depth = 0
    while depth < len(segments) - 1 and not WILDCARDS & set(segments[depth]):
        depth += 1
    folder = "/".join([folder, *segments[:depth]]).strip("/")
    segments = segments[depth:]
    start = f"{folder}/" if folder else ""
    if segments[0] == "**":
        for entry in bucket.walk(folder):
            path = entry.key.removeprefix(start)
            is_marker = bool(start) and path == entry.key  # of the folder itself
            if not is_marker and matches(path.split("/"), segments):
                yield entry
        return
    folders, objects = bucket.level(folder)
    if len(segments) > 1:
        for one in folders:
            if _fits(one.removeprefix(start), segments[0]):
                yield from _walk(bucket, one, segments[1:])
        return
    for entry in objects:
        if entry.key.startswith(start) and _fits(entry.key.removeprefix(start), segments[0]):
            yield entry


def _is_there(bucket: Bucket, entry: Entry) -> bool:
    """Return whether an empty object has this name; a marker of a folder ends in `/`."""
    return bucket.head(entry.key) is not None


def _found(bucket: Bucket, entry: Entry) -> Found:
    return Found(bucket.place(entry.key), entry.size_bytes, entry.tag.strip('"'))
