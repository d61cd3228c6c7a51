"""An edit reruns its phase and what is downstream, nothing else."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.loader import StreamingLoader
from tests.engine.conftest import ROOT, tree

if TYPE_CHECKING:
    from pathlib import Path


def states(lab) -> dict[str, str]:
    lab.save()
    rows = json.loads(lab.cli("plan", str(lab.path), "--json").stdout)
    return {row["phase"]: row["state"] for row in rows}


def rerun(lab) -> list[str]:
    """Run again; return the phases that were not reused."""
    lines = lab.run().stdout.splitlines()
    return [line.split(":")[0] for line in lines if "(again: " in line]


def test_a_finished_run_is_reused_whole(ran):
    assert set(states(ran).values()) == {"reuse"}
    before = tree(ran.out)
    assert rerun(ran) == []
    assert tree(ran.out) == before


def test_editing_a_late_stage_keeps_the_early_phases(ran):
    ran.stage("pack")["seq_len"] = 64
    found = states(ran)
    assert found["pack"] == "run"
    early = [name for name in found if name.startswith(("gopher", "exact", "minhash", "pii"))]
    assert early
    assert all(found[name] == "reuse" for name in early)
    assert rerun(ran) == ["pack", "shuffle.scatter", "shuffle.gather", "mix.plan"]


def test_an_edit_that_decides_nothing_new_stops_there(ran):
    ran.stage("gopher_quality")["max_words"] = 90_000
    assert rerun(ran) == ["gopher_quality"]


def test_editing_the_mixture_makes_no_tokens_again(ran):
    ran.stage("mix")["weights"] = {"web": 1, "books": 1}
    assert rerun(ran) == ["mix.plan"]


def test_materialize_ends_a_phase(lab):
    lab.stage("gopher_quality")["materialize"] = True
    lab.pipeline["stages"].insert(1, {"holdout": {"ratio": 0.1}})
    lab.run()
    lab.stage("holdout")["ratio"] = 0.3
    found = states(lab)
    assert found["gopher_quality"] == "reuse"
    assert found["holdout"] == "run"


def test_going_back_gives_the_same_bytes(ran):
    before = tree(ran.out)
    ran.stage("gopher_quality")["min_words"] = 60
    ran.run()
    assert tree(ran.out) != before
    ran.stage("gopher_quality")["min_words"] = 30
    ran.run()
    assert tree(ran.out) == before
    ran.cli("verify", str(ran.out))


def test_a_stage_taken_out_leaves_nothing_behind(ran):
    ran.pipeline["stages"] = [one for one in ran.pipeline["stages"] if "minhash_dedup" not in one]
    ran.run()
    assert not list((ran.out / "manifests").glob("minhash*"))
    assert not list((ran.out / "ledger").glob("minhash*"))
    ran.cli("verify", str(ran.out))


def test_replacing_a_model_file_invalidates_its_results(lab, tmp_path):
    path = tmp_path / "other.json"
    shutil.copy(lab.stage("tokenize")["tokenizer"], path)
    lab.stage("tokenize")["tokenizer"] = str(path)
    lab.run()
    content = json.loads(path.read_text())
    content["model"]["vocab"]["unused-entry"] = len(content["model"]["vocab"])
    path.write_text(json.dumps(content))
    found = states(lab)
    assert found["pack"] == "run"
    assert found["gopher_quality"] == "reuse"


def test_a_new_last_input_file_reruns_the_reading(ran):
    ran.write("books9.jsonl", [{"id": "more", "text": "too short"}])
    assert states(ran)["gopher_quality"] == "run"
    assert rerun(ran) == ["gopher_quality", "mix.plan"]  # the new document was dropped there


def test_a_new_input_file_in_the_middle_gives_the_keys_of_a_fresh_run(ran):
    ran.write("web00.jsonl", [{"id": "more", "text": "too short"}])
    ran.run()
    edited = tree(ran.out)
    shutil.rmtree(ran.out)
    ran.run()
    assert tree(ran.out) == edited


def test_a_takedown_does_not_hit_another_document_when_keys_change(ran):
    """Swapped sources change every key: the takedown is refused, by the run and by the loader."""
    rows = ran.cli("trace", str(ran.out), "--step", "0", "-b", "4", "--json").stdout
    taken = next(word for word in re.findall(r"doc\d+", rows))
    edit = ("edit", "takedown", str(ran.out), "--at-step", "0", "-b", "4", "--doc", taken)
    ran.cli(*edit)
    ran.cli("edit", "list", str(ran.out))
    ran.pipeline["sources"] = dict(reversed(ran.pipeline["sources"].items()))
    assert "1 edits of the mix that this run would make again" in ran.run(code=1).stderr
    with pytest.raises(CorpuskitError):
        list(StreamingLoader(ran.out, 4))
    ran.run("--force")
    assert "was made again since" in ran.cli("edit", "list", str(ran.out), code=2).stderr
    with pytest.raises(UsageError, match="was made again since"):
        StreamingLoader(ran.out, 4)


def test_touching_an_input_file_reruns_the_reading(ran):
    (ran.inputs / "books.jsonl").touch()
    assert states(ran)["gopher_quality"] == "run"
    assert rerun(ran) == ["gopher_quality"]


@pytest.fixture
def copied(lab, tmp_path, monkeypatch):
    """A lab that runs a private copy of the package, to edit its source."""
    shutil.copytree(ROOT / "corpuskit", tmp_path / "src" / "corpuskit")
    monkeypatch.setattr("tests.engine.conftest.ROOT", tmp_path / "src")
    lab.source = tmp_path / "src" / "corpuskit"
    return lab


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_code_counts_and_docstrings_do_not(copied):
    copied.run_apart("--until", "gopher_quality")

    def state() -> str:
        copied.save()
        done = copied.cli_apart("plan", str(copied.path), "--until", "gopher_quality", "--json")
        return json.loads(done.stdout)[0]["state"]

    assert state() == "reuse"
    kernel = copied.source / "kernels" / "filters" / "quality.py"
    kernel.write_text(
        kernel.read_text().replace('"""', '"""Another docstring. ', 1) + "# a comment\n"
    )
    stage = copied.source / "stages" / "filters" / "gopher_quality.py"
    stage.write_text(stage.read_text() + "\n# a comment\n")
    edit(
        stage, "text_speed: ClassVar[float] = ", "text_speed: ClassVar[float] = 2 * "
    )  # an estimate
    assert state() == "reuse"
    other = copied.source / "kernels" / "minhash.py"
    other.write_text(other.read_text() + "\nUNUSED = 1\n")
    assert state() == "reuse"  # a kernel that this stage does not use
    kernel.write_text(kernel.read_text() + "\nUNUSED = 1\n")
    assert state() == "run"
    accepted = copied.cli_apart(
        "run", str(copied.path), "--until", "gopher_quality", "--accept-code-change"
    )
    assert ": reused" in accepted.stdout
    assert state() == "reuse"
    seals = list((copied.out / "manifests").glob("*/seal.json"))
    assert any('"accepted_code_change":true' in seal.read_text() for seal in seals)
