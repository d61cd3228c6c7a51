"""Traces of chosen steps by torch.profiler, and snapshots of the device's memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

KEPT_EVENTS = 200_000  # allocations in a snapshot


@contextlib.contextmanager
def profiled(settings: TrainSettings, parallel: Parallel, step: int) -> Iterator[None]:
    """Trace what happens inside, if `settings.profile` names this step and this rank."""
    chosen = settings.profile
    if chosen is None or step not in chosen.steps or parallel.rank not in chosen.ranks:
        yield
        return
    folder = Path(settings.output, "profile")
    folder.mkdir(exist_ok=True)
    name = f"step-{step:08d}-rank-{parallel.rank:05d}"
    is_cuda = parallel.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    if chosen.memory and is_cuda:
        torch.cuda.memory._record_memory_history(max_entries=KEPT_EVENTS)
    try:
        with profile(
            activities=activities, record_shapes=True, profile_memory=chosen.memory
        ) as trace:
            yield
            if is_cuda:
                torch.cuda.synchronize()
        trace.export_chrome_trace(str(folder / f"{name}.json.gz"))
        if chosen.memory and is_cuda:
            torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))  # type: ignore[no-untyped-call]
    finally:
        if chosen.memory and is_cuda:
            torch.cuda.memory._record_memory_history(enabled=None)
