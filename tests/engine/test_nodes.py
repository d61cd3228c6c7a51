"""Machines that work on one run: they agree on the code, and say what keeps one of them out."""

from __future__ import annotations

import os
import subprocess
import sys

from corpuskit.closure import PACKAGE
from corpuskit.engine.executors import Task
from corpuskit.engine.executors.ray_worker import WorkerContext, run_ray_task
from corpuskit.engine.fingerprint import runner_files
from tests.engine.conftest import ROOT

LOADED = """
import sys
import corpuskit.engine.executors.local_worker
from corpuskit.engine.phase import cut_units
from corpuskit.engine.rundir import RunDirectory

run = RunDirectory.open(sys.argv[1])
cut_units(run, run.plan.phases[0])
for name, module in sys.modules.items():
    if name.startswith("corpuskit."):
        print(module.__file__)
"""


def test_nodes_compare_all_of_our_code_that_a_worker_loads(finished):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(finished.out)],
        env={"PYTHONPATH": str(ROOT)}, cwd=ROOT, text=True, capture_output=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.splitlines())
    assert str(PACKAGE / "stage" / "view.py") in loaded
    # Stages and what they are made of have digests of their own, in fingerprints.
    own = tuple(f"{PACKAGE / name}/" for name in ("kernels", "stages", "loader"))
    loaded = {path for path in loaded if not path.startswith(own)}
    assert loaded <= {str(path) for path in runner_files()}


def test_a_node_without_credentials_is_unfit_and_the_tasks_are_not_to_blame(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    context = WorkerContext("s3://bucket/run", "digest", "", "token", 0)
    outcome = run_ray_task(context, Task(0, "mark", (0,)))
    assert outcome["event"] == "unfit"
    assert "no credentials were found. Set AWS_ACCESS_KEY_ID" in outcome["error"]
    assert outcome["error"].startswith("Ray node ")
