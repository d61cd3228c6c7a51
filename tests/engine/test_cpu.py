"""CPU time of child processes: in the accounts of the stage that they work for."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from time import process_time

import pytest

from corpuskit.cpu import cpu_seconds
from corpuskit.engine.context import Stopwatch
from corpuskit.stages.sources._extract import ExtractorSettings, HtmlPage, _Service
from tests.engine.here import command_line

HEAVY = b"<p>word word word</p>" * 100_000


def test_a_child_that_ended_counts():
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "for i in range(10**7): pass"], check=True)
    assert cpu_seconds() - before > 0.1


def test_an_extractor_counts_while_it_lives_and_once_only_when_it_ends():
    pytest.importorskip("resiliparse")
    service, timing = _Service(), defaultdict(float)
    service.extract([HtmlPage(b"<p>Loads.</p>")], ExtractorSettings())
    watch = Stopwatch(timing)
    service.extract([HtmlPage(HEAVY)] * 3, ExtractorSettings())
    watch.lap("html")
    alone = timing["cpu_seconds/html"]
    assert alone > 0.1
    service._stop()
    watch.lap("end")
    assert timing["cpu_seconds/end"] < alone / 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads the CPU clock of another process")
def test_a_page_that_is_ended_counts_as_long_as_it_took():
    pytest.importorskip("resiliparse")
    service, timing = _Service(), defaultdict(float)
    service.extract([HtmlPage(b"<p>Loads.</p>")], ExtractorSettings())
    before = time.clock_gettime(_clock_of(service._child.pid)), _ended_seconds(), process_time()
    watch = Stopwatch(timing)
    (found,) = service.extract([HtmlPage(b"<div>" * 200_000)], ExtractorSettings(page_seconds=0.5))
    watch.lap("html")
    # The timer that ends the page counts ticks: its 0.5 s were 0.44 to 0.50 CPU s under load.
    # What the kernel says of a child that has ended is exact.
    child = _ended_seconds() - before[1] - before[0]
    assert found.rule == "extraction_timeout"
    assert child > 0.1
    assert timing["cpu_seconds/html"] == pytest.approx(child + process_time() - before[2], abs=0.02)
    service._stop()


def _clock_of(process: int) -> int:
    """Return the CPU clock of a process that runs, as clock_getcpuclockid(3) makes it."""
    return ~process << 3 | 2


def _ended_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def test_the_funnel_shows_what_the_extractor_of_a_stage_took(tmp_path):
    pytest.importorskip("resiliparse")
    lines = [json.dumps({"text": HEAVY.decode()}) for _ in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "p.yaml").write_text(
        "output: out\nmax_document_bytes: 4000000\n"
        "sources:\n  web: {jsonl: a.jsonl}\nstages:\n  - html\n"
    )
    done = command_line(tmp_path, ["run", "p.yaml"])
    assert done.returncode == 0, done.stderr
    facts = json.loads(command_line(tmp_path, ["status", "out", "--json"]).stdout)
    (stage,) = [row for row in facts["funnel"] if row["stage"] == "html"]
    # Parsing 1.9 MB of tiny elements takes 0.06 CPU s and more; handing them over 0.01.
    assert stage["cpu_seconds"] > 0.2
    assert facts["cpu_seconds"]["cpu_seconds"] >= stage["cpu_seconds"]
