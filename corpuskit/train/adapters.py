"""Low-rank adapters on a frozen model: LoRA and DoRA by peft, merged where a checkpoint is read.

With `quantize` the frozen matrices have four bits a number (NF4, QLoRA). Codes and scales are
ordinary buffers: FSDP leaves them whole on each rank (0.56 bytes a number), and checkpoints have
them unchanged. bitsandbytes keeps both inside a parameter that it fills on its way to a device,
which neither meta tensors nor torch's distributed checkpoints allow; torchao's NF4 rounds the
scales as well. With bitsandbytes the numbers are the same.

Source: E. Hu et al., LoRA (arXiv 2106.09685); S. Liu et al., DoRA (arXiv 2402.09353); T. Dettmers
et al., QLoRA (arXiv 2305.14314), section 3 and appendix E; one scale per block.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.functional import linear

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.train import tensors
from corpuskit.train.settings import NF4_BLOCK
from corpuskit.train.tensors import named_generator, shard_like

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from corpuskit.train.model import Decoder
    from corpuskit.train.settings import AdapterSettings

    Adapter = Mapping[str, Any]  # AdapterSettings, as a checkpoint's record has them


def add_adapters(model: Decoder, settings: AdapterSettings) -> None:
    """Freeze the model, still without weights, and put adapters beside the chosen matrices.

    Raises:
        UsageError: peft is absent.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UsageError(f"adapter: needs peft: {error}. Run: {install_command('lora')}") from None
    if settings.quantize:
        use_four_bits(model, settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=cast("int", settings.alpha),  # any number does
        target_modules=list(settings.targets),
        use_dora=settings.dora,
    )
    inject_adapter_in_model(config, cast("nn.Module", model))


@torch.no_grad()
def init_adapters(model: Decoder, seed: int) -> None:
    """Fill the adapters as peft does: at first they change nothing. The model has its weights.

    The values are the same on any number of ranks: each matrix has a generator of its own.
    """
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.zero_()
        elif ".lora_magnitude_vector." in name:
            base = cast("Any", model.get_submodule(f"{name.partition('.lora_')[0]}.base_layer"))
            parameter.copy_(shard_like(torch.linalg.vector_norm(base.weight, dim=1), parameter))
        elif ".lora_A." in name:
            generator = named_generator(seed, name, parameter.device)
            weights = torch.empty(parameter.shape, device=parameter.device)
            bound = 1 / math.sqrt(parameter.shape[1])
            weights.uniform_(-bound, bound, generator=generator)
            parameter.copy_(shard_like(weights, parameter))


def stored_shapes(
    name: str, shape: Sequence[int], adapter: Adapter | None
) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a checkpoint has of a weight, by name; the frozen one first."""
    module = name.removesuffix(".weight")
    if adapter is None or module.rpartition(".")[2] not in adapter["targets"]:
        return {name: tuple(shape)}
    (rows, columns), rank = shape, adapter["rank"]
    parts: dict[str, tuple[int, ...]] = {f"{module}.base_layer.weight": (rows, columns)}
    if adapter["quantize"]:
        codes, scale = (rows, columns // 2), (rows, columns // NF4_BLOCK)
        parts = {f"{module}.base_layer.codes": codes, f"{module}.base_layer.scale": scale}
    parts |= {
        f"{module}.lora_A.default.weight": (rank, columns),
        f"{module}.lora_B.default.weight": (rows, rank),
    }
    if adapter["dora"]:
        parts[f"{module}.lora_magnitude_vector.default.weight"] = (rows,)
    return parts


def merge(parts: Sequence[torch.Tensor], adapter: Adapter | None) -> torch.Tensor:
    """Return the weight of a matrix from its tensors, which `stored_shapes` names."""
    if len(parts) == 1 or adapter is None:
        return parts[0]
    if adapter["quantize"]:  # exports read all tensors as float32, codes too
        codes, scale, *parts = parts
        parts = [dequantise(codes.round().to(torch.uint8), scale), *parts]
    base, down, up, *magnitude = parts
    weight = base + adapter["alpha"] / adapter["rank"] * (up @ down)
    if magnitude:
        weight *= (magnitude[0] / torch.linalg.vector_norm(weight, dim=1))[:, None]
    return weight


# Four bits a number.

# Means of 16 equally likely parts of a normal distribution, cut at +-1, with 0 among them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


class FourBitLinear(nn.Linear):
    """A frozen linear map without bias; each use dequantises its matrix.

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
        """Store a matrix (rows, columns)."""
        codes, scale = quantise(weight.to(self.scale))
        self.codes.copy_(codes)
        self.scale.copy_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., columns) to (..., rows)."""
        return _FourBitProduct.apply(x, self.codes, self.scale)  # type: ignore[no-untyped-call]


class _FourBitProduct(torch.autograd.Function):
    """Dequantises again in the backward pass, so that no layer keeps its matrix until then."""

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
    nearest = torch.bucketize(blocks / scale.clamp(min=1e-30)[..., None], middles, out_int32=True)
    pairs = nearest.view(len(weight), -1, 2).to(torch.uint8)
    return pairs[..., 0] << 4 | pairs[..., 1], scale


def dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the matrix (rows, columns) of what `quantise` returns."""
    pairs = torch.stack((codes >> 4, codes & 15), -1)
    return tensors.dequantise(pairs.flatten(1), scale, _table(codes.device))


@functools.cache
def _table(device: torch.device) -> torch.Tensor:
    return torch.tensor(NF4, device=device)
