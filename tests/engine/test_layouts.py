"""Plans of every shape run, and the run directory holds just what its seals name."""

from __future__ import annotations

import json

import pytest

from tests.engine.conftest import tree
from tests.engine.test_same_bytes import read


def check(lab) -> dict:
    """Assert that verify is content and that nothing is missing; return the accounts."""
    lab.cli("verify", str(lab.out))
    accounts = {one["source"]: one for one in lab.facts()["accounts"]}
    assert all(one["num_missing"] == 0 for one in accounts.values())
    assert sum(one["num_read"] for one in accounts.values()) == 160
    return accounts


@pytest.mark.parametrize(
    "stages",
    [
        [],
        ["exact_dedup"],
        ["holdout", "exact_dedup"],
        ["exact_dedup", "pii", {"minhash_dedup": {"materialize": False}}],
        ["exact_dedup", "exact_dedup"],
    ],
    ids=str,
)
def test_plans_may_begin_and_end_with_any_kind(lab, stages):
    lab.pipeline["stages"] = stages
    lab.run()
    accounts = check(lab)
    kept = len(read(lab, "documents"))
    assert kept == sum(one["num_kept"] for one in accounts.values()) > 0


def test_without_documents_the_accounts_still_balance(lab):
    lab.pipeline["documents"] = False
    lab.run()
    check(lab)
    assert not (lab.out / "documents").exists()
    assert (lab.out / "tokens").exists()


def test_a_plan_that_stops_early_balances_too(lab):
    lab.run("--until", "exact_dedup")
    check(lab)
    lab.run()
    check(lab)
    lab.run("--until", "exact_dedup")
    check(lab)


def test_what_an_edit_leaves_behind_is_swept(lab):
    lab.pipeline["stages"].insert(0, {"holdout": {"ratio": 0.2}})
    lab.run()
    assert list((lab.out / "holdout").glob("*.parquet"))
    lab.pipeline["stages"].pop(0)
    (lab.out / "work" / "left").mkdir()
    (lab.out / "work" / "left" / "over.parquet").write_bytes(b"x")
    lab.run()
    check(lab)
    assert not (lab.out / "holdout").exists()
    assert not (lab.out / "work" / "left").exists()


def test_a_folder_that_is_no_run_is_left_alone(lab):
    mine = lab.folder / "mine"
    (mine / "documents").mkdir(parents=True)
    (mine / "documents" / "raw.jsonl").write_text("{}")
    lab.pipeline["output"] = str(mine)
    assert "not a run directory" in lab.run(code=2).stderr
    assert (mine / "documents" / "raw.jsonl").exists()
    assert sorted(path.name for path in mine.iterdir()) == ["documents"]


def test_inputs_inside_the_output_are_refused(lab):
    lab.run("--until", "gopher_quality")
    inside = lab.out / "documents" / "web9.jsonl"
    inside.parent.mkdir(exist_ok=True)
    inside.write_text('{"id": "9", "text": "mine"}\n')
    lab.pipeline["sources"]["web"]["jsonl"] = str(lab.out / "documents" / "*.jsonl")
    assert "inside the output" in lab.run(code=2).stderr
    assert inside.exists()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"holdout": {"ratio": 0.1}}, "exact_dedup", {"holdout": {"ratio": 0.2}}], "holdout"),
        ([{"mix": {"weights": {"web": 1, "books": 1}}}], "mix needs packed rows"),
        (["pack"], "pack"),
        (["shuffle"], "shuffle must be after pack"),
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_refused(lab, stages, message):
    lab.pipeline["stages"] = stages
    error = lab.run(code=2).stderr
    assert message in error
    assert f"{lab.path}:" in error
    assert "Traceback" not in error


def test_mix_names_sources_that_exist_before_anything_runs(lab):
    lab.stage("mix")["weights"] = {"wbe": 1, "books": 1}
    error = lab.run(code=2).stderr
    assert "there is no source 'wbe'. Did you mean 'web'?" in error
    assert not lab.out.exists()


def test_a_file_named_twice_is_read_once(lab):
    lab.pipeline["stages"] = []
    patterns = [str(lab.inputs / "web*.jsonl"), f"{lab.inputs}/../in/web0.jsonl"]
    lab.pipeline["sources"]["web"]["jsonl"] = patterns
    lab.run()
    check(lab)


def test_another_name_makes_another_mix_plan_and_nothing_else(ran):
    before = tree(ran.out, "documents", "tokens")
    ran.pipeline["name"] = "renamed"
    ran.run()
    plan = json.loads((ran.out / "mix" / "plan.json").read_text())
    assert plan["name"] == "renamed"
    assert tree(ran.out, "documents", "tokens") == before


def test_a_mix_plan_of_an_interrupted_edit_is_not_taken_for_the_old_one(ran):
    path = ran.out / "mix" / "plan.json"
    before = path.read_text()
    path.write_text(before.replace('"seed":0', '"seed":1').replace('"seed": 0', '"seed": 1'))
    assert path.read_text() != before
    ran.run()
    assert path.read_text() == before


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b'{"format": 1, "kind": "seal"}'])
def test_a_damaged_seal_or_manifest_is_made_again(lab, content):
    lab.run("--until", "exact_dedup")
    before = tree(lab.out, "work")
    for path in (lab.out / "manifests").rglob("*.json"):
        path.write_bytes(content)
    lab.run("--until", "exact_dedup")
    assert tree(lab.out, "work") == before


def test_a_damaged_plan_is_one_message(lab):
    lab.run("--until", "gopher_quality")
    (lab.out / "plan.json").write_bytes(b'{"format": 1}')
    assert "Traceback" not in lab.cli("status", str(lab.out), code=3).stderr
    lab.run("--until", "gopher_quality")


def test_a_missing_part_is_made_again(ran):
    before = tree(ran.out)
    next((ran.out / "documents").glob("*.parquet")).unlink()
    ran.run()
    assert tree(ran.out) == before
