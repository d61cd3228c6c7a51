"""The code keeps its shape: import layers and circles, sizes, and what starting up may cost.

`python -m tests.test_architecture` lists modules that have one importer, in their own folder.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import resource
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import corpuskit

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

Statement = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def statements(module: Path) -> list[Statement]:
    """Return the imports, classes and functions of a module, at any depth."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Statement)]


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return module -> modules of the package that it imports, for types and in functions too."""
    names = {name_of(module): module for module in MODULES}
    graph = {}
    for name, module in names.items():
        wanted: list[str] = []
        for node in statements(module):
            if isinstance(node, ast.Import):
                wanted += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # `from package import name`: a module of the package, or something in it.
                paths = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted += [path if path in names else str(node.module) for path in paths]
        graph[name] = (set(wanted) & names.keys()) - {name}
    return graph


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the groups of modules that reach each other, by their last names."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    all_reached = {name: reached(name) for name in graph}
    groups = {
        frozenset(other for other in below if name in all_reached[other])
        for name, below in all_reached.items()
        if name in below
    }
    return {" ".join(sorted(name.rpartition(".")[2] for name in group)) for group in groups}


def functions(module: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield where each function of a module is, its length in lines, and whether it is a kernel."""
    for node in statements(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            place = f"{module.relative_to(ROOT)}:{node.lineno} {node.name}"
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield place, num_lines, bool(decorators & {"kernel", "packed_kernel", "inline"})


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


def test_no_modules_import_each_other() -> None:
    assert circles({"a": {"b", "c"}, "b": {"a"}, "c": {"d"}, "d": set()}) == {"a b"}
    assert circles(imports()) == set(), "imports for types count"


def test_a_class_name_occurs_once() -> None:
    modules = defaultdict(list)
    for module in MODULES:
        for node in statements(module):
            if isinstance(node, ast.ClassDef):
                modules[node.name.lstrip("_")].append(str(module.relative_to(ROOT)))
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_no_module_takes_the_name_of_a_public_function() -> None:
    """Else the first import of the module would replace the function in the package."""
    public = set(corpuskit.__all__)
    assert [str(m.relative_to(ROOT)) for m in PACKAGE.iterdir() if m.stem in public] == []


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


def print_lone_importers() -> None:
    """Print the modules that only one other imports, from beside them: might the two be one?"""
    importers = defaultdict(set)
    for name, below in imports().items():
        for other in below:
            importers[other].add(name)
    for name, (user, *more) in sorted((name, tuple(users)) for name, users in importers.items()):
        if not more and user.rpartition(".")[0] == name.rpartition(".")[0]:
            print(f"{name} is imported by {user} alone")  # noqa: T201


if __name__ == "__main__":
    print_lone_importers()
