from __future__ import annotations

import functools
import itertools
import random
import re
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit import closure
from corpuskit.cache import keep, read_kept
from corpuskit.errors import UsageError
from corpuskit.formats import derived as kept
from corpuskit.formats.batch import utf8
from corpuskit.kernels.utf8 import TERMINAL
from corpuskit.text import spacy as rules
from corpuskit.text.words import (
    Splitter,
    _assignments,
    _tokenizer,
    check_language,
    libraries,
    splitter,
)
from tests.contract.strategies import WORLD, texts, view


def words_of(split, documents):
    text = view(documents).text
    return listed(split(text.offsets, text.data))


def listed(words):
    data, starts = words.lexicon.data.tobytes(), words.lexicon.starts
    known = [data[a:b].decode() for a, b in itertools.pairwise(starts.tolist())]
    return [
        [known[token] for token in words.tokens[a:b].tolist()]
        for a, b in itertools.pairwise(words.offsets.tolist())
    ]


@functools.cache
def reference(language):
    """Datatrove's own tokenizer, whose memory always breaks on the text that nearly always does."""
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    split = load_word_tokenizer(language).word_tokenize

    def words(text):
        found = split(text)
        if rules.FORBIDDEN in found:
            found = split(text.replace(rules.FORBIDDEN, ""))
        return found

    return words


def reference_words(documents, language="en"):
    return [reference(language)(document) for document in documents]


@pytest.mark.slow
def test_every_small_text_has_the_words_of_datatrove():
    assert words_of(splitter("spacy"), WORLD) == reference_words(WORLD)


@settings(max_examples=30)
@given(texts())
def test_words_are_those_of_datatrove(documents):
    assert words_of(splitter("spacy"), documents) == reference_words(documents)


SEAMS = [*":();-_'.,=<>", "foo:)", "x:(", "(:", "a.)", "He's", "):", "f():", "D", "P", "^_^", "o.O"]


@given(st.lists(st.tuples(st.sampled_from(SEAMS), st.sampled_from(["", " ", " ", "  ", "\n"]))))
def test_special_cases_across_chunks_are_those_of_datatrove(parts):
    documents = ["".join(text + space for text, space in parts), "f(): x"]
    for _ in range(2):  # chunks asked for, then remembered
        assert words_of(splitter("spacy"), documents) == reference_words(documents)


@pytest.mark.parametrize(
    "text", ["foo:) )", "((foo:) ) x", "foo:) x", "foo:)\n)", "f(): )", "( foo:)"]
)
def test_a_longer_special_case_in_the_neighbourhood_wins(text):
    split = Splitter("spacy")
    for _ in range(2):
        assert words_of(split, [text, f"a {text} b"]) == reference_words([text, f"a {text} b"])


@pytest.mark.parametrize(
    "text",
    [
        "IS_ALPHA", "a (IS_ALPHA) b", "xIS_ALPHAx stays", "IS_ALPHA\nXIS_ALPHAX, gone", "IS_ALPH",
        "", " ", "\x1c\x1f\x85", " a\x85b ", "\u3000a\u00a0b", "a\n b \n\nc", "\u0301\u0302",
        "\x00", "a  b", "a \n b", " lead", "trail ", "tab\there",
    ],
)  # fmt: skip
def test_odd_texts_have_the_words_of_datatrove(text):
    assert words_of(Splitter("spacy"), [text, "and more"]) == reference_words([text, "and more"])


@settings(max_examples=30)
@given(texts(), st.integers(0, 8))
def test_a_slice_splits_as_the_whole(documents, cut):
    text = utf8(view(documents).batch.column("text").slice(cut))
    found = splitter("spacy")(text.offsets, text.data)
    assert listed(found) == words_of(Splitter("spacy"), documents)[cut:]


@settings(max_examples=30)
@given(texts())
def test_whitespace_words_are_those_of_split(documents):
    assert words_of(splitter("whitespace"), documents) == [text.split() for text in documents]


def test_whitespace_words_of_every_small_text():
    assert words_of(Splitter("whitespace"), WORLD) == [text.split() for text in WORLD]


@settings(max_examples=30)
@given(texts())
def test_unicode_words_are_those_of_uax_29(documents):
    plain = [
        [word for chunk in text.split() for word in regex.split(r"(?w)\b", chunk) if word]
        for text in documents
    ]
    assert words_of(splitter("unicode"), documents) == plain


def test_unicode_words_end_sentences_with_the_references_marks():
    found = splitter("unicode")(np.array([0, 2]), np.frombuffer(b"a.", np.uint8))
    assert found.lexicon.kinds[found.tokens].tolist()[1] & 4
    assert "." in TERMINAL


def test_no_documents_have_no_words():
    found = Splitter("spacy")(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    assert found.offsets.tolist() == [0]


@pytest.mark.parametrize("size", [15, 16, 17, 40])
def test_chunks_that_differ_in_one_byte_are_told_apart(size):
    chunks = ["a" * size, "a" * (size - 1) + "b", "b" + "a" * (size - 1), "a" * (size + 1)]
    documents = [" ".join(chunks * 2), chunks[1], " " + chunks[0]]
    for _ in range(2):
        assert words_of(splitter("whitespace"), documents) == [d.split() for d in documents]


def test_memory_grows_with_what_it_is_asked():
    chance = random.Random(0)
    documents = [" ".join(str(chance.random()) for _ in range(40)) for _ in range(40)]
    split = Splitter("whitespace")
    assert words_of(split, documents) == [document.split() for document in documents]
    assert split.stats().num_chunks == len({c for d in documents for c in d.split()})


def test_a_full_memory_begins_anew_and_old_words_stay():
    split = Splitter("whitespace", max_memory_bytes=1)
    text = view(["some words here"]).text
    old = split(text.offsets, text.data)
    words_of(split, ["other ones"])
    assert (split.stats().num_chunks, listed(old)) == (2, [["some", "words", "here"]])


def test_chunks_of_any_length_are_split_in_linear_time():
    text = "(" * 1500 + "):" + "\u00e9" * 1500 + "foo:)"
    assert "".join(words_of(Splitter("spacy"), [text])[0]) == text


def test_a_language_without_proven_patterns_asks_for_all():
    split = Splitter("spacy", "de")
    documents = ["Das ist z.B. ein Satz, u.a. f\u00fcr 5km."]
    assert words_of(split, documents) == reference_words(documents, "de")
    assert not split.stats().emulated


def test_patterns_are_compiled_once_for_spacy_and_for_us():
    patterns = rules._derive("de").values["patterns"]
    assert patterns
    spacy = pytest.importorskip("spacy")
    tokenizer = spacy.blank("de").tokenizer
    for key, (pattern, flags) in patterns.items():
        assert not flags & re.UNICODE  # another key in the cache of `re`
        assert re.compile(pattern, flags) == getattr(tokenizer, key).__self__


@pytest.mark.parametrize(
    ("pattern", "given", "asked"),
    [("a", 0, 0), ("a", re.I, re.I), ("(?iu)a", 0, 0), ("(?i)a", re.M, re.I | re.M)],
)
def test_a_pattern_is_asked_for_as_it_was_first(pattern, given, asked):
    compiled = re.compile(pattern, given)
    assert rules._pattern(compiled) == (pattern, asked)
    assert re.compile(*rules._pattern(compiled)) == compiled


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("es", "en EE. UU. y (EE. UU.) EE.UU. EE.\nUU."),
        ("ru", "\u0438 \u0434\u0440. \u0442.\u0435. \u0432 \u0442.\u0447. x"),
        pytest.param("aai", "1 Kor. KM\nM\nM x", marks=pytest.mark.slow),
        pytest.param(
            "fr",
            "l'\u00e9t\u00e9, Est-ce que c'est-\u00e0-dire aujourd'hui",
            marks=pytest.mark.slow,
        ),
        ("zho_Latn", "by the base-rules 3-d"),
    ],
)
def test_other_languages_have_the_words_of_datatrove(language, text):
    documents = [text, f"a {text} b", text.replace(" ", "  ")]
    split = Splitter("spacy", language)
    for _ in range(2):
        assert words_of(split, documents) == reference_words(documents, language)


@pytest.mark.parametrize("language", ["kur", "kor_Hang", "mya_Mymr", "nowhere"])
def test_a_language_that_cannot_be_split_is_refused(language):
    with pytest.raises(UsageError, match="words: whitespace"):
        check_language("spacy", language)


@pytest.mark.parametrize(
    ("language", "needs"),
    [("jpn", "sudachipy"), ("zh", "jieba"), ("vie_Latn", "pyvi")],
)
def test_what_splits_whole_texts_must_be_installed(language, needs, monkeypatch):
    monkeypatch.setattr("corpuskit.text.words.is_installed", lambda name: False)
    with pytest.raises(UsageError, match=f"which is not installed here. Run: pip install {needs}"):
        check_language("spacy", language)


@pytest.mark.parametrize(
    ("language", "needs"),
    [
        ("jpn_Jpan", "sudachipy"),
        ("zho_Hans", "jieba"),
        ("th", "pythainlp"),
        ("vie", "pyvi"),
        ("hi", "indicnlp"),
    ],
)
def test_whole_texts_have_the_words_of_datatrove(language, needs):
    pytest.importorskip(needs)
    if needs == "sudachipy":  # it calls what it has renamed itself
        warnings.filterwarnings("ignore", category=DeprecationWarning)
    name = {"zho_Hans": "cmn_Hani", "hi": "hin_Deva"}.get(language, language)
    documents = [
        "吾輩は猫である。名前はまだ無い。\n\nどこで",
        "",
        "我爱北京天安门 2024",
        "ภาษาไทย ok",
        "나는 학교에 간다. Hà Nội là thủ đô",
        "मेरा नाम",
        "名前は",
    ]
    split = Splitter("spacy", language)
    for _ in range(2):
        assert words_of(split, documents) == reference_words(documents, name)
    [first, *_] = libraries("spacy", language)[2:]
    assert first in libraries("spacy", None)


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("hu", "hun_Latn"),
        ("est_Latn", "ekk"),
        ("pes", "fa"),
        ("als", "gsw_Latn"),
        ("ms", "zsm_Latn"),
    ],
)
def test_a_language_has_several_names(code, same):
    assert _tokenizer(code).code == _tokenizer(same).code


def test_whitespace_splits_any_language():
    check_language("whitespace", "nowhere")


def test_a_way_to_split_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="must be one of"):
        check_language("space", "en")  # type: ignore[arg-type]


@pytest.mark.slow
def test_languages_have_the_tokenizers_of_datatrove():
    from datatrove.utils.word_tokenizers import load_tokenizer_assignments

    theirs = {}
    for language, make in load_tokenizer_assignments().items():
        kind, code = make.args
        theirs[language] = (kind, code)
    ours = _assignments()
    assert ours == {name: made for name, made in theirs.items() if name in ours}
    assert {name.partition("_")[0] for name in theirs} >= {name[:3] for name in ours}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"x\n{}", b"\xff\n\xff"])
def test_damaged_language_facts_are_derived_again(cache, damage):
    facts = rules.language_facts.__wrapped__
    whole = facts("xx")
    (file,) = cache.glob("words-xx-*.bin")
    content = file.read_bytes()
    file.write_bytes(damage)
    assert facts("xx").language == whole.language
    assert file.read_bytes() == content


@pytest.mark.slow
def test_language_facts_are_read_without_asking_spacy(cache):
    facts = rules.language_facts.__wrapped__
    facts("xx")
    (file,) = cache.glob("words-xx-*.bin")
    known = kept._unpack(read_kept(file))
    language = {**known.values, "specials": {"~": ["~"]}}
    keep(file, kept._pack(known._replace(values=language)))
    assert facts("xx").language.specials == {"~": ["~"]}


def test_an_edit_of_what_derives_language_facts_derives_them_anew(tmp_path, cache):
    for number in range(2):
        (tmp_path / "source.py").write_text(f"NUMBER = {number}")
        kept._source_digest.cache_clear()
        made = kept.derived(
            "facts",
            "stamp",
            str(tmp_path / "source.py"),
            functools.partial(kept.Derived, {"number": number}, {}),
        )
        assert made.values == {"number": number}
        closure.forget()


@pytest.mark.real
@pytest.mark.slow
def test_real_english_has_the_words_of_datatrove(shared_data):
    files = sorted((shared_data / "bench_en").glob("*.parquet"))
    documents = pq.read_table(files[0], columns=["text"])["text"].to_pylist()[::80]
    split = Splitter("spacy")
    for part in itertools.batched(documents, 50) if hasattr(itertools, "batched") else [documents]:
        assert words_of(split, list(part)) == reference_words(part)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("language", ["fr", "es", "de", "ru", "pt", "pl", "uk", "it", "nl", "tr"])
def test_real_texts_have_the_words_of_datatrove(shared_data, language):
    files = sorted((shared_data / "bench_multi").glob("*.parquet"))
    table = pq.read_table(files[0], columns=["text", "lang"])
    documents = [
        text
        for text, lang in zip(table["text"].to_pylist(), table["lang"].to_pylist(), strict=True)
        if lang.partition("-")[0].partition("_")[0] == language and len(text) < 50_000
    ][:12]
    assert documents
    assert words_of(Splitter("spacy", language), documents) == reference_words(documents, language)
