"""The settings of a training run. Every field is a key of the training YAML file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from corpuskit.errors import UsageError
from corpuskit.paths import PathText, is_name
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3.1 and later stretch rotary positions: slow frequencies more than fast ones."""

    factor: float
    low_freq_factor: (
        float  # frequencies with fewer turns in original_length are divided by `factor`
    )
    high_freq_factor: float  # those with more turns are left unchanged
    original_length: int  # tokens of the longest text before the stretch


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The experts of each block."""

    count: int
    per_token: int
    ffn_dim: int  # width inside an expert
    shared: int  # width of the expert that all tokens see, in experts
    scaling: float  # sum of the weights of a token's experts


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Which parameters a model has, and what it computes; kept in checkpoints."""

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    tied: bool
    qk_norm: bool
    rope_theta: float
    norm_eps: float
    rope_scaling: RopeScaling | None = None
    experts: ExpertShape | None = None
    mup_base_dim: int | None = None


SIZES = ("dim", "layers", "heads", "kv_heads", "ffn_dim")
# Names count the parameters outside embedding and head, which depend on the vocabulary.
PRESETS = {
    "0.5m": (128, 3, 4, 2, 320),
    "15m": (384, 10, 6, 2, 1024),
    "60m": (640, 14, 10, 2, 1728),
    "150m": (896, 18, 14, 2, 2432),
    "530m": (1536, 21, 24, 8, 4096),
    "1b": (2048, 24, 16, 4, 5632),
    "7b": (4096, 32, 32, 8, 14336),
}
UNTIED = ("1b", "7b")
LOOPED_SCHEDULES = ("interleaved", "zero_bubble")  # with `pipeline_chunks` stages on each rank
NF4_BLOCK = 64  # numbers of a row that share a scale in a matrix of four bits; QLoRA's size


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class ExpertSettings(Section):
    """A router sends each token to some of many feed-forwards; one more processes all tokens."""

    count: int = Field(ge=2)
    """How many experts a block has."""
    per_token: int = Field(ge=1)
    """How many of them each token goes to."""
    ffn_dim: int | None = Field(None, ge=8)
    """Width inside an expert; by default the experts of a token have model.ffn_dim together."""
    shared: int = Field(1, ge=1)
    """Width of the expert that all tokens see, in experts."""
    scaling: float = Field(1.0, gt=0)
    """Sum of the weights of a token's experts; the shared expert has weight 1."""
    bias_rate: float = Field(1e-3, ge=0)
    """How far a step moves the bias of an expert with too many or too few tokens; 0: not at all."""

    @model_validator(mode="after")
    def _per_token_fits_count(self) -> ExpertSettings:
        if self.per_token > self.count:
            raise ValueError(
                f"per_token {self.per_token} is more than count {self.count}. Lower it."
            )
        return self

    def shape(self, ffn_dim: int) -> ExpertShape:
        """Resolve the width of an expert from `ffn_dim`, that of a model without experts."""
        width = ffn_dim / (self.per_token + self.shared)
        return ExpertShape(
            count=self.count,
            per_token=self.per_token,
            ffn_dim=self.ffn_dim or _round_up(math.ceil(width), 8),
            shared=self.shared,
            scaling=self.scaling,
        )


class ModelSettings(Section):
    """The decoder: a preset, any of whose dimensions may be overridden, or all dimensions."""

    preset: Literal["0.5m", "15m", "60m", "150m", "530m", "1b", "7b"] | None = None
    """Named size: parameters outside the embeddings."""
    dim: int | None = Field(None, ge=8)
    """Model width."""
    head_dim: int | None = Field(None, ge=2, multiple_of=2)
    """Width of a head; dim / heads when absent."""
    layers: int | None = Field(None, ge=1)
    """Number of blocks."""
    heads: int | None = Field(None, ge=1)
    """Query heads; dim / heads must be even."""
    kv_heads: int | None = Field(None, ge=1)
    """Key and value heads; must divide heads."""
    ffn_dim: int | None = Field(None, ge=8)
    """Width inside the feed-forward."""
    tied: bool | None = None
    """The head shares the embedding's weights; true when absent, but for 1b and 7b."""
    vocab_size: int | None = Field(None, ge=2)
    """Rows of the embedding; the tokenizer's vocabulary when absent, may be larger."""
    qk_norm: bool = True
    """Normalise queries and keys per head."""
    rope_theta: float = Field(10_000.0, gt=1)
    """Base of the rotary frequencies."""
    norm_eps: float = Field(1e-5, gt=0)
    """Added to the mean square in norms."""
    embedding_std: float | None = Field(None, gt=0)
    """Of the initial embedding; null is 1/sqrt(dim). With `tied: false`, 1 calms small models."""
    z_loss: float = Field(0.0, ge=0)
    """Weight of the squared log-normaliser in what is minimised; 0 is off."""
    experts: ExpertSettings | None = None
    """A mixture of experts in place of each feed-forward; none when absent."""
    mup_base_dim: int | None = Field(None, ge=8)
    """Width that `optimizer.lr` was tuned at: muP fits initial weights and rates to this width."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelSettings:
        sizes = self._sizes()
        if not sizes:  # the model that init_from names has them
            return self
        if missing := [name for name in SIZES if name not in sizes]:
            raise ValueError(
                f"{', '.join(missing)} not set, and no preset. "
                f"Set preset to one of {', '.join(PRESETS)}, or set every dimension."
            )
        dim, heads, kv_heads = sizes["dim"], sizes["heads"], sizes["kv_heads"]
        if self.head_dim is None and (dim % heads or (dim // heads) % 2):
            raise ValueError(
                f"{heads} heads do not cut a width of {dim} into even parts. "
                "Choose heads so that dim / heads is an even whole number, or set head_dim."
            )
        if heads % kv_heads:
            raise ValueError(f"kv_heads {kv_heads} does not divide heads {heads}. Change one.")
        return self

    @property
    def has_sizes(self) -> bool:
        """Whether a preset or dimensions are set; else `init_from` decides the size."""
        return bool(self._sizes())

    def _sizes(self) -> dict[str, int]:
        sizes = dict(zip(SIZES, PRESETS[self.preset], strict=True)) if self.preset else {}
        explicit = {name: getattr(self, name) for name in SIZES}
        return sizes | {name: size for name, size in explicit.items() if size is not None}

    def shape(self, vocab_size: int) -> ModelShape:
        """Resolve preset, overrides and the tokenizer's vocabulary.

        Raises:
            UsageError: the vocabulary that was set is smaller than the tokenizer's.
        """
        if self.vocab_size is not None and self.vocab_size < vocab_size:
            raise UsageError(
                f"model.vocab_size: {self.vocab_size} is less than the tokenizer's {vocab_size}. "
                "Raise it, or leave it out."
            )
        sizes = self._sizes()
        return ModelShape(
            vocab_size=self.vocab_size or vocab_size,
            head_dim=self.head_dim or sizes["dim"] // sizes["heads"],
            tied=self.preset not in UNTIED if self.tied is None else self.tied,
            qk_norm=self.qk_norm,
            rope_theta=self.rope_theta,
            norm_eps=self.norm_eps,
            rope_scaling=None,
            experts=self.experts.shape(sizes["ffn_dim"]) if self.experts else None,
            mup_base_dim=self.mup_base_dim,
            **sizes,
        )


class BatchSettings(Section):
    """How many packed rows make a step, and how many of them a rank takes at once."""

    global_rows: int = Field(ge=1)
    """Packed rows per step over all ranks; the number of ranks must divide it."""
    micro_rows: int = Field(1, ge=1)
    """Rows per forward pass of a rank; fewer need less memory, and give the same result."""


class OptimizerSettings(Section):
    """The update of the weights. Norms and embeddings are not decayed."""

    kind: Literal["adamw", "adamw8bit", "muon", "lion", "schedule_free"] = "adamw"
    """`muon`: orthogonal steps for blocks; `adamw8bit`: moments of one byte; `schedule_free`: AdamW
    that averages its steps; `lion`: signs."""
    lr: float = Field(3e-4, gt=0)
    """Peak learning rate."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment, per step."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the second moment, per step; `lion`: of its average."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """`muon`: decay of the momentum of matrices, per step."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.1, ge=0)
    """Share of a weight removed per step, per unit of learning rate."""
    average_decay: float = Field(0.0, ge=0, lt=1)
    """Keep an exponential average of the weights, for evaluation: share left per step; 0: none."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the whole gradient; 0 turns clipping off."""

    @property
    def averages(self) -> bool:
        """Whether the run keeps an average of the weights, to evaluate and to export."""
        return self.average_decay > 0 or self.kind == "schedule_free"


def moment_block(shape: Sequence[int]) -> int:
    """Return how many numbers of a row share a scale in `adamw8bit`; 0 for moments in float32."""
    block = math.gcd(shape[-1], 256) if len(shape) > 1 else 0
    return block if block >= 16 else 0


class ScheduleSettings(Section):
    """The learning rate over the run, in tokens, so that a change of batch size keeps the curve."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """After warmup: half a cosine; stable, then decay; or no change."""
    warmup_tokens: int | None = Field(None, ge=0)
    """Tokens of linear warmup; `warmup_ratio` of the run when absent."""
    warmup_ratio: float = Field(0.02, ge=0, le=1)
    """Warmup as a share of the run."""
    decay_ratio: float = Field(0.2, ge=0, le=1)
    """`wsd`: the last share of the run, in which the rate falls."""
    decay_tokens: int | None = Field(None, ge=1)
    """`wsd`: the last tokens of the run, instead of `decay_ratio`."""
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """`wsd`: a straight line, or one minus a square root."""
    final_ratio: float = Field(0.1, ge=0, le=1)
    """Last learning rate as a share of the peak."""

    @model_validator(mode="after")
    def _decay_fits_kind(self) -> ScheduleSettings:
        if self.decay_tokens and self.kind != "wsd":
            raise ValueError(
                f"decay_tokens {self.decay_tokens}: {self.kind} has no decay of its own. Set kind "
                "to wsd, or leave decay_tokens out."
            )
        return self

    def warmup(self, total: int) -> int:
        """Return for how many tokens of a run of `total` the rate rises."""
        if self.warmup_tokens is None:
            return round(self.warmup_ratio * total)
        return self.warmup_tokens

    def decay_start(self, total: int) -> int:
        """Return after how many of `total` tokens the rate falls."""
        if self.kind == "constant":
            return total
        decay = self.decay_tokens or round(total * self.decay_ratio)
        return max(self.warmup(total), total - decay if self.kind == "wsd" else 0)

    def require_fit(self, total: int) -> None:
        """Refuse a warmup and a decay that are longer than a run of `total` tokens.

        Raises:
            UsageError: says how long they may be.
        """
        warmup, decay = self.warmup(total), self.decay_tokens or 0
        if warmup > total:
            raise UsageError(
                f"schedule.warmup_tokens: {warmup:,} are more than the run's {total:,} tokens, so "
                f"it never reaches optimizer.lr. Set it to at most {total:,}, or train longer."
            )
        if warmup + decay > total:
            raise UsageError(
                f"schedule.decay_tokens: {decay:,}, and {warmup:,} of warmup, are more than the "
                f"run's {total:,} tokens. Set it to at most {total - warmup:,}, or train longer."
            )


class ParallelSettings(Section):
    """How ranks share a model: `replicas` copies, each sharded, each matrix over `tensor` ranks."""

    replicas: int = Field(1, ge=1)
    """Whole copies of the model (HSDP); 1 is one copy sharded over all ranks (FSDP)."""
    tensor: int = Field(1, ge=1)
    """Ranks that share each matrix (tensor parallel), and the rows between them; within a node."""
    context: int = Field(1, ge=1)
    """Ranks that share the tokens of each row (context parallel), and shard the model."""
    pipeline: int = Field(1, ge=1)
    """Groups of ranks that have consecutive layers each (pipeline parallel); across nodes."""
    pipeline_schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "zbv"] = "1f1b"
    """Order of micro-batches in a pipeline; the last two compute gradients of weights apart."""
    pipeline_chunks: int = Field(2, ge=1)
    """Stages of each rank, with `interleaved` and `zero_bubble`; `zbv` has two, others one."""
    expert: int = Field(1, ge=1)
    """Ranks of a replica that share the experts of each layer (expert parallel)."""
    zero: Literal[1, 2, 3] = 3
    """What is sharded: 1 the optimizer, 2 gradients too, 3 weights too, while a block is idle."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation checkpointing: keep all, keep matrix products and attention, or block inputs."""
    offload: bool = False
    """Keep weights, gradients and optimizer in host memory, and step there (CUDA)."""
    cpu_threads: int = Field(1, ge=1)
    """Threads per process on CPU; more than one pays off for large models on idle cores."""

    def data_ranks(self, ranks: int) -> int:
        """Return how many slices `ranks` ranks cut a step's rows into; some share a slice."""
        return ranks // (self.context * self.tensor * self.pipeline)

    @property
    def chunks(self) -> int:
        """Stages of each rank."""
        if self.pipeline_schedule in LOOPED_SCHEDULES:
            return self.pipeline_chunks
        return 2 if self.pipeline_schedule == "zbv" else 1

    @property
    def splits_backward(self) -> bool:
        """Whether the schedule computes the gradients of weights apart from those of inputs."""
        return self.pipeline > 1 and self.pipeline_schedule in ("zero_bubble", "zbv")


class CheckpointSettings(Section):
    """When checkpoints are written and how many are kept."""

    every_steps: int = Field(1000, ge=1)
    """Steps between checkpoints; the end of the run has one too."""
    every_minutes: float | None = Field(None, gt=0)
    """Also save when this many minutes have passed since the last save, by the clock of rank 0."""
    keep: int = Field(3, ge=1)
    """How many of the newest checkpoints are kept."""
    keep_every_steps: int | None = Field(None, ge=1)
    """Also keep those at multiples of this many steps for good: for anneals, for rolling back."""
    keep_best: int = Field(0, ge=0)
    """Also keep this many with the lowest held-out loss; each evaluation then saves one."""
    background: bool = True
    """Write while training continues."""
    upload: PathText | None = None
    """Copy complete checkpoints to this folder or address, too, while training continues."""

    @field_validator("upload")
    @classmethod
    def _is_an_address(cls, location: str | None) -> str | None:
        try:
            if location is not None:
                is_remote(location)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return location


class GuardSettings(Section):
    """What happens to a step whose loss or gradient norm is not finite, or far above the last ones.

    Such a step is not applied, and its rows and documents are named in events.jsonl.
    """

    sigmas: float = Field(6.0, ge=0)
    """Standard deviations above the window's mean from which a step is a spike; 0 detects none."""
    window: int = Field(128, ge=8)
    """Previous steps to compare with; starts empty with each stage of the mixture."""
    min_steps: int = Field(32, ge=2)
    """Detect spikes once the window has this many steps, or is full."""
    tolerate: int = Field(5, ge=0)
    """Bad steps within the last `window` steps that are skipped before the run goes back."""
    rollbacks: int = Field(0, ge=0)
    """How often it may go back to a checkpoint, and skip the rows of the bad steps from then on."""
    rollback_steps: int = Field(100, ge=0)
    """Go back to the newest checkpoint at least this many steps before the first bad step."""
    skip_before: int = Field(0, ge=0)
    """Steps before the first bad one that are skipped with it."""
    skip_after: int = Field(0, ge=0)
    """Steps after the last bad one that are skipped with it."""

    @property
    def reach(self) -> int:
        """How many steps before the newest checkpoint a rollback may need another one."""
        # Without `tolerate` the first bad step is also the last.
        window = self.window - 1 if self.tolerate else 0
        return self.rollback_steps + window if self.rollbacks else 0

    @model_validator(mode="after")
    def _window_is_long_enough(self) -> GuardSettings:
        if self.tolerate >= self.window:
            raise ValueError(
                f"tolerate {self.tolerate}: a window of {self.window} steps never has more bad "
                "ones. Lower it."
            )
        return self


class EvaluateSettings(Section):
    """Bits per byte on documents that the `holdout` stage set aside, source by source; tasks."""

    every_steps: int = Field(1000, ge=1)
    """Steps between evaluations; the end of the run has one too."""
    max_documents: int = Field(1000, ge=0)
    """Of each source, the first ones of the held-out files; 0 is none."""
    data: PathText | None = None
    """Run directory whose held-out documents are taken; that of the tokens when absent."""
    tasks: dict[str, PathText] = Field(default_factory=dict)
    """Name -> file of questions with choices, or of texts, whose answers are scored."""
    max_items: int = Field(1000, ge=1)
    """Of each task, the first ones of the file."""
    unconditional: bool = False
    """Score choices also without their context: one more accuracy, in twice the time."""

    @field_validator("tasks")
    @classmethod
    def _task_names_name_files(cls, tasks: dict[str, str]) -> dict[str, str]:
        for name in tasks:
            if not is_name(name):
                raise ValueError(
                    f"the task name {name!r} must be of letters, digits, - and _: it names a file. "
                    "Choose another one."
                )
        return tasks


class HealthSettings(Section):
    """What ends a run that hangs, and when it ends itself."""

    hang_seconds: float = Field(1800.0, gt=0, le=1e9)
    """A rank that finishes no phase of a step for this long writes all stacks and ends, code 78."""
    compare_every_steps: int = Field(50, ge=1)
    """Steps between comparisons of the ranks' speeds."""
    stop_after_seconds: float | None = Field(None, gt=0)
    """Save and end after this time, code 75: for jobs with a time limit."""


class AdapterSettings(Section):
    """LoRA by peft (the extra `lora`): `init_from` is frozen, and narrow matrices are trained."""

    rank: int = Field(16, ge=1)
    """Width of the added matrices."""
    alpha: float = Field(32.0, gt=0)
    """What they add is multiplied by alpha / rank."""
    targets: list[Literal["query", "key", "value", "out", "gate", "up", "down"]] = [
        "query", "key", "value", "out", "gate", "up", "down",
    ]  # fmt: skip
    """Matrices of each block that get some."""
    dora: bool = False
    """Train the length of each row as well (DoRA)."""
    quantize: Literal["nf4"] | None = None
    """Keep the frozen matrices of `targets` in four bits a number (QLoRA)."""


class DistillSettings(Section):
    """Learn from a teacher: loss = (1 - weight) cross-entropy + weight temperature^2 KL."""

    teacher: PathText
    """Folder of a Hugging Face model with the same tokenizer."""
    weight: float = Field(0.5, gt=0, le=1)
    """Weight of the divergence of the model's probabilities from the teacher's."""
    temperature: float = Field(1.0, gt=0)
    """Both logits are divided by it, in the divergence."""


class ProfileSettings(Section):
    """Traces by torch.profiler, in OUTPUT/profile. A traced step takes longer."""

    steps: list[NonNegativeInt]
    """Steps to trace, as metrics.jsonl counts them; those after the first few are warm."""
    ranks: list[NonNegativeInt] = [0]
    """Ranks that trace."""
    memory: bool = False
    """Allocations as well; on CUDA also a snapshot for pytorch.org/memory_viz."""


class RemixSettings(Section):
    """Other shares of the sources than those of the plan; `corpuskit mixture search` sets them."""

    rows: int = Field(ge=1)
    """Packed rows of the run."""
    weights: dict[str, Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Source -> integer share of the rows; a source left out gives none."""
    windows: dict[str, tuple[NonNegativeInt, PositiveInt]] = Field(default_factory=dict)
    """Source -> first row, and how many the run may take and repeat; all when left out."""


class TrainSettings(Section):
    """A training file."""

    name: str = "train"
    """Name of the run."""
    data: PathText
    """Run directory of the pipeline that packed the tokens: a folder, or an address (s3://, gs://, az://)."""
    cache_dir: PathText | None = None
    """Folder on this machine for what was read of an address, shared by its ranks."""
    cache_bytes: int = Field(8 << 30, ge=1)
    """Bound on `cache_dir`, over all ranks together."""
    output: PathText
    """Folder for metrics and checkpoints; a run continues from its own."""
    seed: int = Field(0, ge=0, le=(1 << 62) - 1)
    """Seed of the initial weights; the order of the rows has its own, in the plan."""
    order_seed: int | None = Field(None, ge=0, le=(1 << 62) - 1)
    """Take the rows of each source in another random order than the plan's, for repetitions."""
    remix: RemixSettings | None = None
    """Other shares of the sources than those of the plan."""
    model: ModelSettings = ModelSettings(preset="0.5m")
    """The decoder."""
    init_from: PathText | None = None
    """Folder of a Hugging Face model whose weights are trained further; its config is the model."""
    branch_from: PathText | None = None
    """Checkpoint of another output (.../checkpoints/step-N) whose training goes on here."""
    init_tokenizer: Literal["same", "trusted"] = "same"
    """`trusted`: you know that ids of `init_from` and of the packed tokens mean the same."""
    adapter: AdapterSettings | None = None
    """Train low-rank adapters instead of all weights; none when absent."""
    distill: DistillSettings | None = None
    """Learn from a teacher's logits, too; none when absent."""
    batch: BatchSettings
    """Rows per step and per forward pass."""
    steps: int | None = Field(None, ge=1)
    """Optimiser steps; all rows of the plan when neither this nor `tokens` is given."""
    tokens: int | None = Field(None, ge=1)
    """Tokens to train on, rounded up to whole steps."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The update of the weights."""
    schedule: ScheduleSettings = ScheduleSettings()
    """The learning rate."""
    parallel: ParallelSettings = ParallelSettings()
    """How ranks share the model."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When checkpoints are written."""
    guard: GuardSettings = GuardSettings()
    """Spikes, and numbers that are not finite."""
    evaluate: EvaluateSettings | None = None
    """Held-out documents; none when absent."""
    health: HealthSettings = HealthSettings()
    """Hangs and time limits."""
    log_every_steps: int = Field(10, ge=1)
    """Steps between lines of progress; metrics.jsonl has every step."""
    track: list[Literal["tensorboard", "wandb", "mlflow"]] = []
    """Where lines of progress go as figures, too: OUTPUT/tensorboard, Weights & Biases, MLflow."""
    profile: ProfileSettings | None = None
    """Traces of chosen steps; none when absent."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; `auto` takes CUDA where torch finds it."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights in use and of activations; the weights kept are always float32."""
    attention: Literal["auto", "sdpa", "varlen", "flex"] = "auto"
    """Kernel; `auto` takes varlen where it runs (CUDA, bfloat16, Ampere or newer), else sdpa."""
    compile: bool = False
    """Compile each block with torch.compile."""
    float8: bool = False
    """Matrix products of blocks in float8, by torchao (the extra `float8`)."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak of one device in this dtype, for MFU; known GPUs have theirs."""

    @model_validator(mode="after")
    def _keys_agree(self) -> TrainSettings:
        """Refuse keys that contradict each other, and files that lack a necessary one."""
        if self.init_from is None and not self.model.has_sizes:
            raise ValueError(
                f"model: neither preset nor dimensions are set. Set preset to one of "
                f"{', '.join(PRESETS)}, set every dimension, or name a model in init_from."
            )
        if self.branch_from and self.init_from:
            raise ValueError(
                "branch_from and init_from are both set: a branch has the weights of its "
                "checkpoint. Keep one."
            )
        if self.model.mup_base_dim and self.init_from:
            raise ValueError(
                "model.mup_base_dim is of new weights, and init_from names others. Keep one."
            )
        if self.adapter and self.init_from is None:
            raise ValueError("adapter: there is no model to adapt. Name one in init_from.")
        if self.steps is not None and self.tokens is not None:
            raise ValueError(f"steps {self.steps} and tokens {self.tokens} are both set. Keep one.")
        if self.checkpoint.keep_best and not (self.evaluate and self.evaluate.max_documents):
            raise ValueError(
                "checkpoint.keep_best: no held-out documents are evaluated. Set evaluate, with "
                "max_documents above 0, or leave it out."
            )
        if "://" in self.output:
            raise ValueError(
                f"output: {self.output} is an address, and ranks write to a folder that all of them"
                " see. Set a folder, and checkpoint.upload to the address."
            )
        return self

    @model_validator(mode="after")
    def _folders_differ(self) -> TrainSettings:
        """Refuse one folder for two purposes, also where it is written in two ways."""
        locations = {
            "data": self.data, "output": self.output, "checkpoint.upload": self.checkpoint.upload
        }  # fmt: skip
        key_of: dict[Path, str] = {}
        for key, location in locations.items():
            if location is not None and not is_remote(location):
                first_key = key_of.setdefault(Path(location).resolve(), key)
                if first_key != key:
                    raise ValueError(
                        f"{key}: {location} is the folder of {first_key}. Name another one."
                    )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> TrainSettings:
        """Refuse what torch's schedules with a split backward pass cannot do."""
        parallel = self.parallel
        for key, value, required in (
            ("parallel.zero", parallel.zero, 1),
            ("parallel.recompute", parallel.recompute, "none"),
            ("compile", self.compile, False),
        ):
            if parallel.splits_backward and value != required:
                raise ValueError(
                    f"{key} {value} does not work with parallel.pipeline_schedule "
                    f"{parallel.pipeline_schedule}. Set {key} to {required}, or the schedule to "
                    "1f1b."
                )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> TrainSettings:
        optimizer, kind = self.optimizer, self.schedule.kind
        if optimizer.kind == "schedule_free" and kind != "constant":
            raise ValueError(
                f"schedule.kind {kind}: optimizer.kind schedule_free averages its steps instead of "
                "letting the rate fall. Set schedule.kind to constant."
            )
        if optimizer.kind == "schedule_free" and optimizer.average_decay:
            raise ValueError(
                f"optimizer.average_decay {optimizer.average_decay}: schedule_free keeps an "
                "average of its own. Leave average_decay out."
            )
        if optimizer.kind == "adamw8bit" and self.parallel.tensor > 1:
            raise ValueError(
                f"optimizer.kind adamw8bit does not work with parallel.tensor "
                f"{self.parallel.tensor}: its scales are of whole rows. Set parallel.tensor to 1, "
                "or optimizer.kind to adamw."
            )
        return self

    @model_validator(mode="after")
    def _features_fit(self) -> TrainSettings:
        """Refuse features that do not work together yet."""
        parallel, kind = self.parallel, self.optimizer.kind
        split = {"parallel.tensor": parallel.tensor > 1, "parallel.pipeline": parallel.pipeline > 1}
        adapted = {
            "float8": self.float8,
            **split,
            "optimizer.average_decay": self.optimizer.average_decay > 0,
            "optimizer.kind schedule_free": kind == "schedule_free",
        }
        exclusive = {
            **split,
            "model.experts": self.model.experts is not None,
            "optimizer.kind muon": kind == "muon",
            "parallel.zero below 3": parallel.zero < 3,
        }
        for name, is_set, conflicts in (
            ("adapter", self.adapter, adapted),
            ("parallel.offload", parallel.offload, exclusive),
            ("distill", self.distill, split),
        ):
            if is_set and (active := [feature for feature, is_on in conflicts.items() if is_on]):
                raise ValueError(
                    f"{name}: not fitted to {' and '.join(active)}. Leave one of them out."
                )
        return self

    @model_validator(mode="after")
    def _experts_fit(self) -> TrainSettings:
        experts, ranks = self.model.experts, self.parallel.expert
        if ranks > 1 and (experts is None or experts.count % ranks):
            count = experts.count if experts else 0
            raise ValueError(
                f"parallel.expert: {ranks} does not share out model.experts.count {count} evenly. "
                f"Set parallel.expert: {math.gcd(ranks, count) if count else 1}."
            )
        if ranks > 1 and self.parallel.recompute == "selective":
            raise ValueError(
                f"parallel.recompute: selective does not work with parallel.expert: {ranks}. "
                "Set recompute to full or none."
            )
        if experts and self.parallel.tensor > 1:
            raise ValueError(
                "model.experts does not work with parallel.tensor yet. Set parallel.tensor to 1: "
                "FSDP shards the experts, and parallel.expert divides them among ranks."
            )
        return self

    def num_steps(self, seq_len: int) -> int | None:
        """Return the steps to take on rows of `seq_len` tokens; None: as many as there are rows."""
        if self.tokens is None:
            return self.steps
        return -(-self.tokens // (self.batch.global_rows * seq_len))

    def digest(self) -> str:
        """Return the blake2b-128 of the settings, as hex."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=16).hexdigest()


def require_fit(shape: ModelShape, seq_len: int, settings: TrainSettings, ranks: int) -> None:
    """Refuse a model, rows or adapters that `ranks` ranks cannot share out.

    Raises:
        UsageError: says which setting would work.
    """
    require_tensor(shape, seq_len, settings.parallel.tensor)
    require_context(seq_len, settings.parallel)
    require_pipeline(shape, settings, ranks)
    _require_nf4_rows(shape, settings.adapter)


def require_smooth_branch(
    settings: TrainSettings, total: int, done: int, trunk: Mapping[str, Any]
) -> None:
    """Refuse a schedule by which the rate would jump where the branch begins.

    It jumps if the rate begins to fall before the branch does, unless it fell alike in the trunk.

    Args:
        settings: of the branch.
        total: tokens of its run, those of the trunk included.
        done: how many of these come before the branch.
        trunk: settings of the trunk, as a checkpoint has them.

    Raises:
        UsageError: says how long the decay may be.
    """
    schedule, branch = settings.schedule, settings.model_dump(mode="json")
    start = schedule.decay_start(total)
    is_same = all(branch[key] == trunk[key] for key in ("schedule", "steps", "tokens"))
    are_cosine = schedule.kind == trunk["schedule"]["kind"] == "cosine"
    if start >= done or is_same or are_cosine:
        return
    key = "decay_tokens" if schedule.decay_tokens else "decay_ratio"
    raise UsageError(
        f"schedule.{key if schedule.kind == 'wsd' else 'kind'}: the rate falls after {start:,} of "
        f"{total:,} tokens, and the branch begins after {done:,}: it would jump. Set kind to wsd "
        f"and decay_tokens to at most {total - done:,}, or branch from an earlier checkpoint."
    )


def require_ranks(settings: ParallelSettings, ranks: int) -> None:
    """Refuse a number of ranks that the mesh does not divide.

    Raises:
        UsageError: names the product.
    """
    names = ("replicas", "context", "tensor", "pipeline", "expert")
    sizes = {name: getattr(settings, name) for name in names}
    factors = [f"parallel.{name}: {size}" for name, size in sizes.items() if size > 1]
    product = math.prod(sizes.values())
    if ranks % product:
        raise UsageError(
            f"{' times '.join(factors)} does not divide the {ranks} ranks. Change it, or start "
            f"{_round_up(ranks, product)} ranks."
        )


def require_pipeline(shape: ModelShape, settings: TrainSettings, ranks: int) -> None:
    """Refuse a model or a batch that a pipeline of these `ranks` cannot share out.

    Raises:
        UsageError: with the smallest change that would do.
    """
    parallel, batch = settings.parallel, settings.batch
    size, stages = parallel.pipeline, parallel.pipeline * parallel.chunks
    if size == 1:
        return
    if shape.layers < stages:
        fewer = shape.layers // parallel.chunks
        raise UsageError(
            f"parallel.pipeline: {size} ({parallel.pipeline_schedule}) needs {stages} layers, and "
            f"the model has {shape.layers}. Set parallel.pipeline: {max(fewer, 1)}."
        )
    if shape.tied:
        raise UsageError(
            f"parallel.pipeline: {size} puts embedding and head on different ranks, and "
            "model.tied makes them one. Set model.tied: false, or parallel.pipeline: 1."
        )
    data_ranks = parallel.data_ranks(ranks)
    rows = batch.global_rows // data_ranks
    is_looped = parallel.pipeline_schedule in LOOPED_SCHEDULES

    def fits(micro_rows: int) -> bool:
        number, remainder = divmod(rows, micro_rows)
        return not remainder and number >= size and not (is_looped and number % size)

    if fits(batch.micro_rows):
        return
    fitting = next((number for number in range(batch.micro_rows, 0, -1) if fits(number)), None)
    unit = batch.micro_rows * data_ranks * size
    raise UsageError(
        f"batch.micro_rows: {batch.micro_rows} does not cut the {rows} rows of a rank into "
        f"{'a multiple of ' * is_looped}{size} {'' if is_looped else 'or more '}equal "
        f"micro-batches, as parallel.pipeline: {size} ({parallel.pipeline_schedule}) needs. "
        + (
            f"Set batch.micro_rows: {fitting}."
            if fitting
            else f"Set batch.global_rows: {_round_up(batch.global_rows, unit)}."
        )
    )


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage of a pipeline: its layers, and the rank of the pipeline that has it."""

    index: int
    layers: range
    rank: int
    is_first: bool  # has the embedding, too
    is_last: bool  # has norm and head, too


def stage_spans(layers: int, parallel: ParallelSettings) -> list[StageSpan]:
    """Return the stages of a pipeline.

    Where the stages cannot have equally many layers, the first ones have one more, since the last
    one has the head. Stages go to ranks in turn; those of `zbv` go there and back.
    """
    size, num = parallel.pipeline, parallel.pipeline * parallel.chunks
    base, remainder = divmod(layers, num)
    spans = []
    for index in range(num):
        first = index * base + min(index, remainder)
        rank = index % size
        if parallel.pipeline_schedule == "zbv" and index >= size:
            rank = 2 * size - 1 - index
        layers_of_stage = range(first, first + base + (index < remainder))
        spans.append(StageSpan(index, layers_of_stage, rank, index == 0, index == num - 1))
    return spans


def _require_nf4_rows(shape: ModelShape, adapter: AdapterSettings | None) -> None:
    """Refuse four bits for matrices whose rows are not whole blocks.

    Raises:
        UsageError: names each of them.
    """
    if adapter is None or adapter.quantize is None:
        return
    inner = shape.experts.shared * shape.experts.ffn_dim if shape.experts else shape.ffn_dim
    widths = {"out": shape.heads * shape.head_dim, "down": inner}
    targets = {name: widths.get(name, shape.dim) for name in adapter.targets}
    uneven = [f"{width} ({name})" for name, width in targets.items() if width % NF4_BLOCK]
    if uneven:
        raise UsageError(
            f"adapter.quantize: nf4 takes rows of multiples of {NF4_BLOCK} numbers, not "
            f"{', '.join(uneven)}. Leave these out of adapter.targets, or leave quantize out."
        )


def require_tensor(shape: ModelShape, seq_len: int, tensor: int) -> None:
    """Refuse sizes that `tensor` ranks cannot divide equally.

    Raises:
        UsageError: names each, and the next size that would do.
    """
    kv_heads = _round_up(shape.kv_heads, tensor)
    required = {
        "model.heads": (shape.heads, _round_up(shape.heads, kv_heads)),
        "model.kv_heads": (shape.kv_heads, kv_heads),
        "model.ffn_dim": (shape.ffn_dim, _round_up(shape.ffn_dim, tensor)),
        "model.vocab_size": (shape.vocab_size, _round_up(shape.vocab_size, tensor)),
        "seq_len of the packed rows": (seq_len, _round_up(seq_len, tensor)),
    }
    uneven = {key: sizes for key, sizes in required.items() if sizes[0] % tensor}
    if uneven:
        raise UsageError(
            f"parallel.tensor: {tensor} does not divide "
            f"{', '.join(f'{key} {size}' for key, (size, _) in uneven.items())}. Change it, or set "
            f"{', '.join(f'{key} {next_size}' for key, (_, next_size) in uneven.items())}."
        )


def require_context(seq_len: int, parallel: ParallelSettings) -> None:
    """Refuse rows that `parallel.context` times `parallel.tensor` ranks cannot share evenly.

    Raises:
        UsageError: with the largest size that would do, and the next length of rows.
    """

    def unit(size: int) -> int:
        return 1 if size == 1 else size * math.lcm(2, parallel.tensor)

    size, multiple = parallel.context, unit(parallel.context)
    if seq_len % multiple:
        fitting = next(n for n in range(size - 1, 0, -1) if not (size % n or seq_len % unit(n)))
        raise UsageError(
            f"parallel.context: {size} needs packed rows of a multiple of {multiple} tokens (two "
            f"pieces for each rank), and they have {seq_len}. Set parallel.context: {fitting}, or "
            f"pack rows of {_round_up(seq_len, multiple)}."
        )


def _round_up(size: int, factor: int) -> int:
    return math.ceil(size / factor) * factor
