"""Shows a run that somebody else runs, until it ends."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from corpuskit.cli._plain import echo, one_line
from corpuskit.cli._progress import (
    LINE_SECONDS,
    draw_on,
    end_line,
    ended_by_term,
    minute_line,
    terminal,
)  # fmt: skip
from corpuskit.cli._screen import Screen
from corpuskit.engine.monitor import RunMonitor

if TYPE_CHECKING:
    from corpuskit.engine.progress import RunProgress

MOVING = ("seconds", "quiet_seconds", "phase_seconds_left", "seconds_left", "bytes_per_second")
"""What changes by itself."""


def watch(address: str, seconds: float, *, as_json: bool) -> tuple[RunProgress, int]:
    """Show a run until it is finished, has failed, or was stopped.

    Args:
        seconds: between two looks.

    Returns:
        How far it is then, and the exit code that it has.
    """
    console = None if as_json else terminal()
    watcher = RunMonitor(address)
    if as_json:
        return _follow(watcher, seconds, _Objects())
    if console is None:
        return _follow(watcher, seconds, _Lines())
    screen = Screen(console)
    try:
        with ended_by_term():
            return _follow(watcher, seconds, _Picture(screen))
    finally:
        screen.close()


def _follow(
    watcher: RunMonitor, seconds: float, shown: _Objects | _Lines | _Picture
) -> tuple[RunProgress, int]:
    while True:
        began = time.monotonic()
        progress = watcher.look()
        for line in watcher.news:
            shown.news(line)
        watcher.news.clear()
        shown.show(progress)
        if progress.state != "running":
            shown.end(progress)
            return progress, watcher.exit_code(progress)
        time.sleep(max(seconds, 2 * (time.monotonic() - began)))  # a large run takes long to list


class _Objects:
    """Prints a JSON object, on one line, whenever something has changed."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, progress: RunProgress) -> None:
        facts = progress.facts()
        still = json.dumps(_still(facts))
        if still != self._last:
            self._last = still
            click.echo(json.dumps(facts))

    def news(self, line: str) -> None:
        """Nothing: the number of failed tasks says it."""

    def end(self, progress: RunProgress) -> None:
        """Nothing: the last object says it."""


def _still(value: Any) -> Any:
    """Return values without those that change by themselves."""
    if isinstance(value, dict):
        return {name: _still(one) for name, one in value.items() if name not in MOVING}
    return [_still(one) for one in value] if isinstance(value, (list, tuple)) else value


class _Lines:
    """Prints where the run is, then a line for each phase that ends, and one a minute."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._last = time.monotonic()
        self._note = ""

    def show(self, progress: RunProgress) -> None:
        is_first = not self._states
        for phase in progress.phases:
            before, self._states[phase.name] = self._states.get(phase.name), phase.state
            if before == phase.state:
                continue
            if phase.state == "running":
                self._last = time.monotonic()
                if is_first:
                    click.echo(f"{phase.name}: {phase.tasks_done:,} of {phase.tasks:,} tasks done")
            elif phase.state == "done" and not is_first and not phase.is_empty:
                click.echo(end_line(progress, phase.name))
        is_news = bool(progress.note) and progress.note.partition(" for ")[0] != self._note
        self._note = progress.note.partition(" for ")[0]
        if time.monotonic() - self._last >= LINE_SECONDS or is_news:
            self._last = time.monotonic()
            click.echo(minute_line(progress))

    def news(self, line: str) -> None:
        echo(f"  {one_line(line)}", err=True)

    def end(self, progress: RunProgress) -> None:
        """Nothing: whoever called says what came of it."""


class _Picture:
    """Draws how far the run is, in place."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def show(self, progress: RunProgress) -> None:
        draw_on(self._screen, progress)

    def news(self, line: str) -> None:
        self._screen.above(Text(one_line(line)))

    def end(self, progress: RunProgress) -> None:
        """Nothing more is drawn."""
