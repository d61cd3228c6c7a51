"""Reads damaged files in processes of their own, which may die, hang or grow without end."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from corpuskit.errors import CorpuskitError
from tests.conftest import ROOT
from tests.faults.soak import say
from tests.fuzz.formats import FORMATS, case, good_files

CPU_SECONDS = 15
"""A case that takes longer hangs; a usual one takes 0.01."""

GROWN_BYTES = 600 << 20
"""A case that takes more memory than this, on files of some kilobytes, is a bomb."""

SPACE_BYTES = 8 << 30
"""Address space that a process may take more than when it starts."""


ARROW = "aborted by Arrow"
"""pyarrow 26 ends the process over some footers that lie, in getters that cannot raise: 4 cases of
6,000. Nothing is lost, and it is loud, but it is no message of ours."""

EXPECTED = ("read", "refused", ARROW)


class Verdict(NamedTuple):
    """What became of a case: one of EXPECTED, or what is wrong."""

    seed: int
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    grown_bytes: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether it is a finding."""
        return self.outcome not in EXPECTED


def judge(name: str, seed: int, folder: Path) -> Verdict:
    """Read the damaged file of a seed in this process."""
    path, good, bad = case(name, seed, folder)
    _forget_peak()
    before, began = _status("VmRSS"), time.process_time()
    outcome, detail = "read", ""
    try:
        FORMATS[name].read(path, good, bad)
    except CorpuskitError as error:
        outcome, detail = "refused", str(error)
        if str(path) not in detail:
            outcome = "does not name the file"
        elif "\n" in detail:
            outcome = "more than a line"
    except BaseException as error:  # noqa: BLE001 - Rust panics are no Exception
        outcome = f"{type(error).__name__}: {str(error)[:200]}"
        detail = traceback.format_exc(limit=-3)
    seconds, grown = time.process_time() - began, _status("VmHWM") - before
    if grown > GROWN_BYTES:
        outcome, detail = "takes too much memory", f"{grown >> 20} MiB, {outcome}: {detail}"
    return Verdict(seed, outcome, detail, seconds, grown)


def serve(name: str, first: int, last: int) -> None:
    """Judge a range of seeds and print one JSON object for each; the child's part."""
    good_files(name)
    say("ready")
    space = _status("VmSize") + SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            verdict = judge(name, seed, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0)
            say(json.dumps(verdict._asdict()))


def fuzz(name: str, first: int, num: int) -> list[Verdict]:
    """Judge seeds in child processes; one that dies is a finding, and a new one goes on."""
    found: list[Verdict] = []
    while len(found) < num:
        command = [sys.executable, "-m", "tests.fuzz", "--serve", name]
        command += [str(first + len(found)), str(first + num)]
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = child.communicate()
        found += [Verdict(**json.loads(line)) for line in out.splitlines() if line[:1] == "{"]
        if not out.startswith("ready"):
            raise RuntimeError(f"no case was tried: {err}")
        if child.returncode and len(found) < num:
            reason = f"died: {_ending(child.returncode)}"
            if child.returncode == -signal.SIGABRT and "'parquet::ParquetException'" in err:
                reason = ARROW
            found.append(Verdict(first + len(found), reason, err[-600:]))
    return found


def _ending(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"more than {CPU_SECONDS} CPU s"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _status(field: str) -> int:
    """Return a line of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def _forget_peak() -> None:
    """Begin to measure the most memory held anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
