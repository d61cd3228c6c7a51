"""Attention that stays inside documents, and the layout of a micro-batch that it reads.

Shapes: R rows, L tokens per row, H query heads, G key/value heads (G divides H), D head size, N
documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kernel = Literal["sdpa", "varlen"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Documents and positions of one micro-batch, computed once and used by every block.

    A plain object, not a tuple of tensors: FSDP casts the floating tensors among a block's
    arguments to bfloat16, and it does not look in here, so `cos` and `sin` stay float32.
    """

    cos: torch.Tensor  # (R, L, 1, D/2) float32, of the rotary angles
    sin: torch.Tensor  # (R, L, 1, D/2) float32
    mask: torch.Tensor | None  # sdpa: (R, 1, L, L) bool, True where a query may see a key
    offsets: torch.Tensor | None  # varlen: (N+1,) int32 into R*L, a document between each two
    longest: int  # varlen: tokens of the longest document


def choose_kernel(device: torch.device, dtype: torch.dtype) -> Kernel:
    """Return `varlen` where its kernel runs (half precision, Ampere or newer), else `sdpa`."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "sdpa"
    return "varlen" if torch.cuda.get_device_capability(device)[0] >= 8 else "sdpa"


def lay_out(
    position_ids: NDArray[np.integer],
    *,
    head_dim: int,
    rope_theta: float,
    kernel: Kernel,
    device: torch.device,
) -> Layout:
    """Build the layout of a micro-batch.

    Args:
        position_ids: (R, L), counting from 0 at the first token of each document; a row begins a
            document.
        head_dim: D.
        rope_theta: base of the rotary frequencies.
        kernel: what will read it.
        device: where its tensors go.
    """
    positions = torch.from_numpy(np.ascontiguousarray(position_ids, np.int64)).to(device)
    halves = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    angles = positions[..., None].float() * rope_theta ** (-halves / head_dim)
    mask = offsets = None
    longest = 0
    if kernel == "sdpa":
        mask = document_mask(positions)
    else:
        starts = np.flatnonzero(position_ids.reshape(-1) == 0)
        bounds = np.append(starts, position_ids.size).astype(np.int32)
        longest = int(np.diff(bounds).max())
        offsets = torch.from_numpy(bounds).to(device)
    return Layout(angles.cos()[:, :, None], angles.sin()[:, :, None], mask, offsets, longest)


def document_mask(positions: torch.Tensor) -> torch.Tensor:
    """Return (R, 1, L, L) bool: causal, and True only inside a document. Costs R*L*L bytes."""
    documents = (positions == 0).cumsum(1)
    causal = torch.ones(positions.shape[1], positions.shape[1], device=positions.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal.bool())[:, None]


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
        window_size=(-1, 0),  # causal: everything behind, nothing ahead
        enable_gqa=grouped,
    )
    assert isinstance(packed, torch.Tensor), "a pair only if auxiliary outputs are asked for"
    return packed.view(q.shape)
