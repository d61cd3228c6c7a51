"""CPU time that a process spends on compiling kernels; listeners for the begin of a compilation."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class _Clock(threading.local):
    """How many compilations a thread is in: a kernel compiles the kernels that it calls."""

    depth = 0


_CLOCK = _Clock()
_LOCK = threading.Lock()
_SPENT = [0.0]
_LISTENERS: list[Callable[[], None]] = []


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Charge the CPU time of this thread to compilation."""
    _CLOCK.depth += 1
    began = time.thread_time()
    try:
        yield
    finally:
        _CLOCK.depth -= 1
        if not _CLOCK.depth:
            with _LOCK:
                _SPENT[0] += time.thread_time() - began


def compile_seconds() -> float:
    """Return the CPU seconds that this process has spent on compiling and loading kernels."""
    return _SPENT[0]


def on_compile(listener: Callable[[], None]) -> contextlib.ExitStack:
    """Call `listener` before each compilation until the returned stack is closed.

    A kernel that is loaded from the cache is not compiled.
    """
    _LISTENERS.append(listener)
    listening = contextlib.ExitStack()
    listening.callback(_LISTENERS.remove, listener)
    return listening


def begin_compile() -> None:
    """Call the listeners: a kernel is about to be compiled."""
    for listener in _LISTENERS:
        listener()
