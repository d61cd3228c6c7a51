"""Every kind of tokenizer file gives the ids of its own library."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from corpuskit.errors import UsageError
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.stages.sequences.tokenize.ranks import NAMES_OF_BYTES, PRESETS

EOS = "<|endoftext|>"
BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [b" t", b"he", b" the", b"  ", b"\n\n", b"aa", b"aab", b"12", b"\xc3\xa9", b"the", b"caab"]
TEXTS = [
    "the theatre, THE caab\n\n  aaab 12345 It's it'S \u00e9t\u00e9  ",
    f"a {EOS}the \u4f60\u597d \U0001f600\r\n\t x",
    "",
]


def ids_of(stage, texts):
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return stage.apply(View(batch)).columns["tokens"].to_pylist()


def write_ranks(path, tokens):
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"".join(lines))
    return str(path)


def of_tiktoken(tokens, regex):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=ranks, special_tokens={})


@pytest.fixture
def ranks(tmp_path):
    return write_ranks(tmp_path / "some.file", [*BYTES, *WORDS])


GOLDEN = {
    "llama3": "llama3/tokenizer.model",
    "qwen": "qwen/qwen.tiktoken",
    "tiktoken/cl100k_base": "tiktoken/cl100k_base.tiktoken",
    "tiktoken/r50k_base": "tiktoken/r50k_base.tiktoken",
    "mistral_v3": "mistral_v3",
}


@pytest.mark.real
@pytest.mark.parametrize("name", GOLDEN)
def test_ids_are_the_golden_ones(shared_data, name):
    filters = [("tokenizer", "=", name)]
    golden = pq.read_table(shared_data / "tokenizers/golden_ids.parquet", filters=filters)
    stage = Tokenize(tokenizer=str(shared_data / "tokenizers" / GOLDEN[name]), add_eos=False)
    assert golden.num_rows > 300
    assert ids_of(stage, golden["text"].to_pylist()) == golden["ids"].to_pylist()


@pytest.mark.real
def test_published_rank_files_bring_their_special_tokens(shared_data):
    folder = shared_data / "tokenizers"
    found = {}
    for name, eos in (("llama3", None), ("qwen", None), ("tiktoken/cl100k_base.tiktoken", None)):
        stage = Tokenize(tokenizer=str(folder / name), eos=eos)
        facts = stage.provides({})["tokenizer"]
        found[name] = (facts["eos"], facts["bos"], facts["vocab_size"], facts["dtype"])
    assert found == {
        "llama3": (128001, 128000, 128256, "uint32"),
        "qwen": (151643, None, 151851, "uint32"),
        "tiktoken/cl100k_base.tiktoken": (100257, None, 100277, "uint32"),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_tekken_gives_the_ids_of_tiktoken_behind_its_special_tokens(tmp_path, packed):
    tokens, regex = [*BYTES, *WORDS], PRESETS["o200k"].regex
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*tokens, b"beyond"])
    ]
    size = {"default_vocab_size": len(tokens) + 30, "default_num_special_tokens": 30}
    content = json.dumps({"config": {"pattern": regex, **size}, "vocab": vocabulary}).encode()
    path = tmp_path / "tekken"
    path.write_bytes(zstandard.compress(content) if packed else content)
    stage = Tokenize(tokenizer=str(path), add_bos=True)
    facts = stage.provides({})["tokenizer"]
    found = [facts[name] for name in ("kind", "bos", "eos", "pad", "vocab_size")]
    assert found == ["Tekken", 1, 2, 11, len(tokens) + 30]
    encoding = of_tiktoken(tokens, regex)
    texts = [*TEXTS, "beyond </s>"]
    expected = [[1, *(i + 30 for i in encoding.encode_ordinary(text)), 2] for text in texts]
    assert ids_of(stage, texts) == expected


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k", "qwen"])
@pytest.mark.parametrize("engine", ["huggingface", "auto"])
def test_ranks_give_the_ids_of_tiktoken(ranks, name, engine):
    encoding = of_tiktoken([*BYTES, *WORDS], PRESETS[name].regex)
    stage = Tokenize(tokenizer=ranks, pattern=name, add_eos=False, engine=engine)
    assert ids_of(stage, TEXTS) == [encoding.encode_ordinary(text) for text in TEXTS]


# Tokens with many splits, tokens that merging can't make, in any order.
more = st.lists(st.text("ab\u00e9 ", min_size=2, max_size=6).map(str.encode), unique=True)


@settings(deadline=None, max_examples=40)
@given(more, st.lists(st.text("aab\u00e9 \n", max_size=20), min_size=1, max_size=4), st.data())
def test_any_order_of_tokens_gives_the_ids_of_tiktoken(tmp_path_factory, tokens, texts, data):
    tokens = list(dict.fromkeys([*BYTES, *tokens]))
    tokens = data.draw(st.permutations(tokens)) if data.draw(st.booleans()) else tokens
    encoding = of_tiktoken(tokens, r"\s*\S+|\s+")
    path = write_ranks(tmp_path_factory.mktemp("ranks") / "any.tiktoken", tokens)
    stage = Tokenize(tokenizer=path, pattern=r"\s*\S+|\s+", add_eos=False, engine="huggingface")
    assert ids_of(stage, texts) == [encoding.encode_ordinary(text) for text in texts]


@pytest.mark.parametrize("engine", ["huggingface", "auto"])
def test_a_spelled_special_token_of_ranks_is_text(ranks, engine):
    params = {"tokenizer": ranks, "pattern": "gpt2", "engine": engine, "special_tokens": {EOS: 300}}
    encoding = of_tiktoken([*BYTES, *WORDS], PRESETS["gpt2"].regex)
    text = f"a{EOS}the"
    assert ids_of(Tokenize(**params), [text]) == [[*encoding.encode_ordinary(text), 300]]
    (found,) = ids_of(Tokenize(**params, allow_special=True), [text])
    assert found == [*encoding.encode_ordinary("a"), 300, *encoding.encode_ordinary("the"), 300]


def test_a_word_that_spells_a_special_token_is_text(tmp_path):
    # "cbaab" can't be made by merging, so whole words are looked up: the special token must not be.
    path = write_ranks(tmp_path / "x", [*BYTES, b"aab", b"cbaab"])
    stage = Tokenize(tokenizer=path, pattern=r"\S+|\s+", special_tokens={"<eos>": 300})
    assert ids_of(stage, ["<eos> cbaab"]) == [[*b"<eos> ", 257, 300]]
    allowed = stage.model_copy(update={"allow_special": True})
    assert ids_of(allowed, ["<eos>"]) == [[300, 300]]


def test_ids_follow_from_all_that_is_given(ranks):
    def identity(**params):
        stage = Tokenize(tokenizer=ranks, add_eos=False, **params)
        return stage.provides({})["tokenizer"]["hash"]

    found = [
        identity(pattern="gpt2"),
        identity(pattern="qwen"),
        identity(pattern="gpt2", special_tokens={EOS: 300}),
        identity(pattern="gpt2", special_tokens={EOS: 301}),
    ]
    assert len(set(found)) == 4
    assert identity(pattern="gpt2") == found[0]


@pytest.fixture
def small(tmp_path):
    """A byte-level BPE as tokenizer.json, and as the pair that GPT-2 was published as."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[EOS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and the other cat"] * 9, trainer)
    for folder in ("one", "pair"):
        (tmp_path / folder).mkdir()
    tokenizer.save(str(tmp_path / "one/tokenizer.json"))
    tokenizer.model.save(str(tmp_path / "pair"))
    return tmp_path


@pytest.mark.parametrize("name", ["pair", "pair/vocab.json", "pair/merges.txt"])
def test_a_vocabulary_and_its_merges_are_one_tokenizer(small, name):
    whole = Tokenize(tokenizer=str(small / "one"))
    pair = Tokenize(tokenizer=str(small / name), pattern="gpt2")
    assert len(pair.files()) == 2
    assert pair.provides({})["tokenizer"]["eos"] == whole.provides({})["tokenizer"]["eos"] == 0
    assert ids_of(pair, TEXTS) == ids_of(whole, TEXTS)


def test_merges_of_another_vocabulary_are_refused(small):
    (small / "pair/merges.txt").write_text("#version: 0.2\nq zz\n")
    with pytest.raises(UsageError, match=r"'q zz' is not a pair of tokens of .*vocab.json"):
        Tokenize(tokenizer=str(small / "pair"), pattern="gpt2").provides({})


def named_words(kind):
    """Tokenizers that look up whole words, with a special token that words could be."""
    texts = ["the cat </s> sat on the mat, the cat"] * 20
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        )
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordPieceTrainer(
            vocab_size=80, special_tokens=["[UNK]", "</s>"], show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "wordlevel"])
def test_models_of_words_give_the_ids_of_their_library(tmp_path, kind):
    tokenizer = named_words(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    stage = Tokenize(tokenizer=str(tmp_path))
    end = tokenizer.token_to_id("</s>")
    texts = ["the cat sat", "a zebra on the mat,", ""]
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(stage, texts) == [[*ids, end] for ids in expected]
    assert stage.provides({})["tokenizer"]["eos"] == end


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "wordlevel"])
def test_models_of_words_take_a_spelled_special_token_as_text(tmp_path, kind):
    tokenizer = named_words(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    end = tokenizer.token_to_id("</s>")
    (found,) = ids_of(Tokenize(tokenizer=str(tmp_path), add_eos=False), ["the </s> cat</s>"])
    assert end not in found
    (allowed,) = ids_of(
        Tokenize(tokenizer=str(tmp_path), add_eos=False, allow_special=True), ["the </s> cat</s>"]
    )
    assert allowed.count(end) == 2


def test_a_model_of_words_keeps_its_unknown_token(tmp_path):
    named_words("wordlevel").save(str(tmp_path / "tokenizer.json"))
    assert ids_of(Tokenize(tokenizer=str(tmp_path), add_eos=False), ["zebra [UNK]"]) == [[0, 0]]


def refused(path, **params):
    with pytest.raises(UsageError) as error:
        Tokenize(tokenizer=str(path), add_eos=False, **params).provides({})
    return str(error.value)


def test_ranks_need_a_pattern(ranks):
    assert "Set pattern to one of gpt2, p50k, cl100k, o200k, llama3, qwen" in refused(ranks)
    assert "'clk100' is not a known name. Did you mean 'cl100k'" in refused(ranks, pattern="clk100")


def test_special_tokens_of_ranks_are_checked(ranks):
    taken = refused(ranks, pattern="gpt2", special_tokens={EOS: 12})
    assert f"'{EOS}': 12 is a token of {ranks} already. Give a name and an id" in taken
    assert "from 267 on" in taken
    twice = refused(ranks, pattern="gpt2", special_tokens={EOS: 300, "<pad>": 300})
    assert "two names have the same id" in twice


def test_what_the_file_says_can_not_be_said_again(small):
    message = refused(small / "one", pattern="gpt2")
    assert "(tokenizer.json) has its own. Leave pattern out" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x1f\x8b\x08\0", "it is compressed with gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"import json\n", "it begins with 'import json'"),
        (b'{"a": 1}', "it is JSON without model.vocab"),
        (b"\x89PNG\r\n\x1a\n", "it begins with the bytes 89 50 4e 47"),
    ],
)
def test_other_files_are_named(tmp_path, content, message):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    assert message in refused(path)


def test_a_broken_line_of_ranks_is_named(ranks):
    Path(ranks).write_bytes(Path(ranks).read_bytes() + b"YQ==\n")
    assert f"{ranks}:268: is not a token in base64 and its rank: b'YQ=='" in refused(
        ranks, pattern="gpt2"
    )


def test_ranks_without_all_bytes_are_refused(tmp_path):
    path = write_ranks(tmp_path / "x", BYTES[:-2])
    assert "no token for 2 of the 256 bytes" in refused(path, pattern="gpt2")


def test_a_folder_has_one_tokenizer(tmp_path, ranks):
    assert "has no tokenizer file" in refused(Path(ranks).parent)
    for name in ("a.tiktoken", "b.tiktoken"):
        (tmp_path / name).write_bytes(Path(ranks).read_bytes())
    assert "has a.tiktoken and b.tiktoken. Give the path of one file" in refused(tmp_path)


def test_names_of_bytes_are_those_of_byte_level_tokenizers():
    assert set(NAMES_OF_BYTES.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "\x00 \n a\u00e9\u4f60\U0001f600\x7f\u00ad"
    ((name, _),) = split.pre_tokenize_str(text)
    assert name == "".join(NAMES_OF_BYTES[byte] for byte in text.encode())
