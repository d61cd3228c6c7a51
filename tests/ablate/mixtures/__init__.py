"""Mixtures whose best is known: losses that are formulas, and models that are trained.

The formula: a domain's loss falls as a power of what its model saw of use for it. Of a source that
is repeated, each epoch is worth less (Muennighoff et al. 2023), and beyond some it harms.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from click.testing import CliRunner

from corpuskit.ablate.mixture import WIDE
from corpuskit.ablate.surface import choose, draw_near, draw_shares, fit, lowest
from corpuskit.cli.main import group
from tests.ablate.trials import MODEL, small_tokenizer
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

NOISE = 0.003


@dataclasses.dataclass(frozen=True)
class World:
    """Sources and domains: `use` (D, K) is what a token of a source is worth for a domain."""

    floors: np.ndarray
    heights: np.ndarray
    powers: np.ndarray
    use: np.ndarray
    supply: np.ndarray  # (K,) tokens of each source, of those of the target run

    def losses(self, shares: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Return (M, D) the losses of runs whose sources are `scale` times the target's."""
        unique = np.minimum(shares, self.supply * scale)
        again = np.maximum(shares / (self.supply * scale) - 1, 0)
        worth = unique * (1 + 5 * (1 - np.exp(-again / 5)))
        seen = worth @ self.use.T + 0.02
        return self.floors + self.heights * seen**-self.powers

    def objective(self, shares: np.ndarray) -> np.ndarray:
        return self.losses(shares).mean(1)


def draw_world(seed: int, num: int, *, scarce: bool) -> World:
    """Draw a world of `num` sources, a domain of each; with `scarce`, some have few tokens."""
    random = np.random.default_rng([seed, num])
    use = np.eye(num) + random.uniform(0, 0.3, (num, num)) * (1 - np.eye(num))
    supply = np.full(num, 10.0)
    if scarce:
        supply[: num // 2] = random.uniform(0.01, 0.05, num // 2)
    return World(
        random.uniform(0.8, 1.5, num), random.uniform(0.2, 0.6, num),
        random.uniform(0.2, 0.5, num), use, supply,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Found:
    """The largest error of a share; what the objective is above its least, and proportional's."""

    error: float
    regret: float
    of_natural: float


def search(world: World, runs: int, seed: int, *, scale: float = 1.0) -> Found:
    """Search as the command does, with formulas for trainings."""
    num = len(world.supply)
    low, high = np.zeros(num), np.ones(num)
    natural = np.random.default_rng([seed, 1]).dirichlet(np.full(num, 2.0))
    noise = np.random.default_rng([seed, 2]).normal(0, NOISE, (runs, num))
    first = math.ceil(WIDE * runs)
    shares = np.array([draw_shares(number, natural, low, high) for number in range(first)])
    best = predicted(shares, world.losses(shares, scale) + noise[:first])
    near = [draw_near(number, best, low, high) for number in range(runs - first)]
    shares = np.concatenate([shares, near])
    best = predicted(shares, world.losses(shares, scale) + noise)
    truth = lowest(world.objective, shares[:3], low, high)
    at_best, at_truth, at_natural = world.objective(np.array([best, truth, natural]))
    return Found(abs(best - truth).max(), at_best - at_truth, at_natural - at_truth)


def predicted(shares: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return the mixture with the least mean loss of the domains, as far as is known."""
    surfaces = [fit(shares, one, choose(shares, one)) for one in losses.T]
    low, high = np.zeros(shares.shape[1]), np.ones(shares.shape[1])
    starts = shares[losses.mean(1).argsort()[:3]]
    return lowest(lambda some: np.mean([one(some) for one in surfaces], 0), starts, low, high)


def write_sources(folder: Path, sources: dict[str, list[str]], *, seq_len: int = 128) -> list[str]:
    """Write a pipeline over texts and a training file; return the arguments of the command."""
    for name, texts in sources.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    every = [text for texts in sources.values() for text in texts[:40]]
    small_tokenizer(every).save(str(folder / "tokenizer.json"))
    pipeline = {
        "name": "mixed",
        "output": str(folder / "runs/mixed"),
        "sources": {name: {"jsonl": str(folder / f"{name}.jsonl")} for name in sources},
        "stages": [
            {"holdout": {"ratio": 0.1}},
            {"tokenize": {"tokenizer": str(folder / "tokenizer.json"), "add_eos": False}},
            {"pack": {"seq_len": seq_len}},
            "shuffle",
            "mix",
        ],
    }
    (folder / "p.yaml").write_text(yaml.safe_dump(pipeline))
    training = {
        "name": "tiny", "model": MODEL, "batch": {"global_rows": 2, "micro_rows": 2},
        "optimizer": {"lr": 1e-2}, "schedule": {"warmup_ratio": 0.1},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(training))
    return [
        str(folder / "p.yaml"), "--training", str(folder / "tiny.yaml"),
        "-o", str(folder / "search"),
    ]  # fmt: skip


def search_mixture(arguments: list[str]) -> dict[str, Any]:
    """Run the command; return its results."""
    outcome = CliRunner().invoke(group, ["mixture", "search", *arguments, "--json"])
    assert outcome.exit_code == 0, (outcome.output, outcome.exc_info)
    results: dict[str, Any] = json.loads(outcome.stdout)
    return results


def our_texts() -> dict[str, list[str]]:
    """Return pieces of our pages, of our code, and of words in no order."""
    kinds = {"prose": ROOT.glob("docs/*.md"), "code": ROOT.glob("corpuskit/*/*.py")}
    whole = {name: "".join(p.read_text("utf-8") for p in sorted(of)) for name, of in kinds.items()}
    texts = {
        name: [text[begin : begin + 1500] for begin in range(0, min(len(text), 450_000), 1500)]
        for name, text in whole.items()
    }
    letters = random.Random(0)
    texts["noise"] = ["".join(letters.choices("abcdefghijklmnop ", k=1000)) for _ in range(100)]
    return texts
