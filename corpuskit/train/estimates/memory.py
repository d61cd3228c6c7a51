"""How much memory a rank needs, part by part, without torch.

A step is followed through the moments at which most is alive: the loss (logits!), the backward pass
of the last block and of the first, the gradient of embedding and head, and the optimizer's update.
Every tensor that the program keeps at these moments is counted: the formulas are held against
counts of real models by the tests, and against whole processes by `benchmarks/train_memory.py`.
Not counted: what an allocator loses between tensors, libraries, and NCCL's buffers.

Letters: C width, A = heads * head_dim, K = kv_heads * head_dim, F feed-forward width, V vocabulary,
L tokens of a row, `t` ranks that share matrices, `b` bytes of a number in use.

Source: V. Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv
2205.05198), section 4, for the way of counting; what is kept follows this project's model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.train.settings import ModelShape, TrainSettings

Part = Literal[
    "weights", "optimizer", "gradients", "gathered weights", "reduction", "activations", "mask",
    "logits", "working", "checkpoint",
]  # fmt: skip

FLOAT = 4
"""Bytes of a number of what is kept: weights, moments and gradients are float32."""


class Matrix(NamedTuple):
    """A parameter: rows and columns over all ranks, and which of them tensor parallelism cuts."""

    where: Literal["embedding", "block", "head"]  # the final norm counts as of the head
    rows: int
    columns: int
    cut: Literal["rows", "columns", "none"]

    def local(self, tensor: int, shards: int = 1) -> int:
        """Return the numbers that a rank has of it: the first one, which has most."""
        rows, columns = self.rows, self.columns
        if self.cut == "rows":
            rows //= tensor
        elif self.cut == "columns":
            columns //= tensor
        return math.ceil(rows / shards) * columns


def matrices(shape: ModelShape) -> Iterator[Matrix]:
    """Yield all parameters; of the blocks, those of one."""
    attention, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Matrix("embedding", shape.vocab_size, shape.dim, "rows")
    for rows in (attention, kv, kv, shape.ffn_dim, shape.ffn_dim):
        yield Matrix("block", rows, shape.dim, "rows")
    for columns in (attention, shape.ffn_dim):
        yield Matrix("block", shape.dim, columns, "columns")
    norms = (shape.dim, shape.dim, *((shape.head_dim,) * 2 if shape.qk_norm else ()))
    for size in norms:
        yield Matrix("block", size, 1, "none")
    yield Matrix("head", shape.dim, 1, "none")
    if not shape.tied:
        yield Matrix("head", shape.vocab_size, shape.dim, "rows")


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters a model has, over all ranks."""

    embedding: int
    blocks: int
    head: int  # with the norm before it; the norm alone if the head reads the embedding's weight

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.blocks + self.head

    @property
    def non_embedding(self) -> int:
        """Those outside the embedding and a head of its own; names of presets count these."""
        return self.blocks


def count_parameters(shape: ModelShape) -> Parameters:
    """Count the parameters of a model."""
    sums = dict.fromkeys(("embedding", "block", "head"), 0)
    for one in matrices(shape):
        sums[one.where] += one.local(1)
    return Parameters(sums["embedding"], shape.layers * sums["block"], sums["head"])


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank does: everything that decides its memory but the model's shape."""

    rows: int  # of a micro-batch
    seq_len: int
    shards: int  # ranks over which weights, gradients and optimizer are cut
    tensor: int
    zero: int
    recompute: str
    item_bytes: int  # of a number in use: 4 or 2
    kernel: str  # sdpa, varlen or flex
    is_cuda: bool
    is_wrapped: bool  # by FSDP; a rank alone is not, in float32
    accumulates: bool  # gradients over several micro-batches
    z_loss: bool
    copies_state: bool  # for checkpoints written in the background, in the same memory

    @property
    def tokens(self) -> int:
        """Of a micro-batch; ranks that share matrices have the same ones."""
        return self.rows * self.seq_len


def plan_work(
    shape: ModelShape, settings: TrainSettings, *, seq_len: int, ranks: int, is_cuda: bool
) -> Work:
    """Say what each of `ranks` ranks does, which the settings have been found to fit."""
    parallel = settings.parallel
    data_ranks = ranks // parallel.tensor
    rank_rows = settings.batch.global_rows // data_ranks
    rows = min(settings.batch.micro_rows, rank_rows)
    kernel = settings.attention
    if kernel == "auto":
        kernel = "varlen" if is_cuda and settings.dtype == "bfloat16" else "sdpa"
    return Work(
        rows=rows,
        seq_len=seq_len,
        shards=data_ranks // parallel.replicas,
        tensor=parallel.tensor,
        zero=parallel.zero,
        recompute=parallel.recompute,
        item_bytes=2 if settings.dtype == "bfloat16" else 4,
        kernel=kernel,
        is_cuda=is_cuda,
        is_wrapped=ranks > 1 or settings.dtype != "float32",
        accumulates=rank_rows > rows,
        z_loss=settings.model.z_loss > 0,
        copies_state=settings.checkpoint.background and not is_cuda,
    )


@dataclass(frozen=True, slots=True)
class Moment:
    """What is alive at one moment of a step, in bytes."""

    name: str
    parts: dict[Part, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())


def step_moments(shape: ModelShape, work: Work) -> list[Moment]:
    """Return the moments of a step at which a rank may need most, in their order."""
    sizes = _count(shape, work)
    layers, tokens, local = shape.layers, work.tokens, float(FLOAT * sizes.local)
    kept = _block_bytes(shape, work, work.recompute) * tokens
    again = _block_bytes(shape, work, "none") * tokens - kept  # what a block computes anew
    outside = _outside_bytes(shape, work) * tokens
    mask = float(tokens * work.seq_len) if work.kernel == "sdpa" else 0.0
    logits, log_softmax = _logit_bytes(shape, work)
    table = float(work.item_bytes * shape.vocab_size * shape.dim / work.tensor)
    always: dict[Part, float] = {"weights": local, "optimizer": 2 * local}
    if work.copies_state:
        always["checkpoint"] = 3 * local

    def moment(name: str, left: int, done: int, parts: dict[Part, float]) -> Moment:
        """Add to `parts` what `left` blocks keep, and the gradients of `done` blocks."""
        more: dict[Part, float] = {
            "activations": left * kept + outside,
            "mask": mask,
            "gradients": sizes.gradients(work, done),
            "gathered weights": sizes.gathered(work, left),
        }
        return Moment(name, always | more | parts)

    moments = [
        moment("forward pass", layers, 0, {"logits": logits}),
        moment("loss", layers, 0, {"logits": log_softmax}),
        moment("head", layers, 0, {"logits": logits / 2 + table}),
    ]
    middle = again + _working_bytes(shape, work) * tokens
    made = work.item_bytes * shape.ffn_dim * shape.dim / work.tensor
    # What was sent of a block's gradients is kept until the next block's are.
    sent = float(FLOAT * sizes.block) if work.is_wrapped and work.shards > 1 else 0.0
    for name, done in (("last block", 0), ("first block", layers - 1)):
        left = layers - done
        inside: dict[Part, float] = {
            "working": middle,
            "reduction": table + made + (sent if done else 0),
            "gathered weights": sizes.gathered(work, left, in_block=True),
        }
        ending: dict[Part, float] = {"reduction": table + sizes.reduction(work, sizes.block)}
        moments.append(moment(name, left, done, inside))
        moments.append(moment(f"{name}'s gradients", left - 1, done, ending))
    # Of the head, of the embedding, and their sum.
    table *= 3 if shape.tied else 2
    moments.append(moment("embedding", 0, layers, {"reduction": table + sent}))
    over: dict[Part, float] = dict.fromkeys(("activations", "mask", "gathered weights"), 0.0)
    root: dict[Part, float] = {"reduction": sizes.reduction(work, sizes.root)}
    moments.append(moment("embedding's gradients", 0, layers, over | root))
    moments.append(moment("update", 0, layers, {**over, "gradients": local}))
    return moments


class _Counts(NamedTuple):
    """Numbers of parameters on a rank."""

    local: int  # cut over shards and over ranks that share matrices
    root: int  # embedding, norm and head; and a block: cut over the latter only
    block: int
    layers: int

    def gathered(self, work: Work, left: int, *, in_block: bool = False) -> float:
        """Return the bytes of whole weights while `left` blocks have their backward pass to come.

        Those of embedding and head stay from forward to the end of backward. With `zero: 3` a block
        has its own while it is in use, and among several ranks another one's are on the way.
        """
        if not work.is_wrapped:
            return 0.0
        if work.zero == 3:
            left = min(left, in_block + (work.shards > 1))
        return float(work.item_bytes * (self.root + left * self.block))

    def gradients(self, work: Work, done: int) -> float:
        """Return the bytes of gradients that are ready when `done` blocks are."""
        if work.accumulates:
            whole = self.root + self.layers * self.block
            is_whole = work.is_wrapped and work.zero == 1
            return float(FLOAT * (whole if is_whole else self.local))
        return FLOAT * done * self.block / work.shards

    def reduction(self, work: Work, numbers: int) -> float:
        """Return the bytes of gradients as they were made and on their way over the ranks."""
        if not work.is_wrapped:
            return float(FLOAT * numbers)
        made = work.item_bytes * (1 if work.is_cuda else 2)  # on CPU, laid out anew first
        # One rank divides by one instead of sending, into another copy.
        sent = FLOAT if work.shards > 1 else 2 * FLOAT
        return float(numbers * max(made + FLOAT, sent + FLOAT / work.shards))


def _count(shape: ModelShape, work: Work) -> _Counts:
    local = root = block = 0
    for one in matrices(shape):
        here, share = one.local(work.tensor), one.local(work.tensor, work.shards)
        times = shape.layers if one.where == "block" else 1
        local += times * share
        if one.where == "block":
            block += here
        else:
            root += here
    return _Counts(local, root, block, shape.layers)


def _norm_bytes(work: Work, width: float, vectors: float) -> float:
    """Return what the backward pass of a norm keeps of each token, but for its weight."""
    if work.is_cuda:  # one kernel: its input, and the scale of each vector
        return work.item_bytes * width + FLOAT * vectors
    return 2 * FLOAT * width + FLOAT * vectors  # input and normalised, in float32


def _block_bytes(shape: ModelShape, work: Work, recompute: str) -> float:
    """Return what a block keeps of each token for its backward pass."""
    t, b = work.tensor, work.item_bytes
    stream = b * shape.dim / t
    if recompute == "full":
        return stream
    heads, kv_heads = shape.heads / t, shape.kv_heads / t
    a, k, f = heads * shape.head_dim, kv_heads * shape.head_dim, shape.ffn_dim / t
    attended = b * a + FLOAT * heads  # what attention gave, and its log-normaliser
    if recompute == "selective":
        return stream + b * (a + 2 * k + 2 * f + 2 * shape.dim) + attended
    norms = 2 * _norm_bytes(work, shape.dim / t, 1 / t)
    if shape.qk_norm:
        norms += _norm_bytes(work, a, heads) + _norm_bytes(work, k, kv_heads)
    # What products read: of attention and feed-forward all tokens, gathered.
    mask = b * work.seq_len if work.kernel == "sdpa" else 0  # as numbers, anew in each block
    return norms + b * (2 * shape.dim + a + 2 * k + 4 * f) + attended + mask


def _outside_bytes(shape: ModelShape, work: Work) -> float:
    """Return what is kept of each token outside blocks: the last norm, ids, labels, rotations."""
    norm = _norm_bytes(work, shape.dim / work.tensor, 1 / work.tensor)
    return norm + work.item_bytes * shape.dim + 16 + 8 + FLOAT * shape.head_dim


def _logit_bytes(shape: ModelShape, work: Work) -> tuple[float, float]:
    """Return the most that logits and what is made of them take: in forward, and in backward.

    They are computed with in float32. A rank has V / t of them.
    """
    size = float(FLOAT * work.tokens * shape.vocab_size / work.tensor)
    if work.tensor > 1:  # cross-entropy of our own, beside logits as the head gave them
        return (3.5 if work.item_bytes == 2 else 3) * size, 2 * size
    # log_softmax keeps its result, and gets and gives a gradient; the z-loss does so, too.
    return 2 * size, (5 if work.z_loss else 3) * size


def _working_bytes(shape: ModelShape, work: Work) -> float:
    """Return what the backward pass of a block makes of each token and drops again, at its most.

    The gradients of gate and up are made while what they came from is still there.
    """
    return work.item_bytes * (2 * shape.ffn_dim / work.tensor + shape.dim)
