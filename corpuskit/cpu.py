"""CPU time of this process and of those that work for it."""

from __future__ import annotations

import resource
import time

_running: dict[int, float] = {}
"""Process -> CPU seconds that it reported; the kernel counts only processes that ended."""


def cpu_seconds() -> float:
    """Return CPU seconds of this process, all its threads, and its children, running or ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(_running.values())


def note_running(process: int, seconds: float) -> None:
    """Note the CPU seconds that a running child reports of itself."""
    _running[process] = seconds


def note_ended(process: int) -> None:
    """Forget what a child reported that has ended and was waited for: the kernel counts it now."""
    _running.pop(process, None)
