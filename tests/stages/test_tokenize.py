"""Ids are those of Hugging Face tokenizers, whichever engine, batch or text."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import utf8
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec, define
from corpuskit.stages.sequences.tokenize.encoders import ReferenceEncoder, disputed, find_disputed

EOS = "<|endoftext|>"
has_gigatoken = importlib.util.find_spec("gigatoken") is not None
ENGINES = [
    "huggingface",
    pytest.param("gigatoken", marks=pytest.mark.skipif(not has_gigatoken, reason="not installed")),
]
needs_gigatoken = pytest.mark.skipif(not has_gigatoken, reason="gigatoken is not installed")


def ids_of(stage, texts):
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return stage.apply(View(batch)).columns["tokens"].to_pylist()


def train_bpe(texts, *, normalizer=None, use_regex=True):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[EOS], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A byte-level BPE of 400 tokens."""
    path = tmp_path_factory.mktemp("small") / "tokenizer.json"
    train_bpe(["the cat sat on the mat, and then the other cat came " * 3] * 3).save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def golden_tokenizers(shared_data):
    """Tokenizers with golden ids: name -> path."""
    names = ("gpt2", "allenai_dolma2", "gpt_neox_olmo", "phi3_mini")
    return {name: str(shared_data / "tokenizers" / name) for name in names}


@pytest.mark.real
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["gpt2", "allenai_dolma2", "gpt_neox_olmo", "phi3_mini"])
def test_ids_are_the_golden_ones(golden_tokenizers, shared_data, name, engine):
    filters = [("tokenizer", "=", name)]
    golden = pq.read_table(shared_data / "tokenizers/golden_ids.parquet", filters=filters)
    stage = Tokenize(
        tokenizer=golden_tokenizers[name],
        add_eos=False,
        allow_special=name != "gpt2",
        engine=engine,
    )
    assert golden.num_rows > 300
    assert ids_of(stage, golden["text"].to_pylist()) == golden["ids"].to_pylist()


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "huggingface") for name in ("gpt2", "gpt_neox_olmo")),
        *(
            pytest.param(name, "gigatoken", marks=needs_gigatoken)
            for name in ("allenai_dolma2", "phi3_mini")
        ),
    ],
)
def test_spelled_special_tokens_of_published_tokenizers_are_text(golden_tokenizers, name, engine):
    path = golden_tokenizers[name]
    eos = "</s>" if name == "phi3_mini" else EOS  # Phi-3's </s> is not marked as special
    stage = Tokenize(tokenizer=path, eos=eos, engine=engine)
    known = define(TokenizerSpec(path))
    special = {name: known.vocabulary[name] for name in known.specials}
    special[eos] = stage.provides({})["tokenizer"]["eos"]
    texts = [f"x{token} {token}  y" for token in special]
    for found in ids_of(stage, texts):
        assert not set(found[:-1]) & set(special.values())
        assert found[-1] == special[eos]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_spelled_eos_is_text(small, engine):
    (found,) = ids_of(Tokenize(tokenizer=small, engine=engine), [f"the {EOS} cat"])
    assert Tokenizer.from_file(small).decode(found[:-1]) == f"the {EOS} cat"
    assert found.index(0) == len(found) - 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_spelled_eos_is_its_id_when_allowed(small, engine):
    stage = Tokenize(tokenizer=small, engine=engine, allow_special=True, add_eos=False)
    (found,) = ids_of(stage, [f"the {EOS} cat"])
    assert found == Tokenizer.from_file(small).encode(f"the {EOS} cat").ids
    assert 0 in found


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=30)
@given(texts=st.lists(st.text(max_size=30), max_size=12), cut=st.integers(0, 12))
def test_batch_boundaries_do_not_matter(small, engine, texts, cut):
    stage = Tokenize(tokenizer=small, engine=engine)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    parts = [batch.slice(0, cut), batch.slice(min(cut, len(texts)))]
    found = [stage.apply(View(part)).columns["tokens"].to_pylist() for part in parts]
    assert [*found[0], *found[1]] == ids_of(stage, texts)


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(st.text(), min_size=1, max_size=8))
def test_ids_equal_encode_for_any_text(small, engine, texts):
    reference = Tokenizer.from_file(small)
    stage = Tokenize(tokenizer=small, engine=engine, allow_special=True)
    assert ids_of(stage, texts) == [[*reference.encode(text).ids, 0] for text in texts]


def test_documents_begin_and_end_as_asked(small):
    stage = Tokenize(tokenizer=small, add_bos=True, bos="a", eos="b")
    known = Tokenizer.from_file(small).get_vocab()
    assert ids_of(stage, ["", "x"]) == [[known["a"], *x, known["b"]] for x in ([], [known["x"]])]


def test_a_text_without_ends_has_no_tokens(small):
    assert ids_of(Tokenize(tokenizer=small, add_eos=False), [""]) == [[]]


def test_later_stages_learn_what_the_tokenizer_is(small):
    facts = Tokenize(tokenizer=small).provides({})["tokenizer"]
    size = Tokenizer.from_file(small).get_vocab_size()
    assert facts.pop("hash") != facts.pop("path")
    assert facts == {
        "kind": "tokenizer.json",
        "vocab_size": size,
        "dtype": "uint16",
        "eos": 0,
        "bos": None,
        "pad": 0,
    }


def with_tokens(small, folder, *tokens, **options):
    tokenizer = Tokenizer.from_file(small)
    tokenizer.add_special_tokens([AddedToken(token) for token in tokens])
    for name, value in options.items():
        getattr(tokenizer, name)(**value)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def test_a_pad_token_fills_rows_where_there_is_one(small, tmp_path):
    path = with_tokens(small, tmp_path, "<|pad|>")
    facts = Tokenize(tokenizer=path).provides({})["tokenizer"]
    assert facts["pad"] == facts["vocab_size"] - 1


def test_a_large_vocabulary_takes_32_bits(small, tmp_path):
    content = json.loads(Path(small).read_bytes())
    content["model"]["vocab"]["far"] = 1 << 16
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    facts = Tokenize(tokenizer=str(path)).provides({})["tokenizer"]
    assert (facts["vocab_size"], facts["dtype"]) == ((1 << 16) + 1, "uint32")


def test_two_tokens_that_could_end_documents_are_ambiguous(small, tmp_path):
    path = with_tokens(small, tmp_path, "</s>")
    with pytest.raises(UsageError, match=r"'<\|endoftext\|>' or '</s>' could each be it. Set eos"):
        Tokenize(tokenizer=path).provides({})
    assert Tokenize(tokenizer=path, eos="</s>").provides({})["tokenizer"]["eos"] != 0
    assert Tokenize(tokenizer=path, add_eos=False).provides({})["tokenizer"]["eos"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_bos": True}, "no token has one of the usual names. Set bos, or add_bos: false"),
        ({"eos": "<end>"}, "has no token '<end>'. It could be '<|endoftext|>'"),
        ({"tokenizer": "nowhere/tokenizer.json"}, "can't open the tokenizer 'nowhere/tokenizer"),
        ({"tokenizer": __file__}, "is not a tokenizer.json"),
    ],
)
def test_what_can_not_be_is_refused_when_the_plan_is_made(small, changes, message):
    with pytest.raises(UsageError) as error:
        Tokenize(**{"tokenizer": small, **changes}).provides({})
    assert message in str(error.value)


def test_truncation_and_padding_of_the_file_are_ignored(small, tmp_path):
    options = {"enable_truncation": {"max_length": 2}, "enable_padding": {"length": 50}}
    path = with_tokens(small, tmp_path, **options)
    texts = ["the cat sat on the mat", "a"]
    assert ids_of(Tokenize(tokenizer=path), texts) == ids_of(Tokenize(tokenizer=small), texts)


def test_a_tokenizer_that_draws_lots_is_refused(small, tmp_path):
    content = json.loads(Path(small).read_bytes())
    content["model"]["dropout"] = 0.1
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"dropout 0\.1"):
        Tokenize(tokenizer=str(path)).provides({})


def test_a_changed_file_is_another_tokenizer(small, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(Path(small).read_bytes())
    stage = Tokenize(tokenizer=str(path))
    before = ids_of(stage, ["zzzz zzzz"])
    train_bpe(["zzzz zzzz zzzz"] * 9).save(str(path))
    assert len(ids_of(stage, ["zzzz zzzz"])[0]) < len(before[0])


def other_tokenizers():
    """Tokenizers that gigatoken can't stand in for: it refuses the first, mistakes the second."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, EOS: 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    return [words, train_bpe(["the cat sat on the mat"] * 9, use_regex=False)]


@pytest.mark.parametrize("number", [0, 1])
def test_auto_takes_the_reference_where_gigatoken_would_differ(tmp_path, number):
    tokenizer = other_tokenizers()[number]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    stage = Tokenize(tokenizer=str(tmp_path / "tokenizer.json"), add_eos=False)
    texts = ["the cat sat on the mat, the cat  sat"]
    assert ids_of(stage, texts) == [tokenizer.encode(text).ids for text in texts]


@needs_gigatoken
@pytest.mark.parametrize("number", [0, 1])
def test_gigatoken_is_refused_where_it_would_differ(tmp_path, number):
    other_tokenizers()[number].save(str(tmp_path / "tokenizer.json"))
    stage = Tokenize(tokenizer=str(tmp_path / "tokenizer.json"), engine="gigatoken")
    with pytest.raises(UsageError, match="gigatoken can't do"):
        ids_of(stage, ["the cat"])


@needs_gigatoken
def test_the_first_documents_are_compared_with_the_reference(small, tmp_path):
    from corpuskit.stages.sequences.tokenize.encoders import GigatokenEncoder

    encoder = GigatokenEncoder(define(TokenizerSpec(small)).fields, allow_special=False)
    train_bpe(["zzzz zzzz zzzz"] * 9).save(str(tmp_path / "other.json"))
    other = define(TokenizerSpec(str(tmp_path / "other.json"))).fields
    encoder._reference = ReferenceEncoder(other, allow_special=False)
    encoder.encode(pa.array(["a"], pa.large_string()))
    with pytest.raises(DataError, match="one of the first 2 documents"):
        encoder.encode(pa.array(["a", "zzzz"], pa.large_string()))


# U+0CDC is of Unicode 17; the pair composes since Unicode 16.
NEW = ["a \u0cdc\u0cdc1", "x\U000113c2\U000113c2y", "\u0cdc", "\U0001fae8 \u0301e\u0301"]


@needs_gigatoken
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
def test_new_code_points_go_to_the_reference_in_their_places(tmp_path, normalizer):
    tokenizer = train_bpe(["the cat \U000113c5 \u0cdc"] * 9, normalizer=normalizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    stage = Tokenize(tokenizer=path, add_eos=False, engine="gigatoken")
    texts = ["one", NEW[0], "two", "three", *NEW[1:], "four"]
    assert ids_of(stage, texts) == [tokenizer.encode(text).ids for text in texts]


@needs_gigatoken
@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
def test_both_engines_agree_on_code_points_that_are_not_disputed(tmp_path, normalizer):
    train_bpe(["the cat"] * 9, normalizer=normalizer).save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    marked = np.unpackbits(disputed(normalizes=normalizer is not None), bitorder="little")
    points = [p for p in np.flatnonzero(marked == 0)[::61].tolist() if not 0xD800 <= p < 0xE000]
    texts = [f"a{c}b 1{c}2 {c} {c}{c}'s  {c}\n{c}. {c}e\u0301" for c in map(chr, points)]
    both = [Tokenize(tokenizer=path, engine=engine) for engine in ("huggingface", "gigatoken")]
    assert len(texts) > 2000
    assert ids_of(both[0], texts) == ids_of(both[1], texts)


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6),
    st.sets(st.characters(exclude_categories=["Cs"]).filter(lambda c: c >= "\x80"), max_size=6),
)
def test_disputed_code_points_are_found(texts, chars):
    marked = np.zeros(0x110000, np.uint8)
    marked[[ord(char) for char in chars]] = 1
    bitmap = np.packbits(marked, bitorder="little")
    texts = [*texts, *chars, *(f"a{c}" for c in chars)]
    found = find_disputed(*utf8(pa.array(texts, pa.large_string())), bitmap)
    assert found.tolist() == [bool(chars & set(text)) for text in texts]
