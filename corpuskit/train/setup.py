"""Builds a run, and finds where it begins: at the newest checkpoint, or at initial weights."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.index import Remix
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train.adapters import init_adapters
from corpuskit.train.attention import choose_kernel
from corpuskit.train.checkpoint import Checkpoints
from corpuskit.train.continuation import require_continuation, require_same_training
from corpuskit.train.distill import Teacher, open_teacher
from corpuskit.train.flops import peak_flops
from corpuskit.train.guard import SpikeGuard
from corpuskit.train.huggingface import choose_shape, choose_teacher, load_initial_weights
from corpuskit.train.optim import build_optimizer
from corpuskit.train.parallel import DTYPES, build_model, require_same
from corpuskit.train.record import CheckpointRecord, read_skips, spans_of
from corpuskit.train.settings import require_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from corpuskit.train.attention import Kernel
    from corpuskit.train.checkpoint import VerifiedCheckpoint
    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.pipeline import Pipeline
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.upload import Uploads

# What the loop, the guard and the metrics use of a batch.
BATCH_FIELDS = (
    "tokens",
    "labels",
    "position_ids",
    "cu_seqlens",
    "source_ids",
    "row_ids",
    "text_bytes",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What every step needs."""

    settings: TrainSettings
    parallel: Parallel
    loader: StreamingLoader
    model: Decoder
    teacher: Teacher | None
    pipeline: Pipeline | None
    optimizer: torch.optim.Optimizer
    checkpoints: Checkpoints
    guard: SpikeGuard
    kernel: Kernel
    stage_starts: tuple[int, ...]  # rows of the run with which further stages of the mixture begin
    identity: str  # of the training, over all its starts
    skips: list[dict[str, Any]]  # rows that it skips since its rollbacks
    steps: int  # of the whole run
    num_done: int  # steps done when it was set up
    newest: VerifiedCheckpoint | None  # the checkpoint that it continued from
    step_tokens: int  # over all ranks, padding included
    peak_flops: float | None  # of one device

    def record(self, num_done: int) -> CheckpointRecord:
        """Return the record of a checkpoint after `num_done` steps."""
        return CheckpointRecord(
            step=num_done,
            shape=asdict(self.model.shape),
            settings=self.settings.model_dump(mode="json"),
            settings_hash=self.settings.digest(),
            plan_hash=self.loader.plan.hash,
            loader=self.loader.state_at(num_done),
            world_size=self.parallel.world_size,
            guard=self.guard.state_dict(),
            run=self.identity,
            skips=self.skips,
        )


def set_up(
    settings: TrainSettings, parallel: Parallel, identity: str = "", uploads: Uploads | None = None
) -> Run:
    """Build everything, and load the newest checkpoint.

    Args:
        settings: the same on every rank.
        parallel: this rank.
        identity: of the training, as `lock_output` gives it.
        uploads: copies checkpoints elsewhere; rank 0 has it.

    Raises:
        UsageError: the settings don't fit the plan or the checkpoint.
        DataError: plan or checkpoint are damaged.
    """
    skips = parallel.gather(read_skips(Path(settings.output)))[0]
    loader = open_loader(settings, parallel, skips)
    plan = loader.plan
    # If the mixture was edited between the starts of two ranks, they would train on other rows.
    require_same(parallel, f"{settings.data}: the mix plan", plan.hash)
    require_same(parallel, "the training file with its overrides", settings.digest())
    steps = count_steps(settings, loader)
    shape = choose_shape(settings, plan.tokenizer)
    require_fit(shape, plan.seq_len, settings, parallel.world_size)
    teacher = choose_teacher(settings, shape, plan.tokenizer)
    kernel = choose_kernel(parallel.device, DTYPES[settings.dtype], settings.attention)
    checkpoints = Checkpoints(settings, parallel, uploads)
    newest = find_beginning(checkpoints, settings, identity)
    tokens = steps * settings.batch.global_rows * plan.seq_len
    require_continuation(newest and newest[:2], shape, settings, steps, tokens)
    model = build_model(shape, settings, parallel)
    optimizer = build_optimizer(model, settings.optimizer)
    if newest:
        checkpoints.load(newest.folder, model, optimizer)
        restore_loader(newest, loader)
    elif settings.init_from:
        load_initial_weights(Path(settings.init_from), model, parallel)
        if settings.adapter:
            init_adapters(model, settings.seed)
    return Run(
        newest=newest,
        settings=settings,
        parallel=parallel,
        loader=loader,
        model=model,
        teacher=open_teacher(teacher, settings, parallel) if teacher else None,
        pipeline=build_pipeline(model, settings, parallel, plan.seq_len),
        optimizer=optimizer,
        checkpoints=checkpoints,
        guard=SpikeGuard(settings.guard, newest.record.guard if newest else None),
        kernel=kernel,
        stage_starts=(*itertools.accumulate(stage.rows for stage in plan.order.stages[:-1]),),
        identity=identity,
        skips=skips,
        steps=steps,
        num_done=newest.record.step if newest else 0,
        step_tokens=settings.batch.global_rows * plan.seq_len,
        peak_flops=_peak_flops(settings, parallel),
    )


def _peak_flops(settings: TrainSettings, parallel: Parallel) -> float | None:
    if settings.peak_tflops:
        return settings.peak_tflops * 1e12
    return peak_flops(parallel.device, DTYPES[settings.dtype])


def find_beginning(
    checkpoints: Checkpoints, settings: TrainSettings, identity: str
) -> VerifiedCheckpoint | None:
    """Return the newest checkpoint; of a new training, the one that it branches from.

    Raises:
        UsageError: it is another training's, or `branch_from` is not a checkpoint.
        DataError: the one to branch from is damaged.
    """
    newest = checkpoints.newest_verified()
    if newest:
        require_same_training(newest.folder, newest.record, identity)
    elif settings.branch_from:
        newest = checkpoints.verified(Path(settings.branch_from))
    return newest


def build_pipeline(
    model: Decoder, settings: TrainSettings, parallel: Parallel, seq_len: int
) -> Pipeline | None:
    """Return the pipeline with the stages of this rank; None if it has the whole model."""
    if not model.stages:
        return None
    from corpuskit.train.pipeline import Pipeline  # torch's takes 2 s to import

    return Pipeline(model, settings, parallel, seq_len)


def restore_loader(checkpoint: VerifiedCheckpoint, loader: StreamingLoader) -> None:
    """Move the loader to the position of a checkpoint.

    Raises:
        UsageError: the rows that the checkpoint has consumed are not those of the plan.
        DataError: its loader state contradicts itself.
    """
    try:
        loader.load_state_dict(checkpoint.record.loader)
    except (UsageError, DataError) as error:
        raise type(error)(f"{checkpoint.folder}: {error}") from None


def open_loader(
    settings: TrainSettings, parallel: Parallel, skips: Iterable[Mapping[str, Any]] = ()
) -> StreamingLoader:
    """Return the loader of this rank's slice of the steps, without the skipped rows."""
    return StreamingLoader(
        settings.data,
        global_batch_rows=settings.batch.global_rows,
        rank=parallel.data_rank,
        world_size=parallel.data_ranks,
        fields=BATCH_FIELDS,
        skip=spans_of(skips),
        order_seed=settings.order_seed,
        remix=None if settings.remix is None else Remix(**settings.remix.model_dump()),
        cache_dir=settings.cache_dir,
        cache_bytes=settings.cache_bytes,
    )


def count_steps(settings: TrainSettings, loader: StreamingLoader) -> int:
    """Return how many steps the run has.

    Raises:
        UsageError: the plan has fewer rows than that.
    """
    global_rows = settings.batch.global_rows
    steps = settings.num_steps(loader.plan.seq_len) or loader.num_steps
    request = "one step" if settings.steps is None else f"steps: {settings.steps}"
    if settings.tokens is not None:
        request = f"tokens: {settings.tokens}, {steps} steps"
    if steps > loader.num_steps and loader.num_steps:
        # Rows that a guard took out shorten a run that had just enough.
        steps = min(steps, max(loader.num_steps, steps - _steps_skipped(loader, global_rows)))
    if steps > loader.num_steps or not steps:
        raise UsageError(
            f"{request} of {global_rows} rows: {settings.data} has rows for {loader.num_steps}. "
            "Ask for fewer, lower batch.global_rows, or mix more epochs."
        )
    return steps


def _steps_skipped(loader: StreamingLoader, global_rows: int) -> int:
    plan = loader.plan
    return plan.order.num_rows // global_rows - plan.skips.num_consumed // global_rows
