"""Normalisation, linear models, calibration on held-out parts, numbers, the choice of a model."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.cli.classifier import command
from corpuskit.errors import DataError, UsageError
from corpuskit.kernels.textfeatures import GramSettings, count_grams, normalize
from corpuskit.stages.annotators._card import ModelCard, append_card, fit_calibration
from corpuskit.stages.annotators._classifier import (
    Shrink,
    judge,
    judge_held_out,
    roc_area,
    train_classifier,
)
from corpuskit.stages.annotators._fasttext import ClassifierSettings, open_model
from corpuskit.stages.annotators._folds import cut_folds
from corpuskit.stages.annotators._labelled import LabelledRow, Split, buffers
from corpuskit.stages.annotators._linear import MAGIC, read_linear, write_linear
from corpuskit.stages.annotators.quality import Quality
from tests.contract.strategies import view
from tests.oracles.annotators import hashed_plainly, normalized_plainly
from tests.test_classifier import SMALL, rows_of_two_classes, write_parquet

LINEAR = ClassifierSettings(family="linear", normalize="lower,punct", buckets=1024)
TEXTS = st.text(st.sampled_from("aBz ,.9\n\u00c9\u0130\u03a3\u0661\u2003\u20ac\u4e2d\U0001f600"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(TEXTS, st.text(max_size=20)), max_size=4), st.integers(1, 7))
def test_texts_are_normalised_as_characters_say(texts, modes):
    given = buffers(texts)
    begins, ends, data = normalize(given.offsets[:-1], given.offsets[1:], given.data, modes)
    found = [data[a:b].tobytes().decode() for a, b in zip(begins, ends, strict=True)]
    plain = [raw.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for raw in texts]
    assert found == [normalized_plainly(text, modes) for text in plain]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab \n\u00e9\U0001f600"), max_size=30), max_size=4),
    st.sampled_from(
        [
            GramSettings(1, 1, 0, 10),
            GramSettings(3, 1, 0, 12),
            GramSettings(0, 2, 4, 11),
            GramSettings(2, 1, 3, 10),
        ]
    ),
)
def test_n_grams_are_counted_by_their_definition(texts, grams):
    given = buffers(texts)
    found = count_grams(given.offsets[:-1], given.offsets[1:], given.data, grams)
    for row, text in enumerate(texts):
        some = slice(found.bounds[row], found.bounds[row + 1])
        pairs = dict(zip(found.buckets[some].tolist(), found.weights[some], strict=True))
        assert pairs == pytest.approx(hashed_plainly(text, grams))
        assert len(pairs) == found.bounds[row + 1] - found.bounds[row]


@pytest.fixture(scope="module")
def rows():
    """Two classes from eight sites, shouted by half of these."""
    return [
        LabelledRow(row.text.upper() if i % 2 else row.text, row.label, "abcdefgh"[i % 8])
        for i, row in enumerate(rows_of_two_classes(400))
    ]


@pytest.fixture(scope="module")
def linear(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("linear") / "m.model"
    train_classifier(rows, path, LINEAR, split=Split(by_group=True), folds=3)
    return path


def test_a_linear_model_learns_and_a_stage_applies_it(linear, rows):
    judged = judge(open_model(linear), rows, "up")
    assert roc_area(judged.scores, judged.hits) > 0.95
    texts = [row.text for row in rows]
    outcome = Quality(model=str(linear), label="up", min_score=0.5).apply(view([*texts, " "]))
    assert outcome.columns["score"].to_pylist() == [*judged.scores.tolist(), 0.0]
    assert outcome.columns["label"].to_pylist()[-1] is None
    assert ((outcome.codes[:-1] == 0) == (judged.scores >= 0.5)).all()


def test_lower_case_is_all_the_same_to_a_model_that_says_so(tmp_path, rows):
    texts = [row.text for row in rows[:20]]
    for family in ("linear", "fasttext"):
        given = ClassifierSettings(**{**vars(SMALL), "family": family, "normalize": "lower,punct"})
        train_classifier(rows, tmp_path / family, given)
        model = open_model(tmp_path / family)
        low = model.predict(buffers([text.lower() for text in texts]), 2).scores
        assert (model.predict(buffers([text.upper() for text in texts]), 2).scores == low).all()
        assert len(np.unique(low)) > 2


def test_scores_are_those_of_the_formula(linear, rows):
    weights = read_linear(linear)
    text = normalized_plainly(rows[0].text, 3)
    pairs = hashed_plainly(text, weights.grams).items()
    length = math.sqrt(sum((weight * weights.table[b, 0]) ** 2 for b, weight in pairs))
    logit = sum(weight * weights.table[b, 1] for b, weight in pairs) / length + weights.bias[0]
    card = weights.card
    share = 1 / (1 + math.exp(-(card.slope * logit + card.shifts[1])))
    found = open_model(linear).predict(buffers([rows[0].text]), 2)
    assert dict(zip(found.ranks[0].tolist(), found.scores[0].tolist(), strict=True)) == (
        pytest.approx({0: 1 - share, 1: share}, abs=6e-5)
    )


def test_scores_do_not_depend_on_what_else_is_scored(linear, rows, tmp_path):
    train_classifier(rows, tmp_path / "m.bin", SMALL, folds=2)
    texts = [row.text for row in rows[:50]]
    for path in (linear, tmp_path / "m.bin"):
        model = open_model(path)
        together = model.predict(buffers(texts), 2).scores
        alone = [model.predict(buffers([text]), 2).scores[0].tolist() for text in texts]
        assert together.tolist() == alone


def test_training_in_any_order_gives_the_same_linear_scores(tmp_path, linear, rows):
    shuffled = random.Random(0).sample(rows, len(rows))
    train_classifier(shuffled, tmp_path / "m", LINEAR, split=Split(by_group=True), folds=3)
    texts = buffers([row.text for row in rows])
    first, second = (open_model(path).predict(texts).scores for path in (linear, tmp_path / "m"))
    assert np.abs(first - second).max() < 0.002


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 3), st.floats(-2, 2), st.integers(2, 4))
def test_a_calibration_finds_what_made_the_labels(slope, shift, labels):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (3000, labels))
    shifts = np.array([0.0, shift, *[0.0] * (labels - 2)])
    powers = np.exp(slope * logits + shifts)
    chances = powers / powers.sum(axis=1, keepdims=True)
    truth = (rng.random((3000, 1)) > chances.cumsum(axis=1)).sum(axis=1).clip(0, labels - 1)
    found_slope, found_shifts = fit_calibration(logits, truth)
    assert found_slope == pytest.approx(slope, rel=0.2, abs=0.1)
    assert found_shifts == pytest.approx(shifts, abs=0.5)


def test_a_calibration_never_reverses_scores():
    logits = np.array([[0.0, 2.0], [0.0, 1.0], [0.0, -1.0], [0.0, -2.0]] * 20)
    slope, _ = fit_calibration(logits, np.array([0, 0, 1, 1] * 20))
    assert slope == pytest.approx(0.1)


def test_calibrated_scores_rarely_share_a_maximum(tmp_path):
    """Within a budget a model is cut and trained once more, which drives its scores to 1."""
    rows, shares = rows_of_two_classes(600), []
    hot = ClassifierSettings(dim=8, epochs=40, lr=2.0, minn=2, maxn=3, buckets=2000)
    for folds in (0, 2):
        path = tmp_path / f"{folds}.ftz"
        train_classifier(rows, path, hot, shrink=Shrink(max_bytes=30_000), folds=folds)
        assert path.stat().st_size <= 30_000
        scores = judge(open_model(path), rows, "up").scores
        shares.append((scores == scores.max()).mean())
    assert shares[1] < shares[0] / 2


def test_groups_are_spread_with_their_labels_and_stay_whole():
    counts = Counter(
        {("a", "0"): 90, ("b", "1"): 80, ("c", "0"): 50, ("d", "1"): 40, ("e", "1"): 9}
    )
    folds = cut_folds(counts, 2, by_group=True)
    assert folds.of_group["a"] != folds.of_group["c"]
    assert folds.of_group["b"] != folds.of_group["d"]
    assert cut_folds(counts, 9, by_group=True).num == 5
    assert cut_folds(Counter({("a", "0"): 3, ("a", "1"): 3}), 3, by_group=True).described == "texts"


def test_three_labels_are_told_apart(tmp_path):
    words = {"x": "red rose garden", "y": "blue sea ship", "2": "old stone house"}
    rng = random.Random(0)
    rows = [
        LabelledRow(" ".join(rng.choices([*words[label].split(), "and", "the"], k=6)), label)
        for label in words
        for _ in range(60)
    ]
    report = train_classifier(rows, tmp_path / "m", LINEAR, split=Split(0.3), folds=3)
    assert report.labels == ("2", "x", "y")
    assert report.held_out.accuracy > 0.9
    found = open_model(tmp_path / "m").predict(buffers([rows[0].text]), 3).scores
    assert found.sum() == pytest.approx(1, abs=2e-4)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Texts whose grade is how many of five words are learned ones, as integers and a null."""
    rng = random.Random(0)
    plain, learned = "the and of it was".split(), "theorem proof lemma axiom corollary".split()
    grades = [rng.randrange(6) for _ in range(400)]
    texts = [" ".join(rng.choices(learned, k=g) + rng.choices(plain, k=8 - g)) for g in grades]
    path = tmp_path_factory.mktemp("graded") / "rows.parquet"
    sites = ["ab"[i % 2] for i in range(400)]
    pq.write_table(pa.table({"text": texts, "grade": [*grades[:-1], None], "site": sites}), path)
    return path


def run(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_numbers_are_learned_and_scored_as_numbers(graded, tmp_path):
    model = tmp_path / "edu.model"
    options = ("--label-column", "grade", "--group-column", "site")
    done = run(
        "train", graded, *options, "--regression", "--family", "linear", "--output", model,
        "--holdout-group", "b", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    held_out = json.loads(done.stdout)["held_out"]
    assert held_out["explained"] > 0.9
    assert held_out["error"] < 0.6
    judged = run("eval", model, graded, *options, "--positive", "3", "--precision", "0.9")
    assert "root mean squared error by group" in judged.stdout
    assert f"- quality: {{model: {model}, label: score, min_score: " in judged.stdout
    stage = Quality(model=str(model), label="score", min_score=3)
    outcome = stage.apply(view(["theorem proof lemma axiom corollary the", "it was the of it"]))
    assert outcome.codes.tolist() == [0, 2]
    with pytest.raises(UsageError, match="min_score: 7 is above 5, the largest score"):
        Quality(model=str(model), label="score", min_score=7).check(None)


def test_the_choice_is_the_best_of_its_table(rows, tmp_path):
    path = write_parquet(tmp_path / "rows.parquet", rows)
    done = run(
        "train", path, "--group-column", "site", "--auto", "--positive", "up", "--output",
        tmp_path / "m", "--dim", 4, "--epochs", 1, "--buckets", 1024,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    table = [line.split(maxsplit=3) for line in done.stdout.splitlines()[1:]]
    assert len(table) == 12
    assert {line[3].split()[0] for line in table} == {"linear", "fasttext"}
    assert table[0][0] == max(line[0] for line in table)
    card = open_model(tmp_path / "m").card
    assert ",".join(card.normalize) or "none" in table[0][3]
    assert card.shifts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--regression", "--family", "linear"], "label 'down' is not a number"),
        (["--regression"], "regression needs a linear model"),
        (["--group-column", "source"], "column 'source' is missing"),
        (["--positive", "upp"], "no text has the label 'upp'"),
        (["--normalize", "lower,upper"], "normalize: 'upper' is unknown"),
        (["--auto", "--folds", "0"], "--auto judges on held-out parts"),
        (["--folds", "1"], "folds must be 0 or at least 2, got 1"),
        (["--family", "linear", "--word-ngrams", "9"], "word_ngrams of a linear model must be"),
        (["--family", "linear", "--max-size", "2KB"], "2,000 bytes is too small for a linear"),
    ],
)  # fmt: skip
def test_wrong_requests_are_told_in_one_line(tmp_path, rows, options, message):
    path = write_parquet(tmp_path / "rows.parquet", rows[::10])
    done = run("train", path, "--output", tmp_path / "m", *options)
    assert done.exit_code != 0
    assert message in (done.output + str(done.exception))
    assert not (tmp_path / "m").exists()


def test_a_linear_model_fits_its_budget(tmp_path, rows):
    large = ClassifierSettings(family="linear", buckets=200_000, maxn=3, minn=1)
    train_classifier(rows, tmp_path / "m", large, shrink=Shrink(max_bytes=20_000))
    assert tmp_path.joinpath("m").stat().st_size <= 20_000
    assert read_linear(tmp_path / "m").grams.bits == 11


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_broken_linear_model_is_refused_in_one_line(tmp_path_factory, linear, data):
    raw = bytearray(linear.read_bytes())
    place = data.draw(st.integers(len(MAGIC), len(raw) - 1))
    if data.draw(st.booleans()):
        raw = raw[:place]
    else:
        raw[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("broken") / "m"
    path.write_bytes(bytes(raw))
    try:
        model = open_model(path)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most changes break a file, not all
    else:
        assert np.isfinite(model.predict(buffers(["one two"]), 2).scores).all()


def test_a_linear_model_reads_as_it_was_written(linear, tmp_path):
    model = read_linear(linear)
    write_linear(tmp_path / "again", model)
    assert (tmp_path / "again").read_bytes() == linear.read_bytes()


def test_the_library_reads_a_model_that_has_a_card(tmp_path, rows):
    import fasttext

    train_classifier(rows, tmp_path / "plain.bin", SMALL)
    (tmp_path / "card.bin").write_bytes((tmp_path / "plain.bin").read_bytes())
    append_card(tmp_path / "card.bin", ModelCard(("lower",), 0.5, (0.0, 1.0)))
    texts = [row.text for row in rows[:5]]
    plain, carded = (fasttext.load_model(str(tmp_path / f"{n}.bin")).f for n in ("plain", "card"))
    for text in texts:
        assert plain.predict(text + "\n", 2, 0.0, "strict") == (
            carded.predict(text + "\n", 2, 0.0, "strict")
        )
    assert open_model(tmp_path / "card.bin").card == ModelCard(("lower",), 0.5, (0.0, 1.0))


def test_another_kind_of_file_is_no_model(graded):
    with pytest.raises(DataError, match="is not a whole fastText model: another kind of file"):
        judge_held_out(graded, [LabelledRow("a", "b")], Split())
