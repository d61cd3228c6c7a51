"""A sign of life per rank, and the end of a rank that gives none.

`OUTPUT/heartbeats/rank-00000.json` says what a rank does and since when. A thread writes it, at
most once a second, so a beat costs the loop an assignment, and a slow disk no time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from corpuskit.train.exits import FOLDER, HANG, Ending, note_ending

if TYPE_CHECKING:
    from types import TracebackType

WRITE_SECONDS = 1.0
LAST_SECONDS = 10.0  # to tell of a hang
LEFT = ("end", "failed")  # phases of a rank that has left the loop
STDERR = 2  # the file descriptor: sys.stderr may be anything by now


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat file says."""

    rank: int
    host: str
    pid: int
    step: int  # in hand, as the loader counts
    phase: str  # begun at `time`; "end" or "failed" when the rank has left the loop
    time: float  # of the last beat, seconds since 1970 on the rank's host
    started: float  # when the rank entered the loop, likewise


class Pulse:
    """Writes this rank's heartbeat while entered, and ends the process when the beats stop.

    After `hang_seconds` without a beat, the stacks of all threads go to stderr and to
    `heartbeats/rank-00000.stacks`, and the process ends with code 78. Nothing is asked of other
    ranks, and no clock but this process's counts. A call that never gives back the interpreter's
    lock stops the thread that looks; then faulthandler, which needs no lock, does the same after
    1.25 to 1.5 times as long, and the code is 1: the stacks are all that says why.

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
        """Say what begins now. Costs half a microsecond.

        Args:
            step: in hand, as the loader counts.
            phase: "data", "step", "checkpoint", "evaluate", "rollback" or another word.
        """
        self._last = (step, phase, time.monotonic())

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{self._name}.exit").unlink(missing_ok=True)
        # Opened now: at the time of need there may be no way to open a file.
        self._stacks = (self._folder / f"{self._name}.stacks").open("a")
        self.beat(0, "start")
        self._write()
        self._arm()
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None, "entered"
        assert self._stacks is not None, "entered"
        self._left.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
        place = self._folder / f"{self._name}.stacks"
        with contextlib.suppress(OSError):
            if not place.stat().st_size:
                place.unlink()
        self.beat(self._last[0], "end" if error is None else "failed")
        self._write()

    def _watch(self) -> None:
        tick = min(WRITE_SECONDS, self._hang_seconds / 8)
        written, armed = self._last, time.monotonic()
        while not self._left.wait(tick):
            last, now = self._last, time.monotonic()
            if now - last[2] >= self._hang_seconds:
                self._end(*last)
            if now - armed >= self._hang_seconds / 4:
                self._arm()
                armed = now
            if last is not written:
                self._write()
                written = last

    def _arm(self) -> None:
        """Have faulthandler end the process unless this is called again in time.

        Python has one such timer per process: of two pulses, the one that arms it last has it, and
        the other takes it again at its next turn.
        """
        assert self._stacks is not None, "entered"
        faulthandler.dump_traceback_later(1.5 * self._hang_seconds, exit=True, file=self._stacks)

    def _end(self, step: int, phase: str, since: float) -> None:
        assert self._stacks is not None, "entered"
        # Whatever blocks the lines below (a full pipe, a dead disk): it ends all the same.
        faulthandler.dump_traceback_later(LAST_SECONDS, exit=True, file=self._stacks)
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
        beat = Beat(
            rank=self._rank,
            host=self._host,
            pid=os.getpid(),
            step=step,
            phase=phase,
            time=time.time() - (time.monotonic() - since),
            started=self._started,
        )
        place = self._folder / f"{self._name}.json"
        # Training does not end for want of a heartbeat: a full disk shows when something is saved.
        with contextlib.suppress(OSError):
            partial = place.with_suffix(".json.tmp")
            partial.write_text(json.dumps(asdict(beat)))
            partial.replace(place)


def read_beats(output: str | os.PathLike[str]) -> list[Beat]:
    """Return the last heartbeat of every rank that ever had one, by rank."""
    found = []
    for place in sorted(Path(output, FOLDER).glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            known: dict[str, Any] = json.loads(place.read_bytes())
            found.append(Beat(**{one.name: known[one.name] for one in fields(Beat)}))
    return found
