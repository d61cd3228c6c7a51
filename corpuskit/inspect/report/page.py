"""Put the report together.

Nothing from documents, ids or file names is ever markup: facts are JSON in a script element that is
not executed, and Python escapes what it writes of them. The policy of the page allows exactly
the style and the scripts that are in it, by their hashes, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.inspect.occurrences import read_training
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


FOLDER = Path(__file__).parent / "web"
STYLES = ("page.css", "samples.css")
SCRIPTS = ("core.js", "draw.js", "losses.js", "corpus.js", "origin.js", "samples.js", "start.js")
STATES = ("finished", "running", "failed", "stopped", "changed")
MOST_FAILURES = 20

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_UNSAFE = re.compile(
    "[<>&\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def render(facts: Mapping[str, Any], training_html: str = "") -> str:
    """Return the page.

    Args:
        facts: JSON values, as `report.facts` gathers them.
        training_html: sections of training runs, as `training_section` returns them.
    """
    run = facts["run"]
    style = "\n" + "".join(read_web(name) for name in STYLES)
    script = '\n(() => {\n"use strict";\n' + "".join(read_web(name) for name in SCRIPTS) + "})();\n"
    training = _training(training_html)
    state = run["state"] if run["state"] in STATES else "stopped"
    return filled(
        read_web("page.html"),
        {
            "policy": policy(
                [style, *_STYLE.findall(training)], [script, *_SCRIPT.findall(training)]
            ),
            "title": text(f"{run['name']}: corpuskit report"),
            "style": style,
            "name": text(run["name"]),
            "directory": text(run["directory"]),
            "state": state,
            "sentence": text(run["sentence"] or state),
            "failures": "".join(map(_failure, _group_failures(facts["failures"])[:MOST_FAILURES])),
            "training": training,
            "training_link": '<a href="#training">Training</a>' if training else "",
            "version": text(facts["made"]["corpuskit"]),
            "facts": to_json(facts),
            "script": script,
        },
    )


def plain(value: object) -> str:
    """Return text whose control characters and changes of direction are shown as escapes."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(value))


def text(value: object) -> str:
    """Return plain text, escaped for HTML."""
    return escape(plain(value))


def to_json(value: object) -> str:
    """Return JSON that cannot end a script element; what editors hide or reorder is escaped.

    Raises:
        ValueError: a number is not finite.
    """
    content = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", content)


def read_web(name: str) -> str:
    """Return a file of the folder `web`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Fill the slots of a template in one pass, so that a slot in a part is not filled."""
    return _SLOT.sub(lambda match: parts[match[1]], template)


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return the policy of a page that allows these styles and scripts, and no request."""
    script_src = _hashes(scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {script_src}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hashes(contents: Iterable[str]) -> str:
    digests = (
        base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents
    )
    return " ".join(f"'sha256-{content}'" for content in dict.fromkeys(digests))


def _training(html: str) -> str:
    """Return the section of the training runs, their headings below those of the page."""
    if not html:
        return ""
    lower = {"<h2>": "<h4>", "</h2>": "</h4>", "<h1>": "<h3>", "</h1>": "</h3>"}
    for heading, below in lower.items():
        html = html.replace(heading, below)
    return f'<section id="training"><h2>Training</h2>\n{html}</section>\n'


def _group_failures(failures: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one failure for each error of a phase; `more` is how many others are like it."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for failure in failures:
        group = groups.setdefault(
            (str(failure["phase"]), str(failure["error"])), {**failure, "more": -1}
        )
        group["more"] += 1
    return list(groups.values())


def _failure(failure: Mapping[str, Any]) -> str:
    title = ", ".join(
        str(failure[key]) for key in ("phase", "units", "host", "at") if failure.get(key)
    )
    if failure["more"]:
        title += f", and {failure['more']:,} more tasks with the same error"
    log = (
        f'<p class="note">Log: <bdi>{text(failure["log"])}</bdi></p>' if failure.get("log") else ""
    )
    lines = "\n".join(text(line) for line in str(failure["error"]).split("\n"))
    return f'<div class="failure"><b>{text(title)}</b><pre dir="auto">{lines}</pre>{log}</div>\n'


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = ""
) -> str:
    """Return a table below its heading, and below a note where there is one."""
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td><bdi>{text(cell)}</bdi></td>' for cell in row)}</tr>\n" for row in rows
    )
    under = f'<p class="note">{text(note)}</p>\n' if note else ""
    return (
        f'<h2>{text(title)}</h2>{under}<div class="table"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


# ---------------------------------------------------------------- where it goes

NAME = "report.html"
MOST_TRAININGS = 4  # how many of the newest ones the page finds when none is named


def report_path(directory: str, output: str | None) -> Path:
    """Return where the report of a run directory goes.

    Raises:
        UsageError: there it cannot be written.
    """
    if output is not None:
        if is_remote(output):
            raise UsageError(
                f"-o {output}: a report is written to a local file. Copy it from there."
            )
        path = Path(output.removeprefix("file://"))
        if path.is_dir():
            return path / NAME
        if not path.parent.is_dir():
            raise UsageError(f"-o {output}: there is no folder {path.parent}. Make it first.")
        return path
    if is_remote(directory):
        return Path(f"{directory.rstrip('/').rpartition('/')[2]}-{NAME}")
    return _local(directory) / NAME


def find_trainings(directory: str) -> list[str]:
    """Return outputs of trainings on a run: folders beside it whose names begin with its name.

    Only these are looked at. A run in object storage has none beside it.
    """
    if is_remote(directory):
        return []
    run = _local(directory).resolve()
    trainings: list[tuple[float, str]] = []
    for folder in sorted(run.parent.glob("*")):
        metrics = folder / "metrics.jsonl"
        if folder != run and folder.name.startswith(run.name) and metrics.is_file():
            try:
                trained_on = read_training(str(folder)).data
            except CorpuskitError:
                continue  # unfinished or damaged, and not asked for by name
            if Path(trained_on).name == run.name:
                trainings.append((metrics.stat().st_mtime, os.path.relpath(folder)))
    return [name for _, name in sorted(trainings)[-MOST_TRAININGS:]]


def _local(directory: str) -> Path:
    return Path(directory.removeprefix("file://"))
