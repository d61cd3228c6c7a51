"""The findings of an audit as one HTML file, in the style of the report, without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import corpuskit
from corpuskit.inspect.report.page import filled, html_table, policy, read_web, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.inspect.audit.checks import AuditReport, Check
    from corpuskit.inspect.audit.estimates import Rate

MOST_UNREADABLE = 200
LEGEND = (
    "The bar is the share, the pale part its 95 % interval. Bars are drawn to the scale of the "
    "largest; a document may count in several rows."
)


def render_audit(report: AuditReport, paths: Sequence[str]) -> str:
    """Return the page."""
    style = "\n" + read_web("page.css")
    listed = [check for check in report.checks if check.details or check.examples]
    languages = [(label, share(rate), interval(rate)) for label, rate in report.languages]
    lengths = [(name, f"{size:,}") for name, size in report.lengths.items()]
    sections = {check.name: _section(check) for check in listed} | {
        "languages": html_table("Languages", ("language", "share", "95 % interval"), languages),
        "lengths": html_table("Lengths", ("", "bytes of text"), lengths),
    }
    if report.unreadable:
        rows = [(file.place, file.reason) for file in report.unreadable[:MOST_UNREADABLE]]
        sections["files"] = html_table("What could not be read", ("file", "why"), rows)
    links = [("checks", "Shares"), *((key, key.replace("_", " ").capitalize()) for key in sections)]
    return filled(
        read_web("audit.html"),
        {
            "policy": policy([style], []),
            "title": text(f"Audit of {', '.join(paths)}"),
            "style": style,
            "name": text(", ".join(paths)),
            "files": text(files_words(report)),
            "state": "stopped" if report.unreadable else "finished",
            "sentence": text(read_words(report)),
            "links": "".join(f'<a href="#{key}">{text(name)}</a>' for key, name in links),
            "legend": text(LEGEND),
            "checks": _checks(report.checks),
            "sections": "".join(
                f'<section id="{key}">{html}</section>\n' for key, html in sections.items()
            ),
            "version": text(corpuskit.__version__),
        },
    )


def _checks(checks: Sequence[Check]) -> str:
    rates = [check.rate for check in checks if check.rate is not None]
    scale = max([*(rate.high or rate.value for rate in rates), 0.001])
    rows = []
    for check in checks:
        meaning = f'<span class="under">{text(check.meaning)}</span>'
        title = f'<th scope="row">{text(check.title)}{meaning}</th>'
        if check.rate is None:
            rows.append(f'<tr class="quiet">{title}<td colspan="3">{text(check.note)}</td></tr>')
            continue
        rows.append(
            f'<tr>{title}<td class="num">{check.rate.found:,}</td>'
            f'<td class="num">{text(share(check.rate))}'
            f'<span class="under">{text(interval(check.rate))}</span></td>'
            f'<td class="wide">{_bar(check.rate, scale)}</td></tr>'
        )
    head = "".join(
        f'<th scope="col" class="{kind}">{name}</th>'
        for name, kind in (("", ""), ("documents", "num"), ("share", "num"), ("", "wide"))
    )
    body = "\n".join(rows)
    return (
        f'<div class="table"><table class="bars"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _bar(rate: Rate, scale: float) -> str:
    low, value = 100 * rate.low / scale, 100 * rate.value / scale
    high = value if rate.high is None else 100 * rate.high / scale
    words = text(f"{share(rate)} {interval(rate)}".strip())
    return (
        '<svg class="bar" viewBox="0 0 100 14" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}"><rect class="lost" width="{value:.2f}" height="14"/>'
        f'<rect class="unsure" x="{low:.2f}" width="{high - low:.2f}" height="14"/></svg>'
    )


def _section(check: Check) -> str:
    note = f"{check.meaning[:1].upper()}{check.meaning[1:]}; {check.note}".rstrip("; ") + "."
    details = html_table(check.title.capitalize(), ("found", "how often"), check.details, note)
    examples = html_table("Examples", ("where", "what"), check.examples).replace("h2>", "h3>")
    empty = "<tbody></tbody>"
    return "".join(
        html if empty not in html else html.partition('<div class="table">')[0] * (html is details)
        for html in (details, examples)
    )


# ---------------------------------------------------------------- figures in words


def share(rate: Rate) -> str:
    """Return a share as people read it."""
    mark = "\u2265 " if rate.how == "at least" else ""
    return f"{mark}{percent(rate.value)}"


def interval(rate: Rate) -> str:
    """Return the interval of a share; empty where it says no more than the share."""
    if rate.high is None:
        return f"{percent(rate.low)} or more" if 0 < rate.low < rate.value else ""
    return f"{percent(rate.low)} to {percent(rate.high)}" if rate.low < rate.high else ""


def percent(value: float) -> str:
    """Return a share in percent: two digits where it is small."""
    if value == 0:
        return "0 %"
    if value < 0.0001:
        return "< 0.01 %"
    return f"{100 * value:.2f} %" if value < 0.01 else f"{100 * value:.1f} %"


def size_words(size: int) -> str:
    """Return bytes in the unit that suits them."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1000:.1f} kB"


def files_words(report: AuditReport) -> str:
    """Return which files there are, and where the text is in them."""
    facts = report.facts
    num, matched = facts["files"], facts["files_found"]
    files = f"{num:,} file{'s' * (num != 1)}" + (f" of {matched:,}" if matched > num else "")
    columns = ", ".join(f"{kind}, text in {name!r}" for kind, name in facts["columns"])
    return f"{files}, {size_words(facts['file_bytes'])}: {columns}"


def read_words(report: AuditReport) -> str:
    """Return how much was read and analysed."""
    facts = report.facts
    documents, size = f"{facts['documents']:,} documents", size_words(facts["bytes"])
    cost = f"{facts['cpu_seconds']:.0f} CPU s"
    if facts["documents"] == facts["read_documents"] and facts["is_whole"]:
        return f"{documents}, {size} of text, all looked at ({cost}): shares are exact counts."
    total = f"about {size_words(facts['text_bytes'])}"
    read = f"{facts['read_documents']:,} ({size_words(facts['read_bytes'])} of {total})"
    scope = f"copies were looked for among {'all ' * facts['is_whole']}{read}"
    return f"{documents}, {size} of text, drawn at random, were looked at; {scope} ({cost})."
