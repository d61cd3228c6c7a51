"""Mixture of experts: a router that sends each token to some of many feed-forwards.

Routing and balancing follow DeepSeek-V3: scores are sigmoids, the K experts with the highest
score + bias are taken, and their scores without the bias, made to sum to `scaling`, are their
weights. After each step the bias of an expert with fewer tokens than the mean rises by `bias_rate`,
and that of one with more falls: experts get even loads without a loss that pulls against the
model's own. No token is dropped: the experts' products have as many rows as they got tokens.

What Hugging Face calls Glm4MoeForCausalLM computes the same.

Shapes: R rows, L tokens per row, T = R * L tokens, C model width, E experts, K of a token, F width
inside an expert.

Source: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2; L. Wang et al., Auxiliary-Loss-Free Load
Balancing (arXiv 2408.15664).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import grouped_mm, linear, silu

from corpuskit.train.metrics import ExpertLoads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.train.settings import ExpertShape


class Router(nn.Module):
    """Chooses the experts of each token. Computes in float32, whatever the model's type."""

    def __init__(self, dim: int, experts: ExpertShape) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, dim))
        self.bias: torch.Tensor
        self.register_buffer("bias", torch.zeros(experts.count))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts (T, K) of tokens (T, C), and their weights (T, K) in float32."""
        scores = linear(x.float(), self.weight.float()).sigmoid()
        chosen = (scores.detach() + self.bias).topk(self.experts.per_token, -1).indices
        weights = scores.gather(1, chosen)
        return chosen, self.experts.scaling * weights / (weights.sum(-1, keepdim=True) + 1e-20)


class Experts(nn.Module):
    """E SwiGLU feed-forwards, whose products are computed together."""

    def __init__(self, dim: int, experts: ExpertShape) -> None:
        super().__init__()
        count, inner = experts.count, experts.ffn_dim
        self.gate = nn.Parameter(torch.empty(count, inner, dim))
        self.up = nn.Parameter(torch.empty(count, inner, dim))
        self.down = nn.Parameter(torch.empty(count, dim, inner))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Map (T * K, C), sorted by expert; `ends`: (E,) int32 where the tokens of each end."""
        gate, up, down = (
            weight.to(x.dtype).transpose(1, 2) for weight in (self.gate, self.up, self.down)
        )
        inner = silu(grouped_mm(x, gate, offs=ends)) * grouped_mm(x, up, offs=ends)
        return grouped_mm(inner, down, offs=ends)


class ExpertLayer(nn.Module):
    """Takes the place of a block's feed-forward: routed experts, and one that sees all tokens.

    Args:
        dim: C.
        experts: how many, and their size.
        shared: the feed-forward that sees all tokens.
    """

    def __init__(self, dim: int, experts: ExpertShape, shared: nn.Module) -> None:
        super().__init__()
        self.router = Router(dim, experts)
        self.experts = Experts(dim, experts)
        self.shared = shared

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (R, L, C) token by token; return with it how many tokens each expert got, (R, E)."""
        rows, length, dim = x.shape
        tokens = x.reshape(-1, dim)
        chosen, weights = self.router(tokens)
        count, per_token = self.router.experts.count, chosen.shape[1]
        loads = torch.zeros(rows, count, device=x.device)
        places = chosen.view(rows, length * per_token)
        loads.scatter_add_(1, places, torch.ones_like(places, dtype=loads.dtype))
        order = chosen.flatten().argsort(stable=True)
        ends = loads.sum(0).cumsum(0).int()
        routed = self.experts(tokens[order // per_token], ends)
        # Back in the order of tokens and summed there: an index_add_ would add up in any order.
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        routed = routed[back].view(-1, per_token, dim) * weights[..., None].to(routed.dtype)
        return routed.sum(1).view(x.shape) + self.shared(x), loads


def expert_layers(blocks: Iterable[Any]) -> list[ExpertLayer]:
    """Return the mixtures of experts among the feed-forwards of blocks."""
    layers = [block.feed_forward for block in blocks]
    return [layer for layer in layers if isinstance(layer, ExpertLayer)]


def take_loads(blocks: Iterable[Any], sources: torch.Tensor, num_sources: int) -> torch.Tensor:
    """Return the tokens of a step that each expert got, (num_sources, N, E) in float64.

    Args:
        blocks: N with experts, whose `loads` are emptied.
        sources: (S,) the source of each of this rank's rows, in the order of micro-batches.
        num_sources: of the run.
    """
    of_layers = [torch.cat(block.loads).double() for block in blocks if block.loads]
    for block in blocks:
        block.loads.clear()
    by_row = torch.stack(of_layers, 1)
    sums = by_row.new_zeros(num_sources, *by_row.shape[1:])
    return sums.index_add_(0, sources, by_row)


def measure_loads(loads: torch.Tensor) -> ExpertLoads:
    """Return how even loads (N, E) are."""
    means = loads.mean(-1).clamp(min=1)
    return ExpertLoads((loads.amax(-1) / means).max().item(), int((loads == 0).sum()))


@torch.no_grad()
def balance(layers: Sequence[ExpertLayer], loads: torch.Tensor, rate: float) -> None:
    """Move the biases of all layers towards even loads.

    Args:
        layers: N of them.
        loads: (N, E) tokens that each expert got in the step, over all ranks.
        rate: how far a bias moves.
    """
    lacking = loads.mean(-1, keepdim=True) - loads
    for layer, direction in zip(layers, lacking.sign(), strict=True):
        layer.router.bias += rate * direction
