"""Documents of a run whose sources were added to another."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

from tests.engine.conftest import Lab, article

if TYPE_CHECKING:
    from pathlib import Path


def make_run(folder: Path, tokenizer: Path, source: str) -> Lab:
    folder.mkdir()
    lab, chance = Lab(folder, tokenizer), random.Random(source)
    lab.write(
        f"{source}.jsonl", [{"id": f"{source}-{n}", "text": article(chance)} for n in range(30)]
    )
    lab.pipeline["sources"] = {source: {"jsonl": str(lab.inputs / "*.jsonl"), "id_column": "id"}}
    lab.pipeline["stages"] = [
        {"tokenize": {"tokenizer": str(tokenizer)}}, {"pack": {"seq_len": 32}}, "shuffle",
        {"mix": {"max_epochs": 4}},
    ]  # fmt: skip
    lab.save()
    lab.cli("run", "p.yaml")
    return lab


def test_a_document_is_explained_by_its_run_and_found_in_the_steps_of_the_other(
    tmp_path: Path, tokenizer: Path
) -> None:
    lab, other = (make_run(tmp_path / name, tokenizer, name) for name in ("web", "code"))
    done = lab.cli(
        "edit", "source", str(lab.out), "--from", str(other.out), "--at-step", "2", "-b", "4",
        "--weight", "web=1", "--weight", "code=1", "--rows", "40",
    )  # fmt: skip
    assert f"edit-1: 40 rows of {{'web': 1, 'code': 1}}, with code from {other.out}" in done.stdout
    traced = lab.cli("trace", str(lab.out), "--step", "5", "-b", "4").stdout
    name, key = next(
        (line.split("id=")[1].split()[0], line.split("key=")[1].split()[0])
        for line in traced.splitlines()
        if "id=code-" in line
    )
    for query in (name, key):
        shown = lab.cli("why", str(lab.out), query, "-b", "4")
        assert f"of {other.out}, whose sources were added to this run" in shown.stderr
        assert f"source code, {other.inputs}/code.jsonl" in shown.stdout
        assert "tokenize  kept" in shown.stdout
        (steps,) = (line for line in shown.stdout.splitlines() if "steps that see it:" in line)
        assert "5" in steps.partition(":")[2].replace(",", "").split()
    assert "id=web" in traced
    lab.cli("verify", str(lab.out))

    # The other run is not needed to find tokens, only to explain what its stages did.
    shutil.rmtree(other.out)
    assert "step=5" in lab.cli("trace", str(lab.out), "--doc", name, "-b", "4").stdout
    assert "not a run directory" in lab.cli("why", str(lab.out), name, code=2).stderr
    (shard,) = lab.out.glob("edits/*/tokens/code/*")
    shard.write_bytes(shard.read_bytes()[:-9] + b"damaged!!")
    told = lab.cli("verify", str(lab.out), code=3)
    assert f"{shard.relative_to(lab.out)}: is not what the run that it came from wrote" in (
        told.stdout + told.stderr
    )
