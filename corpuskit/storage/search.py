"""Finds input files by pattern; patterns mean the same on a file system and in object storage.

They mean what they mean to `glob`, but what `glob` silently leaves out is an error here: a dangling
link, a folder that the pattern matches as if it were a file, a folder that cannot be listed.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError, system_reason
from corpuskit.storage.client import open_bucket, split
from corpuskit.storage.store import FoundFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpuskit.storage.client import Bucket, Entry

WILDCARDS = frozenset("*?[")


def find_objects(pattern: str) -> list[FoundFile]:
    """Return the objects that a pattern matches, sorted by address.

    Patterns mean what they mean to `find_files`.

    Raises:
        UsageError: it names or matches a folder.
        OSError: the bucket cannot be listed.
    """
    name, key = split(pattern)
    bucket = open_bucket(name)
    if key and not key.endswith("/") and (entry := bucket.head(key)):
        return [found_file(bucket, entry)]
    if not WILDCARDS & set(key):
        folder = key.rstrip("/")
        if not folder or any(bucket.level(folder)):
            raise _named_folder(pattern, bucket.address(folder))
        return []
    entries = {entry.key: entry for entry in _walk(bucket, "", _segments(key))}
    # A listing names the empty marker of a folder (`name/`) without its slash.
    objects = [entry for entry in entries.values() if entry.size_bytes or bucket.head(entry.key)]
    return sorted((found_file(bucket, entry) for entry in objects), key=lambda file: file.address)


def matches(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Return whether a path fits a pattern, both cut at `/`."""
    if not segments or not parts:
        return not segments and not parts
    if segments[0] != "**":
        return _fits(parts[0], segments[0]) and matches(parts[1:], segments[1:])
    depth = next((i for i, part in enumerate(parts) if part.startswith(".")), len(parts))
    if len(segments) == 1:
        return depth == len(parts)
    return any(matches(parts[skipped:], segments[1:]) for skipped in range(depth + 1))


def _fits(name: str, segment: str) -> bool:
    is_hidden = name.startswith(".") and not segment.startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(name, segment)


def _walk(bucket: Bucket, folder: str, segments: Sequence[str]) -> Iterator[Entry]:
    """Yield what matches below a folder; a level without `**` lists that level only."""
    depth = 0
    while depth < len(segments) - 1 and not WILDCARDS & set(segments[depth]):
        depth += 1
    folder = "/".join([folder, *segments[:depth]]).strip("/")
    segments = segments[depth:]
    start = f"{folder}/" if folder else ""
    if segments[0] == "**":
        yield from _walk_all(bucket, folder, start, segments)
        return
    folders, objects = bucket.level(folder)
    for key in folders:
        if _fits(key.removeprefix(start), segments[0]):
            if len(segments) > 1:
                yield from _walk(bucket, key, segments[1:])
            elif any(entry.key != key for entry in bucket.walk(key)):  # more than its marker
                raise _matched_folder(bucket.address(key))
    for entry in objects if len(segments) == 1 else ():
        if entry.key.startswith(start) and _fits(entry.key.removeprefix(start), segments[0]):
            yield entry


def _walk_all(bucket: Bucket, folder: str, start: str, segments: Sequence[str]) -> Iterator[Entry]:
    """Yield what matches at any depth below a folder."""
    for entry in bucket.walk(folder):
        if start and entry.key == folder:  # a marker of the folder itself
            continue
        parts = entry.key.removeprefix(start).split("/")
        for num in () if segments[-1] == "**" else range(1, len(parts)):
            if matches(parts[:num], segments):
                raise _matched_folder(bucket.address(start + "/".join(parts[:num])))
        if matches(parts, segments):
            yield entry


def found_file(bucket: Bucket, entry: Entry) -> FoundFile:
    """Return an object of a listing or a HEAD as an input file."""
    return FoundFile(bucket.address(entry.key), entry.size_bytes, *[entry.tag.strip('"')] * 2)


def find_files(pattern: str) -> list[FoundFile]:
    """Return the files on this machine that a pattern matches, sorted by path.

    `*`, `?` and `[...]` stop at `/`; `**` alone between two `/` is any number of folders, links to
    folders included. Names that start with a dot match only a pattern that does, too; a file of the
    very name of the pattern comes first.

    Raises:
        UsageError: the pattern names a folder, or matches one that `**` does not walk through; it
            matches a dangling link or something that is not a regular file; a folder cannot be
            listed; a link leads back to a folder that it lies in.
    """
    if os.path.isdir(pattern):
        raise _named_folder(pattern, pattern)
    if _is_present(pattern):
        return [local_file(pattern)]
    paths = dict.fromkeys(map(os.path.normpath, _paths("", _segments(pattern), ())))
    return [local_file(path) for path in sorted(paths)]


def walk_files(folder: str) -> list[str]:
    """Return the paths of all files below a folder as `**` finds them, relative to it and sorted.

    Dangling links are among them: the caller decides which files it needs.

    Raises:
        UsageError: a folder cannot be listed, or a link leads back to a folder that it lies in.
    """
    return sorted(os.path.relpath(path, folder) for path in _paths(folder, ["**"], ()))


def local_file(path: str) -> FoundFile:
    """Return a file as it is now.

    Raises:
        UsageError: it is no regular file, it cannot be read, or its name is not UTF-8.
    """
    try:
        path.encode()
        status = os.stat(path)
    except UnicodeEncodeError:
        raise UsageError(f"the name {path!r} is not UTF-8. Rename it.") from None
    except OSError as error:
        raise _dangling_link(path) if os.path.islink(path) else _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path!r} is no regular file. Leave it out.")
    return FoundFile(path, status.st_size, *[str(status.st_mtime_ns)] * 2)


def _segments(pattern: str) -> list[str]:
    """Cut a pattern at `/`; `**` after `**`, and `*` after it at the end, add nothing."""
    segments: list[str] = []
    for segment in pattern.split("/"):
        if segment != "**" or segments[-1:] != ["**"]:
            segments.append(segment)
    return segments[:-1] if segments[-2:] == ["**", "*"] else segments


def _paths(folder: str, segments: Sequence[str], above: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths that match below a folder, some of them more than once.

    Args:
        above: folders that `**` has walked through to get here.
    """
    segment, below = segments[0], segments[1:]
    if segment == "**":
        yield from _walked(folder, below, above)
        if below:
            yield from _paths(folder, below, ())
    elif WILDCARDS & set(segment):
        for entry in _entries(folder):
            if _fits(entry.name, segment):
                yield from _matching(entry, below)
    else:
        path = os.path.join(folder, segment) if folder or segment else "/"
        if below:
            yield from _paths(path, below, ())
        elif _is_present(path):
            if os.path.isdir(path):
                raise _matched_folder(path)
            yield path


def _walked(folder: str, below: Sequence[str], above: tuple[str, ...]) -> Iterator[str]:
    """Yield what `**` and the rest of the pattern match below the folders in a folder."""
    for entry in _entries(folder):
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            if entry.is_symlink():
                _refuse_loop(entry.path, (*above, folder))
            yield from _paths(entry.path, ["**", *below], (*above, folder))
        elif not below:
            yield entry.path


def _matching(entry: os.DirEntry[str], below: Sequence[str]) -> Iterator[str]:
    """Yield the path of an entry that fits, or of what fits the rest of the pattern below it."""
    if not _is_folder(entry):
        if not below:
            yield entry.path
    elif below:
        yield from _paths(entry.path, below, ())
    else:
        raise _matched_folder(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing if there is no such folder."""
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None


def _is_present(path: str) -> bool:
    """Return whether something has this name, even if it is a dangling link."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise _unreadable(path, error) from None
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one."""
    try:
        is_folder = entry.is_dir()
        # A dangling link may be an unmounted disk, except one with a suffix: git-annex makes those.
        if not is_folder and entry.is_symlink() and not os.path.splitext(entry.name)[1]:
            os.stat(entry.path)
    except FileNotFoundError:
        raise _dangling_link(entry.path) from None
    except OSError as error:
        raise _unreadable(entry.path, error) from None
    return is_folder


def _refuse_loop(link: str, folders: Sequence[str]) -> None:
    for folder in folders:
        if os.path.samefile(folder or ".", link):
            raise UsageError(
                f"{link!r} is a link back to {folder or '.'!r}, in which it lies: its files would "
                "be read over and over. Remove it, or write a pattern without '**'."
            )


def _named_folder(pattern: str, folder: str) -> UsageError:
    hint = f"{folder.rstrip('/')}/*"
    return UsageError(f"{pattern!r} is a folder. Name its files, as in {hint!r}.")


def _matched_folder(folder: str) -> UsageError:
    return UsageError(
        f"{folder!r} is a folder, and the pattern is to match files. Write a narrower one, or '**' "
        "to walk through folders."
    )


def _dangling_link(link: str) -> UsageError:
    return UsageError(
        f"{link!r} is a link that leads nowhere: there is no {os.readlink(link)!r}. Fetch what it "
        "leads to, or remove it."
    )


def _unreadable(path: str, error: OSError) -> UsageError:
    reason = system_reason(error)
    return UsageError(f"{path or '.'!r} cannot be read: {reason}. Nothing is left out: correct it.")
