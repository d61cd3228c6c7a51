"""Killed is the same as finished; decisions do not depend on how the work was cut."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.engine.conftest import ROOT, Lab, corpus, tree


def copy_of(finished: Lab, folder: Path) -> Lab:
    """Return a lab with the same inputs and pipeline that has not run."""
    lab = Lab(folder, Path(finished.stage("tokenize")["tokenizer"]))
    for path in finished.inputs.iterdir():
        (lab.inputs / path.name).write_bytes(path.read_bytes())
    return lab


@pytest.mark.parametrize("tasks", [3, 17])
def test_tasks_do_not_matter(finished, tmp_path, tasks):
    lab = copy_of(finished, tmp_path)
    lab.pipeline["executor"] = {"workers": 1, "tasks": tasks}
    lab.run()
    assert tree(lab.out) == tree(finished.out)


def test_workers_do_not_matter(finished, tmp_path):
    lab = copy_of(finished, tmp_path)
    lab.pipeline["executor"] = {"workers": 2, "tasks": 17}
    lab.run_apart()
    assert tree(lab.out) == tree(finished.out)


def kill_at(lab: Lab, rng: random.Random, longest: float) -> bool:
    """Start a run, kill a worker, then the whole group; return whether it had finished before."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        lab.command("run", str(lab.path)), cwd=lab.folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        time.sleep(rng.uniform(0.3, longest))
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], text=True, capture_output=True, check=False
        )
        if workers := children.stdout.split():
            os.kill(int(rng.choice(workers)), signal.SIGKILL)
        time.sleep(rng.uniform(0, longest / 2))
        is_done = process.poll() is not None
        if not is_done:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        is_done = True
        process.wait()
    return is_done


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(finished, tmp_path):
    lab = copy_of(finished, tmp_path)
    lab.pipeline["executor"] = {"workers": 2}
    lab.save()
    rng = random.Random(0)
    for _ in range(4):
        kill_at(lab, rng, 6.0)
    lab.run()
    assert tree(lab.out) == tree(finished.out)
    assert not (lab.out / "scratch").exists()
    lab.cli("verify", str(lab.out))


def test_the_same_inputs_in_other_files_keep_the_same_texts(finished, tmp_path):
    lab = copy_of(finished, tmp_path)
    for path in lab.inputs.iterdir():
        path.unlink()
    documents = corpus()
    for begin in range(0, 120, 17):
        lab.write(f"web{begin:03d}.jsonl", documents[begin : min(begin + 17, 120)])
    lab.write("books0.jsonl", documents[120:121])
    lab.write("books1.jsonl", documents[121:])
    lab.run()
    assert kept(lab) == kept(finished)
    assert reasons(lab) == reasons(finished)


def test_a_file_behind_all_others_keeps_their_keys(ran):
    before = keys(ran)
    ran.write("books9.jsonl", [{"id": "new", "text": corpus(1, 5)[0]["text"]}])
    ran.run()
    after = keys(ran)
    shared = before.keys() & after.keys()
    assert shared
    assert all(before[name] == after[name] for name in shared)


def read(lab: Lab, folder: str) -> list[dict]:
    rows: list[dict] = []
    for path in sorted((lab.out / folder).glob("*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


def kept(lab: Lab) -> list[tuple[str, str]]:
    return sorted((row["id"], row["text"]) for row in read(lab, "documents"))


def keys(lab: Lab) -> dict[str, int]:
    return {row["id"]: row["key"] for row in read(lab, "documents")}


def reasons(lab: Lab) -> list[tuple]:
    rows = read(lab, "ledger")
    return sorted((r["doc_id"], r["stage"], r["rule"], r["survivor_id"] or "") for r in rows)
