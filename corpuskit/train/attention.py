"""Attention that stays inside documents, and the layout of a micro-batch that it reads.

Shapes: R rows, L tokens per row, H query heads, G key/value heads (G divides H), D head size, N
documents.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch.nn.attention.flex_attention import BlockMask

    from corpuskit.train.settings import RopeScaling

Kernel = Literal["sdpa", "varlen", "flex"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Documents and positions of one micro-batch, computed once and used by every block."""

    cos: torch.Tensor  # (R, L, 1, D/2) float32, of the rotary angles
    sin: torch.Tensor  # (R, L, 1, D/2) float32
    mask: torch.Tensor | None  # sdpa: (R, 1, L, L) bool, True where a query may see a key
    offsets: torch.Tensor | None  # varlen: (N+1,) int32 into R*L, a document between each two
    longest: int  # varlen: tokens of the longest document
    blocks: BlockMask | None  # flex: which blocks of the mask are empty, full, or between


def choose_kernel(
    device: torch.device, dtype: torch.dtype, setting: Literal["auto"] | Kernel = "auto"
) -> Kernel:
    """Return what `attention` asks for; `auto` is `varlen` where it runs, else `sdpa`.

    Raises:
        UsageError: it does not run here.
    """
    is_cuda = device.type == "cuda"
    has_varlen = is_cuda and dtype in (torch.bfloat16, torch.float16)
    has_varlen = has_varlen and torch.cuda.get_device_capability(device)[0] >= 8
    if setting == "auto":
        return "varlen" if has_varlen else "sdpa"
    needs = {
        "varlen": "" if has_varlen else "CUDA, bfloat16, and Ampere or newer",
        "flex": "" if is_cuda else "CUDA: it has no backward pass on CPU",
        "sdpa": "",
    }[setting]
    if needs:
        dtype_name = str(dtype).removeprefix("torch.")
        raise UsageError(
            f"attention: {setting!r} needs {needs}; this is {device.type} and {dtype_name}. "
            "Set auto or sdpa."
        )
    return setting


def lay_out(
    position_ids: NDArray[np.integer],
    *,
    head_dim: int,
    rope_theta: float,
    kernel: Kernel,
    device: torch.device,
    rope_scaling: RopeScaling | None = None,
) -> Layout:
    """Build the layout of a micro-batch.

    Args:
        position_ids: (R, L), counting from 0 at the first token of each document; a row begins a
            document.
        head_dim: D.
        rope_theta: base of the rotary frequencies.
        kernel: what will read it.
        device: where its tensors go.
        rope_scaling: what stretches the frequencies, if anything does.
    """
    positions = torch.from_numpy(np.ascontiguousarray(position_ids, np.int64)).to(device)
    halves = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    frequencies = rope_theta ** (-halves / head_dim)
    if rope_scaling:
        frequencies = stretch(frequencies, rope_scaling)
    angles = positions[..., None].float() * frequencies
    mask = offsets = blocks = None
    longest = 0
    if kernel == "sdpa":
        mask = document_mask(positions)
    elif kernel == "flex":
        blocks = document_blocks(positions)
    else:
        starts = np.flatnonzero(position_ids.reshape(-1) == 0)
        bounds = np.append(starts, position_ids.size).astype(np.int32)
        longest = int(np.diff(bounds).max())
        offsets = torch.from_numpy(bounds).to(device)
    cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
    return Layout(cos, sin, mask, offsets, longest, blocks)


def stretch(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Return rotary frequencies (D/2,) as Llama 3.1 has them.

    Source: transformers, modeling_rope_utils._compute_llama3_parameters.
    """
    turns = frequencies * scaling.original_length / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: as it was, 0: `factor` slower
    return frequencies * (kept + (1 - kept) / scaling.factor)


def document_mask(positions: torch.Tensor) -> torch.Tensor:
    """Return (R, 1, L, L) bool: causal, and True only inside a document. Costs R*L*L bytes."""
    documents = (positions == 0).cumsum(1)
    causal = torch.ones(positions.shape[1], positions.shape[1], device=positions.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal.bool())[:, None]


def document_blocks(positions: torch.Tensor) -> BlockMask:
    """Return the mask of `document_mask` for flex_attention, in blocks of 128 x 128 tokens."""
    documents = (positions == 0).cumsum(1)

    def is_seen(
        row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return (documents[row, query] == documents[row, key]) & (key <= query)

    rows, length = positions.shape
    # Compiled it makes no (R, L, L) on the way.
    build = _compiled(create_block_mask) if positions.is_cuda else create_block_mask
    return build(is_seen, rows, None, length, length, positions.device)


def rotate(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Turn (R, L, H, D) by its positions, pairing the halves of D as published Llama weights do."""
    a, b = x.float().chunk(2, dim=-1)
    turned = (a * layout.cos - b * layout.sin, b * layout.cos + a * layout.sin)
    return torch.cat(turned, dim=-1).to(x.dtype)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return (R, L, H, D): each token attends to itself and to what precedes it in its document.

    Args:
        q: (R, L, H, D).
        k: (R, L, G, D).
        v: (R, L, G, D).
        layout: of this micro-batch.
    """
    grouped = q.shape[2] != k.shape[2]
    if layout.offsets is None:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if layout.blocks is not None:
            flex: Callable[..., torch.Tensor] = flex_attention
            flex = _compiled(flex) if q.is_cuda else flex
            return flex(q, k, v, block_mask=layout.blocks, enable_gqa=grouped).transpose(1, 2)
        seen = scaled_dot_product_attention(q, k, v, attn_mask=layout.mask, enable_gqa=grouped)
        return seen.transpose(1, 2)
    packed = varlen_attn(
        query=q.flatten(0, 1),
        key=k.flatten(0, 1),
        value=v.flatten(0, 1),
        cu_seq_q=layout.offsets,
        cu_seq_k=layout.offsets,
        max_q=layout.longest,
        max_k=layout.longest,
        window_size=(-1, 0),  # causal: everything before, nothing after
        enable_gqa=grouped,
    )
    assert isinstance(packed, torch.Tensor), "a pair only if auxiliary outputs are asked for"
    return packed.view(q.shape)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
