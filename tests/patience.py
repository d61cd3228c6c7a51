"""How long tests wait for what may never come: by the product's time, not by the machine's.

On a machine with 16 processes for 2 cores everything takes eight times as long. A deadline that
tells a hang from slowness has to know.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_SECONDS = 1500
"""A child process that runs longer hangs: the slowest takes 60 s on an idle machine."""


def wait_until(condition: Callable[[], object], seconds: float = 60, poll: float = 0.02) -> None:
    """Wait for a condition.

    Args:
        seconds: on an idle machine; while n processes want each core, a second counts 1/n.

    Raises:
        AssertionError: it did not come true.
    """
    waited, before = 0.0, time.monotonic()
    while not condition():
        assert waited < seconds, f"not within {seconds} s of an idle machine"
        time.sleep(poll)
        now = time.monotonic()
        waited += (now - before) / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        before = now
