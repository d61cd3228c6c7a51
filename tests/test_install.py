"""What pyproject.toml promises to an installer is kept by constraints.txt and by the package."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [
    Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines
]


def pins() -> dict[str, str]:
    """Return the exact version of each distribution in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    required = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in required}


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda r: r.name)
def test_a_declared_requirement_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_constraints_pin_exact_versions_only() -> None:
    assert [name for name, version in pins().items() if not version[:1].isdigit()] == []


def test_only_one_owner_of_the_module_fasttext_is_pinned() -> None:
    assert [name for name in pins() if name.startswith("fasttext")] == ["fasttext"]


@pytest.mark.parametrize("name", PROJECT["scripts"])
def test_a_console_script_names_a_function(name: str) -> None:
    module, _, function = PROJECT["scripts"][name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
