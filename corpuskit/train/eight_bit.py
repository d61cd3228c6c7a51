"""AdamW whose moments take one byte a number, and a scale per block.

torchao (0.18) has the same: its states are a tensor class that torch 2.13 cannot save with
`dcp.async_save`, that reshards at borders of blocks only, and whose step compiles each shape anew.
Here codes and scales are ordinary tensors of whole rows, which any number of ranks share out.

Source: T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from corpuskit.train.optim import Elementwise, local
from corpuskit.train.settings import moment_block

if TYPE_CHECKING:
    from collections.abc import Iterable


class AdamW8bit(Elementwise):
    """AdamW with quantised moments of matrices; those of vectors, and of odd rows, are float32.

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


def dequantise(codes: torch.Tensor, scale: torch.Tensor, qmap: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers of codes (..., C), of which scale (..., B) has one per block."""
    values = qmap.index_select(0, codes.flatten().int()).view(*scale.shape, -1)
    return (values * scale[..., None]).view(codes.shape)


def quantise_into(
    codes: torch.Tensor, scale: torch.Tensor, values: torch.Tensor, qmap: torch.Tensor
) -> None:
    """Write the codes nearest to values (..., C), and the largest size of each block."""
    blocks = values.view(*scale.shape, -1)
    scale.copy_(blocks.abs().amax(-1)).clamp_(min=1e-30)
    places = torch.bucketize(
        blocks / scale[..., None], (qmap[1:] + qmap[:-1]) / 2, right=True, out_int32=True
    )
    codes.copy_(places.view(codes.shape))


@functools.cache
def _map(device: torch.device, *, is_signed: bool) -> torch.Tensor:
    """Return the 256 numbers that codes mean, dense near 0: seven decades, finer in the larger."""
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
