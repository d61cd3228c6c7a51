"""What is left in the queue when submitting fails; commands that answer as Slurm's would."""

from __future__ import annotations

import json
import os

import pytest

from corpuskit.engine.executors.slurm import JOBS, read_jobs
from corpuskit.engine.pipeline import submit
from corpuskit.engine.plan import read_plan
from corpuskit.errors import TaskError, UsageError


@pytest.fixture
def queue(lab, tmp_path, monkeypatch):
    """Commands that count: the third sbatch is refused; scancel notes what it is given."""
    lab.write("web0.jsonl", [{"id": "a", "text": "some words"}])
    lab.write("books0.jsonl", [{"id": "b", "text": "other words"}])
    lab.save()
    commands = tmp_path / "bin"
    commands.mkdir()
    scripts = {
        "scontrol": "echo MaxArraySize = 1001",
        "sbatch": f"echo x >> {tmp_path}/n; n=$(wc -l < {tmp_path}/n); test $n -lt 3 && echo $n || "
        "{ echo 'sbatch: error: Invalid account' >&2; exit 1; }",
        "scancel": f'test ! -e {tmp_path}/broken && echo "$@" >> {tmp_path}/cancelled',
    }
    for name, script in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_jobs_before_a_refused_one_are_cancelled(lab, queue):
    with pytest.raises(TaskError, match="Invalid account"):
        submit(read_plan(lab.path))
    assert (queue / "cancelled").read_text().split() == ["2", "1"]
    assert not (lab.out / JOBS).exists()


def test_jobs_that_cannot_be_cancelled_stay_on_record(lab, queue):
    (queue / "broken").touch()
    with pytest.raises(TaskError, match="Invalid account"):
        submit(read_plan(lab.path))
    numbers = [number for _, number, _ in json.loads((lab.out / JOBS).read_bytes())["jobs"]]
    assert numbers == ["1", "2"]
    with pytest.raises(UsageError, match="jobs 1, 2 of this run may still be in Slurm"):
        submit(read_plan(lab.path))


def test_no_slurm_here_is_said_before_anything_is_written(lab, queue, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="scontrol is not installed here"):
        submit(read_plan(lab.path))
    from corpuskit.storage import open_store

    assert read_jobs(open_store(str(lab.out))) == []
