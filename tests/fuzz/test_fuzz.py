"""Damaged and crafted files are read, or refused with one line that names them; never else."""

from __future__ import annotations

import json
import random

import pytest

from corpuskit.errors import UsageError
from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec, define
from corpuskit.stages.sequences.tokenize.sentencepiece import Piece, read_model, ties_hold
from tests.fuzz.formats import FORMATS, good_files
from tests.fuzz.mutate import mutate, mutate_json
from tests.fuzz.runner import fuzz

CASES = {"parquet": 30, "warc": 50, "wacz": 20, "tokenizer": 20, "sentencepiece": 30,
         "fasttext": 30}  # fmt: skip


def test_the_same_seed_gives_the_same_damage():
    content = bytes(range(256)) * 4
    made = {mutate(content, random.Random(seed)) for seed in range(50)}
    assert len(made) > 45
    assert made == {mutate(content, random.Random(seed)) for seed in range(50)}
    tree = json.dumps({"a": [1, {"b": "c"}]}).encode()
    assert mutate_json(tree, random.Random(3)) == mutate_json(tree, random.Random(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused_by_name(name):
    """More of them: python -m tests.fuzz --num 5000."""
    if name in {"warc", "wacz"}:
        pytest.importorskip("resiliparse")
    found = fuzz(name, 0, CASES[name])
    assert [one for one in found if one.is_bad] == []
    assert {"read", "refused"} <= {one.outcome for one in found}


# ---------------------------------------------------------------- crafted tokenizers


def crafted(tmp_path, change) -> str:
    fields = json.loads(good_files("tokenizer")[0])
    change(fields)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(fields))
    return str(path)


@pytest.mark.parametrize("number", [-1, 2**32 + 5, 2**24, 1.5, "7", None, True])
def test_an_id_that_no_vocabulary_has_is_refused(tmp_path, number):
    path = crafted(tmp_path, lambda fields: fields["model"]["vocab"].update({"zz": number}))
    with pytest.raises(UsageError, match=rf"{path}: .*'zz' has the id"):
        define(TokenizerSpec(path))


@pytest.mark.parametrize("depth", [1_000, 1_000_000])
def test_a_tokenizer_nested_too_deep_is_refused(tmp_path, depth):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"vocab": ' + "[" * depth + "]" * depth + "}}")
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        define(TokenizerSpec(str(path)))


def test_special_tokens_without_number_are_refused(tmp_path):
    fields = json.loads(good_files("tokenizer")[3])
    fields["config"]["default_num_special_tokens"] = 10**12
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(UsageError, match=r"tekken\.json is not a Tekken file"):
        define(TokenizerSpec(str(path)))


def test_a_number_without_end_in_a_sentencepiece_model_is_refused():
    with pytest.raises(UsageError, match=r"a\.model begins like a SentencePiece model"):
        read_model("a.model", b"\x0a" + b"\x80" * 3_000_000)


def test_long_runs_that_tie_are_left_to_the_library():
    # Trying them takes their length to the power of four.
    pieces = [Piece("a" * size, -1.0, 1) for size in (100_000, 50_000, 2)]
    assert not ties_hold(pieces, [50_000, 25_000, 1])
