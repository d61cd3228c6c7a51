"""Every error corpuskit raises on purpose.

CorpuskitError                 exit code 1
  TaskError                    tasks of a phase failed; the others finished
  UsageError                   the request is wrong and nothing was run; exit code 2
    ConfigError                points at file, line and column of a YAML file
  DataError                    data on disk breaks a promise; exit code 3
  ContractError                a run did what `expect` does not allow; exit code 4

A message reads `place: what is wrong, with the value. What to do.`
"""

from __future__ import annotations

import contextlib
import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class CorpuskitError(Exception):
    """Base of the errors a caller may catch; `exit_code` is what the command line returns."""

    exit_code = 1


class TaskError(CorpuskitError):
    """One or more tasks of a phase failed after their retries."""


class UsageError(CorpuskitError):
    """The request is wrong and nothing was run."""

    exit_code = 2


class ConfigError(UsageError):
    """A YAML file is wrong at a known line.

    Args:
        where: `file:line:column`.
        problem: one sentence with the value found.
        hint: what to do.
    """

    def __init__(self, where: str, problem: str, hint: str = "") -> None:
        self.where, self.problem, self.hint = where, problem, hint
        super().__init__(f"{where}: {problem}" + (f" {hint}" if hint else ""))


class DataError(CorpuskitError):
    """The data on disk breaks a promise made by a manifest, a schema or a format."""

    exit_code = 3


class ContractError(CorpuskitError):
    """A stage did what `expect` of the pipeline file does not allow; what is finished is kept."""

    exit_code = 4


MAX_SUGGESTED = 40
"""A hint names at most this many; a language model may have 2,000 labels."""


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return a closing hint that names the nearest of `choices`, or all of them up to a number."""
    names = sorted(choices)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if matches:
        return f"Did you mean {matches[0]!r}?"
    omitted = f" and {len(names) - MAX_SUGGESTED} more" if len(names) > MAX_SUGGESTED else ""
    return f"Known: {', '.join(names[:MAX_SUGGESTED])}{omitted}."


def listing(names: Iterable[str], limit: int = 5) -> str:
    """Return names for a message: the first few, and how many more there are."""
    sorted_names = sorted(names)
    omitted = f" and {len(sorted_names) - limit} more" if len(sorted_names) > limit else ""
    return ", ".join(map(repr, sorted_names[:limit])) + omitted


def reason_of(error: BaseException | str) -> str:
    """Return a library's message as part of a line: no line breaks, no final period, not long."""
    reason = " ".join(str(error).split()).rstrip(".")
    return reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]} ..."


MAX_REASON = 400
"""Characters; some libraries quote the whole file."""


def system_reason(error: OSError) -> str:
    """Return why a call of the operating system failed, to be used inside a sentence."""
    return (error.strerror or str(error)).lower()


_ADVICE = {
    28: " Free disk space and run again: finished tasks are kept.",
    13: " Check the permissions.",
    27: " The file size limit is too low (ulimit -f).",
    24: " Raise the limit of open files (ulimit -n).",
    122: " The disk quota is used up. Free space and run again: finished tasks are kept.",
}


def describe(error: BaseException) -> str:
    """Return an error of the operating system or a library as one line with advice."""
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE.get(error.errno or 0, "")
        reason = error.strerror[:1].lower() + error.strerror[1:]
        return f"{name}{reason} (errno {error.errno}).{advice}"
    if isinstance(error, MemoryError):
        return "out of memory. Use fewer workers or smaller cells (cell_bytes)."
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {reason}' if reason else ''}{notes}"


@contextlib.contextmanager
def noting(context: str) -> Iterator[None]:
    """Add to an unexpected error what was being worked on, which `describe` then prints."""
    try:
        yield
    except CorpuskitError:
        raise
    except Exception as error:
        error.add_note(context)
        raise


# Control characters but line feed and tab, marks of text direction, and lone surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text without characters that a terminal would obey; escapes show them, as in JSON."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
