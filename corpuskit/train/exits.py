"""With which code a rank ends, and why: what a supervisor needs to start it again or not.

 0  finished
75  nothing is wrong here: a signal, the clock, or the end of another rank. Run it again
76  a file of the data is broken: it will be the next time, too
77  a number is none, or the guard gave up: it will the next time, too
78  this rank hung, and ended itself. Run it again, a few times at most

Any other code is that of the command line: 1 an error, 2 the request is wrong and nothing ran.
torchrun ends with 1 whatever its ranks end with. So a rank leaves its code and the reason in
`OUTPUT/heartbeats/rank-00000.exit`: what a batch script reads to decide.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.errors import CorpuskitError, DataError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEUE = 75  # EX_TEMPFAIL
DATA_ERROR = 76
UNSOUND = 77
HANG = 78

FOLDER = "heartbeats"

_PLACE = re.compile(r"\[[^\]\s]+:\d+\] ")  # in the source of gloo


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ends."""

    code: int
    line: str  # why, for people


def ending_of(error: BaseException) -> Ending | None:
    """Return how a rank ends after an error; None if the error is none that is expected.

    When a rank dies, the others hear of it in the midst of a collective, as an error of gloo or
    NCCL: nothing is wrong with them.
    """
    lost = next((one for one in _chain(error) if _is_lost_peer(one)), None)
    if lost is not None:
        reason = (str(lost).strip().splitlines() or [type(lost).__name__])[0]
        reason = _PLACE.sub("", reason).partition(". ")[0]
        return Ending(REQUEUE, f"another rank ended: {reason}")
    if isinstance(error, DataError):
        return Ending(DATA_ERROR, f"error: {error}")
    if isinstance(error, CorpuskitError):
        return Ending(error.exit_code, f"error: {error}")
    if isinstance(error, OSError):
        return Ending(CorpuskitError.exit_code, f"error: {describe(error)}")
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from; a checkpoint's error has one per rank."""
    found, seen = [error], set()
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += [cause for cause in (one.__context__, one.__cause__) if cause is not None]
        failures = getattr(one, "failures", None)  # torch's CheckpointException
        if isinstance(failures, dict):
            found += [pair[0] for pair in failures.values() if isinstance(pair, tuple)]


def _is_lost_peer(error: BaseException) -> bool:
    # By name: a command that needs no torch should not load it to look at an error.
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):  # NCCL, stores, sockets
        return True
    # gloo's errors have no type of their own; they begin with the place in its source.
    place = _PLACE.match(str(error))
    return type(error) is RuntimeError and place is not None and "/gloo/" in place[0]


def note_ending(output: str | os.PathLike[str], ending: Ending, rank: int | None = None) -> None:
    """Leave code and reason in the run's folder, as well as it goes: a full disk is no new error.

    Args:
        output: of the run.
        ending: of this rank.
        rank: as torchrun says when absent.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    place = Path(output, FOLDER, f"rank-{rank:05d}.exit")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_suffix(".exit.tmp")
        line = " ".join(ending.line.split())
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
        partial.write_text(f"{ending.code} {line}\n", encoding="utf-8")
        partial.replace(place)


def read_endings(output: str | os.PathLike[str]) -> dict[int, Ending]:
    """Return what the ranks left at their end, by rank."""
    found = {}
    for place in sorted(Path(output, FOLDER).glob("rank-*.exit")):
        with contextlib.suppress(OSError, ValueError):  # UnicodeError is a ValueError
            code, _, line = place.read_text("utf-8").strip().partition(" ")
            found[int(place.stem.removeprefix("rank-"))] = Ending(int(code), line)
    return found
