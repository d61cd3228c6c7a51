"""Tables for people: phases, funnel, accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from corpuskit.cli._plain import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

    from corpuskit.engine.mixture import Mixture, MixtureRow
    from corpuskit.engine.phase import FailureRecord, PhaseStatus
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Jobs

_WORDS = {"reuse": "reuse", "run": "RUN", "continue": "CONTINUE", "later": "later"}

_TITLES = {
    "estimated": "Mixture, estimated (~): how many rows there are is not known yet",
    "counted": "Mixture, from the rows that are packed",
    "planned": "Mixture",
}


_COSTS = {
    "read": "reading documents",
    "write": "writing documents",
    "compiling": "compiling kernels, or loading those that are compiled",
}
SHOWN_SECONDS = 0.05


class PlainConsole(Console):
    """A console that takes nothing in what it prints for a command: no markup, no controls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a line, or the cell of a table."""
        return super().render_str(one_line(text), **{**options, "markup": False, "emoji": False})

    def on_broken_pipe(self) -> None:
        """Leave it to the command line how to end; rich would end the process here."""
        raise  # noqa: PLE0704 - rich calls this where it has caught the BrokenPipeError


def console(*, stderr: bool = False) -> PlainConsole:
    """Return a console that never wraps below 100 columns when the output is piped."""
    plain = PlainConsole(stderr=stderr)
    if plain.is_terminal:
        return plain
    return PlainConsole(stderr=stderr, width=max(plain.width, 120))


def print_prospects(run: RunDirectory, found: Sequence[PhaseStatus]) -> None:
    """Print what would happen to every phase that has, or may have, something to do."""
    files, size = len(run.inputs.files), run.inputs.size_bytes()
    out = console()
    out.print(f"{files} input files, {size / 1e6:,.1f} MB on disk -> {run.store.address}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("phase", "stages"):
        table.add_column(name, overflow="fold")
    for name in ("units", "tasks", "rows", "MB"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in found:
        if one.units == 0:
            continue
        is_read = one.phase.base is None
        rows = "" if is_read or not one.rows else f"{one.rows:,}"
        mark = "~" if is_read else ""  # sizes of unread files are those on disk
        size_mb = f"{mark}{one.size_bytes / 1e6:,.1f}" if one.size_bytes else ""
        units = "" if one.units is None else f"{one.units_left}/{one.units}"
        tasks = "" if one.tasks is None else str(one.tasks)
        # Why phases wait is always the same: those before them come first.
        what = _WORDS[one.state]
        what += f" again: {one.reason}" if one.reason and one.state != "later" else ""
        stages = " ".join(one.phase.labels) or "-"
        table.add_row(one.phase.name, stages, units, tasks, rows, size_mb, what)
    out.print(table)


def print_status(found: Sequence[PhaseStatus]) -> None:
    """Print how far every phase is that has something to do."""
    words = {"reuse": "finished", "run": "to do", "continue": "in progress", "later": "waits"}
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("phase")
    table.add_column("done", justify="right")
    table.add_column("")
    for one in found:
        if one.units == 0:
            continue
        done = "" if one.units is None else f"{one.units - (one.units_left or 0)}/{one.units}"
        why = f" again: {one.reason}" if one.reason and one.state in ("run", "continue") else ""
        table.add_row(one.phase.name, done, f"{words[one.state]}{why}")
    console().print(table)


def print_jobs(run: RunDirectory, jobs: Jobs) -> None:
    """Print the jobs of a run in Slurm; nothing when it has none."""
    if not jobs.states:
        return
    out = console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("job", "works on"):
        table.add_column(name)
    table.add_column("slots", justify="right")
    table.add_column("", overflow="fold")
    is_alive = any(state.is_alive for state in jobs.states)
    for state in jobs.states:
        description = jobs.describe(state)
        table.add_row(state.job.number, state.job.phase, str(state.job.slots), description)
    out.print()
    out.print(table)
    if jobs.problem:
        out.print(jobs.problem, markup=False)
    elif not is_alive:
        logs = f"{run.store.logs()}/slurm-*.log"
        out.print(
            f"No job is left: they were cancelled, or failed. Logs: {logs}. Run the same command "
            "again.", markup=False, soft_wrap=True,
        )  # fmt: skip


def print_failures(notes: Sequence[FailureRecord]) -> None:
    """Print the tasks that failed and have not succeeded since."""
    from corpuskit.engine.phase import describe_units

    out = console()
    for note in notes:
        out.print(f"failed: {note.phase}, {describe_units(note.units)}: {note.error}", markup=False)
        out.print(f"  on {note.host}, log: {note.log}", markup=False)


def print_funnel(run: RunDirectory, rows: Sequence[FunnelRow], costs: Mapping[str, float]) -> None:
    """Print what was read of every source, what every stage dropped and cost, and other costs.

    Args:
        costs: CPU seconds of `read`, `write` and `compiling`.
    """
    table = Table(
        box=None, header_style="bold", pad_edge=False, title="Funnel", title_justify="left"
    )
    table.add_column("stage")
    for name in ("in", "dropped", "out", "MB/CPU s", "CPU s"):
        table.add_column(name, justify="right")
    table.add_column("by rule (and source)", overflow="fold")
    words = {"waiting": "not finished", "not run": f"not run (--until {run.plan.until})"}
    for row in rows:
        if row.num_in is None or row.num_out is None:
            table.add_row(row.stage, *[""] * 5, words.get(row.state, ""))
            continue
        speed = row.text_bytes / 1e6 / row.cpu_seconds if row.cpu_seconds > 0.01 else 0.0
        table.add_row(
            row.stage, f"{row.num_in:,}", f"{row.num_lost:,}" if row.num_lost else "",
            f"{row.num_out:,}", f"{speed:,.0f}" if speed and row.text_bytes else "",
            f"{row.cpu_seconds:,.1f}" if row.cpu_seconds else "", _rules(row),
        )  # fmt: skip
    for name, purpose in _COSTS.items():
        if costs.get(name, 0.0) >= SHOWN_SECONDS:
            table.add_row("", *[""] * 4, f"{costs[name]:,.1f}", purpose)
    console().print(table)


def print_mixture(mixture: Mixture | None) -> None:
    """Print what training takes from each source, and how far that is known."""
    if mixture is None:
        return
    out = console()
    out.print()
    if mixture.rows:
        table = Table(
            box=None, header_style="bold", pad_edge=False, title=_TITLES[mixture.state],
            title_justify="left",
        )  # fmt: skip
        table.add_column("stage", overflow="fold")
        table.add_column("source", overflow="fold")
        for name in ("rows", "tokens", "documents", "epochs", "of", "planned", "realised", "fill"):
            table.add_column(name, justify="right")
        is_guess = mixture.state == "estimated"
        stages = len({row.stage for row in mixture.rows})
        taken = [row for row in mixture.rows if row.rows or row.planned_ratio]
        for row in (*taken, *(mixture.sources if stages > 1 else ())):
            cap = f"{row.max_epochs:g}" if stages == 1 or not row.stage else ""
            table.add_row(*_mixture_cells(row, cap, is_guess=is_guess))
        if len(mixture.sources) > 1:
            table.add_row(*_mixture_sum(mixture.sources, is_guess=is_guess))
        out.print(table)
    mark = "~ " if mixture.state == "estimated" else ""
    for note in mixture.notes:
        out.print(f"{mark}{note}")
    if mixture.problem:
        when = " once packed, by this estimate" if mixture.state == "estimated" else ""
        out.print(f"Would be refused{when}: {mixture.problem}")


def _mixture_cells(row: MixtureRow, cap: str, *, is_guess: bool) -> tuple[str, ...]:
    mark = "~" if is_guess and row.rows else ""
    realised = (0.0, 0.0) if is_guess else (row.token_ratio, row.fill_ratio)
    shares = (row.planned_ratio, *realised)
    return (
        row.stage or "all",
        row.source,
        f"{mark}{row.rows:,}",
        f"{mark}{row.tokens:,}",
        f"{mark}{row.documents:,}",
        f"{mark}{row.epochs:.3f}",
        cap,
        *(f"{100 * share:.2f} %" if share else "" for share in shares),
    )


def _mixture_sum(rows: Sequence[MixtureRow], *, is_guess: bool) -> tuple[str, ...]:
    """Return the last line: all stages, all sources."""
    mark = "~" if is_guess else ""
    num_rows, tokens, documents = (
        sum(getattr(row, name) for row in rows) for name in ("rows", "tokens", "documents")
    )
    stored = sum(row.tokens / row.fill_ratio for row in rows if row.fill_ratio)
    fill = "" if is_guess or not stored else f"{100 * tokens / stored:.2f} %"
    sums = (f"{mark}{value:,}" for value in (num_rows, tokens, documents))
    return ("all", "all", *sums, "", "", "", "", fill)


def _rules(row: FunnelRow) -> str:
    """Return what was dropped and changed, by rule; of a stage also by source."""
    parts = []
    for rule, by in row.dropped.items():
        of = "" if row.is_source else f" ({', '.join(f'{s} {n:,}' for s, n in by.items())})"
        parts.append(f"{rule} {sum(by.values()):,}{of}")
    parts += [f"{rule} in {num:,} document{'s' * (num != 1)}" for rule, num in row.changed.items()]
    return "; ".join(parts)
