"""What the documentation says is true: commands run, pages are current, pipelines plan."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def block(marker: str) -> str:
    """Return the first code block behind a marker."""
    return re.search(r"```\w+\n(.*?)```", README.partition(marker)[2], re.DOTALL).group(1)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of what a user has after cloning, without runs."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("corpuskit", "pipelines", "sample_data"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def call(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True,
        capture_output=True, check=False, timeout=400,
    )  # fmt: skip


@pytest.mark.slow
def test_every_command_of_the_walk_through_runs(fresh):
    lines = [*block("walk-through:").splitlines(), *block("training:").splitlines()]
    commands = [line.partition("#")[0].split() for line in lines]
    assert len(commands) >= 12
    for command in commands:
        assert command[0] == "corpuskit"
        done = call(fresh, "-m", *command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout
    done = call(fresh, "-c", block("loader:"))
    assert done.returncode == 0, done.stderr


def test_the_yaml_in_the_readme_plans(fresh):
    text = re.search(r"```yaml\n(.*?)```", README, re.DOTALL).group(1)
    (fresh / "readme.yaml").write_text(text)
    done = call(fresh, "-m", "corpuskit", "plan", "readme.yaml", "--set", "output=runs/readme")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda p: p.name)
def test_every_pipeline_is_valid(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if path.name.startswith("train"):
        from corpuskit.config import read_model
        from corpuskit.train.settings import TrainSettings

        assert read_model(path, TrainSettings).output
    else:
        from corpuskit.plan import read_plan

        assert read_plan(path).phases


def test_generated_pages_are_current():
    done = call(ROOT, "docs/generate.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_in_the_docs_lead_somewhere():
    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")  # noqa: PERF401
    assert not broken


def test_the_stage_in_the_guide_is_a_stage(tmp_path):
    guide = (ROOT / "docs" / "adding_a_stage.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", guide, re.DOTALL).group(1)
    shutil.copytree(ROOT / "corpuskit", tmp_path / "corpuskit")
    (tmp_path / "corpuskit" / "stages" / "filters" / "max_bytes.py").write_text(code)
    done = call(tmp_path, "-m", "corpuskit", "stages", "max_bytes")
    assert done.returncode == 0, done.stderr
    assert "Largest size" in done.stdout
