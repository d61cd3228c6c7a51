"""Decay groups, the schedule at known points, and clipping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from corpuskit.train.attention import lay_out
from corpuskit.train.model import Decoder, init_weights, token_losses
from corpuskit.train.optim import (
    Lion,
    Muon,
    build_optimizer,
    clip_gradients,
    learning_rate,
    orthogonalise,
    set_rate,
)
from corpuskit.train.settings import ModelSettings, OptimizerSettings, ScheduleSettings

if TYPE_CHECKING:
    from collections.abc import Callable


def test_norms_and_embeddings_are_not_decayed() -> None:
    shape = ModelSettings(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, tied=False).shape(40)
    model = Decoder(shape)
    decay = {
        id(parameter): group["weight_decay"]
        for group in build_optimizer(model, OptimizerSettings(weight_decay=0.3)).param_groups
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        free = "norm" in name or name == "embedding.weight"
        assert decay[id(parameter)] == (0.0 if free else 0.3), name
    assert len(decay) == len(list(model.parameters()))


WIDTHS = (32, 64, 128, 256)


@pytest.mark.parametrize(("kind", "lr"), [("adamw", 3e-3), ("muon", 1e-2)])
def test_with_mup_steps_change_the_stream_as_much_at_any_width(kind: Any, lr: float) -> None:
    settings = OptimizerSettings(kind=kind, lr=lr)
    slopes = {}
    for base in (None, 32) if kind == "adamw" else (32,):
        sizes = np.array([_changes(width, base, settings) for width in WIDTHS])
        slopes[base], logits = np.polyfit(np.log2(WIDTHS), np.log2(sizes), 1)[0]
    # Logits shrink towards their limit: what is left of the initial ones falls with the root.
    assert abs(slopes[32]) < 0.12
    assert -0.35 < logits < 0.05
    assert slopes.get(None, 1) > 0.2


def _changes(width: int, base: int | None, settings: OptimizerSettings) -> tuple[float, float]:
    """Return how much six steps change the last block's output and the logits (RMS)."""
    shape = ModelSettings(
        dim=width, layers=2, heads=width // 16, kv_heads=width // 16, ffn_dim=2 * width,
        mup_base_dim=base,
    ).shape(40)  # fmt: skip
    model = Decoder(shape)
    init_weights(model, 0)
    optimizer = build_optimizer(model, settings)
    rows = torch.arange(0, 40, 5)[:, None]
    for _ in range(12):
        rows = torch.cat((rows, (7 * rows[:, -1:] + 1) % 40), 1)
    layout = lay_out(
        np.tile(np.arange(12), (8, 1)), head_dim=16, rope_theta=1e4, kernel="sdpa",
        device=torch.device("cpu"),
    )  # fmt: skip
    streams: list[torch.Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _module, _inputs, x: streams.append(x.detach()))
    logits = []
    for _ in range(7):
        logits.append(model(rows[:, :-1], layout))
        (token_losses(logits[-1], rows[:, 1:])[1] / 96).backward()
        set_rate(optimizer, settings.lr)
        optimizer.step()
        optimizer.zero_grad()
    changes = streams[-1] - streams[0], (logits[-1] - logits[0]).detach()
    return changes[0].square().mean().sqrt().item(), changes[1].square().mean().sqrt().item()


def random_steps(optimizer: torch.optim.Optimizer, weights: torch.nn.Parameter) -> torch.Tensor:
    """Take five steps with gradients that depend on the seed only."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        weights.grad = torch.randn(weights.shape, generator=generator)
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize("sizes", [(24, 16), (16, 24), (16, 16)])
def test_muon_takes_the_steps_of_torch(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = torch.randn(sizes, generator=torch.Generator().manual_seed(1))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    rest = torch.nn.Parameter(torch.zeros(3))
    muon = Muon([{"params": [ours], "weight_decay": 0.1}], torch.optim.AdamW([rest], lr=0.02), 0.95)
    reference = torch.optim.Muon(
        [theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    # torch's is in bfloat16 on every device.
    monkeypatch.setattr("corpuskit.train.optim._precision", lambda _: torch.bfloat16)
    assert torch.equal(random_steps(muon, ours), random_steps(reference, theirs))


def test_orthogonal_matrices_keep_their_singular_vectors() -> None:
    matrix = torch.randn(20, 12, generator=torch.Generator().manual_seed(2))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.T @ orthogonalise(matrix) @ right.T
    assert 0.6 < values.diagonal().min() <= values.diagonal().max() < 1.3
    torch.testing.assert_close(values, values.diagonal().diag(), rtol=0, atol=1e-5)


def test_lion_takes_the_steps_of_its_paper() -> None:
    # Algorithm 2 of arXiv 2302.06675, in float64.
    lr, beta1, beta2, decay = 0.02, 0.9, 0.95, 0.1
    start = torch.randn(12, 7, generator=torch.Generator().manual_seed(1))
    ours = torch.nn.Parameter(start.clone())
    lion = Lion([{"params": [ours], "weight_decay": decay}], lr, (beta1, beta2))
    theta, m, generator = start.double(), torch.zeros(12, 7).double(), torch.Generator()
    generator.manual_seed(3)
    for _ in range(5):
        g = torch.randn(12, 7, generator=generator).double()
        c = beta1 * m + (1 - beta1) * g
        theta = theta - lr * (c.sign() + decay * theta)
        m = beta2 * m + (1 - beta2) * g
    torch.testing.assert_close(random_steps(lion, ours).double(), theta, rtol=0, atol=1e-6)


def test_muon_leaves_embedding_head_and_norms_to_adamw() -> None:
    shape = ModelSettings(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, tied=False).shape(40)
    model = Decoder(shape)
    groups = build_optimizer(model, OptimizerSettings(kind="muon")).param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon = {names[id(p)] for group in groups if "momentum" in group for p in group["params"]}
    assert by_muon == {n for n in names.values() if n.startswith("blocks.") and "norm" not in n}
    decayed = [group["weight_decay"] > 0 for group in groups if "momentum" not in group]
    assert decayed == [True, False]
    assert sum(len(group["params"]) for group in groups) == len(names)


@pytest.mark.parametrize(
    ("fields", "points"),
    [
        ({"kind": "cosine"}, {1: 0.1, 5: 0.5, 10: 1.0, 55: 0.6, 100: 0.2}),
        ({"kind": "constant"}, {5: 0.5, 10: 1.0, 100: 1.0}),
        ({"kind": "wsd"}, {10: 1.0, 75: 1.0, 80: 0.84, 87: 0.616, 100: 0.2}),
        ({"kind": "wsd", "decay_shape": "sqrt"}, {75: 1.0, 76: 0.84, 84: 0.52, 100: 0.2}),
    ],
)
def test_the_schedule_at_known_points(fields: dict[str, Any], points: dict[int, float]) -> None:
    schedule = ScheduleSettings(warmup_tokens=1000, decay_ratio=0.25, final_ratio=0.2, **fields)
    found = {at: learning_rate(100 * at, 10_000, 3.0, schedule) / 3.0 for at in points}
    assert found == pytest.approx(points)


def test_the_cosine_falls_by_half_a_cosine() -> None:
    schedule = ScheduleSettings(warmup_ratio=0.0, final_ratio=0.0)
    for tokens in range(1, 101):
        expected = (1 + math.cos(math.pi * tokens / 100)) / 2
        assert learning_rate(tokens, 100, 1.0, schedule) == pytest.approx(expected, abs=1e-12)


def test_clipping_keeps_directions_and_returns_the_norm_before() -> None:
    ones, twos = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(3))
    ones.grad, twos.grad = torch.ones(4), torch.full((3,), 2.0)
    assert clip_gradients([ones, twos], 2.0).item() == pytest.approx(4.0)
    torch.testing.assert_close(ones.grad, torch.full((4,), 0.5))
    torch.testing.assert_close(twos.grad, torch.full((3,), 1.0))


def test_zero_is_no_clipping() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 50.0)
    assert clip_gradients([parameter], 0.0).item() == pytest.approx(100.0)
    assert parameter.grad.tolist() == [50.0] * 4


@pytest.mark.slow
def test_clipping_spans_meshes(run_ranks: Callable[..., list[Any]]) -> None:
    # Gradients 3 (sharded over both ranks), 4 (on a mesh of another shape) and 12 (plain): norm 13.
    answers = run_ranks(2, _clip_over_meshes)
    assert answers == [pytest.approx((13.0, 1.5, 2.0, 6.0))] * 2


def _clip_over_meshes() -> tuple[float, ...]:
    flat, square = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
    whole = [
        distribute_tensor(torch.tensor([3.0, 0.0]), flat, [Shard(0)]),
        distribute_tensor(torch.tensor([0.0, 4.0]), square, [Replicate(), Shard(0)]),
        torch.tensor([12.0, 0.0]),
    ]
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in whole]
    for parameter, gradient in zip(parameters, whole, strict=True):
        parameter.grad = gradient
    norm = clip_gradients(parameters, 6.5).item()
    sizes = [_whole(p.grad).abs().max().item() for p in parameters if p.grad is not None]
    return norm, *sizes


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()
