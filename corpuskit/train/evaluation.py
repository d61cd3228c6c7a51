"""The loss on held-out documents, source by source, in nats per token and bits per byte.

Bits per byte is the measure to compare by: it does not depend on the tokenizer, nor on how long its
tokens are. Letters: R rows of a forward pass, S rows of a window, L tokens per row, K sources.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from corpuskit.kernels.packing import best_fit
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.attention import choose_kernel
from corpuskit.train.metrics import source_losses
from corpuskit.train.model import make_micro_batch, token_losses
from corpuskit.train.parallel import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from corpuskit.train.metrics import SourceLoss
    from corpuskit.train.model import Decoder, MicroBatch
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

# Documents are packed together until they have this many tokens: 24 MB of rows, or more if one
# document is longer.
WINDOW_TOKENS = 1 << 20


class EvaluationDocument(Protocol):
    """A document as the run packs it."""

    @property
    def tokens(self) -> NDArray[np.integer]:
        """Its token ids, with those that begin and end documents in the run."""

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of text after its first token: what its predicted tokens spell."""


class HeldOut(Protocol):
    """Held-out documents."""

    @property
    def source_names(self) -> tuple[str, ...]:
        """The sources that have some; the same on every rank."""

    def documents(self, source: str, rank: int, ranks: int) -> Iterator[EvaluationDocument]:
        """Yield every `ranks`-th document of a source, from the one with number `rank` on."""


class HeldOutRows(NamedTuple):
    """Packed pieces of documents; all pieces in a row are of one source.

    Attributes:
        tokens, labels: (S, L); a label is the next token of the document, or `IGNORED`.
        positions: (S, L), counting from 0 at the first token of each piece.
        sources: (S,) number of each row's source.
        pieces: (P, 3) row, begin and end of each piece, in the order of the documents.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64]
    sources: NDArray[np.int64]
    pieces: NDArray[np.int64]


def evaluate(
    model: Decoder,
    settings: TrainSettings,
    parallel: Parallel,
    held_out: HeldOut,
    seq_len: int,
    beat: Callable[[], None] = lambda: None,
) -> dict[str, SourceLoss]:
    """Return the mean loss on each source's held-out documents.

    Every token but the first of a document is predicted once, from what precedes it in the document
    and in its row: a document of more than `seq_len + 1` tokens is cut, and the first tokens of a
    further piece are predicted from few. Neither packing nor the number of ranks changes what is
    computed, but for the order in which floating-point numbers are added.

    Collective: all ranks call it at the same step, take as many forward passes, and get the same
    answer. It leaves weights, gradients, the optimizer and random numbers alone. Host memory: see
    `WINDOW_TOKENS`; device memory: less than a training step's.

    Args:
        model: as `build_model` returns it, or plain on one rank.
        settings: whose micro-batch, dtype and attention kernel are used.
        parallel: this rank.
        held_out: the same documents on every rank.
        seq_len: L.
        beat: called now and then, as a sign of life.
    """
    names = held_out.source_names
    sums = np.zeros((3, len(names)))  # nats, predicted tokens, bytes

    def stream() -> Iterator[tuple[int, NDArray[np.integer]]]:
        for number, name in enumerate(names):
            for document in held_out.documents(name, parallel.data_rank, parallel.data_ranks):
                beat()
                sums[2, number] += document.text_bytes
                yield number, document.tokens

    for rows, losses in losses_of(model, settings, parallel, stream(), seq_len, beat):
        np.add.at(sums[0], rows.sources, losses.sum(1))
        np.add.at(sums[1], rows.sources, (rows.labels != IGNORED).sum(1))
    totals = parallel.sum(torch.from_numpy(sums).to(parallel.device)).tolist()
    return source_losses(names, *totals)


def losses_of(
    model: Decoder,
    settings: TrainSettings,
    parallel: Parallel,
    documents: Iterator[tuple[int, NDArray[np.integer]]],
    seq_len: int,
    beat: Callable[[], None],
) -> Iterator[tuple[HeldOutRows, NDArray[np.float64]]]:
    """Yield the packed rows of this rank's documents with the (S, L) loss of each token, in nats.

    Collective; ends on all ranks at once.

    Args:
        documents: each with the number of its source; see `pack`.
    """
    with _evaluation_mode(model):
        while True:
            rows = pack(_window(documents), seq_len)
            losses = _row_losses(model, settings, parallel, rows, beat)
            if losses is None:
                return
            yield rows, losses


@contextlib.contextmanager
def _evaluation_mode(model: Decoder) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
        # A forward pass without a backward one leaves weights gathered: a later load or optimizer
        # step would not reach them.
        for root in model.stages or (model,):
            for module in root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def pack(documents: list[tuple[int, NDArray[np.integer]]], seq_len: int) -> HeldOutRows:
    """Pack documents, each given with the number of its source, into rows of `seq_len` inputs.

    Pieces of a long document overlap by one token, which is the last label of one and the first
    input of the next. A document of fewer than two tokens predicts nothing and is left out.
    """
    sources: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    row_pieces: list[tuple[int, NDArray[np.integer]]] = []  # (row, inputs and last label)
    num_rows = 0
    for source, group in itertools.groupby(documents, key=lambda document: document[0]):
        pieces = [
            tokens[begin : begin + seq_len + 1]
            for _, tokens in group
            for begin in range(0, len(tokens) - 1, seq_len)
        ]
        if pieces:
            lengths = np.array([len(piece) - 1 for piece in pieces])
            bins, count = best_fit(lengths, seq_len)
            row_pieces += zip((bins + num_rows).tolist(), pieces, strict=True)
            sources.append(np.full(count, source))
            num_rows += count
    tokens, labels, positions = _masked(num_rows, seq_len)
    ends = np.zeros(num_rows, np.int64)
    bounds = np.zeros((len(row_pieces), 3), np.int64)
    for number, (row, piece) in enumerate(row_pieces):
        begin, end = ends[row], ends[row] + len(piece) - 1
        tokens[row, begin:end], labels[row, begin:end] = piece[:-1], piece[1:]
        positions[row, begin:end] = np.arange(end - begin)
        positions[row, end:] = np.arange(seq_len - end)  # padding is a piece of its own
        ends[row] = end
        bounds[number] = row, begin, end
    return HeldOutRows(tokens, labels, positions, np.concatenate(sources), bounds)


def _masked(num_rows: int, seq_len: int) -> tuple[NDArray[np.int64], ...]:
    shape = (num_rows, seq_len)
    positions = np.tile(np.arange(seq_len), (num_rows, 1))
    return np.zeros(shape, np.int64), np.full(shape, IGNORED), positions


def _window(
    documents: Iterator[tuple[int, NDArray[np.integer]]],
) -> list[tuple[int, NDArray[np.integer]]]:
    """Take the next documents, but those without a token to predict; none at the end."""
    documents_taken: list[tuple[int, NDArray[np.integer]]] = []
    num_tokens = 0
    for source, tokens in documents:
        if len(tokens) < 2:
            continue
        documents_taken.append((source, tokens))
        num_tokens += len(tokens)
        if num_tokens >= WINDOW_TOKENS:
            break
    return documents_taken


@torch.no_grad()
def _row_losses(
    model: Decoder,
    settings: TrainSettings,
    parallel: Parallel,
    rows: HeldOutRows,
    beat: Callable[[], None],
) -> NDArray[np.float64] | None:
    """Return the (S, L) loss of each token, in nats, 0 where ignored; None if no rank has rows.

    Collective: gathering the weights takes every rank, so ranks take as many forward passes as the
    one with the most rows. All are of the training's shape, and those beyond the rows are masked.
    """
    device, micro_rows = parallel.device, settings.batch.micro_rows
    counts = torch.tensor(-(-len(rows.sources) // micro_rows), device=device)
    dist.all_reduce(counts, dist.ReduceOp.MAX, parallel.data_group)
    if not (num_passes := int(counts)):
        return None
    kernel = choose_kernel(device, DTYPES[settings.dtype], settings.attention)
    seq_len = rows.tokens.shape[1]

    def fill(values: NDArray[np.int64], first: int, masked: NDArray[np.int64]) -> NDArray[np.int64]:
        part = values[first : first + micro_rows]
        return np.concatenate((part, masked[len(part) :]))

    masked = _masked(micro_rows, seq_len)

    def make(first: int) -> MicroBatch:
        values = (rows.tokens, rows.labels, rows.positions)
        return make_micro_batch(
            model.shape,
            *(fill(column, first, filler) for column, filler in zip(values, masked, strict=True)),
            kernel=kernel,
            device=device,
            context=parallel.context,
        )

    firsts = range(0, num_passes * micro_rows, micro_rows)
    # Ranks of a pipeline wait for the stages before them: less, the more passes run at once.
    passes_at_once = 4 * settings.parallel.pipeline if model.stages else 1
    losses = []
    for number in range(0, num_passes, passes_at_once):
        beat()
        micro_batches = [make(first) for first in firsts[number : number + passes_at_once]]
        if model.stages:
            from corpuskit.train.pipeline import forward_only

            token_loss = forward_only(model, settings, parallel, micro_batches)
        else:
            (only,) = micro_batches
            token_loss, _ = token_losses(model(only.tokens, only.layout), only.labels)
        losses.append(parallel.whole_rows(token_loss).double().cpu())
    row_losses: NDArray[np.float64] = torch.cat(losses).numpy()
    return row_losses[: len(rows.sources)]
