"""Optimizers, the schedule of their learning rate in tokens, and clipping."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from corpuskit.train.model import width_factors
from corpuskit.train.settings import moment_block
from corpuskit.train.tensors import dequantise, full_tensor, local, shard_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from corpuskit.train.model import Decoder
    from corpuskit.train.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(model: Decoder, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return an optimizer that decays matrices, and neither norms nor embeddings.

    Set the learning rate of its groups with `set_rate` before each step.
    """
    groups: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    # Ranks of a pipeline have the groups of the whole model, or checkpoints would number them
    # differently.
    with torch.device("meta"):
        full = type(model)(model.shape) if model.stages else model
    for name, parameter in full.named_parameters():
        if parameter.requires_grad:  # adapters are trained, and nothing else
            groups.setdefault(_group_of(name, parameter, model, settings), [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[_group_of(name, parameter, model, settings)].append(parameter)
    param_groups: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for by_muon, is_free, scale in sorted(groups):  # checkpoints number the groups
        # What leaves a weight per step is the same at any width.
        decay = 0.0 if is_free else settings.weight_decay / scale
        group = {"params": groups[by_muon, is_free, scale], "weight_decay": decay}
        param_groups[by_muon].append(group if scale == 1 else group | {"lr_scale": scale})
    betas = settings.beta1, settings.beta2
    optimizer: torch.optim.Optimizer
    if settings.kind == "lion":
        optimizer = Lion(param_groups[False], settings.lr, betas)
    elif settings.kind == "schedule_free":
        optimizer = ScheduleFree(param_groups[False], settings.lr, betas, settings.eps)
    elif settings.kind == "adamw8bit":
        optimizer = AdamW8bit(param_groups[False], settings.lr, betas, settings.eps)
    else:
        # The fused kernel exists for CPU and CUDA, the two devices that a run can have.
        adamw = torch.optim.AdamW(param_groups[False], settings.lr, betas, settings.eps, fused=True)
        is_muon = settings.kind == "muon"
        optimizer = Muon(param_groups[True], adamw, settings.momentum) if is_muon else adamw
    if decay := settings.average_decay:
        optimizer.register_step_post_hook(lambda stepped, *_: keep_average(stepped, decay))
    return optimizer


def _group_of(
    name: str, parameter: nn.Parameter, model: Decoder, settings: OptimizerSettings
) -> tuple[bool, bool, float]:
    """Return whether Muon steps a parameter, whether it is free of decay, and its rate's factor."""
    is_free = parameter.ndim == 1 or name == "embedding.weight"
    # Neither routers nor experts, which are stacks of matrices.
    is_matrix = parameter.ndim == 2 and not name.endswith(".router.weight")
    by_muon = settings.kind == "muon" and is_matrix and name.startswith("blocks.")
    _, scale = width_factors(name, model.shape)
    # Singular values of Muon's steps grow with the root of the width, those of Adam's with it.
    return by_muon, is_free, scale**0.5 if by_muon else scale


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step; muP then scales it for each group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


@torch.no_grad()
def keep_average(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Move each weight's average towards the weight; it is optimizer state, saved and resharded."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "average" not in state:
                state["average"] = parameter.detach().clone()
            local(state["average"]).lerp_(local(parameter), 1 - decay)


@contextlib.contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Have the model compute with the averages of its weights while entered, where it has any."""
    _exchange(optimizer)
    try:
        yield
    finally:
        _exchange(optimizer)


@torch.no_grad()
def _exchange(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        if "average" in state:
            weights = parameter.detach().clone()
            parameter.copy_(state["average"])
            state["average"].copy_(weights)


class Elementwise(torch.optim.Optimizer):
    """Base of optimizers that step each number by itself, so each rank steps its own shard."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if "steps" in group:
                group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, self.state[parameter], group)

    def update(self, parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter and its state, which is empty at first."""
        raise NotImplementedError


class Lion(Elementwise):
    """Steps of equal size, whose direction is the sign of an average gradient.

    Source: X. Chen et al., Symbolic Discovery of Optimization Algorithms (arXiv 2302.06675),
    algorithm 2.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})

    def update(self, parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step by the sign of what the average and the gradient say."""
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        weight, gradient, average = map(local, (parameter, parameter.grad, state["exp_avg"]))
        beta1, beta2 = group["betas"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(average.lerp(gradient, 1 - beta1).sign_(), alpha=-group["lr"])
        average.lerp_(gradient, 1 - beta2)


class ScheduleFree(Elementwise):
    """AdamW without a decay of the rate: the result is an average of all its steps.

    Gradients are taken at the weights y, between the average x and the point z that steps. State
    holds x as `average`, as `keep_average` does, so evaluations, exports and checkpoints find it;
    z is (y - beta1 x) / (1 - beta1). A step weighs the square of its rate; the groups hold the sum.

    Source: A. Defazio et al., The Road Less Scheduled (arXiv 2405.15682); facebookresearch's
    `AdamWScheduleFree`, which keeps z instead of x.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        fields = {"lr": lr, "betas": betas, "eps": eps, "steps": 0, "weights": 0.0}
        super().__init__(groups, fields)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            group["weights"] += group["lr"] ** 2
        super().step()

    def update(self, parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step z, move x towards it, and y between them."""
        if not state:
            state["average"] = parameter.detach().clone()
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        y, gradient, x = map(local, (parameter, parameter.grad, state["average"]))
        (beta1, beta2), lr = group["betas"], group["lr"]
        second = local(state["exp_avg_sq"]).mul_(beta2)
        second.addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2 ** group["steps"])).sqrt_().add_(group["eps"])
        z = y.lerp(x, -beta1 / (1 - beta1))
        z.sub_((gradient / root).add_(y, alpha=group["weight_decay"]), alpha=lr)
        x.lerp_(z, lr**2 / group["weights"] if group["weights"] else 0.0)
        y.copy_(z.lerp_(x, beta1))


class AdamW8bit(Elementwise):
    """AdamW with quantised moments of matrices; others are float32 (see `moment_block`).

    A moment takes one byte a number, and a scale per block. torchao (0.18) has the same, as a
    tensor class that torch 2.13 cannot save with `dcp.async_save`, that reshards at borders of
    blocks only, and whose step compiles each shape again. Here codes and scales are ordinary
    tensors of whole rows, which any number of ranks share out.

    Source: T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861).

    Args:
        groups: with `weight_decay`.
        lr: learning rate.
        betas: decays of the moments.
        eps: added to the root of the second one.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "steps": 0})
        self.register_load_state_dict_post_hook(_restore_codes)

    def update(self, parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Step in float32, then quantise the moments again."""
        block = moment_block(parameter.shape)
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.uint8 if block else None)
                if block:
                    state[f"{name}_scale"] = torch.zeros_like(parameter[..., ::block])
        assert parameter.grad is not None
        weight, gradient = local(parameter), local(parameter.grad)
        (beta1, beta2), steps = group["betas"], group["steps"]
        moments = []
        for name, value, beta in (
            ("exp_avg", gradient, beta1),
            ("exp_avg_sq", gradient.square(), beta2),
        ):
            moment, qmap = local(state[name]), _map(parameter.device, is_signed=name == "exp_avg")
            if block:
                scale = local(state[f"{name}_scale"])
                new = dequantise(moment, scale, qmap).lerp_(value, 1 - beta)
                quantise_into(moment, scale, new, qmap)
            else:
                new = moment.lerp_(value, 1 - beta)
            moments.append(new)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        root = moments[1].sqrt() / (1 - beta2**steps) ** 0.5 + group["eps"]
        weight.addcdiv_(moments[0], root, value=-group["lr"] / (1 - beta1**steps))


def quantise_into(
    codes: torch.Tensor, scale: torch.Tensor, values: torch.Tensor, qmap: torch.Tensor
) -> None:
    """Write the codes nearest to values (..., C), and for each block its largest magnitude."""
    blocks = values.view(*scale.shape, -1)
    scale.copy_(blocks.abs().amax(-1)).clamp_(min=1e-30)
    nearest = torch.bucketize(
        blocks / scale[..., None], (qmap[1:] + qmap[:-1]) / 2, right=True, out_int32=True
    )
    codes.copy_(nearest.view(codes.shape))


@functools.cache
def _map(device: torch.device, *, is_signed: bool) -> torch.Tensor:
    """Return the 256 numbers that codes mean: seven decades, finer in the larger ones."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not is_signed)) + 1)
        means = (10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += means + [-mean for mean in means if is_signed]
    return torch.tensor(sorted(values), device=device)


def _restore_codes(optimizer: torch.optim.Optimizer) -> None:
    """Make codes bytes again: torch loads states in the type of their parameters."""
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            if f"{name}_scale" in state:
                state[name] = state[name].to(torch.uint8)


class Muon(torch.optim.Optimizer):
    """Orthogonal steps for hidden matrices, and AdamW for the others.

    The direction of a matrix is its momentum with all singular values made about 1, times
    0.2 sqrt(longer side): as large as AdamW's usual steps, so both take the same learning rate.
    Orthogonalisation needs the whole matrix: each rank gathers all of them, orthogonalises one in
    `ranks`, and sends it to the others. A step communicates twice the weights.

    Sources: K. Jordan et al., Muon (kellerjordan.github.io/posts/muon); J. Liu et al., Muon is
    Scalable for LLM Training (arXiv 2502.16982), section 2.2, for the factor. torch.optim.Muon
    (2.13) computes the same on one rank, in bfloat16; on shards it would send in every product.

    Args:
        groups: of matrices, with `weight_decay`.
        adamw: of the other parameters.
        momentum: share of the momentum that stays per step.
    """

    def __init__(
        self, groups: list[dict[str, Any]], adamw: torch.optim.AdamW, momentum: float
    ) -> None:
        self._adamw = adamw
        matrices = [{**group, "momentum": momentum} for group in groups]
        super().__init__([*matrices, *adamw.param_groups], {"lr": adamw.defaults["lr"]})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        # Loading a checkpoint replaces groups and state.
        rest_groups = [group for group in self.param_groups if "momentum" not in group]
        self._adamw.state, self._adamw.param_groups = self.state, rest_groups
        self._adamw.step()
        for group in self.param_groups:
            if "momentum" in group:
                self._step(group)

    def _step(self, group: dict[str, Any]) -> None:
        # By size, so that the ranks have equal work.
        matrices = sorted((p for p in group["params"] if p.grad is not None), key=torch.numel)
        mesh = matrices[0].device_mesh._flatten() if isinstance(matrices[0], DTensor) else None
        ranks, rank = (mesh.size(), mesh.get_local_rank()) if mesh else (1, 0)
        for first in range(0, len(matrices), ranks):
            turn = matrices[first : first + ranks]
            update_of_rank = None
            for owner, matrix in enumerate(turn):
                matrix_update = full_tensor(self._direction(matrix, group["momentum"]))
                if owner == rank:
                    update_of_rank = orthogonalise(matrix_update)
            for owner, matrix in enumerate(turn):
                update = update_of_rank if owner == rank else None
                if update is None:
                    update = torch.empty(
                        matrix.shape, dtype=_precision(matrix), device=matrix.device
                    )
                if mesh:
                    dist.broadcast(update, group=mesh.get_group(), group_src=owner)
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(
                    shard_like(update, matrix), alpha=-0.2 * max(matrix.shape) ** 0.5 * group["lr"]
                )

    def _direction(self, matrix: torch.Tensor, momentum: float) -> torch.Tensor:
        """Add the gradient to the momentum; return Nesterov's direction."""
        state, gradient = self.state[matrix], matrix.grad
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average: torch.Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix of the same singular vectors, all of whose singular values are 0.7 to 1.2.

    Five steps of a Newton-Schulz iteration, in bfloat16 on CUDA. In float32 on CPU: there bfloat16
    is slow, and would turn differences of 1e-7 between numbers of ranks into some of 1e-3.
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).to(_precision(matrix))
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(
            x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return (x.T if is_tall else x).contiguous()


def _precision(matrix: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if matrix.is_cuda else torch.float32


def learning_rate(tokens: int, total: int, peak: float, schedule: ScheduleSettings) -> float:
    """Return the learning rate of the step that ends at `tokens` of `total`.

    Counting to the end of the step gives the first step a rate above zero, and the last one exactly
    `final_ratio` of the peak.
    """
    warmup, start = schedule.warmup(total), schedule.decay_start(total)
    if tokens < warmup:
        return peak * tokens / warmup
    if schedule.kind == "constant":
        return peak
    progress = min(max(tokens - start, 0) / max(total - start, 1), 1.0)
    if schedule.kind == "cosine":
        remaining = (1 + math.cos(math.pi * progress)) / 2
    else:
        remaining = 1 - (progress if schedule.decay_shape == "linear" else math.sqrt(progress))
    return peak * (schedule.final_ratio + (1 - schedule.final_ratio) * remaining)


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
        norms.append(full_tensor(norm))
    total = torch.linalg.vector_norm(torch.stack(norms))
    if pipeline is not None:
        squares = total.square()
        dist.all_reduce(squares, group=pipeline)
        total = squares.sqrt()
    if max_norm:
        for members in meshes.values():
            clip_grads_with_norm_(members, max_norm, total)
    return total
