"""A stage added as one file, or as a package, appears everywhere, with no other edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.patience import HANG_SECONDS

STAGE = '''
"""A filter in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from corpuskit.stage import Example, Outcome, StreamingStage

if TYPE_CHECKING:
    from corpuskit.stage import View


class MaxBytes(StreamingStage):
    """Drop documents that are too big.

    Source: written for this test.
    """

    rules: ClassVar[tuple[str, ...]] = ("too_big",)
    bounds: ClassVar[dict[str, str]] = {"too_big": "max_bytes"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example("small"), Example("x" * 50, "too_big", {"max_bytes": 10}),
    )

    max_bytes: int = Field(1000, ge=0)
    """Largest size, in bytes of UTF-8."""

    def apply(self, view: View) -> Outcome:
        sizes = view.text.sizes()
        return Outcome(codes=(sizes > self.max_bytes).astype(np.uint8), values=sizes.astype(float))
'''


PACKAGE = """
import sys
from corpuskit.closure import closure
from corpuskit.engine import registry

assert "most_bytes" in registry.names("filters")
assert registry.summary("most_bytes") == "Drop documents that are too big."
assert not any("most_bytes" in name for name in sys.modules)
assert "limits.py" in {path.name for path in closure(registry.path("most_bytes"))}
assert registry.load("most_bytes")().max_bytes == 1000
assert registry.load("most_bytes").stage_name() == "most_bytes"
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the checkout with one more file."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "corpuskit", folder / "corpuskit")
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    filters = folder / "corpuskit" / "stages" / "filters"
    (filters / "max_bytes.py").write_text(STAGE)
    (filters / "most_bytes").mkdir()
    helper = "from corpuskit.stages.filters.most_bytes.limits import MOST\n"
    package = STAGE.replace("import numpy", f"{helper}import numpy").replace("1000", "MOST")
    (filters / "most_bytes" / "__init__.py").write_text(package)
    (filters / "most_bytes" / "limits.py").write_text("MOST = 1000\n")
    return folder


def python(tree, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_it_is_listed_and_described(tree):
    assert "Drop documents that are too big." in python(tree, "-m", "corpuskit", "stages")
    page = python(tree, "-m", "corpuskit", "stages", "max_bytes")
    assert "Largest size, in bytes of UTF-8." in page
    assert "`too_big` (`max_bytes`)" in page


def test_a_package_is_a_stage_as_a_file_is(tree):
    python(tree, "-c", PACKAGE)


def test_it_is_in_the_schema_and_in_the_readme_table(tree):
    schema = json.loads(python(tree, "-m", "corpuskit", "schema"))
    assert '"max_bytes"' in json.dumps(schema["properties"]["stages"])
    code = "from corpuskit.inspect.catalogue import stage_table; print(stage_table())"
    assert "`max_bytes`" in python(tree, "-c", code)


def test_it_runs_in_a_pipeline_and_its_drops_are_in_the_ledger(tree):
    (tree / "in.jsonl").write_text('{"text": "small"}\n{"text": "%s"}\n' % ("x" * 2000))
    (tree / "p.yaml").write_text(
        "output: out\nsources: {web: {jsonl: in.jsonl}}\nstages: [max_bytes]\n"
    )
    python(tree, "-m", "corpuskit", "run", "p.yaml")
    facts = json.loads(python(tree, "-m", "corpuskit", "status", "out", "--json"))
    row = next(row for row in facts["funnel"] if row["stage"] == "max_bytes")
    assert row["dropped"] == {"too_big": {"web": 1}}


def test_the_contract_tests_cover_it(tree):
    options = ["-q", "-k", "max_bytes", "-p", "no:cacheprovider"]
    out = python(tree, "-m", "pytest", "tests/contract", *options)
    assert " passed" in out
