"""Context parallelism: the tokens of each row on several ranks.

With N ranks a row is cut into 2 N equal pieces, and rank i has pieces i and 2 N - 1 - i: a late
token sees more than an early one, and so all ranks have about equal work. A rank computes all of
its own tokens. Only attention needs others': before it, keys and values of all ranks are gathered,
and after it, on the way back, their gradients are added up. Masks are those of whole rows, of which
a rank has the lines of its own queries, so documents may span any border.

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
    """This rank's place among the ranks that share rows."""

    rank: int
    size: int
    group: dist.ProcessGroup

    def places(self, length: int) -> NDArray[np.int64]:
        """Return (length / size,) where in a row of `length` tokens this rank's are."""
        pieces = np.arange(length).reshape(2 * self.size, -1)
        return pieces[[self.rank, -1 - self.rank]].reshape(-1)

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """Return (R, L, ...) whole rows, of this rank's (R, L / size, ...); collective."""
        rows, length, *rest = mine.shape
        every: torch.Tensor = _Gather.apply(mine.contiguous(), self.group)  # type: ignore[no-untyped-call]
        every = every.view(self.size, rows, 2, length // 2, *rest).transpose(0, 1)
        whole = torch.cat((every[:, :, 0], every[:, :, 1].flip(1)), 1)
        return whole.flatten(1, 2)


class _Gather(torch.autograd.Function):
    """Tensors of all ranks of a group one after the other; sums of their gradients back to each."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.shape = group, mine.shape
        every = mine.new_empty(group.size() * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(every, mine, group)
        return every

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        mine = gradients[0].new_empty(ctx.shape)
        dist.reduce_scatter_tensor(mine, gradients[0].contiguous(), group=ctx.group)
        return mine, None
