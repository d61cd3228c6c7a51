"""The whole pipeline on object storage, inputs and run directory: the bytes of a local run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corpuskit.engine.monitor import RunMonitor, heartbeat
from corpuskit.engine.rundir import RunDirectory
from corpuskit.storage import faults, open_store
from corpuskit.storage.remote import RemoteStore
from tests.engine.conftest import Lab, new_lab, tree
from tests.engine.conftest import tokenizer as tokenizer  # noqa: PLC0414 - a fixture
from tests.s3_server import Fault, S3Server
from tests.storage.conftest import make_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

DATA = ("documents", "tokens", "mix", "ledger")


def small_lab(folder: Path, tokenizer: Path) -> Lab:
    """Return a lab of few cells: each request costs the server more than a task computes."""
    lab = new_lab(folder, tokenizer)
    lab.pipeline["stages"].remove({"minhash_dedup": {"ngram": 3}})
    lab.pipeline["cell_bytes"] = 60_000
    return lab


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Lab:
    """A lab that has run on this machine; tests must not change it."""
    made = small_lab(tmp_path_factory.mktemp("finished"), tokenizer)
    made.run()
    return made


@pytest.fixture
def lab(tmp_path: Path, tokenizer: Path) -> Lab:
    return small_lab(tmp_path, tokenizer)


@pytest.fixture
def far(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab with its inputs and its output in a bucket."""
    bucket = make_bucket(getattr(request, "param", "s3"), request)
    store = open_store(f"{bucket}/in")
    for path in lab.inputs.iterdir():
        store.put(path.name, path.read_bytes())
        path.unlink()
    for source in lab.pipeline["sources"].values():
        source["jsonl"] = f"{bucket}/in/{Path(source['jsonl']).name}"
    lab.pipeline["output"] = f"{bucket}/out"
    yield lab
    shutil.rmtree(open_store(f"{bucket}/out").logs())


def fetch(address: str, folder: Path) -> Path:
    """Copy a run to this machine."""
    store = open_store(address)
    for name in store.list(""):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(store.read(name))
    return folder


@pytest.mark.parametrize("far", ["s3", "az"], indirect=True)
def test_a_run_in_object_storage_has_the_bytes_of_a_local_one(
    far: Lab,
    finished: Lab,
    tmp_path: Path,
):
    address = far.pipeline["output"]
    far.run_apart()
    got = tree(fetch(address, tmp_path / "fetched"), *DATA)
    assert got == tree(finished.out, *DATA)
    assert any(name.startswith("tokens/") for name in got)
    again = far.run()
    assert tree(fetch(address, tmp_path / "again"), *DATA) == got, again.stdout
    assert far.cli("verify", address).returncode == 0
    assert open_store(address).top() == open_store(str(finished.out)).top() - {"logs"}


def test_an_object_that_is_replaced_while_it_is_read_fails_the_run(far: Lab, tmp_path: Path):
    far.pipeline["stages"] = ["exact_dedup"]
    pattern = far.pipeline["sources"]["books"]["jsonl"]
    inputs, name = open_store(pattern.rpartition("/")[0]), "books.jsonl"
    whole = inputs.read(name)
    planned: list[str] = []

    def hook(step: str, what: str) -> None:
        if step == "put:after" and what.endswith("inputs.json") and not planned:
            planned.append(what)
            inputs.put(name, whole[: whole.index(b"\n", len(whole) // 2) + 1])

    faults.install_hook(hook)
    try:
        error = far.run(code=3).stderr
    finally:
        faults.install_hook(None)
    assert (
        f"{inputs.where(name)}: changed since the run was planned: it had {len(whole):,}" in error
    )
    assert "ETag" in error
    far.run()
    edited = tree(fetch(far.pipeline["output"], tmp_path / "edited"), *DATA)
    far.pipeline["output"] += "2"
    far.run()
    assert tree(fetch(far.pipeline["output"], tmp_path / "fresh"), *DATA) == edited


def test_a_killed_driver_loses_nothing(
    far: Lab,
    finished: Lab,
    tmp_path: Path,
):
    far.save()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    driver = subprocess.Popen(
        far.command("run", str(far.path)), cwd=far.folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = far.pipeline["output"]
    store = open_store(address)
    while driver.poll() is None and not store.exists("plan.json"):
        time.sleep(0.05)
    time.sleep(2.5)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    far.run()
    assert tree(fetch(address, tmp_path / "fetched"), *DATA) == tree(finished.out, *DATA)


def test_a_server_that_fails_now_and_then_changes_nothing(
    far: Lab, finished: Lab, tmp_path: Path, s3: S3Server
):
    rng = random.Random(7)
    kinds = ("500", "503", "drop", "done500", "lose", "cut")
    far.save()
    s3.order(*(Fault(rng.choice(kinds), skip=rng.randrange(12)) for _ in range(50)))
    far.run()
    assert s3.calm() == 0, "not all faults happened"
    got = tree(fetch(far.pipeline["output"], tmp_path / "fetched"), *DATA)
    assert got == tree(finished.out, *DATA)


def test_whoever_watches_a_run_in_object_storage_sees_its_lease(far: Lab, s3: S3Server):
    far.run("--until", "exact_dedup")
    address, now = far.pipeline["output"], [0.0]
    watcher = RunMonitor(address, clock=lambda: now[0])
    assert watcher.look().state == "finished"
    plan = RunDirectory.open(address).plan
    last = plan.phases[-1].name
    store = open_store(address)
    store.delete([f"manifests/{last}/seal.json"])
    with store.lock():
        watcher = RunMonitor(address, clock=lambda: now[0])
        shown = watcher.look()
        assert (shown.state, shown.current.name) == ("running", last)
        assert shown.current.tasks_done == shown.current.tasks > 0
        assert heartbeat(open_store(address)).is_alive
    assert not heartbeat(open_store(address)).is_alive
    now[0] += 20.0
    assert watcher.look().state == "running"  # not believed at once
    now[0] += 20.0
    assert watcher.look().state == "stopped"


STOPPED = """
import os, signal, sys
from corpuskit.cli.main import main
from corpuskit.storage import faults, remote

def stop(step, name):
    if step == "list:before" and name.startswith("manifests/"):
        faults.install_hook(None)
        os.kill(os.getpid(), signal.SIGSTOP)

remote.RemoteStore.__init__.__kwdefaults__.update(renew_seconds=0.2, lease_seconds=2.0)
faults.install_hook(stop)
main(sys.argv[1:])
"""
"""Runs a command with a short lease, and stops itself before its first phase."""


def test_a_driver_that_slept_longer_than_its_lease_changes_nothing_more(
    far: Lab, s3: S3Server, monkeypatch: pytest.MonkeyPatch
):
    del far.pipeline["sources"]["books"]  # few cells, few requests
    far.pipeline |= {"stages": ["exact_dedup"], "cell_bytes": 1_000_000}
    far.save()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", STOPPED, "run", str(far.path)],
        cwd=far.folder, env={**os.environ, "PYTHONPATH": os.getcwd()},
        text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert os.WIFSTOPPED(os.waitpid(sleeper.pid, os.WUNTRACED)[1]), "it was to stop, not to end"
    for name, value in (("renew_seconds", 0.2), ("lease_seconds", 2.0)):
        monkeypatch.setitem(RemoteStore.__init__.__kwdefaults__, name, value)
    far.run()
    store = open_store(far.pipeline["output"])
    left = store.sizes("")
    s3.requests()
    sleeper.send_signal(signal.SIGCONT)
    errors = sleeper.communicate()[1]
    assert (sleeper.returncode, errors.count("\n")) == (1, 1), errors
    assert "another one may have taken over. Nothing more is written" in errors
    changed = [path for method, path in s3.requests() if method not in ("GET", "HEAD")]
    assert all(path.endswith("/out/lock") for path in changed), changed
    assert store.sizes("") == left
