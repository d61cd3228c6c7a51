"""Parameters that differ from language to language."""

from __future__ import annotations

import hashlib
import math
import runpy
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from corpuskit.engine.fingerprint import fingerprint
from corpuskit.errors import UsageError
from corpuskit.stage import Known
from corpuskit.stages.annotators.language import LANGUAGES
from corpuskit.stages.filters.fineweb_quality import FinewebQuality
from corpuskit.stages.filters.gopher_quality import GopherQuality
from corpuskit.stages.filters.gopher_repetition import GopherRepetition
from corpuskit.text import languages as codes
from corpuskit.text.words import _assignments
from tests.contract.strategies import rules, view

ROOT = Path(__file__).parents[2]

GERMAN = """\
dup_line_frac: 0.263
dup_n_grams:
- - 5
  - 0.141
language_score: 0.821
line_punct_thr: 0.0
max_avg_word_length: 15
max_non_alpha_words_ratio: 0.774
min_avg_word_length: 0
new_line_ratio: 0.152
stopwords:
- der
- und
- "f\\xFCr"
top_n_grams:
- - 2
  - 0.169
"""
PROSE = "der Weg und das Haus "


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "de.yml").write_text(GERMAN)
    (tmp_path / "en.yml").write_text("min_doc_words: 3\nstopwords: [the, of]\n")
    return tmp_path


def labelled(texts, labels):
    return view(texts).with_columns({"language.label": pa.array(labels, pa.string())})


def found(stage, texts, labels):
    return rules(stage, stage.apply(labelled(texts, labels)), len(texts))


def quality(folder, **params):
    return GopherQuality(**{"per_language": str(folder), "min_words": 5, **params})


def test_each_document_is_decided_by_the_file_of_its_language(folder):
    stage = quality(folder, words="whitespace")
    texts = [PROSE, "home of the road", PROSE, "home of the road"]
    # English asks for three words, German for the five of the stage, and each for its stop words.
    expected = [None, None, "gopher_enough_stop_words", "gopher_short_doc"]
    assert found(stage, texts, ["de", "en", "en", "de"]) == expected


@pytest.mark.parametrize(
    ("file", "label"),
    [("hun_Latn", "hu"), ("hu", "hun_Latn"), ("cmn_Hani", "zh"), ("gsw_Latn", "als"), ("qu", "qu")],
)
def test_a_file_serves_a_language_by_either_name(tmp_path, file, label):
    (tmp_path / f"{file}.yml").write_text("stopwords: [der]\nmin_doc_words: 3\n")
    stage = quality(tmp_path, words="whitespace")
    assert found(stage, [PROSE], [label]) == ["gopher_enough_stop_words"]
    with pytest.raises(UsageError, match="no file for language 'quy_Latn'"):
        found(stage, [PROSE], ["quy_Latn"])


def test_a_file_of_the_very_name_is_taken_first(folder):
    (folder / "deu_Latn.yml").write_text("stopwords: [nothing]\n")
    stage = quality(folder, words="whitespace")
    reason = "gopher_enough_stop_words"
    assert found(stage, [PROSE] * 2, ["de", "deu_Latn"]) == [None, reason]


@pytest.mark.real
def test_the_table_has_each_label_of_the_model(shared_data):
    fasttext = pytest.importorskip("fasttext")
    model = fasttext.load_model(str(shared_data / "models" / "lid.176.ftz"))
    labels = {label.removeprefix("__label__") for label in model.get_labels()}
    assert {label for label in labels if codes.full_name(label) is None} == set()
    assert len({codes.full_name(label) for label in labels}) == len(labels)


def test_the_table_has_each_language_of_the_reference():
    unknown = {code for code in _assignments() if codes.full_name(code) is None}
    assert {code.partition("_")[0] for code in unknown} <= {"und", "got", "hoc", "lif", "nrm"}


def test_the_table_is_what_its_sources_give():
    pytest.importorskip("babel")
    made = runpy.run_path(str(ROOT / "benchmarks" / "langid" / "codes.py"))
    packed = made["TARGET"].read_text("ascii")
    assert hashlib.sha256(packed.encode()).hexdigest().startswith(codes.DIGEST)
    if made["babel"].__version__ in packed:  # CLDR's next edition has other languages
        assert made["table"]() == packed


def test_what_the_embedded_model_knows_has_one_name_each():
    names = {label: codes.full_name(label) for label in LANGUAGES}
    assert None not in names.values()
    assert len(set(names.values())) == len(names)
    assert names["no"] == "nob_Latn"
    assert names["als"] == "gsw_Latn"


@pytest.mark.parametrize(
    "spellings",
    [
        "hu hun hun_Latn hu_Latn",
        "zh zho chi cmn cmn_Hani zho_Hani zh_Hani",
        "et est ekk ekk_Latn est_Latn",
        "sr srp srp_Cyrl sr_Cyrl",
        "als gsw gsw_Latn",
        "sq sqi als_Latn",
        "fa fas pes pes_Arab",
        "tl tgl fil fil_Latn",
    ],
)
def test_all_spellings_of_a_language_are_one(spellings):
    names = spellings.split()
    assert len({codes.full_name(name) for name in names}) == 1
    for name in names:
        assert set(names) <= set(codes.names_of(name))
        assert codes.names_of(name)[0] == name


@pytest.mark.parametrize("code", ["", "_", "x", "hnu", "hun_", "hun_latn", "HUN", "und"])
def test_what_is_no_language_has_no_other_name(code):
    assert codes.full_name(code) is None
    assert codes.names_of(code) == (code,)


@pytest.mark.parametrize(
    ("code", "labels", "expected"),
    [
        ("hu", ["hun_Latn", "deu_Latn"], ("hun_Latn",)),
        ("hun_Latn", ["hu", "de"], ("hu",)),
        ("zh", ["zho_Hans", "zho_Hant", "yue_Hant"], ("zho_Hans", "zho_Hant")),
        ("zho_Hans", ["zho_Hans", "zho_Hant"], ("zho_Hans",)),
        ("zho_Hans", ["cmn_Hani"], ()),
        ("sr", ["srp_Cyrl", "srp_Latn"], ("srp_Cyrl",)),
        ("srp_Latn", ["sr"], ()),
        ("als", ["als", "sq"], ("als",)),
        ("als", ["als_Latn", "gsw_Latn"], ()),
        ("spam", ["spam", "ham"], ("spam",)),
        ("spa", ["spam"], ()),
    ],
)
def test_a_code_means_labels_of_a_model(code, labels, expected):
    assert codes.labels_of(code, labels) == expected


def test_a_hint_names_the_same_language_first():
    assert codes.hint("srp_Latn", ["sr", "srn"]) == "Did you mean 'sr'?"
    assert "gsw_Latn (Alemannic) or als_Latn" in codes.hint("als", ["als_Latn"])


def test_a_file_named_after_no_language_is_refused_when_labels_are_known(folder):
    stage, known = quality(folder, words="whitespace"), {"language.label": frozenset({"de"})}
    columns = {"language.label": pa.string()}
    stage.check(Known((), columns, known))
    (folder / "hnu_Latn.yml").write_text("min_doc_words: 3\n")
    with pytest.raises(UsageError, match=r"hnu_Latn\.yml is named after no language\. Did"):
        stage.check(Known((), columns, known))
    stage.check(Known((), columns, {"language.label": frozenset({"de", "hnu_Latn"})}))


def test_words_are_split_by_the_rules_of_the_language(folder):
    # In German, unlike in English, the digits and their full stop are one word.
    (folder / "de.yml").write_text("stopwords: [der]\nmin_doc_words: 0\nlanguage: de\n")
    stage = GopherQuality(
        per_language=str(folder), min_mean_word_length=None, min_alpha_words_ratio=1
    )
    texts = ["Am 3. Mai 1.", "Am 3. Mai 1."]
    outcome = stage.apply(labelled(texts, ["de", "en"]))
    assert rules(stage, outcome, 2) == ["gopher_below_alpha_threshold"] * 2
    german, english = outcome.values.tolist()
    assert german != english


def test_thresholds_are_those_of_the_language(folder):
    stage = quality(folder, words="whitespace")
    outcome = stage.apply(labelled(["x", "x", PROSE], ["en", "de", "de"]))
    assert outcome.bounds.tolist()[:2] == [3, 5]
    assert math.isnan(outcome.bounds[2])
    assert outcome.values.tolist()[:2] == [1, 1]


def test_repetition_reads_the_same_file(folder):
    stage = GopherRepetition(per_language=str(folder), words="whitespace")
    outcome = stage.apply(labelled(["a\nb\nc\na", "a b c d e f g"], ["de", "de"]))
    assert rules(stage, outcome, 2) == ["top_2_gram", "top_2_gram"]
    assert outcome.bounds.tolist() == [0.169] * 2


def test_zero_switches_a_rule_off(folder):
    (folder / "de.yml").write_text("dup_line_frac: 0\ndup_para_frac: 0\nmin_avg_word_length: 0\n")
    off = {"max_top_ngram_ratios": {}, "max_dup_ngram_ratios": {}, "words": "whitespace"}
    stage = GopherRepetition(per_language=str(folder), max_dup_line_chars_ratio=None, **off)
    assert found(stage, ["x\nx\nx\nx"], ["de"]) == [None]
    assert found(stage, ["x\nx\nx\nx"], ["en"]) == ["dup_line_frac"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("drop", "unknown_language"), ("keep", None), ("defaults", "gopher_short_doc")],
)
@pytest.mark.parametrize("label", ["fr", None, "", "../de", "d e"])
def test_a_language_without_file(folder, choice, expected, label):
    (folder / "sub").mkdir()
    stage = quality(folder / "sub", unknown_language=choice)
    assert found(stage, ["x"], [label]) == [expected]


def test_a_language_without_file_is_an_error_unless_told_otherwise(folder):
    with pytest.raises(UsageError, match=r"no file for language 'fr'.*unknown_language"):
        found(quality(folder), ["x"], ["fr"])


def test_a_misspelt_key_is_refused(folder):
    (folder / "de.yml").write_text("stop_wrods: [der]\n")
    with pytest.raises(UsageError, match=r"de\.yml: has no key 'stop_wrods'\. Did you mean"):
        found(quality(folder), ["x"], ["de"])


@pytest.mark.parametrize("text", ["- a", "a: [", "\xff", "3"])
def test_a_file_that_is_no_mapping_is_refused(folder, text):
    (folder / "de.yml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"de\.yml:"):
        found(quality(folder), ["x"], ["de"])


def test_a_value_out_of_bounds_names_file_and_parameter(folder):
    (folder / "de.yml").write_text("max_bullet_lines_ratio: 7\n")
    with pytest.raises(UsageError, match=r"de\.yml: max_bullet_lines_ratio: .*7"):
        found(quality(folder), ["x"], ["de"])


def test_an_edited_file_counts_at_once(folder):
    stage = quality(folder, words="whitespace")
    assert found(stage, ["the end of the road"], ["en"]) == [None]
    (folder / "en.yml").write_text("min_doc_words: 30\n")
    assert found(stage, ["the end of the road"], ["en"]) == ["gopher_short_doc"]


def test_a_pattern_names_the_files(folder):
    pattern = str(folder / "{language}.yml")
    by_folder, by_pattern = quality(folder), quality(folder, per_language=pattern)
    assert by_pattern.files() == by_folder.files()
    assert by_folder.files() == (str(folder / "de.yml"), str(folder / "en.yml"))
    text = ["the end of the road"]
    assert found(by_pattern, text, ["en"]) == found(by_folder, text, ["en"]) == [None]


def test_the_column_is_needed_and_may_have_another_name(folder):
    assert GopherQuality().needs() == GopherQuality().files() == ()
    assert quality(folder).needs() == ("language.label",)
    stage = quality(folder, language_column="lang", words="whitespace")
    given = view(["the end of the road"]).with_columns(
        {"lang": pa.array(["en"]).dictionary_encode()}
    )
    assert stage.needs() == ("lang",)
    assert rules(stage, stage.apply(given), 1) == [None]


def test_a_batch_without_documents(folder):
    outcome = quality(folder).apply(labelled([], []))
    assert outcome.codes.tolist() == []


@pytest.mark.parametrize("stage", [GopherQuality, GopherRepetition, FinewebQuality])
def test_there_is_nothing_to_tune_where_bounds_depend_on_the_language(folder, stage):
    with pytest.raises(ValidationError, match="cannot be tuned"):
        stage(per_language=str(folder), measures=True)


@pytest.mark.parametrize("path", ["absent", "sub", "{language}.json"])
def test_a_folder_without_any_file_is_refused_before_anything_runs(folder, path):
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"has no file for any language.*Check the path"):
        quality(folder, per_language=str(folder / path)).files()


@pytest.mark.parametrize("text", ["stop_wrods: [der]", "max_bullet_lines_ratio: 7", "a: ["])
def test_every_file_is_checked_before_anything_runs(folder, text):
    (folder / "fr.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"fr\.yaml:"):
        quality(folder).files()


def test_a_language_that_is_not_split_may_have_a_file(folder):
    (folder / "zh.yml").write_text("min_doc_words: 3\n")
    assert str(folder / "zh.yml") in quality(folder).files()


def test_both_endings_of_yaml_do(folder):
    (folder / "en.yml").rename(folder / "en.yaml")
    stage = quality(folder, words="whitespace")
    assert stage.files() == (str(folder / "de.yml"), str(folder / "en.yaml"))
    assert found(stage, ["the end of the road"], ["en"]) == [None]


def test_two_files_for_one_language_are_refused(folder):
    (folder / "en.yaml").write_text("min_doc_words: 3\n")
    with pytest.raises(UsageError, match=r"are for one language\. Remove one"):
        quality(folder).files()


@pytest.mark.parametrize("pattern", ["{language}-{language}.yml", "{language}/p.yml"])
def test_a_pattern_has_the_language_once_in_the_name(folder, pattern):
    with pytest.raises(ValidationError, match="in the name of the file"):
        quality(folder, per_language=str(folder / pattern))


@pytest.mark.parametrize("stage", [GopherQuality, GopherRepetition, FinewebQuality])
def test_versions_of_what_splits_words_decide(stage):
    assert stage().libraries() == ("datatrove", "spacy")
    assert stage(words="unicode").libraries() == ("regex",)
    assert stage(words="whitespace").libraries() == ()


def test_a_file_under_another_name_is_another_stage(folder):
    before = fingerprint({}, [("gopher_quality", "gopher_quality", quality(folder))])
    one = sorted(folder.glob("*.yml"))[0]
    one.rename(folder / "fra.yml")
    assert fingerprint({}, [("gopher_quality", "gopher_quality", quality(folder))]) != before
