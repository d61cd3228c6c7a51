"""Runs that are not finished or not whole, and trainings."""

from __future__ import annotations

import json
import shutil

import pytest

from corpuskit.inspect.occurrences import read_training, token_facts
from corpuskit.loader import StreamingLoader
from corpuskit.loader.editing import append, skip_rows, take_down
from corpuskit.loader.index import read_mix
from corpuskit.train.metrics import MetricsWriter


def told(whys, folder, *arguments):
    done = whys.cli("why", str(folder), *arguments, "--json")
    return json.loads(done.stdout)["documents"][0]


def outcomes(found):
    return {one["stage"]: one["outcome"] for one in found["stages"]}


@pytest.fixture
def copy(whys, tmp_path):
    shutil.copytree(whys.out, tmp_path / "out")
    return tmp_path / "out"


def test_stages_whose_phase_is_not_finished_have_no_word_yet(whys, copy):
    (copy / "manifests" / "minhash_dedup.verify" / "seal.json").unlink()
    found = told(whys, copy, "mail")
    assert found["outcome"] == "unfinished"
    assert outcomes(found)["exact_dedup"] == "kept"
    assert {outcomes(found)[label] for label in ("minhash_dedup", "pii", "mix")} == {"not finished"}
    assert "missing" not in found
    shown = whys.cli("why", str(copy), "mail").stdout
    assert "the run is not finished" in shown
    assert outcomes(told(whys, copy, "short"))["pii"] == "not reached"


def test_stages_of_unfinished_phases_can_be_asked_anew(whys, copy):
    (copy / "manifests" / "pii" / "seal.json").unlink()
    found = told(whys, copy, "mail", "--recompute")
    (one,) = [one for one in found["stages"] if one["stage"] == "pii"]
    assert one["outcome"] == "not finished"
    assert one["recomputed"]["spans"][0]["excerpts"][0]["span"] == "jo@mail.example.org"


def test_stages_behind_until_are_not_run(whys, tmp_path, tokenizer):
    from tests.inspect.why.lab import make_lab

    (tmp_path / "until").mkdir()
    lab = make_lab(tmp_path / "until", tokenizer)
    lab.run("--until", "gopher_quality")
    assert outcomes(lab.told("mail"))["gopher_quality"] == "kept"
    assert outcomes(lab.told("mail"))["pii"] == "not run"
    assert lab.told("mail")["tokens"] is None


def test_files_that_are_gone_are_noted_and_the_rest_is_told(whys, copy):
    shutil.rmtree(copy / "work")
    found = told(whys, copy, "copy-2")
    assert outcomes(found)["exact_dedup"] == "dropped"
    assert any("is gone" in line for line in found["notes"])
    assert "missing" in told(whys, copy, "mail")["tokens"]


def train(folder, data, rows, steps, done, first=0):
    """Write what a training writes when it starts, and after each step."""
    with StreamingLoader(data, rows) as loader, MetricsWriter(folder, first) as journal:
        record = {
            "settings": {"data": str(data), "batch": {"global_rows": rows}},
            "loader": loader.state_at(first),
        }
        journal.event("start", steps=steps, step=first, **record)
        for step in range(first, done):
            journal._write("metrics", {"step": step, "sources": {}})


def test_a_training_names_the_steps_that_saw_the_document_and_those_to_come(whys, tmp_path):
    row = next(row for row in whys.rows("documents") if row["source"] == "notes")
    with StreamingLoader(whys.out, 2) as loader:
        steps = sorted({one.step for one in loader.occurrences(row["id"])})
    train(tmp_path / "t", whys.out, 2, steps[-1] + 1, steps[0] + 1)
    tokens = told(whys, whys.out, row["id"], "--training", str(tmp_path / "t"))["tokens"]
    assert tokens["training"]["steps_done"] == steps[0] + 1
    assert {one["step"] for one in tokens["steps"] if one["done"]} == {steps[0]}
    later = {one["step"] for one in tokens["steps"] if not one["done"] and "step" in one}
    assert later == set(steps[1:])
    shown = whys.cli("why", str(whys.out), row["id"], "--training", str(tmp_path / "t")).stdout
    assert f"steps that saw it: {steps[0]}\n" in shown


def test_steps_behind_the_end_of_a_training_do_not_count(whys, tmp_path):
    row = next(row for row in whys.rows("documents") if row["source"] == "notes")
    train(tmp_path / "t", whys.out, 2, 1, 1)
    tokens = told(whys, whys.out, row["id"], "--training", str(tmp_path / "t"))["tokens"]
    assert all(one.get("step", 0) < 1 for one in tokens["steps"])
    assert any("left_over" in one for one in tokens["steps"])


def test_a_training_that_went_on_with_larger_batches_is_counted_as_it_ran(whys, tmp_path):
    train(tmp_path / "t", whys.out, 2, 12, 4)
    with StreamingLoader(whys.out, 4) as loader, StreamingLoader(whys.out, 2) as before:
        loader.load_state_dict(before.state_at(4))
        with MetricsWriter(tmp_path / "t", 4) as journal:
            record = {
                "settings": {"data": str(whys.out), "batch": {"global_rows": 4}},
                "loader": loader.state_dict(),
            }
            journal.event("start", steps=8, step=4, **record)
        rows = [row for step in range(4) for row in before.which(step)]
        rows += [row for step in range(4, 8) for row in loader.which(step)]
    steps: dict[int, list[int]] = {row["key"]: [] for row in whys.rows("documents")}
    for row in rows:
        for key in {one.key for one in row.documents}:
            steps[key].append(row.step)
    trained = read_training(str(tmp_path / "t"))
    for key, expected in steps.items():
        found = token_facts(str(whys.out), key, training=trained)["steps"]
        assert [one["step"] for one in found if "step" in one] == expected


def test_a_training_of_another_run_is_refused(whys, tmp_path):
    train(tmp_path / "t", whys.out, 2, 4, 1)
    events = tmp_path / "t" / "events.jsonl"
    line = json.loads(events.read_text())
    line["loader"]["plan"] = "0" * 32
    events.write_text(json.dumps(line) + "\n")
    done = whys.cli("why", str(whys.out), "mail", "--training", str(tmp_path / "t"), code=2)
    assert "reads another plan" in done.stderr


def test_a_last_line_that_is_still_being_written_is_none(whys, tmp_path):
    train(tmp_path / "t", whys.out, 2, 9, 5)
    with (tmp_path / "t" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert read_training(str(tmp_path / "t")).num_done == 5


def test_a_document_that_was_taken_down_says_so(whys, copy):
    name = next(row["id"] for row in whys.rows("documents") if row["source"] == "notes")
    plan = read_mix(copy)
    append(plan, take_down(plan, 0, [name]))
    tokens = told(whys, copy, name, "-b", "2")["tokens"]
    assert tokens["steps"]
    assert all(one["masked"] for one in tokens["steps"])
    assert "taken down" in whys.cli("why", str(copy), name).stdout


def test_rows_that_an_edit_skips_are_not_taken(whys, copy):
    name = next(row["id"] for row in whys.rows("documents") if row["source"] == "notes")
    plan = read_mix(copy)
    append(plan, skip_rows(plan, [(0, plan.order.num_rows)]))
    tokens = told(whys, copy, name)["tokens"]
    assert tokens["taken"] == 0
    assert tokens["why_not"] == "an edit of the plan passes over its rows"
