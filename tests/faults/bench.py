"""A small pipeline with every kind of stage, cheap enough to run thousands of times."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from corpuskit.engine.plan import read_plan
from tests.engine.conftest import corpus
from tests.faults.history import Arrangement, history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.plan import Plan
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
    "delete": ("shuffle_files=delete",),
}
"""Edits of the pipeline, from the first phase to the last."""


class Bench:
    """Inputs, a tokenizer and the compiled variants of the pipeline.

    A variant is one of VARIANTS, or `history-S.I`: the I-th arrangement of sources of a history.

    Args:
        folder: private, on a fast file system.
    """

    source = "jsonl"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: dict[tuple[str, int], Plan] = {}
        documents = corpus(30, 3)
        for name, begin, end in (("web0", 0, 10), ("web1", 10, 20), ("books", 20, 30)):
            path = folder / f"{name}.{self.source}"
            path.write_bytes(self._content(documents[begin:end]))
        _train([document["text"] for document in documents], folder / "tokenizer.json")
        self.path = folder / "p.yaml"
        files = {name: folder / f"{name}*.{self.source}" for name in ("web", "books")}
        pipeline = self._pipeline(files, {"weights": {"web": 3, "books": 1}})
        self.path.write_text(yaml.safe_dump(pipeline, sort_keys=False))

    def _content(self, documents: list[dict[str, str]]) -> bytes:
        return "".join(json.dumps(document) + "\n" for document in documents).encode()

    def _pipeline(self, files: dict[str, Path], mix: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": "bench",
            "output": str(self.folder / "out"),
            "cell_bytes": 7_000,
            "documents": True,
            "sources": {
                name: {self.source: str(pattern), "id_column": "id"}
                for name, pattern in files.items()
            },
            "stages": [
                {"holdout": {"ratio": 0.1}},
                {"gopher_quality": {"words": "whitespace", "min_words": 30}},
                "exact_dedup",
                {"minhash_dedup": {"ngram": 3}},
                {"pii": {}},
                {"mix": mix},
                {"tokenize": {"tokenizer": str(self.folder / "tokenizer.json")}},
                {"pack": {"seq_len": 128}},
                {"shuffle": {"rows_per_part": 32}},
            ],
        }

    def plan(self, variant: str, tasks: int, output: str) -> Plan:
        """Return a variant of the pipeline, cut into `tasks` tasks per phase."""
        if (variant, tasks) not in self.plans:
            overrides = VARIANTS.get(variant, ())
            path = self.path
            if variant not in VARIANTS:
                arrangement = self._arrangement(variant)
                pattern = f"*.{self.source}"
                files = {name: self.folder / "in" / name / pattern for name in arrangement.files}
                path = self.folder / f"{variant}.yaml"
                # Without weights: a source may have nothing left, which a weight refuses.
                path.write_text(yaml.safe_dump(self._pipeline(files, {}), sort_keys=False))
                overrides = VARIANTS[arrangement.edit]
            self.plans[variant, tasks] = read_plan(path, [*overrides, f"executor.tasks={tasks}"])
        plan = self.plans[variant, tasks]
        settings = plan.settings.model_copy(update={"output": output})
        return dataclasses.replace(plan, file=dataclasses.replace(plan.file, settings=settings))

    def _arrangement(self, variant: str) -> Arrangement:
        seed, index = variant.removeprefix("history-").split(".")
        return history(int(seed))[int(index)]

    def arrange(self, variant: str) -> None:
        """Give the sources of a history the files of a variant; what moves keeps its time."""
        if variant in VARIANTS:
            return
        folder, stash = self.folder / "in", self.folder / "stash"
        documents = _pool()
        wanted = {
            (folder / source / name).with_suffix(f".{self.source}"): self._content(
                [documents[i] for i in chosen]
            )
            for source, files in self._arrangement(variant).files.items()
            for name, chosen in files.items()
        }
        stash.mkdir()
        spare: dict[bytes, Path] = {}
        for number, path in enumerate(list(folder.rglob(f"*.{self.source}"))):
            content = path.read_bytes()
            if wanted.get(path) != content:
                spare[content] = path.rename(stash / str(number))
        for path, content in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if content in spare:
                spare.pop(content).rename(path)
            elif not path.exists():
                path.write_bytes(content)
        shutil.rmtree(stash)


class ReferringBench(Bench):
    """The same documents in Parquet files, which a global stage reads: texts stay there."""

    source = "parquet"

    def _content(self, documents: list[dict[str, str]]) -> bytes:
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(documents, _DOCUMENTS), file, row_group_size=4)
        return file.getvalue()

    def _pipeline(self, files: dict[str, Path], mix: dict[str, Any]) -> dict[str, Any]:
        pipeline = super()._pipeline(files, mix)
        holdout, quality, *others = pipeline["stages"]
        pipeline["stages"] = [*others[:2], holdout, quality, *others[2:]]
        return pipeline


_DOCUMENTS = pa.schema([("id", pa.string()), ("text", pa.string())])


@functools.cache
def _pool() -> list[dict[str, str]]:
    return corpus(60, 3)


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
