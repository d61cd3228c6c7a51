"""The report in a real browser, opened from disk: it draws, filters, searches, and runs nothing."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from corpuskit.inspect.report.page import render
from corpuskit.inspect.training import training_section
from tests.inspect.example import facts, hostile, sample, text
from tests.test_training_page import write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.inspect.browser import Browser, Page

pytestmark = pytest.mark.slow

SHOWN = "document.querySelectorAll('#sample-list .sample').length"
COUNT = "document.getElementById('sample-count').textContent"
PAPER = "getComputedStyle(document.documentElement).backgroundColor"
HOSTILE = (
    '<script>window.pwned=1;alert(1)</script><img src=x onerror="window.pwned=1">'
    "</script><svg onload=window.pwned=1>{{facts}}${7*7}{{7*7}}%s\0\x1b]0;x\x07\x1b[31m"
    "\u202e\u2066\u2028\u2029\x9b<!--<script>"
)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of facts; afterwards it has said no error and asked for nothing else."""
    pages: list[tuple[Page, str]] = []

    def open_page(given: dict[str, Any], training_html: str = "", **options: Any) -> Page:
        path = tmp_path / f"report{len(pages)}.html"
        path.write_text(render(given, training_html), encoding="utf-8")
        page = browser.open(path, **options)
        pages.append((page, path.resolve().as_uri()))
        return page

    yield open_page
    for page, address in pages:
        page.evaluate("1")
        assert page.errors == []
        assert page.dialogs == []
        assert set(page.requests) == {address}
        page.close()


def choose(page: Page, name: str, value: str) -> None:
    """Choose an option, as the keyboard does."""
    page.evaluate(
        f"(() => {{ const one = document.getElementById({json.dumps(name)});"
        f"one.value = {json.dumps(value)}; one.dispatchEvent(new Event('change')); }})()"
    )


def search(page: Page, words: str, count: str) -> None:
    """Type into the search field, and wait for a count."""
    page.evaluate(
        "(() => { const s = document.getElementById('search'); s.focus(); s.select(); })()"
    )
    page.type(words)
    typed = f"new URLSearchParams(location.hash.slice(1)).get('q') === {json.dumps(words)}"
    page.wait(f"{typed} && {COUNT} === {json.dumps(count)}")


def test_every_section_is_drawn(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    empty = page.evaluate(
        "[...document.querySelectorAll('main > section .content')]"
        ".filter((one) => !one.childElementCount).map((one) => one.closest('section').id)"
    )
    assert empty == []
    assert page.evaluate("document.title") == "example: corpuskit report"
    shown = page.evaluate("document.querySelector('#overview .headline').textContent")
    assert shown == "3,009 of 5,000 documents are left, 60.2 %."
    assert page.evaluate("document.querySelectorAll('#measures figure').length") == 2
    assert page.evaluate("document.querySelectorAll('#measures line.threshold').length") == 2


def test_a_distribution_shows_every_document_on_its_side_of_the_bound(
    opened: Callable[..., Page],
) -> None:
    page = opened(facts())
    figure = "#measures figure:first-child"
    words = page.all(f"{figure} rect.hover title")
    counted = [int(one.rpartition(": ")[2].split()[0].replace(",", "")) for one in words]
    assert counted == [1, 299, 500, 690, 1100, 2009, 300]
    sides = page.all(f"{figure} svg rect:not(.hover)", "one.getAttribute('class')")
    assert sides == ["failing", "lost", "lost", "lost", "unsure", "kept", "kept", "kept"]
    at = page.all(f"{figure} line.threshold", "Number(one.getAttribute('x1'))")
    edges = page.all(f"{figure} rect.kept", "Number(one.getAttribute('x'))")
    assert at == [pytest.approx(edges[0])]
    ranges = page.all("#measures figure:nth-child(2) rect.hover title", "one.textContent")
    ends = [[float(end) for end in one.partition(":")[0].split(" to ")] for one in ranges]
    assert 20 < len(ends) < 40
    assert [pair for pair in ends if pair[0] < 0.65 < pair[1]] == []
    page.click(f"{figure} summary")
    cells = page.wait(f"document.querySelectorAll('{figure} tbody tr').length")
    assert cells == len(counted)


def test_the_curves_of_a_training_are_drawn(opened: Callable[..., Page], tmp_path: Path) -> None:
    write_run(tmp_path / "train")
    page = opened(facts(), training_section(tmp_path / "train"))
    assert page.wait("document.querySelectorAll('#training svg path.line').length") > 5
    stroke = "getComputedStyle(document.querySelector('#training svg path.line')).stroke"
    assert page.evaluate(stroke) not in {"none", "rgb(0, 0, 0)"}


def test_a_click_on_a_rule_shows_its_samples(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    assert page.evaluate(COUNT) == "40 samples"
    assert page.evaluate(SHOWN) == 12
    page.click("#rules tbody tr:nth-child(2) button")
    assert page.evaluate(COUNT) == "1 of 40 samples"
    assert page.evaluate("location.hash") == "#stage=minhash_dedup&rule=near_duplicate"
    assert page.all("#sample-list mark") == ["changed", "three"]
    page.click("#clear")
    assert page.evaluate(COUNT) == "40 samples"
    page.click("#sample-list .more")
    assert page.evaluate(SHOWN) == 24


def test_filters_narrow_the_samples_and_each_other(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    choose(page, "filter-action", "drop")
    assert page.evaluate(COUNT) == "27 of 40 samples"
    assert page.all("#filter-rule option") == ["any rule", "few_words (24)", "near_duplicate (1)",
                                    "language (1)", "invalid_utf8 (1)"]  # fmt: skip
    choose(page, "filter-stage", "gopher_quality")
    assert page.evaluate(COUNT) == "24 of 40 samples"
    assert page.all("#filter-source option") == ["any source", "web (24)"]
    choose(page, "filter-action", "")
    choose(page, "filter-stage", "")
    choose(page, "filter-source", "books")
    assert page.evaluate(COUNT) == "12 of 40 samples"


def test_search_finds_any_script_in_any_case(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    search(page, "USER@mail", "1 of 40 samples")
    assert (
        page.evaluate(
            "document.querySelector('#sample-list mark .hit, #sample-list mark.hit').textContent"
        )
        == "user@mail"
    )
    search(page, "\u0645\u0631\u062d\u0628\u0627", "1 of 40 samples")
    assert page.evaluate("document.querySelector('#sample-list .text').dir") == "auto"
    direction = "getComputedStyle(document.querySelector('#sample-list .text')).direction"
    assert page.evaluate(direction) == "rtl"
    search(page, "caf\u00c9", "12 of 40 samples")
    search(page, "a.jsonl#203", "1 of 40 samples")
    search(page, "x(", "0 of 40 samples")
    assert page.evaluate("decodeURIComponent(location.hash)") == "#q=x("


def test_an_address_opens_what_it_names(opened: Callable[..., Page]) -> None:
    page = opened(
        facts(), fragment="unit=text_bytes&of=books&stage=gopher_quality&rule=few_words&q=river"
    )
    assert page.evaluate(COUNT) == "2 of 40 samples"
    assert page.evaluate("document.getElementById('choose-unit').value") == "text_bytes"
    assert page.evaluate("document.querySelector('#funnel tbody td.num').textContent") == "1.80 MB"
    assert page.evaluate("document.getElementById('samples').getBoundingClientRect().top < 600")
    page.evaluate("location.hash = '#stage=pii'")
    page.wait(f"{COUNT} === '1 of 40 samples'")


def test_unit_and_source_change_the_figures(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    rows = "#funnel > .content > .table:first-child tbody tr"
    third = "one.children[2].textContent"
    assert page.all(rows, third) == [
        "5,000", "3,999", "1,000", "4,899", "3,409", "3,009", "3,009",
    ]  # fmt: skip
    first = "one.children[0].textContent"
    assert page.all(rows, first)[:4] == ["read", "web", "books", "language"]
    choose(page, "choose-of", "books")
    assert page.all(rows, first)[:3] == ["read", "books", "language"]
    assert page.all(rows, third) == ["1,000", "1,000", "1,000", "900", "900", "900"]
    choose(page, "choose-unit", "tokens")
    assert page.all(rows, third)[-1] == "~360 k"
    assert page.evaluate("document.querySelectorAll('#rules tbody tr').length") == 1


def test_the_theme_follows_the_system_until_told_otherwise(opened: Callable[..., Page]) -> None:
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
    page = opened(facts(), dark=True)
    assert page.evaluate(PAPER) == dark
    page.set_dark(False)
    assert page.evaluate(PAPER) == light
    for expected in (light, dark, light):
        page.click("#theme")
        assert page.evaluate(PAPER) == expected, page.evaluate(
            "document.getElementById('theme').textContent"
        )


def test_the_keyboard_is_enough(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    page.key("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.key("Enter")
    page.wait("document.activeElement.id === 'main'")
    page.key("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.type("river")
    page.wait(f"{COUNT} === '3 of 40 samples'")
    page.key("Tab")
    assert page.evaluate("document.activeElement.id") == "filter-action"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.key("/")
    assert page.evaluate("document.activeElement.id") == "filter-action", "a key of the list"
    page.evaluate("document.getElementById('search').focus()")
    page.key("Escape")
    page.wait(f"{COUNT} === '40 samples'")
    page.evaluate("document.querySelector('#rules tbody button').focus()")
    page.key("Enter")
    assert page.evaluate(COUNT) == "24 of 40 samples"
    assert page.evaluate("document.activeElement.id") == "samples-title"


def test_a_phone_does_not_scroll_sideways(opened: Callable[..., Page], tmp_path: Path) -> None:
    write_run(tmp_path / "train")
    page = opened(facts(), training_section(tmp_path / "train"), width=400, height=800)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_long_names_do_not_widen_a_phone(opened: Callable[..., Page]) -> None:
    given = hostile(facts(), "x" * 300)
    given["failures"] = [dict.fromkeys(("phase", "units", "host", "at", "error", "log"), "y" * 300)]
    page = opened(given, width=400, height=800)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_paper_has_no_controls(opened: Callable[..., Page]) -> None:
    page = opened(facts())
    page.set_dark(False, media="print")
    display = page.all("nav, .filters, #theme", "getComputedStyle(one).display")
    assert display == ["none"] * 3


def test_text_from_anywhere_runs_nothing(opened: Callable[..., Page]) -> None:
    calm = opened(facts())
    page = opened(hostile(facts(), HOSTILE))
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for one in (calm, page):
        one.wait("document.body.classList.contains('is-drawn')")
    assert page.evaluate("window.pwned") is None
    tags = "script, img, svg, iframe, a, style, object, form"
    assert page.all(tags, "one.tagName") == calm.all(tags, "one.tagName")
    words = page.evaluate("document.body.innerText + document.title")
    words += "".join(page.all("[title]", "one.title") + page.all("option"))
    assert HOSTILE.partition("\0")[0] in words
    assert "\\u0000\\u001b]0;x\\u0007" in words
    assert "\\u202e\\u2066\\u2028\\u2029\\u009b" in words
    assert not set(words) & set("\0\x1b\x07\u202e\u2066\u2028\u2029\x9b")
    search(page, "onerror=", f"{len(facts()['samples']['items'])} of 40 samples")


def test_the_policy_forbids_what_is_not_in_the_page(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(facts()), encoding="utf-8")
    page = browser.open(path)
    page.evaluate(
        "(() => { const one = document.createElement('script');"
        "one.textContent = 'window.pwned = 1';"
        "document.body.append(one); document.body.setAttribute('onclick', 'window.pwned = 1');"
        "document.body.click(); })()"
    )
    page.evaluate("fetch('http://example.org/').catch(() => 0)")
    assert page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in one for one in page.errors)
    assert set(page.requests) == {path.resolve().as_uri()}
    page.close()


def test_a_line_of_a_megabyte_is_folded_and_found(opened: Callable[..., Page]) -> None:
    given = facts()
    long = "ab\ud83d" + "x" * 1_000_000 + "\U0001f600needle"
    given["samples"]["items"] = [sample("keep", None, None, "web", 1, text(long))]
    page = opened(given, width=400, height=800)
    shown = "document.querySelector('#sample-list .text').textContent"
    assert page.evaluate(shown).startswith("ab\\ud83dxxx")
    assert page.evaluate(f"{shown}.length") < 3000
    page.click("#sample-list button.gap")
    assert 20_000 < page.evaluate(f"{shown}.length") < 25_000
    search(page, "NEEDLE", "1 of 1 samples")
    assert page.evaluate(shown).endswith("\U0001f600needle")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_many_lines_are_folded_unless_what_is_marked_would_be_hidden(
    opened: Callable[..., Page],
) -> None:
    given = facts()
    lines = "line\n" * 60
    marked = [text(lines), text("line\n" * 30, ["cut", "gone"], lines), text("short")]
    given["samples"]["items"] = [
        sample("cut", "pii", "email", "web", number, one) for number, one in enumerate(marked)
    ]
    page = opened(given)
    page.wait("document.querySelector('.is-folded') !== null")
    classes = page.all("#sample-list .text", "one.className")
    assert classes == ["text is-folded", "text is-open", "text"]
    page.click("#sample-list article:first-child > div > button")
    assert page.all("#sample-list .text", "one.className")[0] == "text is-open"
    assert page.all("#sample-list .text", "one.scrollHeight - one.clientHeight") == [0, 0, 0]


def test_without_scripts_the_page_says_what_to_do(opened: Callable[..., Page]) -> None:
    page = opened(hostile(facts(), HOSTILE), script=False)
    document = page.send("DOM.getDocument", {"depth": -1})["root"]["nodeId"]
    note = page.send("DOM.querySelector", {"nodeId": document, "selector": "noscript"})
    html = page.send("DOM.getOuterHTML", note)["outerHTML"]
    assert "corpuskit status" in html


def test_a_failed_run_says_what_failed(opened: Callable[..., Page]) -> None:
    given = facts()
    given["run"] |= {"state": "failed", "sentence": "Failed in phase pii: 1 of 4 tasks."}
    failure = {"phase": "pii", "units": "units 3-5", "code": 3, "host": "n1", "at": None,
               "error": "a.jsonl: line 7\nis broken", "log": "logs/1.log"}  # fmt: skip
    given["failures"] = [failure] * 3
    none = dict.fromkeys(given["funnel"][0]["in"])
    given["funnel"][-1] |= {"state": "waiting", "out": none}  # what comes to it is known
    given["mixture"], given["packing"], given["duplicates"] = None, [], []
    given["samples"]["items"] = []
    for name in ("measures", "values", "domains", "lengths"):
        given[name] = {**given[name], "recorded": "none", "items": [], "names": []}
    page = opened(given)
    top = page.evaluate("document.querySelector('header.top').innerText")
    assert "Failed in phase pii: 1 of 4 tasks." in top
    assert "a.jsonl: line 7\nis broken" in top
    assert "pii, units 3-5, n1, and 2 more tasks with the same error" in top
    assert top.count("is broken") == 1
    headline = page.evaluate("document.querySelector('.headline').textContent")
    assert "left so far" in headline
    assert headline.startswith(f"{given['funnel'][-1]['in']['documents']:,} of ")
    assert page.evaluate("document.querySelector('#measures .content').textContent").startswith(
        "Nothing is counted yet"
    )


def test_facts_of_every_shape_are_drawn(opened: Callable[..., Page]) -> None:
    given = copy.deepcopy(facts())
    for section in ("funnel", "drops", "changes", "sources", "stages", "failures"):
        given[section] = []
    given["totals"]["accounts"] = []
    given["totals"]["tokens"] = dict.fromkeys(given["totals"]["tokens"])
    given["totals"]["left"] = dict.fromkeys(given["totals"]["left"])
    page = opened(given)
    assert page.evaluate("document.body.classList.contains('is-drawn')")
