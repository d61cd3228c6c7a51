"""A small pipeline with every kind of stage, cheap enough to run thousands of times."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from corpuskit.plan import read_plan
from tests.run.conftest import corpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.plan import Plan
    from corpuskit.storage import Store

FOLDERS = ("documents", "holdout", "ledger", "mix", "tokens")
"""What a run is for; must not differ."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "words": ("gopher_quality.min_words=38",),
    "ngram": ("minhash_dedup.ngram=2",),
    "mask": ("pii.email_replacement=mail@example.com",),
    "length": ("pack.seq_len=96",),
    "parts": ("shuffle.rows_per_part=24",),
    "weights": ("mix.weights.web=2",),
}
"""Edits of the pipeline, from the first phase to the last."""


class Bench:
    """Inputs, a tokenizer and the compiled variants of the pipeline.

    Args:
        folder: private, on a fast file system.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: dict[tuple[str, int], Plan] = {}
        documents = corpus(30, 3)
        for name, begin, end in (("web0", 0, 10), ("web1", 10, 20), ("books", 20, 30)):
            lines = "".join(json.dumps(document) + "\n" for document in documents[begin:end])
            (folder / f"{name}.jsonl").write_text(lines, "utf-8")
        _train([document["text"] for document in documents], folder / "tokenizer.json")
        self.path = folder / "p.yaml"
        self.path.write_text(yaml.safe_dump(self._pipeline(), sort_keys=False))

    def _pipeline(self) -> dict[str, object]:
        return {
            "output": str(self.folder / "out"),
            "cell_bytes": 7_000,
            "documents": True,
            "sources": {
                "web": {"jsonl": str(self.folder / "web*.jsonl"), "id_column": "id"},
                "books": {"jsonl": str(self.folder / "books*.jsonl"), "id_column": "id"},
            },
            "stages": [
                {"holdout": {"ratio": 0.1}},
                {"gopher_quality": {"words": "whitespace", "min_words": 30}},
                "exact_dedup",
                {"minhash_dedup": {"ngram": 3}},
                {"pii": {}},
                {"mix": {"weights": {"web": 3, "books": 1}}},
                {"tokenize": {"tokenizer": str(self.folder / "tokenizer.json")}},
                {"pack": {"seq_len": 128}},
                {"shuffle": {"rows_per_part": 32}},
            ],
        }

    def plan(self, variant: str, tasks: int, output: str) -> Plan:
        """Return a variant of the pipeline, cut into `tasks` tasks per phase."""
        if (variant, tasks) not in self.plans:
            overrides = [*VARIANTS[variant], f"executor.tasks={tasks}"]
            self.plans[variant, tasks] = read_plan(self.path, overrides)
        plan = self.plans[variant, tasks]
        settings = plan.settings.model_copy(update={"output": output})
        return dataclasses.replace(plan, file=dataclasses.replace(plan.file, settings=settings))


@contextlib.contextmanager
def open_bench(kind: type[Bench] = Bench) -> Iterator[Bench]:
    """Yield a bench in memory where there is such a file system; scratch lies there, too."""
    memory = Path("/dev/shm")
    parent = str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=parent))
    (folder / "tmp").mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder / "tmp")
    try:
        yield kind(folder)
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder)


def contents(store: Store) -> dict[str, str]:
    """Return name -> hash of every file that a run is for."""
    return {
        name: hashlib.blake2b(store.read(name), digest_size=16).hexdigest()
        for folder in FOLDERS
        for name in store.list(folder)
    }


def _train(texts: list[str], path: Path) -> None:
    """Write a small byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(texts, trainer)
    made.save(str(path))
