"""The batch script of a training run, as text; tests/slurm runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from corpuskit.cli.train import command
from tests.conftest import ROOT
from tests.patience import HANG_SECONDS

SETTINGS = "{data: tokens, output: there, name: my/run, batch: {global_rows: 8}}"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Print the script of a small file with more options."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "t.yaml").write_text(SETTINGS)

    def run(*options: str, code: int = 0) -> str:
        done = CliRunner().invoke(command, ["t.yaml", *options])
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_it_asks_for_what_it_was_told(script):
    lines = script(
        "--sbatch", "--nodes", "4", "--gpus-per-node", "8", "--time", "1-0", "--partition", "big",
        "--account", "me", "--flag=--mem=64G", "--flag=--comment=two words",
    ).splitlines()  # fmt: skip
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert asked >= {
        "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=1-0", "--partition=big",
        "--account=me", "--mem=64G", "'--comment=two words'", "--requeue",
        "--open-mode=append", "--signal=B:USR1@300", "--job-name=corpuskit-train-my-run",
    }  # fmt: skip
    assert any("--nnodes=4 --nproc-per-node=8" in line for line in lines)
    assert not any("cpus-per-task=" in line for line in lines)


def test_it_is_bash_also_where_paths_have_spaces(script):
    printed = script("--sbatch", "--procs-per-node", "2", "--set", "steps=3")
    assert subprocess.run(["bash", "-n"], input=printed, text=True, check=False).returncode == 0
    assert "#SBATCH --cpus-per-task=2\n" in printed
    assert "a folder/t.yaml' --set steps=3 &" in printed


NO_CLUSTER = {
    # Slurm ends the script of a job that it requeues.
    "scontrol": "case $1 in show) echo NodeAddr=here;; requeue) kill -KILL $PPID;; esac",
    "srun": """
        start=$(cat count 2>/dev/null || echo 0); echo $((start + 1)) > count
        ls there/heartbeats/*.exit 2>/dev/null && echo "of an earlier start"
        mkdir -p there/heartbeats there/checkpoints
        [ -f plan/$start ] || exit 0
        . plan/$start
        exit 1
    """,
}
SAVE = "mkdir there/checkpoints/step-0000000$start;"


def end(rank: int, ending: str) -> str:
    return f"echo '{ending}' > there/heartbeats/rank-0000{rank}.exit;"


@pytest.mark.parametrize(
    ("starts", "code", "number", "says"),
    [
        (["", ""], 1, 1, ""),
        ([SAVE, SAVE], 0, 3, ""),
        ([SAVE, ""], 1, 2, ""),
        ([SAVE + end(0, "75 another rank ended: x"), ""], 1, 2, ""),
        ([SAVE + end(1, "76 error: p.parquet: broken")], 76, 1, ": 76 error: p.parquet: broken"),
        ([SAVE + end(0, "75 another rank ended: x") + end(1, "77 nan")], 77, 1, "again: 77 nan"),
        ([end(0, "2 error: steps: 9")], 2, 1, "not started again"),
        ([end(1, "78 hung")] * 3, 0, 4, ""),
        ([end(1, "78 hung")] * 4, 78, 4, ""),
        ([end(1, "78 hung")] * 2 + [SAVE + end(1, "78 hung")] * 3, 0, 6, ""),
        ([SAVE + end(0, "75 stopped by stop_after_seconds")], -9, 1, "requeue, to go on from"),
        ([end(0, "75 stopped by stop_after_seconds")], 75, 1, ""),
        ([SAVE + end(0, "1 error: no space")], 0, 2, ""),
        ([end(0, "1 error: no space")], 1, 1, ""),
    ],
)
def test_the_codes_that_ranks_leave_decide_whether_they_are_started_again(
    script, starts, code, number, says
):
    """Runs the script with an srun whose every start ends as the test says, torchrun's way: 1."""
    printed = script("--sbatch", "--procs-per-node", "2")
    Path("plan").mkdir()
    for start, plan in enumerate(starts):
        Path("plan", str(start)).write_text(plan)
    Path("bin").mkdir()
    for name, text in NO_CLUSTER.items():
        Path("bin", name).write_text(f"#!/bin/bash\n{text}\n")
        Path("bin", name).chmod(0o755)
    done = subprocess.run(
        ["bash"], input=printed, text=True, capture_output=True, check=False, timeout=HANG_SECONDS,
        env={"PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}", "SLURM_JOB_ID": "1",
             "SLURM_JOB_NODELIST": "here"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert int(Path("count").read_text()) == number
    assert says in done.stdout
    assert "of an earlier start" not in done.stdout


def test_printing_it_needs_no_torch(script):
    script("--sbatch")
    code = (
        "import sys; sys.modules['torch'] = None; from corpuskit.cli.train import command; "
        "command(['t.yaml', '--sbatch'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.startswith("#!/bin/bash\n"), done.stderr


def test_what_makes_no_sense_is_refused(script):
    assert "needs --sbatch" in script("--nodes", "2", code=2)
    both = ("--sbatch", "--gpus-per-node", "8", "--procs-per-node", "4")
    assert "leave --procs-per-node out" in script(*both, code=2)
