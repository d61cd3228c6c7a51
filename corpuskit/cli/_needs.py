"""The table of what phases need, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from corpuskit.cli._tables import console
from corpuskit.engine.resources import all_memory, format_size, peak_disk

if TYPE_CHECKING:
    from corpuskit.engine.resources import AvailableResources, Preflight, ResourceEstimate


def print_needs(flight: Preflight) -> None:
    """Print what the phases that would run need, what there is, and what does not fit."""
    if not flight.estimates:
        return
    table = Table(
        box=None, header_style="bold", pad_edge=False, title="Needs", title_justify="left"
    )
    table.add_column("phase")
    for name in ("documents", "text", "memory of a worker", "disk", "scratch", "CPU time"):
        table.add_column(name, justify="right")
    for need in flight.estimates:
        if need.units:
            table.add_row(*_row(need))
    out = console()
    out.print()
    out.print(table)
    if any(need.is_measured for need in flight.estimates):
        out.print("* as an earlier run in this directory measured")
    for line in _totals(flight.estimates, flight.available, flight.compile_seconds):
        out.print(line)
    for problem in flight.problems:
        out.print(f"Would be refused: {problem}")


def _row(need: ResourceEstimate) -> tuple[str, ...]:
    counted, exact = ("" if known else "~" for known in (need.is_counted, need.is_exact))
    star = "*" if need.is_measured else ""
    return (
        need.phase,
        f"{counted}{need.documents:,}",
        f"{exact}{format_size(need.text_bytes)}",
        f"~{format_size(need.memory_bytes)}",
        f"~{format_size(need.disk_bytes)}{star}",
        f"~{format_size(need.scratch_bytes)}",
        f"{_time_words(need.cpu_seconds)}{star}",
    )


def _totals(
    needs: tuple[ResourceEstimate, ...], room: AvailableResources, compile_seconds: float
) -> list[str]:
    worst = max(needs, key=lambda need: all_memory(need, room.workers))
    wanted = format_size(all_memory(worst, room.workers))
    workers = f"{room.workers} workers" if room.workers > 1 else "a worker"
    disk, _ = peak_disk(needs)
    lines = [
        f"memory: {workers}, ~{wanted} at most (in {worst.phase}); {room.memory_place}: "
        f"{_left(room.memory_bytes)}",
        f"disk: ~{format_size(disk)}; {room.disk_place}: {_left(room.disk_bytes)}",
    ]
    if room.scratch_place:
        scratch = max(need.scratch_bytes for need in needs)
        left = _left(room.scratch_bytes)
        lines.append(f"scratch: ~{format_size(scratch)} at a time; {room.scratch_place}: {left}")
    total = sum(need.cpu_seconds for need in needs) + compile_seconds
    cold = f", {_time_words(compile_seconds)} of it to compile kernels (first run on this machine)"
    return [*lines, f"CPU time: {_time_words(total)} in all{cold * (compile_seconds > 0)}"]


def _left(size: int | None) -> str:
    return "not known, not checked" if size is None else f"{format_size(size)} available"


def _time_words(seconds: float) -> str:
    if seconds < 100:
        return f"~{seconds:.0f} s" if seconds >= 1 else "<1 s"
    if seconds < 100 * 60:
        return f"~{seconds / 60:.0f} min"
    return f"~{seconds / 3600:,.0f} h"
