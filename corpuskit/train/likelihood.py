"""Scores tasks by likelihood: accuracy in multiple choice, and bits per byte of gold answers.

An item has one or several texts (choices), each with a context before it. The score of a choice is
the sum of the log-probabilities of its tokens; nothing is generated. Bits per byte of the gold
answers separate good data from bad already with models that are far too small to answer correctly.

Source: the scores of EleutherAI's lm-evaluation-harness (`acc`, `acc_norm`, `acc_mutual_info`),
https://github.com/EleutherAI/lm-evaluation-harness; bits per byte as in OLMo-core's evaluations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from corpuskit.train.evaluation import losses_of
from corpuskit.train.metrics import TaskScores, source_losses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.train.evaluation import HeldOut
    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.tasks import ScoredText, TaskItem

MAX_NAMED_ITEMS = 5  # that are too long for the model


@dataclass(frozen=True)
class ItemScores:
    """The log-likelihoods of one item: a line of `items/<step>/<task>.jsonl`.

    Attributes:
        nats: log-likelihood of each choice.
        unconditional: of each without its context; empty if not requested.
    """

    id: str
    domain: str
    gold: int
    nats: tuple[float, ...]
    unconditional: tuple[float, ...] = ()


class Evaluated(NamedTuple):
    """What a training is evaluated on: held-out documents, and tasks."""

    held_out: HeldOut | None = None
    tasks: Mapping[str, Sequence[TaskItem]] = {}

    def __bool__(self) -> bool:
        return self.held_out is not None or bool(self.tasks)


def score_items(
    model: Decoder,
    settings: TrainSettings,
    parallel: Parallel,
    items: Sequence[TaskItem],
    seq_len: int,
    beat: Callable[[], None] = lambda: None,
) -> tuple[TaskScores, list[ItemScores]]:
    """Score all choices of all items; return the task's scores and those of each item.

    Collective, like `evaluate`; neither packing nor the number of ranks changes what is computed,
    but for the order in which floating-point numbers are added. An item with a choice of more than
    `seq_len + 1` tokens is left out, counted and named.

    Args:
        model: as `build_model` returns it.
        items: the same on every rank.
        seq_len: L, inputs of a row.
        beat: called now and then, as a sign of life.
    """

    def fits(item: TaskItem) -> bool:
        requests = (*item.choices, *item.unconditional)
        return all(len(request.tokens) <= seq_len + 1 for request in requests)

    short = [item for item in items if fits(item)]
    requests = [r for item in short for r in (*item.choices, *item.unconditional)]
    values = iter(_log_likelihoods(model, settings, parallel, requests, seq_len, beat).tolist())

    def take(requests: Sequence[ScoredText]) -> tuple[float, ...]:
        return tuple(next(values) for _ in requests)

    scored = [
        ItemScores(item.id, item.domain, item.gold, take(item.choices), take(item.unconditional))
        for item in short
    ]
    too_long = [item.id for item in items if not fits(item)]
    return summarise(short, scored, too_long), scored


def summarise(
    items: Sequence[TaskItem], scores: Sequence[ItemScores], too_long: Sequence[str] = ()
) -> TaskScores:
    """Return the scores of a task.

    Args:
        items: those that were scored.
        scores: of each.
        too_long: ids of those that were not.
    """
    domains = sorted({item.domain for item in items})
    sums = np.zeros((3, len(domains)))  # nats, tokens, bytes of the gold answers
    is_right: dict[str, list[bool]] = {}  # by measure, of each item
    for item, score in zip(items, scores, strict=True):
        gold = item.choices[item.gold]
        domain = domains.index(item.domain)
        sums[:, domain] += -score.nats[item.gold], gold.scored, gold.text_bytes
        if len(item.choices) == 1:
            continue
        nats, lengths = np.array(score.nats), np.array(item.lengths, np.float64)
        measures = {
            "accuracy": nats,
            "accuracy_per_character": nats / lengths[:, 0],
            "accuracy_per_byte": nats / lengths[:, 1],
        }
        if score.unconditional:
            measures["accuracy_unconditional"] = nats - np.array(score.unconditional)
        for name, values in measures.items():
            is_right.setdefault(name, []).append(int(values.argmax()) == item.gold)
    accuracies = {name: float(np.mean(outcomes)) for name, outcomes in is_right.items()}
    num = len(is_right.get("accuracy", ()))
    accuracy = accuracies.get("accuracy", 0.0)
    return TaskScores(
        items=len(items),
        too_long=len(too_long),
        too_long_ids=tuple(too_long[:MAX_NAMED_ITEMS]),
        **{name: accuracies.get(name) for name in _ACCURACIES},
        standard_error=math.sqrt(accuracy * (1 - accuracy) / (num - 1)) if num > 1 else None,
        bits_per_byte=sums[0].sum() / math.log(2) / sums[2].sum() if sums[2].sum() else None,
        domains=source_losses(domains, *sums.tolist()),
    )


_ACCURACIES = (
    "accuracy", "accuracy_per_character", "accuracy_per_byte", "accuracy_unconditional",
)  # fmt: skip


def _log_likelihoods(
    model: Decoder,
    settings: TrainSettings,
    parallel: Parallel,
    requests: Sequence[ScoredText],
    seq_len: int,
    beat: Callable[[], None],
) -> NDArray[np.float64]:
    """Return the (N,) log-likelihood of each request's continuation, in nats."""
    nats = np.zeros(len(requests))
    numbers = range(parallel.data_rank, len(requests), parallel.data_ranks)
    own_numbers = iter(numbers)
    texts = ((0, requests[number].tokens) for number in numbers)
    for rows, losses in losses_of(model, settings, parallel, texts, seq_len, beat):
        for row, begin, end in rows.pieces:  # each text is one piece: it fits a row
            number = next(own_numbers)
            losses[row, begin : end - requests[number].scored] = 0.0
            nats[number] = -losses[row, begin:end].sum()
    nats_of_all: NDArray[np.float64] = (
        parallel.sum(torch.from_numpy(nats).to(parallel.device)).cpu().numpy()
    )
    return nats_of_all
