"""Ranks that share rows attend as one does with a dense mask, whatever borders documents cross."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from corpuskit.errors import UsageError
from corpuskit.train import attention
from corpuskit.train.attention import Kernel, attend, document_mask, lay_out
from corpuskit.train.context import Context
from corpuskit.train.settings import ParallelSettings, require_context

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA = torch.cuda.is_available()
ROWS, LENGTH, HEADS, KV_HEADS, SIZE = 3, 48, 4, 2, 8


class Alone(Context):
    """A rank for which the whole rows were gathered before."""

    def __init__(self, rank: int, size: int, *whole: torch.Tensor) -> None:
        super().__init__(rank, size, None)  # type: ignore[arg-type]
        object.__setattr__(self, "whole", torch.cat(whole))

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = self.whole  # type: ignore[attr-defined]
        assert torch.equal(whole[:, self.columns(whole.shape[1])], mine)
        return whole


def random_positions(seed: int) -> np.ndarray:
    """Return (3, 48) positions of documents of 1 to 29 tokens; the last row is one document."""
    random = np.random.default_rng(seed)
    rows = [
        [at for size in random.integers(1, 30, LENGTH) for at in range(size)] for _ in range(ROWS)
    ]
    rows[-1] = [*range(LENGTH)]
    return np.array([row[:LENGTH] for row in rows])


def random_heads(seed: int) -> list[torch.Tensor]:
    """Return q (3, 48, 4, 8), k and v (3, 48, 2, 8)."""
    random = torch.Generator().manual_seed(seed)
    sizes = (HEADS, KV_HEADS, KV_HEADS)
    return [torch.randn(ROWS, LENGTH, n, SIZE, generator=random) for n in sizes]


def with_dense_mask(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: np.ndarray
) -> torch.Tensor:
    mask = document_mask(torch.from_numpy(positions), torch.arange(LENGTH))
    heads = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def varlen_by_the_book(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor, max_q: int, max_k: int, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Do what torch's kernel does on CUDA: the last query of a sequence sees its last key."""
    assert options == {"window_size": (-1, 0), "enable_gqa": True}
    parts = []
    bounds = (cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:])
    for first, end, first_key, end_key in torch.stack(bounds, 1).tolist():
        sizes = end - first, end_key - first_key
        assert sizes[0] <= max_q
        assert sizes[1] <= max_k
        seen = torch.ones(sizes).tril(sizes[1] - sizes[0]).bool()
        heads = (query[first:end], key[first_key:end_key], value[first_key:end_key])
        part = scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in heads), attn_mask=seen, enable_gqa=True
        )
        parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_token_has_one_rank_and_ranks_have_equal_work(size: int) -> None:
    columns = [Context(rank, size, None).columns(LENGTH) for rank in range(size)]  # type: ignore[arg-type]
    assert sorted(np.concatenate(columns)) == [*range(LENGTH)]
    assert len({(mine + 1).sum() for mine in columns}) == 1, "pairs of a row of one document"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kernel", ["sdpa", "varlen", "flex"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_kernel_attends_as_with_a_dense_mask(
    kernel: Kernel, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "varlen_attn", varlen_by_the_book)
    for seed in range(2 if kernel == "flex" else 20):
        q, k, v = random_heads(seed)
        positions = random_positions(seed)
        expected = with_dense_mask(q, k, v, positions)
        for rank in range(size):
            context = Alone(rank, size, k, v)
            layout = lay_out(
                positions, head_dim=SIZE, rope_theta=1e4, kernel=kernel, context=context,
                device=torch.device("cpu"),
            )  # fmt: skip
            mine = context.columns(LENGTH)
            ours = attend(q[:, mine], k[:, mine], v[:, mine], layout)
            torch.testing.assert_close(ours, expected[:, mine], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not CUDA, reason="fast kernels need CUDA")
@pytest.mark.parametrize("kernel", ["varlen", "flex"])
def test_fast_kernels_attend_as_with_a_dense_mask(kernel: Kernel) -> None:
    device = torch.device("cuda")
    q, k, v = (x.repeat(1, 1, 1, 8).to(device, torch.bfloat16) for x in random_heads(0))
    positions = random_positions(0)
    expected = with_dense_mask(*(x.cpu().float() for x in (q, k, v)), positions)
    context = Alone(1, 2, k, v)
    layout = lay_out(
        positions, head_dim=64, rope_theta=1e4, kernel=kernel, context=context, device=device
    )
    mine = context.columns(LENGTH)
    ours = attend(q[:, mine], k[:, mine], v[:, mine], layout)
    torch.testing.assert_close(ours.cpu().float(), expected[:, mine], rtol=2e-2, atol=2e-2)


def differences(seed: int) -> list[float]:
    """Return how far outputs and gradients of this rank's tokens are from those with all tokens."""
    rank, size = dist.get_rank(), dist.get_world_size()
    context = Context(rank, size, dist.group.WORLD)  # type: ignore[arg-type]
    positions, mine = random_positions(seed), context.columns(LENGTH)
    weights = torch.randn(ROWS, LENGTH, HEADS, SIZE, generator=torch.Generator().manual_seed(9))
    whole = [x.requires_grad_() for x in random_heads(seed)]
    expected = with_dense_mask(*whole, positions)  # type: ignore[arg-type]
    (expected * weights).sum().backward()
    parts = [x.detach()[:, mine].clone().requires_grad_() for x in whole]
    layout = lay_out(
        positions, head_dim=SIZE, rope_theta=1e4, kernel="sdpa", context=context,
        device=torch.device("cpu"),
    )  # fmt: skip
    ours = attend(*parts, layout)
    (ours * weights[:, mine]).sum().backward()
    pairs = [(ours, expected[:, mine])]
    pairs += [(a.grad, b.grad[:, mine]) for a, b in zip(parts, whole, strict=True)]
    return [(a - b).abs().max().item() for a, b in pairs]


@pytest.mark.parametrize("size", [2, 4])
def test_gradients_come_back_from_all_ranks(size: int, run_ranks: Callable[..., Any]) -> None:
    for of_rank in run_ranks(size, differences, 3):
        assert max(of_rank) < 2e-6


@pytest.mark.parametrize(
    ("seq_len", "parallel", "message"),
    [
        (36, {"context": 4}, "of a multiple of 8 tokens .* have 36. Set parallel.context: 2, or "
                             "pack rows of 40."),
        (34, {"context": 4, "tensor": 2}, "Set parallel.context: 1, or pack rows of 40."),
        (36, {"context": 2, "tensor": 3}, None),
        (30, {"context": 2, "tensor": 3}, "of 12 .*Set parallel.context: 1, or pack rows of 36."),
        (31, {"context": 1}, None),
    ],
)  # fmt: skip
def test_rows_that_ranks_cannot_share_are_refused(
    seq_len: int, parallel: dict[str, int], message: str | None
) -> None:
    settings = ParallelSettings(**parallel)  # type: ignore[arg-type]
    if message is None:
        require_context(seq_len, settings)
        return
    with pytest.raises(UsageError, match=f"^parallel.context: .*{message}"):
        require_context(seq_len, settings)
