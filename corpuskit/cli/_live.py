"""How far a run is, as lines: as many and as long as a terminal has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.cli._streams import one_line
from corpuskit.engine.eta import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from corpuskit.engine.progress import PhaseProgress, RunProgress, StageSoFar


BAR_WIDTH = 32
FUNNEL_LINES, NUMBER_LINES = 3, 2
"""Lines of the funnel, and of the figures of the phase that runs, at most."""

ROOMY = 10  # rows of a terminal from which on figures may take a second line


def draw(progress: RunProgress, width: int, height: int, *, is_unicode: bool = True) -> list[Text]:
    """Return the picture of a run: its phase, and the funnel so far.

    Args:
        width, height: of the terminal; the last column and the last row stay free.
        is_unicode: characters besides ASCII can be shown.
    """
    width, room = max(width - 1, 10), max(height - 1, 1)
    head = [_text(_fit(headline(progress), width), width, "bold")]
    current = progress.current
    body: list[Text] = []
    if current is not None:
        lines = NUMBER_LINES if height >= ROOMY else 1
        body = [_bar(current, width, is_unicode=is_unicode)]
        body += flow(numbers(progress, current), width, lines, ", ", "", indent="  ")
    tail = [_text(progress.note, width, "yellow")] if progress.note else []
    tail += flow(kept(progress.funnel), width, FUNNEL_LINES, "  ", "cyan")
    return [*head, *body, *tail][:room]


def headline(progress: RunProgress) -> list[str]:
    """Return what there is to say in one line, the most important first."""
    names = [phase.name for phase in progress.phases]
    pieces = [progress.name or "run"]
    if progress.current is not None:
        pieces[0] += f": phase {names.index(progress.current.name) + 1} of {len(names)}"
    else:
        pieces[0] += f": all {len(names)} phases done"
    if progress.state in {"failed", "stopped"}:
        pieces.append(progress.state)
    elif progress.seconds_left is not None:
        pieces.append(f"{format_duration(progress.seconds_left)} left")
    if progress.seconds >= 1:
        so_far = " so far" if progress.state == "running" and progress.current else ""
        pieces.append(f"{duration(progress.seconds)}{so_far}")
    return pieces


def numbers(progress: RunProgress, phase: PhaseProgress) -> list[str]:
    """Return the figures of the current phase, the most important first."""
    word = "task" if phase.tasks == 1 else "tasks"
    pieces = [f"{phase.tasks_done:,}/{phase.tasks:,} {word}"] if phase.tasks else []
    if progress.tasks_failed:
        pieces.append(f"{progress.tasks_failed:,} failed")
    if progress.phase_seconds_left is not None:
        pieces.append(f"{format_duration(progress.phase_seconds_left)} left in it")
    if phase.documents:
        pieces.append(f"{phase.documents:,} documents")
    if progress.bytes_per_second >= 50_000:  # less would be "0.0 MB/s"
        pieces.append(f"{progress.bytes_per_second / 1e6:,.1f} MB/s")
    if phase.text_bytes:
        pieces.append(size(phase.text_bytes))
    if not phase.documents and not phase.tasks_done:
        pieces.append("nothing read yet")
    if progress.tasks_retried:
        pieces.append(f"{progress.tasks_retried:,} tried again")
    return pieces


def kept(funnel: Sequence[StageSoFar]) -> list[str]:
    """Return the share that was kept, of all and by stage; nothing before anything was read."""
    sources = [row for row in funnel if row.kind == "source"]
    num_read = sum(row.num_in for row in sources)
    if not num_read:
        return []
    share = sum(row.num_out for row in sources) / num_read
    for row in funnel:
        share *= 1.0 if row.kind == "source" else row.kept_ratio
    shares = [f"{row.stage} {_percent(row.kept_ratio)}" for row in funnel if row.kept_ratio < 1]
    return [f"kept {_percent(share)}", *shares]


def duration(seconds: float) -> str:
    """Return a time that is over."""
    if seconds < 1:
        return "<1 s"
    minutes, rest_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest_seconds:02d} s" if minutes else f"{rest_seconds} s"


def size(num: float) -> str:
    """Return a number of bytes of text."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if num >= factor:
            return f"{num / factor:,.2f} {unit}"
    return f"{num / 1e6:,.1f} MB"


def _percent(share: float) -> str:
    # Not 100 % if something was dropped, not 0 % if something was kept.
    digits = f"{100 * share:.1f}"
    digits = {"100.0": "99.9" if share < 1 else "100", "0.0": "<0.1" if share else "0"}.get(
        digits, digits
    )
    return f"{digits} %"


def _fit(pieces: Sequence[str], width: int, between: str = ", ") -> str:
    """Return as many pieces as fit, without skipping one; the first one always."""
    line = pieces[0] if pieces else ""
    for piece in pieces[1:]:
        if len(line) + len(between) + len(piece) > width:
            break
        line += between + piece
    return line


def _bar(phase: PhaseProgress, width: int, *, is_unicode: bool) -> Text:
    """Return the line that shows how much of a phase is done."""
    full, empty = ("\u2501", "\u2500") if is_unicode else ("#", "-")
    percent = f"{100 * phase.share:3.0f} %"
    name = _cut(phase.name, width - len(percent) - 1)
    space = width - len(percent) - len(name) - 2
    bar_width = min(max(space, 0), BAR_WIDTH)
    if bar_width < 8:  # the name is worth more
        bar_width = 0
    style = "bold red" if phase.state == "failed" else "bold"
    line = styled(name, style)
    if bar_width:
        filled = int(bar_width * phase.share)
        line.append(" " + full * filled, style="green")
        line.append(empty * (bar_width - filled), style="dim")
    line.append(f" {percent}", style="")
    return line


def flow(
    pieces: Sequence[str], width: int, max_lines: int, between: str, style: str, indent: str = ""
) -> list[Text]:
    """Return pieces in as few lines as hold them, `max_lines` at most; what is over is left out.

    Args:
        indent: of all lines; without it, two blanks before all but the first.
    """
    lines: list[Text] = []
    queue = list(pieces)
    while queue and len(lines) < max_lines:
        margin = indent or "  " * bool(lines)
        line = [queue.pop(0)]
        while queue and len(margin + between.join([*line, queue[0]])) <= width:
            line.append(queue.pop(0))
        lines.append(_text(margin + between.join(line), width, style))
    return lines


def _text(line: str, width: int, style: str = "") -> Text:
    return styled(_cut(line, width), style)


def styled(line: str, style: str = "") -> Text:
    """Return a line as rich draws it; rich is loaded when something is drawn."""
    from rich.text import Text

    return Text(line, style=style)


def _cut(line: str, width: int) -> str:
    line = one_line(line).replace("\t", " ")
    return line if len(line) <= width else line[: max(width - 3, 0)] + "..."


# ---------------------------------------------------------------- drawing in place

_UP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"


class Screen:
    """Draws lines at the bottom of a terminal in place.

    The cursor stays visible and after the last line, so a process that is killed leaves a usable
    terminal. What is above is never touched, unless the terminal was made narrower meanwhile and
    has wrapped lines.

    Args:
        console: of a terminal that can move its cursor.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._drawn: list[str] = []

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw lines over those drawn before."""
        width = self.console.width
        for line in lines:
            line.truncate(width - 1, overflow="ellipsis")  # the last column would wrap
        home = self._home()
        self._drawn = [line.plain for line in lines]  # before: what interrupts it must close it
        self._write(lines, home)

    def above(self, line: str) -> None:
        """Print text that stays, and forget what was drawn: the next drawing comes below."""
        self._write([styled(line)], self._home())
        self.console.file.write("\n")
        self.console.file.flush()
        self._drawn = []

    def close(self) -> None:
        """Leave what is drawn where it is, and go to the next line."""
        if self._drawn:
            self.console.file.write("\n")
            self.console.file.flush()
        self._drawn = []

    def _home(self) -> str:
        from rich.cells import cell_len

        width, height = self.console.size
        # A terminal that was made narrower has wrapped what was drawn.
        rows = sum(max(-(-cell_len(line) // width), 1) for line in self._drawn)
        up = min(rows, height) - 1
        return "\r" + (_UP.format(up) if up > 0 else "")

    def _write(self, lines: Sequence[Text], before: str) -> None:
        rendered = []
        for line in lines:
            with self.console.capture() as captured:
                self.console.print(line, end="", soft_wrap=True)
            rendered.append(captured.get())
        end = _CLEAR_LINE + "\r\n"
        self.console.file.write(before + end.join(rendered) + _CLEAR_LINE + _CLEAR_BELOW)
        self.console.file.flush()
