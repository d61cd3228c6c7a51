"""The whole command: what it finds, continues and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from corpuskit.ablate.page import sampled_note
from corpuskit.cli.main import group
from corpuskit.errors import UsageError
from corpuskit.loader.index import read_mix
from corpuskit.train.metrics import TrainResult
from tests.ablate.trials import ablate, write_trial

SHORT = ("--tokens", "20K", "--seeds", "2")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two corpora, one of them with shuffled words, by two slots; and its results."""
    folder = tmp_path_factory.mktemp("study")
    arguments = write_trial(folder, 0, "shuffled", most=240)
    for part, expected in ((["--build"], 0), (["--slot", "1/2"], 2), (["--slot", "0/2"], 4)):
        outcome = CliRunner().invoke(group, ["ablate", *arguments, *SHORT, *part])
        assert outcome.exit_code == 0, outcome.output
        assert len(list((folder / "study/trainings").glob("*/scores.parquet"))) == expected
    return folder, arguments, ablate([*arguments, *SHORT])


def test_results_are_those_of_the_scores_of_each_training(study):
    folder, _, results = study
    assert results == json.loads((folder / "study/ablation.json").read_text())
    assert [variant["same_as"] for variant in results["variants"]] == [None, None]
    own = results["sizes"]["tiny"]
    assert own["tokens"] == own["steps"] * 256 <= 20_000 < own["tokens"] + 256
    for variant in ("a", "b"):
        measured = []
        for seed in range(2):
            [path] = (folder / "study/trainings").glob(f"{variant}-tiny-s{seed}-*/scores.parquet")
            rows = pq.read_table(path)
            bits = sum(rows["nats"].to_pylist()) / np.log(2)
            measured.append(bits / sum(rows["bytes"].to_pylist()))
        assert own["values"][variant]["bits_per_byte"]["judges"] == pytest.approx(measured)
    judged = json.loads(f"[{','.join((folder / 'judges.jsonl').read_text().splitlines())}]")
    sizes = sum(len(one["text"].encode()) for one in judged)
    # The first token of a text is given, unless something stands before it.
    assert sizes - 10 * len(judged) < sum(rows["bytes"].to_pylist()) <= sizes


def test_the_page_holds_the_verdict_and_makes_no_request(study):
    folder, _, _ = study
    page = (folder / "study/ablation.html").read_text()
    assert "Difference in bits per byte from a" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_variants_have_the_same_initial_weights_and_their_own_orders(study):
    folder, _, _ = study
    starts = [
        json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
        for path in sorted((folder / "study/trainings").iterdir())
    ]
    losses = [one["loss"] for one in starts]
    assert len(set(losses)) == 4
    corpus = folder / "study/corpora/a"
    orders = [read_mix(corpus, seed) for seed in (None, 0, 1)]
    rows = [plan.order.rows_at(np.arange(20)).rows.tolist() for plan in orders]
    assert len({str(one) for one in rows}) == 3
    assert len({plan.hash for plan in orders}) == 3


def test_a_finished_study_trains_nothing_again(study, monkeypatch):
    _, arguments, results = study
    monkeypatch.setattr("corpuskit.train.loop.main", None)
    assert ablate([*arguments, *SHORT]) == results


def test_a_study_that_was_stopped_continues_with_the_results_of_slots(study, tmp_path, monkeypatch):
    folder, arguments, results = study
    copy = [part.replace(str(folder), str(tmp_path)) for part in arguments]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name in ("a", "b", "tiny"):
        text = (tmp_path / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(text.replace(str(folder), str(tmp_path)))
    shutil.rmtree(tmp_path / "study/trainings")
    import corpuskit.train.loop as loop

    real, calls = loop.main, []

    def stop_at_third(settings, **options):
        calls.append(settings.name)
        if len(calls) == 3:
            return TrainResult(1, 9, 1, 1.0, 1.0, None, "SIGTERM")
        return real(settings, **options)

    monkeypatch.setattr(loop, "main", stop_at_third)
    outcome = CliRunner().invoke(group, ["ablate", *copy, *SHORT, "--json"])
    assert (outcome.exit_code, len(calls)) == (75, 3)
    monkeypatch.setattr(loop, "main", real)
    again = ablate([*copy, *SHORT])
    assert again["sizes"] == results["sizes"]


def test_the_same_corpus_is_said_and_undecided(study, tmp_path):
    folder, arguments, _ = study
    text = (folder / "a.yaml").read_text()
    (folder / "twin.yaml").write_text(text.replace("name: a\n", "name: twin\n"))
    twins = [part.replace("b.yaml", "twin.yaml") for part in arguments]
    results = ablate([*twins, *SHORT])
    assert [variant["same_as"] for variant in results["variants"]] == [None, "a"]
    one = results["sizes"]["tiny"]["differences"][0]["bits_per_byte"][""]
    assert (one["mean"], one["is_decided"]) == (0.0, False)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("--tokens", "900M"), "tokens in steps of 256"),
        (("--seeds", "1"), "says nothing about noise"),
        (("--slot", "2/2"), "must look like 0/4"),
        (("--task", "nothing"), "name the task"),
        (("--tokens", "0"), "not a number of tokens"),
        (("--tokens", ","), "not a number of tokens"),
        (("--tokens", "0.0001K"), "not a number of tokens"),
        (("--tokens", "20K,20_000"), "names a length twice"),
        (("--slot", "\u00b2/9"), "must look like 0/4"),
        (("--canaries", "1000"), "a training has 312"),
    ],
)
def test_what_cannot_be_is_refused(study, change, problem, monkeypatch):
    _, arguments, _ = study
    monkeypatch.setattr("corpuskit.ablate.canaries.plant", None)  # which refuses too, but too late
    outcome = CliRunner().invoke(group, ["ablate", *arguments, *SHORT, *change])
    assert outcome.exit_code != 0
    assert isinstance(outcome.exception, UsageError), outcome.output
    assert problem in str(outcome.exception)


@pytest.mark.parametrize(
    ("item", "name", "problem"),
    [
        ({"context": "long " * 400, "choices": [" a", " b"], "gold": 0}, "quiz", "longer than a"),
        ({"context": "It is", "choices": [" a", " b"], "gold": 0}, "web", "a source is called so"),
    ],
)
def test_a_task_that_cannot_judge_is_refused_before_training(
    study, item, name, problem, monkeypatch
):
    folder, arguments, _ = study
    (folder / "alone.jsonl").write_text(json.dumps(item))
    monkeypatch.setattr("corpuskit.train.loop.main", None)
    task = ["--task", f"{name}={folder / 'alone.jsonl'}"]
    outcome = CliRunner().invoke(group, ["ablate", *arguments, *SHORT, *task])
    assert isinstance(outcome.exception, UsageError), outcome.output
    assert problem in str(outcome.exception)


def test_trainings_stay_in_the_folder_whatever_a_size_is_called(study, monkeypatch):
    folder, arguments, _ = study
    text = (folder / "tiny.yaml").read_text().replace("name: tiny", "name: ../../../out")
    (folder / "out.yaml").write_text(text)
    outputs = []

    def stop(settings, **options):
        outputs.append(settings.output)
        return TrainResult(1, 9, 1, 1.0, 1.0, None, "SIGTERM")

    monkeypatch.setattr("corpuskit.train.loop.main", stop)
    asked = [part.replace("tiny.yaml", "out.yaml") for part in arguments]
    assert CliRunner().invoke(group, ["ablate", *asked, *SHORT]).exit_code == 75
    assert Path(outputs[0]).resolve().parent == (folder / "study/trainings").resolve()


def test_items_longer_than_a_row_are_left_out_and_counted(study):
    folder, arguments, _ = study
    item = {"id": "same", "context": "It is", "choices": [" cold", " warm", " dry"], "gold": 1}
    alone = {**item, "choices": [" mild"], "gold": 0}  # is neither right nor wrong
    items = [item, {**item, "context": "long " * 400}, alone, {**item, "gold": 0}]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))
    quiz = [*arguments, *SHORT, "--task", f"quiz={folder / 'quiz.jsonl'}"]
    outcome = CliRunner().invoke(group, ["ablate", *quiz])
    assert outcome.exit_code == 0, outcome.output
    assert "quiz: 1 of 4 items are longer than a row, left out" in outcome.stdout
    results = json.loads((folder / "study/ablation.json").read_text())["sizes"]["tiny"]
    assert results["units"]["quiz"] == 3, "items of one id are several"
    for of_variant in results["values"].values():
        assert set(of_variant["accuracy"]) == {"quiz"}
        assert set(of_variant["accuracy"]["quiz"]) <= {0.0, 0.5, 1.0}


def test_a_plan_names_variants_and_trainings_and_writes_nothing(study):
    folder, arguments, _ = study
    elsewhere = [*arguments[:-1], str(folder / "elsewhere")]
    outcome = CliRunner().invoke(group, ["ablate", *elsewhere, *SHORT, "--plan"])
    assert outcome.exit_code == 0, outcome.output
    assert "tiny: 4 trainings (2 variants x 2 seeds) of 20,000 tokens, 0.1 M" in outcome.output
    assert not (folder / "elsewhere").exists()


def test_a_script_has_one_element_per_training(study):
    _, arguments, _ = study
    outcome = CliRunner().invoke(group, ["ablate", *arguments, *SHORT, "--sbatch"])
    assert "--array=0-3" in outcome.stdout
    assert outcome.stdout.count("--dependency=afterok") == 2


def test_trainings_that_take_much_of_other_corpora_are_warned_of(study):
    _, arguments, results = study
    assert [variant["same_inputs"] for variant in results["variants"]] == [True, False]
    outcome = CliRunner().invoke(group, ["ablate", *arguments, *SHORT])
    # The size of the corpus depends on the texts that are at hand: it is read from the results.
    share = results["sizes"]["tiny"]["epochs"]["b"]["web"]
    assert 0.1 < share < 1
    assert f"Trainings take {share:.0%} of a source of b:" in outcome.stderr
    results["sizes"]["tiny"]["epochs"]["b"] = {"web": 0.05}
    assert sampled_note(results, "tiny") == ""
    results["variants"][1]["same_inputs"] = True
    results["sizes"]["tiny"]["epochs"]["b"] = {"web": 1.0}
    assert sampled_note(results, "tiny") == "", "variants of one pipeline share documents"
