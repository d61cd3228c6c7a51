"""Estimates of the time left: pure arithmetic over observed progress."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_SECONDS = 15.0
"""No estimate is shown earlier: workers start, and kernels are loaded."""

FIRST_SHARE = 0.05
PATIENT_SECONDS = 60.0
"""No estimate is shown before this share of the work, or this long an observation."""

WINDOW_SECONDS = 60.0
"""The pace is that of at least the last minute, and of at least the last half of the time."""

SMOOTH_SECONDS = 10.0
"""Time in which the displayed end moves two thirds of the way to the newest estimate."""

PAUSE_SECONDS, PAUSE_TIMES = 600.0, 10.0
"""A gap between two steps this long, and this many times the longest before: the machine slept."""

MAX_POINTS = 256
SLOWEST = 1e-9
"""A smaller share of the work is nothing."""

TIMES_OFF = 5.0
"""An estimate of later phases that was wrong by more than this factor is not used."""

KNOWN_SHARE = 0.1
"""Share of the expected work of a run: less of it done predicts nothing about the rest."""


class Smoothed:
    """An end that is estimated again at each look, and displayed without jumps."""

    def __init__(self) -> None:
        self._end: float | None = None
        self._shown = 0.0

    def seconds_left(self, now: float, end: float) -> float:
        """Return the seconds until the displayed end."""
        if self._end is None:
            self._end = end
        else:
            self._end += (end - self._end) * (1 - math.exp((self._shown - now) / SMOOTH_SECONDS))
        self._shown = now
        return max(self._end - now, 0.0)


class Pace:
    """How fast work gets done, as shares of it between 0 and 1.

    The share grows in steps (tasks end), and the pace is that between two steps: so neither the
    start of workers before the first one counts, nor waiting for the next one.

    Args:
        now: seconds, of any clock.
        share: what was done before the first look.
    """

    def __init__(self, now: float, share: float = 0.0) -> None:
        self._points = [(now, share)]
        self._smoothed = Smoothed()

    def note(self, now: float, share: float) -> float:
        """Note how much is done; a share that falls back (a task is tried again) is no step.

        Returns:
            Seconds for which the machine slept before; they are left out of the pace.
        """
        if share <= self._points[-1][1]:
            return 0.0
        slept = self._slept(now)
        self._points = [(when + slept, done_share) for when, done_share in self._points]
        self._points.append((now, share))
        if len(self._points) > MAX_POINTS:
            del self._points[2:-1:2]
        return slept

    def _slept(self, now: float) -> float:
        """Return how much longer than the longest step the next one took, if that is absurd."""
        steps = [after[0] - before[0] for before, after in itertools.pairwise(self._points)]
        longest = max(steps, default=math.inf)
        last = now - self._points[-1][0]
        return last - longest if last > max(PAUSE_SECONDS, PAUSE_TIMES * longest) else 0.0

    def seconds_left(self, now: float) -> float | None:
        """Return about how many seconds are left; None while that would be a guess."""
        began = self._points[0][0]
        points = self._points[1:] if len(self._points) > 2 else self._points
        (first, before), (last, share) = points[0], points[-1]
        is_early = now - began < FIRST_SECONDS or last - first < FIRST_SECONDS / 2
        if is_early or (share - before < FIRST_SHARE and now - began < PATIENT_SECONDS):
            return None
        cutoff = last - max(WINDOW_SECONDS, (last - first) / 2)
        begin, share_then = max((p for p in points if p[0] <= cutoff), default=points[0])
        gained = share - share_then
        if gained < SLOWEST:
            return None
        return self._smoothed.seconds_left(now, last + (1 - share) * (last - begin) / gained)


def left_of_tasks(task_seconds: float, share: float, workers: int) -> float | None:
    """Return about how many seconds are left, from how long the finished tasks took.

    For an observer that starts when part of the work is done.

    Args:
        task_seconds: of all finished tasks together.
        share: of the work that they are.
        workers: how many tasks run at the same time.
    """
    if share < FIRST_SHARE or task_seconds <= 0:
        return None
    return task_seconds * (1 - share) / share / max(workers, 1)


def off_by(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return how many times as long as expected the finished work took; None if that is no guide.

    Args:
        pairs: (seconds expected, seconds taken). Too few seconds are no guide, and neither is an
            expectation that was wrong by more than TIMES_OFF.
    """
    pairs = list(pairs)
    expected, spent = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    if spent < FIRST_SECONDS or expected <= 0:
        return None
    off = spent / expected
    return off if 1 / TIMES_OFF <= off <= TIMES_OFF else None


class Forecast:
    """How long a phase, and the whole run, will still take.

    Time in which kernels are compiled says nothing about the rest, so the pace is measured from the
    last of them on.

    Args:
        now: seconds, of any clock.

    Attributes:
        expected: phase -> seconds that it should take, before any of it is measured.
    """

    def __init__(self, now: float) -> None:
        self.expected: dict[str, float] = {}
        self._pairs: list[tuple[float, float]] = []
        self._whole = Smoothed()
        self.begin(now, "", 0.0)

    def begin(self, now: float, phase: str, share: float) -> None:
        """Note that a phase runs, and how much of it was done by then."""
        self._phase = phase
        self.restart(now, share)

    def note(self, now: float, share: float) -> None:
        """Note how much of the phase is done."""
        self._began += self._pace.note(now, share)

    def restart(self, now: float, share: float) -> None:
        """Measure the pace from now on: a phase begins, or a worker compiles kernels."""
        self._began, self._had = now, share
        self._pace = Pace(now, share)

    def end(self, now: float, *, is_measured: bool) -> None:
        """Note that the phase is finished.

        Args:
            is_measured: all that was seen of it was done since `begin`.
        """
        expected = self.expected.pop(self._phase, None)
        if expected is not None and is_measured:
            self._pairs.append((expected * (1 - self._had), now - self._began))

    def seconds_left(
        self, now: float, waiting: Iterable[str], fallback: float | None = None
    ) -> tuple[float | None, float | None]:
        """Return about how many seconds the phase and the run will take; None while a guess.

        Args:
            waiting: phases that are still to come.
            fallback: seconds left of the phase by another estimate, used until there is a pace.
        """
        phase_left = self._pace.seconds_left(now)
        phase_left = fallback if phase_left is None else phase_left
        took = now - self._began
        expected = self.expected.get(self._phase, 0.0) * (1 - self._had)
        pairs = self._pairs if phase_left is None else [*self._pairs, (expected, took + phase_left)]
        to_come = [self.expected.get(name) for name in waiting]
        off = off_by(pairs)
        if off is None or None in to_come:
            return phase_left, None
        known_seconds = sum(pair[0] for pair in pairs)
        rest_seconds = sum(seconds for seconds in to_come if seconds is not None)
        if known_seconds < KNOWN_SHARE * (known_seconds + rest_seconds):
            return phase_left, None
        phase_rest = max(expected * off - took, 0.0) if phase_left is None else phase_left
        return phase_left, self._whole.seconds_left(now, now + phase_rest + off * rest_seconds)


def format_duration(seconds: float) -> str:
    """Return seconds as people say them, rounded: an estimate is not exact."""
    if seconds < 5:
        return "seconds"
    if seconds < 55:
        return f"about {max(round(seconds / 5) * 5, 5)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {max(minutes, 1)} min"
    hours = seconds / 3600
    if hours < 10:
        full_hours, quarter = divmod(round(hours * 4), 4)
        return f"about {full_hours} h" + (f" {quarter * 15} min" if quarter else "")
    return f"about {round(hours)} h" if hours < 48 else f"about {round(hours / 24)} days"
