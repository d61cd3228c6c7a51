"""A run with a document of each fate, for the tests of `corpuskit why`."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from corpuskit.engine.rundir import RunDirectory
from corpuskit.inspect.lookup import RunDocuments
from tests.engine.conftest import Lab, article, tokenizer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WhyLab", "make_lab", "tokenizer", "whys"]

HOSTILE = "\x1b]0;owned\x07\x1b[31m\u202ered\u2066\x00end\n<script>"
NOTES = "notes\x1b[2J\u202e"
"""Name of a file: what it holds has it in its ids."""

PASSAGE = (
    "This passage stands in two documents, word for word, and is so long that nobody would write "
    "it twice by chance: the ferry leaves at noon, carries nine crates of pears and returns empty."
)


def documents() -> list[dict[str, Any]]:
    """Articles, and one document of each fate, all of a source with ids and URLs."""
    rng = random.Random(5)
    texts = [article(rng) + " " + article(rng) for _ in range(40)]
    found = [{"id": f"doc{i}", "text": text} for i, text in enumerate(texts)]
    copies = {"copy-1": texts[3], "copy-2": texts[3], "edited": texts[4].replace(" the ", " a ", 1)}
    found += [{"id": name, "text": text} for name, text in copies.items()]
    found += [
        {"id": "short", "text": "Too short to keep."},
        {"id": "mail", "text": f"{texts[5][:200]} Write to jo@mail.example.org. {article(rng)}"},
        {"id": "quoted", "text": f"{article(rng)}\n\n{PASSAGE}\n\n{article(rng)}"},
        {"id": "quoting", "text": f"{article(rng)}\n\n{PASSAGE}\n\n{article(rng)}"},
        {"id": "twice", "text": article(rng) + article(rng)},
        {"id": "twice", "text": article(rng) + " Another text with this id. " + article(rng)},
        {"id": HOSTILE, "text": f"{HOSTILE} {article(rng)} {HOSTILE}"},
        {"id": "5", "text": article(rng) + article(rng)},
        {"id": "surrogate", "text": article(rng) + " \ud800 " + article(rng)},
    ]
    urls = [f"https://site.example/{i}" for i in range(len(found))]
    tails = [HOSTILE if one["id"] == HOSTILE else "" for one in found]
    return [{**one, "url": url + tail} for one, url, tail in zip(found, urls, tails, strict=True)]


class WhyLab(Lab):
    """A lab that tells histories."""

    def documents(self) -> RunDocuments:
        return RunDocuments(RunDirectory.open(str(self.out)))

    def why(self, *arguments: str, code: int = 0) -> Any:
        """Return what `why --json` says."""
        done = self.cli("why", str(self.out), *arguments, "--json", code=code)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def told(self, *arguments: str) -> dict[str, Any]:
        """Return the history of the one document that is found."""
        (one,) = self.why(*arguments)["documents"]
        return one

    def rows(self, folder: str) -> list[dict[str, Any]]:
        paths = sorted((self.out / folder).glob("*.parquet"))
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def dropped(self, rule: str) -> list[dict[str, Any]]:
        return [row for row in self.rows("ledger") if row["rule"] == rule]


def make_lab(folder: Path, tokenizer: Path) -> WhyLab:
    """Return a lab with all inputs, not yet run."""
    lab = WhyLab(folder, tokenizer)
    rng = random.Random(9)
    lines = [json.dumps(one) for one in documents()]
    lines.insert(7, '{"id": "broken", "text": ')
    (lab.inputs / "web0.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")
    lab.write(f"{NOTES}.jsonl", [{"text": article(rng) + article(rng)} for _ in range(8)])
    lab.pipeline["sources"] = {
        "web": {"jsonl": str(lab.inputs / "web*.jsonl"), "id_column": "id", "url_column": "url"},
        "notes": {"jsonl": str(lab.inputs / "notes*.jsonl")},
    }
    lab.pipeline["stages"] = [
        {"holdout": {"ratio": 0.1, "seed": 2}},
        {"gopher_quality": {"words": "whitespace", "min_words": 30, "measures": True}},
        "exact_dedup",
        {"minhash_dedup": {"ngram": 3}},
        {"substring_dedup": {"min_bytes": 150}},
        "pii",
        # Notes are taken twice, and most of the web never.
        {"mix": {"weights": {"web": 1, "notes": 2}, "max_epochs": 2}},
        {"tokenize": {"tokenizer": str(tokenizer)}},
        {"pack": {"seq_len": 128}},
        {"shuffle": {"rows_per_part": 64}},
    ]
    return lab


@pytest.fixture(scope="session")
def whys(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> WhyLab:
    """A finished run with a document of each fate; tests must not change it."""
    lab = make_lab(tmp_path_factory.mktemp("whys"), tokenizer)
    lab.run()
    return lab
