"""What can stop a run before its end: signals, and numbers that are none."""

from __future__ import annotations

import math
import signal
import threading
from typing import TYPE_CHECKING, Self

from corpuskit.errors import CorpuskitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # a scheduler's end, and Slurm's warning before it
REQUEUE = 75  # exit code: nothing is wrong, run the same command again (EX_TEMPFAIL)
NAMED_ROWS = 8  # rows that the message names; events.jsonl has all


class NonFiniteError(CorpuskitError):
    """The loss or the gradient of a step is not finite; the step was not applied.

    Args:
        step: as the loader counts, from 0.
        loss: of the whole step.
        grad_norm: of the whole step, before clipping.
        rows: (`source/row`, summed loss) of every row of the step.
    """

    exit_code = 77

    def __init__(
        self, step: int, loss: float, grad_norm: float, rows: Sequence[tuple[str, float]]
    ) -> None:
        self.step, self.rows = step, list(rows)
        bad = [name for name, value in rows if not math.isfinite(value)]
        names = bad or [name for name, _ in rows]
        found = "rows without a finite loss" if bad else "every row's loss is finite; rows"
        more = f" and {len(names) - NAMED_ROWS} more" if len(names) > NAMED_ROWS else ""
        super().__init__(
            f"step {step}: loss {loss:.6g}, gradient norm {grad_norm:.6g}; not applied; "
            f"{found}: {', '.join(names[:NAMED_ROWS])}{more}. "
            "Look at them with `corpuskit trace`, skip them, or lower optimizer.lr."
        )


class StopSignals:
    """Notes the first SIGTERM or SIGUSR1 while entered; the loop looks at the end of each step.

    Only a main thread may set handlers; in any other one this notes nothing.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[signal.Signals, Callable[..., object] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
