"""The training loop.

Reader's path: this file, top to bottom; then model.py and attention.py (what a step computes); then
parallel.py (how ranks share it), checkpoint.py (how it survives), optim.py, metrics.py, health.py
and settings.py as needed. There is no framework: torch, called directly.

A step is a pure function of the weights and of rows [step * G, (step + 1) * G) of the mix plan, G
being `batch.global_rows`. Ranks take contiguous slices of those rows, and every sum over the step's
tokens is divided by the number of labelled tokens of the whole step: so neither ranks nor
micro-batches change what is computed, but for the order in which floating-point numbers are added.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import IGNORED
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train.attention import choose_kernel, lay_out
from corpuskit.train.checkpoint import Checkpoints, Record, read_record, require_same_run
from corpuskit.train.health import NonFiniteError, StopSignals
from corpuskit.train.metrics import Journal, Progress, TrainResult, source_losses
from corpuskit.train.model import row_losses
from corpuskit.train.optim import build_optimizer, clip_gradients, learning_rate
from corpuskit.train.parallel import DTYPES, build_model, join, require_same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.train.metrics import Observer
    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

    Batch = dict[str, Any]


def main(settings: TrainSettings, observer: Observer | None = None) -> TrainResult:
    """Train to the end, or go on from the newest checkpoint in `settings.output`.

    Alone it is an ordinary function. As one of several ranks (torchrun sets RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT) it does not return but ends the process with the
    result's exit code: about one in five interpreters with live gloo threads aborts when it shuts
    down in the ordinary way.

    Args:
        settings: the same on every rank.
        observer: called on rank 0 with a Progress every `log_every_steps` steps, and with the
            TrainResult at the end; `str()` of either is one line.
    """
    is_guest = dist.is_initialized()
    parallel = join(settings)
    try:
        result = train(settings, parallel, observer)
    finally:
        # Among several, a rank that fails must not wait for the others here: they wait for it.
        if parallel.world_size == 1 and not is_guest:
            dist.destroy_process_group()
    if parallel.world_size > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result.exit_code)
    return result


def train(settings: TrainSettings, parallel: Parallel, observer: Observer | None) -> TrainResult:
    """Take the steps that are left; return on every rank, with the process group as it was.

    Raises:
        UsageError: the settings ask for what the plan or the checkpoint cannot give; nothing was
            run.
        NonFiniteError: a step's loss or gradient is not finite; it was not applied.
        CorpuskitError: a checkpoint could not be written.
    """
    begun = time.perf_counter()
    run, done = set_up(settings, parallel)
    is_first, last_loss, stopped = parallel.rank == 0, None, None
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        journal = stack.enter_context(Journal(Path(settings.output), done)) if is_first else None
        if journal:
            journal.event("start", steps=run.steps, **asdict(run.record(done)))
        batches = iter(stack.enter_context(run.loader))
        while done < run.steps and not stopped:
            run.checkpoints.poll()
            progress, stopped = take_step(run, done, batches, stop)
            done, last_loss = done + 1, progress.loss
            is_last = bool(stopped) or done == run.steps
            if journal:
                journal.step(progress)
                if observer and (is_last or done % settings.log_every_steps == 0):
                    observer(progress)
            if is_last or done % settings.checkpoint.every_steps == 0:
                run.checkpoints.save(run.model, run.optimizer, run.record(done))
                if is_last or not settings.checkpoint.background:
                    run.checkpoints.wait()
        result = TrainResult(
            steps_done=done,
            steps=run.steps,
            tokens=done * run.step_tokens,
            loss=last_loss,
            seconds=time.perf_counter() - begun,
            checkpoint=run.checkpoints.newest(),
            stopped_by=stopped if done < run.steps else None,
        )
        if journal:
            journal.event("end", **asdict(result))
            if observer:
                observer(result)
    return result


@dataclass(frozen=True, slots=True)
class Run:
    """What every step needs."""

    settings: TrainSettings
    parallel: Parallel
    loader: StreamingLoader
    model: Decoder
    optimizer: torch.optim.Optimizer
    checkpoints: Checkpoints
    steps: int  # of the whole run
    step_tokens: int  # over all ranks, padding included

    def record(self, done: int) -> Record:
        """Return what a checkpoint after `done` steps says."""
        return Record(
            step=done,
            shape=asdict(self.model.shape),
            settings=self.settings.model_dump(mode="json"),
            settings_hash=self.settings.digest(),
            plan_hash=self.loader.plan.hash,
            loader=self.loader.state_dict(),
            world_size=self.parallel.world_size,
        )


def set_up(settings: TrainSettings, parallel: Parallel) -> tuple[Run, int]:
    """Build everything and load the newest checkpoint; also return how many steps are done."""
    loader = StreamingLoader(
        settings.data,
        global_batch_rows=settings.batch.global_rows,
        rank=parallel.rank,
        world_size=parallel.world_size,
        cache_dir=settings.cache_dir,
        cache_bytes=settings.cache_bytes,
    )
    plan = loader.plan
    # An edit of the mixture between the starts of two ranks would give them different rows.
    require_same(parallel, f"{settings.data}: the mix plan", plan.hash)
    steps = count_steps(settings, loader)
    shape = settings.model.shape(cast("int", plan.tokenizer["vocab_size"]))
    checkpoints = Checkpoints(
        Path(settings.output, "checkpoints"), parallel, settings.checkpoint.keep
    )
    newest = checkpoints.newest()
    record = read_record(newest) if newest else None
    if newest and record:
        require_same_run(newest, record, shape, settings)
    model = build_model(shape, settings, parallel)
    optimizer = build_optimizer(model, settings.optimizer)
    if newest and record:
        checkpoints.load(newest, model, optimizer)
        loader.load_state_dict(record.loader)
    run = Run(
        settings=settings,
        parallel=parallel,
        loader=loader,
        model=model,
        optimizer=optimizer,
        checkpoints=checkpoints,
        steps=steps,
        step_tokens=settings.batch.global_rows * plan.seq_len,
    )
    return run, record.step if record else 0


def take_step(
    run: Run, step: int, batches: Iterator[Batch], stop: StopSignals
) -> tuple[Progress, str | None]:
    """Do one optimiser update; also return the signal that asks to stop, if any rank had one.

    Args:
        run: this rank's.
        step: as the loader counts, from 0.
        batches: the loader's iterator, at `step`.
        stop: this rank's.

    Raises:
        NonFiniteError: on every rank, and before weights or optimizer have changed.
    """
    begun = time.perf_counter()
    batch = next(batches)
    waited = time.perf_counter() - begun
    names = run.loader.source_names
    by_source = np.zeros((2, len(names)))
    np.add.at(by_source[0], batch["source_ids"], (batch["labels"] != IGNORED).sum(1))
    np.add.at(by_source[1], batch["source_ids"], batch["text_bytes"])
    counts = run.parallel.sum(torch.from_numpy(by_source).to(run.parallel.device))

    losses = accumulate_gradients(run, batch, counts[0].sum())

    totals = torch.zeros(len(names) + 1, dtype=torch.float64, device=run.parallel.device)
    sources = torch.from_numpy(batch["source_ids"]).to(run.parallel.device)
    totals.index_add_(0, sources, losses.double())
    # Ranks hear of a signal at different times; this makes them stop after the same step.
    totals[-1] = float(stop.received is not None)
    run.parallel.sum(totals)
    norm = clip_gradients(run.model.parameters(), run.settings.optimizer.clip_norm)
    # The one wait for the device: nothing is applied before it is known to be finite.
    tokens, sizes = counts.tolist()
    *nats, stops, grad_norm = torch.cat((totals, norm.double()[None])).tolist()
    loss = sum(nats) / max(sum(tokens), 1)
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise NonFiniteError(step, loss, grad_norm, gather_rows(run, batch, losses))

    done, total = (step + 1) * run.step_tokens, run.steps * run.step_tokens
    lr = learning_rate(done, total, run.settings.optimizer.lr, run.settings.schedule)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.step()
    run.optimizer.zero_grad()
    seconds = time.perf_counter() - begun
    progress = Progress(
        step=step,
        steps=run.steps,
        tokens=done,
        loss=loss,
        lr=lr,
        grad_norm=grad_norm,
        tokens_per_second=run.step_tokens / seconds,
        step_seconds=seconds,
        data_wait_seconds=waited,
        sources=source_losses(names, nats, tokens, sizes),
    )
    return progress, (stop.received or "a signal to another rank") if stops else None


def accumulate_gradients(run: Run, batch: Batch, num_labels: torch.Tensor) -> torch.Tensor:
    """Run the model forward and backward over this rank's rows, micro-batch by micro-batch.

    Args:
        run: this rank's.
        batch: S rows.
        num_labels: labelled tokens of the whole step, over all ranks and micro-batches: dividing by
            it here makes the summed gradients those of the step's mean loss, however rows and
            labels are spread.

    Returns:
        (S,) each row's summed cross-entropy, in nats.
    """
    model, settings, device = run.model, run.settings, run.parallel.device
    assert isinstance(model, FSDPModule), "built by build_model"
    num_rows, micro_rows = len(batch["tokens"]), settings.batch.micro_rows
    kernel = choose_kernel(device, DTYPES[settings.dtype])
    losses = []
    for first in range(0, num_rows, micro_rows):
        rows = slice(first, first + micro_rows)
        # Replicas of the model add up their gradients once per step, shards at each backward pass.
        model.set_requires_all_reduce(rows.stop >= num_rows)
        layout = lay_out(
            batch["position_ids"][rows],
            head_dim=model.shape.head_dim,
            rope_theta=model.shape.rope_theta,
            kernel=kernel,
            device=device,
        )
        tokens, labels = (
            torch.from_numpy(batch[name][rows].astype(np.int64)).to(device, non_blocking=True)
            for name in ("tokens", "labels")
        )
        loss, objective = row_losses(model(tokens, layout), labels, settings.model.z_loss)
        (objective.sum() / num_labels).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return torch.cat(losses)


def gather_rows(run: Run, batch: Batch, losses: torch.Tensor) -> list[tuple[str, float]]:
    """Return (`source/row`, summed loss) of every row of the step, over all ranks."""
    run.checkpoints.wait()  # it uses the same group
    mine = [
        (f"{run.loader.source_names[source]}/{row}", loss)
        for source, row, loss in zip(
            batch["source_ids"], batch["row_ids"], losses.tolist(), strict=True
        )
    ]
    everyone: list[list[tuple[str, float]]] = [[]] * run.parallel.world_size
    dist.all_gather_object(everyone, mine, group=run.parallel.save_group)
    return [row for rows in everyone for row in rows]


def count_steps(settings: TrainSettings, loader: StreamingLoader) -> int:
    """Return how many steps the run has.

    Raises:
        UsageError: the plan has fewer rows than that.
    """
    global_rows = settings.batch.global_rows
    steps, asked = loader.num_steps, "one step"
    if settings.steps is not None:
        steps, asked = settings.steps, f"steps: {settings.steps}"
    elif settings.tokens is not None:
        steps = -(-settings.tokens // (global_rows * loader.plan.seq_len))
        asked = f"tokens: {settings.tokens}, {steps} steps"
    if steps > loader.num_steps or not steps:
        raise UsageError(
            f"{asked} of {global_rows} rows: {settings.data} has rows for {loader.num_steps}. "
            "Ask for fewer, lower batch.global_rows, or mix more epochs."
        )
    return steps
