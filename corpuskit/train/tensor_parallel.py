"""Tensor parallelism: ranks that share each matrix, and between blocks the tokens of a row.

Shapes: R rows, L tokens per row, V vocabulary, P = V / ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import IGNORED

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from corpuskit.train.model import Decoder
    from corpuskit.train.settings import ModelShape


def require_even_shares(shape: ModelShape, seq_len: int, tensor: int) -> None:
    """Refuse sizes of which `tensor` ranks cannot have equal shares.

    Raises:
        UsageError: names each, and the next size that would do.
    """
    kv_heads = _next(shape.kv_heads, tensor)
    wanted = {
        "model.heads": (shape.heads, _next(shape.heads, kv_heads)),
        "model.kv_heads": (shape.kv_heads, kv_heads),
        "model.ffn_dim": (shape.ffn_dim, _next(shape.ffn_dim, tensor)),
        "model.vocab_size": (shape.vocab_size, _next(shape.vocab_size, tensor)),
        "seq_len of the packed rows": (seq_len, _next(seq_len, tensor)),
    }
    uneven = {key: sizes for key, sizes in wanted.items() if sizes[0] % tensor}
    if uneven:
        raise UsageError(
            f"parallel.tensor: {tensor} does not divide "
            f"{', '.join(f'{key} {size}' for key, (size, _) in uneven.items())}. Change it, or set "
            f"{', '.join(f'{key} {good}' for key, (_, good) in uneven.items())}."
        )


def _next(size: int, factor: int) -> int:
    return math.ceil(size / factor) * factor


def share_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Spread the model, still without weights, over the ranks of `mesh`.

    A block's first matrices are cut by outputs, its last ones by inputs, so each half of a block
    gathers the tokens once and adds up once; norms and the stream between see L / ranks tokens.
    Norms have whole weights; FSDP, which comes on top, adds up their gradients.
    """
    by_tokens, whole = Shard(1), Replicate()
    gather_tokens = PrepareModuleInput(
        input_layouts=(by_tokens, None), desired_input_layouts=(whole, None)
    )
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=by_tokens),
        "norm": SequenceParallel(),
        "blocks.*.attention_norm": SequenceParallel(),
        "blocks.*.attention": gather_tokens,
        "blocks.*.attention.out": RowwiseParallel(output_layouts=by_tokens),
        "blocks.*.feed_forward_norm": SequenceParallel(),
        "blocks.*.feed_forward": PrepareModuleInput(
            input_layouts=by_tokens, desired_input_layouts=whole
        ),
        "blocks.*.feed_forward.down": RowwiseParallel(output_layouts=by_tokens),
    }
    for name in ("attention.query", "attention.key", "attention.value"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    for name in ("feed_forward.gate", "feed_forward.up"):
        plan[f"blocks.*.{name}"] = ColwiseParallel()
    if model.shape.qk_norm:
        # Over heads instead of tokens: each rank has all tokens of its heads.
        for name in ("attention.query_norm", "attention.key_norm"):
            plan[f"blocks.*.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    if model.head is not None:
        plan["head"] = ColwiseParallel()
    parallelize_module(model, mesh, plan)
    # It returns a tensor still on its way (AsyncCollectiveTensor), whose gradient a compiled block
    # drops without a word (torch 2.13); a copy has arrived.
    model.embedding.register_forward_hook(lambda _module, _inputs, output: output.clone())
    # The head reads a weight and is no module when tied: what comes before it gathers the tokens.
    parallelize_module(
        model.norm,
        mesh,
        PrepareModuleOutput(
            output_layouts=by_tokens, desired_output_layouts=whole, use_local_output=False
        ),
    )


def sharded_losses(
    logits: DTensor, labels: torch.Tensor, z_loss: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `token_losses` says, for logits (R, L, V) of which each rank has (R, L, P).

    torch's `loss_parallel` has no log-normaliser to give, and its backward pass must run inside its
    context.
    """
    group = logits.device_mesh.get_group()
    found = _CrossEntropy.apply(logits.to_local().float(), labels, group)  # type: ignore[no-untyped-call]
    losses, normalisers = found
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
        places = labels - dist.get_rank(group) * size
        is_here = (places >= 0) & (places < size)  # IGNORED is nowhere
        places = places.clamp(0, size - 1)[..., None]
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        powers = (logits - highest[..., None]).exp()
        sums = torch.stack((powers.sum(-1), logits.gather(-1, places)[..., 0] * is_here))
        dist.all_reduce(sums, group=group)
        normalisers = highest + sums[0].log()
        ctx.save_for_backward(powers.div_(sums[0][..., None]), places, is_here, labels != IGNORED)
        return (normalisers - sums[1]) * (labels != IGNORED), normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shares, places, is_here, is_labelled = ctx.saved_tensors
        of_losses = gradients[0] * is_labelled
        slopes = shares * (of_losses + gradients[1])[..., None]
        slopes.scatter_add_(-1, places, -(of_losses * is_here)[..., None])
        return slopes, None, None
