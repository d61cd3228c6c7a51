"""`shuffle_files: delete`: less disk, the same results, and nothing lost where a run is killed."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

import corpuskit
from corpuskit.engine.pipeline import run
from corpuskit.stages import _routing
from corpuskit.stages.dedup.substring_dedup import partitioned
from corpuskit.storage.faults import Death, install_hook
from tests.engine.conftest import Lab, corpus, tree
from tests.engine.here import Here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAGES = [
    {"line_dedup": {"min_count": 2}}, {"substring_dedup": {"min_bytes": 60}},
    {"percentile": {"columns": ["line_dedup.repeated_units"]}},
]  # fmt: skip


LEFT = {
    "exact_dedup.group/clusters", "minhash_dedup.verify/clusters", "pack/ids", "pack/id_hashes",
    "shuffle.gather/doc_rows",
}  # fmt: skip
"""What reports, `why` and the mixture read."""


@pytest.fixture
def long(tmp_path: Path, tokenizer: Path) -> Lab:
    """A lab with every stage that writes shuffle files, and little to read."""
    made = Lab(tmp_path, tokenizer)
    documents = corpus(40)
    made.write("web0.jsonl", documents[:25])
    made.write("books.jsonl", documents[25:])
    made.pipeline["stages"][3:3] = STAGES
    made.stage("exact_dedup")["keep"] = "longest"
    return made


def shuffle_files(lab: Lab) -> set[str]:
    """Names of the shuffle files below `work/`, as `<phase>/<name>`."""
    paths = (lab.out / "work").rglob("*-part-*.arrow")
    return {f"{path.parent.name}/{path.name.partition('-part-')[0]}" for path in paths} - {
        f"{path.parent.name}/sidecar" for path in (lab.out / "work").rglob("sidecar-part-*")
    }


def again(lab: Lab) -> dict[str, bool]:
    """Run without workers; return phase -> whether it was reused."""
    lab.save()
    result = run(corpuskit.read_plan(lab.path), launcher=Here(lab.out))
    return {s.phase: reused for s, reused in zip(result.seals, result.reused, strict=True)}


def kept(lab: Lab) -> dict[str, str]:
    return tree(lab.out, "documents", "tokens", "mix", "ledger", "ids", "measures", "profile")


def test_results_are_the_same_and_only_what_others_read_stays(long, monkeypatch):
    again(long)
    before, all_files = kept(long), shuffle_files(long)
    shutil.rmtree(long.out)
    long.pipeline["shuffle_files"] = "delete"
    monkeypatch.setattr(_routing, "MAX_OPENS", 0)  # everything is merged on its way
    monkeypatch.setattr(partitioned, "_MAX_OPENS", 0)
    again(long)
    assert kept(long) == before
    assert shuffle_files(long) == LEFT
    assert len(all_files) >= 20
    long.cli("verify", str(long.out))
    assert all(again(long).values())
    assert long.facts()["phases"][-1]["state"] == "reuse"


def test_a_new_file_runs_the_whole_stage_and_plan_says_so(ran):
    ran.pipeline["shuffle_files"] = "delete"
    again(ran)
    ran.write("web9.jsonl", [{"id": "new", "text": "a new document " * 40}])
    ran.save()
    said = " ".join(ran.cli("plan", str(ran.path)).stdout.split())
    assert "not only new units: exact_dedup, minhash_dedup" in said
    again(ran)
    prospects = json.loads(ran.cli("plan", str(ran.path), "--json").stdout)
    assert {prospect["state"] for prospect in prospects} == {"reuse"}


def test_a_stage_whose_last_pass_is_gone_says_why_it_runs_again(ran):
    ran.pipeline["shuffle_files"] = "delete"
    again(ran)
    before = kept(ran)
    next((ran.out / "work" / "minhash_dedup.verify").glob("clusters-*")).unlink()
    prospects = {p["phase"]: p for p in json.loads(ran.cli("plan", str(ran.path), "--json").stdout)}
    assert prospects["exact_dedup.apply"]["state"] == "reuse"
    assert "its shuffle files were deleted" in prospects["minhash_dedup.sign"]["reason"]
    assert not again(ran)["minhash_dedup.sign"]
    assert kept(ran) == before


def test_a_run_killed_before_the_last_reader_goes_on_where_it_was(ran):
    before = kept(ran)
    shutil.rmtree(ran.out)
    ran.pipeline["shuffle_files"] = "delete"
    with dying("put:before", "manifests/minhash_dedup.verify/seal.json"), pytest.raises(Death):
        again(ran)
    names = shuffle_files(ran)
    assert "minhash_dedup.gather/sets" in names
    assert "minhash_dedup.sign/bands" not in names
    reused = again(ran)
    assert next(name for name, is_reused in reused.items() if not is_reused) == (
        "minhash_dedup.verify"
    )
    assert kept(ran) == before


@pytest.mark.parametrize("step", ["put:before", "put:moved", "delete:before", "delete:after"])
def test_deleting_may_be_killed_anywhere(ran, step):
    before = kept(ran)
    ran.pipeline["shuffle_files"] = "delete"
    for nth in range(1, 8, 2):
        with dying(step, "", nth), contextlib.suppress(Death):
            again(ran)
        ran.cli("verify", str(ran.out))
        assert {phase["state"] for phase in ran.facts()["phases"]} == {"reuse"}
    assert all(again(ran).values())
    assert shuffle_files(ran) == LEFT
    assert kept(ran) == before


@contextlib.contextmanager
def dying(step: str, name: str, nth: int = 1) -> Iterator[None]:
    """Let the process be gone when it passes a step with a name for the n-th time."""
    passed = 0

    def hook(reached: str, what: str) -> None:
        nonlocal passed
        if reached == step and name in what:
            passed += 1
            if passed == nth:
                raise Death

    install_hook(hook)
    try:
        yield
    finally:
        install_hook(None)
