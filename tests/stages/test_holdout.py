from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.manifest import Part, Parts, Seal
from corpuskit.formats.shards import DocumentWriter
from corpuskit.stages.sequences import _heldout
from corpuskit.stages.sequences._heldout import HeldOutRun, find_spelling, open_held_out
from corpuskit.stages.sequences.holdout import Holdout
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec, define
from corpuskit.stages.sequences.tokenize.ranks import NAMES_OF_BYTES
from tests.contract.strategies import plain, view
from tests.engine.conftest import Lab, corpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXTS = [f"document number {number}, \xe9" for number in range(4000)]


def held(texts, **params):
    return [row["rule"] is not None for row in plain(Holdout(**params), view(texts))]


def test_the_share_is_about_the_ratio():
    assert 0.08 < sum(held(TEXTS, ratio=0.1)) / len(TEXTS) < 0.12


def test_copies_go_together():
    texts = ["same", *TEXTS[:50], "same"]
    chosen = held(texts, ratio=0.5)
    assert chosen[0] == chosen[-1]


def test_a_larger_ratio_holds_all_that_a_smaller_one_held():
    small, large = held(TEXTS, ratio=0.05), held(TEXTS, ratio=0.2)
    assert all(second for first, second in zip(small, large, strict=True) if first)


def test_another_seed_chooses_others():
    both = zip(held(TEXTS, ratio=0.5), held(TEXTS, ratio=0.5, seed=1), strict=True)
    same = sum(first == second for first, second in both)
    assert 0.45 < same / len(TEXTS) < 0.55


def test_the_choice_is_a_keyed_hash_of_the_text():
    for text, row in zip(
        TEXTS[:200], plain(Holdout(ratio=0.3, seed=7), view(TEXTS[:200])), strict=True
    ):
        key = (7).to_bytes(8, "little")
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
        share = int.from_bytes(digest, "little") / 2**64
        assert (row["rule"] == "held_out") == (share < 0.3)
        assert row["value"] == (share if share < 0.3 else "nan")


@pytest.mark.parametrize("ratio", [0, 1, -0.1])
def test_none_or_all_is_no_holdout(ratio):
    with pytest.raises(ValidationError):
        Holdout(ratio=ratio)


def test_held_out_documents_live_elsewhere():
    assert Holdout.diverts == "holdout"


def article(number: int) -> str:
    return f"Article {number}. " + "the cat sat on a mat, and caf\xe9s were open. " * (
        1 + number % 5
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A byte-level BPE, with a token that begins and one that ends documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>", "<|bos|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator([article(number) for number in range(20)], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


TEXTS_BY_SOURCE = {
    "web": [article(number) for number in range(23)],
    "books": ["\u4f60\u597d, " + article(1), "", "\xe9"],
    "notes": [],
}


class Run:
    """The files of a finished run directory that speak of its held-out documents."""

    def __init__(self, folder: Path, tokenizer: Path, **tokenize: Any) -> None:
        self.folder = folder
        stage = {"tokenizer": tokenizer.name, **tokenize}
        made = Tokenize(**{**stage, "tokenizer": str(tokenizer)})
        digest = made.provides({})["tokenizer"]["hash"]
        steps = [
            {"label": "aside", "name": "holdout", "params": {}},
            {"label": "quality", "name": "gopher_quality", "params": {}},
            {"label": "mix", "name": "mix", "params": {}},
            {"label": "tokenize", "name": "tokenize", "params": stage},
        ]
        sources = [{"label": name} for name in ("notes", "web", "books")]
        self.plan = {
            "format": 1, "folder": str(tokenizer.parent), "steps": steps, "sources": sources,
        }  # fmt: skip
        self.mix = {"format": 2, "tokenizer": {"hash": digest}}
        (folder / "holdout").mkdir(parents=True)
        parts = [part for number in (1, 0) for part in self._write_parts(number)]
        self.seal = Seal("quality", "f", (0, 1, 2, 3), Parts.of(parts), {}, {})
        self.mixed = Seal("mix.plan", "f", (0,), Parts.of([]), {}, {}, False, (self.seal.content,))
        self.write()

    def _write_parts(self, number: int) -> list[Part]:
        """Write the parts of a source: two, if there is enough for two."""
        name, texts = list(TEXTS_BY_SOURCE.items())[number]
        half = (len(texts) + 1) // 2
        found = []
        for piece, begin in enumerate((0, half)):
            taken = texts[begin : begin + half]
            path = f"holdout/part-{number}-{piece}.parquet"
            keys = [number << 40 | begin + row for row in range(len(taken))]
            columns = {"key": keys, "id": list(map(str, keys)), "text": taken}
            schema = pa.schema({"key": pa.int64(), "id": pa.string(), "text": pa.large_string()})
            with DocumentWriter(self.folder / path, schema) as writer:
                writer.write(pa.RecordBatch.from_pydict(columns, schema))
            found.append(
                Part(2 * number + piece, "aside:holdout", path, name, len(taken), first=keys[0])
            )
        return found

    def write(self) -> None:
        """Write the small files as they are now."""
        files = {
            "plan.json": json.dumps(self.plan).encode(),
            "mix/plan.json": json.dumps(self.mix).encode(),
            "manifests/quality/seal.json": self.seal.to_json(),
            "manifests/mix.plan/seal.json": self.mixed.to_json(),
        }
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)

    def open(self, max_documents: int = 1000) -> HeldOutRun:
        return open_held_out(str(self.folder), max_documents)


@pytest.fixture
def make_run(tmp_path: Path, tokenizer: Path) -> Callable[..., Run]:
    """Make a run; keyword arguments are those of `tokenize`."""
    return lambda **params: Run(tmp_path / "run", tokenizer, **params)


def all_of(held_out: HeldOutRun, source: str, rank: int = 0, ranks: int = 1) -> list[list[int]]:
    return [one.tokens.tolist() for one in held_out.documents(source, rank, ranks)]


@pytest.mark.parametrize("ends", [{}, {"add_bos": True}, {"add_bos": True, "add_eos": False}])
def test_held_out_documents_are_tokenized_as_the_run_does(make_run, tokenizer, ends):
    held_out = make_run(**ends).open()
    stage = Tokenize(tokenizer=str(tokenizer), **ends)
    assert held_out.source_names == ("web", "books"), "as in the plan, and only where some are"
    for name in held_out.source_names:
        outcome = stage.apply(view(TEXTS_BY_SOURCE[name]))
        assert all_of(held_out, name) == outcome.columns["tokens"].to_pylist()


def test_predicted_tokens_spell_the_bytes_of_text_that_count(make_run, tokenizer):
    names = {
        number: name for name, number in define(TokenizerSpec(str(tokenizer))).vocabulary.items()
    }
    bytes_of = {name: byte for byte, name in NAMES_OF_BYTES.items()}
    for ends in ({}, {"add_bos": True}, {"add_eos": False}):
        held_out = make_run(**ends).open()
        for name in held_out.source_names:
            for document in held_out.documents(name, 0, 1):
                predicted = [names[number] for number in document.tokens.tolist()[1:]]
                spelled = b"".join(
                    bytes(map(bytes_of.__getitem__, one))
                    for one in predicted
                    if one not in {"<|endoftext|>", "<|bos|>"}
                )
                assert document.text_bytes == len(spelled)
        shutil.rmtree(held_out.address)


def test_ranks_share_the_documents_and_the_first_ones_count(make_run):
    held_out = make_run().open(max_documents=15)
    whole = all_of(held_out, "web")
    assert len(whole) == 15
    for ranks in (2, 4, 16):
        shares = [all_of(held_out, "web", rank, ranks) for rank in range(ranks)]
        assert [shares[number % ranks][number // ranks] for number in range(15)] == whole
        assert sum(map(len, shares)) == 15


def test_what_is_kept_is_what_is_read_again(make_run, monkeypatch):
    run = make_run()
    before = [all_of(run.open(), "web") for _ in range(2)]
    monkeypatch.setattr(_heldout, "CACHED_TOKENS", 100)
    small = run.open()
    monkeypatch.undo()
    large = run.open()
    for held_out in (small, large):
        for _ in range(2):
            assert all_of(held_out, "books")
            assert all_of(held_out, "web") == before[0]
    shutil.rmtree(run.folder / "holdout")
    assert all_of(large, "web") == before[0]
    with pytest.raises(OSError, match="holdout"):
        all_of(small, "web")


def no_holdout(run: Run) -> None:
    del run.plan["steps"][0]


def another_tokenizer(run: Run) -> None:
    run.mix["tokenizer"]["hash"] = "0" * 32


def moved_tokenizer(run: Run) -> None:
    run.plan["folder"] = "/nowhere"


def nothing_aside(run: Run) -> None:
    run.seal = Seal("quality", "f", (0,), Parts.of([]), {}, {})


def newer_holdout(run: Run) -> None:
    run.mixed = dataclasses.replace(run.mixed, inputs=("other",))


def newer_format(run: Run) -> None:
    run.plan["format"] = 7


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (no_holdout, UsageError, r"has no holdout stage\. Add `- holdout: \{ratio: 0\.005\}` bef"),
        (nothing_aside, UsageError, r"set no document aside, or has not run yet\. Run the pipel"),
        (another_tokenizer, UsageError, r"is not the tokenizer of .*run: its hash is \w{32}, that"),
        (moved_tokenizer, UsageError, r"its tokenizer is not at /nowhere/tokenizer\.json nor at "),
        (newer_holdout, DataError, r"are newer than the token shards, which may hold some of them"),
        (newer_format, DataError, r"plan\.json: format must be 1"),
    ],
)
def test_what_cannot_be_judged_is_refused(make_run, change, error, message):
    run = make_run()
    change(run)
    run.write()
    with pytest.raises(error, match=message):
        run.open()


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"not a run directory, it has no plan\.json"):
        open_held_out(str(tmp_path), 10)


def test_another_runs_tokenizer_may_count(make_run, tmp_path, tokenizer):
    here, there = make_run(), Run(tmp_path / "there", tokenizer, add_bos=True)
    here.mix["tokenizer"]["hash"] = "0" * 32
    here.write()
    held_out = open_held_out(str(here.folder), 10, str(there.folder))
    assert all_of(held_out, "web") == all_of(there.open(10), "web")


SPELLED = {
    # The first token of each is given: "the", a space put before the text, one of two spaces, ...
    "the cat": 4,
    "\u4f60\u597d ab": 9,
    "  two": 4,
    "\xe9t\xe9": 0,
}


@pytest.mark.real
@pytest.mark.parametrize("path", ["phi3_mini/tokenizer.json", "mistral_v3/tokenizer.model"])
def test_a_space_that_the_tokenizer_adds_is_no_text(shared_data, path):
    stage = Tokenize(tokenizer=str(shared_data / "tokenizers" / path), add_eos=False)
    spelling = find_spelling(stage)
    lists = stage.apply(view(list(SPELLED))).columns["tokens"]
    for text, tokens, size_bytes in zip(SPELLED, lists.to_pylist(), SPELLED.values(), strict=True):
        assert spelling(np.array(tokens, np.uint32), text.encode()) == size_bytes


@pytest.mark.slow
def test_a_run_of_the_pipeline_can_be_judged(tmp_path, tokenizer):
    (tmp_path / "lab").mkdir()
    lab = Lab(tmp_path / "lab", tokenizer)
    lab.write("web.jsonl", corpus(40))
    lab.write("books.jsonl", corpus(30, seed=1))
    lab.pipeline["stages"] = [
        {"holdout": {"ratio": 0.3}},
        "exact_dedup",
        {"tokenize": {"tokenizer": os.path.relpath(tokenizer, lab.folder)}},
        {"pack": {"seq_len": 128}},
    ]
    lab.run()
    held_out = open_held_out(str(lab.out), 1000)
    texts: dict[str, list[str]] = {}
    for path in sorted((lab.out / "holdout").iterdir()):
        for row in pq.read_table(path).to_pylist():
            texts.setdefault(row["source"], []).append(row["text"])
    assert held_out.source_names == ("web", "books")
    for name in held_out.source_names:
        outcome = Tokenize(tokenizer=str(tokenizer)).apply(view(texts[name]))
        assert all_of(held_out, name) == outcome.columns["tokens"].to_pylist()
