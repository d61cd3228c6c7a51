"""Where a training run stands, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corpuskit.cli._plain import echo, one_line

if TYPE_CHECKING:
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.status import TrainingStatus

SHOWN_RANKS = 16


def print_status(settings: TrainSettings) -> None:
    """Print whether a run is alive, where each rank is, the last step, checkpoint and events."""
    from corpuskit.train.status import read_status

    standing = read_status(settings)
    echo(one_line(f"{settings.name}: {standing.verdict}"))
    _print_ranks(standing)
    if step := standing.last_step:
        echo(
            f"last step   {_number(step, 'step', 0, 1)} of {_number(step, 'steps', 0)}: "
            f"loss {_number(step, 'loss', 4)}, {_number(step, 'tokens_per_second', 0)} tok/s, "
            f"{_number(step, 'step_seconds', 3)} s"
        )
    if standing.checkpoint:
        age = standing.checkpoint_age_seconds
        saved = "" if age is None else f", saved {_age(age)} ago"
        echo(one_line(f"checkpoint  {standing.checkpoint}{saved}"))
    elif standing.ranks:
        echo("checkpoint  none yet")
    if standing.speeds:
        echo(one_line(f"speeds      {standing.speeds.get('text', '')}"))
    for number, event in enumerate(standing.events):
        echo(one_line(f"{'events' if not number else '':12}{_event_line(event)}"))


def _print_ranks(standing: TrainingStatus) -> None:
    ranks = sorted(standing.ranks, key=lambda rank: -rank.age_seconds)[:SHOWN_RANKS]
    if ranks:
        echo(f"{'rank':>5}  {'step':>8}  {'phase':<10}  {'beat':>12}  {'pid':>8}  host")
    for rank in sorted(ranks, key=lambda rank: rank.beat.rank):
        beat = rank.beat
        gone = "  (gone)" if rank.is_gone and not rank.has_left else ""
        echo(
            one_line(
                f"{beat.rank:>5}  {beat.step:>8}  {beat.phase:<10}  "
                f"{_age(rank.age_seconds) + ' ago':>12}  {beat.pid:>8}  {beat.host}{gone}"
            )
        )
    if more := len(standing.ranks) - len(ranks):
        echo(f"       and {more} ranks with younger heartbeats")


def _event_line(event: dict[str, Any]) -> str:
    """Return one line of an event: its time, its kind, and its text or what is short of it."""
    text = event.get("text") or event.get("message")
    if not text:
        kinds = (int, float, str)
        short = ("step", "steps", "steps_done", "world_size", "stopped_by")
        values = {name: event[name] for name in short if isinstance(event.get(name), kinds)}
        text = ", ".join(f"{name} {value}" for name, value in values.items())
    text = f": {text}" if text else ""
    return f"{event.get('time', '')} {event.get('event', '?')}{text}".strip()[:300]


def _number(line: dict[str, Any], name: str, digits: int, more: int = 0) -> str:
    value = line.get(name)
    return f"{value + more:,.{digits}f}" if isinstance(value, int | float) else "?"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
