"""The batch script of a training run, as text; tests/slurm runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from corpuskit.cli.train import command
from tests.conftest import ROOT

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
    assert "need --sbatch" in script("--nodes", "2", code=2)
    both = ("--sbatch", "--gpus-per-node", "8", "--procs-per-node", "4")
    assert "leave --procs-per-node out" in script(*both, code=2)
