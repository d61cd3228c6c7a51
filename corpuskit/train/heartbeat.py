"""A heartbeat per rank, a watchdog that ends a rank without one, and the exit codes of ranks.

`OUTPUT/heartbeats/rank-00000.json` says what a rank does and since when. A thread writes it, at
most once a second, so a beat costs the loop one assignment, and a slow disk does not delay it.

A rank ends with one of these codes, by which a supervisor decides whether to start it again:

 0  finished
75  nothing is wrong here: a signal, a time limit, or the end of another rank. Run it again
76  a file of the data is damaged: it would fail again
77  a number is not finite, or the guard gave up: it would fail again
78  this rank hung, and ended itself. Run it again, a few times at most

Any other code is that of the command line: 1 an error, 2 the request is wrong and nothing ran.
torchrun ends with 1 whatever its ranks end with, so a rank also writes its code and the reason to
`OUTPUT/heartbeats/rank-00000.exit`, which a batch script can read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from corpuskit.errors import CorpuskitError, DataError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEUE = 75  # EX_TEMPFAIL
DATA_ERROR = 76
UNSOUND = 77
HANG = 78

FOLDER = "heartbeats"

_SOURCE_LOCATION = re.compile(r"\[[^\]\s]+:\d+\] ")  # with which gloo's messages begin

WRITE_SECONDS = 1.0
REPORT_SECONDS = 10.0  # to report a hang; then the process ends in any case
LEFT = ("end", "failed")  # phases of a rank that has left the loop
STDERR = 2  # the file descriptor: sys.stderr may have been replaced


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ends."""

    code: int
    line: str  # the reason, for people


def ending_of(error: BaseException) -> Ending | None:
    """Return how a rank ends after an error; None if the error is unexpected.

    When a rank dies, the others get an error of gloo or NCCL in a collective: they can run again.
    """
    cause = next((cause for cause in _causes(error) if _is_lost_peer(cause)), None)
    if cause is not None:
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        reason = _SOURCE_LOCATION.sub("", reason).partition(". ")[0]
        return Ending(REQUEUE, f"another rank ended: {reason}")
    if isinstance(error, DataError):
        return Ending(DATA_ERROR, f"error: {error}")
    if isinstance(error, CorpuskitError):
        return Ending(error.exit_code, f"error: {error}")
    if isinstance(error, OSError):
        return Ending(CorpuskitError.exit_code, f"error: {describe(error)}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; a checkpoint's error has a cause per rank."""
    stack, seen = [error], set()
    while stack:
        cause = stack.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        stack += [link for link in (cause.__context__, cause.__cause__) if link is not None]
        failures = getattr(cause, "failures", None)  # torch's CheckpointException
        if isinstance(failures, dict):
            stack += [pair[0] for pair in failures.values() if isinstance(pair, tuple)]


def _is_lost_peer(error: BaseException) -> bool:
    # By its name: a command without torch must not import it to inspect an error.
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):  # NCCL, stores, sockets
        return True
    # gloo's errors have no type of their own; they begin with a path in its source.
    path = _SOURCE_LOCATION.match(str(error))
    return type(error) is RuntimeError and path is not None and "/gloo/" in path[0]


def note_ending(output: str | os.PathLike[str], ending: Ending, rank: int | None = None) -> None:
    """Write code and reason to the run's folder, if possible: a full disk is not an error here.

    Args:
        output: of the run.
        ending: of this rank.
        rank: RANK of torchrun when absent.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    path = Path(output, FOLDER, f"rank-{rank:05d}.exit")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".exit.tmp")
        line = " ".join(ending.line.split())
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
        partial.write_text(f"{ending.code} {line}\n", encoding="utf-8")
        partial.replace(path)


def read_endings(output: str | os.PathLike[str]) -> dict[int, Ending]:
    """Return how the ranks have ended, by rank."""
    endings = {}
    for path in sorted(Path(output, FOLDER).glob("rank-*.exit")):
        with contextlib.suppress(OSError, ValueError):  # UnicodeError is a ValueError
            code, _, line = path.read_text("utf-8").strip().partition(" ")
            endings[int(path.stem.removeprefix("rank-"))] = Ending(int(code), line)
    return endings


@dataclass(frozen=True, slots=True)
class RankHeartbeat:
    """The content of a heartbeat file."""

    rank: int
    host: str
    pid: int
    step: int  # being taken, as the loader counts
    phase: str  # since `time`; "end" or "failed" when the rank has left the loop
    time: float  # of the last beat, seconds since 1970 on the rank's host
    started: float  # when the rank entered the loop, seconds since 1970


class HeartbeatWriter:
    """Writes this rank's heartbeat while entered, and ends the process when the beats stop.

    After `hang_seconds` without a beat, the stacks of all threads go to stderr and to
    `heartbeats/rank-00000.stacks`, and the process ends with code 78. That needs no other rank and
    no other clock. A call that never releases the interpreter's lock stops the watching thread as
    well; then faulthandler, which needs no lock, ends the process after 1.25 to 1.5 times as long,
    with code 1 and the stacks.

    Args:
        output: of the run.
        rank: of this process.
        hang_seconds: longest time between two beats.
    """

    def __init__(self, output: str | os.PathLike[str], rank: int, hang_seconds: float) -> None:
        self._folder, self._output = Path(output, FOLDER), output
        self._rank, self._hang_seconds = rank, hang_seconds
        self._name = f"rank-{rank:05d}"
        self._host, self._started = socket.gethostname(), time.time()
        self._last = (0, "start", time.monotonic())
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._stacks: IO[str] | None = None

    def beat(self, step: int, phase: str) -> None:
        """Record that a phase begins now. Takes half a microsecond.

        Args:
            step: being taken, as the loader counts.
            phase: "data", "step", "checkpoint", "evaluate", "rollback" or another name.
        """
        self._last = (step, phase, time.monotonic())

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{self._name}.exit").unlink(missing_ok=True)
        # Opened now: in a hang it may be impossible to open a file.
        self._stacks = (self._folder / f"{self._name}.stacks").open("a")
        self.beat(0, "start")
        self._write()
        self._arm()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        assert self._thread is not None, "entered"
        assert self._stacks is not None, "entered"
        self._left.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
        path = self._folder / f"{self._name}.stacks"
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
        self.beat(self._last[0], "end" if error is None else "failed")
        self._write()

    def _watch(self) -> None:
        tick = min(WRITE_SECONDS, self._hang_seconds / 8)
        last_written, armed = self._last, time.monotonic()
        while not self._left.wait(tick):
            last, now = self._last, time.monotonic()
            if now - last[2] >= self._hang_seconds:
                self._end(*last)
            if now - armed >= self._hang_seconds / 4:
                self._arm()
                armed = now
            if last is not last_written:
                self._write()
                last_written = last

    def _arm(self) -> None:
        """Have faulthandler end the process unless this is called again in time.

        Python has one such timer per process: of two writers, the one that armed it last owns it,
        until the other one arms it again at its next turn.
        """
        assert self._stacks is not None, "entered"
        faulthandler.dump_traceback_later(1.5 * self._hang_seconds, exit=True, file=self._stacks)

    def _end(self, step: int, phase: str, since: float) -> None:
        assert self._stacks is not None, "entered"
        # The process must end even if the lines below block (a full pipe, a dead disk).
        faulthandler.dump_traceback_later(REPORT_SECONDS, exit=True, file=self._stacks)
        silent = time.monotonic() - since
        line = (
            f"rank {self._rank} on {self._host}: step {step}, phase {phase}: no sign of life for "
            f"{silent:.0f} s. Every thread's stack is in {self._stacks.name}. Ending with {HANG}."
        )
        print(f"{time.strftime('%F %T')} {line}", file=self._stacks, flush=True)
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        note_ending(self._output, Ending(HANG, line), self._rank)
        faulthandler.dump_traceback(STDERR, all_threads=True)
        os.write(STDERR, f"{line}\n".encode())
        os._exit(HANG)

    def _write(self) -> None:
        step, phase, since = self._last
        beat = RankHeartbeat(
            rank=self._rank,
            host=self._host,
            pid=os.getpid(),
            step=step,
            phase=phase,
            time=time.time() - (time.monotonic() - since),
            started=self._started,
        )
        path = self._folder / f"{self._name}.json"
        # A heartbeat that can't be written does not end training: on a full disk, a save will.
        with contextlib.suppress(OSError):
            partial = path.with_suffix(".json.tmp")
            partial.write_text(json.dumps(asdict(beat)))
            partial.replace(path)


def read_heartbeats(output: str | os.PathLike[str]) -> list[RankHeartbeat]:
    """Return the last heartbeats of all ranks that have ever written one, ordered by rank."""
    names, heartbeats = [field.name for field in fields(RankHeartbeat)], []
    for path in sorted(Path(output, FOLDER).glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content: dict[str, Any] = json.loads(path.read_bytes())
            heartbeats.append(RankHeartbeat(**{name: content[name] for name in names}))
    return heartbeats
