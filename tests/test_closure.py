"""The files a stage is made of, as found by text, are those that Python's own parser finds."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from corpuskit.closure import PACKAGE, closure

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted([*(PACKAGE / "stages").rglob("*.py"), *(PACKAGE / "kernels").rglob("*.py")])


def parsed(path: Path) -> set[Path]:
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        for name in names:
            if name.startswith(("corpuskit.kernels.", "corpuskit.stages.", "corpuskit.loader.")):
                file = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
                if file.is_file():
                    found.add(file)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_closure_holds_every_import(path):
    expected, waiting = {path}, [path]
    while waiting:
        new = parsed(waiting.pop()) - expected
        expected |= new
        waiting += new
    assert set(closure(path)) == expected
