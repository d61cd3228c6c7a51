"""Estimates length, memory, time and cost of a training run, before it starts and without torch.

`corpuskit train t.yaml --plan` prints the estimate. It has three parts: how long the run is (from
the mix plan and the training file), how much memory a rank needs, and what time and checkpoints
cost. Operations are those of flops.py. Time is operations / (ranks * peak * MFU), with the MFU that
the user expects. Waiting for rows, evaluations and restarts are not included.

Memory: a step is followed through the moments at which most memory is in use: the loss (logits!),
the backward pass of the last block and of the first, the gradient of embedding and head, and the
optimizer's update. Every tensor that the program keeps at these moments is counted: tests compare
the formulas with counts of real models, and `benchmarks/train_memory.py` with whole processes. Not
counted are gaps of the allocator, libraries, and NCCL's buffers.

Letters: C width, A = heads * head_dim, K = kv_heads * head_dim, F feed-forward width, V vocabulary,
L tokens of a row, `t` ranks that share matrices, `b` bytes of a number in `dtype`.

Source: V. Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv
2205.05198), section 4, for the method; which tensors are kept follows this project's model.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.train.continuation import require_continuation
from corpuskit.train.flops import pair_flops, rate, require_device, token_flops
from corpuskit.train.huggingface import choose_shape, choose_teacher, read_shape
from corpuskit.train.record import find_newest
from corpuskit.train.settings import moment_block, require_fit, require_ranks, stage_spans
from corpuskit.train.status import read_tail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corpuskit.loader.index import MixPlan
    from corpuskit.train.flops import Device
    from corpuskit.train.settings import ExpertShape, ModelShape, TrainSettings

WRITE_RATE = 2e9  # bytes per second that all ranks together write to a shared file system: assumed
COPY_RATE = 4e9  # bytes per second that a rank copies to host memory: assumed
RECENT_BYTES = 1 << 16  # of metrics.jsonl that are read for the time of a step
FILL_RATIO = 0.9  # of a device's memory for tensors; the rest is for gaps, NCCL and CUDA
FLOAT = 4  # bytes of a stored number: weights, moments and gradients are float32

Part = Literal[
    "weights", "optimizer", "gradients", "gathered weights", "reduction", "activations", "mask",
    "logits", "working", "checkpoint", "waiting", "received",
]  # fmt: skip

OFFLOADED: tuple[Part, ...] = ("weights", "optimizer", "gradients")


# Time and cost.


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """What checkpoints cost, and the best interval between them."""

    size_bytes: int
    write_seconds: float
    stall_seconds: float  # in which training waits
    failure_seconds: float  # between failures of any rank, on average
    every_seconds: float  # interval at which writing and repeated steps together cost least
    every_steps: int | None  # the same in steps; None if the time of a step is not known


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything that `--plan` prints."""

    length: RunLength
    parameters: ParameterCounts
    ranks: int
    work: Work  # of a rank; of a pipeline, of the rank that needs most memory
    device: Device | None
    moments: list[Moment]
    stages: list[PipelineRank]  # by rank of the pipeline; empty without a pipeline
    bubble: float  # share of a step for which a rank of a pipeline waits for others
    token_flops: float  # forward and backward, attention included
    mfu: float
    peak_flops: float | None  # of one device
    seconds: float | None  # of the run
    is_measured: bool  # `seconds` follows from steps that this run has taken, not from the peak
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
    """Estimate a run.

    Args:
        settings: of the run.
        ranks: devices.
        device_name: their model; without it, memory is for the device of the settings (CPU for
            `auto`), and the peak is `peak_tflops` of the settings.
        mfu: share of the peak that the run will reach.
        price: of one device for one hour.
        mtbf_hours: between failures of one device. Llama 3 had 419 in 54 days of 16,384 GPUs
            (arXiv 2407.21783, section 3.3.4): one in 50,700 hours.
        seq_len: of the packed rows, where they have not been packed.

    Raises:
        UsageError: the settings don't fit the ranks or the plan, or lack something.
        DataError: the plan is damaged.
    """
    device = require_device(device_name) if device_name else None
    length, is_cuda = read_length(settings, seq_len), device is not None
    is_cuda |= settings.device == "cuda"
    _require_fit(settings, length, ranks, is_cuda=is_cuda)
    shape, parameters = length.shape, count_parameters(length.shape)
    work = plan_work(shape, settings, seq_len=length.seq_len, ranks=ranks, is_cuda=is_cuda)
    saved = FLOAT * (parameters.total + _count(shape, replace(work, shards=1, tensor=1)).moments)
    stages, bubble = plan_pipeline(shape, settings, work, ranks)
    if stages:
        work = max(stages, key=lambda stage: stage.peak.total).work
    flops_per_token = token_flops(shape) + pair_flops(shape) * length.visible_tokens
    peak = settings.peak_tflops * 1e12 if settings.peak_tflops else None
    if peak is None and device:
        peak = rate(device, settings.dtype)
    seconds_measured = None if device or peak else measured_step_seconds(Path(settings.output))
    step_seconds = seconds_measured
    if peak:
        flops_per_second = ranks * peak * mfu * (1 - bubble)
        step_seconds = flops_per_token * length.tokens / length.steps / flops_per_second
    seconds = step_seconds * length.steps if step_seconds else None
    saving = checkpoint_cost(
        round(saved), ranks, mtbf_hours, step_seconds,
        in_background=settings.checkpoint.background,
    )  # fmt: skip
    result = Estimate(
        length, parameters, ranks, work, device, step_moments(shape, work), stages, bubble,
        flops_per_token, mfu, peak, seconds, seconds_measured is not None, checkpoint=saving,
        advice=[], cost=seconds / 3600 * ranks * price if seconds and price is not None else None,
    )  # fmt: skip
    result.advice.extend(_advice(settings, result))
    return result


def measured_step_seconds(output: Path) -> float | None:
    """Return the median time of the last steps of this run; None before its first step."""
    steps = [line["step_seconds"] for line in read_tail(output, "metrics", RECENT_BYTES)]
    return statistics.median(steps) if steps else None


def checkpoint_cost(
    size: int,
    ranks: int,
    mtbf_hours: float,
    step_seconds: float | None,
    *,
    in_background: bool,
) -> CheckpointCost:
    """Return what checkpoints of `size` bytes cost, and the best interval between them.

    A write costs the time for which training waits. The interval is at least as long as a write.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps
    (FGCS 22, 2006), equation 37; its first term is J. W. Young's (CACM 17, 1974).
    """
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
    parallel, rows = settings.parallel, settings.batch.global_rows
    require_ranks(parallel, ranks)
    data_ranks = parallel.data_ranks(ranks)
    if rows % data_ranks:
        raise UsageError(
            f"batch.global_rows: {rows} rows are not shared out evenly by {data_ranks} ranks. "
            "Change it, or --ranks."
        )
    require_fit(length.shape, length.seq_len, settings, ranks)
    newest = find_newest(settings)
    require_continuation(newest, length.shape, settings, length.steps, length.tokens)
    if parallel.offload and not is_cuda:
        raise UsageError("parallel.offload: true needs CUDA. Leave it out, or give --device.")
    if settings.attention in ("varlen", "flex") and not is_cuda:
        raise UsageError(
            f"attention: {settings.attention!r} needs CUDA. Set auto or sdpa, or give --device."
        )


def _advice(settings: TrainSettings, result: Estimate) -> list[str]:
    """Return lines about what to reconsider, and what the estimate leaves out."""
    lines, best = [], result.checkpoint
    every = settings.checkpoint.every_steps
    if best.every_steps and not 1 / 3 <= every / best.every_steps <= 3:
        too = "often" if every < best.every_steps else "seldom"
        lines.append(
            f"checkpoint.every_steps: {every} is {too}: about {best.every_steps:,} would lose "
            "least time to writing and to repeating steps after failures."
        )
    if result.device and result.peak.total > FILL_RATIO * result.device.memory_bytes:
        lines.append(
            f"Memory does not fit, or only just. {' '.join(_ways_to_fit(settings, result))}"
        )
    lines += [
        f"{name}: {package} is not installed here. Run: {install_command(extra)}"
        for name, package, extra in (("adapter", "peft", "lora"), ("float8", "torchao", "float8"))
        if getattr(settings, name) and importlib.util.find_spec(package) is None
    ]
    lines += [
        f"{name}: memory is that without it."
        for name in ("compile", "float8", "adapter")
        if getattr(settings, name)
    ]
    if settings.parallel.offload:
        on_host = step_moments(result.length.shape, replace(result.work, offload=False))[-1].parts
        size = sum(on_host[name] for name in OFFLOADED) / 1e9
        lines.append(f"parallel.offload: a rank has {size:,.1f} GB in host memory.")
    if settings.distill:
        lines.append("distill: time and memory are those without the teacher.")
    if settings.branch_from:
        lines.append("branch_from: steps, time and cost count those of the trunk, too.")
    if result.device and result.peak_flops is None:
        lines.append(f"{result.device.name} has no matrix units for {settings.dtype}: no time.")
    return lines


def _ways_to_fit(settings: TrainSettings, result: Estimate) -> list[str]:
    parts, parallel = result.peak.parts, settings.parallel
    advice = []
    largest = max(parts, key=lambda part: parts[part])
    if result.work.rows > 1:
        advice.append(f"batch.micro_rows below {result.work.rows} needs less of activations.")
    elif parallel.recompute != "full" and largest == "activations":
        advice.append("parallel.recompute: full keeps the inputs of blocks only.")
    if result.work.kernel == "sdpa" and result.work.is_cuda:
        advice.append("attention: varlen (in bfloat16) has no mask.")
    if result.work.rows == 1 and largest in ("activations", "logits", "working"):
        advice.append(f"parallel.context: {2 * parallel.context} halves the tokens of a rank.")
    if largest == "logits" and parallel.tensor == 1:
        advice.append("parallel.tensor: 2 halves the logits.")
    if largest in ("weights", "optimizer", "gathered weights", "gradients"):
        advice.append("More ranks, fewer replicas or zero: 3 leave less of the model on each.")
    return advice or ["Take more ranks, or a smaller model."]


# The length of a run.


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """The rows that the run takes from a source."""

    name: str
    rows: int
    epochs: float
    document_tokens: float | None  # mean length, at most that of a row; None if not known


@dataclass(frozen=True, slots=True)
class RunLength:
    """The model and how long it is trained."""

    shape: ModelShape
    seq_len: int
    steps: int
    tokens: int  # padding included
    plan_steps: int | None  # steps that the plan has rows for; None without a plan
    sources: tuple[PlannedSource, ...]
    visible_tokens: float  # mean number that a token attends to: itself and earlier ones
    visible_from: str  # what that follows from


def read_length(settings: TrainSettings, seq_len: int | None = None) -> RunLength:
    """Return model and length of a run, from the mix plan; before there is one, from the settings.

    Raises:
        UsageError: both lack something, or the plan has fewer rows than requested.
        DataError: the plan is damaged.
    """
    plan = _read_plan(settings.data)
    if plan is None:
        return _length_without_plan(settings, seq_len)
    if seq_len is not None and seq_len != plan.seq_len:
        raise UsageError(
            f"--seq-len {seq_len}: the rows of {settings.data} have {plan.seq_len} tokens. "
            "Leave it out."
        )
    global_rows = settings.batch.global_rows
    possible = plan.skips.num_consumed // global_rows
    steps = settings.num_steps(plan.seq_len) or possible
    if steps > possible or not steps:
        raise UsageError(
            f"{steps or 'one'} steps of {global_rows} rows: {settings.data} has rows for "
            f"{possible}. Ask for fewer, lower batch.global_rows, or mix more epochs."
        )
    sources = _shares(plan, steps * global_rows)
    shape = choose_shape(settings, plan.tokenizer)
    choose_teacher(settings, shape, plan.tokenizer)
    rows = sum(source.rows for source in sources)
    lengths = [(source.rows / rows, source.document_tokens) for source in sources if source.rows]
    visible, basis = (plan.seq_len + 1) / 2, "whole rows"
    if all(tokens is not None for _, tokens in lengths):
        visible = sum(share * ((tokens or 0) + 1) / 2 for share, tokens in lengths)
        basis = "documents of mean length"
    return RunLength(
        shape=shape,
        seq_len=plan.seq_len,
        steps=steps,
        tokens=steps * global_rows * plan.seq_len,
        plan_steps=possible,
        sources=sources,
        visible_tokens=visible,
        visible_from=basis,
    )


def _read_plan(run_dir: str) -> MixPlan | None:
    """Return the mix plan of a run directory; None if nothing has been mixed there yet."""
    from corpuskit.loader.index import open_files, read_mix

    files = open_files(run_dir)
    try:
        files.read("mix/plan.json")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return read_mix(files)


def _length_without_plan(settings: TrainSettings, seq_len: int | None) -> RunLength:
    missing = [] if settings.model.vocab_size or settings.init_from else ["model.vocab_size"]
    missing += [] if settings.steps or settings.tokens else ["steps or tokens"]
    missing += [] if seq_len else ["--seq-len"]
    if missing or seq_len is None:
        raise UsageError(
            f"{settings.data}: there is no mix plan, which would say the vocabulary, the length of "
            f"rows and how many there are. Run the pipeline, or set {', '.join(missing)}."
        )
    steps = settings.num_steps(seq_len)
    assert steps is not None, "steps or tokens is set"
    base = settings.init_from
    return RunLength(
        shape=read_shape(base) if base else settings.model.shape(settings.model.vocab_size or 0),
        seq_len=seq_len,
        steps=steps,
        tokens=steps * settings.batch.global_rows * seq_len,
        plan_steps=None,
        sources=(),
        visible_tokens=(seq_len + 1) / 2,
        visible_from="whole rows",
    )


def _shares(plan: MixPlan, num_rows: int) -> tuple[PlannedSource, ...]:
    """Return the rows that the first `num_rows` consumed rows of a plan take from each source."""
    from corpuskit.loader.state import consumed_by_source

    end = int(plan.skips.row_indices(np.array([num_rows - 1]))[0]) + 1
    consumed = consumed_by_source(plan, end)
    entries: dict[str, Mapping[str, Any]] = {
        entry["name"]: entry for entry in plan.base.fields["sources"]
    }
    shares = []
    for source in plan.sources:
        entry, rows = entries.get(source.name, {}), consumed[source.name]
        tokens, documents = entry.get("tokens"), entry.get("documents")
        mean = min(tokens / documents, plan.seq_len) if tokens and documents else None
        shares.append(PlannedSource(source.name, rows, rows / max(source.rows, 1), mean))
    return tuple(shares)


# Memory.


class Matrix(NamedTuple):
    """A parameter: rows and columns over all ranks, and which of them tensor parallelism cuts."""

    where: Literal["embedding", "block", "head"]  # the final norm counts with the head
    rows: int
    columns: int
    cut: Literal["rows", "columns", "experts", "none"]

    def local(self, tensor: int, shards: int = 1, expert: int = 1) -> int:
        """Return how many numbers of it a rank has: the first rank, which has most."""
        rows, columns = self.rows, self.columns
        if self.cut == "experts":
            rows, shards = rows // expert, max(shards // expert, 1)
        if self.cut == "rows":
            rows //= tensor
        elif self.cut == "columns":
            columns //= tensor
        return math.ceil(rows / shards) * columns


def matrices(shape: ModelShape) -> Iterator[Matrix]:
    """Yield all parameters outside blocks, and those of one block."""
    attention, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Matrix("embedding", shape.vocab_size, shape.dim, "rows")
    inner = shape.ffn_dim
    if experts := shape.experts:
        inner = experts.shared * experts.ffn_dim
        yield Matrix("block", experts.count, shape.dim, "none")
        for _ in ("gate", "up", "down"):
            yield Matrix("block", experts.count, experts.ffn_dim * shape.dim, "experts")
    for rows in (attention, kv, kv, inner, inner):
        yield Matrix("block", rows, shape.dim, "rows")
    for columns in (attention, inner):
        yield Matrix("block", shape.dim, columns, "columns")
    norms = (shape.dim, shape.dim, *((shape.head_dim,) * 2 if shape.qk_norm else ()))
    for size in norms:
        yield Matrix("block", size, 1, "none")
    yield Matrix("head", shape.dim, 1, "none")
    if not shape.tied:
        yield Matrix("head", shape.vocab_size, shape.dim, "rows")


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """How many parameters a model has, over all ranks."""

    embedding: int
    blocks: int  # which the names of presets count
    head: int  # with the norm before it; the norm alone if the head is tied

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.blocks + self.head


def count_parameters(shape: ModelShape) -> ParameterCounts:
    """Count the parameters of a model."""
    sums = dict.fromkeys(("embedding", "block", "head"), 0)
    for matrix in matrices(shape):
        sums[matrix.where] += matrix.local(1)
    return ParameterCounts(sums["embedding"], shape.layers * sums["block"], sums["head"])


@dataclass(frozen=True, slots=True)
class Work:
    """What decides the memory of a rank, beside the model's shape."""

    rows: int  # of a micro-batch
    seq_len: int
    shards: int  # ranks over which weights, gradients and optimizer are cut
    tensor: int
    zero: int
    recompute: str
    item_bytes: int  # of a number in `dtype`: 4 or 2
    kernel: str  # sdpa, varlen or flex
    is_cuda: bool
    is_wrapped: bool  # by FSDP; a rank alone is not, in float32
    accumulates: bool  # gradients over several micro-batches
    z_loss: bool
    optimizer: str
    keeps_average: bool  # of the weights
    copies_state: bool  # in the same memory, for checkpoints written in the background
    offload: bool = False  # weights, gradients and optimizer are in host memory
    expert: int = 1  # ranks that share the experts of a layer
    context: int = 1  # ranks that share the tokens of a row
    layers: int | None = None  # of this rank of a pipeline; None for all
    has_embedding: bool = True
    has_head: bool = True
    in_flight: float = 1.0  # micro-batches that wait for their backward pass, mean of its layers
    received: int = 0  # buffers for the stream of other stages

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch; ranks that share matrices have the same ones."""
        return self.rows * self.seq_len // self.context


def plan_work(
    shape: ModelShape, settings: TrainSettings, *, seq_len: int, ranks: int, is_cuda: bool
) -> Work:
    """Return the work of each of `ranks` ranks, which the settings must fit."""
    parallel = settings.parallel
    data_ranks = parallel.data_ranks(ranks)
    rank_rows = settings.batch.global_rows // data_ranks
    rows = min(settings.batch.micro_rows, rank_rows)
    kernel = settings.attention
    if kernel == "auto":
        kernel = "varlen" if is_cuda and settings.dtype == "bfloat16" else "sdpa"
    return Work(
        rows=rows,
        seq_len=seq_len,
        shards=data_ranks * parallel.context // parallel.replicas,
        tensor=parallel.tensor,
        context=parallel.context,
        expert=parallel.expert,
        zero=parallel.zero,
        recompute=parallel.recompute,
        item_bytes=2 if settings.dtype == "bfloat16" else 4,
        kernel=kernel,
        is_cuda=is_cuda,
        is_wrapped=ranks > parallel.pipeline or settings.dtype != "float32",
        accumulates=rank_rows > rows,
        z_loss=settings.model.z_loss > 0,
        optimizer=settings.optimizer.kind,
        keeps_average=settings.optimizer.average_decay > 0,
        copies_state=settings.checkpoint.background and not is_cuda,
        offload=parallel.offload,
    )


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """Parameters and memory of one rank of a pipeline."""

    parameters: int  # over all ranks that share them
    work: Work
    peak: Moment


def plan_pipeline(
    shape: ModelShape, settings: TrainSettings, work: Work, ranks: int
) -> tuple[list[PipelineRank], float]:
    """Return the ranks of a pipeline, and the share of a step for which each waits.

    With N micro-batches, P ranks and v stages of each, it is (P - 1) / (N v + P - 1); with a split
    backward pass a third of P - 1 counts. torch's schedules have the same waits if a forward pass,
    the gradients of inputs and those of weights take equally long.

    Source: D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
    (arXiv 2104.04473), section 2.2; P. Qi et al., Zero Bubble Pipeline Parallelism (2401.10241).
    """
    parallel = settings.parallel
    size, chunks, kind = parallel.pipeline, parallel.chunks, parallel.pipeline_schedule
    if size == 1:
        return [], 0.0
    num = settings.batch.global_rows // parallel.data_ranks(ranks) // work.rows
    waits = (size - 1) / chunks / (3 if parallel.splits_backward else 1)
    pipeline_ranks = []
    for rank in range(size):
        spans = [span for span in stage_spans(shape.layers, parallel) if span.rank == rank]
        if_looped = (2 * (size - rank - 1) + (chunks - 1) * size + 1) / chunks
        in_flight = {"1f1b": size - rank, "gpipe": num, "zbv": size}.get(kind, if_looped)
        is_first, is_last = any(s.is_first for s in spans), any(s.is_last for s in spans)
        rank_work = replace(
            work,
            layers=sum(len(span.layers) for span in spans),
            has_embedding=is_first,
            has_head=is_last,
            in_flight=min(in_flight, num),
            # A stage has two for each micro-batch, forward and backward; both ends have one.
            received=num * (2 * chunks - is_first - is_last),
        )
        peak = max(step_moments(shape, rank_work), key=lambda moment: moment.total)
        parameters = _count(shape, replace(rank_work, tensor=1, shards=1, expert=1)).local
        pipeline_ranks.append(PipelineRank(parameters, rank_work, peak))
    return pipeline_ranks, waits / (num + waits)


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory in use at one moment of a step, in bytes."""

    name: str
    parts: dict[Part, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


def step_moments(shape: ModelShape, work: Work) -> list[Moment]:
    """Return the moments of a step at which a rank may need most memory, in their order."""
    sizes = _count(shape, work)
    layers, tokens, local = sizes.layers, work.tokens, float(FLOAT * sizes.local)
    saved = _block_bytes(shape, work, work.recompute) * tokens  # by a block
    recomputed = _block_bytes(shape, work, "none") * tokens - saved
    outside = _outside_bytes(shape, work) * tokens
    mask = float(tokens * work.seq_len) if work.kernel == "sdpa" else 0.0
    logits, log_softmax = _logit_bytes(shape, work)
    table = float(work.item_bytes * shape.vocab_size * shape.dim / work.tensor)
    table *= work.has_embedding or work.has_head
    always: dict[Part, float] = {"weights": local, "optimizer": float(FLOAT * sizes.moments)}
    if work.received:
        stream = work.item_bytes * shape.dim / work.tensor * tokens
        always["received"] = work.received * stream
        # Of other micro-batches than the current one; inputs of all are counted above.
        per_batch = layers * saved + outside + mask + work.has_head * logits / 2
        always["waiting"] = (work.in_flight - 1) * per_batch
    if work.copies_state:
        always["checkpoint"] = local + always["optimizer"]

    def moment(name: str, num_left: int, num_done: int, parts: dict[Part, float]) -> Moment:
        """Add to `parts` what `num_left` blocks have saved, and the gradients of `num_done`."""
        base: dict[Part, float] = {
            "activations": num_left * saved + outside,
            "mask": mask,
            "gradients": sizes.gradients(work, num_done),
            "gathered weights": sizes.gathered(work, num_left),
        }
        return Moment(name, always | base | parts)

    moments = [
        moment("forward pass", layers, 0, {"logits": logits}),
        moment("loss", layers, 0, {"logits": log_softmax}),
        moment("head", layers, 0, {"logits": logits / 2 + table}),
    ]
    middle = recomputed + _working_bytes(shape, work) * tokens
    gradient = work.item_bytes * shape.ffn_dim * shape.dim / work.tensor
    # The buffer with which a block's gradients were sent is freed after the next block's.
    in_transit = float(FLOAT * sizes.block) if work.is_wrapped and work.shards > 1 else 0.0
    for name, num_done in (("last block", 0), ("first block", layers - 1)):
        left = layers - num_done
        in_block: dict[Part, float] = {
            "working": middle,
            "reduction": table + gradient + (in_transit if num_done else 0),
            "gathered weights": sizes.gathered(work, left, in_block=True),
        }
        ending: dict[Part, float] = {"reduction": table + sizes.reduction(work, sizes.block)}
        moments.append(moment(name, left, num_done, in_block))
        moments.append(moment(f"{name}'s gradients", left - 1, num_done, ending))
    # If tied: gradients of the head, of the embedding, and their sum.
    table *= 3 if shape.tied else work.has_embedding + work.has_head
    moments.append(moment("embedding", 0, layers, {"reduction": table + in_transit}))
    freed: dict[Part, float] = dict.fromkeys(("activations", "mask", "gathered weights"), 0.0)
    root: dict[Part, float] = {"reduction": sizes.reduction(work, sizes.root)}
    moments.append(moment("embedding's gradients", 0, layers, freed | root))
    moments.append(moment("update", 0, layers, {**freed, "gradients": local}))
    for m in moments if work.offload else ():
        m.parts.update(dict.fromkeys(OFFLOADED, 0.0))
    return moments


class _RankCounts(NamedTuple):
    """How many numbers a rank has of the parameters."""

    local: int  # cut over shards, and over ranks that share matrices
    moments: float  # of the optimizer, cut likewise
    root: int  # embedding, norm and head, cut only over ranks that share matrices
    block: int  # one block, cut likewise
    layers: int

    def gathered(self, work: Work, num_left: int, *, in_block: bool = False) -> float:
        """Return the bytes of whole weights while `num_left` blocks await their backward pass.

        Those of embedding and head stay until the end of the backward pass. With `zero: 3`, those
        of a block exist while it is in use, and several ranks prefetch those of another block.
        """
        if not work.is_wrapped:
            return 0.0
        if work.zero == 3:
            num_left = min(num_left, in_block + (work.shards > 1))
        return float(work.item_bytes * (self.root + num_left * self.block))

    def gradients(self, work: Work, num_done: int) -> float:
        """Return the bytes of gradients after the backward pass of `num_done` blocks."""
        if work.accumulates:
            all_parameters = self.root + self.layers * self.block
            is_whole = work.is_wrapped and work.zero == 1
            return float(FLOAT * (all_parameters if is_whole else self.local))
        return FLOAT * num_done * self.block / work.shards

    def reduction(self, work: Work, numbers: int) -> float:
        """Return the bytes of gradients: as computed, and in the buffers that reduce them."""
        if not work.is_wrapped:
            return float(FLOAT * numbers)
        from_backward = work.item_bytes * (1 if work.is_cuda else 2)  # on CPU, copied first
        # A single rank sends nothing, but divides into another copy.
        reduced = FLOAT if work.shards > 1 else 2 * FLOAT
        return float(numbers * max(from_backward + FLOAT, reduced + FLOAT / work.shards))


def _count(shape: ModelShape, work: Work) -> _RankCounts:
    local = root = block = 0
    moments = 0.0
    layers = shape.layers if work.layers is None else work.layers
    absent = {"embedding": not work.has_embedding, "head": not work.has_head}
    for matrix in matrices(shape):
        if absent.get(matrix.where):
            continue
        size = matrix.local(work.tensor, expert=work.expert)
        share = matrix.local(work.tensor, work.shards, work.expert)
        times = layers if matrix.where == "block" else 1
        local += times * share
        moments += times * share * (_moments_of(matrix, work.optimizer) + work.keeps_average)
        if matrix.where == "block":
            block += size
        else:
            root += size
    return _RankCounts(local, moments, root, block, layers)


def _moments_of(matrix: Matrix, optimizer: str) -> float:
    """Return how many float32 numbers an optimizer stores for each number of a parameter."""
    is_hidden = matrix.where == "block" and matrix.cut in ("rows", "columns")
    if optimizer == "lion" or (optimizer == "muon" and is_hidden):
        return 1.0
    if optimizer == "adamw8bit" and (block := moment_block((matrix.rows, matrix.columns))):
        return 2 * (1 / FLOAT + 1 / block)
    return 2.0


def _norm_bytes(work: Work, width: float, vectors: float) -> float:
    """Return the bytes of each token that a norm saves for its backward pass."""
    if work.is_cuda:  # one kernel: its input, and the scale of each vector
        return work.item_bytes * width + FLOAT * vectors
    return 2 * FLOAT * width + FLOAT * vectors  # input and normalised, in float32


def _block_bytes(shape: ModelShape, work: Work, recompute: str) -> float:
    """Return the bytes of each token that a block saves for its backward pass."""
    t, b = work.tensor, work.item_bytes
    stream = b * shape.dim / t
    if recompute == "full":
        return stream
    heads, kv_heads = shape.heads / t, shape.kv_heads / t
    a, k, f = heads * shape.head_dim, kv_heads * shape.head_dim, shape.ffn_dim / t
    routed = 0.0
    if shape.experts:
        f = shape.experts.shared * shape.experts.ffn_dim
        routed = _routed_bytes(shape.dim, shape.experts, b)
    attended = b * a + FLOAT * heads  # the output of attention, and its log-normaliser
    if recompute == "selective":  # outputs of experts are recomputed
        return stream + b * (a + 2 * k + 2 * f + 2 * shape.dim) + attended
    norms = 2 * _norm_bytes(work, shape.dim / t, 1 / t)
    if shape.qk_norm:
        norms += _norm_bytes(work, a, heads) + _norm_bytes(work, k, kv_heads)
    # What matrix products read: in attention and feed-forward all tokens, gathered.
    mask = b * work.seq_len if work.kernel == "sdpa" else 0  # in `dtype`, in each block
    keys = 2 * k * work.context  # and values, of whole rows
    return norms + b * (2 * shape.dim + a + keys + 4 * f) + attended + mask + routed


def _routed_bytes(dim: int, experts: ExpertShape, item_bytes: int) -> float:
    """Return the bytes of each token that routing and experts save for their backward pass.

    For each of its experts: input and output, four vectors inside, two weights and three indices.
    For the router: the scores and, unless `dtype` is float32, the token in float32.
    """
    per_expert = item_bytes * (2 * dim + 4 * experts.ffn_dim) + 2 * FLOAT + 3 * 8
    router = FLOAT * experts.count + FLOAT + (FLOAT * dim if item_bytes != FLOAT else 0)
    return experts.per_token * per_expert + router


def _outside_bytes(shape: ModelShape, work: Work) -> float:
    """Return the bytes of each token outside blocks: the last norm, ids, labels, rotations."""
    norm = _norm_bytes(work, shape.dim / work.tensor, 1 / work.tensor)
    return norm + work.item_bytes * shape.dim + 16 + 8 + FLOAT * shape.head_dim


def _logit_bytes(shape: ModelShape, work: Work) -> tuple[float, float]:
    """Return the most bytes of logits and their gradients, in the forward and the backward pass.

    Both are float32. A rank has V / t of the logits.
    """
    if not work.has_head:
        return 0.0, 0.0
    size = float(FLOAT * work.tokens * shape.vocab_size / work.tensor)
    if work.tensor > 1:  # our own cross-entropy, and the logits in `dtype`
        return (3.5 if work.item_bytes == 2 else 3) * size, 2 * size
    # log_softmax saves its result, and has gradients of input and output; the z-loss likewise.
    return 2 * size, (5 if work.z_loss else 3) * size


def _working_bytes(shape: ModelShape, work: Work) -> float:
    """Return the most bytes of each token that the backward pass of a block uses temporarily.

    The gradients of gate and up exist beside what they are computed from; later those of keys and
    values do, of whole rows, twice where ranks share rows.
    """
    keys = 4 * shape.kv_heads * shape.head_dim * work.context if work.context > 1 else 0
    if experts := shape.experts:
        inner = (experts.per_token + experts.shared) * experts.ffn_dim
        return work.item_bytes * (max(2 * inner + experts.per_token * shape.dim, keys) + shape.dim)
    return work.item_bytes * (max(2 * shape.ffn_dim, keys) / work.tensor + shape.dim)
