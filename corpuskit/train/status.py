"""The status of a training run, read from the files that it writes; needs no torch."""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.storage.lease import is_running
from corpuskit.train.heartbeat import LEFT, REQUEUE, read_endings, read_heartbeats
from corpuskit.train.record import complete_checkpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.train.heartbeat import Ending, RankHeartbeat
    from corpuskit.train.settings import TrainSettings

METRICS_BYTES, EVENTS_BYTES = 1 << 20, 1 << 24  # read from the ends of the files
SHOWN_EVENTS = 8
MEDIAN_STEPS = 100  # over which the median time of a step is taken
MIN_LATE_SECONDS = 10.0  # a younger heartbeat is never late
ROUTINE_EVENTS = ("speeds", "checkpoint")
CLOSING_EVENTS = ("end", "failed", "interrupted")


@dataclass(frozen=True, slots=True)
class RankStatus:
    """A rank's last heartbeat."""

    beat: RankHeartbeat
    age_seconds: float
    is_gone: bool  # its process, which ran on this machine, has ended

    @property
    def has_left(self) -> bool:
        """Whether its last heartbeat says that it left the loop."""
        return self.beat.phase in LEFT

    @property
    def is_at_work(self) -> bool:
        """Whether it has not left the loop, as far as is known."""
        return not self.is_gone and not self.has_left


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """The status of a run."""

    verdict: str  # in one line
    is_alive: bool
    ranks: tuple[RankStatus, ...]
    last_step: dict[str, Any] | None  # last line of metrics.jsonl
    checkpoint: str | None  # name of the newest complete one
    checkpoint_age_seconds: float | None
    speeds: dict[str, Any] | None  # the last comparison of the ranks' speeds
    events: tuple[dict[str, Any], ...]  # the last ones that are not routine, oldest first


def read_status(settings: TrainSettings) -> TrainingStatus:
    """Read the status of a run.

    Ages compare this machine's clock with those of the ranks' machines.
    """
    now = time.time()
    output = Path(settings.output)
    events = read_tail(output, "events", EVENTS_BYTES)
    metrics = read_tail(output, "metrics", METRICS_BYTES)
    starts = [event for event in events if event.get("event") == "start"]
    speeds = [event for event in events if event.get("event") == "speeds"]
    beats = read_heartbeats(output)
    ranks = tuple(
        RankStatus(beat, max(0.0, now - beat.time), _is_gone(beat))
        for beat in beats
        if not starts or _belongs(beat, starts[-1])
    )
    steps = [line["step_seconds"] for line in metrics[-MEDIAN_STEPS:] if "step_seconds" in line]
    late = max(MIN_LATE_SECONDS, 3 * statistics.median(steps)) if steps else 60.0
    endings = read_endings(output)
    if ranks:
        endings = {
            rank.beat.rank: endings[rank.beat.rank] for rank in ranks if rank.beat.rank in endings
        }
    checkpoint, age = _newest_checkpoint(output / "checkpoints", now)
    is_alive = any(rank.is_at_work and rank.age_seconds < late for rank in ranks)
    return TrainingStatus(
        verdict=_verdict(settings, events, ranks, endings, late),
        is_alive=is_alive,
        ranks=ranks,
        last_step=metrics[-1] if metrics else None,
        checkpoint=checkpoint,
        checkpoint_age_seconds=age,
        speeds=speeds[-1] if speeds else None,
        events=tuple(e for e in events if e.get("event") not in ROUTINE_EVENTS)[-SHOWN_EVENTS:],
    )


def _verdict(
    settings: TrainSettings,
    events: Sequence[dict[str, Any]],
    ranks: Sequence[RankStatus],
    endings: dict[int, Ending],
    late: float,
) -> str:
    """Return one line that says whether the run is alive.

    Args:
        events: of the run, oldest first.
        ranks: with their last heartbeats.
        endings: of ranks that have ended since the last start.
        late: age in seconds from which a heartbeat is late.
    """
    advice = "Run the same command again to go on."
    at_work = [rank for rank in ranks if rank.is_at_work]
    silent = [rank for rank in at_work if rank.age_seconds >= late]
    dead = [rank for rank in ranks if rank.is_gone and not rank.has_left]
    if len(at_work) > len(silent):
        unwell = [*dead, *silent]
        return f"alive, but {_missing(unwell[0], settings)}" if unwell else "alive"
    if not events and not ranks:
        return f"never started: {settings.output} has neither heartbeats nor events."
    closing = [event for event in events if event.get("event") in ("start", *CLOSING_EVENTS)]
    last = closing[-1] if closing else {}
    if last.get("event") == "end" and not dead and not silent:
        why = last.get("stopped_by")
        extent = f"after {last.get('steps_done')} of {last.get('steps')} steps"
        return f"stopped by {why} {extent}. {advice}" if why else f"finished {extent}."
    # Ranks that ended because another rank died don't know the reason.
    if endings and not (dead and all(ending.code == REQUEUE for ending in endings.values())):
        rank, ending = min(endings.items(), key=lambda item: (item[1].code == REQUEUE, item[0]))
        rank_name = "" if ending.line.startswith("rank ") else f"rank {rank}: "
        return f"ended with code {ending.code}: {rank_name}{ending.line}"
    if silent:
        return f"silent: {_missing(max(silent, key=lambda rank: rank.age_seconds), settings)}"
    if last.get("event") in CLOSING_EVENTS and not dead:
        return f"{last['event']}: {last.get('error', '')}: {last.get('message', '')}"
    return f"dead: {_missing(dead[0], settings) if dead else 'no rank is at work'}. {advice}"


def _missing(rank: RankStatus, settings: TrainSettings) -> str:
    """Return what is wrong with a rank that should be at work."""
    beat, limit = rank.beat, settings.health.hang_seconds
    name = f"rank {beat.rank} on {beat.host} (step {beat.step}, phase {beat.phase})"
    if rank.is_gone:
        return f"{name}: process {beat.pid} is gone"
    line = f"{name} has given no sign of life for {rank.age_seconds:.0f} s"
    if rank.age_seconds < limit:
        return f"{line}; it ends itself after {limit:.0f}"
    return f"{line}, and should have ended itself after {limit:.0f}: its machine may be down"


def _belongs(beat: RankHeartbeat, start: dict[str, Any]) -> bool:
    """Return whether a heartbeat belongs to the run's last start, which may have fewer ranks."""
    try:
        started = datetime.fromisoformat(start["time"]).timestamp()
        # A rank that entered later belongs to a start that has not written its event yet.
        return beat.rank < start["world_size"] or beat.started > started
    except (LookupError, TypeError, ValueError):
        return True


def _is_gone(beat: RankHeartbeat) -> bool:
    return beat.host == socket.gethostname() and beat.pid > 0 and not is_running(beat.pid)


def _newest_checkpoint(folder: Path, now: float) -> tuple[str | None, float | None]:
    checkpoints = complete_checkpoints(folder)
    if not checkpoints:
        return None, None
    newest = checkpoints[max(checkpoints)]
    try:
        return newest.name, max(0.0, now - (newest / "train.json").stat().st_mtime)
    except OSError:  # deleted meanwhile
        return newest.name, None


def read_tail(output: Path, name: str, num_bytes: int) -> list[dict[str, Any]]:
    """Return the objects in the last bytes of a JSON lines file; partial lines are left out."""
    try:
        with (output / f"{name}.jsonl").open("rb") as file:
            first = max(0, file.seek(0, os.SEEK_END) - num_bytes)
            file.seek(first)
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return []
    objects = []
    for line in lines[1:] if first else lines:
        try:
            value = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects
