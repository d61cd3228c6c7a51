"""A language's file of parameters, derived from texts."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.cli.languages import command
from corpuskit.errors import UsageError
from corpuskit.stages.filters import _derive
from corpuskit.stages.filters._derive import Spread, derive, measure
from corpuskit.stages.filters.fineweb_quality import FinewebQuality
from corpuskit.stages.filters.gopher_quality import GopherQuality
from corpuskit.stages.filters.gopher_repetition import GopherRepetition
from tests.contract.strategies import view

ENGLISH = "the of and to in that road house river walked slowly towards evening light 1984".split()
HUNGARIAN = "a az és hogy nem folyóparton sétáltunk hazafelé esténként megérkezett vonattal".split()


def corpus(words, seed, num=120):
    """Return texts that repeat themselves more or less; words come by rank."""
    chance, texts = random.Random(seed), []
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(num):
        lines = [
            " ".join(chance.choices(words, weights, k=chance.randrange(4, 30)))
            + chance.choice([".", ".", ".", "", " !"])
            for _ in range(chance.randrange(2, 12))
        ]
        lines += chance.choices(lines, k=chance.randrange(0, 3))
        texts.append("\n".join(lines))
    return texts


def parquet(path, texts):
    pq.write_table(pa.table({"text": texts}), path)
    return path


def measures(texts):
    how = {"words": "whitespace", "measures": True}
    return {
        rule: values
        for stage in (GopherRepetition(**how), FinewebQuality(**how), GopherQuality(**how))
        for rule, values in stage.apply(view(texts)).measures.items()
    }


@given(st.lists(st.floats(0, 26) | st.just(float("nan")), min_size=1, max_size=60), st.floats(0, 1))
def test_a_spread_is_that_of_its_values(values, share):
    spread, backwards = Spread(), Spread()
    spread.add(values)
    for part in (values[::-1][:3], values[::-1][3:]):
        backwards.add(part)
    known = np.array([value for value in values if value == value])
    assert spread.num == len(known)
    if not len(known):
        return
    assert (spread.mean, spread.deviation) == (backwards.mean, backwards.deviation)
    assert spread.mean == pytest.approx(known.mean(), abs=1e-4)
    assert spread.deviation == pytest.approx(known.std(), abs=1e-4)
    expected = np.quantile(known, share, method="inverted_cdf")
    assert spread.quantile(share) == pytest.approx(expected, abs=1e-4)
    assert spread.share_below(share * 26) == pytest.approx((known < share * 26).mean(), abs=1)


def test_the_share_below_a_bound_leaves_it_out():
    spread = Spread()
    spread.add([0.1, 0.2, 0.2, 0.8])
    assert [spread.share_below(bound) for bound in (0.1, 0.2, 0.8, 1)] == [0, 0.25, 0.75, 1]


def test_bounds_are_what_the_published_ways_give(tmp_path):
    """Each key again, in plain NumPy, from the measures themselves."""
    kinds = {
        "web": corpus(HUNGARIAN, 1), "clean": corpus(HUNGARIAN, 2),
        "english_web": corpus(ENGLISH, 3), "english_clean": corpus(ENGLISH, 4),
    }  # fmt: skip
    measured = {
        kind: measure([parquet(tmp_path / f"{kind}.parquet", texts)], "hu", "whitespace",
                      stop_word_share=0.05)
        for kind, texts in kinds.items()
    }  # fmt: skip
    found = derive(**measured)
    raw = {kind: measures(texts) for kind, texts in kinds.items()}

    def by_deviation(rule, bound):
        there, here = raw["english_web"][rule], raw["web"][rule]
        steps = (bound - there.mean()) / there.std()
        return min(max(here.mean() + steps * here.std(), 0.001), 1)

    def by_share(rule, bound):
        share = (raw["english_clean"][rule] < bound).mean()
        return np.quantile(raw["clean"][rule], share, method="inverted_cdf")

    near = {"abs": 0.002}
    assert found["dup_line_frac"] == pytest.approx(by_deviation("dup_line_frac", 0.3), **near)
    for (n, value), bound in zip(found["top_n_grams"], (0.2, 0.18, 0.16), strict=True):
        assert value == pytest.approx(by_deviation(f"top_{n}_gram", bound), **near)
    for n, value in found["dup_n_grams"]:
        bound = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}[n]
        assert value == pytest.approx(by_deviation(f"duplicated_{n}_n_grams", bound), **near)
    alpha = by_share("gopher_below_alpha_threshold", 0.8)
    assert found["max_non_alpha_words_ratio"] == pytest.approx(alpha, **near)
    assert found["max_avg_word_length"] == np.ceil(by_share("gopher_above_avg_threshold", 10))
    assert found["min_avg_word_length"] == np.floor(by_share("gopher_below_avg_threshold", 3))
    punctuated = np.quantile(raw["clean"]["line_punct_ratio"], 0.1, method="inverted_cdf")
    assert found["line_punct_thr"] == pytest.approx(punctuated, **near)
    lines = np.quantile(raw["clean"]["list_ratio"], 0.9, method="inverted_cdf")
    assert found["new_line_ratio"] == pytest.approx(lines, **near)
    words = Counter(" ".join(kinds["clean"]).lower().split())
    frequent = {word for word, count in words.items() if count >= 0.05 * words.total()}
    assert set(found["stopwords"]) == {word for word in frequent if word[0].isalpha()}
    assert [words[word] for word in found["stopwords"]] == sorted(
        (words[word] for word in found["stopwords"]), reverse=True
    )


def test_rare_words_are_forgotten_and_frequent_ones_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(_derive, "_MOST_WORDS", 50)
    monkeypatch.setattr(_derive, "_DOCUMENTS", 4)
    texts = [f"{text} once{i} twice{i}" for i, text in enumerate(corpus(HUNGARIAN, 5))]
    path = parquet(tmp_path / "a.parquet", texts)
    how = {"words": "whitespace", "stop_word_share": 0.05}
    found = measure([path], "hu", **how)
    monkeypatch.undo()
    assert len(found.words) <= 50
    assert found.stop_words() == measure([path], "hu", **how).stop_words() != []


def run(*arguments):
    return CliRunner().invoke(command, ["derive", *map(str, arguments)])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hu").mkdir()
    texts = corpus(HUNGARIAN, 6, 60)
    parquet(tmp_path / "hu" / "b.parquet", texts[:20])
    lines = [json.dumps({"text": text}) + "\n" for text in texts[20:]]
    (tmp_path / "hu" / "a.jsonl").write_text("".join(lines))
    parquet(tmp_path / "all.parquet", texts)
    parquet(tmp_path / "en.parquet", corpus(ENGLISH, 7, 60))
    return ["--english-web", "en.parquet", "--words", "whitespace", "--stop-word-share", "0.05"]


PUBLISHED = """dup_line_frac dup_n_grams line_punct_thr max_avg_word_length new_line_ratio stopwords
    max_non_alpha_words_ratio min_avg_word_length top_n_grams""".split()


def test_the_command_writes_a_file_as_the_published_ones(files):
    done = run("hu", "--web", "hu", *files, "--output", "made", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    with open("made/hun_Latn.yml") as file:
        content = file.read()
    given = yaml.safe_load(content)
    assert given == {key: value for key, value in shown.items() if key != "path"}
    assert "60 documents" in content.splitlines()[0]
    assert sorted(given) == sorted(PUBLISHED)
    labels = {"language.label": pa.array(["hu"])}
    stages = (GopherRepetition, FinewebQuality, GopherQuality)
    for stage in (one(per_language="made", words="whitespace") for one in stages):
        assert len(stage.files()) == 1
        stage.apply(view([corpus(HUNGARIAN, 8, 1)[0]]).with_columns(labels))


def test_the_same_texts_give_the_same_file(files):
    run("hun", "--web", "hu", *files, "--output", "one")
    run("hun_Latn", "--web", "all.parquet", *files, "--output", "other")
    with open("one/hun_Latn.yml", "rb") as one, open("other/hun_Latn.yml", "rb") as other:
        assert one.read() == other.read() != b""


def test_a_least_score_is_derived_for_a_model(files):
    done = run("hu", "--web", "hu", *files, "--output", "made", "--model", "embedded", "--json")
    assert 0.3 <= json.loads(done.output)["language_score"] <= 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["hnu", "--web", "hu"], "'hnu' is not a language. Did you mean"),
        (["hu", "--web", "nowhere"], "nowhere: no such file or folder"),
        (["hu", "--web", "hu", "--text-column", "content"], "content"),
        (["hu", "--web", "hu", "--stop-word-share", "0.9"], "Set a smaller --stop-word-share"),
        (["aai", "--web", "hu", "--model", "embedded"], "the embedded model has no 'aai_Latn'"),
    ],
)
def test_a_wrong_request_is_explained(files, change, message):
    done = run(*files, "--output", "made", *change)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_a_file_is_never_replaced(files):
    for expected in (None, UsageError):
        done = run("hu", "--web", "hu", *files, "--output", "made")
        assert type(done.exception) is (expected or type(None))


def test_texts_that_are_all_alike_tell_nothing(files):
    parquet("en.parquet", ["one text alone"] * 9)
    done = run("hu", "--web", "hu", *files, "--output", "made")
    assert "all English texts have the same dup_line_frac" in str(done.exception)
