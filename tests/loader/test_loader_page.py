"""What docs/loader.md says is true: its code runs, and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from loader_runs import write_plan

if TYPE_CHECKING:
    from loader_runs import Shards

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "loader.md").read_text("utf-8")


def test_the_code_runs_from_top_to_bottom(shards: Shards, run_dir: Path) -> None:
    pytest.importorskip("torch")
    run = write_plan(shards, [(300, {"web": 5, "books": 3})], folder=run_dir)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    code = "\n".join(blocks).replace('"runs/quickstart"', repr(str(run)))
    names: dict[str, object] = {}
    exec(compile(code, "docs/loader.md", "exec"), names)
    assert names["state"]["step"] == 20


def test_the_tests_that_it_names_are_there() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
