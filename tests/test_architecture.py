"""The house keeps its shape: layers, doors, sizes, and what starting up may cost."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "corpuskit"
MODULES = sorted(PACKAGE.rglob("*.py"))

FUNCTION_LINES, KERNEL_LINES = 60, 100
HELP_CPU_SECONDS = 0.15
LOADER_DOES_WITHOUT = {
    *("click", "datasketch", "datatrove", "fasttext", "numba", "pydantic", "rich"),
    *("spacy", "tokenizers", "torch", "yaml"),
}


def functions(module: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield where each function of a module is, its length in lines, and whether it is a kernel."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            place = f"{module.relative_to(ROOT)}:{node.lineno} {node.name}"
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield place, num_lines, bool(decorators & {"kernel", "inline"})


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in the root of the repository, where `corpuskit` can be imported."""
    # Start-up is measured as users have it: with the bytecode of an earlier start.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_contracts_hold() -> None:
    program = "from importlinter.cli import lint_imports_command as lint; lint()"
    lint = run_python("-c", program, "--no-cache")
    assert lint.returncode == 0, lint.stdout + lint.stderr
    assert " 0 broken" in lint.stdout


def test_no_function_is_long() -> None:
    too_long = {
        place: num_lines
        for module in MODULES
        for place, num_lines, is_kernel in functions(module)
        if num_lines > (KERNEL_LINES if is_kernel else FUNCTION_LINES)
    }
    assert too_long == {}


def test_source_is_ascii() -> None:
    assert [str(m.relative_to(ROOT)) for m in MODULES if not m.read_bytes().isascii()] == []


def test_help_starts_within_its_budget() -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = run_python("-m", "corpuskit", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shown.returncode == 0, shown.stderr
        assert "Usage" in shown.stdout
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The first start writes bytecode, and a busy machine slows any one of the others.
    assert min(cpu_seconds() for _ in range(7)) < HELP_CPU_SECONDS


def test_the_loader_loads_alone() -> None:
    program = """
import sys
from corpuskit.loader import StreamingLoader
print(*{module.partition(".")[0] for module in sys.modules})
"""
    loaded = run_python("-c", program)
    assert loaded.returncode == 0, loaded.stderr
    assert "numpy" in loaded.stdout.split()
    assert LOADER_DOES_WITHOUT & set(loaded.stdout.split()) == set()


def test_no_file_names_a_place_of_one_machine() -> None:
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    # Written in two pieces, so that this file does not find itself.
    place = re.compile(
        rb"(?<![\w.*}>-])/" rb"(work/(main|shared|\.library)|tmp/v/|opt/wheels|root/)"
    )
    found = [
        os.fsdecode(name)
        for name in listing.stdout.split(b"\0")
        if name and (path := ROOT / os.fsdecode(name)).is_file() and place.search(path.read_bytes())
    ]
    assert found == []
