"""Searches of a mixture: known optima, matched epochs, and the whole command."""

from __future__ import annotations

import functools
import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from corpuskit.ablate.study import find_judges
from corpuskit.ablate.surface import clip_shares, fit, in_parts, lowest, predicted_unseen
from corpuskit.cli.main import group
from corpuskit.cli.mixture import read_search, search_command
from corpuskit.errors import UsageError
from corpuskit.loader.index import Remix, read_mix
from tests.ablate.mixtures import (
    Found,
    draw_world,
    our_texts,
    search,
    search_mixture,
    write_sources,
)

if TYPE_CHECKING:
    from pathlib import Path

SHORT = (
    "--tokens", "6K", "--target-tokens", "100K", "--max-epochs", "8", "--runs", "6", "--seeds", "2",
    "--documents", "20", "--objective", "prose=1", "--objective", "code=1",
)  # fmt: skip


def test_a_law_is_recovered() -> None:
    random = np.random.default_rng(0)
    slopes = np.array([-1.0, 0.4, -0.2])
    shares = random.dirichlet(np.ones(3), 20)
    surface = fit(shares, 1.5 + np.exp(shares @ slopes), None)
    unseen = random.dirichlet(np.ones(3), 50)
    assert surface(unseen) == pytest.approx(1.5 + np.exp(unseen @ slopes), abs=2e-3)


def test_the_error_of_unseen_runs_is_that_of_new_ones() -> None:
    world, ratios = draw_world(3, 3, scarce=False), []
    for seed in range(3):
        random = np.random.default_rng(seed)
        shares, new = random.dirichlet(np.ones(3), 40), random.dirichlet(np.ones(3), 200)
        losses = world.losses(shares)[:, 0] + random.normal(0, 0.003, 40)
        claimed = np.sqrt(((predicted_unseen(shares, losses) - losses) ** 2).mean())
        fresh = fit(shares, losses, (0.5, 0.3))(new) - world.losses(new)[:, 0]
        ratios.append(claimed / np.sqrt((fresh**2).mean() + 0.003**2))
    assert 0.6 < np.mean(ratios) < 1.6


@functools.cache
def found(scarce: bool, scale: float = 1.0) -> list[Found]:
    return [search(draw_world(s, 3, scarce=scarce), 60, s, scale=scale) for s in range(100, 103)]


@pytest.mark.parametrize("scarce", [False, True])
def test_a_known_optimum_is_found(scarce: bool) -> None:
    assert all(one.error <= 0.05 for one in found(scarce))
    assert all(one.regret < 0.1 * one.of_natural for one in found(scarce))


def test_proxies_that_repeat_less_overweight_scarce_sources() -> None:
    matched, unmatched = found(True), found(True, scale=16.0)
    assert all(b.error > a.error + 0.05 for a, b in zip(matched, unmatched, strict=True))
    assert sum(one.regret for one in unmatched) > 5 * sum(one.regret for one in matched)


def test_the_lowest_keeps_to_bounds() -> None:
    low, high = np.array([0.1, 0.0, 0.0]), np.array([0.5, 0.3, 1.0])
    starts = np.array([clip_shares(np.array([1.0, 1.0, 1.0]), low, high)])
    target = np.array([0.8, 0.2, 0.0])
    best = lowest(lambda some: ((some - target) ** 2).sum(1), starts, low, high)
    assert best == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    random = np.random.default_rng(1)
    for drawn in random.dirichlet(np.full(3, 0.3), 200):
        shares = clip_shares(drawn, low, high)
        parts = in_parts(shares, high, 1000)
        assert shares.sum() == pytest.approx(1)
        assert sum(parts) == 1000
        assert (np.array(parts) <= high * 1000 + 1e-9).all()
        assert abs(shares * 1000 - parts).max() < 1.5


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory):
    """A search among three sources, two of which count; and its results."""
    folder = tmp_path_factory.mktemp("mixture")
    arguments = write_sources(folder, {n: texts[:60] for n, texts in our_texts().items()})
    return folder, arguments, search_mixture([*arguments, *SHORT])


def test_noise_gets_little_and_all_is_written(searched) -> None:
    folder, _, results = searched
    assert results == json.loads((folder / "search/mixture.json").read_text())
    shares = {one["name"]: one["share"] for one in results["sources"]}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["noise"] < 0.1
    assert set(results["mixtures"]) == {"proportional", "searched"}
    assert results["runs"] == 6
    [by] = results["differences"].values()
    means = [np.mean([np.mean(own["measured"][d]) for d in results["objective"]])
             for own in results["mixtures"].values()]  # fmt: skip
    assert by[""]["mean"] == pytest.approx(means[1] - means[0])


def test_proxies_repeat_sources_as_the_run_will(searched) -> None:
    folder, _, results = searched
    corpus = folder / "search/corpora/mixed"
    stored = {source.name: source.rows for source in read_mix(corpus).sources}
    target = results["target_tokens"] // 128
    for path in (folder / "search/trainings").glob("*/mixture.json"):
        facts = json.loads(path.read_text())
        windows = {name: (first, rows) for name, (first, rows, _) in facts["sources"].items()}
        order = read_mix(corpus, facts["seed"], Remix(46, facts["weights"], windows)).order
        assert facts["rows"] == 46
        for source, taken in zip(order.sources, order.taken(46), strict=True):
            share = facts["weights"].get(source.name, 0) / 1000
            expected = share * target / stored[source.name]
            # A window is a whole number of rows.
            assert taken / source.rows == pytest.approx(expected, rel=0.5 / source.rows, abs=0.3)


def test_the_weights_are_a_stage_of_the_pipeline(searched, tmp_path: Path) -> None:
    folder, _, results = searched
    pipeline = yaml.safe_load((folder / "p.yaml").read_text())
    stage = (folder / "search/weights.yaml").read_text()
    pipeline["stages"][-1:] = yaml.safe_load(stage)
    pipeline["output"] = str(tmp_path / "run")
    for one in results["sources"]:
        if not one["share"]:
            assert one["name"] in stage.partition("\n")[0]
            del pipeline["sources"][one["name"]]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(pipeline))
    outcome = CliRunner().invoke(group, ["run", str(tmp_path / "p.yaml")])
    assert outcome.exit_code == 0, outcome.output
    order = read_mix(tmp_path / "run").order
    assert order.num_rows == results["target_tokens"] // 128
    taken = dict(zip([s.name for s in order.sources], order.taken(order.num_rows), strict=True))
    for one in results["sources"]:
        assert taken.get(one["name"], 0) / order.num_rows == pytest.approx(one["share"], abs=1e-3)


def test_a_search_continues_and_grows(searched, tmp_path: Path) -> None:
    folder, _, results = searched
    copy = tmp_path / "all"
    shutil.copytree(folder, copy)
    arguments = write_sources(copy, {n: texts[:60] for n, texts in our_texts().items()})
    folders = sorted((copy / "search/trainings").iterdir())
    before = {path.name for path in folders}
    for path in (folders[0], folders[-1]):
        shutil.rmtree(path)
    again = search_mixture([*arguments, *SHORT])
    assert {path.name for path in (copy / "search/trainings").iterdir()} == before
    assert again == results


def opened_search(arguments: list[str], *options: str):
    """Return a search as the command reads it, its corpus and its judges."""
    context = search_command.make_context("search", [*arguments, *SHORT, *options])
    search = read_search(**context.params)
    [corpus] = search.study.build()
    return search, corpus, find_judges(search.study, [corpus])


def test_a_search_with_more_runs_keeps_those_it_has(searched) -> None:
    _, arguments, _ = searched
    search, corpus, judges = opened_search(arguments, "--runs", "20")
    wide = search.wide(corpus, judges)
    assert [training.is_done for training in wide] == [True] * 4 + [False] * 8
    runs = [len(losses) for _, losses in search.fit(corpus, judges).data.values()]
    assert runs == [6, 6], "those near the best count, too"


def test_a_source_that_is_added_keeps_what_was_trained(searched, tmp_path: Path) -> None:
    folder, _, _ = searched
    shutil.copytree(folder / "search/trainings", tmp_path / "search/trainings")
    sources = {name: texts[:60] for name, texts in our_texts().items()}
    sources["titles"] = [text.upper() for text in sources["prose"]]
    arguments = write_sources(tmp_path, sources)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    search, corpus, judges = opened_search(arguments, "--runs", "40")
    wide = search.wide(corpus, judges)
    assert len(wide) == 24 - 6
    assert all(training.shares[3] for training in wide[:3])
    shares, losses = search.fit(corpus, judges).data["prose"]
    assert (len(losses), shares[:, 3].max()) == (6, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("--min-share", "prose=.95", "--cap", "prose=1"), "no mixture keeps to the bounds"),
        (("--target-tokens", "2B"), "Raise --max-epochs"),
        (("--tokens", "1"), "take between a step, 256"),
        (("--tokens", "many"), "is not a number of tokens"),
        (("--supply", "web=1M"), "no such source"),
        (("--documents", "0"), "there is nothing to judge by"),
        (("--cap", "prose"), "must look like"),
        (("--cap", "prose=1", "--cap", "prose=2"), "--cap prose=2: 'prose' is given twice"),
        (("--supply", "prose=1M", "--supply", "prose=1M"), "'prose' is given twice"),
        (("--objective", "prose=-1"), "must look like"),
        (("--objective", "verse=1"), "no such domain"),
        (("--seeds", "1"), "says nothing about noise"),
    ],
)
def test_what_cannot_be_is_refused(searched, change: tuple[str, ...], problem: str) -> None:
    _, arguments, _ = searched
    outcome = CliRunner().invoke(group, ["mixture", "search", *arguments, *SHORT, *change])
    assert isinstance(outcome.exception, UsageError), outcome.output
    assert problem in str(outcome.exception)


def test_a_single_source_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    arguments = write_sources(tmp_path, {"prose": our_texts()["prose"][:60]})
    outcome = CliRunner().invoke(group, ["mixture", "search", *arguments, *SHORT, "--plan"])
    assert "p.yaml: a search needs two sources, and here is prose" in str(outcome.exception)


def test_a_plan_counts_trainings_and_writes_nothing(searched, tmp_path: Path) -> None:
    _, arguments, _ = searched
    elsewhere = [*arguments[:-1], str(tmp_path / "none")]
    outcome = CliRunner().invoke(group, ["mixture", "search", *elsewhere, *SHORT, "--plan"])
    assert "12 trainings (6 to fit to, at most 6 to confirm) of 6,000 tokens" in outcome.output
    assert not (tmp_path / "none").exists()
