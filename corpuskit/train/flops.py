"""Floating-point operations of training, and how many a device can do.

A multiplication and an addition are two operations. The backward pass takes twice the operations of
the forward pass. Recomputation to save memory is not counted, so a utilisation computed from these
figures is model FLOPs utilisation (MFU).

Source: A. Chowdhery et al., PaLM (arXiv 2204.02311), appendix B: 6N + 12 * layers * heads *
head_dim * L per token. Two things differ. N counts the parameters that are multiplied: the head,
but not the embedding, whose rows are looked up. And a token attends only to itself and what
precedes it in its document, so a document of n tokens has n (n + 1) / 2 pairs, where PaLM counts
L * L for a row. As in PaLM, norms, rotations, softmax and the loss are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corpuskit.errors import UsageError, suggest

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from corpuskit.train.settings import ModelShape

Rate = float | None


@dataclass(frozen=True, slots=True)
class Device:
    """Memory and peak rates of a device."""

    name: str
    memory_bytes: float  # as sold, in 1e9 bytes: drivers show a little more, and use that
    bfloat16: Rate  # dense operations per second on matrices, accumulated in float32
    float32: Rate  # without TF32, which torch uses only if enabled


# NVIDIA's data sheets give most figures with sparsity, which is twice what dense matrices get.
DEVICES = (
    # Blackwell architecture brief: HGX B200 (1,000 W) 4.5 PF sparse, 80 TF; GB200 5 PF, 90 TF.
    Device("gb200", 186e9, 2500e12, 90e12),
    Device("b200", 180e9, 2250e12, 80e12),
    # H200, H100 and H100 NVL data sheets: 1,979, 1,979, 1,513 and 1,671 TF sparse.
    Device("gh200", 96e9, 989e12, 67e12),
    Device("h200", 141e9, 989e12, 67e12),
    Device("h100 nvl", 94e9, 835e12, 60e12),
    Device("h100 pcie", 80e9, 756e12, 51e12),
    Device("h100", 80e9, 989e12, 67e12),
    Device("h800", 80e9, 989e12, 67e12),
    # H20 data sheet: 148 TF dense.
    Device("h20", 96e9, 148e12, 44e12),
    # A100 data sheet: 312 TF dense, 19.5 TF.
    Device("a100 40gb", 40e9, 312e12, 19.5e12),
    Device("a100", 80e9, 312e12, 19.5e12),
    Device("a800", 80e9, 312e12, 19.5e12),
    # Ada and Ampere data sheets: L40S 733 TF sparse, L40 362, L4 242, A40 299, A6000 310, A10 250.
    Device("l40s", 48e9, 362e12, 91.6e12),
    Device("l40", 48e9, 181e12, 90.5e12),
    Device("l4", 24e9, 121e12, 30.3e12),
    Device("a40", 48e9, 149.7e12, 37.4e12),
    Device("rtx a6000", 48e9, 154.8e12, 38.7e12),
    Device("a10", 24e9, 125e12, 31.2e12),
    # Ada and GA102 whitepapers: 165.2 and 71 TF, with sums in float32.
    Device("rtx 4090", 24e9, 165.2e12, 82.6e12),
    Device("rtx 3090", 24e9, 71e12, 35.6e12),
    # V100 and T4 data sheets; both have no matrix units for bfloat16.
    Device("v100", 32e9, None, 15.7e12),
    Device("t4", 16e9, None, 8.1e12),
    # AMD Instinct data sheets; torch sees each half of an MI250X as a device.
    Device("mi325x", 256e9, 1307.4e12, 163.4e12),
    Device("mi300x", 192e9, 1307.4e12, 163.4e12),
    Device("mi250x", 64e9, 191.5e12, 47.9e12),
)


def find_device(name: str) -> Device | None:
    """Return the device of a name as users or drivers write it: `h100`, `NVIDIA H100 80GB HBM3`.

    All words of the device's name must occur in it; of several devices the longest name wins.
    """
    words = name.lower().replace("-", " ").replace("_", " ").split()
    matches = [device for device in DEVICES if set(device.name.split()) <= set(words)]
    return max(matches, key=lambda device: len(device.name), default=None)


def require_device(name: str) -> Device:
    """Return the device of a name.

    Raises:
        UsageError: it is not known.
    """
    device = find_device(name)
    if device is None:
        raise UsageError(
            f"--device {name!r} is not known. {suggest(name.lower(), [d.name for d in DEVICES])} "
            "Of others, set peak_tflops in the file and leave --device out."
        )
    return device


def peak_flops(device: torch.device, dtype: torch.dtype | str) -> float | None:
    """Return the peak of a device in operations per second; None where it is not known.

    Args:
        device: one that torch can use. CPUs are not known.
        dtype: torch.bfloat16, torch.float32, or their names.
    """
    if device.type != "cuda":
        return None
    import torch

    model = find_device(torch.cuda.get_device_name(device))
    return None if model is None else rate(model, str(dtype).removeprefix("torch."))


def rate(device: Device, dtype: str) -> float | None:
    """Return operations per second of a device in `bfloat16` or `float32`."""
    return {"bfloat16": device.bfloat16, "float32": device.float32}.get(dtype)


def step_flops(shape: ModelShape, lengths: ArrayLike) -> float:
    """Return the operations of a forward and a backward pass over documents of these lengths.

    Args:
        shape: of the model.
        lengths: (N,) tokens of each document, padding included where it is computed with.
    """
    sizes = np.asarray(lengths, np.float64)
    pairs = float((sizes * (sizes + 1)).sum()) / 2
    return token_flops(shape) * float(sizes.sum()) + pair_flops(shape) * pairs


def token_flops(shape: ModelShape) -> float:
    """Return the operations that each token costs, whatever it attends to: 6 per weight."""
    attention = 2 * shape.dim * shape.head_dim * (shape.heads + shape.kv_heads)
    width, router = shape.ffn_dim, 0
    if shape.experts:
        width = (shape.experts.per_token + shape.experts.shared) * shape.experts.ffn_dim
        router = shape.dim * shape.experts.count
    block = attention + 3 * shape.dim * width + router
    return 6.0 * (shape.layers * block + shape.vocab_size * shape.dim)


def pair_flops(shape: ModelShape) -> float:
    """Return the operations that each (query, key) pair costs: a score and a weighted value."""
    return 12.0 * shape.layers * shape.heads * shape.head_dim
