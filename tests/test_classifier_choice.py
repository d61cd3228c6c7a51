"""Held-out groups, files of one label, size budgets, calibration and thresholds."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.cli.classifier import command
from corpuskit.errors import UsageError
from corpuskit.stages.annotators._classifier import (
    Shrink,
    at_keep_rate,
    at_precision,
    calibrate,
    choose_thresholds,
    evaluate,
    judge_held_out,
    roc_area,
    stage_snippet,
    train_classifier,
)
from corpuskit.stages.annotators._fasttext import ClassifierSettings, open_model
from corpuskit.stages.annotators._labelled import Labelled, LabelledRow, Split, read_texts
from corpuskit.stages.annotators.quality import Quality
from tests.test_classifier import OPTIONS, SMALL, rows_of_two_classes, write_parquet

SITES = "abcdefgh"
cases = st.lists(st.tuples(st.integers(0, 20).map(lambda n: n / 20), st.booleans()), min_size=1)


@pytest.fixture(scope="module")
def rows():
    """Two classes, each from eight sites."""
    return [LabelledRow(*row[:2], SITES[i % 8]) for i, row in enumerate(rows_of_two_classes())]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, rows):
    return write_parquet(tmp_path_factory.mktemp("choice") / "rows.parquet", rows)


@pytest.fixture(scope="module")
def model(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("model") / "m.bin"
    train_classifier(rows, path, SMALL)
    return path


def run(*arguments):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_files_of_one_label_need_no_label_column(tmp_path, rows):
    up = write_parquet(tmp_path / "up.parquet", [row for row in rows if row.label == "up"])
    (tmp_path / "down.txt").write_text("one two\n\n  \nthree\r\n")
    found = list(Labelled(sources=(("hq", up), ("lq", tmp_path / "down.txt"))))
    assert found[0] == LabelledRow(rows[0].text, "hq", "up.parquet")
    assert found[-2:] == [
        LabelledRow("one two", "lq", "down.txt"),
        LabelledRow("three", "lq", "down.txt"),
    ]


def test_rows_without_any_file_are_a_wrong_request():
    with pytest.raises(UsageError, match="use --source LABEL=FILE"):
        list(Labelled())


def test_unlabelled_texts_are_read_from_any_file(tmp_path, inputs, rows):
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    assert list(read_texts([tmp_path / "t.txt"], "text")) == ["one", "two"]
    assert list(read_texts([inputs], "text")) == [row.text for row in rows]


def test_a_group_is_held_out_whole(tmp_path, rows):
    split = Split(groups=("c",))
    report = train_classifier(rows, tmp_path / "m.bin", SMALL, split=split)
    assert report.num_docs == 525
    assert [(one.group, one.num_docs) for one in report.held_out.groups] == [("c", 75)]
    share = Split(0.5, by_group=True)
    held = {row.group for row in rows if share.holds_out(row)}
    assert 0 < len(held) < 8
    assert all(share.holds_out(row) == (row.group in held) for row in rows)


def test_judging_with_the_same_split_judges_what_was_held_out(tmp_path, rows):
    split = Split(0.2)
    report = train_classifier(rows, tmp_path / "m.bin", SMALL, split=split)
    assert evaluate(judge_held_out(tmp_path / "m.bin", rows, split)) == report.held_out


@pytest.mark.slow
@pytest.mark.parametrize(("max_bytes", "minn"), [(15_000, 2), (25_000, 0), (60_000, 2)])
def test_a_model_fits_its_budget_and_uses_it(tmp_path, rows, max_bytes, minn):
    given = ClassifierSettings(
        dim=8, epochs=2, minn=minn, maxn=3 if minn else 0, buckets=3000, seed=7
    )
    path = tmp_path / "m.ftz"
    train_classifier(rows, path, given, shrink=Shrink(max_bytes=max_bytes))
    whole = tmp_path / "whole.ftz"
    train_classifier(rows, whole, given, shrink=Shrink(quantize=True))
    assert min(0.7 * max_bytes, whole.stat().st_size) <= path.stat().st_size <= max_bytes
    assert set(open_model(path).labels) == {"up", "down"}


def test_a_budget_that_holds_no_model_is_refused(tmp_path, rows):
    with pytest.raises(UsageError, match="max-size 9,000 bytes is too small"):
        train_classifier(rows, tmp_path / "m.ftz", SMALL, shrink=Shrink(max_bytes=9000))
    assert not (tmp_path / "m.ftz").exists()


@given(cases)
def test_calibration_is_that_of_the_definition(pairs):
    scores, right = (np.array(part) for part in zip(*pairs, strict=True))
    found = calibrate(scores, right)
    gaps = 0.0
    for place in range(10):
        inside = [p for p in pairs if min(int(p[0] * 10), 9) == place]
        if inside:
            mean, share = (sum(part) / len(inside) for part in zip(*inside, strict=True))
            gaps += len(inside) / len(pairs) * abs(mean - share)
    assert found.error == pytest.approx(gaps)
    assert sum(one.num_docs for one in found.bins) == len(pairs)


@given(cases)
def test_the_roc_area_is_the_chance_of_the_right_order(pairs):
    scores, right = (np.array(part) for part in zip(*pairs, strict=True))
    ones, zeros = scores[right], scores[~right]
    found = roc_area(scores, right)
    if not len(ones) or not len(zeros):
        assert found is None
    else:
        wins = [(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]
        assert found == pytest.approx(sum(wins) / len(wins))


@given(cases, st.floats(0.01, 1))
def test_a_keep_rate_takes_the_highest_threshold_that_keeps_as_much(pairs, rate):
    scores = np.array([score for score, _ in pairs])
    found = at_keep_rate(scores, rate)
    assert found.kept_ratio == (scores >= found.min_score).mean() >= rate - 1e-9
    assert (scores > found.min_score).mean() < rate


@given(cases, st.floats(0.01, 1))
def test_a_precision_takes_the_lowest_threshold_that_reaches_it(pairs, precision):
    scores, right = (np.array(part) for part in zip(*pairs, strict=True))
    reaching = [
        bound for bound in sorted(set(scores)) if right[scores >= bound].mean() >= precision
    ]
    if not reaching:
        with pytest.raises(UsageError, match="is not reached"):
            at_precision(scores, right, precision)
        return
    found = at_precision(scores, right, precision)
    assert found.min_score == reaching[0]
    assert found.precision == right[scores >= reaching[0]].mean()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, float("nan")])
def test_shares_that_make_no_sense_are_refused(share):
    scores, right = np.array([0.1, 0.9]), np.array([False, True])
    with pytest.raises(UsageError, match="keep-rate must be"):
        at_keep_rate(scores, share)
    with pytest.raises(UsageError, match="precision must be"):
        at_precision(scores, right, share)


def test_a_threshold_needs_a_positive_label(model, rows):
    with pytest.raises(UsageError, match="Name it by --positive LABEL"):
        choose_thresholds(judge_held_out(model, rows, Split()), keep_rate=0.1)


def test_the_printed_line_keeps_the_share_that_was_asked_for(model, inputs, rows):
    out = run("eval", model, inputs, "--positive", "up", "--keep-rate", "0.3", "--precision", "0.9")
    lines = [yaml.safe_load(line) for line in out.splitlines() if line.startswith("  - quality")]
    (first,), (second,) = lines
    view = pytest.importorskip("tests.contract.strategies").view([row.text for row in rows])
    kept = (Quality(**first["quality"]).apply(view).codes == 0).mean()
    assert 0.3 <= kept < 0.35
    outcome = Quality(**second["quality"]).apply(view)
    labels = np.array([row.label == "up" for row in rows])
    assert labels[outcome.codes == 0].mean() >= 0.9


@pytest.mark.parametrize("label", ["1", "hq", "no", "a:b", "#x", "\u00e9", "null", "-", "1e3"])
@pytest.mark.parametrize("path", ["m.bin", "a, b.bin", "/a b/{m}.ftz", "~/m", "2"])
def test_the_printed_line_is_read_back_as_meant(label, path):
    found = at_keep_rate(np.array([0.2, 0.7]), 0.5)
    (line,) = yaml.safe_load(stage_snippet("quality", path, label, found))
    assert line == {"quality": {"model": path, "label": label, "min_score": 0.7}}


def test_a_threshold_for_toxicity_drops_what_reaches_it(model, rows):
    judged = judge_held_out(model, rows, Split(), "up")
    (found,) = choose_thresholds(judged, keep_rate=0.3)
    line = yaml.safe_load(stage_snippet("toxicity", "m.bin", "up", found))
    bound = line[0]["toxicity"]["max_score"]
    assert ((judged.scores > bound) == (judged.scores >= found.min_score)).all()


def test_a_keep_rate_may_be_about_other_texts(model, inputs, tmp_path):
    rng = random.Random(1)
    (tmp_path / "crawl.txt").write_text(
        "".join("".join(rng.choices("abcdefghijklmnop ", k=60)) + "\n" for _ in range(200))
    )
    arguments = ["eval", model, inputs, "--positive", "up", "--keep-rate", "0.1", "--json"]
    here = json.loads(run(*arguments))["thresholds"][0]
    there = json.loads(run(*arguments, "--among", tmp_path / "crawl.txt"))["thresholds"][0]
    assert there["precision"] is None
    assert 0.1 <= there["kept_ratio"] < 0.13
    assert there["min_score"] != here["min_score"]


@pytest.mark.slow
def test_the_command_line_trains_from_files_of_one_label(tmp_path, rows):
    for label in ("up", "down"):
        write_parquet(tmp_path / f"{label}.parquet", [row for row in rows if row.label == label])
    sources = [f"--source={label}={tmp_path}/{label}.parquet" for label in ("up", "down")]
    out = run(
        "train", *sources, "--output", tmp_path / "m.ftz", *OPTIONS, "--max-size", "20KB",
        "--group-column", "site", "--holdout-group", "c", "--positive", "up",
    )  # fmt: skip
    assert (tmp_path / "m.ftz").stat().st_size <= 20_000
    assert "held out: accuracy 0." in out
    assert "accuracy by group:\n  0." in out
    assert "calibration of up, expected error" in out


@pytest.mark.parametrize("given", ["books.parquet", "=books.parquet", "hq="])
def test_a_source_without_label_or_file_is_refused(tmp_path, given):
    done = CliRunner().invoke(
        command, ["train", "--source", given, "--output", str(tmp_path / "m")]
    )
    assert done.exit_code == 2
    assert "is not LABEL=FILE" in done.output


@settings(max_examples=20)
@given(st.integers(1, 999), st.sampled_from(["KB", "MB", "kb", ""]))
def test_sizes_have_units(number, unit):
    from corpuskit.cli.classifier import Size

    factor = {"KB": 1000, "MB": 10**6, "": 1}[unit.upper()]
    assert Size().convert(f"{number}{unit}", None, None) == number * factor
