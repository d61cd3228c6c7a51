"""Attention that stays inside documents, and the layout of a micro-batch that it reads.

Shapes: R rows, L tokens per row, H query heads, G key/value heads (G divides H), D head size, N
documents. With context parallelism a rank has M of the L tokens of each row, else M is L.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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

    from corpuskit.train.context import Context
    from corpuskit.train.settings import RopeScaling

Kernel = Literal["sdpa", "varlen", "flex"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Documents and positions of a micro-batch, computed once and used by every block."""

    cos: torch.Tensor  # (R, M, 1, D/2) float32, of the rotary angles
    sin: torch.Tensor  # (R, M, 1, D/2) float32
    mask: torch.Tensor | None = None  # sdpa: (R, 1, M, L) bool, True where a query may see a key
    blocks: BlockMask | None = None  # flex: which blocks of the mask are empty, full or partial
    packed: Packed | None = None  # varlen
    context: Context | None = None  # the ranks that share these rows, if any do


class Packed(NamedTuple):
    """Documents one after the other, the input of varlen.

    With context parallelism, N counts the contiguous parts of documents on this rank. The queries
    of a part are the last of its keys.
    """

    queries: torch.Tensor  # (N+1,) int32 boundaries of documents in R*M
    keys: torch.Tensor  # (N+1,) int32 boundaries in keys and values
    longest: tuple[int, int]  # most queries, and most keys, of a document
    key_indices: torch.Tensor | None  # (K,) int64 of these keys in R*L; None for all of them


def choose_kernel(
    device: torch.device, dtype: torch.dtype, setting: Literal["auto"] | Kernel = "auto"
) -> Kernel:
    """Return the kernel of the setting `attention`; `auto` is `varlen` where it runs, else `sdpa`.

    Raises:
        UsageError: the kernel does not run here.
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
    context: Context | None = None,
) -> Layout:
    """Build the layout of a micro-batch.

    Args:
        position_ids: (R, L), counting from 0 at the first token of each document; a row begins a
            document.
        head_dim: D.
        rope_theta: base of the rotary frequencies.
        kernel: that will read it.
        device: where its tensors go.
        rope_scaling: stretches the frequencies; None leaves them unchanged.
        context: the ranks that share the rows, if any do; `position_ids` are of whole rows.
    """
    length = position_ids.shape[1]
    columns = np.arange(length) if context is None else context.columns(length)
    positions = torch.from_numpy(np.ascontiguousarray(position_ids, np.int64)).to(device)
    halves = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    frequencies = rope_theta ** (-halves / head_dim)
    if rope_scaling:
        frequencies = stretch(frequencies, rope_scaling)
    own_columns = torch.from_numpy(columns).to(device)
    angles = positions[:, own_columns, None].float() * frequencies
    return Layout(
        angles.cos()[:, :, None],
        angles.sin()[:, :, None],
        mask=document_mask(positions, own_columns) if kernel == "sdpa" else None,
        blocks=document_blocks(positions, own_columns) if kernel == "flex" else None,
        packed=pack_documents(position_ids, columns, device) if kernel == "varlen" else None,
        context=context,
    )


def stretch(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Return rotary frequencies (D/2,) as Llama 3.1 has them.

    Source: transformers, modeling_rope_utils._compute_llama3_parameters.
    """
    turns = frequencies * scaling.original_length / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = ((turns - low) / (high - low)).clamp(0, 1)  # 1: unchanged, 0: divided by `factor`
    return frequencies * (unscaled + (1 - unscaled) / scaling.factor)


def document_mask(positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return (R, 1, M, L) bool: causal, and True only inside a document. Costs R*M*L bytes.

    Args:
        positions: (R, L), of whole rows.
        columns: (M,) of the queries in a row.
    """
    documents = (positions == 0).cumsum(1)
    keys = torch.arange(positions.shape[1], device=positions.device)
    causal = keys <= columns[:, None]
    return ((documents[:, columns, None] == documents[:, None, :]) & causal)[:, None]


def document_blocks(positions: torch.Tensor, columns: torch.Tensor) -> BlockMask:
    """Return the mask of `document_mask` for flex_attention, in blocks of 128 x 128 tokens."""
    documents = (positions == 0).cumsum(1)

    def is_seen(
        row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        column = columns[query] if is_shared else query  # the kernel loads no more than it needs
        return (documents[row, column] == documents[row, key]) & (key <= column)

    rows, length = positions.shape
    is_shared = len(columns) < length
    # Compiled, it makes no (R, L, L) intermediate.
    build = _compiled(create_block_mask) if positions.is_cuda else create_block_mask
    return build(is_seen, rows, None, len(columns), length, positions.device)


def pack_documents(
    position_ids: NDArray[np.integer], columns: NDArray[np.int64], device: torch.device
) -> Packed:
    """Return the documents in (M,) `columns` of (R, L) `position_ids`."""
    length = position_ids.shape[1]
    is_first = position_ids[:, columns] == 0
    is_first[:, 0] = True
    is_first[:, 1:] |= np.diff(columns) != 1
    starts = np.flatnonzero(is_first)
    queries = np.append(starts, is_first.size)
    row, column = np.divmod(starts, len(columns))
    earlier = position_ids[row, columns[column]].astype(np.int64)  # keys before the first query
    sizes = earlier + np.diff(queries)
    keys = np.append(0, sizes.cumsum())
    key_indices = None
    if len(columns) < length:
        firsts = row * length + columns[column] - earlier
        key_indices = np.arange(keys[-1]) + np.repeat(firsts - keys[:-1], sizes)
    return Packed(
        torch.from_numpy(queries.astype(np.int32)).to(device),
        torch.from_numpy(keys.astype(np.int32)).to(device),
        (int(np.diff(queries).max()), int(sizes.max())),
        None if key_indices is None else torch.from_numpy(key_indices).to(device),
    )


def rotate(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Turn (R, M, H, D) by its positions, pairing the halves of D as published Llama weights do."""
    a, b = x.float().chunk(2, dim=-1)
    turned = (a * layout.cos - b * layout.sin, b * layout.cos + a * layout.sin)
    return torch.cat(turned, dim=-1).to(x.dtype)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return (R, M, H, D): each token attends to itself and the tokens before it in its document.

    Args:
        q: (R, M, H, D).
        k: (R, M, G, D).
        v: (R, M, G, D).
        layout: of this micro-batch.
    """
    is_grouped = q.shape[2] != k.shape[2]
    if layout.context is not None:
        k, v = layout.context.gather(torch.cat((k, v))).chunk(2)  # (R, L, G, D) each
    if layout.packed is None:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if layout.blocks is not None:
            flex: Callable[..., torch.Tensor] = flex_attention
            flex = _compiled(flex) if q.is_cuda else flex
            return flex(q, k, v, block_mask=layout.blocks, enable_gqa=is_grouped).transpose(1, 2)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=layout.mask, enable_gqa=is_grouped)
        return mixed.transpose(1, 2)
    packed = layout.packed
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    if packed.key_indices is not None:
        k, v = k[packed.key_indices], v[packed.key_indices]
    output = varlen_attn(
        query=q.flatten(0, 1),
        key=k,
        value=v,
        cu_seq_q=packed.queries,
        cu_seq_k=packed.keys,
        max_q=packed.longest[0],
        max_k=packed.longest[1],
        window_size=(-1, 0),  # causal, aligned at the last key: all keys before, none after
        enable_gqa=is_grouped,
    )
    assert isinstance(output, torch.Tensor), "a pair only if auxiliary outputs are requested"
    return output.view(q.shape)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
