"""What the digests of a checkpoint cost: saving with and without them, checking, loading.

`python benchmarks/train_checkpoints.py [--preset 60m]`; no GPU. Median of five rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from corpuskit.train import checkpoint
from corpuskit.train.checkpoint import Checkpoints
from corpuskit.train.optim import build_optimizer
from corpuskit.train.parallel import build_model, join
from corpuskit.train.record import CheckpointRecord, find_damage
from corpuskit.train.settings import TrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


class PlainFiles(FileSystem):
    """What torch writes files by, without digests."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Save, check and load in turns; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="60m", help="size of the model")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainSettings.model_validate(
            {
                "data": "none", "output": folder, "device": "cpu", "batch": {"global_rows": 1},
                "model": {"preset": given.preset},
            }
        )  # fmt: skip
        shape = settings.model.shape(32_000)
        parallel = join(settings)
        model = build_model(shape, settings, parallel)
        optimizer = build_optimizer(model, settings.optimizer)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        record = CheckpointRecord(1, {}, {}, "", "", {}, 1)
        place = Path(folder, "step-00000001")
        times: dict[str, list[tuple[float, float]]] = {}

        def save() -> None:
            shutil.rmtree(place, ignore_errors=True)
            checkpoints.save(model, optimizer, record)
            checkpoints.wait()

        for _ in range(ROUNDS):
            checkpoints = Checkpoints(Path(folder), parallel, 3)
            with mock.patch.object(checkpoint, "DigestedFiles", PlainFiles):
                times.setdefault("save without digests", []).append(timed(save))
            times.setdefault("save with digests", []).append(timed(save))
            whole = checkpoints.newest_verified()
            assert whole, "it was just saved"
            files = whole.record.files
            times.setdefault("check", []).append(timed(lambda f=files: find_damage(place, f)))
            times.setdefault("load", []).append(
                timed(lambda c=checkpoints: c.load(place, model, optimizer))
            )
        size = whole.size_bytes / 1e9
    sys.stdout.write(f"{size:.2f} GB, {os.cpu_count()} cores\n")
    for name, pairs in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        sys.stdout.write(f"{name:22}{wall:7.2f} s {cpu:7.2f} CPU s {size / cpu:7.2f} GB/CPU s\n")


if __name__ == "__main__":
    main()
