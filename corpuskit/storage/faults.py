"""Fault points: the steps of a commit, where a test may fail, die or wait.

Production code calls `fault_point("publish:moved", name)` between two steps. Nothing happens there
unless a test has installed a hook. A hook may raise OSError (the disk is full, the store answers
503), raise `Death` (the process is gone: nothing after this point happens, no clean-up either), or
sleep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Hook = Callable[[str, str], None]

STEPS = (
    "write:before", "write:after",
    "adopt:before", "adopt:moved", "adopt:after",
    "publish:before", "publish:synced", "publish:moved", "publish:after",
    "put:before", "put:written", "put:synced", "put:moved", "put:after",
    "read:before", "size:before", "list:before", "delete:before", "delete:after",
    "clear:before", "clear:after", "folder:made", "task:manifest",
    "send:put", "send:delete",
)  # fmt: skip
"""Every step there is; a store passes those that it has."""

_hook: Hook | None = None


class Death(BaseException):
    """A process that dies here: no handler cleans up after it."""


def fault_point(step: str, name: str) -> None:
    """Call the hook of a test, if one is installed.

    Args:
        step: one of STEPS.
        name: the file that is being committed.
    """
    if _hook is not None:
        _hook(step, name)


@contextlib.contextmanager
def cleaning(clean_up: Callable[[], None]) -> Iterator[None]:
    """Clean up when the block ends, whatever ends it but the death of the process."""
    try:
        yield
    except Death:
        raise
    except BaseException:
        clean_up()
        raise
    clean_up()


def install_hook(hook: Hook | None) -> None:
    """Have `hook(step, name)` called at every fault point; None removes the hook."""
    global _hook  # noqa: PLW0603 - one switch for the process, as a fault is
    _hook = hook
