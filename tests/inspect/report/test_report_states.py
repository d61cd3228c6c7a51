"""Facts of runs that are not finished, failed, or were made before there were profiles."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import sys
from collections import Counter

import pytest

from corpuskit.engine.monitor import heartbeat
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import sealed
from corpuskit.errors import DataError
from corpuskit.formats.manifest import Parts, Seal
from corpuskit.inspect.report.facts import gather
from corpuskit.inspect.report.samples import kept_documents
from corpuskit.storage import open_store
from tests.inspect.report.conftest import FactsLab

pytestmark = pytest.mark.slow


def facts_of(folder, **given) -> dict:
    found = gather(RunDirectory.open(str(folder)), samples=2, seed=0, **given)
    json.dumps(found, allow_nan=False)
    return found


def without(folder, *roles: str) -> None:
    """Rewrite the seals of a run as if parts of some roles had never been made."""
    for path in folder.glob("manifests/*/seal.json"):
        seal = Seal.from_json(path.read_bytes(), str(path))
        parts = Parts.of(part for part in seal.parts if part.role not in roles)
        path.write_bytes(dataclasses.replace(seal, parts=parts).to_json())


def test_facts_are_json(facts):
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_a_finished_run_says_so(facts, done):
    state = facts["run"]
    assert (state["state"], state["phase"]) == ("finished", None)
    assert state["phases_done"] == state["phases"] == len(facts["resources"]["phases"])
    assert state["directory"] == str(done.out)
    assert state["began"] <= state["ended"]
    assert {one["state"] for one in facts["stages"]} == {"done"}
    assert facts["training"] == ["runs/train"]


def test_facts_of_a_run_are_the_same_again(facts, run):
    again = gather(run, samples=50, seed=0, training=["runs/train"])
    assert {**again, "made": 0} == {**facts, "made": 0}


def test_a_stopped_run_has_figures_up_to_its_open_phase(copied):
    for path in copied.glob("manifests/*/seal.json"):
        if path.parent.name.startswith(("minhash_dedup.apply", "pii", "pack", "shuffle", "mix")):
            path.unlink()
    found = facts_of(copied)
    assert (found["run"]["state"], found["run"]["phase"]) == ("stopped", "minhash_dedup.apply")
    states = {one["label"]: one["state"] for one in found["stages"]}
    assert states["exact_dedup"] == "done"
    assert states["minhash_dedup"] == states["pii"] == states["pack"] == "waiting"
    funnel = {one["stage"]: one for one in found["funnel"]}
    assert funnel["exact_dedup"]["out"]["documents"] > 0
    assert funnel["minhash_dedup"]["in"] == funnel["exact_dedup"]["out"]
    assert funnel["minhash_dedup"]["out"]["documents"] is None
    assert found["totals"]["left"] == funnel["exact_dedup"]["out"]
    assert found["totals"]["left"]["tokens_how"] == "estimated"
    assert {one["stage"] for one in found["duplicates"]} == {"exact_dedup"}
    assert {one["action"] for one in found["samples"]["items"]} >= {"keep", "drop"}


def test_kept_samples_of_a_stopped_run_are_not_what_a_mask_drops(copied):
    for path in copied.glob("manifests/*/seal.json"):
        if path.parent.name.startswith(("pii", "pack", "shuffle", "mix")):
            path.unlink()
    found = gather(RunDirectory.open(str(copied)), samples=500, seed=0)
    items = found["samples"]["items"]
    kept = {one["id"] for one in items if one["action"] == "keep"}
    dropped = {one["id"] for one in items if one["action"] == "drop"}
    assert len(kept) == found["totals"]["left"]["documents"]
    assert kept.isdisjoint(dropped)


def test_kept_samples_are_as_many_as_asked_for_where_a_mask_drops_some(copied):
    for path in copied.glob("manifests/*/seal.json"):
        if path.parent.name.startswith(("pii", "pack", "shuffle", "mix")):
            path.unlink()
    run = RunDirectory.open(str(copied))
    finished = sealed(run)
    for phase, seal in finished:
        run.set_seal(phase, seal)
    for seed in range(10):
        found = kept_documents(run, finished, 4, seed)
        assert Counter(one["source"] for one in found) == {"web": 4, "books": 4, "news": 4}


def test_a_run_that_has_done_nothing_has_facts(copied):
    shutil.rmtree(copied / "manifests")
    found = facts_of(copied)
    assert found["run"]["state"] == "stopped"
    assert found["totals"]["read"]["documents"] is None
    assert found["drops"] == found["changes"] == found["samples"]["items"] == []
    assert found["measures"]["recorded"] == "none"


def test_a_running_run_says_so(copied):
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems have no table of locks")
    (copied / "manifests" / "pack" / "seal.json").unlink()
    run = RunDirectory.open(str(copied))
    assert heartbeat(run.store).is_alive is not True
    with open_store(str(copied)).lock():
        found = facts_of(copied)
    assert (found["run"]["state"], found["run"]["phase"]) == ("running", "pack")
    states = {one["phase"]: one["state"] for one in found["resources"]["phases"]}
    assert states["pack"] == "running"


def test_a_failed_run_names_what_failed(tmp_path, tokenizer):
    lab = FactsLab(tmp_path, tokenizer)
    lab.fill()
    whole = gzip.compress((lab.inputs / "books.jsonl").read_bytes())
    (lab.inputs / "books.jsonl").unlink()
    (lab.inputs / "books.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    lab.pipeline["sources"]["books"]["jsonl"] = str(lab.inputs / "books*.jsonl.gz")
    lab.run(code=3)
    found = facts_of(lab.out)
    assert (found["run"]["state"], found["run"]["phase"]) == ("failed", "gopher_quality")
    [failure] = found["failures"]
    assert "books.jsonl.gz" in failure["error"]
    assert failure["at"] <= found["made"]["at"]
    phases = {one["phase"]: one for one in found["resources"]["phases"]}
    first = phases["gopher_quality"]
    assert 0 < first["units_done"] < first["units"]
    done = {row["source"]: row["num_read"] for row in found["totals"]["accounts"]}
    assert done == {"web": 70, "news": 50}
    assert found["totals"]["read"]["documents"] == 120
    assert f"{first['units_done']} of {first['units']} pieces" in found["totals"]["notes"][0]
    funnel = {row["stage"]: row for row in found["funnel"]}
    left = funnel["gopher_quality"]["out"]["documents"]
    assert left == found["totals"]["left"]["documents"] == 120 - found["totals"]["dropped"] > 0
    assert funnel["exact_dedup"]["out"]["documents"] is None
    assert sum(map(sum, found["measures"]["items"][0]["sources"].values())) > 0
    assert {item["action"] for item in found["samples"]["items"]} >= {"keep", "drop"}


def test_a_run_up_to_a_stage_leaves_the_others_waiting(tmp_path, tokenizer):
    lab = FactsLab(tmp_path, tokenizer)
    lab.fill()
    lab.run("--until", "exact_dedup")
    found = facts_of(lab.out)
    assert (found["run"]["state"], found["run"]["until"]) == ("finished", "exact_dedup")
    funnel = {row["stage"]: row for row in found["funnel"]}
    states = {one["label"]: one["state"] for one in found["stages"]}
    assert (states["exact_dedup"], states["minhash_dedup"]) == ("done", "not run")
    assert found["totals"]["left"]["documents"] == funnel["minhash_dedup"]["in"]["documents"]


def test_without_its_work_folder_a_run_has_all_but_some_texts(copied, facts):
    shutil.rmtree(copied / "work")
    found = facts_of(copied)
    assert found["funnel"] == facts["funnel"]
    assert found["drops"] == facts["drops"]
    assert [one["clusters"] for one in found["duplicates"]] == [
        one["clusters"] for one in facts["duplicates"]
    ]
    assert {one["sampled"]["parts_read"] for one in found["duplicates"]} == {0}
    assert any(one["action"] == "keep" for one in found["samples"]["items"])


def test_parts_that_a_run_replaces_meanwhile_are_left_out_and_that_is_said(copied, facts):
    for folder in ("profile", "ledger"):
        sorted((copied / folder).glob("gopher_quality-*"))[0].unlink()
    found = facts_of(copied)
    assert found["drops"][0]["documents"] == facts["drops"][0]["documents"]
    for part in (found["measures"], found["samples"]):
        assert part["sampled"]["parts_read"] == part["sampled"]["parts"] - 1


def test_damaged_parts_are_named(copied):
    path = sorted(copied.glob("profile/*.parquet"))[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=path.name):
        facts_of(copied)


def test_a_run_without_tokens_does_not_guess_any(tmp_path, tokenizer):
    lab = FactsLab(tmp_path, tokenizer)
    lab.fill()
    lab.pipeline["stages"] = ["exact_dedup"]
    lab.run()
    found = facts_of(lab.out)
    assert {row["in"]["tokens_how"] for row in found["funnel"]} == {"unknown"}
    assert found["mixture"] is None
    assert found["packing"] == []
    assert found["totals"]["tokens"]["stored"] is None
    assert found["funnel"][-1]["out"]["text_bytes_how"] == "exact"
