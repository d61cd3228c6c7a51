"""What a training run will take, before it is started and without torch.

`corpuskit train t.yaml --plan` prints it. Operations are those of flops.py, memory that of
memory.py. Time is operations / (ranks * peak * MFU): how much of the peak will be reached is for
the user to say; waiting for rows, evaluations and restarts come on top.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError
from corpuskit.train.estimates.flops import pair_flops, rate, require_device, token_flops
from corpuskit.train.estimates.length import read_length
from corpuskit.train.estimates.memory import FLOAT, count_parameters, plan_work, step_moments

if TYPE_CHECKING:
    from corpuskit.train.estimates.flops import Device
    from corpuskit.train.estimates.length import RunLength
    from corpuskit.train.estimates.memory import Moment, Parameters, Work
    from corpuskit.train.settings import TrainSettings

WRITE_RATE = 2e9
"""Bytes per second at which all ranks together are taken to write to a shared file system."""

COPY_RATE = 4e9
"""Bytes per second at which a rank is taken to copy its state to host memory."""

RECENT_BYTES = 1 << 16
"""Of metrics.jsonl, for the time of a step."""

FILLED = 0.9
"""Share of a device's memory that tensors may take: fragments, NCCL and CUDA want the rest."""


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What checkpoints cost, and how often they are best written."""

    size_bytes: int
    write_seconds: float
    stall_seconds: float  # in which training waits
    failure_seconds: float  # between failures of any rank, on average
    every_seconds: float  # where writing and repeating cost least together
    every_steps: int | None  # the same in steps; None if their time is not known


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything that `--plan` says."""

    length: RunLength
    parameters: Parameters
    ranks: int
    work: Work
    device: Device | None
    moments: list[Moment]
    token_flops: float  # forward and backward, attention included
    mfu: float
    peak_flops: float | None  # of one device
    seconds: float | None  # of the run
    is_measured: bool  # `seconds` is from the steps that this run has taken, not from the peak
    cost: float | None
    checkpoint: CheckpointCost
    advice: list[str]

    @property
    def flops(self) -> float:
        """Operations of the whole run."""
        return self.token_flops * self.length.tokens

    @property
    def peak(self) -> Moment:
        """The moment at which a rank needs most."""
        return max(self.moments, key=lambda moment: moment.total)


def estimate(
    settings: TrainSettings,
    *,
    ranks: int = 1,
    device_name: str | None = None,
    mfu: float = 0.4,
    price: float | None = None,
    mtbf_hours: float = 50_000,
    seq_len: int | None = None,
) -> Estimate:
    """Say what a run takes.

    Args:
        settings: of the run.
        ranks: devices.
        device_name: what they are; without it, memory is that of the device of the settings (CPU
            for `auto`), and the peak is `peak_tflops` of the settings.
        mfu: share of the peak that is reached.
        price: of one device for one hour.
        mtbf_hours: between failures of one device. Llama 3 had 419 in 54 days of 16,384 GPUs
            (arXiv 2407.21783, section 3.3.4): one in 50,700 hours.
        seq_len: of the packed rows, where they have not been packed.

    Raises:
        UsageError: the settings don't fit the ranks or the plan, or too little is known.
        DataError: the plan is damaged.
    """
    device = require_device(device_name) if device_name else None
    length, is_cuda = read_length(settings, seq_len), device is not None
    is_cuda |= settings.device == "cuda"
    _require_fit(settings, length, ranks, is_cuda=is_cuda)
    shape, parameters = length.shape, count_parameters(length.shape)
    work = plan_work(shape, settings, seq_len=length.seq_len, ranks=ranks, is_cuda=is_cuda)
    of_token = token_flops(shape) + pair_flops(shape) * length.visible_tokens
    peak = settings.peak_tflops * 1e12 if settings.peak_tflops else None
    if peak is None and device:
        peak = rate(device, settings.dtype)
    measured = None if device or peak else measured_step_seconds(Path(settings.output))
    step_seconds = measured
    if peak:
        step_seconds = of_token * length.tokens / length.steps / (ranks * peak * mfu)
    seconds = step_seconds * length.steps if step_seconds else None
    saving = checkpoint_cost(
        parameters.total, ranks, mtbf_hours, step_seconds,
        in_background=settings.checkpoint.background,
    )  # fmt: skip
    found = Estimate(
        length, parameters, ranks, work, device, step_moments(shape, work), of_token, mfu, peak,
        seconds, measured is not None, checkpoint=saving, advice=[],
        cost=seconds / 3600 * ranks * price if seconds and price is not None else None,
    )  # fmt: skip
    found.advice.extend(_advice(settings, found))
    return found


def measured_step_seconds(output: Path) -> float | None:
    """Return the median of the last steps that this run has taken; None before there are any."""
    try:
        with (output / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - RECENT_BYTES))
            lines = file.read().splitlines()[1:-1]  # the first may be cut, the last torn
    except (FileNotFoundError, NotADirectoryError):
        return None
    steps = [json.loads(line)["step_seconds"] for line in lines]
    return statistics.median(steps) if steps else None


def checkpoint_cost(
    parameters: int,
    ranks: int,
    mtbf_hours: float,
    step_seconds: float | None,
    *,
    in_background: bool,
) -> CheckpointCost:
    """Say what checkpoints of so many parameters cost, and how often to write them.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps
    (FGCS 22, 2006), equation 37; its first term is J. W. Young's (CACM 17, 1974). What is lost to
    writing is the time that training stands still; but no more often than writing takes.
    """
    size = 3 * FLOAT * parameters
    writing, failure = size / WRITE_RATE, mtbf_hours * 3600 / ranks
    stall = size / ranks / COPY_RATE if in_background else writing
    every = failure
    if stall < 2 * failure:
        ratio = stall / (2 * failure)
        every = math.sqrt(2 * stall * failure) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall
    every = max(every, writing)
    steps = max(1, round(every / step_seconds)) if step_seconds else None
    return CheckpointCost(size, writing, stall, failure, every, steps)


def _require_fit(settings: TrainSettings, length: RunLength, ranks: int, *, is_cuda: bool) -> None:
    """Refuse what the loop would refuse.

    Raises:
        UsageError: names what does not fit.
    """
    parallel, shape, rows = settings.parallel, length.shape, settings.batch.global_rows
    together = parallel.replicas * parallel.tensor
    if ranks % together:
        raise UsageError(
            f"parallel.replicas: {parallel.replicas} times parallel.tensor: {parallel.tensor} does "
            f"not divide the {ranks} ranks. Change them, or --ranks."
        )
    if rows % (ranks // parallel.tensor):
        raise UsageError(
            f"batch.global_rows: {rows} rows are not shared out evenly by "
            f"{ranks // parallel.tensor} ranks. Change it, or --ranks."
        )
    sizes = {
        "model.heads": shape.heads,
        "model.kv_heads": shape.kv_heads,
        "model.ffn_dim": shape.ffn_dim,
        "model.vocab_size": shape.vocab_size,
        "seq_len of the packed rows": length.seq_len,
    }
    uneven = [f"{key} {size}" for key, size in sizes.items() if size % parallel.tensor]
    if uneven:
        raise UsageError(
            f"parallel.tensor: {parallel.tensor} does not divide {', '.join(uneven)}. Change one."
        )
    if settings.attention in ("varlen", "flex") and not is_cuda:
        raise UsageError(
            f"attention: {settings.attention!r} needs CUDA. Set auto or sdpa, or give --device."
        )


def _advice(settings: TrainSettings, found: Estimate) -> list[str]:
    """Return what is worth another look."""
    lines, best = [], found.checkpoint
    every = settings.checkpoint.every_steps
    if best.every_steps and not 1 / 3 <= every / best.every_steps <= 3:
        often = "often" if every < best.every_steps else "seldom"
        lines.append(
            f"checkpoint.every_steps: {every} is {often}: about {best.every_steps:,} would lose "
            "least time to writing and to repeating steps after failures."
        )
    if found.device and found.peak.total > FILLED * found.device.memory_bytes:
        lines.append(
            f"Memory does not fit, or only just. {' '.join(_ways_to_fit(settings, found))}"
        )
    lines += [
        f"{name}: memory is that without it." for name in ("compile", "float8")
        if getattr(settings, name)
    ]  # fmt: skip
    if found.device and found.peak_flops is None:
        lines.append(f"{found.device.name} has no matrix units for {settings.dtype}: no time.")
    return lines


def _ways_to_fit(settings: TrainSettings, found: Estimate) -> list[str]:
    parts, parallel = found.peak.parts, settings.parallel
    ways = []
    largest = max(parts, key=lambda part: parts[part])
    if found.work.rows > 1:
        ways.append(f"batch.micro_rows below {found.work.rows} needs less of activations.")
    elif parallel.recompute != "full" and largest == "activations":
        ways.append("parallel.recompute: full keeps the inputs of blocks only.")
    if found.work.kernel == "sdpa" and found.work.is_cuda:
        ways.append("attention: varlen (in bfloat16) has no mask.")
    if largest == "logits" and parallel.tensor == 1:
        ways.append("parallel.tensor: 2 halves the logits.")
    if largest in ("weights", "optimizer", "gathered weights", "gradients"):
        ways.append("More ranks, fewer replicas or zero: 3 leave less of the model on each.")
    return ways or ["Take more ranks, or a smaller model."]
