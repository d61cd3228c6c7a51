"""The quality stage: a fastText score per document, and datatrove's decisions on it."""

from __future__ import annotations

import fasttext
import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from corpuskit.errors import UsageError
from corpuskit.stages.annotators._classifier import train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings
from corpuskit.stages.annotators._labelled import LabelledRow
from corpuskit.stages.annotators.quality import Quality
from tests.conftest import ROOT
from tests.contract.strategies import decide, view
from tests.oracles import oracle_of
from tests.oracles.annotators import open_official
from tests.test_classifier import rows_of_two_classes

BLANKS = ["", " ", "\n\n", "\u3000\x1c"]


def test_the_embedded_model_tells_prose_from_what_is_around_it():
    prose = (ROOT / "sample_data" / "notes" / "notes-0.txt").read_text()[:1500]
    menu = "\n".join(["Home", "Products", "Log in", "Add to basket", "Privacy policy"] * 4)
    shuffled = " ".join(sorted(prose.split(), key=lambda word: word[::-1]))
    scores = Quality().apply(view([prose, menu, shuffled])).columns["score"].to_pylist()
    assert scores[0] > 0.5 > max(scores[1:])
    assert decide(Quality(min_score=0.5), [prose, menu]) == [None, "score"]


@pytest.fixture(scope="module")
def docs():
    """Texts of both classes and of both together, on several lines, with blanks among them."""
    rows = [row.text.split() for row in rows_of_two_classes(60)]
    mixed = [a[:5] + b[:5] for a, b in zip(rows[:20], rows[30:50], strict=True)]
    texts = ["\n".join(" ".join(words[i : i + 3]) for i in range(0, 12, 3)) for words in rows]
    return [*texts, *map(" ".join, mixed), *BLANKS, "\u2003abc\nabc\x85"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("quality") / "q.bin"
    rows = [
        *rows_of_two_classes(300),
        *(LabelledRow(r.text[:9], "third") for r in rows_of_two_classes(60)),
    ]
    train_classifier(
        rows, path, ClassifierSettings(dim=8, epochs=25, lr=1.0, word_ngrams=2, buckets=999)
    )
    return str(path)


def test_the_score_is_the_probability_of_the_label_whichever_is_best(path, docs):
    found = fasttext.load_model(path).f
    expected = []
    for doc in docs:
        line = doc.strip().replace("\n", " ") + "\n"
        pairs = {label: score for score, label in found.predict(line, -1, 0.0, "strict")}
        expected.append(round(pairs.get("__label__up", 0.0), 4))
    scores = Quality(model=path, label="up").apply(view(docs)).columns["score"].to_pylist()
    assert scores == expected
    assert min(scores[:-5]) < 0.3 < 0.7 < max(scores)


def test_the_label_column_is_the_best_one_and_null_where_nothing_is_known():
    given = {"model": "sample_data/quality.ftz", "label": "prose"}
    outcome = Quality(**given).apply(view(["The garden is open.", "Login | FAQ", ""]))
    assert outcome.columns["label"].to_pylist() == ["prose", "other", None]
    assert outcome.columns["score"].to_pylist()[2] == 0


def test_columns_are_those_declared(path, docs):
    outcome = Quality(model=path, label="up").apply(view(docs))
    found = {name: column.type for name, column in outcome.columns.items()}
    assert found == dict(Quality(model=path, label="up").adds())


def test_without_a_bound_nothing_is_dropped(path, docs):
    assert decide(Quality(model=path, label="up"), docs) == [None] * len(docs)


def test_a_score_equal_to_the_minimum_is_kept(path, docs):
    score = Quality(model=path, label="up").apply(view(docs[:1])).columns["score"][0].as_py()
    assert decide(Quality(model=path, label="up", min_score=score), docs[:1]) == [None]
    low = Quality(model=path, label="up", min_score=score + 0.0001)
    assert decide(low, docs[:1]) == ["score"]
    assert low.apply(view(docs[:1])).values.tolist() == [score]


LISTS = [
    {"min_score": 0.4},
    {"min_score": 0.0},
    {"keep_labels": {"up": 0.4}},
    {"keep_labels": {"up": 0.6, "third": 0.2}},
    {"remove_labels": {"up": 0.3, "down": 0.7}},
    {"keep_labels": {"up": 0.1}, "remove_labels": {"third": 0.3}},
    {"min_score": 0.2, "keep_labels": {"third": 0.05}},
]


@pytest.mark.parametrize("newlines", ["space", "drop"])
@pytest.mark.parametrize("given", LISTS)
def test_decisions_are_those_of_datatrove(path, docs, given, newlines):
    stage = Quality(model=path, label="up", newlines=newlines, **given)
    oracle = oracle_of(stage)
    assert decide(stage, docs) == [oracle(doc)[0] for doc in docs]


def test_dropped_newlines_glue_words_as_they_do_there(path):
    words = rows_of_two_classes(2)[0].text.split()
    docs = ["\n".join(words), "".join(words), " ".join(words)]
    glued = Quality(model=path, label="up", newlines="drop").apply(view(docs)).columns["score"]
    spaced = Quality(model=path, label="up").apply(view(docs)).columns["score"]
    assert glued[0] == glued[1] != glued[2] == spaced[0]


def test_of_white_space_alone_nothing_is_kept_once_something_is_dropped(path):
    assert decide(Quality(model=path, label="up", min_score=0), BLANKS) == ["empty"] * 4
    assert decide(Quality(model=path, label="up"), BLANKS) == [None] * 4


def test_max_bytes_looks_at_the_beginning_only(path, docs):
    long = [doc + " " + docs[-30] * 5 for doc in docs[:10]]
    cut = Quality(model=path, label="up", max_bytes=16).apply(view(long)).columns["score"]
    alone = Quality(model=path, label="up").apply(view([doc[:16] for doc in long]))
    assert cut == alone.columns["score"]


def test_measures_and_bounds_give_the_decision(path, docs):
    stage = Quality(model=path, label="up", min_score=0.3, remove_labels={"up": 0.8}, measures=True)
    outcome = stage.apply(view(docs))
    for rule, code in zip(reversed(stage.rules), (4, 3, 2, 1), strict=True):
        measured, bound = outcome.measures[rule], stage.threshold(rule)
        fails = measured > 0 if np.isnan(bound) else measured < bound
        later = outcome.codes[fails]
        assert (later > 0).all()
        assert (later <= code).all()
    assert {1, 2, 4} <= set(outcome.codes.tolist())


def test_an_unknown_label_is_answered_with_a_near_one(path):
    for given in ({"label": "upp"}, {"label": "up", "keep_labels": {"upp": 0.1}}):
        with pytest.raises(UsageError, match=r"no label 'upp'\. Did you mean 'up'\?"):
            decide(Quality(model=path, **given), ["a"])


@pytest.mark.parametrize("given", [{"keep_labels": {}}, {"remove_labels": {"up": 2}}])
def test_lists_without_sense_are_refused(path, given):
    with pytest.raises(ValidationError):
        Quality(model=path, label="up", **given)


def test_the_model_file_is_part_of_the_fingerprint(path):
    assert Quality(model=path, label="up").files() == (path,)


@pytest.mark.real
def test_real_texts_are_decided_as_there(shared_data, tmp_path):
    table = pq.read_table(shared_data / "quality" / "quality_train.parquet").slice(0, 2000)
    rows = [LabelledRow(r["text"], str(r["label"])) for r in table.to_pylist()]
    path = tmp_path / "q.bin"
    train_classifier(
        rows[::3], path, ClassifierSettings(word_ngrams=2, lr=0.3, epochs=2, buckets=9999)
    )
    docs = [row.text for row in rows]
    for newlines in ("space", "drop"):
        stage = Quality(model=str(path), label="1", min_score=0.5, newlines=newlines)
        oracle = oracle_of(stage)
        assert decide(stage, docs) == [oracle(doc)[0] for doc in docs]
    labels, scores = open_official(str(path)).predict("one line")
    assert labels[0] in {"__label__0", "__label__1"}
    assert 0 <= scores[0] <= 1
