"""Low-rank adapters on a frozen model: LoRA and DoRA by peft, merged where a checkpoint is read.

With `quantize` the frozen matrices are those of four_bit.py (QLoRA).

Source: E. Hu et al., LoRA (arXiv 2106.09685); S. Liu et al., DoRA (arXiv 2402.09353).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.train.four_bit import dequantise, use_four_bits
from corpuskit.train.settings import NF4_BLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from corpuskit.train.model import Decoder
    from corpuskit.train.settings import AdapterSettings, TrainSettings

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
    """Fill the adapters of a model that has its weights, as peft does, so that they change nothing.

    The values are the same on any number of ranks: each matrix has a generator of its own.
    """
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.zero_()
        elif ".lora_magnitude_vector." in name:
            base = cast("Any", model.get_submodule(f"{name.partition('.lora_')[0]}.base_layer"))
            parameter.copy_(_like(parameter, torch.linalg.vector_norm(base.weight, dim=1)))
        elif ".lora_A." in name:
            digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
            generator = torch.Generator(parameter.device)
            generator.manual_seed(int.from_bytes(digest, "little"))
            whole = torch.empty(parameter.shape, device=parameter.device)
            bound = 1 / math.sqrt(parameter.shape[1])
            whole.uniform_(-bound, bound, generator=generator)
            parameter.copy_(_like(parameter, whole))


def _like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Share a whole tensor out as a parameter is."""
    if not isinstance(parameter, DTensor) or isinstance(whole, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def require_same_adapter(there: Adapter | None, settings: TrainSettings) -> None:
    """Refuse to continue from a checkpoint with other adapters.

    Args:
        there: `adapter` in the settings of the checkpoint.

    Raises:
        UsageError: names both.
    """
    here = settings.adapter and settings.adapter.model_dump(mode="json")
    there = there and {"quantize": None, **there}  # which older checkpoints do not have
    if there != here:
        raise UsageError(
            f"adapter: {here} here, {there} in the newest checkpoint. Restore it, or set another "
            "output."
        )


def stored_shapes(
    name: str, shape: Sequence[int], adapter: Adapter | None
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint that make a weight, the frozen one first."""
    module = name.removesuffix(".weight")
    if adapter is None or module.rpartition(".")[2] not in adapter["targets"]:
        return {name: tuple(shape)}
    (rows, columns), rank = shape, adapter["rank"]
    parts: dict[str, tuple[int, ...]] = {f"{module}.base_layer.weight": (rows, columns)}
    if adapter.get("quantize"):
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
    """Return the weight that the tensors of `stored_shapes` make."""
    if len(parts) == 1 or adapter is None:
        return parts[0]
    if adapter.get("quantize"):  # read as float32, as everything is
        codes, scale, *parts = parts
        parts = [dequantise(codes.round().to(torch.uint8), scale), *parts]
    base, down, up, *magnitude = parts
    weight = base + adapter["alpha"] / adapter["rank"] * (up @ down)
    if magnitude:
        weight *= (magnitude[0] / torch.linalg.vector_norm(weight, dim=1))[:, None]
    return weight
