"""What a run reports: files of JSON lines, lines for people, and how it ended."""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from corpuskit.errors import CorpuskitError, DataError, describe
from corpuskit.storage import LocalStore
from corpuskit.train.heartbeat import REQUEUE

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.loader.state import SourceShare

WAIT_STEPS = 1000  # over which percentiles of waits are taken
SHOWN_SOURCES = 8  # in a line of progress
FILES = ("metrics", "evaluations", "mixture", "experts", "events")


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The loss on one source's tokens, in one step or over its held-out documents."""

    loss: float  # nats per labelled token
    bits_per_byte: float | None  # of the rows' text; None if the shards lack its bytes
    tokens: int  # with a label; the first token of a document has none


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """How evenly tokens are spread over the experts of a mixture, in one step."""

    imbalance: float  # of the most uneven layer: tokens of its fullest expert / mean
    idle: int  # experts of all layers that got no token

    def __str__(self) -> str:
        idle = f", {self.idle} idle" if self.idle else ""
        return f"experts {self.imbalance:.2f} of the mean at most{idle}"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step: a line of metrics.jsonl."""

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
    mfu: float | None  # of the devices' peak, from 0 to 1; None where that is unknown
    data_wait_p50_ms: float  # of rank 0's last 1,000 steps
    data_wait_p99_ms: float
    is_applied: bool  # False: the guard left weights and optimizer as they were
    experts: ExpertLoads | None = None  # of a mixture of experts

    def __str__(self) -> str:
        losses = [f"{name} {source.loss:.3f}" for name, source in self.sources.items()]
        if len(losses) > SHOWN_SOURCES:
            losses = [*losses[:SHOWN_SOURCES], f"and {len(losses) - SHOWN_SOURCES} more sources"]
        mfu = "" if self.mfu is None else f"mfu {100 * self.mfu:.1f} %  "
        skipped = "" if self.is_applied else "  (not applied)"
        return (
            f"{self.step + 1}/{self.steps} steps  loss {self.loss:.4f}  lr {self.lr:.2e}  "
            f"grad {self.grad_norm:.2f}  {self.tokens_per_second:,.0f} tok/s  {mfu}"
            f"wait p50 {self.data_wait_p50_ms:.1f} p99 {self.data_wait_p99_ms:.1f} ms  "
            f"{' '.join(losses)}{f'  {self.experts}' if self.experts else ''}{skipped}"
        )


@dataclass(frozen=True, slots=True)
class TaskScores:
    """What a model scored on the items of a task (likelihood.py).

    An item is right if its gold choice has the highest score; texts (items of one choice) count in
    the bits per byte alone.
    """

    items: int  # that were scored
    too_long: int  # items that were not, since a choice is longer than a row
    too_long_ids: tuple[str, ...]  # of the first of them
    accuracy: float | None  # by log-likelihood; None if no item has several choices
    accuracy_per_character: float | None  # by log-likelihood per character of the choice
    accuracy_per_byte: float | None
    accuracy_unconditional: float | None  # by what the context adds; None if not requested
    standard_error: float | None  # of `accuracy`
    bits_per_byte: float | None  # of the gold choices
    domains: dict[str, SourceLoss]  # the loss on the gold choices of each domain

    def __str__(self) -> str:
        parts = [] if self.accuracy is None else [f"{100 * self.accuracy:.1f} % right"]
        parts += [] if self.bits_per_byte is None else [f"{self.bits_per_byte:.4f} bits per byte"]
        parts += [f"{self.too_long} too long"] if self.too_long else []
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class EvaluationMetrics:
    """The loss on held-out documents, and scores of tasks: a line of evaluations.jsonl."""

    step: int  # steps done
    sources: dict[str, SourceLoss]
    tasks: dict[str, TaskScores] = field(default_factory=dict)
    of_average: bool = False  # the weights were the average of the last steps

    def __str__(self) -> str:
        parts = [
            f"{name} {source.loss:.3f} nats"
            if source.bits_per_byte is None
            else f"{name} {source.bits_per_byte:.4f} bits per byte"
            for name, source in self.sources.items()
        ]
        lines = [f"held out after {self.step} steps: {', '.join(parts)}"] if parts else []
        tasks = (f"{name} {scores}" for name, scores in self.tasks.items())
        lines += [f"tasks after {self.step} steps: {'; '.join(tasks)}"] if self.tasks else []
        return "; ".join(lines) or f"nothing to evaluate after {self.step} steps"


@dataclass(frozen=True, slots=True)
class SourceMixture:
    """One source's part of what was trained on so far."""

    planned_ratio: float  # of the rows, as the weights of the plan ask
    realised_ratio: float  # of the labelled tokens of applied steps
    tokens: int  # labelled, of applied steps
    epochs: float  # rows delivered / rows there are


@dataclass(frozen=True, slots=True)
class MixtureMetrics:
    """What the sources have given, and what the plan asks for: a line of mixture.jsonl.

    The ratios differ where rows of one source hold more labels than those of another (padding,
    first tokens of documents), or where steps were not applied.
    """

    step: int  # steps done
    sources: dict[str, SourceMixture]

    def __str__(self) -> str:
        parts = [
            f"{name} {100 * source.realised_ratio:.1f} % "
            f"(planned {100 * source.planned_ratio:.1f} %, {source.epochs:.2f} epochs)"
            for name, source in self.sources.items()
        ]
        return f"mixture after {self.step} steps: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Event:
    """A rare event of a run: a line of events.jsonl."""

    kind: str  # start, end, failed, spike, rollback, ...
    text: str = ""  # for people
    fields: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join((f"{self.kind}: {self.text}" if self.text else self.kind).split())


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended."""

    steps_done: int  # over all its starts
    steps: int  # of the whole run
    tokens: int  # consumed over all its starts, padding included
    loss: float | None  # of the last step, as in StepMetrics; None if there was no step left to do
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


Update = StepMetrics | EvaluationMetrics | MixtureMetrics | Event | TrainResult
"""What an observer is called with; `str()` of each is one line."""

Observer = Callable[[Update], None]


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


class DataWaits:
    """How long this rank waited for rows in its last `WAIT_STEPS` steps."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WAIT_STEPS)

    def add(self, seconds: float) -> None:
        """Add the wait of a step."""
        self._seconds.append(seconds)

    def percentiles(self) -> tuple[float, float]:
        """Return the median and the 99th percentile, in ms; zeros before the first step."""
        if not self._seconds:
            return 0.0, 0.0
        p50, p99 = np.percentile(self._seconds, (50, 99)).tolist()
        return 1000 * p50, 1000 * p99


class MetricsWriter:
    """Writes the files of a run beside its checkpoints, each with one JSON object per line.

    `metrics.jsonl` has a line per step, `evaluations.jsonl` one per evaluation, `mixture.jsonl` one
    per `mixture()`, `experts.jsonl` one per `experts()`; `events.jsonl` one per start, end, failure
    and other event.

    Opened after `num_done` steps, it drops the lines of later steps from all but the last file: a
    killed run took these steps but did not save them. So a step has one line, however often the run
    was killed. Events are kept. JSON has no numbers that are not finite: they are text ("nan",
    "inf") in events, null in the other files.

    Raises:
        DataError: a line is not JSON.
    """

    def __init__(self, output: Path, num_done: int) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self._output = output
        self._trained: dict[str, int] = {}
        for name in FILES:
            self._path(name).touch()
        _cut(self._path("metrics"), lambda line: line["step"] < num_done and self._count(line))
        for name in ("evaluations", "mixture", "experts"):
            _cut(self._path(name), lambda line: line["step"] <= num_done)
        _cut(self._path("events"), lambda _: True)
        self._files = {
            name: self._path(name).open("a", encoding="utf-8", buffering=1) for name in FILES
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            fields = {"error": type(error).__name__, "message": str(error)}
            with contextlib.suppress(CorpuskitError):  # as of a full disk: report `error` instead
                self.event(kind, str(error), **{**getattr(error, "event", {}), **fields})
        for file in self._files.values():
            with contextlib.suppress(OSError):  # a failed write has raised before
                file.close()

    def step(self, progress: StepMetrics) -> None:
        """Write one step."""
        line = asdict(progress)
        self._count(line)
        self._write("metrics", line)

    def evaluation(self, evaluation: EvaluationMetrics) -> None:
        """Write an evaluation."""
        self._write("evaluations", asdict(evaluation))

    def items(self, step: int, task: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the scores of each item of a task after `step` steps: `items/<step>/<task>.jsonl`.

        Call it before `evaluation`, so that a step with a line there has its items.
        """
        name = f"items/step-{step:08d}/{task}.jsonl"
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        try:
            LocalStore(self._output).put(name, content)
        except OSError as error:
            raise CorpuskitError(f"{self._output / name}: {describe(error)}") from error

    def has_evaluation(self, num_done: int) -> bool:
        """Return whether evaluations.jsonl has a line for `num_done` steps."""
        lines = self._path("evaluations").read_bytes().splitlines()
        return any(json.loads(line)["step"] == num_done for line in lines)

    def mixture(self, step: int, shares: Sequence[SourceShare]) -> MixtureMetrics:
        """Write the mixture of the first `step` steps; return it for the observer.

        Args:
            step: steps done.
            shares: the loader's `mixture(step)`.
        """
        total = sum(self._trained.values()) or 1
        sources = {
            share.source: SourceMixture(
                planned_ratio=share.planned_share,
                realised_ratio=self._trained.get(share.source, 0) / total,
                tokens=self._trained.get(share.source, 0),
                epochs=share.epochs,
            )
            for share in shares
        }
        metrics = MixtureMetrics(step, sources)
        self._write("mixture", asdict(metrics))
        return metrics

    def experts(self, step: int, sources: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Write how many tokens each expert got since the line before.

        Args:
            step: steps done.
            sources: name -> (layers, E) tokens.
        """
        self._write("experts", {"step": step, "sources": sources})

    def event(self, kind: str, text: str = "", /, **fields: Any) -> Event:
        """Write one event with the time; return it for the observer.

        Values that JSON does not have are written as text.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"event": kind, "time": now, **({"text": text} if text else {}), **fields}
        self._write("events", line, unknown=str)
        return Event(kind, text, fields)

    def _path(self, name: str) -> Path:
        return self._output / f"{name}.jsonl"

    def _count(self, line: Mapping[str, Any]) -> bool:
        if line.get("is_applied", True):
            for name, source in line["sources"].items():
                self._trained[name] = self._trained.get(name, 0) + source["tokens"]
        return True

    def _write(
        self, name: str, line: Mapping[str, Any], unknown: Callable[[object], object] | None = None
    ) -> None:
        finite = _finite(line, unknown or (lambda _: None))
        try:
            print(json.dumps(finite, default=unknown, allow_nan=False), file=self._files[name])
        except OSError as error:
            raise CorpuskitError(f"{self._path(name)}: {describe(error)}") from error


def _finite(value: Any, unknown: Callable[[object], object]) -> Any:
    """Return JSON values with `unknown(number)` in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else unknown(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item, unknown) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, unknown) for item in value]
    return value


def _cut(path: Path, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Cut a file at its first line that is incomplete or not kept."""
    with path.open("rb+") as file:
        end = 0
        for number, line in enumerate(file, 1):
            try:
                if not line.endswith(b"\n") or not is_kept(json.loads(line)):
                    break
            except (ValueError, LookupError, TypeError):
                raise DataError(
                    f"{path}: line {number} is not what a training run writes. "
                    "Move the file away and run again: training does not need it."
                ) from None
            end += len(line)
        file.truncate(end)
