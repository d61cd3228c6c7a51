"""Searches the shares of sources with which a model gets best: proxies, surfaces, a confirmation.

One corpus is built. Each proxy trains on its rows in shares of its own: first in mixtures drawn
widely, then near the best that these predict. Losses of each domain are fitted (surface.py), their
weighted mean is minimised within bounds, and the result is trained again with new seeds, beside
proportional and current shares.

A proxy is shorter than the target run, so it would repeat a scarce source less, and overrate it. So
each proxy reads only a window of each source, smaller than the source by the factor by which the
proxy is shorter than the run: it repeats each source as often as the run would.

    trainings/NAME-KEY/mixture.json, scores.parquet     all that decides a training; its scores
    mixture.json, weights.yaml                          the results

Any finished training in the folder that agrees in what it took of its sources counts, so a search
goes on with more runs, or another source. Letters: K sources.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.ablate.study import SCORES, Judges, Proxy, gather, read_scores, shared_units, to_json
from corpuskit.ablate.surface import (
    choose,
    clip_shares,
    draw_near,
    draw_shares,
    fit,
    in_parts,
    lowest,
    predicted_unseen,
)
from corpuskit.ablate.verdict import compare
from corpuskit.errors import UsageError, suggest
from corpuskit.stages.mixing._schedule import rows_of
from corpuskit.storage import write_whole
from corpuskit.train.settings import RemixSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.ablate.study import Corpus, Study
    from corpuskit.ablate.surface import Surface

    Floats = NDArray[np.float64]

FACTS = "mixture.json"
FORMAT = 1
PARTS = 1000  # shares are in thousandths
RUNS_PER_SOURCE = 10
WIDE = 0.6  # of the runs, those drawn widely
SHORTER = 16  # how much shorter than the target a proxy is, unless its tokens are given
RESAMPLED = 40
_NOT_FACTS = {
    "data",
    "output",
    "name",
    "seed",
    "order_seed",
    "steps",
    "tokens",
    "evaluate",
    "remix",
}
_SHARED = ("format", "settings", "seed", "rows", "packing")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a mixture may be.

    Attributes:
        target_tokens: of the run that is planned; None: as long as the pipeline's mix plan.
        supply: source -> tokens that it will have for that run; what the corpus has if left out.
        max_epochs: how often the run may repeat a source.
        caps: source -> the same, of its own.
        least: source -> least share.
    """

    target_tokens: int | None = None
    supply: Mapping[str, float] = dataclasses.field(default_factory=dict)
    max_epochs: float = 4.0
    caps: Mapping[str, float] = dataclasses.field(default_factory=dict)
    least: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Scale:
    """A search in rows and shares; arrays are (K,).

    Attributes:
        rows, steps: of a proxy.
        target_rows: of the run.
        windows: rows of each source that a proxy knows.
        natural, current: shares of all rows there are, and of the pipeline's plan.
        low, high: bounds of shares.
    """

    names: tuple[str, ...]
    rows: int
    steps: int
    target_rows: int
    supply: Floats
    windows: NDArray[np.int64]
    natural: Floats
    current: Floats
    low: Floats
    high: Floats

    def rounded(self, shares: Floats) -> Floats:
        """Return the shares in thousandths, as proxies and answers have them."""
        return np.array(in_parts(shares, self.high, PARTS)) / PARTS

    def epochs(self, shares: Floats) -> Floats:
        """Return how often the run repeats each source: (K,)."""
        epochs: Floats = shares * self.target_rows / self.supply
        return epochs


@dataclasses.dataclass(frozen=True)
class MixtureProxy(Proxy):
    """A training on one mixture; `facts` are all that decides its scores."""

    shares: Floats
    facts: Mapping[str, Any]

    def run(self, judges: Judges, *, keep_model: bool = False) -> str | None:
        folder = Path(self.settings.output)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FACTS, json.dumps(self.facts, indent=1).encode())
        return super().run(judges, keep_model=keep_model)


@dataclasses.dataclass(frozen=True)
class MixtureSearch:
    """What is searched, and by what: a study of one variant and one size.

    Attributes:
        study: its seeds are those of the confirmation; its tokens those of a proxy.
        runs: trainings to fit to; None: 10 per source.
        objective: domain -> weight; empty: all equally.
    """

    study: Study
    bounds: Bounds = Bounds()
    runs: int | None = None
    objective: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Refuse what can be known to fail before anything runs.

        Raises:
            UsageError: there is one source, or one is named that there is not.
            ConfigError: the pipeline does not compile.
        """
        self.study.check()
        file, bounds = self.study.variants[0].file, self.bounds
        names = [step.label for step in file.sources]
        if len(names) < 2:
            raise UsageError(f"{file.path}: a search needs two sources, and here is {names[0]}.")
        for option, own in (
            ("supply", bounds.supply), ("cap", bounds.caps), ("min-share", bounds.least)
        ):  # fmt: skip
            for name in set(own) - set(names):
                raise UsageError(f"--{option} {name}: no such source. {suggest(name, names)}")

    def scale(self, corpus: Corpus) -> Scale:
        """Return rows and bounds for a corpus that was built.

        Raises:
            UsageError: a source or a size is impossible; says what would be possible.
        """
        plan, bounds = corpus.plan, self.bounds
        names = tuple(source.name for source in plan.sources)
        orders = [getattr(step.stage, "order", "") for step in corpus.variant.file.steps]
        if len(names) < 2 or {"as_read", "bands"} & set(orders):
            raise UsageError(
                f"{corpus.data}: a search needs two sources with rows, in random order. Leave "
                "`order` of `shuffle` out."
            )
        for name in {*bounds.supply, *bounds.caps, *bounds.least} - set(names):
            raise UsageError(f"{corpus.data}: source {name} has no rows. Leave its bounds out.")
        seq_len = plan.seq_len
        in_corpus = np.array([source.rows for source in plan.sources])
        rows_each = dict(zip(names, in_corpus.tolist(), strict=True))
        rows_each |= {name: tokens / seq_len for name, tokens in bounds.supply.items()}
        supply = np.array(list(rows_each.values()), np.float64)
        target = plan.order.num_rows
        if bounds.target_tokens is not None:
            target = rows_of(bounds.target_tokens, seq_len, "--target-tokens")
        [template] = self.study.sizes.values()
        batch, tokens = template.batch.global_rows, self.study.tokens
        steps = (target // SHORTER if tokens is None else tokens // seq_len) // batch
        rows = steps * batch
        windows = np.maximum(1, np.rint(supply * rows / target)).astype(np.int64)
        limit = min(target, int(target * (in_corpus / supply).min()))
        if not 0 < rows <= limit:
            raise UsageError(
                f"--tokens: proxies of {rows * seq_len:,} tokens. For a run of "
                f"{target * seq_len:,} take between a step, {batch * seq_len:,}, and "
                f"{limit * seq_len:,}, which need all that the corpus has of a source."
            )
        caps = np.array([bounds.caps.get(name, bounds.max_epochs) for name in names])
        high = np.minimum(1.0, np.floor(caps * supply / target * PARTS) / PARTS)
        low = np.array([bounds.least.get(name, 0.0) for name in names])
        if high.sum() < 1 or low.sum() > 1 or (low > high).any():
            ranges = ", ".join(
                f"{n} {a:.3f} to {b:.3f}" for n, a, b in zip(names, low, high, strict=True)
            )
            raise UsageError(
                f"no mixture keeps to the bounds ({ranges}). Raise --max-epochs or --cap, or lower "
                "--min-share or --target-tokens."
            )
        current = plan.order.taken(plan.order.num_rows)
        return Scale(
            names, rows, steps, target, supply, np.minimum(windows, in_corpus),
            supply / supply.sum(), current / current.sum(), low, high,
        )  # fmt: skip

    def _facts(self, corpus: Corpus, scale: Scale, judges: Judges, seed: int) -> dict[str, Any]:
        """Return all that decides scores but the weights; of a source, what a proxy knows of it."""
        [template] = self.study.sizes.values()
        settings = template.model_dump(mode="json", exclude=_NOT_FACTS)
        plan, sources = corpus.plan, {}
        for k, (name, rows) in enumerate(zip(scale.names, scale.windows.tolist(), strict=True)):
            # Each seed knows another part of a source.
            first = int(_digest([name, seed]), 16) % (plan.sources[k].rows - rows + 1)
            digests = [plan.parts.digests[i] for i in np.flatnonzero(plan.parts.sources == k)]
            sources[name] = [first, rows, _digest(digests)]
        documents = {n: Judges({n: texts}, {}, {}).digest for n, texts in judges.documents.items()}
        tasks = {n: Judges({}, {}, {n: items}).digest for n, items in judges.tasks.items()}
        return {
            "format": FORMAT, "settings": settings, "seed": seed, "rows": scale.rows,
            "packing": [plan.seq_len, plan.dtype.name, plan.tokenizer["hash"]],
            "sources": sources, "judges": documents | tasks,
        }  # fmt: skip

    def proxy(
        self, corpus: Corpus, scale: Scale, judges: Judges, shares: Floats, seed: int
    ) -> MixtureProxy:
        """Return the training of a mixture with a seed; shares are rounded to thousandths."""
        parts = in_parts(shares, np.ones_like(shares), PARTS)
        weights = {name: part for name, part in zip(scale.names, parts, strict=True) if part}
        facts = self._facts(corpus, scale, judges, seed) | {"weights": weights}
        windows = {name: (first, rows) for name, (first, rows, _) in facts["sources"].items()}
        [(size, template)] = self.study.sizes.items()
        name = f"{size}-s{seed}-{_digest(facts)[:12]}"
        settings = template.model_copy(
            update={
                "data": corpus.data, "seed": seed, "order_seed": seed, "steps": scale.steps,
                "tokens": None, "evaluate": None, "name": name,
                "output": str(self.study.folder / "trainings" / name),
                "remix": RemixSettings(rows=scale.rows, weights=weights, windows=windows),
            }
        )  # fmt: skip
        return MixtureProxy(corpus, size, seed, settings, np.array(parts) / PARTS, facts)

    def wide(self, corpus: Corpus, judges: Judges) -> list[MixtureProxy]:
        """Return the trainings that are drawn widely.

        Finished runs of searches among other sources count, so fewer are drawn; 1 / K of them at
        least.
        """
        scale = self.scale(corpus)
        num, before = self._num_wide(scale), len(self._before(scale, corpus, judges))
        fewest = math.ceil(num / len(scale.names))
        return self._proxies(corpus, scale, judges, [
            draw_shares(number, scale.natural, scale.low, scale.high)
            for number in range(min(num, max(num - before, fewest)))
        ])  # fmt: skip

    def near(self, corpus: Corpus, judges: Judges) -> list[MixtureProxy]:
        """Return the trainings near the best that the wide ones, which are done, predict."""
        scale = self.scale(corpus)
        finished = self._finished(scale, corpus, judges)
        wide = {proxy.settings.name for proxy in self.wide(corpus, judges)}
        runs = [run for run in finished if run.name in wide] + self._before(scale, corpus, judges)
        center = self._fit(scale, judges, runs).best
        num = (self.runs or RUNS_PER_SOURCE * len(scale.names)) - self._num_wide(scale)
        return self._proxies(corpus, scale, judges, [
            draw_near(number, center, scale.low, scale.high) for number in range(num)
        ])  # fmt: skip

    def confirming(self, corpus: Corpus, judges: Judges) -> list[MixtureProxy]:
        """Return the trainings of the result and of what it is compared with."""
        compared = self._compared(corpus, judges).values()
        return list(
            {p.settings.name: p for pair in zip(*compared, strict=True) for p in pair}.values()
        )

    def _compared(self, corpus: Corpus, judges: Judges) -> dict[str, list[MixtureProxy]]:
        scale = self.scale(corpus)
        mixtures = {"proportional": scale.natural}
        if abs(scale.current - scale.natural).max() > 1 / PARTS:
            mixtures["current"] = scale.current
        mixtures["searched"] = self.fit(corpus, judges).best
        seeds = range(1, self.study.num_seeds + 1)
        return {
            name: [self.proxy(corpus, scale, judges, shares, seed) for seed in seeds]
            for name, shares in mixtures.items()
        }

    def fit(self, corpus: Corpus, judges: Judges) -> MixtureFit:
        """Fit to all that is finished."""
        scale = self.scale(corpus)
        return self._fit(scale, judges, self._finished(scale, corpus, judges))

    def _num_wide(self, scale: Scale) -> int:
        return math.ceil(WIDE * (self.runs or RUNS_PER_SOURCE * len(scale.names)))

    def _proxies(
        self, corpus: Corpus, scale: Scale, judges: Judges, mixtures: Sequence[Floats]
    ) -> list[MixtureProxy]:
        proxies = [self.proxy(corpus, scale, judges, scale.rounded(mix), 0) for mix in mixtures]
        return list({proxy.settings.name: proxy for proxy in proxies}.values())

    def _before(self, scale: Scale, corpus: Corpus, judges: Judges) -> list[FinishedRun]:
        """Return the runs of searches among other sources."""
        finished = self._finished(scale, corpus, judges)
        return [run for run in finished if run.sources != set(scale.names)]

    def _finished(self, scale: Scale, corpus: Corpus, judges: Judges) -> list[FinishedRun]:
        """Return what the folder has of trainings that agree with this search."""
        alike, finished = self._facts(corpus, scale, judges, 0), []
        for path in sorted((self.study.folder / "trainings").glob(f"*/{FACTS}")):
            facts, scores = json.loads(path.read_text("utf-8")), path.parent / SCORES
            agrees = all(facts[key] == alike[key] for key in _SHARED) and all(
                facts["sources"][name] == alike["sources"].get(name) for name in facts["weights"]
            )
            if agrees and scores.exists():
                losses = {
                    domain: sum(columns["nats"]) / (sum(columns["bytes"]) * math.log(2))
                    for domain, columns in read_scores(scores).items()
                    if facts["judges"].get(domain) == alike["judges"].get(domain)
                }
                shares = np.array([facts["weights"].get(n, 0) for n in scale.names]) / PARTS
                sources = set(facts["sources"])
                finished.append(FinishedRun(path.parent.name, sources, shares, losses))
        return finished

    def weights(self, judges: Judges) -> dict[str, float]:
        """Return the weight of each domain in the objective; they sum to 1.

        Raises:
            UsageError: a domain is unknown.
        """
        domains = [*judges.documents, *judges.tasks]
        for name in self.objective:
            if name not in domains:
                raise UsageError(f"--objective {name}: no such domain. {suggest(name, domains)}")
        weights = dict(self.objective) or dict.fromkeys(domains, 1.0)
        return {name: weight / sum(weights.values()) for name, weight in weights.items() if weight}

    def _fit(self, scale: Scale, judges: Judges, runs: Sequence[FinishedRun]) -> MixtureFit:
        weights = self.weights(judges)
        data = {}
        for domain in weights:
            scored = [run for run in runs if domain in run.losses]
            losses = np.array([run.losses[domain] for run in scored])
            data[domain] = (np.array([run.shares for run in scored]), losses)
        corrections = {domain: choose(*points) for domain, points in data.items()}
        starts = np.array([clip_shares(run.shares, scale.low, scale.high) for run in runs])

        def best(data: Mapping[str, tuple[Floats, Floats]]) -> tuple[Floats, dict[str, Surface]]:
            surfaces = {d: fit(*points, corrections[d]) for d, points in data.items()}

            def objective(shares: Floats) -> Floats:
                return sum((w * surfaces[d](shares) for d, w in weights.items()), np.zeros(1))

            firsts = starts[objective(starts).argsort()[:3]]
            return lowest(objective, firsts, scale.low, scale.high), surfaces

        shares, surfaces = best(data)
        random = np.random.default_rng(0)
        optima = []
        for _ in range(RESAMPLED):
            sample = {d: random.integers(0, len(y), len(y)) for d, (_, y) in data.items()}
            optima.append(best({d: (data[d][0][i], data[d][1][i]) for d, i in sample.items()})[0])
        spread = np.quantile(optima, [0.05, 0.95], axis=0)
        return MixtureFit(scale.rounded(shares), spread, surfaces, weights, data)

    def results(self, corpus: Corpus, judges: Judges) -> dict[str, Any]:
        """Return the results: JSON values, as in mixture.json."""
        scale, fitted = self.scale(corpus), self.fit(corpus, judges)
        confirming = self._compared(corpus, judges)
        loaded = {name: [read_scores(p.scores) for p in runs] for name, runs in confirming.items()}
        shared = shared_units([run for runs in loaded.values() for run in runs])
        scores = {name: gather(runs, shared)["bits_per_byte"] for name, runs in loaded.items()}
        baselines = [name for name in scores if name != "searched"]
        differences = {
            name: to_json(
                compare(
                    scores[name],
                    scores["searched"],
                    confidence=self.study.confidence,
                    comparisons=len(baselines),
                    weights=fitted.weights,
                )
            )
            for name in baselines
        }
        error, spread, agreement = fitted.unseen()
        best = fitted.best.tolist()
        return {
            "format": FORMAT,
            "sources": [
                {
                    "name": name, "share": best[k], "low": fitted.spread[0, k],
                    "high": fitted.spread[1, k], "proportional": scale.natural[k],
                    "current": scale.current[k], "epochs": scale.epochs(fitted.best)[k],
                    "cap_share": scale.high[k], "window_rows": int(scale.windows[k]),
                }
                for k, name in enumerate(scale.names)
            ],
            "objective": fitted.weights,
            "runs": len(next(iter(fitted.data.values()))[1]),
            "tokens": scale.rows * corpus.plan.seq_len,
            "target_tokens": scale.target_rows * corpus.plan.seq_len,
            "seeds": self.study.num_seeds,
            "confidence": self.study.confidence,
            "unseen": {"error": error, "spread": spread, "rank_correlation": agreement},
            "mixtures": {
                name: {
                    "shares": dict(zip(scale.names, runs[0].shares.tolist(), strict=True)),
                    "predicted": fitted.predict(runs[0].shares),
                    "measured": {d: s.means.tolist() for d, s in scores[name].items()},
                }
                for name, runs in confirming.items()
            },
            "differences": differences,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A training that the fit may use; `sources` are those of its search."""

    name: str
    sources: set[str]
    shares: Floats
    losses: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class MixtureFit:
    """Surfaces, and the mixture that they predict to be the best.

    Attributes:
        best: (K,) in thousandths.
        spread: (2, K) the middle 90 % of the same from resampled runs.
        data: domain -> shares (N, K) and bits per byte (N,).
    """

    best: Floats
    spread: Floats
    surfaces: Mapping[str, Surface]
    weights: Mapping[str, float]
    data: Mapping[str, tuple[Floats, Floats]]

    def predict(self, shares: Floats) -> float:
        """Return the objective that is predicted."""
        return sum(float(w * self.surfaces[d](shares[None])[0]) for d, w in self.weights.items())

    def unseen(self) -> tuple[float, float, float]:
        """Return the error of predictions of runs that were not fitted to, and what it is beside.

        Returns:
            The root mean square error, the standard deviation of what is predicted, and the rank
            correlation of both; means over domains by their weights.
        """
        rows = []
        for shares, losses in (self.data[domain] for domain in self.weights):
            predicted = predicted_unseen(shares, losses)
            ranks = np.array([values.argsort().argsort() for values in (predicted, losses)])
            error = float(np.sqrt(((predicted - losses) ** 2).mean()))
            rows.append((error, float(losses.std()), float(np.corrcoef(ranks[0], ranks[1])[0, 1])))
        error, spread, agreement = (
            sum(w * value for w, value in zip(self.weights.values(), values, strict=True))
            for values in zip(*rows, strict=True)
        )
        return error, spread, agreement


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write mixture.json and weights.yaml, a stage of a pipeline; return the path of the latter."""
    used = [source for source in results["sources"] if source["share"]]
    left_out = ", ".join(row["name"] for row in results["sources"] if not row["share"])
    comment = f"# take out of `sources`: {left_out}\n" if left_out else ""
    weights = ", ".join(f"{row['name']}: {round(row['share'] * PARTS)}" for row in used)
    caps = ", ".join(f"{row['name']}: {math.ceil(row['epochs'] * 100) / 100:g}" for row in used)
    stage = (
        f"{comment}- mix:\n    weights: {{{weights}}}\n    max_epochs: {{{caps}}}\n"
        f"    tokens: {results['target_tokens']}\n"
    )
    write_whole(folder / "mixture.json", json.dumps(results, indent=1).encode() + b"\n")
    write_whole(folder / "weights.yaml", stage.encode())
    return folder / "weights.yaml"


def _digest(content: object) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
