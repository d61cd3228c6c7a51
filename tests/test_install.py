"""What pyproject.toml promises to an installer is kept by constraints.txt and by the package."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from corpuskit import distribution

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS, GROUPS = PROJECT["optional-dependencies"], PYPROJECT["dependency-groups"]
DECLARED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *EXTRAS.values(), *GROUPS.values())
    for line in lines
]


def pins() -> dict[str, str]:
    """Return the exact version of each distribution in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    required = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in required}


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_a_declared_requirement_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_tools_of_developers_are_no_extra() -> None:
    users = {Requirement(line).name for lines in EXTRAS.values() for line in lines}
    assert users & {"pytest", "ruff", "mypy", "zensical"} == set()
    assert "dev" not in EXTRAS


def test_the_classifiers_name_the_pythons_of_ci() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    [matrix] = [job["strategy"]["matrix"] for job in workflow["jobs"].values()]
    versions = [one.rpartition(":: ")[2] for one in PROJECT["classifiers"] if ":: 3." in one]
    assert versions == matrix["python"]
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_constraints_pin_exact_versions_only() -> None:
    assert [name for name, version in pins().items() if not version[:1].isdigit()] == []


def test_only_one_owner_of_the_module_fasttext_is_pinned() -> None:
    assert [name for name in pins() if name.startswith("fasttext")] == ["fasttext"]


@pytest.mark.parametrize("name", PROJECT["scripts"])
def test_a_console_script_names_a_function(name: str) -> None:
    module, _, function = PROJECT["scripts"][name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def installed_copy(folder: Path, record: dict[str, object] | None) -> Path:
    """Return a folder that holds the module as an installer left it, and what pip recorded."""
    (folder / "corpuskit").mkdir(parents=True)
    for name in ("__init__.py", "distribution.py"):
        shutil.copy(ROOT / "corpuskit" / name, folder / "corpuskit")
    facts = folder / f"{PROJECT['name'].replace('-', '_')}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: 1.0")
    if record is not None:
        (facts / "direct_url.json").write_text(json.dumps(record))
    stale = folder / "corpuskit-0.1.0.dist-info"  # of before the name changed
    stale.mkdir()
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: corpuskit\nVersion: 0.1.0")
    (stale / "direct_url.json").write_text('{"url": "file:///old", "dir_info": {}}')
    return folder


def test_the_name_is_known_in_one_place() -> None:
    assert PROJECT["name"] == distribution.NAME
    texts = [path.read_text("utf-8") for path in (ROOT / "corpuskit").rglob("*.py")]
    assert [
        text for text in texts if re.search(r"corpuskit\[|install corpuskit\b(?!,)", text)
    ] == []
    assert sum(distribution.NAME in text for text in texts) == 1


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "pip install 'corpuskit-pretrain[ray]'"),
        ({"url": "file:///gone", "dir_info": {}}, "pip install 'corpuskit-pretrain[ray]'"),
        ({"url": "FOLDER", "dir_info": {}}, "pip install '{}/a b[ray]'"),
        ({"url": "https://x.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
         "pip install 'corpuskit-pretrain[ray] @ git+https://x.org/a.git@c0ffee'"),
        ({"url": "file:///w/a-1.0-py3-none-any.whl", "archive_info": {}},
         "pip install 'corpuskit-pretrain[ray] @ file:///w/a-1.0-py3-none-any.whl'"),
    ],
    ids=["index", "gone", "folder", "repository", "wheel"],
)  # fmt: skip
def test_the_command_fits_the_installation(
    tmp_path: Path, record: dict[str, object] | None, command: str
) -> None:
    (tmp_path / "a b").mkdir()
    if record is not None and record["url"] == "FOLDER":
        record = {**record, "url": (tmp_path / "a b").as_uri()}
    program = "from corpuskit.distribution import install_command; print(install_command('ray'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=installed_copy(tmp_path / "site", record),
        capture_output=True, text=True, check=True, env={},
    )  # fmt: skip
    assert done.stdout.strip() == command.format(tmp_path)


def test_in_a_clone_the_command_is_for_the_clone() -> None:
    assert distribution.install_command("ray") == f"pip install -e '{ROOT}[ray]'"
    assert distribution.install_command() == f"pip install -e {ROOT}"
