"""Every form of parallelism and their compositions against one process, on gloo ranks.

For each: the largest difference of losses, norms of the gradient and evaluations; whether a killed
run goes on bit for bit; and whether it goes on from the checkpoint of the case before it, whatever
ranks wrote that. Run: python -m tests.train.topologies --ranks 2 4 8 [--experts]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import corpuskit.train.pipeline  # noqa: F401  before ranks are forked: it takes 2 s
from corpuskit.kernels.packing import best_fit
from corpuskit.train.likelihood import Evaluated
from corpuskit.train.loop import train
from corpuskit.train.parallel import join
from corpuskit.train.settings import TrainSettings
from tests.train.conftest import VOCAB, Ranks, write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CASES: dict[int, list[dict[str, Any]]] = {
    2: [
        {"pipeline": 2},
        {"pipeline": 2, "pipeline_schedule": "gpipe"},
        {"pipeline": 2, "pipeline_schedule": "interleaved", "recompute": "full"},
        {"pipeline": 2, "pipeline_schedule": "zero_bubble", "zero": 1},
        {"pipeline": 2, "pipeline_schedule": "zbv", "zero": 1},
        {"tensor": 2},
        {"zero": 2},
        {"replicas": 2},
        {"context": 2},
        {"context": 2, "zero": 1, "recompute": "full"},
    ],
    4: [
        {"pipeline": 4},
        {"pipeline": 2},
        {"pipeline": 2, "zero": 1, "pipeline_schedule": "interleaved"},
        {"pipeline": 2, "zero": 2, "recompute": "selective"},
        {"pipeline": 2, "replicas": 2},
        {"pipeline": 2, "tensor": 2},
        {"pipeline": 2, "zero": 1, "pipeline_schedule": "zero_bubble"},
        {"pipeline": 2, "zero": 1, "replicas": 2, "pipeline_schedule": "zbv"},
        {"pipeline": 2, "zero": 1, "tensor": 2, "pipeline_schedule": "zbv"},
        {"replicas": 2, "tensor": 2},
        {"context": 4},
        {"context": 2, "zero": 2, "recompute": "selective"},
        {"context": 2, "replicas": 2},
        {"context": 2, "tensor": 2},
        {"context": 2, "pipeline": 2},
        {"context": 2, "pipeline": 2, "zero": 1, "pipeline_schedule": "zbv"},
    ],
    8: [
        {"pipeline": 4},
        {"pipeline": 2, "tensor": 2, "pipeline_schedule": "interleaved"},
        {"pipeline": 2, "replicas": 2},
        {"pipeline": 2, "replicas": 2, "tensor": 2, "zero": 1},
        {"pipeline": 4, "tensor": 2, "pipeline_schedule": "gpipe"},
        {"pipeline": 2, "zero": 1, "tensor": 2, "pipeline_schedule": "zbv"},
        {"context": 8},
        {"context": 4, "tensor": 2, "recompute": "selective"},
        {"context": 2, "replicas": 2, "zero": 1},
        {"context": 2, "pipeline": 2, "tensor": 2, "pipeline_schedule": "interleaved"},
        {"context": 4, "pipeline": 2, "zero": 1, "pipeline_schedule": "zbv"},
    ],
}
EXPERT_CASES: dict[int, list[dict[str, Any]]] = {
    2: [{"expert": 2}, {"zero": 1, "recompute": "full"}, {"pipeline": 2}, {"context": 2}],
    4: [
        {"expert": 4},
        {"expert": 2, "zero": 2},
        {"expert": 2, "replicas": 2, "recompute": "full"},
        {"expert": 2, "pipeline": 2},
        {"expert": 2, "pipeline": 2, "zero": 1, "pipeline_schedule": "zbv"},
        {"expert": 2, "context": 2},
        {"context": 2, "pipeline": 2},
    ],
    8: [
        {"expert": 2, "pipeline": 2, "pipeline_schedule": "interleaved"},
        {"expert": 2, "pipeline": 2, "replicas": 2},
        {"expert": 4, "replicas": 2, "zero": 1},
        {"expert": 2, "context": 2, "replicas": 2},
        {"expert": 2, "context": 2, "pipeline": 2, "zero": 1, "pipeline_schedule": "zbv"},
    ],
}
# With seed 0 two of these runs differ by 5e-4 after the third step: where two experts score alike
# to seven digits, the order of adding decides which one a token goes to.
EXPERT_SEED = 1
EXPERTS = {"count": 4, "per_token": 2, "bias_rate": 0.01}
STEPS, SAVED = 4, 2
best_fit(np.ones(1, np.int64), 4)  # its compiler takes 3 s to load: once, before ranks are forked
Lines = list[dict[str, Any]]


class Documents:
    """Held-out documents of one source."""

    source_names = ("web",)

    def documents(self, _source: str, rank: int, ranks: int) -> Iterator[Any]:
        """Yield every `ranks`-th."""
        random = np.random.default_rng(1)
        every = [random.integers(1, VOCAB, size) for size in (40, 7, 33, 65, 12)]
        for tokens in every[rank::ranks]:
            yield _Document(tokens, 4 * len(tokens))


class _Document(NamedTuple):
    tokens: Any
    text_bytes: int


def settings_of(
    data: str, output: Path, parallel: dict[str, Any], experts: Any = None, **changes: Any
) -> TrainSettings:
    """Return settings of a model of five layers, which no pipeline cuts evenly."""
    fields: dict[str, Any] = {
        "data": data, "output": str(output), "parallel": parallel, "steps": STEPS,
        "model": {
            "dim": 32, "layers": 5, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "tied": False,
            "z_loss": 0.01, "experts": experts,
        },
        "batch": {"global_rows": 8, "micro_rows": 1}, "optimizer": {"lr": 1e-3},
        "schedule": {"kind": "constant", "warmup_tokens": 0}, "device": "cpu",
        "checkpoint": {"every_steps": SAVED, "keep": 9}, "evaluate": {"every_steps": SAVED},
    }  # fmt: skip
    return TrainSettings.model_validate(fields | changes)


def work(*all_settings: TrainSettings) -> None:
    """Train each of the settings in this rank."""
    for settings in all_settings:
        train(settings, join(settings), None, Evaluated(Documents()).held_out)


def lines_of(settings: TrainSettings, name: str = "metrics") -> Lines:
    """Return the lines of a file of a run."""
    text = Path(settings.output, f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


class Difference(NamedTuple):
    """How far a run is from another, at most."""

    loss: float
    norm: float  # relative
    evaluation: float


def difference(ours: TrainSettings, other: TrainSettings) -> Difference:
    """Compare two runs step by step; of the first, those that it has taken."""
    by_step = [
        {line["step"]: line for line in lines_of(other, name)}
        for name in ("metrics", "evaluations")
    ]
    pairs = [(line, by_step[0][line["step"]]) for line in lines_of(ours)]
    judged = [(line, by_step[1][line["step"]]) for line in lines_of(ours, "evaluations")]
    assert pairs[-1][0]["step"] == STEPS - 1
    assert judged[-1][0]["step"] == STEPS
    return Difference(
        max(abs(a["loss"] - b["loss"]) for a, b in pairs),
        max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in pairs),
        max(abs(a["sources"]["web"]["loss"] - b["sources"]["web"]["loss"]) for a, b in judged),
    )


def kill_and_go_on(start: Callable[..., Ranks], ranks: int, settings: TrainSettings) -> None:
    """Kill all ranks once a checkpoint is complete and more steps are done; run to the end."""
    running = start(ranks, work, settings)
    metrics = Path(settings.output, "metrics.jsonl")
    saved = Path(settings.output, "checkpoints", f"step-{SAVED:08d}")
    while not (saved.exists() and metrics.read_text().count("\n") > SAVED):
        assert all(process.is_alive() for process in running.processes), "ended before the kill"
        time.sleep(0.001)
    running.kill()
    start(ranks, work, settings).answers()


def go_on_from(other: TrainSettings, settings: TrainSettings) -> TrainSettings:
    """Give a run the checkpoint of another that was half done."""
    name = f"checkpoints/step-{SAVED:08d}"
    shutil.copytree(Path(other.output, name), Path(settings.output, name))
    return settings


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=CASES)
    parser.add_argument("--experts", action="store_true", help="a mixture of experts")
    parser.add_argument("--only", metavar="KEY", help="cases that set this key of parallel")
    args = parser.parse_args()
    cases, experts = (EXPERT_CASES, EXPERTS) if args.experts else (CASES, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        data = str(write_run(folder / "data"))
        numbers = itertools.count()

        def start(ranks: int, function: Any, *args: Any) -> Ranks:
            return Ranks(ranks, function, args)

        seed = EXPERT_SEED if args.experts else 0
        build = functools.partial(settings_of, data, experts=experts, seed=seed)
        one = build(folder / "one", {})
        start(1, work, one).answers()
        before = one
        click.echo(
            "ranks parallel                         loss     norm  evaluation  killed  resharded"
        )
        for ranks in args.ranks:
            for parallel in cases[ranks]:
                if args.only and args.only not in parallel:
                    continue
                place = folder / f"case-{next(numbers)}"
                ours, killed = (
                    build(place / "straight", parallel),
                    build(place / "killed", parallel),
                )
                start(ranks, work, ours).answers()
                kill_and_go_on(start, ranks, killed)
                same = difference(killed, ours)[:2] == (0.0, 0.0)
                moved = go_on_from(before, build(place / "moved", parallel))
                start(ranks, work, moved).answers()
                far, moved_far = difference(ours, one), difference(moved, one)
                worst = max(*far, *moved_far)
                click.echo(
                    f"{ranks:5} {json.dumps(parallel)[1:-1]:60} {far.loss:.1e} {far.norm:.1e} "
                    f"{far.evaluation:.1e} {'equal' if same else 'DIFFERS'} {moved_far.loss:.1e}"
                    f"{'' if same and worst < 1e-5 else '  FAILED'}",
                )
                before = ours


if __name__ == "__main__":
    main()
