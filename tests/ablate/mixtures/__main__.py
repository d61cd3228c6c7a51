"""Search mixtures whose best is known: `python -m tests.ablate.mixtures [--ample DIR | --few DIR]`.

Losses are formulas; with a folder, those of models, and the best is that of a grid.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corpuskit.ablate.study import find_judges, read_scores, run_trainings
from corpuskit.cli.mixture import read_search, search_command
from tests.ablate.mixtures import draw_world, our_texts, search, search_mixture, write_sources


def read_languages(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return German and French texts of the same kinds, and the options to judge by 60 others."""
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    path = next(shared.glob("bench_multi/*-00001-*.parquet"))
    table = pq.read_table(path, columns=["text", "lang"])
    texts, options = {}, ["--documents", "0"]
    for name in ("de", "fr"):
        own = table.filter(pc.equal(table["lang"], name))["text"].to_pylist()
        random.Random(0).shuffle(own)
        own = [text[:3000] for text in own]
        judges = folder / f"judges-{name}.jsonl"
        judges.write_text("".join(json.dumps({"text": one}) + "\n" for one in own[:60]), "utf-8")
        texts[name] = own[60:]
        options += ["--task", f"{name}_judges={judges}"]
    return texts, options


def train_grid(
    arguments: list[str], shares: list[list[float]], seeds: range
) -> dict[tuple[float, ...], list[float]]:
    """Return the objective of each mixture after a training with each seed."""
    search = read_search(**search_command.make_context("search", [*arguments]).params)
    [corpus] = search.study.build()
    judges = find_judges(search.study, [corpus])
    scale, weights, measured = search.scale(corpus), search.weights(judges), {}
    for own in shares:
        trainings = [search.proxy(corpus, scale, judges, np.array(own), seed) for seed in seeds]
        assert run_trainings(trainings, judges, lambda *_: None) is None, "stopped"
        read = [read_scores(training.scores) for training in trainings]
        measured[tuple(own)] = [
            sum(w * sum(one[d]["nats"]) / sum(one[d]["bytes"]) for d, w in weights.items())
            / math.log(2)
            for one in read
        ]
    return measured


def vertex(measured: dict[float, list[float]]) -> float:
    """Return where a parabola through the least mean and its neighbours is lowest."""
    at = sorted(measured)
    means = [float(np.mean(measured[share])) for share in at]
    middle = min(max(int(np.argmin(means)), 1), len(at) - 2)
    near = slice(middle - 1, middle + 2)
    a, b, _ = np.polyfit(at[near], means[near], 2)
    return float(np.clip(-b / (2 * a), at[0], at[-1]))


def show(title: str, measured: dict[float, list[float]]) -> None:
    """Print a grid."""
    each = ", ".join(f"{share:g}: {np.mean(own):.4f}" for share, own in sorted(measured.items()))
    print(f"{title}: {each}; lowest at {vertex(measured):.3f}", flush=True)


def ample(folder: Path) -> None:
    """Search among German, French, of which less is there, and noise; French counts twice."""
    texts, judged = read_languages(folder)
    texts = {"de": texts["de"], "fr": texts["fr"][:100], "noise": our_texts()["noise"][:40]}
    arguments = [*write_sources(folder, texts), *judged, "--objective", "de_judges=1",
                 "--objective", "fr_judges=2", "--tokens", "100K",
                 "--target-tokens", "100K"]  # fmt: skip
    report("German, French, noise", search_mixture([*arguments, "--runs", "30", "--seeds", "4"]))
    mixtures = [[1 - fr / 10, fr / 10, 0.0] for fr in range(3, 10)]
    measured = train_grid(arguments, [*mixtures, [0.35, 0.55, 0.1]], range(10, 13))
    show("share of French, grid", {own[1]: measured[tuple(own)] for own in mixtures})
    print("de .35, fr .55, noise .1:", np.mean(measured[0.35, 0.55, 0.1]))


def few(folder: Path) -> None:
    """Search where there is hardly any French to train on."""
    texts, judged = read_languages(folder)
    arguments = [*write_sources(folder, {"de": texts["de"], "fr": texts["fr"][:6]}), *judged,
                 "--max-epochs", "200", "--seeds", "3", "--runs", "14"]  # fmt: skip
    for title, target in (("epochs matched", "300K"), ("epochs not matched", "75K")):
        sized = [*arguments, "--tokens", "75K", "--target-tokens", target]
        report(f"few French, {title}", search_mixture(sized))
    mixtures = [[1 - fr, fr] for fr in (0.03, 0.06, 0.12, 0.2, 0.3)]
    at_scale = [*arguments, "--tokens", "300K", "--target-tokens", "300K"]
    measured = train_grid(at_scale, mixtures, range(10, 12))
    show("share of French, grid of 300K", {own[1]: measured[tuple(own)] for own in mixtures})


def report(title: str, results: dict[str, Any]) -> None:
    """Print shares, and what they gain."""
    shares = ", ".join(
        f"{one['name']} {one['share']:.3f} ({one['low']:.3f} to {one['high']:.3f}; "
        f"{one['epochs']:.1f} epochs; proportional {one['proportional']:.3f})"
        for one in results["sources"]
    )
    one = results["differences"]["proportional"][""]
    print(f"{title}: {shares}; against proportional {one['mean']:+.4f} [{one['low']:+.4f}, "
          f"{one['high']:+.4f}]; unseen {results['unseen']}", flush=True)  # fmt: skip


def main() -> None:
    """Search many worlds, or train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=60)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--ample", type=Path, metavar="FOLDER")
    parser.add_argument("--few", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    for trained, folder in ((ample, asked.ample), (few, asked.few)):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            trained(folder)
            return
    seeds = range(asked.first, asked.first + asked.num)
    for num, runs in ((3, 30), (3, 60), (4, 40), (4, 80), (5, 50), (5, 100)):
        for scarce, scale in ((False, 1.0), (True, 1.0), (True, 16.0)):
            worlds = [draw_world(seed, num, scarce=scarce) for seed in seeds]
            outcomes = [
                search(world, runs, seed, scale=scale)
                for world, seed in zip(worlds, seeds, strict=True)
            ]
            errors = np.array([one.error for one in outcomes])
            matched = ", epochs not matched" if scale > 1 else ""
            print(
                f"{num} sources, {runs} runs, {'scarce' if scarce else 'ample'}{matched}: "
                f"{(errors <= 0.05).mean():.0%} within .05, median {np.median(errors):.3f}, 90 % "
                f"{np.quantile(errors, 0.9):.3f}; above the least "
                f"{np.mean([one.regret for one in outcomes]):.4f}, proportional "
                f"{np.mean([one.of_natural for one in outcomes]):.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
