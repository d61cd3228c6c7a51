"""The page of a training run: one HTML file that asks no network for anything.

Python writes the figures, tables and events; `training.js` draws the curves from the JSON in the
page, `training.css` has light and dark. Every word from a run is escaped: names of sources and ids
of documents come from anywhere.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.inspect.training.training import MOST_OF_A_KIND, MOST_SOURCES, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.inspect.training.training import Curve, History

FOLDER = Path(__file__).parent
MOST_ITEMS = 50  # of a list inside an event
MOST_ENDINGS = 8  # ranks whose last words are shown
MARKED = ("start", "bad_step", "rollback", "failed", "interrupted")


def page(history: History, others: Mapping[str, Curve]) -> str:
    """Return the whole page."""
    title = plain(f"{_name(history)}: training")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n{section(history, others)}</body>\n"
        "</html>\n"
    )


def section(history: History, others: Mapping[str, Curve]) -> str:
    """Return the section of a run, with style and script."""
    style, script = (
        (FOLDER / name).read_text(encoding="utf-8") for name in ("training.css", "training.js")
    )
    parts = [
        f"<style>\n{style}</style>",
        f"<h1>{text(_name(history))}</h1>",
        f'<p class="state">{text(_state(history))}</p>',
        *(f'<p class="bad">{text(line)}</p>' for line in _endings(history)),
        _figures(history),
        _controls(),
        '<div class="charts"><noscript>The curves need JavaScript.</noscript></div>',
        _sources(history),
        _events(history),
        _settings(history),
        f'<script type="application/json">{_json(_drawn(history, others))}</script>',
        f"<script>\n{script}</script>",
    ]
    return (
        f'<section class="training">\n{"".join(f"{part}{chr(10)}" for part in parts)}</section>\n'
    )


def plain(value: object) -> str:
    """Return text whose control characters and changes of direction are shown as escapes."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(value))


def text(value: object) -> str:
    """Return plain text, escaped for HTML."""
    return escape(plain(value))


def _json(value: Any) -> str:
    """Return JSON that ends no script element."""
    shown = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return shown.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _name(history: History) -> str:
    settings = (history.start or {}).get("settings")
    name = settings.get("name") if isinstance(settings, dict) else None
    return str(name or Path(history.output).name)


def _state(history: History) -> str:
    ending = history.ending
    if ending is None:
        written = datetime.fromtimestamp(history.written or 0, UTC)
        return f"No end is recorded: it runs, or was killed. Last step written {written:%F %T} UTC."
    at = f" ({ending['time']})" if "time" in ending else ""
    if ending["event"] == "end":
        stopped = ending.get("stopped_by")
        return (f"Stopped by {stopped}, to go on later" if stopped else "Finished") + f"{at}."
    if ending["event"] == "interrupted":
        return f"Interrupted{at}."
    return f"Failed{at}: {ending.get('message', '')}"


def _endings(history: History) -> list[str]:
    """Return the last words of ranks that the state does not say already."""
    said = str((history.ending or {}).get("message") or "\0")
    return [line for line in history.endings if said not in line][:MOST_ENDINGS]


def _figures(history: History) -> str:
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
    shown = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value in rows
        if value is not None
    )
    speeds = (history.speeds or {}).get("text")
    found = f"<p>{text(speeds)}</p>" if speeds and start.get("world_size") != 1 else ""
    broken = "".join(
        f'<p class="bad">{text(name)}: {count} lines could not be read.</p>'
        for name, count in sorted(history.broken.items())
    )
    return f'<dl class="figures">{shown}</dl>{found}{broken}'


def _wait(last: Mapping[str, Any]) -> str | None:
    if last.get("data_wait_p50_ms") is None or last.get("data_wait_p99_ms") is None:
        return None
    return f"p50 {last['data_wait_p50_ms']:.1f}, p99 {last['data_wait_p99_ms']:.1f} ms"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, rest = divmod(round(seconds), 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {clock}" if days else clock


def _controls() -> str:
    return (
        '<div class="controls"><label>Smoothing <input type="range" class="smoothing" min="0" '
        'max="0.99" step="0.01"></label><label><input type="checkbox" class="logarithmic"> '
        "logarithmic steps</label></div>"
    )


def _drawn(history: History, others: Mapping[str, Curve]) -> dict[str, Any]:
    """Return what the script draws."""
    curves, names = history.curves, history.largest_sources
    shown = names[:MOST_SOURCES]
    more = (
        f"; {len(names) - len(shown)} more sources are in the table" if names[len(shown) :] else ""
    )
    of = history.sources
    losses = [(_name(history), curves["loss"]), *((Path(n).name, c) for n, c in others.items())]
    waits = [("p50", curves["data_wait_p50_ms"]), ("p99", curves["data_wait_p99_ms"]),
             ("each step", curves["data_wait_ms"])]  # fmt: skip
    charts = [
        _chart("Loss, nats per token; without steps that were not applied", losses,
               is_smoothed=True, marks=True, wide=True),
        _chart(f"Loss by source{more}", [(n, of[n].loss) for n in shown], is_smoothed=True),
        _chart(f"Held out, bits per byte{more}", [(n, of[n].held_out) for n in shown], dots=True),
        _chart("Learning rate", [("lr", curves["lr"])]),
        _chart("Gradient norm before clipping", [("norm", curves["grad_norm"])],
               is_smoothed=True, is_log=True, marks=True),
        _chart("Tokens per second", [("all ranks", curves["tokens_per_second"])], is_smoothed=True),
        _chart("MFU, %", [("MFU", curves["mfu"])], is_smoothed=True, scale=100),
        _chart("Wait for rows, ms (rank 0; p50 and p99 of 1,000 steps)", waits, is_log=True),
        _chart(f"Share of the tokens so far, %; planned: dashed{more}",
               [(n, of[n].realised) for n in shown], scale=100,
               dashed=[of[n].planned for n in shown]),
    ]  # fmt: skip
    marks = []
    for event in history.events:
        place = place_of(event, history)
        if event["event"] in MARKED and place is not None:
            marks.append({"x": place, "kind": event["event"], "text": plain(_said(event))})
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
        drawn = [(curve, False), *((one, True) for one in dashed[number : number + 1])]
        for one, is_dashed in drawn:
            if len(one):
                columns = one.points()
                if scale != 1:
                    columns = {
                        key: values if key == "x" else [float(f"{scale * v:.7g}") for v in values]
                        for key, values in columns.items()
                    }
                label = plain(f"{name} (planned)" if is_dashed else name)
                series.append({"name": label, "color": number, "dashed": is_dashed, **columns})
    return {"title": plain(title), "smooth": is_smoothed, "log": is_log, "marks": marks,
            "wide": wide, "dots": dots, "series": series}  # fmt: skip


def _sources(history: History) -> str:
    if not history.sources:
        return ""
    head = ("source", "loss", "bits/byte", "held out", "realised", "planned",
            "tokens", "epochs")  # fmt: skip
    rows = []
    for name in history.largest_sources:
        one = history.sources[name]
        mixture = one.mixture or {}
        rows.append(
            (
                name,
                _number(one.loss.last, ".4f"),
                _number(one.bits_per_byte, ".4f"),
                _number(one.held_out.last, ".4f") if len(one.held_out) else
                ("-" if one.held_out_nats is None else f"{one.held_out_nats:.4f} nats/token"),
                _number(mixture.get("realised_ratio"), ".2%"),
                _number(mixture.get("planned_ratio"), ".2%"),
                f"{one.tokens:,}",
                _number(mixture.get("epochs"), ".2f"),
            )
        )  # fmt: skip
    titles = "".join(f"<th>{text(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(c)}</td>' for c in row)}</tr>\n" for row in rows)
    return (
        f'<h2>Sources</h2><div class="table"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        '<p class="note">Planned is a share of rows, realised one of labelled tokens: they part '
        "where a source's rows hold more padding, or where steps were not applied.</p>"
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _events(history: History) -> str:
    if not history.events:
        return ""
    items = []
    for event in reversed(history.events):
        kind, place = str(event["event"]), place_of(event, history)
        at = "" if place is None else f" after {place:,} steps"
        when = f"{event['time']} " if "time" in event else ""
        items.append(
            f'<li class="{"bad" if kind in MARKED[1:] else ""}"><b>{text(kind)}</b>'
            f"{text(at)} <time>{text(when)}</time><br>{text(_said(event))}{_lists(event)}</li>"
        )
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(history.event_counts.items()))
    return (
        f'<h2>Events</h2><p class="note">{text(counts)}. The last {MOST_OF_A_KIND} of a kind are '
        "listed, the newest first. Steps are counted as done: `corpuskit trace --step` takes one "
        f'less.</p><ol class="events">\n{"".join(f"{item}{chr(10)}" for item in items)}</ol>'
    )


def _said(event: Mapping[str, Any]) -> str:
    """Return an event's text, or its short fields."""
    if "text" in event:
        return str(event["text"])
    known = ("event", "time")
    short = {k: v for k, v in event.items() if k not in known and not isinstance(v, list | dict)}
    return ", ".join(f"{name} {_item(value)}" for name, value in short.items() if value is not None)


def _lists(event: Mapping[str, Any]) -> str:
    """Return the lists of an event, documents and rows, to be opened."""
    shown = []
    for name, values in event.items():
        if isinstance(values, list) and values:
            items = "".join(f"<li>{text(_item(one))}</li>" for one in values[:MOST_ITEMS])
            more = len(values) - MOST_ITEMS
            items += f"<li>and {more:,} more in events.jsonl</li>" if more > 0 else ""
            opened = " open" if name == "documents" else ""
            shown.append(
                f"<details{opened}><summary>{len(values):,} {text(name)}</summary>"
                f"<ul>{items}</ul></details>"
            )
    return "".join(shown)


def _item(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_item(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(_item(one) for one in value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _settings(history: History) -> str:
    start = history.start
    if start is None:
        return ""
    hashes = [(name, start[name]) for name in ("plan_hash", "settings_hash") if name in start]
    shown = "".join(f"<dt>{text(name)}</dt><dd><code>{text(value)}</code></dd>"
                    for name, value in hashes)  # fmt: skip
    parts = [
        f"<details><summary>{text(name)}</summary><pre>{_block(start[name])}</pre></details>"
        for name in ("settings", "shape")
        if name in start
    ]
    return f"<h2>Settings</h2><dl>{shown}</dl>{''.join(parts)}"


def _block(value: object) -> str:
    return "\n".join(text(line) for line in json.dumps(value, indent=2).splitlines())
