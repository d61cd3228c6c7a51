"""What a run tells: a JSON line per step, a line of progress now and then, and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from corpuskit.train.health import REQUEUE, NonFiniteError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The loss on one source's tokens in one step."""

    loss: float  # nats per labelled token
    bits_per_byte: float | None  # of the rows' text; None if the shards don't give its bytes
    tokens: int  # labelled ones; the first token of a document is none


@dataclass(frozen=True, slots=True)
class Progress:
    """One step as it was: a line of metrics.jsonl."""

    step: int  # as the loader counts, from 0; `corpuskit trace --step` takes it
    steps: int  # of the whole run
    tokens: int  # consumed so far, this step and padding included
    loss: float  # nats per labelled token, without z-loss
    lr: float
    grad_norm: float  # before clipping
    tokens_per_second: float  # of all ranks together, in this step
    step_seconds: float  # waiting for rows included
    data_wait_seconds: float  # that rank 0 waited for the loader
    sources: dict[str, SourceLoss]  # by name; those with labelled tokens in the step

    def __str__(self) -> str:
        sources = " ".join(f"{name} {one.loss:.3f}" for name, one in self.sources.items())
        return (
            f"{self.step + 1}/{self.steps} steps  loss {self.loss:.4f}  lr {self.lr:.2e}  "
            f"grad {self.grad_norm:.2f}  {self.tokens_per_second:,.0f} tok/s  "
            f"wait {1000 * self.data_wait_seconds:.1f} ms  {sources}"
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended."""

    steps_done: int  # over all its starts
    steps: int  # of the whole run
    tokens: int  # consumed over all its starts, padding included
    loss: float | None  # of the last step, as in Progress; None if there was no step left to do
    seconds: float  # of this start
    checkpoint: Path | None  # the newest one
    stopped_by: str | None  # the signal that ended it early

    @property
    def exit_code(self) -> int:
        """0 if the run is finished, else 75: run the same command again."""
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
    names: Sequence[str], totals: Sequence[float], tokens: Sequence[float], sizes: Sequence[float]
) -> dict[str, SourceLoss]:
    """Turn summed losses, labelled tokens and bytes of text per source into means."""
    return {
        name: SourceLoss(
            loss=total / count,
            bits_per_byte=total / math.log(2) / size if size else None,
            tokens=int(count),
        )
        for name, total, count, size in zip(names, totals, tokens, sizes, strict=True)
        if count
    }


class Journal:
    """`metrics.jsonl`, one line per step, and `events.jsonl`, one per start, end and failure.

    Opened when `done` steps are done, it drops the lines of later ones, which a killed run took but
    did not
    save: a step has one line, however often the run was killed.
    """

    def __init__(self, output: Path, done: int) -> None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / "metrics.jsonl"
        if path.exists():
            _truncate(path, done)
        self._metrics = path.open("a", buffering=1)
        self._events = (output / "events.jsonl").open("a", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            rows = {"rows": error.rows} if isinstance(error, NonFiniteError) else {}
            self.event("failed", error=type(error).__name__, message=str(error), **rows)
        self._metrics.close()
        self._events.close()

    def step(self, progress: Progress) -> None:
        """Write one step."""
        print(json.dumps(asdict(progress)), file=self._metrics)

    def event(self, kind: str, **fields: Any) -> None:
        """Write one event; what JSON has no word for is written as text."""
        print(json.dumps({"event": kind, **fields}, default=str), file=self._events)


def _truncate(path: Path, done: int) -> None:
    """Cut a metrics file at its first line that is torn or of a step after the first `done`."""
    with path.open("rb+") as file:
        end = 0
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["step"] >= done:
                break
            end += len(line)
        file.truncate(end)
