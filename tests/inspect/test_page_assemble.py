"""The page as a file: what is in it, where it goes, what it allows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.inspect.report.page import (
    MOST_TRAININGS,
    find_trainings,
    render,
    report_path,
    to_json,
)
from corpuskit.inspect.training import training_section
from corpuskit.storage import write_whole
from tests.inspect.example import facts, hostile
from tests.test_training_page import Page, write_run

if TYPE_CHECKING:
    from pathlib import Path


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=())))
def test_any_text_comes_back_from_the_page(text: str) -> None:
    written = to_json({"text": text})
    assert json.loads(written) == json.loads(json.dumps({"text": text}))
    assert not set(written) & set("<>&\x7f\x9b\u2028\u2029\u202e\u2066\ud800\ufeff")


def test_the_page_is_small_without_samples() -> None:
    assert len(render({**facts(), "samples": {**facts()["samples"], "items": []}})) < 150_000


def test_hostile_facts_leave_the_markup_as_it_is() -> None:
    added = "</script><script>alert(1)</script>\"' onload=x {{style}} {{facts}} \0\x1b\u202e\ud800"
    calm, found = render(facts()), render(hostile(facts(), added))
    assert Page(found).tags == Page(calm).tags
    assert Page(found).open == []
    assert not set(found) & set("\0\x1b\u202e\ud800")
    policy = re.compile(r'content="(default-src[^"]*)"')
    assert policy.findall(found) == policy.findall(calm)


def test_the_policy_names_the_hash_of_everything_that_runs(tmp_path: Path) -> None:
    write_run(tmp_path)
    section = training_section(tmp_path)
    page = render(facts(), section + section)
    [policy] = re.findall(r'content="(default-src[^"]*)"', page)
    for kind in ("script", "style"):
        inside = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert len(inside) == 3
        made = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in inside}
        [allowed] = re.findall(rf"{kind}-src ([^;]*)", policy)
        assert set(allowed.split()) == {f"'sha256-{one}'" for one in made}
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_the_page_asks_for_nothing_beside_itself() -> None:
    page = Page(render(facts()))
    assert {address[0] for address in page.addresses} == {"#"}
    for word in ("@import", "url(", "fetch(", "import(", "innerHTML", "eval(", "document.write"):
        assert word not in render(facts())


def test_headings_of_a_training_are_below_those_of_the_page(tmp_path: Path) -> None:
    write_run(tmp_path)
    page = Page(render(facts(), training_section(tmp_path)))
    assert page.tags.count("h1") == 1
    assert 'href="#training"' in render(facts(), training_section(tmp_path))
    assert 'href="#training"' not in render(facts())


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    before = render(facts()).encode()
    write_whole(path, before)
    with pytest.raises(ValueError, match="JSON"):
        write_whole(path, render({**facts(), "more": float("nan")}).encode())
    with pytest.raises(UsageError, match=r"report\.html/page: cannot be written: .*Check the path"):
        write_whole(path / "page", b"")
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_a_report_lies_in_the_run_or_where_it_is_asked_for(tmp_path: Path) -> None:
    assert report_path("runs/a", None).as_posix() == "runs/a/report.html"
    assert report_path("file:///runs/a", None).as_posix() == "/runs/a/report.html"
    assert report_path("s3://bucket/runs/a/", None).as_posix() == "a-report.html"
    assert report_path("runs/a", str(tmp_path)) == tmp_path / "report.html"
    assert report_path("s3://bucket/runs/a", "x.html").as_posix() == "x.html"
    with pytest.raises(UsageError, match=r"-o s3://bucket/x: a report is written to a local file"):
        report_path("runs/a", "s3://bucket/x")
    with pytest.raises(UsageError, match=r"there is no folder .*no. Make it first"):
        report_path("runs/a", str(tmp_path / "no" / "x.html"))


def test_trainings_beside_a_run_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = {"a-train": "runs/a", "a2": "elsewhere/b", "b": "runs/a", "a-broken": None}
    for number, (name, on) in enumerate(trained.items()):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": number}) + "\n")
        state = {"step": 0, "rows": 0, "plan": "x"}
        start = {"event": "start", "step": 0, "steps": 9, "loader": state,
                 "settings": {"data": on, "batch": {"global_rows": 2}}}  # fmt: skip
        (folder / "events.jsonl").write_text(json.dumps(start) + "\n" if on else "{\n")
    (tmp_path / "runs" / "a").mkdir()
    assert find_trainings("runs/a") == ["runs/a-train"]
    assert find_trainings("s3://bucket/runs/a") == []
    assert MOST_TRAININGS > 1
