"""What a run tells: one JSON line per step, one line of progress now and then."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from corpuskit.train.health import REQUEUE

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The loss on one source's tokens in one step.

    Attributes:
        loss: nats per labelled token.
        bits_per_byte: the same per byte of text, by the source's mean bytes per token; None if unknown.
        tokens: labelled tokens.
    """

    loss: float
    bits_per_byte: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One step as it was: a line of metrics.jsonl.

    Attributes:
        step: as the loader counts, from 0: `trace --step` takes it.
        steps: of the whole run.
        tokens: consumed so far, this step included, padding counted.
        loss: nats per labelled token, without z-loss.
        lr: learning rate of the step.
        grad_norm: before clipping.
        tokens_per_second: of all ranks together, in this step.
        step_seconds: of this step, data wait included.
        data_wait_seconds: in which rank 0 waited for the loader.
        sources: by name; only those that had tokens in the step.
    """

    step: int
    steps: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float
    step_seconds: float
    data_wait_seconds: float
    sources: dict[str, SourceLoss]

    def __str__(self) -> str:
        sources = " ".join(f"{name} {one.loss:.3f}" for name, one in self.sources.items())
        return (
            f"{self.step + 1}/{self.steps} steps  loss {self.loss:.4f}  lr {self.lr:.2e}  "
            f"grad {self.grad_norm:.2f}  {self.tokens_per_second:,.0f} tok/s  "
            f"wait {1000 * self.data_wait_seconds:.1f} ms  {sources}"
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended.

    Attributes:
        steps_done: over all its starts.
        steps: of the whole run.
        tokens: consumed over all its starts, padding counted.
        loss: of the last step that this start took, nats per labelled token; None if it took none.
        seconds: of this start.
        checkpoint: the newest one; None if there is none.
        stopped_by: name of the signal that ended it early, or None.
    """

    steps_done: int
    steps: int
    tokens: int
    loss: float | None
    seconds: float
    checkpoint: Path | None
    stopped_by: str | None

    @property
    def exit_code(self) -> int:
        """Return 0 if the run is finished, else 75: run the same command again."""
        return REQUEUE if self.stopped_by else 0

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        how = f"stopped by {self.stopped_by}" if self.stopped_by else "finished"
        return (
            f"{how} after {self.steps_done} of {self.steps} steps, {self.tokens:,} tokens{loss}, "
            f"{self.seconds:.1f} s; checkpoint {self.checkpoint}"
        )


Observer = Callable[[Progress | TrainResult], None]


def source_losses(
    names: Sequence[str],
    bytes_per_token: Sequence[float],
    sums: Sequence[float],
    counts: Sequence[float],
) -> dict[str, SourceLoss]:
    """Turn each source's summed loss and number of labelled tokens into means."""
    found = {}
    for name, size, total, count in zip(names, bytes_per_token, sums, counts, strict=True):
        if count:
            loss = total / count
            bits = loss / math.log(2) / size if size else None
            found[name] = SourceLoss(loss, bits, int(count))
    return found


class Journal:
    """Rank 0's files: `metrics.jsonl`, one line per step, and `events.jsonl`, one line per event.

    Opened at step n, it drops the lines of steps n and later, which a killed run did but did not save: so
    each step has one line, however often the run was killed.
    """

    def __init__(self, folder: Path, next_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        if path.exists():
            with path.open("rb+") as file:
                end = 0
                for line in file:
                    if not line.endswith(b"\n") or json.loads(line)["step"] >= next_step:
                        break
                    end += len(line)
                file.truncate(end)
        self._metrics = path.open("a", buffering=1)
        self._events = (folder / "events.jsonl").open("a", buffering=1)

    def step(self, progress: Progress) -> None:
        """Write one step."""
        print(json.dumps(asdict(progress)), file=self._metrics)

    def event(self, kind: str, **fields: Any) -> None:
        """Write one event."""
        print(json.dumps({"event": kind, **fields}), file=self._events)

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._events.close()
