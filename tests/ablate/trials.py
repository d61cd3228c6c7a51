"""Ablations of corpora that differ by nothing but chance, or by a planted harm.

A trial deals the documents of sample_data into two halves and a set to judge by, writes a pipeline
for each half, and runs `corpuskit ablate` on them, as a user would.
"""

from __future__ import annotations

import functools
import json
import random
from codecs import encode
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from corpuskit.cli.main import group
from tests.conftest import ROOT, shared_folder

MODEL = {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 2, "ffn_dim": 96, "tied": False,
         "embedding_std": 0.5}  # fmt: skip
"""80,000 parameters with 1,024 tokens of vocabulary."""
JUDGES = 120
PASSAGE = 1000
"""Characters of a document: a training reads hundreds of them, so that a draw is like another."""
HARMS = ("none", "shuffled", "copies", "language", "twins")


def write_trial(
    folder: Path, seed: int, harm: str, *, most: int = 6000, seq_len: int = 64, epochs: int = 1,
    rows: int = 4,
) -> list[str]:  # fmt: skip
    """Write two pipelines, a training file and a task; return the arguments of the command.

    Args:
        most: documents of both halves together.
        epochs: how often a training may repeat its half.
        rows: of a step.
    """
    draw = random.Random(seed)
    texts = draw.sample(read_texts(), len(read_texts()))
    num = min(JUDGES, len(texts) // 2)
    judges, rest = texts[:num], texts[num : num + most]
    middle = len(rest) // 2
    other = rest[:middle] if harm == "twins" else rest[middle:]
    halves = {"a": rest[:middle], "b": harmed(other, harm, draw)}
    small_tokenizer(rest[:300]).save(str(folder / "tokenizer.json"))
    for name, half in halves.items():
        (folder / f"{name}.jsonl").write_text(_lines(half))
        pipeline = {
            "name": name,
            "output": str(folder / "runs" / name),
            "sources": {"web": {"jsonl": str(folder / f"{name}.jsonl")}},
            "stages": [
                {"mix": {"max_epochs": epochs}},
                {"tokenize": {"tokenizer": str(folder / "tokenizer.json"), "add_eos": False}},
                {"pack": {"seq_len": seq_len}},
                "shuffle",
            ],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(pipeline))
    (folder / "judges.jsonl").write_text(_lines(judges))
    training = {
        "name": "tiny", "model": MODEL, "batch": {"global_rows": rows, "micro_rows": rows},
        "optimizer": {"lr": 2e-2}, "schedule": {"warmup_ratio": 0.1, "final_ratio": 0.0},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(training))
    return [
        str(folder / "a.yaml"), str(folder / "b.yaml"), "--training", str(folder / "tiny.yaml"),
        "--task", f"judges={folder / 'judges.jsonl'}", "--output", str(folder / "study"),
    ]  # fmt: skip


@functools.cache
def read_texts(language: str = "eng") -> list[str]:
    """Return passages of novels, where the shared data is at hand; else of our pages.

    Word order matters in prose. Manuals (the rest of bench_en) are half tables and listings.
    """
    shared = shared_folder()
    if not shared.exists():
        pages = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
        return _passages(pages if language == "eng" else [encode(p, "rot13") for p in pages])
    folder = "bench_en" if language == "eng" else "bench_multi"
    # The last two files: settings of the trials were chosen on the first two of bench_en.
    texts = []
    for path in sorted((shared / folder).glob("*.parquet"))[-2:]:
        table = pq.read_table(path, columns=["text", "source"]).to_pydict()
        rows = zip(table["text"], table["source"], strict=True)
        texts += [text for text, source in rows if source == f"COST-ELTeC/ELTeC-{language}"]
    return _passages(texts)


def _passages(texts: list[str]) -> list[str]:
    return [
        text[begin : begin + PASSAGE]
        for text in texts
        for begin in range(0, len(text) - PASSAGE, PASSAGE)
    ]


def small_tokenizer(texts: list[str]) -> Tokenizer:
    """Train 1,024 tokens: 512 hide the words, and with 4,096 most of the time goes into logits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def harmed(texts: list[str], harm: str, draw: random.Random) -> list[str]:
    """Return texts of which a share was made worse."""
    if harm == "shuffled":  # the words of every fifth document
        return [_shuffled(text, draw) if draw.random() < 0.2 else text for text in texts]
    if harm == "copies":  # three documents of ten are copies of one of ten
        return [draw.choice(texts[:10]) if draw.random() < 0.3 else text for text in texts]
    if harm == "twins":  # three of ten are one more copy of another one
        unique = len(texts) - int(0.3 * len(texts))
        return [*texts[:unique], *draw.sample(texts[:unique], len(texts) - unique)]
    if harm == "language":  # every fifth document is French
        others = read_texts("fra")
        return [draw.choice(others) if draw.random() < 0.2 else text for text in texts]
    return texts


def ablate(arguments: list[str]) -> dict[str, Any]:
    """Run the command; return its results."""
    outcome = CliRunner().invoke(group, ["ablate", *arguments, "--json"])
    assert outcome.exit_code == 0, outcome.output
    results: dict[str, Any] = json.loads(outcome.stdout)
    return results


def _shuffled(text: str, draw: random.Random) -> str:
    words = text.split(" ")
    draw.shuffle(words)
    return " ".join(words)


def _lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)
