"""SentencePiece models give the ids of SentencePiece, whichever engine computes them."""

from __future__ import annotations

import importlib.util
import io

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import UsageError
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize, engines
from corpuskit.stages.sequences.tokenize.sentencepiece import (
    NORMAL,
    PIECES,
    Piece,
    _read_fields,
    last_halves,
    merge_order,
    read_model,
    ties_hold,
)

sentencepiece = pytest.importorskip("sentencepiece")
TEXTS = ["the cat  sat on the mat", "</s> a<s>[X]", " \u4f60 \u2581\n\tcatcat", "", "<0x41>\0    "]
TRAINED = [
    "the cat sat on the mat and the other cat sat on that mat, chasing rats that had eaten cheese",
    "catcat  a b c d e, what these mice seem to be: small, mean, hasty, and at home in the hat",
] * 20
needs_gigatoken = pytest.mark.skipif(
    importlib.util.find_spec("gigatoken") is None, reason="gigatoken is not installed"
)


def train(path, **options):
    """Write a model like Llama 2's: BPE, byte fallback, text as it is."""
    plain = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "vocab_size": 320,
        "minloglevel": 2,
    }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINED), model_writer=model, **{**plain, **options}
    )
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture
def llama(tmp_path):
    return train(tmp_path / "tokenizer.model")


def ids_of(stage, texts):
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return stage.apply(View(batch)).columns["tokens"].to_pylist()


def of_library(path, texts):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return [processor.encode(text) for text in texts]


def model_at(path):
    with open(path, "rb") as file:
        return read_model(path, file.read())


@pytest.mark.parametrize(
    "engine", ["sentencepiece", "huggingface", pytest.param("gigatoken", marks=needs_gigatoken)]
)
@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}])
def test_every_engine_gives_the_ids_of_the_library(tmp_path, engine, options):
    path = train(tmp_path / "a", **options)
    stage = Tokenize(tokenizer=path, add_eos=False, engine=engine)
    assert model_at(path).needs_library == ""
    assert ids_of(stage, TEXTS) == of_library(path, TEXTS)


@settings(deadline=None, max_examples=40)
@given(texts=st.lists(st.text(st.sampled_from("at cmhe\u2581\u00e9\n<>s/")), max_size=6))
def test_converted_merges_give_the_ids_of_the_library(tmp_path_factory, texts):
    path = str(tmp_path_factory.getbasetemp() / "converted.model")
    train(tmp_path_factory.getbasetemp() / "converted.model")
    stage = Tokenize(tokenizer=path, add_eos=False, engine="huggingface")
    assert ids_of(stage, texts) == of_library(path, texts)


def test_what_ends_documents_is_found(llama):
    facts = Tokenize(tokenizer=llama, add_bos=True).provides({})["tokenizer"]
    assert (facts["bos"], facts["eos"], facts["vocab_size"]) == (1, 2, 320)
    (found,) = ids_of(Tokenize(tokenizer=llama, add_bos=True), ["a</s>"])
    assert (found[0], found[-1]) == (1, 2)
    assert not {1, 2} & set(found[1:-1])


def test_a_spelled_special_token_is_its_id_when_allowed(llama):
    stage = Tokenize(tokenizer=llama, allow_special=True, add_eos=False)
    assert ids_of(stage, ["a</s>"])[0].count(2) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram", "vocab_size": 300}, "it is not BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes text"),
        ({"remove_extra_whitespaces": True}, "it normalizes text"),
        ({"byte_fallback": False, "vocab_size": 50}, "it has no byte fallback"),
        ({"treat_whitespace_as_suffix": True}, "it treats spaces otherwise"),
    ],
)
def test_other_models_are_left_to_the_library(tmp_path, options, reason):
    path = train(tmp_path / "a", **options)
    assert model_at(path).needs_library == reason
    stage = Tokenize(tokenizer=path, add_eos=False)
    assert ids_of(stage, TEXTS) == of_library(path, TEXTS)
    with pytest.raises(UsageError, match=f"huggingface can't do .*: {reason}"):
        ids_of(Tokenize(tokenizer=path, add_eos=False, engine="huggingface"), TEXTS)


@needs_gigatoken
def test_texts_with_pieces_that_are_not_merged_go_to_the_library(tmp_path):
    path = train(tmp_path / "a", user_defined_symbols=["[X]", "\u2581at\u2581"], vocab_size=330)
    stage = Tokenize(tokenizer=path, add_eos=False, engine="gigatoken")
    texts = ["a[X]b", "at the", "cat at at sat", "the cat", "[X", *TEXTS]
    assert ids_of(stage, texts) == of_library(path, texts)


@pytest.mark.parametrize("engine", ["auto", "sentencepiece"])
def test_a_piece_that_ends_documents_is_not_made_by_text(tmp_path, engine):
    path = train(tmp_path / "a", user_defined_symbols=["<end>"], vocab_size=330)
    stage = Tokenize(tokenizer=path, eos="<end>", engine=engine)
    end = stage.provides({})["tokenizer"]["eos"]
    (found,) = ids_of(stage, ["the <end> cat"])
    assert found.count(end) == 1
    assert found[-1] == end


def with_scores(path, changes):
    """Give pieces of a model other contents and scores."""
    model = model_at(path)
    out = bytearray()
    number = 0
    begin = 0
    for field, value, end in _read_fields(model.content):
        if field == PIECES and number in changes:
            content, score = changes[number]
            inner = b"\x0a" + bytes([len(content.encode())]) + content.encode()
            inner += b"\x15" + score
            out += bytes([0x0A, len(inner)]) + inner
        else:
            out += model.content[begin:end]
        number += field == PIECES
        begin = end
        del value
    return bytes(out)


def test_runs_of_spaces_that_tie_merge_as_in_the_library(tmp_path):
    # As in Mistral's models, where no run of 15 spaces is a piece, but one of 16 is.
    path = tmp_path / "a"
    train(path, vocab_size=330)
    model = model_at(str(path))
    normal = [n for n, p in enumerate(model.pieces) if p.type == NORMAL and len(p.content) > 1]
    lowest = b"\x28\x6b\x6e\xce"  # -1e9
    lengths = (2, 4, 3, 6, 5)
    changes = {n: ("\u2581" * k, lowest) for n, k in zip(normal[-5:], lengths, strict=True)}
    path.write_bytes(with_scores(str(path), changes))
    texts = [" " * k + word for k in range(30) for word in ("", "cat", "\u4f60 ")]
    texts += ["a" + text + text for text in texts]
    changed = model_at(str(path))
    assert changed.needs_library == ""
    stage = Tokenize(tokenizer=str(path), add_eos=False, engine="huggingface")
    assert ids_of(stage, texts) == of_library(str(path), texts)


def pieces(*scored):
    atoms = [Piece(char, -100.0 - n, NORMAL) for n, char in enumerate("ab\u2581")]
    return [*atoms, *(Piece(content, score, NORMAL) for content, score in scored)]


@pytest.mark.parametrize(
    ("scored", "expected"),
    [
        ([("ab", -1.0), ("ba", -2.0)], True),
        ([("ab", -1.0), ("ba", -1.0)], False),
        ([("aa", -5.0), ("aaa", -5.0), ("ab", -1.0)], True),
        ([("aa", -1.0), ("aaa", -1.0), ("ab", -5.0)], False),
        ([("aa", -5.0), ("aaa", -5.0), ("aab", -1.0)], False),
        ([("aa", -5.0), ("aaa", -5.0), ("ab", -1.0), ("ba", -1.0)], False),
    ],
)
def test_ties_are_trusted_only_where_they_do_no_harm(scored, expected):
    ordered = merge_order(pieces(*scored))
    assert ties_hold(ordered, last_halves(ordered)) is expected


def test_a_model_that_is_cut_off_is_refused(llama):
    with open(llama, "rb") as file:
        content = file.read()
    with open(llama, "wb") as file:
        file.write(content[: len(content) // 2])
    with pytest.raises(UsageError, match="Check that the file is whole"):
        Tokenize(tokenizer=llama).provides({})


def test_without_the_library_it_is_asked_for(tmp_path, monkeypatch):
    path = train(tmp_path / "a", model_type="unigram", vocab_size=300)
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    engines._open.cache_clear()
    with pytest.raises(UsageError, match=r"Run: .*sentencepiece"):
        ids_of(Tokenize(tokenizer=path, add_eos=False), ["a"])
