"""The language stage and the model that comes with it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import fasttext
import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import utf8
from corpuskit.kernels.fasttext import cut_windows
from corpuskit.stage import Known
from corpuskit.stages.annotators._fasttext import ClassifierSettings, open_model, train
from corpuskit.stages.annotators._languagemodel import LanguageModel, near_files
from corpuskit.stages.annotators.language import EMBEDDED_PATH, LANGUAGES, Language
from tests.contract.strategies import decide, view
from tests.oracles import oracle_of
from tests.oracles.annotators import cut_windows as oracle_windows
from tests.oracles.annotators import open_official

# Written for this test: everyday, news-like and technical sentences, by language.
SENTENCES = json.loads(Path(__file__).with_name("sentences.json").read_text("utf-8"))
ENGLISH = SENTENCES["en"][0]
GERMAN = SENTENCES["de"][0]
MIXED = " ".join(ENGLISH.split()[:8] + GERMAN.split()[:7])
"""German, but the model is not sure: English comes second."""


def test_the_embedded_model_names_the_language_of_plain_sentences():
    pairs = [(code, text) for code, found in SENTENCES.items() for text in found]
    outcome = Language().apply(view([text for _, text in pairs]))
    labels = outcome.columns["label"].to_pylist()
    wrong = [
        (code, label, text)
        for (code, text), label in zip(pairs, labels, strict=True)
        if code != label
    ]
    assert wrong == []


def test_languages_are_known_in_their_other_script():
    """Written for this test, in Latin letters; most text in these languages is in Cyrillic ones."""
    texts = {
        "tt": ["Min bügen irtän kitapxanägä bardım häm yaña kitap aldım.", "Qış köne salqın bula."],  # noqa: RUF001
        "sr": ["Devojčica je htela da posle večere peva pesmu svom dedi.", "Gde ste bili uveče?"],
    }
    for label, some in texts.items():
        assert Language().apply(view(some)).columns["label"].to_pylist() == [label] * len(some)


def test_plain_english_is_kept_by_default():
    assert decide(Language(keep=("en",)), SENTENCES["en"]) == [None] * 3


def test_the_listed_languages_are_those_of_the_model():
    assert frozenset(open_model(EMBEDDED_PATH).labels) == LANGUAGES


def test_the_embedded_model_is_small():
    files = (EMBEDDED_PATH, *near_files(EMBEDDED_PATH))
    assert sum(file.stat().st_size for file in files) < 4_000_000


# ---------------------------------------------------------------- windows of a text


def prose(code, size_bytes):
    """Return sentences of a language, of about that size."""
    text = " ".join(SENTENCES[code])
    return " ".join([text] * (size_bytes // len(text.encode()) + 1))[:size_bytes]


CODE = "for (i = 0; i < 10; ++i) { x[i] = y[i] * 2 + 0x3f; }\n" * 20


def test_a_text_of_two_languages_scores_no_more_than_the_share_of_one():
    english, german = prose("en", 4000), prose("de", 4000)
    docs = [
        f"{english}\n{german}", f"{german}\n{english}", f"{english[:2800]}\n{german[:1200]}",
        english, f"{german}\n{CODE}", "\n".join([english[:600], german[:600]] * 5),
    ]  # fmt: skip
    scores = Language(min_score=0).apply(view(docs)).columns["score"].to_pylist()
    assert scores[0] == pytest.approx(0.5, abs=0.05)
    assert scores[1] == pytest.approx(0.5, abs=0.05)
    assert scores[2] == pytest.approx(0.7, abs=0.06)
    assert min(scores[3:5]) > 0.9  # code is no other language
    assert scores[5] < 0.65
    assert decide(Language(), docs[:2]) == ["score"] * 2


def test_two_sentences_of_two_languages_are_mixed_too():
    docs = [
        f"{SENTENCES['en'][0]} {SENTENCES['de'][0]}",
        f"{SENTENCES['fr'][0]} {SENTENCES['en'][1]}",
    ]
    assert max(Language(min_score=0).apply(view(docs)).columns["score"].to_pylist()) < 0.8


def test_neighbours_are_no_other_language():
    text = f"{prose('en', 1400)} {prose('de', 600)}"
    assert Language().apply(view([text])).columns["score"][0].as_py() < 0.8
    model = open_model(EMBEDDED_PATH)
    model._by_windows = LanguageModel(EMBEDDED_PATH, model._model, model.labels)
    model._by_windows._families[:] = 0
    try:
        assert Language().apply(view([text])).columns["score"][0].as_py() > 0.9
    finally:
        model._by_windows = None


def test_scores_are_those_of_the_library_window_by_window():
    rng = random.Random(1)
    words = [word for text in SENTENCES.values() for one in text for word in one.split()]
    docs = [
        " ".join(rng.choices(words, k=k)) for k in (1, 2, 5, 12, 30, 80, 300) for _ in range(12)
    ]
    docs += [" ".join(some) for some in SENTENCES.values()]
    docs += [
        prose("en", 900) + prose("de", 700),
        prose("fr", 300) + "x" * 900,
        CODE,
        "a </s> b " * 40,
    ]
    docs += [
        "\x00".join(words[:60]),
        "__label__en und __label__x",
        "\xa0".join(words[:90]),
        "a" * 600,
    ]
    official = open_official(str(EMBEDDED_PATH))
    for _ in range(2):  # the second time words are known
        found = open_model(EMBEDDED_PATH).predict(utf8(pa.array(docs, pa.large_string())), 3)
        for doc, ranks, scores in zip(docs, found.ranks, found.scores, strict=True):
            labels, expected = official.predict(doc.replace("\n", " "), 3)
            assert scores[: len(expected)] == pytest.approx(expected, abs=2e-4), doc
            named = [f"__label__{open_model(EMBEDDED_PATH).labels[rank]}" for rank in ranks]
            if len(expected) and expected[0] - expected[1] > 1e-3:
                assert named[0] == labels[0]


def test_windows_of_a_long_text_are_spread_over_it():
    for text in (prose("en", 100_000), "\u65e5\u672c" * 20_000, "x" * 40_000, "a " * 8192 + "b"):
        data = np.frombuffer(text.encode(), np.uint8)
        begins, ends, firsts = cut_windows(np.array([0]), np.array([len(data)]), data)
        assert firsts.tolist() == [0, len(begins)]
        assert 2 <= len(begins) <= 64
        assert (begins[1:] >= ends[:-1]).all()
        assert (begins <= ends).all()
        assert begins[0] == 0
        assert ends[-1] > 0.98 * len(data)
        assert np.diff(begins).max() < 1.5 * max(len(data) / 64, 512)
        for begin, end in zip(begins, ends, strict=True):
            text.encode()[begin:end].decode()  # whole characters


@hypothesis.settings(max_examples=200)
@hypothesis.given(st.text(st.sampled_from("a\u00e9\u65e5 \n"), max_size=1500))
def test_windows_of_a_text_hold_it_all(text):
    data = np.frombuffer(text.encode() or b" ", np.uint8)
    size = len(text.encode())
    begins, ends, _ = cut_windows(np.array([0]), np.array([size]), data)
    assert begins.tolist() == [0, *ends[:-1].tolist()]
    assert ends[-1] == size
    expected = oracle_windows(text.encode())
    assert [text.encode()[b:e] for b, e in zip(begins, ends, strict=True)] == expected


def test_another_language_goes_before_a_low_score():
    assert decide(Language(keep=("en",), min_score=1.0), [MIXED]) == ["language"]
    assert decide(Language(keep=("de",), min_score=1.0), [MIXED]) == ["score"]


def test_a_score_equal_to_the_threshold_is_kept():
    score = Language().apply(view([MIXED])).columns["score"][0].as_py()
    assert 0 < score < 1
    assert decide(Language(min_score=score), [MIXED]) == [None]
    assert decide(Language(min_score=score + 0.0001), [MIXED]) == ["score"]


def test_the_ledger_gets_the_score_and_its_bound():
    stage = Language(keep=("en", "de"), min_score=1.0)
    outcome = stage.apply(view([MIXED, SENTENCES["fr"][0], ""]))
    score = outcome.columns["score"][0].as_py()
    assert outcome.codes.tolist() == [2, 1, 1]
    assert outcome.values[0] == score < stage.threshold("score")
    assert np.isnan(outcome.values[1:]).all()


def test_a_text_without_a_feature_is_undetermined():
    outcome = Language().apply(view(["", "\n \t"]))
    assert outcome.columns["label"].to_pylist() == ["und", "und"]
    assert outcome.columns["score"].to_pylist() == [0.0, 0.0]
    assert decide(Language(), ["", "\n \t"]) == ["score", "score"]


def test_a_word_that_several_languages_have_is_undetermined():
    """Before scores were calibrated, `hello` was Finnish with 0.99."""
    docs = ["hello", "no", ENGLISH, GERMAN]
    outcome = Language(min_score=0).apply(view(docs))
    assert outcome.columns["label"].to_pylist() == ["und", "und", "en", "de"]
    assert (
        max(outcome.columns["score"].to_pylist()[:2])
        < 0.5
        < 0.9
        < min(outcome.columns["score"].to_pylist()[2:])
    )
    assert decide(Language(min_score=0), docs) == [None] * 4
    assert Language(min_score=0).values()["label"] == LANGUAGES | {"und"}


def test_what_stays_does_not_depend_on_what_is_called_undetermined():
    docs = ["hello", MIXED, ENGLISH, ""]
    for given in ({"keep": ("en", "de")}, {"min_score": 0.3}, {"keep": ("de",), "min_score": 0}):
        codes = {bound: decide(Language(und_below=bound, **given), docs) for bound in (None, 0, 1)}
        assert codes[None] == codes[0] == codes[1]
    labels = Language(und_below=1.0, min_score=0).apply(view([MIXED])).columns["label"]
    assert labels.to_pylist() == ["und"]
    assert Language(keep=("de",), und_below=0.7).values()["label"] == {"de", "und"}
    assert Language(keep=("de",)).values()["label"] == {"de"}


def test_scores_of_other_models_are_theirs_and_none_is_undetermined(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("__label__en a b c d\n__label__de e f g h\n" * 50)
    model = train(lines, ClassifierSettings(dim=4, buckets=0, epochs=1))
    model.save(tmp_path / "own.bin")
    outcome = Language(model=str(tmp_path / "own.bin"), min_score=0).apply(view(["a e", "z"]))
    assert "und" not in outcome.columns["label"].to_pylist()


def test_scores_have_four_decimals():
    scores = Language().apply(view([ENGLISH, "word", ""])).columns["score"].to_pylist()
    assert scores == [round(score, 4) for score in scores]


def test_nothing_is_dropped_without_a_list_and_a_bound():
    docs = [ENGLISH, GERMAN, "", "\n\n", "0x1f"]
    assert decide(Language(min_score=0), docs) == [None] * 5


def test_line_breaks_are_spaces():
    one, other = Language().apply(view([ENGLISH, ENGLISH.replace(" ", "\n")])).columns["score"]
    assert one == other


def test_a_language_may_have_a_minimum_of_its_own():
    score = Language().apply(view([MIXED])).columns["score"][0].as_py()
    assert decide(Language(min_score=1.0, min_scores={"de": score}), [MIXED]) == [None]
    assert decide(Language(min_score=0, min_scores={"de": score + 0.0001}), [MIXED]) == ["score"]
    assert decide(Language(min_score=0, min_scores={"fr": 1.0}), [MIXED]) == [None]


def test_minima_may_stand_in_a_file(tmp_path):
    path = tmp_path / "minima.json"
    path.write_text('{"de": 1.0}')
    stage = Language(min_score=0, min_scores=str(path))
    assert decide(stage, [MIXED, ENGLISH]) == ["score", None]
    assert str(path) in stage.files()


def test_edited_minima_count_at_once(tmp_path):
    path = tmp_path / "minima.json"
    stage, found = Language(min_score=0, min_scores=str(path)), []
    for content in ('\ufeff{"de": 1.0}', "{}"):
        path.write_text(content)
        found += decide(stage, [MIXED])
    assert found == ["score", None]


@pytest.mark.parametrize("content", ["", "[1]", '{"de": 1.5}', '{"de": true}', '{"de": "0.5"}'])
def test_a_broken_file_of_minima_is_named(tmp_path, content):
    path = tmp_path / "minima.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"minima\.json: "):
        decide(Language(min_scores=str(path)), [ENGLISH])


def test_a_missing_file_of_minima_is_a_wrong_request(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        decide(Language(min_scores=str(tmp_path / "absent.json")), [ENGLISH])


def test_the_ledger_has_no_bound_where_minima_differ():
    assert np.isnan(Language(min_scores={"de": 0.9}).threshold("score"))


def test_datatroves_way_keeps_any_listed_language_above_its_minimum():
    found = Language(top_k=2).apply(view([MIXED])).columns
    (first, second), (_, low) = found["labels"][0].as_py(), found["scores"][0].as_py()
    assert first == "de"
    assert 0 < low < 0.5
    given = {"keep": (second,), "min_score": round(low - 0.0001, 4)}
    assert decide(Language(**given), [MIXED]) == ["language"]
    assert decide(Language(**given, accept="datatrove"), [MIXED]) == [None]
    assert decide(Language(keep=(second,), min_score=low, accept="datatrove"), [MIXED]) == [
        "language"
    ]


def test_datatroves_way_wants_a_score_above_the_minimum():
    score = Language().apply(view([MIXED])).columns["score"][0].as_py()
    given = {"min_score": score, "accept": "datatrove"}
    assert decide(Language(**given), [MIXED]) == ["score"]
    assert decide(Language(**given, keep=("de",)), [MIXED]) == ["score"]
    assert decide(Language(**{**given, "min_score": score - 0.0001}), [MIXED]) == [None]


@pytest.mark.parametrize("keep", [None, ("en",), ("de", "fr"), ("de", "nds", "lb")])
@pytest.mark.parametrize("min_score", [0.0, 0.05, 0.65])
def test_datatroves_way_equals_datatrove(keep, min_score):
    docs = [*SENTENCES["nl"], *SENTENCES["en"], MIXED, MIXED[60:130], "ok", "Haus", "la casa", "la"]
    stage = Language(keep=keep, min_score=min_score, accept="datatrove")
    oracle = oracle_of(stage)
    assert decide(stage, docs) == [oracle(doc)[0] for doc in docs]


def test_measures_and_bounds_give_the_decision():
    docs = [MIXED, ENGLISH, "", SENTENCES["fr"][0]]
    stage = Language(keep=("en", "de"), min_score=0.9, measures=True)
    outcome = stage.apply(view(docs))
    strange = outcome.measures["language"] > 0
    low = outcome.measures["score"] < stage.threshold("score")
    assert outcome.codes.tolist() == np.where(strange, 1, np.where(low, 2, 0)).tolist()


@pytest.mark.parametrize("given", [{"accept": "datatrove"}, {"min_scores": {"de": 0.8}}])
def test_there_is_nothing_to_tune_where_no_single_bound_decides(given):
    with pytest.raises(ValidationError, match="measures: bounds can be tuned where one minimum"):
        Language(**given, measures=True)


def test_max_bytes_looks_at_the_beginning_only():
    outcome = Language(max_bytes=len(ENGLISH)).apply(view([ENGLISH + " " + GERMAN * 9]))
    assert outcome.columns["label"].to_pylist() == ["en"]
    assert Language().apply(view([ENGLISH + " " + GERMAN * 9])).columns["label"].to_pylist() == [
        "de"
    ]


def test_more_labels_are_stored_when_asked_for():
    stage = Language(top_k=3)
    outcome = stage.apply(view([ENGLISH, GERMAN]))
    assert {name: column.type for name, column in outcome.columns.items()} == dict(stage.adds())
    assert [labels[0] for labels in outcome.columns["labels"].to_pylist()] == ["en", "de"]
    scores = outcome.columns["scores"].to_pylist()
    assert [len(row) for row in scores] == [3, 3]
    assert all(row == sorted(row, reverse=True) for row in scores)


def test_columns_are_those_declared():
    outcome = Language().apply(view([ENGLISH]))
    assert {name: column.type for name, column in outcome.columns.items()} == dict(
        Language().adds()
    )


@pytest.mark.parametrize("wrong", [{"keep": ("eng_Cyrl",)}, {"min_scores": {"eng_Cyrl": 0.9}}])
def test_a_wrong_code_is_found_when_the_plan_is_made(wrong):
    with pytest.raises(UsageError, match=r"the embedded model has no .* Did you mean 'en'\?"):
        Language(**wrong).check(Known())


def test_a_code_that_another_model_lacks_is_found_when_it_runs(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("__label__xx a b c\n__label__yy d e f\n" * 50)
    model = fasttext.train_supervised(str(lines), dim=10, thread=10, verbose=0)
    model.save_model(str(tmp_path / "two.bin"))
    stage = Language(model=str(tmp_path / "two.bin"), keep=("en",))
    with pytest.raises(UsageError, match=r"keep: the model .*two\.bin has no 'en'"):
        stage.apply(view([ENGLISH]))


def test_a_model_with_fewer_labels_than_asked_gives_shorter_lists(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("__label__xx a b c\n__label__yy d e f\n" * 50)
    model = fasttext.train_supervised(str(lines), dim=10, thread=10, verbose=0)
    model.save_model(str(tmp_path / "two.bin"))
    outcome = Language(model=str(tmp_path / "two.bin"), top_k=5).apply(view(["a b", "f"]))
    assert outcome.columns["labels"].to_pylist() == [["xx", "yy"], ["yy", "xx"]]


def test_the_model_files_are_part_of_the_fingerprint():
    near = map(str, near_files(EMBEDDED_PATH))
    assert Language().files() == (str(EMBEDDED_PATH), *near)
    assert Language(model="models/lid.176.bin").files() == ("models/lid.176.bin",)


@pytest.mark.real
def test_lid_176_decides_as_fasttext_itself_does(shared_data):
    path = shared_data / "models" / "lid.176.ftz"
    docs = pq.read_table(shared_data / "bench_multi" / "bench_multi-00000-of-00002.parquet")
    docs = docs["text"].slice(0, 150).to_pylist()
    stage = Language(model=str(path), keep=("en", "de", "zh"))
    oracle = oracle_of(stage)
    assert decide(stage, docs) == [oracle(doc)[0] for doc in docs]
    for keep in (None, ("en", "de", "zh")):
        for least in (0.05, 0.65):
            as_there = Language(model=str(path), keep=keep, min_score=least, accept="datatrove")
            reference = oracle_of(as_there)
            assert decide(as_there, docs) == [reference(doc)[0] for doc in docs]
    outcome = stage.apply(view(docs))
    labels, scores = fasttext.load_model(str(path)).predict(
        [doc.replace("\n", " ") for doc in docs]
    )
    assert outcome.columns["label"].to_pylist() == [
        row[0].removeprefix("__label__") for row in labels
    ]
    assert outcome.columns["score"].to_pylist() == [round(float(row[0]), 4) for row in scores]


@pytest.fixture(scope="module")
def glotlid(tmp_path_factory):
    """A model with labels as GlotLID and OpenLID have them."""
    lines = tmp_path_factory.mktemp("model") / "lines.txt"
    pairs = {"hun_Latn": "hu", "deu_Latn": "de", "eng_Latn": "en", "zho_Hans": "zh"}
    lines.write_text(
        "".join(f"__label__{label} {text}\n" for label, code in pairs.items()
                for text in SENTENCES.get(code, SENTENCES["pl"])) * 20
    )  # fmt: skip
    settings = ClassifierSettings(dim=8, epochs=20, lr=0.2, buckets=100, threads=1)
    train(lines, settings).save(lines.with_name("glot.bin"))
    return str(lines.with_name("glot.bin"))


@pytest.mark.parametrize("code", ["en", "eng", "eng_Latn"])
def test_a_model_with_scripts_in_its_labels_understands_all_codes(glotlid, code):
    stage = Language(model=glotlid, keep=(code,), min_score=0, min_scores={code: 0.01})
    stage.check(Known())
    assert stage.values() == {"label": frozenset({"eng_Latn"})}
    outcome = stage.apply(view([ENGLISH, GERMAN]))
    assert outcome.codes.tolist() == [0, 1]
    assert outcome.columns["label"].to_pylist() == ["eng_Latn", "deu_Latn"]
    assert decide(Language(keep=(code,)), [ENGLISH, GERMAN]) == [None, "language"]


@pytest.mark.parametrize("codes", [("hu", "hun"), ("hun", "hu")])
def test_a_label_has_one_minimum(codes):
    with pytest.raises(UsageError, match="and another code are both the label 'hu'"):
        Language(min_scores=dict.fromkeys(codes, 0.5)).check(Known())


def test_a_label_says_more_than_a_code_that_means_several(glotlid):
    stage = Language(model=glotlid, min_scores={"zh": 0.5, "zho_Hans": 0.7})
    given = stage._bounds(["zho_Hans", "zho_Hant"])
    assert given == {"zho_Hans": 0.7, "zho_Hant": 0.5}


def test_datatrove_decides_by_the_same_labels(glotlid):
    given = {"model": glotlid, "min_score": 0.2, "accept": "datatrove"}
    docs = [ENGLISH, GERMAN, MIXED]
    assert decide(Language(keep=("en", "deu"), **given), docs) == decide(
        Language(keep=("eng_Latn", "deu_Latn"), **given), docs
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"keep": ("hnu",)},
            r"keep: the model .*\.bin has no 'hnu'\. Did you mean 'hu'\?",
        ),
        ({"keep": ("zho_Hant",)}, r"has no 'zho_Hant'\. Did you mean 'zho_Hans'\?"),
        ({"keep": ("als",)}, r"Write gsw_Latn \(Alemannic\) or als_Latn"),
        ({"min_scores": {"hu": 0.5, "hun": 0.6}}, "'hun' and another code are both .*'hun_Latn'"),
    ],
)
def test_a_code_that_means_no_label_is_refused(glotlid, given, message):
    with pytest.raises(UsageError, match=message):
        Language(model=glotlid, **given).check(Known())


@pytest.mark.parametrize("path", ["", "{language}.yml"])
def test_minima_may_be_those_of_finewebs_files(tmp_path, glotlid, path):
    (tmp_path / "deu_Latn.yml").write_text("language_score: 1.0\nstopwords: [der]\n")
    (tmp_path / "eng.yml").write_text("stopwords: [the]\n")
    for model in ("embedded", glotlid):
        stage = Language(model=model, min_score=0, min_scores=str(tmp_path / path))
        stage.check(Known())
        assert decide(stage, [MIXED, ENGLISH]) == ["score", None]
        assert str(tmp_path / "deu_Latn.yml") in stage.files()
    (tmp_path / "deu_Latn.yml").write_text("language_score: 2\n")
    with pytest.raises(DataError, match=r"deu_Latn\.yml: must map"):
        decide(stage, [MIXED])
    with pytest.raises(UsageError, match=r"has no file for what is kept\. It has 'deu_Latn'"):
        Language(keep=("fr",), min_scores=str(tmp_path / path)).check(Known())
