"""The decoder: what it computes, and how it is initialised."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from corpuskit.train.attention import lay_out
from corpuskit.train.model import IGNORED, Decoder, Recompute, init_weights, token_losses
from corpuskit.train.settings import PRESETS, ModelSettings, ModelShape

SHAPE = ModelSettings(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48).shape(40)
POSITIONS = np.array([[*range(7), *range(9)], [*range(16)]])


def build(shape: ModelShape = SHAPE, *, recompute: Recompute = "none") -> Decoder:
    model = Decoder(shape, recompute=recompute)
    init_weights(model, seed=3)
    return model


def logits_of(
    model: Decoder, tokens: torch.Tensor, positions: np.ndarray = POSITIONS
) -> torch.Tensor:
    layout = lay_out(
        positions, head_dim=8, rope_theta=1e4, kernel="sdpa", device=torch.device("cpu")
    )
    return model(tokens, layout)


def random_tokens(shape: tuple[int, int] = (2, 16)) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(5))


def test_no_token_reaches_another_document_or_the_past() -> None:
    model, tokens = build(), random_tokens()
    before = logits_of(model, tokens)
    for place in (0, 3, 6, 7, 12):
        changed = tokens.clone()
        changed[0, place] = (tokens[0, place] + 1) % 40
        differs = (logits_of(model, changed) != before).any(-1)
        end = 7 if place < 7 else 16
        assert differs[0, place:end].all()
        assert not differs[0, :place].any()
        assert not differs[0, end:].any()
        assert not differs[1].any()


def test_a_packed_document_computes_as_if_alone() -> None:
    model, tokens = build(), random_tokens()
    packed = logits_of(model, tokens)[0, 7:16]
    alone = logits_of(model, tokens[:1, 7:16], POSITIONS[:1, 7:16])[0]
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    wider = dataclasses.replace(SHAPE, layers=5)
    ours, theirs = dict(build().named_parameters()), dict(build(wider).named_parameters())
    first, second = "blocks.0.attention.key.weight", "blocks.1.attention.key.weight"
    assert torch.equal(ours["embedding.weight"], theirs["embedding.weight"])
    assert torch.equal(ours[second], theirs[second])
    assert not torch.equal(ours[first], ours[second])


def test_embedding_std_is_of_the_embedding_alone() -> None:
    usual, model = dict(build().named_parameters()), build()
    init_weights(model, seed=3, embedding_std=1.0)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, usual[name]) == (name != "embedding.weight")
    assert model.embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)


def test_the_first_loss_is_that_of_logits_of_variance_one() -> None:
    tokens = random_tokens((8, 16))
    losses, _ = token_losses(logits_of(build(), tokens, POSITIONS[[1] * 8]), tokens.roll(-1, 1))
    assert losses.mean().item() == pytest.approx(math.log(40) + 1 / 2, rel=0.05)


def test_ignored_labels_carry_no_loss_and_no_gradient() -> None:
    model, tokens = build(), random_tokens()
    labels = tokens.roll(-1, 1)
    labels[0] = IGNORED
    losses, _ = token_losses(logits_of(model, tokens), labels)
    assert losses[0].tolist() == [0.0] * 16
    assert losses[1].all()
    _, objective = token_losses(logits_of(model, tokens), torch.full_like(labels, IGNORED), 0.1)
    objective.backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_z_loss_adds_the_squared_log_normaliser() -> None:
    logits = torch.randn(1, 3, 40, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[4, IGNORED, 7]])
    losses, objective = token_losses(logits, labels, z_loss=0.5)
    squares = logits[0, [0, 2]].logsumexp(-1).square().sum()
    torch.testing.assert_close(objective, losses.sum() + 0.5 * squares)


class Counter(TorchDispatchMode):
    """Counts what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def test_recomputation_keeps_less_and_changes_no_gradient() -> None:
    tokens, gradients, products, gates = random_tokens(), [], [], []
    for recompute in get_args(Recompute):
        model = build(recompute=recompute)
        with Counter() as counter:
            token_losses(logits_of(model, tokens), tokens.roll(-1, 1))[1].backward()
        products.append(counter.calls["aten::mm"])
        gates.append(counter.calls["aten::silu"])
        gradients.append([parameter.grad for parameter in model.parameters()])
    # 7 products in each of 2 blocks, and the head; each has two more in the backward pass. Nobody
    # needs the result of a block's last one again.
    assert products == [45, 45, 45 + 12]
    assert gates == [2, 4, 4]
    for others in gradients[1:]:
        for one, other in zip(gradients[0], others, strict=True):
            assert torch.equal(one, other)


def test_untied_models_have_a_head_of_their_own() -> None:
    names = {n for n, _ in Decoder(dataclasses.replace(SHAPE, tied=False)).named_parameters()}
    assert names - {n for n, _ in Decoder(SHAPE).named_parameters()} == {"head.weight"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_the_parameters_its_name_says(preset: str) -> None:
    with torch.device("meta"):
        model = Decoder(ModelSettings(preset=preset).shape(1000))  # type: ignore[arg-type]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    outer = sum(sizes.get(name, 0) for name in ("embedding.weight", "head.weight"))
    said = float(preset[:-1]) * {"m": 1e6, "b": 1e9}[preset[-1]]
    assert sum(sizes.values()) - outer == pytest.approx(said, rel=0.09)
