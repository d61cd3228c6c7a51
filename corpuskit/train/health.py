"""What can stop a run before its end: signals, and numbers that are none."""

from __future__ import annotations

import math
import signal
import threading
from typing import TYPE_CHECKING, Self

from corpuskit.errors import CorpuskitError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's end, and Slurm's warning before it
REQUEUE = 75  # exit code: not finished, nothing wrong, run the same command again (EX_TEMPFAIL)
NAMED_ROWS = 8  # rows that an error message lists; events.jsonl has all


class NonFiniteError(CorpuskitError):
    """The loss or the gradient of a step is not finite; the step was not applied."""

    exit_code = 77


class StopSignals:
    """Notes the first SIGTERM or SIGUSR1 while entered; the loop asks at the end of each step.

    Only the main thread can set handlers; in another one this notes nothing.
    """

    def __init__(self) -> None:
        self.received: str | None = None

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name


def require_finite(step: int, loss: float, grad_norm: float, rows: Sequence[tuple[str, float]]) -> None:
    """Refuse to go on from a step whose loss or gradient norm is not finite.

    Args:
        step: as the loader counts, from 0.
        loss: of the whole step.
        grad_norm: of the whole step, before clipping.
        rows: (`source/row`, summed loss) of this rank's rows.

    Raises:
        NonFiniteError: names the step and the rows: those whose own loss is not finite, if any.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    what = f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {grad_norm} at loss {loss:.4f}"
    bad = [name for name, value in rows if not math.isfinite(value)]
    role = "Rows with no finite loss" if bad else "No single row stands out; rows"
    names = bad or [name for name, _ in rows]
    more = f" and {len(names) - NAMED_ROWS} more" if len(names) > NAMED_ROWS else ""
    raise NonFiniteError(
        f"step {step}: {what}; the step was not applied. {role}: "
        f"{', '.join(names[:NAMED_ROWS])}{more}. "
        "See them with `corpuskit trace`; lower optimizer.lr, or skip the rows."
    )
