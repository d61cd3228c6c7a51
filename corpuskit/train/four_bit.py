"""Frozen matrices in four bits a number (NF4), below adapters.

Codes and scales are ordinary buffers: FSDP leaves them whole on each rank (0.56 bytes a number),
and checkpoints have them as they are. bitsandbytes keeps both inside a parameter that it fills on
its way to a device, which neither meta tensors nor torch's distributed checkpoints allow; torchao's
NF4 rounds the scales as well. With bitsandbytes the numbers are the same.

Source: T. Dettmers et al., QLoRA (arXiv 2305.14314), section 3 and appendix E; one scale per block.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from corpuskit.train.settings import NF4_BLOCK

if TYPE_CHECKING:
    from collections.abc import Collection

# Means of 16 equally likely parts of a normal distribution, cut at +-1, with 0 among them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


class FourBitLinear(nn.Linear):
    """A frozen linear map without bias; its matrix is made of the codes at each use.

    Args:
        rows: outputs.
        columns: inputs, a multiple of `NF4_BLOCK`.
    """

    def __init__(self, rows: int, columns: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = columns, rows
        self.register_parameter("bias", None)
        self.codes: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("codes", torch.empty(rows, columns // 2, dtype=torch.uint8))
        self.register_buffer("scale", torch.empty(rows, columns // NF4_BLOCK))

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.out_features, self.in_features

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """(rows, columns) float32."""
        return dequantise(self.codes, self.scale)

    @torch.no_grad()
    def fill(self, weight: torch.Tensor) -> None:
        """Take over a matrix (rows, columns)."""
        codes, scale = quantise(weight.to(self.scale))
        self.codes.copy_(codes)
        self.scale.copy_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., columns) to (..., rows)."""
        return _FourBitProduct.apply(x, self.codes, self.scale)  # type: ignore[no-untyped-call]


class _FourBitProduct(torch.autograd.Function):
    """Makes the matrix again for the backward pass, so that no layer's is kept meanwhile."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(codes, scale)
        return linear(x, dequantise(codes, scale).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ dequantise(*ctx.saved_tensors).to(gradient.dtype), None, None


def use_four_bits(model: nn.Module, targets: Collection[str]) -> None:
    """Replace the linear maps whose name is one of `targets`; the model has no weights yet."""
    for name, module in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if isinstance(module, nn.Linear) and last in targets:
            small = FourBitLinear(module.out_features, module.in_features)
            setattr(model.get_submodule(parent), last, small)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes (rows, columns / 2), two a byte, and scales of a float32 matrix."""
    blocks = weight.view(len(weight), -1, NF4_BLOCK)
    scale = blocks.abs().amax(-1)
    table = _table(weight.device)
    middles = (table[1:] + table[:-1]) / 2
    places = torch.bucketize(blocks / scale.clamp(min=1e-30)[..., None], middles, out_int32=True)
    pairs = places.view(len(weight), -1, 2).to(torch.uint8)
    return pairs[..., 0] << 4 | pairs[..., 1], scale


def dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the matrix (rows, columns) that `quantise` made these of."""
    places = torch.stack((codes >> 4, codes & 15), -1).flatten().int()
    values = _table(codes.device).index_select(0, places).view(*scale.shape, NF4_BLOCK)
    return (values * scale[..., None]).flatten(1)


@functools.cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.tensor(NF4, device=device)
