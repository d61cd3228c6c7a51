"""Finds the first token that ranks send to other experts than one process does, and says why.

Two scores that are equal but for rounding are a tie, which the order of adding decides; then losses
part by more than rounding, and no part of the loop is wrong. Any other difference is a bug.
Run: python -m tests.train.router_trace --seed 0 --ranks 4 '{"expert": 2, "pipeline": 2}'
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from torch.nn.functional import linear

from corpuskit.train import loop
from tests.train.conftest import Ranks, write_run
from tests.train.topologies import EXPERTS, STEPS, lines_of, settings_of, work

if TYPE_CHECKING:
    from corpuskit.train.moe import Router
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.setup import Run

Scores = dict[tuple[int, int, int], np.ndarray]
"""(step, layer, row of the step) -> (L, E), by which experts are chosen."""


def work_and_trace(settings: TrainSettings) -> Scores:
    """Train in this rank; return the scores of its rows and layers."""
    scores: Scores = {}
    set_up = loop.set_up

    def set_up_traced(*args: Any) -> Run:
        run = set_up(*args)
        rows = settings.batch.global_rows // run.parallel.data_ranks
        for number, block in run.model.blocks.named_children():
            calls = itertools.count()

            def note(
                router: Router, inputs: Any, _output: Any, layer: int = int(number),
                calls: Any = calls,
            ) -> None:  # fmt: skip
                if torch.is_grad_enabled():  # not evaluating; micro-batches of one row, in order
                    step, row = divmod(next(calls), rows)
                    of_experts = linear(inputs[0].float(), router.weight.float()).sigmoid()
                    row += run.parallel.data_rank * rows
                    scores[step, layer, row] = (of_experts + router.bias).detach().numpy().copy()

            block.feed_forward.router.register_forward_hook(note)
        return run

    loop.set_up = set_up_traced  # type: ignore[assignment]  # in a fork of its own
    work(settings)
    return scores


def compare(ours: Scores, one: Scores) -> None:
    """Print, step by step, how far scores are apart, and the tokens that go elsewhere."""
    per_token, moved = EXPERTS["per_token"], 0
    for step in range(STEPS):
        keys = sorted(key for key in one if key[0] == step)
        apart = max(float(np.abs(ours[key] - one[key]).max()) for key in keys)
        click.echo(f"step {step}: {len(keys)} rows of layers, scores apart by up to {apart:.1e}")
        for key in keys:
            chosen = [np.sort(np.argsort(-s[key])[:, :per_token]) for s in (ours, one)]
            for token in np.flatnonzero((chosen[0] != chosen[1]).any(1)):
                best = [np.sort(s[key][token])[::-1] for s in (ours, one)]
                gaps = [values[per_token - 1] - values[per_token] for values in best]
                click.echo(
                    f"  layer {key[1]}, row {key[2]}, token {token}: experts "
                    f"{chosen[1][token].tolist()} on one process, {chosen[0][token].tolist()} on "
                    f"ranks; the last taken leads by {gaps[1]:.1e} and {gaps[0]:.1e}; its scores "
                    f"are apart by {np.abs(ours[key][token] - one[key][token]).max():.1e}"
                )
                moved += 1
                if moved == 8:
                    return


def main() -> None:
    """Print the first decisions that differ, and the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parallel", type=json.loads)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        data = str(write_run(folder / "data"))
        traces, losses = [], []
        for number, (ranks, parallel) in enumerate(((args.ranks, args.parallel), (1, {}))):
            output = folder / f"run-{number}"
            settings = settings_of(data, output, parallel, EXPERTS, seed=args.seed)
            answers = Ranks(ranks, work_and_trace, (settings,)).answers()
            traces.append({key: value for answer in answers for key, value in answer.items()})
            losses.append([line["loss"] for line in lines_of(settings)])
        compare(*traces)
        for step, (ours, one) in enumerate(zip(*losses, strict=True)):
            click.echo(f"step {step}: losses {ours:.7f} and {one:.7f}, apart by {ours - one:.1e}")


if __name__ == "__main__":
    main()
