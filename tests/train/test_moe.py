"""Mixtures of experts: what they compute, how loads are evened out, and that runs continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from corpuskit.train.metrics import ExpertLoads
from corpuskit.train.model import FeedForward
from corpuskit.train.moe import ExpertLayer, balance_loads, measure_loads
from corpuskit.train.settings import ExpertShape, ModelSettings, TrainSettings
from tests.train.test_training import losses_of, work

if TYPE_CHECKING:
    from collections.abc import Callable

DIM, SHAPE = 16, ExpertShape(count=5, per_token=2, ffn_dim=24, shared=1, scaling=2.5)
MODEL = {
    "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64,
    "experts": {"count": 4, "per_token": 2, "bias_rate": 0.01},
}  # fmt: skip


def layer() -> ExpertLayer:
    """Return a layer with random weights, and biases large enough to change choices."""
    torch.manual_seed(0)
    made = ExpertLayer(DIM, SHAPE, FeedForward(DIM, SHAPE.ffn_dim))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.4)
        made.router.bias.uniform_(-0.3, 0.3)
    return made


def by_hand(made: ExpertLayer, token: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return what a token (C,) becomes, and its experts, computed expert by expert."""
    scores = torch.sigmoid(made.router.weight @ token)
    biased = (scores.detach() + made.router.bias).tolist()
    chosen = sorted(range(SHAPE.count), key=lambda expert: -biased[expert])[: SHAPE.per_token]
    mapped = made.shared(token)
    for expert in chosen:
        weight = SHAPE.scaling * scores[expert] / sum(scores[e] for e in chosen)
        gate, up, down = (
            matrix[expert] for matrix in (made.experts.gate, made.experts.up, made.experts.down)
        )
        mapped = mapped + weight * (down @ (torch.nn.functional.silu(gate @ token) * (up @ token)))
    return mapped, chosen


def test_tokens_go_to_their_experts_and_gradients_come_back() -> None:
    made = layer()
    x = torch.randn(3, 7, DIM, requires_grad=True)
    mapped, loads = made(x)
    expected = [[by_hand(made, token) for token in row] for row in x]
    whole = torch.stack([torch.stack([value for value, _ in row]) for row in expected])
    torch.testing.assert_close(mapped, whole)
    counts = [
        [sum(expert in chosen for _, chosen in row) for expert in range(SHAPE.count)]
        for row in expected
    ]
    assert loads.tolist() == counts
    slope = torch.randn_like(whole)
    inputs = [x, *made.parameters()]
    ours = torch.autograd.grad(mapped, inputs, slope, retain_graph=True)
    for gradient, by_loop in zip(ours, torch.autograd.grad(whole, inputs, slope), strict=True):
        torch.testing.assert_close(gradient, by_loop, rtol=1e-4, atol=1e-5)


def test_a_token_alone_is_mapped_as_among_others() -> None:
    made = layer()
    x = torch.randn(2, 9, DIM)
    together, _ = made(x)
    alone, loads = made(x[1:, 4:5])
    torch.testing.assert_close(alone, together[1:, 4:5])
    assert (int(loads.sum()), int((loads == 0).sum())) == (2, 3)  # experts may get no token


def test_biases_even_out_loads() -> None:
    made, x = layer(), torch.randn(8, 64, DIM) + 0.5  # a mean that some experts like better
    made.router.bias.zero_()
    before = measure_loads(made(x)[1].sum(0)[None])
    blocks = nn.ModuleList([nn.Module()])
    blocks[0].feed_forward = made
    for _ in range(300):
        balance_loads(blocks, made(x)[1].sum(0)[None], 0.005)
    after = measure_loads(made(x)[1].sum(0)[None])
    assert before.imbalance > 1.3
    assert after.imbalance < 1.05
    assert measure_loads(torch.tensor([[4.0, 0.0], [1.0, 3.0]])) == ExpertLoads(2.0, 1)


@pytest.mark.slow
def test_a_run_with_experts_continues_bit_for_bit_on_any_ranks(
    settings_for: Callable[..., TrainSettings], tmp_path: Path, run_ranks: Any
) -> None:
    straight, shared = (settings_for(tmp_path / n, model=MODEL) for n in ("1", "2"))
    stopped = [
        settings_for(tmp_path / "3", model=MODEL, steps=n, parallel={"recompute": "full"},
                     batch={"global_rows": 8, "micro_rows": 2}, checkpoint={"every_steps": 2})
        for n in (4, 8)
    ]  # fmt: skip
    run_ranks(1, work, straight, *stopped)
    run_ranks(2, work, shared)
    assert losses_of(shared) == pytest.approx(losses_of(straight), abs=1e-5)
    assert losses_of(stopped[1]) == pytest.approx(losses_of(straight), abs=1e-5)
    loads = [
        [json.loads(line)["experts"] for line in path.read_text().splitlines()]
        for path in (Path(s.output, "metrics.jsonl") for s in (straight, shared, stopped[1]))
    ]
    assert loads[0] == loads[1] == loads[2]
    lines = Path(stopped[1].output, "experts.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert [line["step"] for line in written] == [2, 4, 6, 8]
    sums = torch.tensor([[line["sources"][name] for line in written] for name in ("web", "books")])
    assert sums.sum((0, 1, 3)).tolist() == [8 * 8 * 32 * 2] * 2  # steps, rows, tokens, experts


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"per_token 5 is more than count 4\. Lower it"):
        ModelSettings.model_validate(MODEL | {"experts": {"count": 4, "per_token": 5}})
    fields = {"data": "-", "output": "o", "model": MODEL, "batch": {"global_rows": 8}}
    with pytest.raises(ValidationError, match=r"Set parallel\.tensor to 1"):
        TrainSettings.model_validate(fields | {"parallel": {"tensor": 2}})
    with pytest.raises(ValidationError, match=r"Set parallel\.expert: 2"):
        TrainSettings.model_validate(fields | {"parallel": {"expert": 6}})
    with pytest.raises(ValidationError, match=r"Set recompute to full or none"):
        TrainSettings.model_validate(fields | {"parallel": {"expert": 2, "recompute": "selective"}})
    shape = ModelSettings.model_validate(MODEL).shape(48)
    assert shape.experts == ExpertShape(4, 2, 24, 1, 1.0)  # 64 / 3, in eights
