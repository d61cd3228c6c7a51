"""The page of a training run: whole, escaped, bounded, and there for runs that are not finished."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.inspect.training import (
    MOST_BUCKETS,
    MOST_SOURCES,
    Curve,
    read_history,
    training_section,
    write_page,
)
from corpuskit.loader.state import SourceShare
from corpuskit.train.heartbeat import Ending, note_ending
from corpuskit.train.metrics import EvaluationMetrics, MetricsWriter, SourceLoss, StepMetrics

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = '<script>alert("x")</script>&\u202e\x1b'
VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Parses a page as browsers do; notes what a hostile name would leave behind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.drawn: Any = None
        self._is_json = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        self._is_json = ("type", "application/json") in attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self._is_json and self.open[-1] == "script":
            self.drawn = json.loads(text)
        elif self.open and self.open[-1] not in {"script", "style"}:
            self.words.append(text)


def write_run(
    output: Path,
    steps: int = 40,
    names: tuple[str, ...] = ("web", "books"),
    *,
    bad: int | None = None,
) -> None:
    """Write a run without an end, whose step `bad` was not applied."""
    with MetricsWriter(output, 0) as journal:
        _write(journal, steps, names, bad)


def _write(journal: MetricsWriter, steps: int, names: tuple[str, ...], bad: int | None) -> None:
    settings = {"name": f"demo{HOSTILE}", "optimizer": {"lr": 1e-3}}
    journal.event("start", steps=steps, step=0, settings=settings, plan_hash="ab12", world_size=2)
    for step in range(steps):
        loss = math.nan if step == bad else 2 + 5 / (step + 1)
        journal.step(
            StepMetrics(
                step=step, steps=2 * steps, tokens=step, loss=loss, lr=1e-3, grad_norm=1.0,
                tokens_per_second=10.0, step_seconds=0.5, data_wait_seconds=0.001,
                sources={name: SourceLoss(loss, 1.5, 10) for name in names}, mfu=None,
                data_wait_p50_ms=0.1, data_wait_p99_ms=0.2, is_applied=step != bad,
            )
        )  # fmt: skip
    losses = {name: SourceLoss(2.5, 1.125, 10) for name in names}
    journal.evaluation(EvaluationMetrics(steps, losses))
    shares = [SourceShare(name, 1, 1, 0.5, 1 / len(names), 0.5, 0.0) for name in names]
    journal.mixture(steps, shares)


def write_event(output: Path, kind: str, text: str = "", /, **fields: Any) -> None:
    with MetricsWriter(output, 10**9) as journal:
        journal.event(kind, text, **fields)


def page_of(output: Path) -> Page:
    return Page(write_page(str(output)).read_text(encoding="utf-8"))


def test_names_from_anywhere_do_not_become_html(tmp_path: Path) -> None:
    calm, hostile = tmp_path / "calm", tmp_path / "hostile"
    for output, name in ((calm, "web"), (hostile, HOSTILE)):
        write_run(output, names=(name,))
        documents = [{"document": name, "loss": 14.0}]
        write_event(output, "bad_step", f"of {name}", step=3, documents=documents, **{name: name})
    expected, found = page_of(calm), page_of(hostile)
    assert found.open == []
    assert found.tags == expected.tags
    shown = '<script>alert("x")</script>&\\u202e\\u001b'
    words = "".join(found.words)
    assert f"document {shown}, loss 14" in words
    assert words.count(shown) >= 5
    by_source = found.drawn["charts"][1]["series"]
    assert [one["name"] for one in by_source] == [shown]


def test_the_page_asks_for_nothing_beside_itself(tmp_path: Path) -> None:
    write_run(tmp_path)
    text = write_page(str(tmp_path)).read_text()
    assert Page(text).addresses == []
    for word in ("@import", "url(", "fetch(", "import("):
        assert word not in text.replace("url(#", "")
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_loads_of_experts_are_shown_by_layer_and_source(tmp_path: Path) -> None:
    write_run(tmp_path)
    with MetricsWriter(tmp_path, 40) as journal:
        journal.experts(20, {"web": [[9, 9], [9, 9]], "books": [[9, 9], [9, 9]]})
        journal.experts(40, {"web": [[30, 10], [0, 40]], "books": [[0, 0], [20, 20]]})
    words = page_of(tmp_path).words
    start = words.index("layer")
    cells = [word for word in words[start:] if word.strip()][:12]
    assert cells[1:4] == ["all sources", "books", "web"]
    assert cells[4:8] == ["0", "1.50 (#0)", "-", "1.50 (#0)"]
    assert cells[8:12] == ["1", "1.50 (#1)", "1.00 (#0)", "2.00 (#1), 1 idle"]


def test_curves_are_those_of_the_files(tmp_path: Path) -> None:
    write_run(tmp_path)
    charts = {
        chart["title"].partition(",")[0]: chart for chart in page_of(tmp_path).drawn["charts"]
    }
    (loss,) = charts["Loss"]["series"]
    assert loss["x"] == list(range(1, 41))
    assert loss["mean"] == pytest.approx([2 + 5 / done for done in range(1, 41)], rel=1e-6)
    held = charts["Held out"]["series"]
    assert [(one["name"], one["x"], one["mean"]) for one in held] == [
        ("books", [40], [1.125]),
        ("web", [40], [1.125]),
    ]
    shares = charts["Share of the tokens so far"]["series"]
    assert [(one["name"], one["mean"]) for one in shares] == [
        ("books", [50.0]), ("books (planned)", [50.0]), ("web", [50.0]), ("web (planned)", [50.0]),
    ]  # fmt: skip
    assert "MFU" not in charts, "its peak is not known"


def test_a_step_that_was_not_applied_is_marked_and_not_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, bad=7)
    documents = [{"document": f"web/{number}"} for number in range(60)]
    write_event(tmp_path, "bad_step", "step 7 not applied", step=7, documents=documents)
    write_event(tmp_path, "rollback", "back to 2", bad_steps=[7], skipped_rows=[14, 16])
    page = page_of(tmp_path)
    marks = [(mark["x"], mark["kind"]) for mark in page.drawn["marks"]]
    assert marks == [(0, "start"), (8, "bad_step"), (8, "rollback")]
    assert 8 not in page.drawn["charts"][0]["series"][0]["x"]
    words = "".join(page.words)
    assert "document web/49" in words
    assert "and 10 more in events.jsonl" in words
    assert "1 steps" in words


def test_the_state_is_that_of_the_last_start(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert "it runs, or was killed" in training_section(tmp_path)
    write_event(tmp_path, "failed", message="loss is <nan>")
    section = training_section(tmp_path)
    assert "Failed" in section
    assert "loss is &lt;nan&gt;" in section
    assert {"x": 40, "kind": "failed"}.items() <= page_of(tmp_path).drawn["marks"][-1].items()
    write_event(tmp_path, "start", step=40)
    assert "it runs, or was killed" in training_section(tmp_path)
    write_event(tmp_path, "end", steps_done=60, stopped_by="SIGTERM")
    assert "Stopped by SIGTERM" in training_section(tmp_path)
    write_event(tmp_path, "end", steps_done=80, stopped_by=None)
    assert "Finished" in training_section(tmp_path)


def test_what_a_rank_said_at_its_end_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path)
    note_ending(tmp_path, Ending(78, "no sign of life for <600> s"), rank=3)
    section = training_section(tmp_path)
    assert "rank 3 ended with code 78: no sign of life for &lt;600&gt; s" in section


def test_lines_that_are_being_written_or_broken_do_not_matter(tmp_path: Path) -> None:
    write_run(tmp_path)
    for name in ("metrics", "events"):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('\x00\x00\n[1]\n{"step": 40, "lo')
    history = read_history(tmp_path)
    assert history.last is not None
    assert history.last["step"] == 39
    assert history.broken == {"metrics.jsonl": 2, "events.jsonl": 2}
    assert "metrics.jsonl: 2 lines could not be read" in training_section(tmp_path)


def test_a_run_without_a_step_has_a_page(tmp_path: Path) -> None:
    write_event(tmp_path, "start", step=0)
    page = page_of(tmp_path)
    assert page.drawn["charts"] == []
    assert "none yet" in "".join(page.words)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no metrics.jsonl, so no training run has begun here"):
        write_page(str(tmp_path))


def test_another_run_is_laid_over_the_curve(tmp_path: Path) -> None:
    for name, steps in (("one", 20), ("two", 30)):
        write_run(tmp_path / name, steps)
    text = write_page(str(tmp_path / "one"), [str(tmp_path / "two")]).read_text()
    loss, by_source = Page(text).drawn["charts"][:2]
    assert [len(one["x"]) for one in loss["series"]] == [20, 30]
    assert loss["series"][1]["name"] == "two"
    assert {len(one["x"]) for one in by_source["series"]} == {20}


def test_a_page_is_bounded_in_sources(tmp_path: Path) -> None:
    names = tuple(f"source-{number:02}" for number in range(2 * MOST_SOURCES))
    write_run(tmp_path, names=names)
    page = page_of(tmp_path)
    assert len(page.drawn["charts"][1]["series"]) == MOST_SOURCES
    assert f"{MOST_SOURCES} more sources are in the table" in page.drawn["charts"][1]["title"]
    assert page.tags.count("tr") == 1 + len(names)


@settings(max_examples=30)
@given(st.integers(1, 5 * MOST_BUCKETS), st.integers(0, 10**9), st.integers(0))
def test_a_thinned_curve_keeps_means_and_extremes(steps: int, first: int, seed: int) -> None:
    curve, random = Curve(), np.random.default_rng(seed)
    values = random.random(steps).tolist()
    values[random.integers(steps)] = 1e4
    for step, value in enumerate(values):
        curve.add(first + step, value)
    curve.add(first + steps, math.inf)
    points = curve.points()
    assert len(points["x"]) <= MOST_BUCKETS
    assert points["x"] == sorted(points["x"])
    low, high = (points.get(name, points["mean"]) for name in ("low", "high"))
    assert (max(high), min(low)) == (1e4, pytest.approx(min(values), rel=1e-6))
    if steps <= MOST_BUCKETS // 2:
        assert points["mean"] == pytest.approx(values, rel=1e-6)


def test_lines_of_another_shape_are_counted_and_left_out(tmp_path):
    lines = ['{"step": 0}', '{"step": [], "sources": {}}', '{"step": 1, "sources": 3}', "7"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "mixture.jsonl").write_text('{"sources": {"web": 1}}\n')
    history = read_history(tmp_path)
    assert history.broken == {"metrics.jsonl": 4, "mixture.jsonl": 1}
