"""What a training run wrote, thinned to what a page can show.

Read from `metrics.jsonl`, `evaluations.jsonl`, `mixture.jsonl` and `events.jsonl`, line by line: a
run of a million steps needs no more memory than one of a thousand. `report.training_page` makes
HTML of it.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import UsageError
from corpuskit.train.heartbeat import read_endings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_BUCKETS = 1000  # of a curve: each has its least and its greatest value, 2,000 points
MOST_SOURCES = 12  # with curves of their own; tables have all
MOST_OF_A_KIND = 100  # events, the last ones
UNSHOWN = ("settings", "loader", "shape", "guard")  # fields of events too long for a list


class Curve:
    """Values over steps in at most `MOST_BUCKETS` buckets of equal width.

    A bucket keeps mean, least and greatest value, so that no spike is lost.
    """

    def __init__(self) -> None:
        self.num_missing = 0  # values that are no finite number
        self._width = 1
        self._buckets: dict[int, list[float]] = {}  # count, sum of x, sum of y, least, greatest

    def add(self, x: int, y: float | None) -> None:
        """Add a value."""
        if y is None or not math.isfinite(y):
            self.num_missing += 1
            return
        bucket = self._buckets.get(x // self._width)
        if bucket is None:
            self._buckets[x // self._width] = [1, x, y, y, y]
            if len(self._buckets) > MOST_BUCKETS:
                self._widen()
        else:
            _merge(bucket, 1, x, y, y, y)

    def _widen(self) -> None:
        """Make every bucket twice as wide, until there are few enough."""
        while len(self._buckets) > MOST_BUCKETS:
            self._width *= 2
            before, self._buckets = self._buckets, {}
            for key, bucket in before.items():
                there = self._buckets.setdefault(key // 2, bucket)
                if there is not bucket:
                    _merge(there, *bucket)

    def points(self) -> dict[str, list[float]]:
        """Return columns x, mean and, if any bucket holds more than one value, low and high."""
        buckets = [self._buckets[key] for key in sorted(self._buckets)]
        columns = {
            "x": [_short(x / count) for count, x, *_ in buckets],
            "mean": [_short(y / count) for count, _, y, *_ in buckets],
        }
        if any(bucket[0] > 1 for bucket in buckets):
            columns["low"] = [_short(bucket[3]) for bucket in buckets]
            columns["high"] = [_short(bucket[4]) for bucket in buckets]
        return columns

    @property
    def last(self) -> float | None:
        """Mean of the last bucket."""
        if not self._buckets:
            return None
        count, _, y, *_ = self._buckets[max(self._buckets)]
        return y / count

    def __len__(self) -> int:
        return len(self._buckets)


def _merge(
    bucket: list[float], count: float, x: float, y: float, least: float, greatest: float
) -> None:
    bucket[0] += count
    bucket[1] += x
    bucket[2] += y
    if least < bucket[3]:
        bucket[3] = least
    if greatest > bucket[4]:
        bucket[4] = greatest


def _short(value: float) -> float:
    return float(f"{value:.7g}")


@dataclass(slots=True)
class Source:
    """What is known of a source."""

    tokens: int = 0  # labelled ones of applied steps
    loss: Curve = field(default_factory=Curve)
    held_out: Curve = field(default_factory=Curve)  # bits per byte
    realised: Curve = field(default_factory=Curve)  # share of the labelled tokens so far
    planned: Curve = field(default_factory=Curve)  # share of the rows that the weights ask for
    bits_per_byte: float | None = None  # of the last step that had it
    held_out_nats: float | None = None  # of the last evaluation, nats per token
    mixture: dict[str, Any] | None = None  # of the last line that had it
    held_out_tokens: int = 0


FIGURES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")


@dataclass(slots=True)
class History:
    """What a run wrote.

    Curves count steps as done: step 0 of the loader is x = 1. Losses and gradient norms of steps
    that were not applied are not in them: they are not the model's, and events have them.
    """

    output: str
    curves: dict[str, Curve]  # by the names of metrics.jsonl, and data_wait_ms, _p50_ms and _p99_ms
    sources: dict[str, Source] = field(default_factory=dict)
    last: dict[str, Any] | None = None  # the last line of metrics.jsonl
    seconds: float = 0.0  # of all steps
    not_applied: int = 0
    start: dict[str, Any] | None = None  # the last event of this kind
    ending: dict[str, Any] | None = None  # the end or failure behind it
    speeds: dict[str, Any] | None = None  # the last comparison of the ranks
    events: list[dict[str, Any]] = field(default_factory=list)  # in order, the last of each kind
    event_counts: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)  # lines that are no JSON, by file
    endings: list[str] = field(default_factory=list)  # what ranks said when they ended in trouble
    written: float | None = None  # when metrics.jsonl last changed, seconds since 1970

    def source(self, name: str) -> Source:
        """Return a source, a new one if nothing is known of it."""
        found = self.sources.get(name)
        if found is None:
            found = self.sources[name] = Source()
        return found

    @property
    def largest_sources(self) -> list[str]:
        """Names, those with most tokens first."""
        return sorted(self.sources, key=lambda name: (-self.sources[name].tokens, name))


def read_history(output: str | os.PathLike[str]) -> History:
    """Read what a run has written so far, whether it runs, has ended or has failed.

    Raises:
        UsageError: there is nothing of a training run.
    """
    folder = Path(output)
    metrics = folder / "metrics.jsonl"
    if not metrics.exists():
        raise UsageError(
            f"{folder}: no metrics.jsonl, so no training run has begun here. "
            "Run `corpuskit train` first, or name its output folder."
        )
    names = (*FIGURES, "data_wait_ms", "data_wait_p50_ms", "data_wait_p99_ms")
    history = History(str(folder), {name: Curve() for name in names})
    history.written = metrics.stat().st_mtime
    for path, add in (
        (metrics, _add_step),
        (folder / "evaluations.jsonl", _add_evaluation),
        (folder / "mixture.jsonl", _add_mixture),
    ):
        for line in _lines(path, history):
            try:
                add(history, line)
            except (KeyError, TypeError, ValueError, AttributeError):  # of another shape
                history.broken[path.name] += 1
    _read_events(history, folder / "events.jsonl")
    history.endings = [
        f"rank {rank} ended with code {one.code}: {one.line}"
        for rank, one in sorted(read_endings(folder).items())
    ]
    return history


def read_losses(output: str | os.PathLike[str]) -> Curve:
    """Read only the losses of a run, to lay them over those of another."""
    return read_history(output).curves["loss"]


def _lines(path: Path, history: History) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; a last one that is still being written is none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if isinstance(found, dict):
                yield found
            else:
                history.broken[path.name] += 1


def _add_step(history: History, line: dict[str, Any]) -> None:
    done, is_applied = line["step"] + 1, line.get("is_applied", True)
    history.last = line
    history.seconds += line.get("step_seconds") or 0.0
    history.not_applied += not is_applied
    curves = history.curves
    for name in FIGURES:
        if is_applied or name not in {"loss", "grad_norm"}:
            curves[name].add(done, line.get(name))
    wait = line.get("data_wait_seconds")
    curves["data_wait_ms"].add(done, None if wait is None else 1000 * wait)
    for name in ("data_wait_p50_ms", "data_wait_p99_ms"):
        curves[name].add(done, line.get(name))
    for name, one in line["sources"].items():
        source = history.source(name)
        if is_applied:
            source.loss.add(done, one["loss"])
            source.tokens += one["tokens"]
        if one["bits_per_byte"] is not None:
            source.bits_per_byte = one["bits_per_byte"]


def _add_evaluation(history: History, line: dict[str, Any]) -> None:
    for name, one in line["sources"].items():
        source = history.source(name)
        source.held_out.add(line["step"], one["bits_per_byte"])
        source.held_out_nats, source.held_out_tokens = one["loss"], one["tokens"]


def _add_mixture(history: History, line: dict[str, Any]) -> None:
    for name, one in line["sources"].items():
        source = history.source(name)
        source.realised.add(line["step"], one["realised_ratio"])
        source.planned.add(line["step"], one["planned_ratio"])
        source.mixture = one


def _read_events(history: History, path: Path) -> None:
    kinds: dict[str, deque[tuple[int, dict[str, Any]]]] = {}
    for number, line in enumerate(_lines(path, history)):
        kind = str(line.get("event"))
        history.event_counts[kind] += 1
        short = {name: value for name, value in line.items() if name not in UNSHOWN}
        if kind == "start":
            history.start, history.ending = line, None
        elif kind in {"end", "failed", "interrupted"}:
            history.ending = short
        elif kind == "speeds":
            history.speeds = line
            continue
        kinds.setdefault(kind, deque(maxlen=MOST_OF_A_KIND)).append((number, short))
    numbered = [one for found in kinds.values() for one in found]
    history.events = [line for _, line in sorted(numbered, key=lambda one: one[0])]


def place_of(event: dict[str, Any], history: History) -> int | None:
    """Return after how many steps an event happened, as far as it says."""
    kind = event.get("event")
    last = history.last["step"] + 1 if history.last else None
    found = event.get("step")
    if kind == "bad_step" and isinstance(found, int):
        return found + 1
    if kind == "end":
        found = event.get("steps_done")
    if kind == "rollback" and event.get("bad_steps"):
        found = event["bad_steps"][-1] + 1
    if not isinstance(found, int) and event is history.ending:
        found = last
    return found if isinstance(found, int) else None


def write_page(output: str | os.PathLike[str], others: Sequence[str] = ()) -> Path:
    """Write `OUTPUT/report.html`, which needs nothing beside itself; return its path.

    Args:
        output: folder of a run; it may be running, ended or failed.
        others: folders of runs whose losses are drawn over this one's.

    Raises:
        UsageError: there is nothing of a training run.
    """
    from corpuskit.inspect.training.page import page

    path = Path(output, "report.html")
    text = page(read_history(output), {str(name): read_losses(name) for name in others})
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def training_section(output: str | os.PathLike[str], others: Sequence[str] = ()) -> str:
    """Return the page's section, with its style and script, to be put into another page."""
    from corpuskit.inspect.training.page import section

    return section(read_history(output), {str(name): read_losses(name) for name in others})
