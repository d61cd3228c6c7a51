"""Operations, against torch's own counter of a real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from corpuskit.errors import UsageError
from corpuskit.train.attention import lay_out
from corpuskit.train.flops import (
    DEVICES,
    find_device,
    pair_flops,
    peak_flops,
    rate,
    require_device,
    step_flops,
    token_flops,
)
from corpuskit.train.model import Decoder
from corpuskit.train.settings import ModelSettings


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"head_dim": 10}, {"kv_heads": 4}])
def test_operations_are_those_that_torch_counts(changes: dict[str, object]) -> None:
    sizes = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 48} | changes
    shape = ModelSettings.model_validate(sizes).shape(56)
    rows, length = 2, 12
    layout = lay_out(
        np.tile(np.arange(length), (rows, 1)), head_dim=shape.head_dim, rope_theta=1e4,
        kernel="sdpa", device=torch.device("cpu"),
    )  # fmt: skip
    model = Decoder(shape)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.randint(56, (rows, length)), layout).sum().backward()
    # The kernel of plain products computes whole rows: all pairs, seen or not.
    whole_rows = token_flops(shape) * rows * length + pair_flops(shape) * rows * length**2
    assert counter.get_total_flops() == whole_rows


def test_attention_is_counted_inside_documents() -> None:
    shape = ModelSettings(preset="0.5m").shape(100)
    pairs = 3 * 4 / 2 + 5 * 6 / 2
    expected = 8 * token_flops(shape) + pairs * pair_flops(shape)
    assert step_flops(shape, np.array([3, 5], np.int32)) == expected


def test_cutting_documents_costs_less() -> None:
    shape = ModelSettings(preset="15m").shape(100)
    whole, halves = step_flops(shape, [2048]), step_flops(shape, [1024, 1024])
    assert token_flops(shape) * 2048 < halves < whole


def test_a_large_model_costs_six_operations_per_weight_and_token() -> None:
    shape = ModelSettings(preset="7b").shape(128_256)
    matrices = 8_030_261_248 - 128_256 * 4096  # Llama 3 8B, without the embedding's look-ups
    assert token_flops(shape) == pytest.approx(6 * matrices, rel=1e-3)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("h100", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100 pcie"),
        ("NVIDIA H100 NVL", "h100 nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100 40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx 4090"),
        ("Tesla V100-SXM2-32GB", "v100"),
    ],
)
def test_drivers_names_are_known(told: str, name: str) -> None:
    found = find_device(told)
    assert found is not None
    assert found.name == name


def test_names_of_the_table_find_themselves() -> None:
    assert all(find_device(device.name) is device for device in DEVICES)


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    assert find_device("NVIDIA H1000") is None
    with pytest.raises(UsageError, match=r"--device 'h10' is not known\. Did you mean 'h100'\?"):
        require_device("h10")


def test_rates_are_by_dtype() -> None:
    device = require_device("h100")
    assert rate(device, "bfloat16") == 989e12
    assert rate(device, "float32") == 67e12
    assert rate(require_device("v100"), "bfloat16") is None


def test_the_peak_of_a_cpu_is_not_known() -> None:
    assert peak_flops(torch.device("cpu"), torch.float32) is None
