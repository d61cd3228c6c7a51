"""Mixture of experts: a router that sends each token to some of many feed-forwards.

Routing and balancing follow DeepSeek-V3: scores are sigmoids, each token goes to the K experts with
the highest score + bias, and their scores without the bias, scaled to sum to `scaling`, are their
weights. After each step the bias of an expert with fewer tokens than the mean rises by `bias_rate`,
and that of one with more falls. So experts get even loads without a second loss that competes with
the model's own. No token is dropped: an expert's product has as many rows as it got tokens.

Glm4MoeForCausalLM of Hugging Face computes the same.

Shapes: R rows, L tokens per row, T = R * L tokens, C model width, E experts, K of a token, F width
inside an expert.

Source: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2; L. Wang et al., Auxiliary-Loss-Free Load
Balancing (arXiv 2408.15664).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import grouped_mm, linear, silu

from corpuskit.train.metrics import ExpertLoads

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from corpuskit.train.settings import ExpertShape, ModelShape


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
        experts = (scores.detach() + self.bias).topk(self.experts.per_token, -1).indices
        weights = scores.gather(1, experts)
        return experts, self.experts.scaling * weights / (weights.sum(-1, keepdim=True) + 1e-20)


class Experts(nn.Module):
    """E SwiGLU feed-forwards, whose products are computed together.

    With expert parallelism, P ranks have E / P of them each, and exchange tokens.
    """

    def __init__(self, dim: int, experts: ExpertShape) -> None:
        super().__init__()
        count, inner = experts.count, experts.ffn_dim
        self.gate = nn.Parameter(torch.empty(count, inner, dim))
        self.up = nn.Parameter(torch.empty(count, inner, dim))
        self.down = nn.Parameter(torch.empty(count, dim, inner))
        self.group: dist.ProcessGroup | None = None

    def share(self, mesh: DeviceMesh) -> None:
        """Spread the experts, still without weights, over the ranks of `mesh`."""
        self.group = mesh.get_group()
        for name, parameter in list(self.named_parameters()):
            shard = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(shard))

    # Sizes depend on the tokens, and float32 has no compiled product.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Map (T * K, C), sorted by expert; `counts`: (E,) int64 rows of each expert."""
        if self.group is None:
            return self._map(x, counts)
        ranks = self.group.size()
        by_rank = counts.view(ranks, -1)
        incoming = torch.empty_like(by_rank)  # (P, E / P): rows that each rank sends to my experts
        dist.all_to_all_single(incoming, by_rank, group=self.group)
        # The only wait for the device in a layer: the host must know the sizes of messages.
        num_sent, received = by_rank.sum(1).tolist(), incoming.sum(1).tolist()
        x = _Exchange.apply(x, received, num_sent, self.group)  # type: ignore[no-untyped-call]
        # Rows come ordered by rank, then by expert; products need them ordered by expert.
        kinds = torch.arange(incoming.shape[1], device=x.device).repeat(ranks)
        order = kinds.repeat_interleave(incoming.flatten()).argsort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=x.device)
        x = self._map(x[order], incoming.sum(0))[inverse]
        return _Exchange.apply(x, num_sent, received, self.group)  # type: ignore[no-untyped-call]

    def _map(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        ends = counts.cumsum(0).int()
        gate, up, down = (
            (weight.to_local() if isinstance(weight, DTensor) else weight).to(x.dtype)
            for weight in (self.gate, self.up, self.down)
        )
        inner = silu(grouped_mm(x, gate.transpose(1, 2), offs=ends))
        inner = inner * grouped_mm(x, up.transpose(1, 2), offs=ends)
        return grouped_mm(inner, down.transpose(1, 2), offs=ends)


class _Exchange(torch.autograd.Function):
    """Sends rows from all ranks of a group to all, and gradients back the same way."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        output = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(output, x.contiguous(), received, sent, group)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (slopes,) = gradients
        output = slopes.new_empty(sum(ctx.sent), slopes.shape[1])
        dist.all_to_all_single(output, slopes.contiguous(), ctx.sent, ctx.received, ctx.group)
        return output, None, None, None


class ExpertLayer(nn.Module):
    """Replaces a block's feed-forward: routed experts, and one that sees all tokens.

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
        """Map (R, L, C) token by token; also return (R, E) tokens that each expert got."""
        rows, length, dim = x.shape
        tokens = x.reshape(-1, dim)
        experts, weights = self.router(tokens)
        count, per_token = self.router.experts.count, experts.shape[1]
        loads = torch.zeros(rows, count, device=x.device)
        by_row = experts.view(rows, length * per_token)
        loads.scatter_add_(1, by_row, torch.ones_like(by_row, dtype=loads.dtype))
        order = experts.flatten().argsort(stable=True)
        routed = self.experts(tokens[order // per_token], loads.sum(0).long())
        # Restore the order of tokens, then sum: index_add_ would add in no fixed order.
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=x.device)
        routed = routed[inverse].view(-1, per_token, dim) * weights[..., None].to(routed.dtype)
        return routed.sum(1).view(x.shape) + self.shared(x), loads


def expert_layers(blocks: nn.ModuleList) -> list[ExpertLayer]:
    """Return the expert layers among the blocks that this rank has."""
    layers = [block.feed_forward for block in blocks]
    return [layer for layer in layers if isinstance(layer, ExpertLayer)]


def take_loads(
    blocks: nn.ModuleList, shape: ModelShape, sources: torch.Tensor, num_sources: int
) -> torch.Tensor:
    """Return the tokens of a step that each expert got, (num_sources, layers, E) in float64.

    Args:
        blocks: this rank's, whose `loads` are emptied; layers that it lacks are 0.
        shape: of the model.
        sources: (S,) the source of each of this rank's rows, in the order of micro-batches.
        num_sources: of the run.
    """
    assert shape.experts is not None, "only models with experts have loads"
    sums = torch.zeros(
        num_sources, shape.layers, shape.experts.count, dtype=torch.float64, device=sources.device
    )
    for number, block in blocks.named_children():
        loads = cast("list[torch.Tensor]", block.loads)
        sums[:, int(number)].index_add_(0, sources, torch.cat(loads).double())
        loads.clear()
    return sums


def measure_loads(loads: torch.Tensor) -> ExpertLoads:
    """Measure how even loads (layers, E) are."""
    means = loads.mean(-1).clamp(min=1)
    return ExpertLoads((loads.amax(-1) / means).max().item(), int((loads == 0).sum()))


@torch.no_grad()
def balance_loads(blocks: nn.ModuleList, loads: torch.Tensor, rate: float) -> None:
    """Move the biases of all layers towards even loads.

    Args:
        blocks: this rank's.
        loads: (layers, E) tokens that each expert got in the step, over all ranks.
        rate: how far a bias moves.
    """
    directions = (loads.mean(-1, keepdim=True) - loads).sign()
    for number, block in blocks.named_children():
        layer = block.feed_forward
        if isinstance(layer, ExpertLayer):
            layer.router.bias += rate * directions[int(number)]
