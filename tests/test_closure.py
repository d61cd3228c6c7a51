"""The files that a stage is made of are those that Python really imports for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from corpuskit import closure
from corpuskit.closure import CARRIERS, PACKAGE
from corpuskit.engine import registry
from tests.conftest import ROOT
from tests.patience import HANG_SECONDS

# Each child imports one stage into an interpreter that has nothing of ours.
LOADS = """
import importlib, json, os, sys
import numpy, pyarrow.compute, pydantic  # shared by the children, none of them ours
for name, module in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        before = set(sys.modules)
        importlib.import_module(module)
        files = {getattr(m, "__file__", None) for k, m in sys.modules.items() if k not in before}
        files = sorted(f for f in files if f and f.startswith(sys.argv[2]))
        print(json.dumps([name, files]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def run_python(*arguments, cwd=ROOT, path=ROOT, code=0):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(path), "NUMBA_DISABLE_JIT": "1"}, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_closure_holds_every_module_that_a_stage_really_imports():
    stages = {name: registry.modules()[name] for name in registry.names()}
    printed = run_python("-c", LOADS, json.dumps(stages), str(PACKAGE))
    imported = dict(map(json.loads, printed.splitlines()))
    assert set(imported) == set(stages)
    for name, files in imported.items():
        followed = {str(file) for file in closure.closure(registry.path(name))}
        carriers = tuple(f"{PACKAGE}/{name}" for name in CARRIERS)
        decisive = {file for file in files if not file.startswith(carriers)}
        assert str(registry.path(name)) in decisive
        assert decisive <= followed, name


def test_carriers_are_parts_of_the_package_and_what_stages_work_with_is_none():
    assert all((PACKAGE / name).exists() for name in CARRIERS)
    assert not CARRIERS & {"formats", "formats/batch.py", "kernels", "loader", "stage", "stages"}


HELPERS = {
    "near.py": "LIMIT = 10",
    "names.py": "LIMIT = 10",
    "whole.py": "LIMIT = 10",
    "dotted/inner.py": "LIMIT = 10",
    "package/__init__.py": "LIMIT = 10",
    "dynamic.py": "LIMIT = 10",
}
STAGE = '''
from __future__ import annotations

import importlib
from typing import ClassVar

import numpy as np

import third.dotted.inner as inner
from corpuskit.stage import Outcome, StreamingStage

from . import near
from .names import (
    LIMIT as names_limit,  # a comment
)
from third import whole


class Third(StreamingStage):
    """Drop long texts."""

    rules: ClassVar[tuple[str, ...]] = ("long",)

    def apply(self, view):
        from third.package import deep
        last = importlib.import_module("third.dynamic").LIMIT
        limits = [near.LIMIT, names_limit, whole.LIMIT, inner.LIMIT, deep.package.LIMIT, last]
        return Outcome(codes=(view.text.sizes() > sum(limits)).astype(np.uint8))
'''


@pytest.fixture(params=["installed", "editable"])
def third(request, tmp_path):
    """A third party's distribution: with the list of its files, or as a folder on the path."""
    site = tmp_path / ("site-packages" if request.param == "installed" else "src")
    files = {
        **{f"third/{name}": text for name, text in HELPERS.items()},
        "third/__init__.py": "",
        "third/dotted/__init__.py": "",
        "third/package/deep.py": "from third import package",
        "third/third.py": STAGE,
        "third-1.0.dist-info/METADATA": "Name: third\nVersion: 1.0\n",
        "third-1.0.dist-info/entry_points.txt": "[corpuskit.stages]\nthird = third.third\n",
    }
    if request.param == "installed":
        files["third-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


# Each child sees the files as they are when it begins.
DIGESTS = """
import os, sys
from pathlib import Path
from corpuskit.engine import fingerprint
for name in ("", *sys.argv[2:]):
    if name:
        Path(sys.argv[1], "third", name).write_text("LIMIT = 30  # edited")
    if os.fork() == 0:
        print(fingerprint.code_digest("third"), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def test_any_helper_of_a_third_party_counts(third):
    path = f"{ROOT}{os.pathsep}{third}"
    digests = run_python("-c", DIGESTS, str(third), *HELPERS, path=path).split()
    assert len(set(digests)) == len(HELPERS) + 1


@pytest.mark.slow
@pytest.mark.parametrize("third", ["installed"], indirect=True)
def test_an_edit_of_a_helper_of_a_third_party_makes_results_again(third, tmp_path):
    texts = [json.dumps({"text": "x" * size}) for size in (65, 85, 105, 125, 145, 165)]
    (tmp_path / "in.jsonl").write_text("\n".join(texts))
    (tmp_path / "p.yaml").write_text(
        "output: out\nsources: {web: {jsonl: in.jsonl}}\nstages: [third]\n"
    )
    path = f"{ROOT}{os.pathsep}{third}"

    def kept() -> int:
        command = ("-m", "corpuskit")
        run_python(*command, "run", "p.yaml", "--quiet", cwd=tmp_path, path=path)
        parts = (tmp_path / "out" / "documents").glob("*.parquet")
        return sum(pq.read_metadata(path).num_rows for path in parts)

    assert kept() == 0
    # Python takes the bytecode of a file of this size from the same second for its own.
    (third / "third" / "dynamic.py").write_text("LIMIT = 30  # edited")
    assert kept() == 1


def test_a_folder_without_init_in_a_package_that_nobody_imported(tmp_path, monkeypatch):
    leaf = tmp_path / "outer" / "inner" / "leaf.py"
    leaf.parent.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").touch()
    leaf.touch()
    stage = tmp_path / "mine.py"
    stage.write_text("from outer.inner import leaf")
    monkeypatch.syspath_prepend(tmp_path)
    assert leaf in closure.closure(stage)


def test_imports_are_those_that_run(tmp_path):
    (tmp_path / "module.py").write_text(
        "import typing\n"
        "if typing.TYPE_CHECKING:\n    import never\nelse:\n    import otherwise\n"
        "if not typing.TYPE_CHECKING:\n    import always\n"
        "try:\n    import first; import second as s\nexcept ImportError:\n    import third\n"
        "match 1:\n    case 1:\n        from .. import fourth\n"
        "class C:\n    async def f(self):\n        with x:\n            from . a import (b,\n c)\n"
        "text = '''\nimport quoted\n'''\n"
    )
    found = {
        (level, module, names)
        for level, module, names in closure.read(tmp_path / "module.py").imports
    }
    plain = {"typing", "otherwise", "always", "first", "second", "third"}
    assert found == {(0, name, ()) for name in plain} | {(2, "", ("fourth",)), (1, "a", ("b", "c"))}


@pytest.mark.parametrize("content", [b"print 1", b"\0", b"\xff = 1", b"(" * 5000], ids=repr)
def test_what_python_cannot_parse_counts_byte_by_byte(tmp_path, content):
    file = tmp_path / "old.py"
    file.write_bytes(content)
    first = closure.read(file)
    file.write_bytes(content + b" ")
    closure.forget()
    assert first.imports == ()
    assert closure.read(file).digest != first.digest
