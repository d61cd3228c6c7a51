"""The settings of a training run. Every field is a key of the training YAML file."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from corpuskit.errors import UsageError
from corpuskit.paths import PathText


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3.1 and later stretch rotary positions: slow frequencies more than fast ones."""

    factor: float
    low_freq_factor: float  # turns within original_length; with fewer, `factor` slower
    high_freq_factor: float  # with more, as they were
    original_length: int  # tokens of the longest text before


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides which parameters a model has and what it computes; kept in checkpoints."""

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


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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
    z_loss: float = Field(0.0, ge=0)
    """Weight of the squared log-normaliser in what is minimised; 0 is off."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> ModelSettings:
        sizes = self._sizes()
        if not sizes:  # of the model that init_from names
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
        """Whether this says how large the model is; else `init_from` does."""
        return bool(self._sizes())

    def _sizes(self) -> dict[str, int]:
        sizes = dict(zip(SIZES, PRESETS[self.preset], strict=True)) if self.preset else {}
        given = {name: getattr(self, name) for name in SIZES}
        return sizes | {name: size for name, size in given.items() if size is not None}

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
            **sizes,
        )


class BatchSettings(Section):
    """How many packed rows make a step, and how many of them a rank takes at once."""

    global_rows: int = Field(ge=1)
    """Packed rows per step over all ranks; the number of ranks must divide it."""
    micro_rows: int = Field(1, ge=1)
    """Rows per forward pass of a rank; fewer need less memory, and give the same result."""


class OptimizerSettings(Section):
    """AdamW. Norms and embeddings are not decayed."""

    lr: float = Field(3e-4, gt=0)
    """Peak learning rate."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment, per step."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the second moment, per step."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.1, ge=0)
    """Share of a weight that leaves per step, per unit of learning rate."""
    clip_norm: float = Field(1.0, ge=0)
    """Largest norm of the whole gradient; 0 is no clipping."""


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
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """`wsd`: a straight line, or one minus a square root."""
    final_ratio: float = Field(0.1, ge=0, le=1)
    """Last learning rate as a share of the peak."""


class ParallelSettings(Section):
    """How ranks share a model: `replicas` copies, each sharded, each matrix over `tensor` ranks."""

    replicas: int = Field(1, ge=1)
    """Whole copies of the model (HSDP); 1 is one copy sharded over all ranks (FSDP)."""
    tensor: int = Field(1, ge=1)
    """Ranks that share each matrix (tensor parallel), and the rows between them; within a node."""
    zero: Literal[1, 2, 3] = 3
    """What is sharded: 1 optimizer, 2 and gradients, 3 and weights, between a block's uses."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation checkpointing: keep all, keep matrix products and attention, or block inputs."""
    cpu_threads: int = Field(1, ge=1)
    """Threads per process on CPU; more than one pays off for large models on idle cores."""


class CheckpointSettings(Section):
    """When checkpoints are written and how many are kept."""

    every_steps: int = Field(1000, ge=1)
    """Steps between checkpoints; the end of the run has one too."""
    keep: int = Field(3, ge=1)
    """How many of the newest checkpoints are kept."""
    keep_every_steps: int | None = Field(None, ge=1)
    """Also keep those at multiples of this many steps for good: for anneals, for rolling back."""
    background: bool = True
    """Write while training continues."""


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
    """How often it may go back to a checkpoint and take rows out of the plan of `data`, for all."""
    rollback_steps: int = Field(100, ge=0)
    """Go back to the newest checkpoint at least this many steps before the first bad step."""
    skip_before: int = Field(0, ge=0)
    """Steps before the first bad one that are skipped with it."""
    skip_after: int = Field(0, ge=0)
    """Steps after the last bad one that are skipped with it."""

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
    """Score choices without their context, too: an accuracy more, for twice the time."""


class HealthSettings(Section):
    """What ends a run that hangs, and when it ends itself."""

    hang_seconds: float = Field(1800.0, gt=0)
    """A rank that finishes no phase of a step for this long writes all stacks and ends, code 78."""
    compare_every_steps: int = Field(50, ge=1)
    """Steps between comparisons of the ranks' speeds."""
    stop_after_seconds: float | None = Field(None, gt=0)
    """Save and end after this time, code 75: for jobs with a time limit."""


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
    seed: int = Field(0, ge=0)
    """Seed of the initial weights; the order of the rows has its own, in the plan."""
    order_seed: int | None = Field(None, ge=0)
    """Take the rows of each source in another random order than the plan's, for repetitions."""
    remix: RemixSettings | None = None
    """Other shares of the sources than those of the plan."""
    model: ModelSettings = ModelSettings(preset="0.5m")
    """The decoder."""
    init_from: PathText | None = None
    """Folder of a Hugging Face model whose weights are trained further; its config is the model."""
    init_tokenizer: Literal["same", "trusted"] = "same"
    """`trusted`: you know that ids of `init_from` and of the packed tokens mean the same."""
    batch: BatchSettings
    """Rows per step and per forward pass."""
    steps: int | None = Field(None, ge=1)
    """Optimiser steps; all rows of the plan when neither this nor `tokens` is given."""
    tokens: int | None = Field(None, ge=1)
    """Tokens to train on, rounded up to whole steps."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """AdamW."""
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
    def _has_a_model(self) -> TrainSettings:
        if self.init_from is None and not self.model.has_sizes:
            raise ValueError(
                f"model: neither preset nor dimensions are set. Set preset to one of "
                f"{', '.join(PRESETS)}, set every dimension, or name a model in init_from."
            )
        return self

    @model_validator(mode="after")
    def _rollbacks_edit_the_plan(self) -> TrainSettings:
        changed = [key for key in ("order_seed", "remix") if getattr(self, key) is not None]
        if changed and self.guard.rollbacks:
            raise ValueError(
                f"{changed[0]}: a rollback takes rows out of the plan of `data`, whose order this "
                f"is not. Set guard.rollbacks to 0, or leave {changed[0]} out."
            )
        return self

    @model_validator(mode="after")
    def _one_length(self) -> TrainSettings:
        if self.steps is not None and self.tokens is not None:
            raise ValueError(f"steps {self.steps} and tokens {self.tokens} are both set. Keep one.")
        return self

    def digest(self) -> str:
        """Return the blake2b-128 of the settings, as hex."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=16).hexdigest()


def require_even_shares(shape: ModelShape, seq_len: int, tensor: int) -> None:
    """Refuse sizes of which `tensor` ranks cannot have equal shares.

    Raises:
        UsageError: names each, and the next size that would do.
    """
    kv_heads = _next(shape.kv_heads, tensor)
    required = {
        "model.heads": (shape.heads, _next(shape.heads, kv_heads)),
        "model.kv_heads": (shape.kv_heads, kv_heads),
        "model.ffn_dim": (shape.ffn_dim, _next(shape.ffn_dim, tensor)),
        "model.vocab_size": (shape.vocab_size, _next(shape.vocab_size, tensor)),
        "seq_len of the packed rows": (seq_len, _next(seq_len, tensor)),
    }
    uneven = {key: sizes for key, sizes in required.items() if sizes[0] % tensor}
    if uneven:
        raise UsageError(
            f"parallel.tensor: {tensor} does not divide "
            f"{', '.join(f'{key} {size}' for key, (size, _) in uneven.items())}. Change it, or set "
            f"{', '.join(f'{key} {good}' for key, (_, good) in uneven.items())}."
        )


def _next(size: int, factor: int) -> int:
    return math.ceil(size / factor) * factor
