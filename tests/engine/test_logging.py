"""A program that runs a pipeline sees in its log what happens; without a log, nothing."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys

import pytest

from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.errors import DataError
from tests.engine.here import Here


def logged(caplog) -> list[tuple[int, str]]:
    records = [record for record in caplog.records if record.name == "corpuskit"]
    return [(record.levelno, record.getMessage()) for record in records]


@pytest.fixture
def run_here(lab, monkeypatch, caplog):
    """Run the lab's pipeline as a program does, its tasks in this process."""
    monkeypatch.chdir(lab.folder)
    caplog.set_level(logging.INFO, "corpuskit")
    lab.pipeline["stages"] = lab.pipeline["stages"][:1]

    def run_again():
        lab.save()
        caplog.clear()
        run(read_plan(lab.path), launcher=Here(lab.out))

    return run_again


def test_phases_are_logged_as_they_start_and_finish(lab, run_here, caplog):
    run_here()
    levels, messages = zip(*logged(caplog), strict=True)
    assert set(levels) == {logging.INFO}
    started, finished = messages[1:]
    assert messages[0] == f"run {lab.out}: phases: 1"
    assert started.startswith("phase gopher_quality: started, tasks: ")
    assert finished.startswith("phase gopher_quality: finished in ")
    run_here()
    messages = [message for _, message in logged(caplog)]
    assert messages[1:2] == ["phase gopher_quality: reused"]


def test_a_task_that_fails_is_an_error_in_the_log(lab, run_here, caplog):
    whole = gzip.compress((lab.inputs / "web0.jsonl").read_bytes())
    (lab.inputs / "web.jsonl.gz").write_bytes(whole[:-9])
    lab.pipeline["sources"] = {"web": {"jsonl": str(lab.inputs / "web.jsonl.gz")}}
    with pytest.raises(DataError):
        run_here()
    [error] = [message for level, message in logged(caplog) if level == logging.ERROR]
    assert error.startswith("task failed: ")
    assert "web.jsonl.gz" in error


def test_a_program_without_logging_prints_no_warning():
    program = "from corpuskit.logs import LOG; LOG.warning('seen by nobody')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
