"""What is shown of a run that runs: the facts, and that they end as the finished run says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.cli._live import draw
from corpuskit.cli._progress import LineObserver, TrackingObserver, minute_line
from corpuskit.engine import monitor
from corpuskit.engine.monitor import RunMonitor
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.progress import PhaseProgress, RunProgress, StageSoFar
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import funnel, sealed
from corpuskit.formats.manifest import dump_checked, load_checked
from tests.engine.here import Here
from tests.engine.terminal import Terminal


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of a finished run, to be changed."""
    place = tmp_path / "copy"
    shutil.copytree(finished.out, place)
    return place


class Watching(TrackingObserver):
    """Looks on from the outside whenever something happens inside."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.watcher: RunMonitor | None = None
        self.inside: list[RunProgress] = []
        self.outside: list[RunProgress] = []

    def task_ends(self, event, fields):
        super().task_ends(event, fields)
        self.tracker.look()
        self.inside.append(self.tracker.progress())
        self.watcher = self.watcher or RunMonitor(self.address)
        self.outside.append(self.watcher.look())


@pytest.fixture(scope="module")
def seen(finished, tmp_path_factory):
    """A run in this process that was looked at after every task, from inside and outside."""
    place = str(tmp_path_factory.mktemp("seen") / "out")
    plan = read_plan(finished.path, [f"output={place}"])
    observer = Watching(place)
    result = run(plan, observer, launcher=Here(place))
    observer.inside.append(observer.tracker.progress())
    observer.outside.append(observer.watcher.look())
    return result, observer


def shares(rows):
    return [(one.stage, one.num_in, one.num_out) for one in rows]


def test_the_funnel_so_far_ends_as_the_final_one(seen):
    result, observer = seen
    rows = funnel(result.run, sealed(result.run))
    final = [(row.stage, row.num_in, row.num_out) for row in rows]
    assert shares(observer.inside[-1].funnel) == final
    assert shares(observer.outside[-1].funnel) == final


def test_the_funnel_of_the_first_task_is_that_of_its_documents(seen):
    first = seen[1].inside[0]
    assert 0 < first.funnel[0].num_in < seen[1].inside[-1].funnel[0].num_in
    assert not first.funnel[0].is_final
    assert [one.stage for one in first.funnel] == ["web", "books", "gopher_quality"]


def test_whoever_looks_on_sees_what_the_run_itself_sees(seen):
    inside, outside = seen[1].inside, seen[1].outside
    assert [one.current and one.current.name for one in inside] == [
        one.current and one.current.name for one in outside
    ]
    assert [shares(one.funnel) for one in inside] == [shares(one.funnel) for one in outside]
    assert [one.current and one.current.tasks_done for one in inside] == [
        one.current and one.current.tasks_done for one in outside
    ]


def test_all_phases_are_there_from_the_start_and_done_in_order(seen):
    result, observer = seen
    names = [phase.name for phase in result.run.plan.phases]
    for one in observer.outside:
        assert [phase.name for phase in one.phases] == names
        states = "".join(phase.state[0] for phase in one.phases)
        assert re.fullmatch("d*r?w*", states)
    assert observer.outside[-1].state == "finished"
    assert observer.outside[-1].current is None


def test_shares_of_a_phase_only_grow(seen):
    by_phase: dict[str, list[float]] = {}
    for one in seen[1].inside[:-1]:
        by_phase.setdefault(one.current.name, []).append(one.current.share)
    assert all(found == sorted(found) for found in by_phase.values())
    assert all(found[-1] == 1.0 for found in by_phase.values())


def test_no_manifest_is_read_twice(finished, monkeypatch, tmp_path):
    read: list[str] = []
    directory = RunDirectory.open(str(finished.out))
    store = type(directory.store)
    plain = store.read

    def noted(self, name):
        read.append(name)
        return plain(self, name)

    shutil.copytree(finished.out, tmp_path / "open")
    last = directory.plan.phases[-1].name
    (tmp_path / "open" / "manifests" / last / "seal.json").unlink()
    watcher = RunMonitor(str(tmp_path / "open"))
    monkeypatch.setattr(store, "read", noted)
    for _ in range(3):
        watcher.look()
    manifests = [name for name in read if "/task-" in name]
    assert len(manifests) == len(set(manifests)) > 0


def test_a_run_that_failed_is_said_to_have(lab):
    documents = (lab.inputs / "web0.jsonl").read_bytes() * 20
    (lab.inputs / "web9.jsonl.gz").write_bytes(_half_of_gzip(documents))
    lab.pipeline["sources"]["web"]["jsonl"] = str(lab.inputs / "web*")
    lab.run(code=3)
    watcher = RunMonitor(str(lab.out))
    shown = _patiently(watcher)
    assert shown.state == "failed"
    assert shown.tasks_failed == 1
    assert "web9.jsonl.gz" in watcher.news[0]
    assert watcher.exit_code(shown) == 3
    assert _never_patient(lab, "status", str(lab.out), "--watch", "0.1", code=3).count("failed") > 1


def _half_of_gzip(content: bytes) -> bytes:
    import gzip

    packed = gzip.compress(content)
    return packed[: len(packed) // 2]


def _patiently(watcher: RunMonitor) -> RunProgress:
    """Look until it is believed that nobody is at work."""
    now = [watcher._clock()]
    watcher._liveness._clock = lambda: now[0]
    watcher.look()
    now[0] += 2 * monitor.GONE_SECONDS
    return watcher.look()


def _never_patient(lab, *arguments, code):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "GONE_SECONDS", 0.0)
        done = lab.cli(*arguments, code=code)
    return done.stdout + done.stderr


def test_a_run_that_was_killed_is_said_to_be_stopped(copied, finished):
    manifests = copied / "manifests" / "minhash_dedup.sign"
    (manifests / "seal.json").unlink()
    shown = _patiently(RunMonitor(str(copied)))
    assert (shown.state, shown.current.name) == ("stopped", "minhash_dedup.sign")
    assert "No process works on this run. Run the same command again" in shown.note
    said = _never_patient(finished, "status", str(copied), "--watch", "0.1", code=1)
    assert "The run was stopped" in said


def test_who_holds_the_lock_is_alive(copied):
    (copied / "manifests" / "minhash_dedup.sign" / "seal.json").unlink()
    watcher = RunMonitor(str(copied))
    with RunDirectory.open(str(copied)).store.lock():
        assert _patiently(watcher).state == "running"
    assert _patiently(watcher).state == "stopped"


def test_a_run_on_another_machine_may_be_alive(copied):
    (copied / "manifests" / "minhash_dedup.sign" / "seal.json").unlink()
    for log in (copied / "logs").iterdir():
        log.unlink()
    (copied / "logs" / "worker-elsewhere-77-1.log").touch()
    assert _patiently(RunMonitor(str(copied))).state == "running"


def test_long_silence_is_said(copied):
    (copied / "manifests" / "minhash_dedup.sign" / "seal.json").unlink()
    (copied / "logs" / "worker-elsewhere-77-1.log").touch()
    now = [0.0]
    watcher = RunMonitor(str(copied), clock=lambda: now[0])
    assert watcher.look().note == ""
    now[0] = 12 * 60.0
    note = watcher.look().note
    assert note.startswith("no task finished for 12 min; workers alive?")
    assert "process 77 on elsewhere" in note


def test_a_run_that_is_planned_anew_is_opened_anew(copied, finished):
    now = [0.0]
    watcher = RunMonitor(str(copied), clock=lambda: now[0])
    assert watcher.look().state == "finished"
    path = copied / "plan.json"
    plan = load_checked(path.read_bytes(), "plan.json")
    step = next(one for one in plan["steps"] if one["name"] == "gopher_quality")
    step["params"]["min_words"] = 31
    path.write_bytes(dump_checked(plan))
    now[0] = 2 * monitor.PLAN_SECONDS
    assert watcher.look().current.name == "gopher_quality"


def test_json_is_an_object_a_line(finished):
    lines = finished.cli("status", str(finished.out), "--watch", "--json").stdout.splitlines()
    [last] = map(json.loads, lines)
    assert last["state"] == "finished"
    assert last["funnel"][-1]["num_out"] > 0


def test_seconds_without_watch_are_refused(finished):
    assert "not --watch" in finished.cli("status", str(finished.out), "5", code=2).stderr


def test_a_log_has_lines_and_no_control_codes(lab, capsys):
    done = lab.run("--until", "exact_dedup")
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    before = lines[: lines.index(next(line for line in lines if line.startswith("Funnel")))]
    names = [line.split(":")[0] for line in before]
    work = ["hash", "group", "survivors", "apply"]  # `route` has nothing to do
    assert names == ["gopher_quality", *(f"exact_dedup.{name}" for name in work)]
    assert re.match(r"gopher_quality: \d+ tasks, 160 documents, .* kept \d", before[0])
    assert "(" not in "".join(before)  # nothing is done again
    for command in (("plan", str(lab.path)), ("status", str(lab.out))):
        said = lab.cli(*command).stdout
        assert "never" not in said
        assert "exact_dedup.route" not in said
        assert "again" not in said


def test_what_is_done_again_says_why(lab):
    lab.run("--until", "exact_dedup")
    lab.stage("gopher_quality")["min_words"] = 31
    why = "again: its parameters or files changed"
    lab.save()
    assert f"RUN {why}" in lab.cli("plan", str(lab.path), "--until", "exact_dedup").stdout
    lines = lab.run("--until", "exact_dedup").stdout.splitlines()
    assert lines[0].startswith("gopher_quality: ")
    assert lines[0].endswith(f"({why})")
    seal = lab.out / "manifests" / "gopher_quality" / "seal.json"
    seal.write_bytes(b"{")
    plan = lab.cli("plan", str(lab.path), "--until", "exact_dedup").stdout
    assert "RUN again: its seal cannot be read" in plan or "CONTINUE again" in plan


def test_quiet_says_nothing(lab):
    done = lab.run("--quiet", "--until", "gopher_quality")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_line_a_minute(lab, monkeypatch, capsys):
    monkeypatch.setattr("corpuskit.cli._progress.LINE_SECONDS", 0.0)
    lab.save()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(lab.folder)
        run(read_plan(lab.path, until="gopher_quality"), LineObserver(), launcher=Here(lab.out))
    lines = [line for line in capsys.readouterr().out.splitlines() if "tasks," in line]
    assert re.match(r"  gopher_quality: 1/\d+ tasks, \d+ documents, .* <1 s, kept \d", lines[0])


NAMES = st.sampled_from(["", "web", "\x1b[2J", "a\tb\nc", "\u202egnp", "x" * 90, "\u6f22" * 30])
COUNTS = st.integers(0, 10**12)
SECONDS = st.none() | st.floats(0, 1e8)
PHASES = st.builds(
    PhaseProgress, NAMES, st.lists(NAMES, max_size=3).map(tuple),
    st.sampled_from(["waiting", "running", "done", "reused", "failed"]), COUNTS, COUNTS, COUNTS,
    COUNTS, st.floats(0, 1), st.floats(0, 1e8),
)  # fmt: skip


@st.composite
def progresses(draw_value):
    phases = draw_value(st.lists(PHASES, min_size=1, max_size=8))
    stages = st.builds(StageSoFar, NAMES, NAMES, COUNTS, COUNTS, st.booleans())
    return RunProgress(
        draw_value(NAMES), draw_value(st.sampled_from(["running", "failed", "stopped"])),
        tuple(phases), draw_value(st.none() | st.sampled_from(phases)),
        tuple(draw_value(st.lists(stages, max_size=5))), draw_value(st.floats(0, 1e12)),
        draw_value(st.floats(0, 1e8)), draw_value(SECONDS), draw_value(SECONDS),
        draw_value(COUNTS), draw_value(COUNTS), draw_value(st.floats(0, 1e6)), draw_value(NAMES),
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(progresses(), st.integers(12, 140), st.integers(2, 40))
def test_a_picture_fits_and_obeys_nobody(progress, width, height):
    lines = draw(progress, width, height)
    assert 1 <= len(lines) <= height - 1
    for line in lines:
        assert len(line.plain) <= width
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", line.plain)
    assert not re.search("[\x00-\x1f\x7f-\x9f]", minute_line(progress))


def test_a_small_terminal_has_the_phase_that_runs(seen):
    shown = [line.plain for line in draw(seen[1].inside[0], 20, 5)]
    assert len(shown) <= 4
    assert "phase 1 of" in shown[0]
    assert shown[1].startswith("gopher_qu")
    assert "tasks" in shown[2]


def test_a_run_on_a_terminal_draws_in_place_and_leaves_it_as_it_was(lab):
    lab.save()
    command = lab.command("run", str(lab.path), "--until", "exact_dedup")
    terminal = Terminal(command, 100, 30, PYTHONPATH=_root(), OMP_NUM_THREADS="1")
    assert terminal.ended() == 0
    picture = terminal.picture()
    assert picture.others == set()  # the cursor was neither hidden nor sent elsewhere
    shown = [row.rstrip() for row in picture.rows]
    heads = [row for row in shown if "phases done, " in row]
    assert len(heads) == 1  # one picture, however often it was drawn
    assert sum(row.startswith("exact_dedup.hash: ") for row in shown) == 1
    assert any(row.startswith("Funnel") for row in shown)
    assert shown[-1] == ""


def test_ctrl_c_in_a_small_terminal_says_how_to_go_on(lab):
    lab.save()
    lab.write("web7.jsonl", [{"id": f"n{i}", "text": "words " * 4000} for i in range(60)])
    command = lab.command("run", str(lab.path))
    terminal = Terminal(command, 40, 12, PYTHONPATH=_root(), NO_COLOR="1")
    assert terminal.wait_for(lambda text: "tasks" in text)
    terminal.resize(20, 5)
    terminal.type("\x03")
    assert terminal.ended() == 1
    assert "Run the same command again to continue." in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text)  # NO_COLOR: bold at most
    assert terminal.picture().others == set()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(finished):
    command = finished.command("status", str(finished.out), "--watch")
    terminal = Terminal(command, 100, 30, PYTHONPATH=_root(), TERM="dumb")
    assert terminal.ended() == 0
    assert "\x1b" not in terminal.text
    assert f"Finished: {finished.out}" in terminal.text


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        (lambda terminal: terminal.type("\x03"), 1, "This ends the watching only."),
        (lambda terminal: os.kill(terminal.process, signal.SIGTERM), 128 + signal.SIGTERM, "\n"),
    ],
    ids=["Ctrl-C", "TERM"],
)
def test_what_ends_the_watching_closes_the_picture(copied, end, code, says):
    (copied / "manifests" / "minhash_dedup.sign" / "seal.json").unlink()
    (copied / "logs" / "worker-elsewhere-77-1.log").touch()
    command = [sys.executable, "-m", "corpuskit", "status", str(copied), "--watch", "0.2"]
    terminal = Terminal(command, 80, 24, PYTHONPATH=_root())
    assert terminal.wait_for(lambda text: "minhash_dedup.sign" in text)
    end(terminal)
    assert terminal.ended() == code
    assert says in terminal.text
    assert terminal.text.endswith("\n")


def _root() -> str:
    from tests.engine.conftest import ROOT

    return str(ROOT)
