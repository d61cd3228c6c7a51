"""AdamW, its schedule in tokens, and clipping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from corpuskit.train.model import Decoder
    from corpuskit.train.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(model: Decoder, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Return a fused AdamW that decays matrices, and neither norms nor embeddings."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # adapters are trained, and nothing else
            continue
        free = parameter.ndim == 1 or name == "embedding.weight"
        (kept if free else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    # The fused kernel exists for CPU and CUDA, the two devices that a run can have.
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True
    )


def learning_rate(tokens: int, total: int, peak: float, schedule: ScheduleSettings) -> float:
    """Return the learning rate of the step that ends at `tokens` of `total`.

    Counting to the end of the step gives the first step a rate above zero, and the last one exactly
    `final_ratio` of the peak.
    """
    warmup = schedule.warmup_tokens
    if warmup is None:
        warmup = round(schedule.warmup_ratio * total)
    if tokens < warmup:
        return peak * tokens / warmup
    if schedule.kind == "constant":
        return peak
    start = warmup
    if schedule.kind == "wsd":
        start = max(warmup, round(total * (1 - schedule.decay_ratio)))
    done = min(max(tokens - start, 0) / max(total - start, 1), 1.0)
    if schedule.kind == "cosine":
        left = (1 + math.cos(math.pi * done)) / 2
    else:
        left = 1 - (done if schedule.decay_shape == "linear" else math.sqrt(done))
    return peak * (schedule.final_ratio + (1 - schedule.final_ratio) * left)


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    pipeline: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the norm of the whole gradient, and scale it down to `max_norm` if that is above 0.

    Gradients on different meshes cannot be stacked, so norms are taken mesh by mesh and then
    combined; with those of the other layers, if these are on other ranks, of the group `pipeline`.
    """
    meshes: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            meshes.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    norms = []
    for members in meshes.values():
        norm = get_total_norm([member.grad for member in members if member.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.linalg.vector_norm(torch.stack(norms))
    if pipeline is not None:
        squares = total.square()
        dist.all_reduce(squares, group=pipeline)
        total = squares.sqrt()
    if max_norm:
        for members in meshes.values():
            clip_grads_with_norm_(members, max_norm, total)
    return total
