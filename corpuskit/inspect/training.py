"""What a training run wrote, thinned to what a page can show.

Read from `metrics.jsonl`, `evaluations.jsonl`, `mixture.jsonl`, `experts.jsonl` and
`events.jsonl`, line by line: a run of a million steps needs no more memory than one of a thousand.

`page` makes one HTML file of it, which makes no request: Python writes figures, tables and events,
`web/training.js` draws the curves from the JSON in the page. Every word from a run is escaped:
names of sources and ids of documents come from anywhere.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import UsageError
from corpuskit.inspect.report.page import html_table, plain, text, to_json
from corpuskit.storage import write_whole
from corpuskit.train.heartbeat import read_endings

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence


MOST_BUCKETS = 1000  # of a curve: each has its least and its greatest value, 2,000 points
MOST_SOURCES = 12  # with curves of their own; tables have all
MOST_OF_A_KIND = 100  # events, the last ones
UNSHOWN = ("settings", "loader", "shape", "guard")  # fields of events too long for a list


class Curve:
    """Values over steps in at most `MOST_BUCKETS` buckets of equal width.

    A bucket keeps mean, least and greatest value, so that no spike is lost.
    """

    def __init__(self) -> None:
        self._width = 1
        self._buckets: dict[int, list[float]] = {}  # count, sum of x, sum of y, least, greatest

    def add(self, x: int, y: float | None) -> None:
        """Add a value; None and what is not finite is left out."""
        if y is None or not math.isfinite(y):
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
                merged = self._buckets.setdefault(key // 2, bucket)
                if merged is not bucket:
                    _merge(merged, *bucket)

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
class SourceHistory:
    """What is known of a source."""

    tokens: int = 0  # labelled ones of applied steps
    loss: Curve = field(default_factory=Curve)
    held_out: Curve = field(default_factory=Curve)  # bits per byte
    realised: Curve = field(default_factory=Curve)  # share of the labelled tokens so far
    planned: Curve = field(default_factory=Curve)  # share of the rows that the weights ask for
    bits_per_byte: float | None = None  # of the last step that had it
    held_out_nats: float | None = None  # of the last evaluation, nats per token
    mixture: dict[str, Any] | None = None  # of the last line that had it


EXPERTS = ("imbalance", "idle")
FIGURES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")


@dataclass(slots=True)
class TrainingHistory:
    """What a run wrote.

    Curves count steps as done: step 0 of the loader is x = 1. Losses and gradient norms of steps
    that were not applied are not in them: they are not the model's, and events have them.
    """

    output: str
    curves: dict[str, Curve]  # by the names of metrics.jsonl, and data_wait_ms, _p50_ms and _p99_ms
    sources: dict[str, SourceHistory] = field(default_factory=dict)
    last: dict[str, Any] | None = None  # the last line of metrics.jsonl
    seconds: float = 0.0  # of all steps
    not_applied: int = 0
    experts: dict[str, list[list[int]]] = field(default_factory=dict)
    """Source -> tokens of each layer's experts, between the last two checkpoints."""
    start: dict[str, Any] | None = None  # the last event of this kind
    ending: dict[str, Any] | None = None  # the end or failure after it
    speeds: dict[str, Any] | None = None  # the last comparison of the ranks
    events: list[dict[str, Any]] = field(default_factory=list)  # in order, the last of each kind
    event_counts: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)  # lines that are not JSON, by file
    endings: list[str] = field(default_factory=list)  # messages of ranks that failed
    updated: float | None = None  # when metrics.jsonl last changed, seconds since 1970

    def source(self, name: str) -> SourceHistory:
        """Return a source, a new one if nothing is known of it."""
        history = self.sources.get(name)
        if history is None:
            history = self.sources[name] = SourceHistory()
        return history

    @property
    def largest_sources(self) -> list[str]:
        """Names, those with most tokens first."""
        return sorted(self.sources, key=lambda name: (-self.sources[name].tokens, name))


def read_history(output: str | os.PathLike[str]) -> TrainingHistory:
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
    names = (*FIGURES, "data_wait_ms", "data_wait_p50_ms", "data_wait_p99_ms", *EXPERTS)
    history = TrainingHistory(str(folder), {name: Curve() for name in names})
    history.updated = metrics.stat().st_mtime
    for path, add in (
        (metrics, _add_step),
        (folder / "evaluations.jsonl", _add_evaluation),
        (folder / "mixture.jsonl", _add_mixture),
        (folder / "experts.jsonl", _add_experts),
    ):
        for line in _lines(path, history):
            try:
                add(history, line)
            except (KeyError, TypeError, ValueError, AttributeError):  # of another shape
                history.broken[path.name] += 1
    _read_events(history, folder / "events.jsonl")
    history.endings = [
        f"rank {rank} ended with code {ending.code}: {ending.line}"
        for rank, ending in sorted(read_endings(folder).items())
    ]
    return history


def read_losses(output: str | os.PathLike[str]) -> Curve:
    """Read only the losses of a run, to lay them over those of another."""
    return read_history(output).curves["loss"]


def _lines(path: Path, history: TrainingHistory) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; an unfinished last one is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except ValueError:
                value = None
            if isinstance(value, dict):
                yield value
            else:
                history.broken[path.name] += 1


def _add_step(history: TrainingHistory, line: dict[str, Any]) -> None:
    steps, is_applied = line["step"] + 1, line.get("is_applied", True)
    history.last = line
    history.seconds += line.get("step_seconds") or 0.0
    history.not_applied += not is_applied
    curves = history.curves
    for name in FIGURES:
        if is_applied or name not in {"loss", "grad_norm"}:
            curves[name].add(steps, line.get(name))
    wait = line.get("data_wait_seconds")
    curves["data_wait_ms"].add(steps, None if wait is None else 1000 * wait)
    for name in ("data_wait_p50_ms", "data_wait_p99_ms"):
        curves[name].add(steps, line.get(name))
    for name in EXPERTS if line.get("experts") else ():
        curves[name].add(steps, line["experts"][name])
    for name, figures in line["sources"].items():
        source = history.source(name)
        if is_applied:
            source.loss.add(steps, figures["loss"])
            source.tokens += figures["tokens"]
        if figures["bits_per_byte"] is not None:
            source.bits_per_byte = figures["bits_per_byte"]


def _add_evaluation(history: TrainingHistory, line: dict[str, Any]) -> None:
    for name, figures in line["sources"].items():
        source = history.source(name)
        source.held_out.add(line["step"], figures["bits_per_byte"])
        source.held_out_nats = figures["loss"]


def _add_mixture(history: TrainingHistory, line: dict[str, Any]) -> None:
    for name, figures in line["sources"].items():
        source = history.source(name)
        source.realised.add(line["step"], figures["realised_ratio"])
        source.planned.add(line["step"], figures["planned_ratio"])
        source.mixture = figures


def _add_experts(history: TrainingHistory, line: dict[str, Any]) -> None:
    sizes = {tuple(map(len, layers)) for layers in line["sources"].values()}
    if len(sizes) != 1:
        raise ValueError("each source has the tokens of the same experts")
    history.experts = line["sources"]


def _read_events(history: TrainingHistory, path: Path) -> None:
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
    numbered = [event for events in kinds.values() for event in events]
    history.events = [line for _, line in sorted(numbered, key=lambda event: event[0])]


def steps_before(event: dict[str, Any], history: TrainingHistory) -> int | None:
    """Return after how many steps an event happened, as far as it says."""
    kind = event.get("event")
    last = history.last["step"] + 1 if history.last else None
    step = event.get("step")
    if kind == "bad_step" and isinstance(step, int):
        return step + 1
    if kind == "end":
        step = event.get("steps_done")
    if kind == "rollback" and event.get("bad_steps"):
        step = event["bad_steps"][-1] + 1
    if not isinstance(step, int) and event is history.ending:
        step = last
    return step if isinstance(step, int) else None


def write_page(output: str | os.PathLike[str], other_runs: Sequence[str] = ()) -> Path:
    """Write `OUTPUT/report.html`, which needs nothing beside itself; return its path.

    Args:
        output: folder of a run; it may be running, ended or failed.
        other_runs: folders of runs whose losses are drawn over this one's.

    Raises:
        UsageError: there is nothing of a training run.
    """
    path = Path(output, "report.html")
    write_whole(path, page(read_history(output), _losses(other_runs)).encode())
    return path


def training_section(output: str | os.PathLike[str], other_runs: Sequence[str] = ()) -> str:
    """Return the page's section, with its style and script, to be put into another page."""
    return section(read_history(output), _losses(other_runs))


def _losses(outputs: Sequence[str]) -> dict[str, Curve]:
    return {str(name): read_losses(name) for name in outputs}


# ---------------------------------------------------------------- the page

FOLDER = Path(__file__).parent / "report" / "web"
MOST_ITEMS = 50  # of a list inside an event
MOST_ENDINGS = 8  # ranks whose last words are shown
MARKED = ("start", "bad_step", "rollback", "failed", "interrupted")
CONTROLS = (
    '<div class="controls"><label>Smoothing <input type="range" class="smoothing" min="0" '
    'max="0.99" step="0.01"></label><label><input type="checkbox" class="logarithmic"> '
    "logarithmic steps</label></div>"
)


def page(history: TrainingHistory, others: Mapping[str, Curve]) -> str:
    """Return the whole page."""
    title = plain(f"{_name(history)}: training")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n{section(history, others)}</body>\n"
        "</html>\n"
    )


def section(history: TrainingHistory, others: Mapping[str, Curve]) -> str:
    """Return the section of a run, with style and script."""
    style, script = (
        (FOLDER / name).read_text(encoding="utf-8") for name in ("training.css", "training.js")
    )
    message = str((history.ending or {}).get("message") or "\0")
    endings = [line for line in history.endings if message not in line][:MOST_ENDINGS]
    parts = [
        f"<style>\n{style}</style>",
        f"<h1>{text(_name(history))}</h1>",
        f'<p class="state">{text(_state(history))}</p>',
        *(f'<p class="bad">{text(line)}</p>' for line in endings),
        _figures(history),
        CONTROLS,
        '<div class="charts"><noscript>The curves need JavaScript.</noscript></div>',
        _sources(history),
        _experts(history),
        _events(history),
        _settings(history),
        f'<script type="application/json">{to_json(_charts(history, others))}</script>',
        f"<script>\n{script}</script>",
    ]
    return (
        f'<section class="training">\n{"".join(f"{part}{chr(10)}" for part in parts)}</section>\n'
    )


def _name(history: TrainingHistory) -> str:
    settings = (history.start or {}).get("settings")
    name = settings.get("name") if isinstance(settings, dict) else None
    return str(name or Path(history.output).name)


def _state(history: TrainingHistory) -> str:
    ending = history.ending
    if ending is None:
        updated = datetime.fromtimestamp(history.updated or 0, UTC)
        return f"No end is recorded: it runs, or was killed. Last step written {updated:%F %T} UTC."
    time_note = f" ({ending['time']})" if "time" in ending else ""
    if ending["event"] == "end":
        signal = ending.get("stopped_by")
        return (f"Stopped by {signal}, to go on later" if signal else "Finished") + f"{time_note}."
    if ending["event"] == "interrupted":
        return f"Interrupted{time_note}."
    return f"Failed{time_note}: {ending.get('message', '')}"


def _figures(history: TrainingHistory) -> str:
    last, start = history.last or {}, history.start or {}
    loss, speed, mfu = (history.curves[n].last for n in ("loss", "tokens_per_second", "mfu"))
    rows: list[tuple[str, str | None]] = [
        ("steps", f"{last['step'] + 1:,} of {last['steps']:,}" if last else "none yet"),
        ("loss", None if loss is None else f"{loss:.4f}"),
        ("tokens", f"{last['tokens']:,}" if last else None),
        ("tokens / s", None if speed is None else f"{speed:,.0f}"),
        ("MFU", None if mfu is None else f"{100 * mfu:.1f} %"),
        ("wait for rows", _wait(last)),
        ("time in steps", _time(history.seconds) if last else None),
        ("ranks", str(start["world_size"]) if "world_size" in start else None),
        ("starts", str(history.event_counts["start"]) if start else None),
        ("not applied", f"{history.not_applied:,} steps" if history.not_applied else None),
    ]
    items = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value in rows
        if value is not None
    )
    speeds = (history.speeds or {}).get("text")
    speed_text = f"<p>{text(speeds)}</p>" if speeds and start.get("world_size") != 1 else ""
    broken = "".join(
        f'<p class="bad">{text(name)}: {count} lines could not be read.</p>'
        for name, count in sorted(history.broken.items())
    )
    return f'<dl class="figures">{items}</dl>{speed_text}{broken}'


def _wait(last: Mapping[str, Any]) -> str | None:
    if last.get("data_wait_p50_ms") is None or last.get("data_wait_p99_ms") is None:
        return None
    return f"p50 {last['data_wait_p50_ms']:.1f}, p99 {last['data_wait_p99_ms']:.1f} ms"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, seconds_of_day = divmod(round(seconds), 86400)
    clock = f"{seconds_of_day // 3600}:{seconds_of_day // 60 % 60:02}:{seconds_of_day % 60:02}"
    return f"{days} d {clock}" if days else clock


def _charts(history: TrainingHistory, others: Mapping[str, Curve]) -> dict[str, Any]:
    """Return what the script draws."""
    curves, names = history.curves, history.largest_sources
    drawn = names[:MOST_SOURCES]
    num = len(names) - len(drawn)
    omitted = f"; {num} more sources are in the table" if num else ""
    by_name = history.sources
    losses = [(_name(history), curves["loss"]), *((Path(n).name, c) for n, c in others.items())]
    waits = [("p50", curves["data_wait_p50_ms"]), ("p99", curves["data_wait_p99_ms"]),
             ("each step", curves["data_wait_ms"])]  # fmt: skip
    charts = [
        _chart("Loss, nats per token; without steps that were not applied", losses,
               is_smoothed=True, marks=True, wide=True),
        _chart(f"Loss by source{omitted}", [(n, by_name[n].loss) for n in drawn], is_smoothed=True),
        _chart(f"Held out, bits per byte{omitted}",
               [(n, by_name[n].held_out) for n in drawn], dots=True),
        _chart("Learning rate", [("lr", curves["lr"])]),
        _chart("Gradient norm before clipping", [("norm", curves["grad_norm"])],
               is_smoothed=True, is_log=True, marks=True),
        _chart("Tokens per second", [("all ranks", curves["tokens_per_second"])], is_smoothed=True),
        _chart("MFU, %", [("MFU", curves["mfu"])], is_smoothed=True, scale=100),
        _chart("Fullest expert of the most uneven layer, tokens / mean",
               [("imbalance", curves["imbalance"])], is_smoothed=True),
        _chart("Experts without a token, all layers", [("idle", curves["idle"])]),
        _chart("Wait for rows, ms (rank 0; p50 and p99 of 1,000 steps)", waits, is_log=True),
        _chart(f"Share of the tokens so far, %; planned: dashed{omitted}",
               [(n, by_name[n].realised) for n in drawn], scale=100,
               dashed=[by_name[n].planned for n in drawn]),
    ]  # fmt: skip
    marks = []
    for event in history.events:
        steps = steps_before(event, history)
        if event["event"] in MARKED and steps is not None:
            marks.append({"x": steps, "kind": event["event"], "text": plain(_summary_of(event))})
    return {"charts": [chart for chart in charts if chart["series"]], "marks": marks}


def _chart(
    title: str,
    lines: Iterable[tuple[str, Curve]],
    *,
    is_smoothed: bool = False,
    is_log: bool = False,
    marks: bool = False,
    wide: bool = False,
    dots: bool = False,
    scale: float = 1,
    dashed: Sequence[Curve] = (),
) -> dict[str, Any]:
    """Return one chart; lines without a value are left out."""
    series = []
    for number, (name, curve) in enumerate(lines):
        styled = [(curve, False), *((curve, True) for curve in dashed[number : number + 1])]
        for curve, is_dashed in styled:
            if len(curve):
                columns = curve.points()
                if scale != 1:
                    columns = {
                        key: values if key == "x" else [float(f"{scale * v:.7g}") for v in values]
                        for key, values in columns.items()
                    }
                label = plain(f"{name} (planned)" if is_dashed else name)
                series.append({"name": label, "color": number, "dashed": is_dashed, **columns})
    return {"title": plain(title), "smooth": is_smoothed, "log": is_log, "marks": marks,
            "wide": wide, "dots": dots, "series": series}  # fmt: skip


def _sources(history: TrainingHistory) -> str:
    if not history.sources:
        return ""
    head = ("source", "loss", "bits/byte", "held out", "realised", "planned",
            "tokens", "epochs")  # fmt: skip
    rows = []
    for name in history.largest_sources:
        source = history.sources[name]
        mixture = source.mixture or {}
        rows.append(
            (
                name,
                _number(source.loss.last, ".4f"),
                _number(source.bits_per_byte, ".4f"),
                _number(source.held_out.last, ".4f") if len(source.held_out) else
                ("-" if source.held_out_nats is None else f"{source.held_out_nats:.4f} nats/token"),
                _number(mixture.get("realised_ratio"), ".2%"),
                _number(mixture.get("planned_ratio"), ".2%"),
                f"{source.tokens:,}",
                _number(mixture.get("epochs"), ".2f"),
            )
        )  # fmt: skip
    return (
        f"{html_table('Sources', head, rows)}"
        '<p class="note">Planned is a share of rows, realised one of labelled tokens: they part '
        "where a source's rows hold more padding, or where steps were not applied.</p>"
    )


def _experts(history: TrainingHistory) -> str:
    sources = [name for name in history.largest_sources if name in history.experts][:MOST_SOURCES]
    rows = [
        (layer, _fullest([sum(tokens) for tokens in zip(*loads, strict=True)]),
         *(_fullest(history.experts[name][layer]) for name in sources))
        for layer, loads in enumerate(zip(*history.experts.values(), strict=True))
    ]  # fmt: skip
    if not rows:
        return ""
    return html_table(
        "Experts", ("layer", "all sources", *sources), rows,
        "Tokens of the fullest expert as a multiple of the mean, between the last two checkpoints; "
        "#: its number.",
    )  # fmt: skip


def _fullest(loads: Sequence[int]) -> str:
    total, fullest = sum(loads), max(loads, default=0)
    idle = f", {loads.count(0)} idle" if 0 in loads else ""
    return f"{fullest * len(loads) / total:.2f} (#{loads.index(fullest)}){idle}" if total else "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _events(history: TrainingHistory) -> str:
    if not history.events:
        return ""
    items = []
    for event in reversed(history.events):
        kind, steps = str(event["event"]), steps_before(event, history)
        step_note = "" if steps is None else f" after {steps:,} steps"
        time = f"{event['time']} " if "time" in event else ""
        items.append(
            f'<li class="{"bad" if kind in MARKED[1:] else ""}"><b>{text(kind)}</b>'
            f"{text(step_note)} <time>{text(time)}</time><br>{text(_summary_of(event))}"
            f"{_lists(event)}</li>"
        )
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(history.event_counts.items()))
    return (
        f'<h2>Events</h2><p class="note">{text(counts)}. The last {MOST_OF_A_KIND} of a kind are '
        "listed, the newest first. Steps are counted as done: `corpuskit trace --step` takes one "
        f'less.</p><ol class="events">\n{"".join(f"{item}{chr(10)}" for item in items)}</ol>'
    )


def _summary_of(event: Mapping[str, Any]) -> str:
    """Return an event's text, or its short fields."""
    if "text" in event:
        return str(event["text"])
    omitted = ("event", "time")
    short = {k: v for k, v in event.items() if k not in omitted and not isinstance(v, list | dict)}
    return ", ".join(f"{name} {_item(value)}" for name, value in short.items() if value is not None)


def _lists(event: Mapping[str, Any]) -> str:
    """Return the lists of an event, documents and rows, to be opened."""
    blocks = []
    for name, values in event.items():
        if isinstance(values, list) and values:
            items = "".join(f"<li>{text(_item(value))}</li>" for value in values[:MOST_ITEMS])
            omitted = len(values) - MOST_ITEMS
            items += f"<li>and {omitted:,} more in events.jsonl</li>" if omitted > 0 else ""
            is_open = " open" if name == "documents" else ""
            blocks.append(
                f"<details{is_open}><summary>{len(values):,} {text(name)}</summary>"
                f"<ul>{items}</ul></details>"
            )
    return "".join(blocks)


def _item(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_item(v)}" for name, v in value.items())
    if isinstance(value, list):
        return " ".join(_item(v) for v in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _settings(history: TrainingHistory) -> str:
    start = history.start
    if start is None:
        return ""
    hashes = [(name, start[name]) for name in ("plan_hash", "settings_hash") if name in start]
    items = "".join(f"<dt>{text(name)}</dt><dd><code>{text(value)}</code></dd>"
                    for name, value in hashes)  # fmt: skip
    parts = [
        f"<details><summary>{name}</summary><pre>"
        + "\n".join(text(line) for line in json.dumps(start[name], indent=2).splitlines())
        + "</pre></details>"
        for name in ("settings", "shape")
        if name in start
    ]
    return f"<h2>Settings</h2><dl>{items}</dl>{''.join(parts)}"
