"""`corpuskit tokenizer train`: same texts, same tokenizer; every text can be encoded."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from corpuskit.cli.tokenizer import command
from corpuskit.errors import DataError, UsageError
from corpuskit.formats.manifest import Manifest, Part, Seal
from corpuskit.stages.sequences.tokenize.tools import find_files, train_tokenizer


def texts_of(count=200, seed=1):
    rng = random.Random(seed)
    words = ["".join(rng.choices("aeioubdklmnrst\u00e9", k=rng.randint(2, 8))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=30)) + ".\n" for _ in range(count)]


def jsonl(texts) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.fixture
def corpus(tmp_path):
    texts = texts_of()
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": texts[:80]}), tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "b.jsonl.zst").write_bytes(zstandard.compress(jsonl(texts[80:150])))
    (tmp_path / "in" / "c.jsonl.gz").write_bytes(gzip.compress(jsonl(texts[150:199])))
    (tmp_path / "in" / "d.txt").write_text(texts[199])
    (tmp_path / "in" / "notes.docx").write_bytes(b"no text")
    return tmp_path / "in", texts


def trained(inputs, output, **options):
    train_tokenizer(inputs, output, **{"vocab_size": 500, **options})
    return output.read_bytes()


def test_all_formats_of_a_folder_are_read(corpus, tmp_path):
    folder, texts = corpus
    report = train_tokenizer([folder], tmp_path / "t.json", vocab_size=500)
    assert (report.num_docs, report.num_files, report.num_rejected) == (200, 4, 0)
    assert report.text_bytes == sum(len(text.encode()) for text in texts)
    assert report.vocab_size == 500


def test_files_and_their_order_decide_nothing(corpus, tmp_path):
    folder, texts = corpus
    expected = trained([folder], tmp_path / "a.json")
    reverse = sorted((path for path in folder.iterdir() if path.suffix != ".docx"), reverse=True)
    assert trained(reverse, tmp_path / "b.json") == expected
    (tmp_path / "one.jsonl").write_bytes(jsonl(reversed(texts)))
    assert trained([tmp_path / "one.jsonl"], tmp_path / "c.json") == expected


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(corpus, tmp_path):
    expected = trained([corpus[0]], tmp_path / "a.json")
    for seed, parallel in (("1", "true"), ("2", "false")):
        done = subprocess.run(
            [sys.executable, "-m", "corpuskit", "tokenizer", "train", str(corpus[0]), "--json",
             "--vocab-size", "500", "--output", str(tmp_path / "b.json")],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel},
        )  # fmt: skip
        assert json.loads(done.stdout)["num_docs"] == 200
        assert (tmp_path / "b.json").read_bytes() == expected


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "a.jsonl").write_bytes(jsonl(texts_of()))
    options = {"vocab_size": 400, "special": ("<|endoftext|>", "<|pad|>")}
    return Tokenizer.from_str(trained([folder / "a.jsonl"], folder / "t.json", **options).decode())


@given(st.text())
@settings(deadline=None)
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_come_first_in_their_order(tokenizer):
    assert [tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|pad|>")] == [0, 1]
    assert tokenizer.get_vocab_size() == 400


def test_a_run_directory_gives_the_documents_that_its_seal_names(tmp_path):
    run = tmp_path / "run"
    (run / "documents").mkdir(parents=True)
    for name, texts in (("part-0.parquet", texts_of(5)), ("stray.parquet", ["stray"] * 9)):
        pq.write_table(pa.table({"text": texts}), run / "documents" / name)
    part = Part(0, "documents", "documents/part-0.parquet")
    seal = Seal.merge("pii", "f", [Manifest("pii", "f", (0,), ("",), (part,), ({},), {}, ({},))])
    (run / "manifests" / "pii").mkdir(parents=True)
    (run / "manifests" / "pii" / "seal.json").write_bytes(seal.to_json())
    assert find_files([run]) == [run / "documents" / "part-0.parquet"]


def test_a_run_without_documents_says_how_to_get_them(tmp_path):
    (tmp_path / "manifests").mkdir()
    with pytest.raises(UsageError, match="documents: true"):
        find_files([tmp_path])


def test_no_more_text_is_read_than_asked_for(tmp_path):
    for name, count in (("a.txt", 10), ("b.txt", 30)):
        (tmp_path / name).write_text("word " * count * 1000)
    (tmp_path / "c.jsonl").write_bytes(jsonl(texts_of(500)))
    report = train_tokenizer([tmp_path], tmp_path / "t.json", vocab_size=300, max_bytes=60_000)
    assert 20_000 < report.text_bytes <= 60_000
    assert report.num_docs < 200


def test_documents_that_cannot_be_read_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts_of(20)) + b'broken\n{"text": 1}\n')
    result = CliRunner().invoke(
        command,
        ["train", str(tmp_path), "--output", str(tmp_path / "t.json"), "--vocab-size", "9000"],
    )
    assert result.exit_code == 0
    assert "tokens from 20 documents" in result.output
    assert "2 documents could not be read and were left out" in result.output
    assert "fewer than the 9,000 asked for" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 256}, "--vocab-size must be at least 257"),
        ({"inputs": ["nowhere"]}, "nowhere: no such file or folder"),
        ({"inputs": ["empty"]}, "empty: nothing to read. Files must end in .parquet"),
        ({"inputs": ["other.jsonl"]}, "no text to train on. Set --text-column"),
    ],
)
def test_a_wrong_request_is_explained(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.jsonl").write_bytes(b'{"content": "a"}\n')
    (tmp_path / "a.txt").write_text("some text")
    paths = [type(tmp_path)(name) for name in options.get("inputs", ["a.txt"])]
    with pytest.raises(UsageError, match=message):
        train_tokenizer(paths, tmp_path / "t.json", vocab_size=options.get("vocab_size", 300))


def test_a_broken_input_leaves_no_tokenizer(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(texts_of(50)))[:-20])
    with pytest.raises(DataError, match="broken gzip data"):
        train_tokenizer([tmp_path], tmp_path / "out" / "t.json", vocab_size=300)
    assert not list(tmp_path.rglob("*t.json*"))


@pytest.mark.parametrize(
    ("special", "message"),
    [(["<a>", "<a>"], "'<a>' is given twice"), ([""], "'' is too short"), (["a"], "'a' is too")],
)
def test_special_tokens_that_are_none_are_refused(corpus, tmp_path, special, message):
    with pytest.raises(UsageError, match=message):
        train_tokenizer([corpus[0]], tmp_path / "t.json", vocab_size=300, special=special)


def test_a_place_that_can_not_be_written_is_named(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/t\.json: cannot be written"):
        train_tokenizer([corpus[0]], tmp_path / "file" / "t.json", vocab_size=300)


def test_a_column_that_is_not_there_names_the_option(corpus, tmp_path):
    with pytest.raises(UsageError, match="Set --text-column"):
        train_tokenizer([corpus[0]], tmp_path / "t", vocab_size=300, text_column="body")


@pytest.fixture
def ranks(tmp_path):
    """A rank file of tiktoken: the bytes, and two tokens that they merge to."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"the"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"".join(lines))
    return str(path)


def test_a_tokenizer_is_shown(ranks):
    options = ["--pattern", "gpt2", "--special", "<eos>=300", "--text", "the<eos>"]
    result = CliRunner().invoke(command, ["show", ranks, *options, "--json"])
    shown = json.loads(result.output)
    assert (shown["kind"], shown["vocab_size"], shown["eos"]) == ("tiktoken ranks", 301, ["<eos>"])
    assert shown["tokens"] == [[257, "the"], *([ord(char), char] for char in "<eos>")]
    assert (
        "special tokens  <eos> 300" in CliRunner().invoke(command, ["show", ranks, *options]).output
    )


def test_a_rank_file_becomes_a_tokenizer_of_hugging_face(ranks, tmp_path):
    output = tmp_path / "new" / "tokenizer.json"
    options = ["--pattern", "gpt2", "--special", "<eos>=300"]
    result = CliRunner().invoke(command, ["convert", ranks, str(output), *options])
    assert result.output == f"{output}: written\n"
    converted = Tokenizer.from_file(str(output))
    assert converted.encode("the<eos>").ids == [257, 300]
    assert converted.decode([257, 300]) == "the"


def test_a_special_token_without_an_id_is_explained(ranks):
    result = CliRunner().invoke(command, ["show", ranks, "--special", "<eos>"])
    assert result.exit_code == 2
    assert "must be NAME=ID, got '<eos>'" in result.output
