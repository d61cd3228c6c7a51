"""A Llama-style decoder.

Shapes: R rows, L tokens per row (or this rank's of them, if ranks share rows), C model width, H
query heads, G key/value heads, D head size, V vocabulary, P = V / ranks that share matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, linear, silu
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
)

from corpuskit.loader.assemble import IGNORED
from corpuskit.train.attention import attend, lay_out, rotate
from corpuskit.train.moe import ExpertLayer
from corpuskit.train.tensors import named_generator, shard_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from corpuskit.train.attention import Kernel, Layout
    from corpuskit.train.context import Context
    from corpuskit.train.settings import ModelShape, StageSpan


Recompute = Literal["none", "selective", "full"]

# What costs most to compute again: matrix products and attention, whichever kernel it has.
_KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
    torch.ops.higher_order.flex_attention,
]


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; queries and keys may be normalised."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.query = nn.Linear(shape.dim, width, bias=False)
        self.key = nn.Linear(shape.dim, kv_width, bias=False)
        self.value = nn.Linear(shape.dim, kv_width, bias=False)
        self.out = nn.Linear(width, shape.dim, bias=False)
        # Large models have survived on QK-norm where clipping and optimiser changes did not (Marin
        # 32B).
        self.query_norm = _norm(shape.head_dim, shape) if shape.qk_norm else nn.Identity()
        self.key_norm = _norm(shape.head_dim, shape) if shape.qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Mix (R, L, C) along L, inside documents."""
        heads = (*x.shape[:2], -1, self.head_dim)
        q = rotate(self.query_norm(self.query(x).view(heads)), layout)
        k = rotate(self.key_norm(self.key(x).view(heads)), layout)
        return self.out(attend(q, k, self.value(x).view(heads), layout).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, inner, bias=False)
        self.up = nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (R, L, C) token by token."""
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention, then feed-forward: each reads the normalised stream and adds to it."""

    def __init__(self, shape: ModelShape, *, recompute: Recompute) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = _norm(shape.dim, shape)
        self.attention = Attention(shape)
        self.feed_forward_norm = _norm(shape.dim, shape)
        self.feed_forward: FeedForward | ExpertLayer
        if shape.experts is None:
            self.feed_forward = FeedForward(shape.dim, shape.ffn_dim)
        else:
            shared = FeedForward(shape.dim, shape.experts.shared * shape.experts.ffn_dim)
            self.feed_forward = ExpertLayer(shape.dim, shape.experts, shared)
        self.loads: list[torch.Tensor] = []
        """(R, E) tokens that each expert got, of each micro-batch since the list was emptied."""

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Map (R, L, C) to (R, L, C); keeps for the backward pass what `recompute` says."""
        loads = None
        if self.recompute == "none" or not torch.is_grad_enabled():
            x, loads = self._mix(x, layout)
        # Inside the block's forward, so that FSDP gathers parameters once for both passes.
        elif self.recompute == "full":
            x, loads = checkpoint(self._mix, x, layout, use_reentrant=False)
        else:
            context = _keep_products
            x, loads = checkpoint(self._mix, x, layout, use_reentrant=False, context_fn=context)
        # Outside the checkpoint, so that a pass that is computed again is not counted twice.
        if loads is not None and torch.is_grad_enabled():
            self.loads.append(loads)
        return x

    def _mix(self, x: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = x + self.attention(self.attention_norm(x), layout)
        normalised, loads = self.feed_forward_norm(x), None
        if isinstance(self.feed_forward, ExpertLayer):
            mapped, loads = self.feed_forward(normalised)
        else:
            mapped = self.feed_forward(normalised)
        return x + mapped, loads


class Decoder(nn.Module):
    """The model: embedding, blocks, norm, head; or, as a rank of a pipeline, some of them.

    Args:
        shape: of the whole model.
        recompute: what the backward pass computes again.
        stages: of a pipeline, those that this rank has; none for the whole model. Parameters have
            the same names either way.
    """

    def __init__(
        self, shape: ModelShape, *, recompute: Recompute = "none", stages: Sequence[StageSpan] = ()
    ) -> None:
        super().__init__()
        self.shape = shape
        layers = [number for span in stages for number in span.layers]
        has_first = not stages or any(span.is_first for span in stages)
        has_last = not stages or any(span.is_last for span in stages)
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim) if has_first else None
        self.blocks = nn.ModuleList()
        for number in layers or range(shape.layers):
            self.blocks.add_module(str(number), Block(shape, recompute=recompute))
        self.norm = _norm(shape.dim, shape) if has_last else None
        # Tied: the head reads the embedding's weight, so there is no parameter to keep equal.
        self.head = None
        if has_last and not shape.tied:
            self.head = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        # A tuple, so that torch does not register their modules a second time.
        self.stages = tuple(ModelStage(self, span) for span in stages)

    def forward(self, tokens: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Return the logits (R, L, V) of (R, L) int64 tokens; of the whole model only."""
        assert self.embedding is not None, "a pipeline calls its stages"
        assert self.norm is not None, "a pipeline calls its stages"
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, layout)
        return linear(self.norm(x), (self.head or self.embedding).weight)


@dataclass(slots=True)
class MicroBatch:
    """R rows on this rank's device; every stage of a pipeline makes them from the same batch."""

    tokens: torch.Tensor  # (R, L) int64
    labels: torch.Tensor  # (R, L) int64
    layout: Layout
    losses: torch.Tensor | None = None  # (R, L) nats, once the last stage has computed them


def make_micro_batch(
    shape: ModelShape,
    tokens: NDArray[np.integer],
    labels: NDArray[np.integer],
    position_ids: NDArray[np.integer],
    *,
    kernel: Kernel,
    device: torch.device,
    context: Context | None = None,
) -> MicroBatch:
    """Return a micro-batch of this rank's tokens, from the loader's (R, L) arrays."""
    layout = lay_out(
        position_ids,
        head_dim=shape.head_dim,
        rope_theta=shape.rope_theta,
        rope_scaling=shape.rope_scaling,
        kernel=kernel,
        device=device,
        context=context,
    )
    if context is not None:
        columns = context.columns(tokens.shape[1])
        tokens, labels = tokens[:, columns], labels[:, columns]
    tokens, labels = (ids.astype(np.int64, copy=False) for ids in (tokens, labels))
    return MicroBatch(
        torch.from_numpy(tokens).to(device, non_blocking=True),
        torch.from_numpy(labels).to(device, non_blocking=True),
        layout,
    )


class ModelStage(nn.Module):
    """Consecutive blocks of a model, with what comes before the first or after the last."""

    def __init__(self, model: Decoder, span: StageSpan) -> None:
        super().__init__()
        self.span = span
        self.embedding = model.embedding if span.is_first else None
        blocks = dict(model.blocks.named_children())
        self.blocks = nn.ModuleList(blocks[str(number)] for number in span.layers)
        self.norm, self.head = (model.norm, model.head) if span.is_last else (None, None)

    def forward(
        self,
        x: torch.Tensor | None = None,
        *,
        micro_batch: MicroBatch,
        z_loss: float = 0.0,
        divisor: torch.Tensor | float = 1.0,
    ) -> torch.Tensor:
        """Map the stream (R, L, C); the first stage makes it, the last returns what to minimise."""
        if self.embedding is not None:
            x = self.embedding(micro_batch.tokens)
        for block in self.blocks:
            x = block(x, micro_batch.layout)
        assert x is not None, "the stage before gives it"
        if self.norm is None or self.head is None:
            return x
        logits = linear(self.norm(x), self.head.weight)
        losses, objective = token_losses(logits, micro_batch.labels, z_loss)
        micro_batch.losses = losses.detach()
        return objective / divisor


def token_losses(
    logits: torch.Tensor, labels: torch.Tensor, z_loss: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each token, in nats, and what to minimise.

    Args:
        logits: (R, L, V) of any floating type, computed with in float32; with tensor parallelism
            each rank has its share of V.
        labels: (R, L) int64, `IGNORED` where a token carries no loss.
        z_loss: weight of the squared log-normaliser (PaLM, section 5), which keeps logits from
            drifting.

    Returns:
        (R, L) float32 cross-entropy, 0 where ignored; and a scalar, its sum with the z-loss added.
    """
    if isinstance(logits, DTensor):
        return _sharded_losses(logits, labels, z_loss)
    logits = logits.float()
    losses = cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view(labels.shape)
    if not z_loss:
        return losses, losses.sum()
    squares = logits.logsumexp(-1).square() * (labels != IGNORED)
    return losses, losses.sum() + z_loss * squares.sum()


def _sharded_losses(
    logits: DTensor, labels: torch.Tensor, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same as `token_losses` where each rank has (R, L, P) of the logits (R, L, V).

    Not by torch's `loss_parallel`: it returns no log-normaliser, and its backward pass must run
    inside its context.
    """
    group = logits.device_mesh.get_group()
    per_token = _CrossEntropy.apply(logits.to_local().float(), labels, group)  # type: ignore[no-untyped-call]
    losses, normalisers = per_token
    objective = losses.sum()
    if z_loss:
        objective = objective + z_loss * (normalisers.square() * (labels != IGNORED)).sum()
    return losses, objective


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy and log-normaliser (R, L) of each token, equal on all ranks of a group."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: dist.ProcessGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = logits.shape[-1]
        columns = labels - dist.get_rank(group) * size
        is_here = (columns >= 0) & (columns < size)  # IGNORED is nowhere
        columns = columns.clamp(0, size - 1)[..., None]
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        powers = (logits - highest[..., None]).exp()
        sums = torch.stack((powers.sum(-1), logits.gather(-1, columns)[..., 0] * is_here))
        dist.all_reduce(sums, group=group)
        normalisers = highest + sums[0].log()
        ctx.save_for_backward(powers.div_(sums[0][..., None]), columns, is_here, labels != IGNORED)
        return (normalisers - sums[1]) * (labels != IGNORED), normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shares, columns, is_here, is_labelled = ctx.saved_tensors
        loss_gradients = gradients[0] * is_labelled
        slopes = shares * (loss_gradients + gradients[1])[..., None]
        slopes.scatter_add_(-1, columns, -(loss_gradients * is_here)[..., None])
        return slopes, None, None


def width_factors(name: str, shape: ModelShape) -> tuple[float, float]:
    """Return the factors by which muP scales a parameter's initial values and learning rate.

    Multipliers of activations are folded into the final norm, so the model computes what it does
    without muP, and exports do not differ. Heads keep their size when the width grows.

    Source: G. Yang et al., Tensor Programs V (arXiv 2203.03466), table 8, for Adam.
    """
    ratio = shape.dim / shape.mup_base_dim if shape.mup_base_dim else 1.0
    if name == "norm.weight":
        return 1 / ratio, 1 / ratio
    if name in ("embedding.weight", "head.weight"):
        return math.sqrt(ratio), 1.0
    return 1.0, 1.0 if "norm" in name else 1 / ratio


@torch.no_grad()
def init_weights(model: Decoder, seed: int, embedding_std: float | None = None) -> None:
    """Fill every parameter, to the same values on any number of ranks.

    Each parameter has a generator of its own, seeded by its name, and each rank makes the whole
    tensor and keeps its shard: no communication, and no more memory than the largest parameter.
    Matrices and the embedding: normal, with a standard deviation of 1/sqrt(columns), for those that
    write into the stream divided by sqrt(2 layers), as in GPT-2. Norms: one. Biases of routers:
    zero. All times `width_factors`. `embedding_std` replaces the embedding's own deviation.
    """
    for buffer in model.buffers():
        buffer.zero_()
    for name, parameter in model.named_parameters():
        factor, _ = width_factors(name, model.shape)
        if parameter.ndim == 1:
            parameter.fill_(factor)
            continue
        std = factor * parameter.shape[-1] ** -0.5
        if name.endswith(("out.weight", "down.weight", "experts.down")):
            std /= math.sqrt(2 * model.shape.layers)
        if name == "embedding.weight" and embedding_std:
            std = embedding_std
        weights = torch.empty(parameter.shape, device=parameter.device)
        weights.normal_(0.0, std, generator=named_generator(seed, name, parameter.device))
        parameter.copy_(shard_like(weights, parameter))


def _keep_products() -> tuple[Any, Any]:
    return create_selective_checkpoint_contexts(_KEPT)  # type: ignore[no-untyped-call]


def _norm(size: int, shape: ModelShape) -> nn.RMSNorm:
    return nn.RMSNorm(size, eps=shape.norm_eps)
