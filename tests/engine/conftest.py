"""A small corpus with something for every stage, and ways to run pipelines on it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.engine.here import command_line
from tests.patience import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

WORDS = (
    "the of and to that with have be river stone market winter letter garden engine bridge "
    "teacher window village summer forest history science music paper silver morning evening "
    "question answer number family country water light people work house school small large "
    "early late quick slow bright quiet open closed north south east west walked found made "
    "carried opened wrote heard kept built learned crossed turned followed waited"
).split()


def sentence(rng: random.Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(7, 16))
    return " ".join(words).capitalize() + "."


def article(rng: random.Random) -> str:
    paragraphs = [
        " ".join(sentence(rng) for _ in range(rng.randint(3, 7))) for _ in range(rng.randint(1, 4))
    ]
    return "\n\n".join(paragraphs)


def corpus(num: int = 160, seed: int = 0) -> list[dict[str, str]]:
    """Articles, exact copies, edited copies, short and symbol-ridden ones, e-mail addresses."""
    rng = random.Random(seed)
    texts: list[str] = []
    for i in range(num):
        kind = rng.random()
        if kind < 0.12 and texts:
            texts.append(rng.choice(texts))
        elif kind < 0.24 and texts:
            words = rng.choice(texts).split(" ")
            if len(words) > 12:
                words[rng.randrange(len(words))] = "changed"
            texts.append(" ".join(words))
        elif kind < 0.34:
            texts.append("short text " * rng.randint(1, 5))
        elif kind < 0.40:
            texts.append(article(rng) + " # # #" * 80)
        elif kind < 0.50:
            texts.append(article(rng) + f" Write to user{i}@mail.example.org today.")
        else:
            texts.append(article(rng))
    return [{"id": f"doc{i}", "text": text} for i, text in enumerate(texts)]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE trained on the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([d["text"] for d in corpus(60, 1)], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


class Lab:
    """A folder with inputs and a pipeline, and the command line to run it."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder = folder
        self.inputs = folder / "in"
        self.path = folder / "p.yaml"
        self.inputs.mkdir()
        self.pipeline: dict = {
            "output": str(folder / "out"),
            "cell_bytes": 15_000,
            "sources": {
                "web": {"jsonl": str(self.inputs / "web*.jsonl"), "id_column": "id"},
                "books": {"jsonl": str(self.inputs / "books*.jsonl"), "id_column": "id"},
            },
            "stages": [
                {"gopher_quality": {"words": "whitespace", "min_words": 30}},
                "exact_dedup",
                {"minhash_dedup": {"ngram": 3}},
                "pii",
                {"mix": {"weights": {"web": 3, "books": 1}}},
                {"tokenize": {"tokenizer": str(tokenizer)}},
                {"pack": {"seq_len": 128}},
                {"shuffle": {"rows_per_part": 64}},
            ],
            "executor": {"workers": 1},
        }

    @property
    def out(self) -> Path:
        return Path(self.pipeline["output"])

    def write(self, name: str, documents: list[dict]) -> Path:
        path = self.inputs / name
        path.write_text("".join(json.dumps(d) + "\n" for d in documents), "utf-8")
        return path

    def stage(self, name: str) -> dict:
        """Return the parameters of a stage, to edit."""
        for index, item in enumerate(self.pipeline["stages"]):
            if item == name:
                self.pipeline["stages"][index] = {name: {}}
                return self.pipeline["stages"][index][name]
            if isinstance(item, dict) and name in item:
                return item[name]
        raise KeyError(name)

    def save(self) -> None:
        self.path.write_text(yaml.safe_dump(self.pipeline, sort_keys=False))

    def cli(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Call the command line in this process; assert its exit code."""
        return checked(command_line(self.folder, arguments), code)

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Save the pipeline and run it in this process, tasks included."""
        self.save()
        return self.cli("run", str(self.path), *arguments, code=code)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "corpuskit", *arguments]

    def cli_apart(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Start the command line as a user does; assert its exit code."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=environment, text=True,
            capture_output=True, check=False, timeout=HANG_SECONDS,
        )  # fmt: skip
        return checked(done, code)

    def run_apart(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Save the pipeline and run it as a user does: a process, and its workers."""
        self.save()
        return self.cli_apart("run", str(self.path), *arguments, code=code)

    def facts(self) -> dict:
        return json.loads(self.cli("status", str(self.out), "--json").stdout)


def checked(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
    """Return what came of a command whose exit code is the expected one."""
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def tree(folder: Path, *names: str) -> dict[str, str]:
    """Return path -> digest of every file below some folders of a run directory."""
    found = {}
    for name in names or ("documents", "tokens", "mix", "ledger"):
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
                found[path.relative_to(folder).as_posix()] = digest
    return found


def new_lab(folder: Path, tokenizer: Path) -> Lab:
    """Return a lab with the small corpus in two sources and three files."""
    made = Lab(folder, tokenizer)
    documents = corpus()
    made.write("web0.jsonl", documents[:60])
    made.write("web1.jsonl", documents[60:120])
    made.write("books.jsonl", documents[120:])
    return made


@pytest.fixture
def lab(tmp_path: Path, tokenizer: Path) -> Lab:
    """A lab that has not run."""
    return new_lab(tmp_path, tokenizer)


@pytest.fixture(scope="session")
def _once_run(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> tuple[Lab, Path]:
    """A lab that has run, and a copy of its folder."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "lab").mkdir()
    made = new_lab(folder / "lab", tokenizer)
    made.run()
    shutil.copytree(made.folder, folder / "copy")
    return made, folder / "copy"


@pytest.fixture
def ran(_once_run: tuple[Lab, Path]) -> Lab:
    """A lab that has run in this process, for tests that edit it and run it again."""
    made, folder = _once_run
    shutil.rmtree(made.folder)
    shutil.copytree(folder, made.folder)
    lab = copy.copy(made)
    lab.pipeline = copy.deepcopy(made.pipeline)
    return lab


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Lab:
    """A lab whose pipeline a user's command has run; tests must not change it."""
    made = new_lab(tmp_path_factory.mktemp("finished"), tokenizer)
    made.run_apart()
    return made
