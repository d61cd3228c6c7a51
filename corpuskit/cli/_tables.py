"""Tables for people: phases, funnel, accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.cli._render import console, text_table
from corpuskit.engine.release import stages_without_units
from corpuskit.engine.resources import all_memory, format_size, peak_disk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.engine.config import PipelineFile
    from corpuskit.engine.mixture import Mixture, MixtureRow, PackingRow
    from corpuskit.engine.phase import FailureRecord, PhaseStatus
    from corpuskit.engine.resources import AvailableResources, Preflight, ResourceEstimate
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import FunnelRow, Jobs, Sealed


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


def print_prospects(run: RunDirectory, prospects: Sequence[PhaseStatus]) -> None:
    """Print what would happen to every phase that has, or may have, something to do."""
    files, size = len(run.inputs.files), run.inputs.size_bytes()
    out = console()
    files_text = "1 input file" if files == 1 else f"{files:,} input files"
    out.print(f"{files_text}, {size / 1e6:,.1f} MB on disk -> {run.store.address}")
    table = text_table("phase", "stages", ">units", ">tasks", ">rows", ">MB", "")
    for prospect in prospects:
        if prospect.units == 0:
            continue
        is_read = prospect.phase.base is None
        rows = "" if is_read or not prospect.rows else f"{prospect.rows:,}"
        mark = "~" if is_read else ""  # sizes of unread files are those on disk
        size_mb = f"{mark}{prospect.size_bytes / 1e6:,.1f}" if prospect.size_bytes else ""
        units = "" if prospect.units is None else f"{prospect.units_left}/{prospect.units}"
        tasks = "" if prospect.tasks is None else str(prospect.tasks)
        # Why phases wait is always the same: those before them come first.
        state = _WORDS[prospect.state]
        if prospect.units_reused:
            state += f", {prospect.units_reused:,} units reused,"
        state += (
            f" again: {prospect.reason}" if prospect.reason and prospect.state != "later" else ""
        )
        stages = " ".join(prospect.phase.labels) or "-"
        table.add_row(prospect.phase.name, stages, units, tasks, rows, size_mb, state)
    out.print(table)
    if stages_read := stages_without_units(run.plan):
        out.print(
            "shuffle_files: delete. After a change of inputs or parameters, in them or before, "
            f"these stages read all documents again, not only new units: {', '.join(stages_read)}"
        )


def print_grid(file: PipelineFile) -> None:
    """Print which stages apply to which sources; nothing if all apply to all."""
    if not any(step.applies.is_limited for step in file.steps):
        return
    sources = [step.label for step in file.sources]
    table = text_table("stage", *sources, "where", title="Stages by source")
    for step in file.steps:
        applies = step.applies
        mark = "some" if applies.where else "all"
        marks = (mark if applies.to_source(source) else "-" for source in sources)
        table.add_row(step.label, *marks, "; ".join(c.describe() for c in applies.where))
    out = console()
    out.print(table)
    out.print()


def print_status(prospects: Sequence[PhaseStatus]) -> None:
    """Print how far every phase is that has something to do."""
    words = {"reuse": "finished", "run": "to do", "continue": "in progress", "later": "waits"}
    table = text_table("phase", ">done", "")
    for prospect in prospects:
        if prospect.units == 0:
            continue
        progress = (
            ""
            if prospect.units is None
            else f"{prospect.units - (prospect.units_left or 0)}/{prospect.units}"
        )
        why = (
            f" again: {prospect.reason}"
            if prospect.reason and prospect.state in ("run", "continue")
            else ""
        )
        table.add_row(prospect.phase.name, progress, f"{words[prospect.state]}{why}")
    console().print(table)


def print_jobs(run: RunDirectory, jobs: Jobs) -> None:
    """Print the jobs of a run in Slurm; nothing when it has none."""
    if not jobs.states:
        return
    out = console()
    table = text_table("job", "works on", ">slots", "")
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
    table = text_table(
        "stage", ">in", ">dropped", ">out", ">MB/CPU s", ">CPU s", "by rule (and source)",
        title="Funnel",
    )  # fmt: skip
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


def print_contracts(run: RunDirectory, finished: Sealed) -> None:
    """Print what `expect` asks for and whether it holds, and what is worth a warning."""
    from corpuskit.engine.contracts import HEADER, contracts, warnings

    out = console()
    if judged := contracts(run, finished):
        table = text_table(*HEADER, title="Contracts")
        for contract in judged:
            table.add_row(*contract.cells())
        out.print()
        out.print(table)
    for warning in warnings(run, finished, judged):
        out.print(f"Warning: {warning}", soft_wrap=True)


def print_results(run: RunDirectory, finished: Sealed) -> None:
    """Print funnel, contracts, packing and mixture, as far as there are any."""
    from corpuskit.engine.mixture import mixture, packing
    from corpuskit.engine.status import funnel, overheads

    rows = funnel(run, finished)
    print_funnel(run, rows, overheads(finished))
    if any(row.state == "waiting" for row in rows):
        console().print("--watch counts what is done of the rest; so does corpuskit report.")
    print_contracts(run, finished)
    print_packing(packing(finished))
    print_mixture(mixture(run, finished))


def print_mixture(mixture: Mixture | None) -> None:
    """Print what training takes from each source, and how far that is known."""
    if mixture is None:
        return
    out = console()
    out.print()
    if mixture.rows:
        table = text_table(
            "stage", "source", ">rows", ">tokens", ">documents", ">epochs", ">of", ">planned",
            ">realised", ">fill", title=_TITLES[mixture.state],
        )  # fmt: skip
        is_guess = mixture.state == "estimated"
        stages = len({row.stage for row in mixture.rows})
        used = [row for row in mixture.rows if row.rows or row.planned_ratio]
        for row in (*used, *(mixture.sources if stages > 1 else ())):
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
    capacity = sum(row.tokens / row.fill_ratio for row in rows if row.fill_ratio)
    fill = "" if is_guess or not capacity else f"{100 * tokens / capacity:.2f} %"
    sums = (f"{mark}{value:,}" for value in (num_rows, tokens, documents))
    return ("all", "all", *sums, "", "", "", "", fill)


def _rules(row: FunnelRow) -> str:
    """Return what was dropped and changed, by rule; of a stage also by source."""
    parts = []
    for rule, counts in row.dropped.items():
        by_source = ", ".join(f"{source} {num:,}" for source, num in counts.items())
        parts.append(f"{rule} {sum(counts.values()):,}" + f" ({by_source})" * (not row.is_source))
    parts += [f"{rule} in {num:,} document{'s' * (num != 1)}" for rule, num in row.changed.items()]
    if row.not_applied:
        by_source = ", ".join(f"{source} {num:,}" for source, num in row.not_applied.items())
        parts.append(f"not applied to {sum(row.not_applied.values()):,} ({by_source})")
    return "; ".join(parts)


# ---------------------------------------------------------------- needs and packing


def print_needs(flight: Preflight) -> None:
    """Print what the phases that would run need, what there is, and what does not fit."""
    if not flight.estimates:
        return
    table = text_table(
        "phase", ">documents", ">text", ">memory of a worker", ">disk", ">scratch", ">CPU time",
        title="Needs",
    )  # fmt: skip
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
    num_mark, size_mark = ("" if x else "~" for x in (need.is_counted, need.is_exact))
    star = "*" if need.is_measured else ""
    return (
        need.phase,
        f"{num_mark}{need.documents:,}",
        f"{size_mark}{format_size(need.text_bytes)}",
        f"~{format_size(need.memory_bytes)}",
        f"~{format_size(need.disk_bytes)}{star}",
        f"~{format_size(need.scratch_bytes)}",
        f"{_time_words(need.cpu_seconds)}{star}",
    )


def _totals(
    needs: tuple[ResourceEstimate, ...], room: AvailableResources, compile_seconds: float
) -> list[str]:
    worst = max(needs, key=lambda need: all_memory(need, room.workers))
    memory = format_size(all_memory(worst, room.workers))
    workers = f"{room.workers} workers" if room.workers > 1 else "a worker"
    disk, _ = peak_disk(needs)
    lines = [
        f"memory: {workers}, ~{memory} at most (in {worst.phase}); {room.memory_name}: "
        f"{_available(room.memory_bytes)}",
        f"disk: ~{format_size(disk)}; {room.disk_name}: {_available(room.disk_bytes)}",
    ]
    if room.scratch_name:
        scratch = max(need.scratch_bytes for need in needs)
        free = _available(room.scratch_bytes)
        lines.append(f"scratch: ~{format_size(scratch)} at a time; {room.scratch_name}: {free}")
    total = sum(need.cpu_seconds for need in needs) + compile_seconds
    cold = f", {_time_words(compile_seconds)} of it to compile kernels (first run on this machine)"
    return [*lines, f"CPU time: {_time_words(total)} in all{cold * (compile_seconds > 0)}"]


def _available(size: int | None) -> str:
    return "not known, not checked" if size is None else f"{format_size(size)} available"


def _time_words(seconds: float) -> str:
    if seconds < 100:
        return f"~{seconds:.0f} s" if seconds >= 1 else "<1 s"
    if seconds < 100 * 60:
        return f"~{seconds / 60:.0f} min"
    return f"~{seconds / 3600:,.0f} h"


def print_packing(rows: Sequence[PackingRow]) -> None:
    """Print documents, cuts and fill per source; nothing when nothing is packed yet."""
    if not rows:
        return
    out = console()
    table = text_table(
        "source", ">documents", ">copies", ">cut", ">though they fit", ">rows", ">padding",
        ">fill", title="Packing",
    )  # fmt: skip
    for row in rows:
        fill = f"{100 * row.fill_ratio:.2f} %"
        sizes = (f"{row.rows:,}", f"{row.padding:,}", fill)
        if row.band is not None:
            table.add_row(f"  band {row.band}", "", "", "", "", *sizes)
            continue
        cut = f"{row.num_cut:,} ({100 * row.cut_ratio:.2f} %)"
        counts = (f"{row.documents:,}", f"{row.copies:,}", cut, f"{row.num_cut_fitting:,}")
        table.add_row(row.source, *counts, *sizes)
    out.print()
    out.print(table)
