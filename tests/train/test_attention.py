"""Attention stays inside documents, and equals attention over each document alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from corpuskit.errors import UsageError
from corpuskit.train.attention import (
    Kernel,
    Layout,
    attend,
    choose_kernel,
    document_mask,
    lay_out,
    rotate,
)

CPU = torch.device("cpu")
# (R, L): two rows of 12 tokens, documents of 5 + 1 + 6 and of 12 tokens.
POSITIONS = np.array([[*range(5), 0, *range(6)], [*range(12)]])
DOCUMENTS = [(0, 0, 5), (0, 5, 6), (0, 6, 12), (1, 0, 12)]


def lay(positions: np.ndarray = POSITIONS, kernel: Kernel = "sdpa") -> Layout:
    return lay_out(positions, head_dim=8, rope_theta=100.0, kernel=kernel, device=CPU)


def random_heads(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q (2, 12, 4, 8), and k and v (2, 12, 2, 8)."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 12, heads, 8, generator=generator) for heads in (4, 2, 2))  # type: ignore[return-value]


def test_the_mask_is_causal_and_block_diagonal() -> None:
    mask = document_mask(torch.from_numpy(POSITIONS), torch.arange(12))
    for row in range(2):
        for query in range(12):
            for key in range(12):
                same = any(
                    one == row and first <= query < end and first <= key <= query
                    for one, first, end in DOCUMENTS
                )
                assert mask[row, 0, query, key].item() == same, (row, query, key)


# Compiled it takes half a minute, and has no backward pass here; both are for CUDA.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kernel", ["sdpa", pytest.param("flex", marks=pytest.mark.slow)])
def test_attention_equals_attention_over_each_document_alone(kernel: Kernel) -> None:
    q, k, v = random_heads()
    together = attend(q, k, v, lay(kernel=kernel))
    for row, first, end in DOCUMENTS:
        alone = scaled_dot_product_attention(
            *(x[row, first:end].transpose(0, 1) for x in (q, k, v)), is_causal=True, enable_gqa=True
        ).transpose(0, 1)
        torch.testing.assert_close(together[row, first:end], alone, rtol=1e-5, atol=1e-6)


def test_query_heads_share_key_heads_in_order() -> None:
    q, k, v = random_heads()
    repeated = (x.repeat_interleave(2, dim=2) for x in (k, v))
    torch.testing.assert_close(attend(q, k, v, lay()), attend(q, *repeated, lay()))


def test_rotation_depends_on_distance_only() -> None:
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(1))
    turned = rotate(x.expand(1, 12, 1, 8), lay(POSITIONS[1:]))[0, :, 0]
    products = turned @ turned.T
    for distance in range(12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-5)


def test_rotation_follows_the_published_formula() -> None:
    x = torch.randn(1, 12, 1, 8, generator=torch.Generator().manual_seed(2))
    turned = rotate(x, lay(POSITIONS[1:]))
    for position in range(12):
        for pair in range(4):
            angle = position * 100.0 ** (-pair / 4)
            a, b = x[0, position, 0, pair].item(), x[0, position, 0, pair + 4].item()
            expected = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
            assert turned[0, position, 0, pair].item() == pytest.approx(expected[0], abs=1e-5)
            assert turned[0, position, 0, pair + 4].item() == pytest.approx(expected[1], abs=1e-5)


def test_the_packed_layout_counts_documents_over_rows() -> None:
    layout = lay(kernel="varlen")
    assert layout.packed is not None
    queries, keys, longest, places = layout.packed
    assert queries.tolist() == keys.tolist() == [0, 5, 6, 12, 24]
    assert (longest, places, layout.mask) == ((12, 12), None, None)


def test_cpu_takes_the_masked_kernel() -> None:
    assert choose_kernel(CPU, torch.bfloat16) == "sdpa"
    assert choose_kernel(CPU, torch.bfloat16, "sdpa") == "sdpa"


@pytest.mark.parametrize(
    ("setting", "why"), [("varlen", "CUDA, bfloat16, and Ampere"), ("flex", "CUDA: it has no")]
)
def test_a_kernel_that_does_not_run_is_refused(setting: Kernel, why: str) -> None:
    with pytest.raises(UsageError, match=f"attention: '{setting}' needs {why}.* cpu and float32"):
        choose_kernel(CPU, torch.float32, setting)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fast kernels need CUDA")
@pytest.mark.parametrize("fast", ["varlen", "flex"])
def test_fast_kernels_equal_the_masked_one(fast: Kernel) -> None:
    cuda = torch.device("cuda")
    heads = [x.repeat(1, 1, 1, 8).to(cuda, torch.bfloat16).requires_grad_() for x in random_heads()]
    outputs, gradients = [], []
    kernels: tuple[Kernel, ...] = ("sdpa", fast)
    for kernel in kernels:
        layout = lay_out(POSITIONS, head_dim=64, rope_theta=1e4, kernel=kernel, device=cuda)
        output = attend(*heads, layout)
        outputs.append(output)
        gradients.append(torch.autograd.grad(output.float().square().sum(), heads))
    torch.testing.assert_close(*outputs, rtol=2e-2, atol=2e-2)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)
