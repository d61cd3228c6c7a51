"""Live progress: a bar on a terminal, one line a minute in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from corpuskit.cli._plain import echo, printable
from corpuskit.run.pipeline import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.manifest import Seal
    from corpuskit.plan.compile import Phase
    from corpuskit.run.phase import Prospect

LINE_SECONDS = 60.0


class LineObserver(Observer):
    """Prints when a phase starts and ends, and one line a minute between."""

    def __init__(self) -> None:
        self._documents = self._size = self._done = self._tasks = 0
        self._began = self._last = time.monotonic()

    def phase_starts(self, prospect: Prospect) -> None:
        name = prospect.phase.name
        self._documents = self._size = self._done = 0
        self._tasks = prospect.tasks or 0
        self._began = self._last = time.monotonic()
        if prospect.state == "reuse":
            click.echo(f"{name}: reused")
        else:
            what = f"{prospect.units_left} of {prospect.units} units in {self._tasks} tasks"
            click.echo(f"{name}: {what} ({prospect.reason})")

    def progress(self, documents: int, size_bytes: int) -> None:
        self._documents += documents
        self._size += size_bytes
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            click.echo(f"  {self._line()}")

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if event in {"done", "failed"}:
            self._done += 1
        if event != "done":
            echo(f"  task {event}: {fields.get('error', '')}", err=True)

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        if self._tasks:
            click.echo(f"  {phase.name} done: {self._line()}")

    def notes(self, text: str) -> None:
        click.echo(text, err=True)

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = self._size / 1e6 / seconds
        return (f"{self._done}/{self._tasks} tasks, {self._documents:,} documents, "
                f"{self._size / 1e6:,.1f} MB, {rate:,.1f} MB/s, {seconds:,.0f} s")  # fmt: skip


class LiveObserver(Observer):
    """Draws one bar per phase on a terminal: tasks, documents, MB/s, time left."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar: Any = None
        self._documents = self._size = 0
        self._began = time.monotonic()

    def __enter__(self) -> LiveObserver:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def reading_inputs(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._bars.add_task("inputs", total=total, note="reading footers")
        self._bars.update(self._bar, completed=done, total=total)

    def phase_starts(self, prospect: Prospect) -> None:
        self._documents = self._size = 0
        self._began = time.monotonic()
        is_reused = prospect.state == "reuse"
        note = "reused" if is_reused else prospect.reason
        total = max(prospect.tasks or 0, 1)
        self._bar = self._bars.add_task(prospect.phase.name, total=total, note=note)
        if is_reused:
            self._bars.update(self._bar, completed=total)

    def progress(self, documents: int, size_bytes: int) -> None:
        self._documents += documents
        self._size += size_bytes
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = f"{self._documents:,} docs, {self._size / 1e6 / seconds:,.1f} MB/s"
        self._bars.update(self._bar, note=rate)

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        if event in {"done", "failed"}:
            self._bars.advance(self._bar)
        if event != "done":
            self._bars.console.print(
                printable(f"task {event}: {fields.get('error', '')}"), markup=False
            )

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        task = self._bars.tasks[-1]
        is_quiet = not self._documents and task.fields["note"] != "reused"
        note = "done" if is_quiet else task.fields["note"]
        self._bars.update(self._bar, completed=task.total, note=note)

    def notes(self, text: str) -> None:
        self._bars.console.print(text, markup=False)


@contextlib.contextmanager
def observer(*, quiet: bool = False) -> Iterator[Observer]:
    """Yield the observer that suits where standard error goes."""
    if quiet:
        yield Observer()
    elif sys.stderr.isatty():
        with LiveObserver() as live:
            yield live
    else:
        yield LineObserver()
