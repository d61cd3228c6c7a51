"""The toxicity stage: a score first, dropping as a policy."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from corpuskit.cli.classifier import command
from corpuskit.errors import UsageError
from corpuskit.stages.annotators._fasttext import open_model
from corpuskit.stages.annotators.quality import Quality
from corpuskit.stages.annotators.toxicity import Toxicity
from tests.conftest import ROOT
from tests.contract.strategies import decide, view
from tests.oracles import oracle_of

MODEL = str(ROOT / "sample_data" / "toxicity.ftz")
KIND = "Thank you for the careful review, and sorry for the delay."
RUDE = "You are an ignorant fool. Go away, you disgusting creep."
MIXED = KIND + " " + RUDE


def test_it_scores_and_drops_nothing_by_default():
    outcome = Toxicity(model=MODEL).apply(view([KIND, RUDE, ""]))
    low, high, empty = outcome.columns["score"].to_pylist()
    assert low < 0.1 < 0.9 < high
    assert empty == 0
    assert outcome.columns["label"].to_pylist() == ["fine", "toxic", None]
    assert outcome.codes.tolist() == [0, 0, 0]


def test_the_embedded_model_tells_rude_comments_from_kind_ones():
    low, high, empty = Toxicity().apply(view([KIND, RUDE, ""])).columns["score"].to_pylist()
    assert low < 0.1
    assert high > 0.9
    assert empty < 0.5
    model = open_model(Toxicity()._path)
    assert "alt-profanity-check" in (ROOT / "corpuskit/models/LICENSE.md").read_text()
    assert model.labels == ("other", "toxic")


def test_the_bounds_drop_on_either_side_and_keep_what_is_equal():
    score = Toxicity(model=MODEL).apply(view([MIXED])).columns["score"][0].as_py()
    assert 0 < score < 1
    assert decide(Toxicity(model=MODEL, max_score=score, min_score=score), [MIXED]) == [None]
    assert decide(Toxicity(model=MODEL, max_score=score - 0.0001), [MIXED]) == ["toxic"]
    assert decide(Toxicity(model=MODEL, min_score=score + 0.0001), [MIXED]) == ["not_toxic"]


def test_sentences_that_score_high_are_cut():
    stage = Toxicity(model=MODEL, cut_score=0.5)
    docs = [f"{KIND} {RUDE}\n\n{KIND}\n", RUDE, KIND, " ", f"{RUDE}\n{KIND}\n"]
    outcome = stage.apply(view(docs))
    left = [outcome.text.row(row).decode() for row in range(len(docs))]
    assert left == [f"{KIND}\n\n{KIND}\n", "", KIND, " ", f"{KIND}\n"]
    decide_plainly = oracle_of(stage)
    assert left == [decide_plainly(text)[1] for text in docs]
    assert set(outcome.spans.codes.tolist()) == {3}
    begin, end = outcome.spans.starts[0], outcome.spans.ends[0]
    assert docs[0].encode()[begin:end].decode().strip() == RUDE


@pytest.mark.real
def test_sentences_of_real_texts_are_cut_as_by_the_reference(shared_data):
    path = sorted((shared_data / "bench_en").glob("*.parquet"))[0]
    docs = pq.read_table(path, columns=["text"])["text"].to_pylist()[:300:3]
    docs = [text[:3000] for text in docs]
    stage = Toxicity(model=MODEL, cut_score=0.6)
    outcome = stage.apply(view(docs))
    decide_plainly = oracle_of(stage)
    left = [outcome.text.row(row).decode() for row in range(len(docs))]
    assert left == [decide_plainly(text)[1] for text in docs]
    assert sum(a != b for a, b in zip(left, docs, strict=True)) > 20


def test_the_ledger_gets_the_score():
    outcome = Toxicity(model=MODEL, max_score=0.5).apply(view([KIND, RUDE]))
    assert np.isnan(outcome.values[0])
    assert outcome.values[1] == outcome.columns["score"][1].as_py() > 0.5


def test_measures_are_the_score_under_each_rule():
    outcome = Toxicity(model=MODEL, max_score=0.5, measures=True).apply(view([KIND, RUDE]))
    scores = outcome.columns["score"].to_pylist()
    assert {rule: list(values) for rule, values in outcome.measures.items()} == {
        "toxic": scores,
        "not_toxic": scores,
    }


def test_bounds_that_leave_nothing_are_refused():
    with pytest.raises(ValidationError, match=r"0\.9 is above max_score 0\.1"):
        Toxicity(model=MODEL, min_score=0.9, max_score=0.1)


def test_it_scores_as_quality_does():
    docs = [KIND, RUDE, MIXED, "", "\u3000 a\nb"]
    for newlines in ("space", "drop"):
        ours = Toxicity(model=MODEL, newlines=newlines).apply(view(docs)).columns
        other = Quality(model=MODEL, label="toxic", newlines=newlines).apply(view(docs)).columns
        assert ours == other


def test_a_model_without_the_label_is_refused():
    with pytest.raises(UsageError, match="no label 'hate'"):
        decide(Toxicity(model=MODEL, label="hate"), [KIND])


@pytest.mark.real
def test_tweets_teach_little_about_comments(shared_data, tmp_path):
    folder = shared_data / "toxicity"
    tweets = pq.read_table(folder / "davidson_tweets.parquet").slice(0, 6000)
    toxic = ["fine" if label == "neither" else "toxic" for label in tweets["label"].to_pylist()]
    pq.write_table(pa.table({"text": tweets["text"], "label": toxic}), tmp_path / "tweets.parquet")
    wiki = pq.read_table(folder / "wiki_toxicity.parquet")
    truth = ["toxic" if bad else "fine" for bad in wiki["toxic"].to_pylist()]
    pq.write_table(pa.table({"text": wiki["text"], "label": truth}), tmp_path / "wiki.parquet")
    run = CliRunner().invoke
    model = tmp_path / "m.bin"
    arguments = ["--output", str(model), "--holdout", "0.2", "--positive", "toxic", "--json"]
    trained = run(command, ["train", str(tmp_path / "tweets.parquet"), *arguments])
    judged = run(
        command,
        ["eval", str(model), str(tmp_path / "wiki.parquet"), "--positive", "toxic", "--json"],
    )
    home, away = json.loads(trained.stdout)["held_out"]["auc"], json.loads(judged.stdout)["auc"]
    assert home > 0.85
    assert away < home - 0.05
