"""Context parallelism: the tokens of each row on several ranks.

With N ranks a row is cut into 2 N equal pieces, and rank i has pieces i and 2 N - 1 - i: a late
token attends to more than an early one, so all ranks have about equal work. A rank computes only
its own tokens, but for attention: it gathers the keys and values of all ranks, and the backward
pass sums their gradients. A rank has the rows of its own queries in the mask of a whole row, so
documents may span the borders of pieces.

Source: The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.2, for gathering rather than
sending keys around a ring, and for the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Context:
    """This rank among those that share rows."""

    rank: int
    size: int
    group: dist.ProcessGroup

    def columns(self, length: int) -> NDArray[np.int64]:
        """Return the (length / size,) columns of a row of `length` tokens that this rank has."""
        pieces = np.arange(length).reshape(2 * self.size, -1)
        return pieces[[self.rank, -1 - self.rank]].reshape(-1)

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """Return whole rows (R, L, ...) from the ranks' (R, L / size, ...); collective."""
        rows: torch.Tensor = _Gather.apply(local.contiguous(), self.group)  # type: ignore[no-untyped-call]
        return rows


class _Gather(torch.autograd.Function):
    """Gathers the tokens of all ranks in the order of rows; sums their gradients for each rank."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        pieces = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(pieces, local, group)
        halves = [part.chunk(2, 1) for part in pieces]
        early, late = [early for early, _ in halves], [late for _, late in reversed(halves)]
        return torch.cat((*early, *late), 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        size = ctx.group.size()
        pieces = gradients[0].chunk(2 * size, 1)
        to_each = torch.stack([torch.cat((pieces[i], pieces[-1 - i]), 1) for i in range(size)])
        from_each = torch.empty_like(to_each)
        # As a reduce_scatter, but summed in float32 and in a fixed order.
        dist.all_to_all_single(from_each, to_each, group=ctx.group)
        return from_each.sum(0, dtype=torch.float32).to(to_each.dtype), None
