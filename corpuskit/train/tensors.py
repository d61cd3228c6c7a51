"""What ranks have of tensors, random numbers equal on any number of ranks, and block-wise codes."""

from __future__ import annotations

import hashlib

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor; collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Shard a tensor, which every rank has whole, as a parameter is; sends nothing."""
    if not isinstance(parameter, DTensor) or isinstance(tensor, DTensor):
        return tensor
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def named_generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    """Return the generator of a parameter's initial values, the same on every rank."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))


def dequantise(codes: torch.Tensor, scale: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers (..., C) that codes mean.

    Args:
        codes: (..., C) indices into the table.
        scale: (..., B), one for each block of C / B numbers.
        table: what each code means, before scaling.
    """
    values = table.index_select(0, codes.flatten().int()).view(*scale.shape, -1)
    return (values * scale[..., None]).view(codes.shape)
