"""Lists that users keep in files: one entry a line, UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from corpuskit.errors import UsageError

COMMENT = "#"
FILE = "@"


def read_entries(path: str, *, comments: bool = False) -> Iterator[str]:
    """Yield the entries of a file, stripped, without empty lines.

    Args:
        path: the file.
        comments: leave out lines that begin with `#`.

    Raises:
        UsageError: it cannot be read, is no UTF-8, or has no entry.
    """
    is_empty = True
    try:
        with Path(path).open(encoding="utf-8-sig") as lines:
            for line in lines:
                entry = line.strip()
                if entry and not (comments and line[0] == COMMENT):
                    is_empty = False
                    yield entry
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot be read: {reason}. Check the path.") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: byte {error.start} is no UTF-8. A list has one entry a line, in UTF-8."
        ) from None
    if is_empty:
        raise UsageError(f"{path}: has no entry. A list has one entry a line.")


def versions(paths: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return a cache key that changes when files do; 0 for a file that does not exist."""
    states = []
    for path in paths:
        try:
            stat = Path(path).stat()
        except OSError:
            states.append((0, 0))
        else:
            states.append((stat.st_mtime_ns, stat.st_size))
    return tuple(states)


def file_of(entry: str) -> str | None:
    """Return the path in a parameter's `@path`, None if it is an entry itself."""
    return entry[len(FILE) :] if entry.startswith(FILE) else None


def files_in(*lists: Iterable[str]) -> tuple[str, ...]:
    """Return the files that the entries of parameters name."""
    return tuple(path for names in lists for entry in names if (path := file_of(entry)) is not None)
