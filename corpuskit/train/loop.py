"""The training loop.

Read this file first, top to bottom; then model.py and attention.py (what a step computes),
parallel.py (how ranks share it), setup.py and checkpoint.py (where a run begins and how it survives
kills), guard.py and recovery.py (which steps it refuses), and the others as needed. There is no
framework; torch is called directly.

A step is a pure function of the weights and of rows [step * G, (step + 1) * G) of the mix plan,
where G is `batch.global_rows`. Each data-parallel rank takes a slice of those rows, and every sum
over the step's tokens is divided by the labelled tokens of the whole step. So the number of ranks
and the size of micro-batches change only the order in which floating-point numbers are added.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.flops import step_flops
from corpuskit.train.heartbeat import REQUEUE, Ending, HeartbeatWriter, note_ending
from corpuskit.train.likelihood import Evaluated
from corpuskit.train.metrics import StepMetrics, TrainResult, source_losses
from corpuskit.train.model import make_micro_batch, token_losses
from corpuskit.train.moe import balance_loads, measure_loads, take_loads
from corpuskit.train.optim import clip_gradients, learning_rate, set_rate
from corpuskit.train.parallel import begin_micro_batch, join
from corpuskit.train.record import lock_output
from corpuskit.train.recovery import BadStep, go_back, report_bad_step
from corpuskit.train.setup import Run, set_up
from corpuskit.train.upload import Uploads, fetch_newest
from corpuskit.train.watch import StopSignals, Watch, profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpuskit.train.evaluation import HeldOut
    from corpuskit.train.metrics import Observer
    from corpuskit.train.model import MicroBatch
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import ModelShape, TrainSettings
    from corpuskit.train.tasks import TaskItem

    Batch = dict[str, Any]

# A garbage collection on one rank makes all the others wait, so all collect at the same steps.
COLLECT_EVERY_STEPS = 200


def main(
    settings: TrainSettings,
    observer: Observer | None = None,
    held_out: HeldOut | None = None,
    tasks: Mapping[str, Sequence[TaskItem]] | None = None,
    alter: Callable[[Batch], Batch] | None = None,
) -> TrainResult:
    """Train to the end, or continue from the newest checkpoint in `settings.output`.

    On one rank it returns. On several (torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
    MASTER_PORT) it ends the process with the result's exit code instead, without the interpreter's
    shutdown: about one in five interpreters with live gloo threads aborts in it.

    Args:
        settings: the same on every rank.
        observer: called on rank 0 with StepMetrics every `log_every_steps` steps, with every other
            Update, and with the TrainResult at the end; `str()` of each is one line.
        held_out: the documents that `settings.evaluate` evaluates on.
        tasks: the items of its tasks, by name.
        alter: changes each batch before it is trained on, and must be a function of the batch
            alone, so that a run that was killed repeats it.
    """
    is_guest = dist.is_initialized()
    parallel = join(settings)
    try:
        result = train(settings, parallel, observer, held_out, tasks, alter)
    finally:
        # One of several ranks that fails must not wait for the others here: they wait for it.
        if parallel.world_size == 1 and not is_guest:
            dist.destroy_process_group()
    if result.stopped_by:
        note_ending(settings.output, Ending(REQUEUE, f"stopped by {result.stopped_by}"))
    if parallel.world_size > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result.exit_code)
    return result


def train(
    settings: TrainSettings,
    parallel: Parallel,
    observer: Observer | None = None,
    held_out: HeldOut | None = None,
    tasks: Mapping[str, Sequence[TaskItem]] | None = None,
    alter: Callable[[Batch], Batch] | None = None,
) -> TrainResult:
    """Take the remaining steps; return on every rank, with the process group unchanged.

    Raises:
        UsageError: the settings don't fit the plan or the checkpoint; nothing was run.
        GuardError: too many steps were bad; they were not applied.
        CorpuskitError: a checkpoint could not be written.
    """
    start = time.perf_counter()
    evaluated = Evaluated(held_out, tasks or {})
    if settings.evaluate and not evaluated:
        raise UsageError("evaluate: there is nothing to evaluate. Pass held_out or tasks.")
    health = settings.health
    output, address = Path(settings.output), settings.checkpoint.upload
    uploads = Uploads(settings) if address and not parallel.rank else None
    restore = uploads.restore if uploads else None
    with (
        lock_output(output, parallel, settings.branch_from, restore) as identity,
        StopSignals(health.stop_after_seconds) as stop,
        HeartbeatWriter(output, parallel.rank, health.hang_seconds) as heartbeat,
        _rare_collections(),
    ):
        if address:
            fetch_newest(output, address, uploads, parallel, lambda: heartbeat.beat(0, "fetch"))
        while True:
            heartbeat.beat(0, "set up")
            run = set_up(settings, parallel, identity, uploads)
            with Watch(run, observer, heartbeat, stop, evaluated) as watch:
                result = take_steps(run, watch, start, alter)
                if result:
                    return result
                # The guard has rolled back: the run begins again, at an older checkpoint.
                go_back(run, watch)
            del run, watch
            gc.collect()  # the old model is full of cycles, and there is no room for two


def take_steps(
    run: Run, watch: Watch, start: float, alter: Callable[[Batch], Batch] | None = None
) -> TrainResult | None:
    """Take the steps from `run.num_done` on; return None when the guard asks for a rollback."""
    settings, num_done, loss, stopped = run.settings, run.num_done, None, None
    batches = map(alter, run.loader) if alter else iter(run.loader)
    is_evaluation_step = bool(watch.evaluated) and num_done > 0 and is_due(num_done, run)
    if is_evaluation_step and not watch.has_evaluation(num_done):
        watch.evaluate(num_done)  # the run was killed between the save and the evaluation
    while num_done < run.steps and not stopped:
        watch.saved(run.checkpoints.poll())
        with profiled(settings, run.parallel, num_done):
            progress, stopped = take_step(run, num_done, batches, watch)
        num_done, loss = num_done + 1, progress.loss
        is_last = bool(stopped) or num_done == run.steps
        watch.step(progress, is_last=is_last)
        if not progress.is_applied and run.guard.is_exhausted:
            return None
        if num_done % settings.health.compare_every_steps == 0:
            watch.compare_speeds(num_done)
        if is_last or is_save_due(num_done, run, watch):
            watch.heartbeat.beat(num_done, "checkpoint")
            watch.write_experts(num_done)
            watch.saved(run.checkpoints.wait())
            run.checkpoints.save(run.model, run.optimizer, run.record(num_done))
            if is_last or not settings.checkpoint.background:
                watch.saved(run.checkpoints.wait())
        # After the save, so that no step is lost if it takes long or meets a broken file.
        if watch.evaluated and is_due(num_done, run) and not stopped:
            watch.evaluate(num_done)
        if num_done % COLLECT_EVERY_STEPS == 0:
            gc.collect()
    run.checkpoints.finish_uploads(lambda: watch.heartbeat.beat(num_done, "upload"))
    watch.saved(None)
    result = TrainResult(
        steps_done=num_done,
        steps=run.steps,
        tokens=num_done * run.step_tokens,
        loss=loss,
        seconds=time.perf_counter() - start,
        checkpoint=run.checkpoints.newest(),
        stopped_by=stopped if num_done < run.steps else None,
    )
    watch.end(result)
    return result


def is_due(num_done: int, run: Run) -> bool:
    """Return whether held-out documents are evaluated after `num_done` steps."""
    settings = run.settings.evaluate
    return settings is not None and (num_done == run.steps or num_done % settings.every_steps == 0)


def is_save_due(num_done: int, run: Run, watch: Watch) -> bool:
    """Return whether a checkpoint is saved after `num_done` steps; collective."""
    settings = run.settings.checkpoint
    is_evaluated = settings.keep_best and watch.evaluated and is_due(num_done, run)
    return num_done % settings.every_steps == 0 or bool(is_evaluated) or run.checkpoints.is_time()


class Sums(NamedTuple):
    """The sums of a step over all its rows, by source, and the norm of its gradient."""

    nats: list[float]
    tokens: list[float]  # with a label
    text_bytes: list[float]
    grad_norm: float
    stops: float  # ranks that received a signal to stop
    experts: torch.Tensor | None  # (sources, layers, E) tokens that each expert got

    @property
    def loss(self) -> float:
        """Nats per labelled token."""
        return sum(self.nats) / max(sum(self.tokens), 1)


def take_step(
    run: Run, step: int, batches: Iterator[Batch], watch: Watch
) -> tuple[StepMetrics, str | None]:
    """Do one optimizer update, unless the guard judges the step as bad.

    Args:
        run: this rank's.
        step: as the loader counts, from 0.
        batches: the loader's iterator, at `step`.
        watch: this rank's.

    Returns:
        Metrics of the step, and the signal that asks to stop, if any rank received one.
    """
    start = time.perf_counter()
    watch.heartbeat.beat(step, "data")
    batch = next(batches)
    waited = time.perf_counter() - start
    watch.waits.add(waited)
    watch.heartbeat.beat(step, "step")

    losses, sums = compute_gradients(run, batch, stops=watch.stop.received is not None)

    tokens, total = (step + 1) * run.step_tokens, run.steps * run.step_tokens
    if begins_mixture_stage(run, step):
        run.guard.reset()
    lr = learning_rate(tokens, total, run.settings.optimizer.lr, run.settings.schedule)
    usual_loss = run.guard.usual_loss
    reason = run.guard.judge(step, sums.loss, sums.grad_norm)
    if reason is None:
        update_weights(run, watch, lr, sums.experts)
    else:
        bad = BadStep(step, reason, sums.loss, sums.grad_norm, usual_loss or sums.loss)
        report_bad_step(run, watch, bad, batch, losses)
    run.optimizer.zero_grad()
    seconds = time.perf_counter() - start
    names = run.loader.source_names
    p50, p99 = watch.waits.percentiles()
    progress = StepMetrics(
        step=step,
        steps=run.steps,
        tokens=tokens,
        loss=sums.loss,
        lr=lr,
        grad_norm=sums.grad_norm,
        is_applied=reason is None,
        tokens_per_second=run.step_tokens / seconds,
        mfu=model_flops_utilisation(run, batch, seconds),
        step_seconds=seconds,
        data_wait_seconds=waited,
        data_wait_p50_ms=p50,
        data_wait_p99_ms=p99,
        sources=source_losses(names, sums.nats, sums.tokens, sums.text_bytes),
        experts=None if sums.experts is None else measure_loads(sums.experts.sum(0)),
    )
    return progress, (watch.stop.received or "a signal to another rank") if sums.stops else None


def update_weights(run: Run, watch: Watch, lr: float, loads: torch.Tensor | None) -> None:
    """Step the optimizer; move the biases of routers by (sources, layers, E) tokens of experts."""
    set_rate(run.optimizer, lr)
    run.optimizer.step()
    if loads is not None:
        settings = run.settings.model.experts
        assert settings is not None, "a model without experts has no loads"
        balance_loads(run.model.blocks, loads.sum(0), settings.bias_rate)
        watch.count_experts(loads)


def begins_mixture_stage(run: Run, step: int) -> bool:
    """Return whether a later stage of the mixture begins within the rows of this step."""
    first, end = run.loader.row_at(step), run.loader.row_at(step + 1)
    return any(first <= start < end for start in run.stage_starts)


def compute_gradients(run: Run, batch: Batch, *, stops: bool) -> tuple[torch.Tensor, Sums]:
    """Run a step forward and backward; clip the gradients.

    Args:
        run: this rank's.
        batch: this rank's S rows of L tokens.
        stops: whether this rank received a signal to stop. Ranks receive it at different times;
            the sum makes them stop after the same step.

    Returns:
        (S, L) the cross-entropy of each token in nats, and the sums over all ranks.
    """
    device, num_sources = run.parallel.device, len(run.loader.source_names)
    by_source = np.zeros((2, num_sources))
    np.add.at(by_source[0], batch["source_ids"], (batch["labels"] != IGNORED).sum(1))
    np.add.at(by_source[1], batch["source_ids"], batch["text_bytes"])
    counts = run.parallel.sum(torch.from_numpy(by_source).to(device))

    losses = run.parallel.whole_rows(accumulate_gradients(run, batch, counts[0].sum()))

    totals = torch.zeros(num_sources + 1, dtype=torch.float64, device=device)
    sources = torch.from_numpy(batch["source_ids"]).to(device)
    totals.index_add_(0, sources, losses.double().sum(1))
    totals[-1] = float(stops)
    run.parallel.sum(totals)
    if run.parallel.data_ranks < run.parallel.world_size:
        # A signal may have reached a rank that shares these rows, but not this one.
        dist.all_reduce(totals[-1:])
    experts = None
    if run.model.shape.experts:
        experts = take_loads(run.model.blocks, run.model.shape, sources, num_sources)
        dist.all_reduce(experts)  # no two ranks have the same tokens in the same layer
    group = run.parallel.pipeline_group if run.pipeline else None
    norm = clip_gradients(run.model.parameters(), run.settings.optimizer.clip_norm, group)
    norm = norm.to(device)  # from the host, if offloaded
    # The only wait for the device: the guard must judge these figures before the update.
    *nats, stopping, grad_norm = torch.cat((totals, norm.double()[None])).tolist()
    tokens, text_bytes = counts.tolist()
    return losses, Sums(nats, tokens, text_bytes, grad_norm, stopping, experts)


def accumulate_gradients(run: Run, batch: Batch, num_labels: torch.Tensor) -> torch.Tensor:
    """Run the model forward and backward over this rank's rows, micro-batch by micro-batch.

    Args:
        run: this rank's.
        batch: S rows of L tokens.
        num_labels: labelled tokens of the whole step, over all ranks and micro-batches. Division
            by it makes the summed gradients those of the step's mean loss, however rows and labels
            are spread.

    Returns:
        (S, L) each token's cross-entropy, in nats; of this rank's tokens, if ranks share rows.
    """
    model, settings = run.model, run.settings
    num_rows, micro_rows = len(batch["tokens"]), settings.batch.micro_rows

    def take(number: int, shape: ModelShape = model.shape) -> MicroBatch:
        rows = slice(number * micro_rows, (number + 1) * micro_rows)
        arrays = (batch[name][rows] for name in ("tokens", "labels", "position_ids"))
        return make_micro_batch(
            shape, *arrays, kernel=run.kernel, device=run.parallel.device,
            context=run.parallel.context,
        )  # fmt: skip

    if run.pipeline:
        return run.pipeline.step(take, num_labels)
    losses = []
    for number in range(-(-num_rows // micro_rows)):
        begin_micro_batch(model, settings, is_last=(number + 1) * micro_rows >= num_rows)
        micro_batch = take(number)
        logits = model(micro_batch.tokens, micro_batch.layout)
        loss, objective = token_losses(logits, micro_batch.labels, settings.model.z_loss)
        if teacher := run.teacher:
            for_teacher = take(number, teacher.model.shape)
            objective = teacher.blend(objective, loss, logits, for_teacher)
        (objective / num_labels).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return torch.cat(losses)


def model_flops_utilisation(run: Run, batch: Batch, seconds: float) -> float | None:
    """Return the share of the device's peak that a step took, without recomputation (MFU).

    None where the peak is not known.
    """
    if run.peak_flops is None:
        return None
    flops = step_flops(run.model.shape, np.diff(batch["cu_seqlens"]))
    return flops * run.parallel.data_ranks / run.parallel.world_size / seconds / run.peak_flops


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Turn automatic garbage collection off while entered; see `COLLECT_EVERY_STEPS`."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
