"""Held-out documents: every token is judged once, and the training does not notice."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor

from corpuskit.errors import UsageError
from corpuskit.train import evaluation
from corpuskit.train.attention import lay_out
from corpuskit.train.evaluation import evaluate, pack
from corpuskit.train.huggingface_export import find_averaged, find_checkpoint, read_weights
from corpuskit.train.loop import train
from corpuskit.train.model import IGNORED, Decoder, token_losses
from corpuskit.train.parallel import build_model, join
from corpuskit.train.settings import ParallelSettings
from tests.train.conftest import SEQ_LEN, VOCAB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.train.metrics import SourceLoss
    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow

SIZES = {
    # One that predicts nothing, rows that are just full, and documents of several pieces.
    "web": [5, 1, SEQ_LEN, SEQ_LEN + 1, SEQ_LEN + 2, 3 * SEQ_LEN + 5, 2, 9, 17, 4, 2 * SEQ_LEN + 1],
    "books": [7],  # nothing for a second rank
    "empty": [1],
}


class Document(NamedTuple):
    tokens: np.ndarray
    text_bytes: int


class Fixed:
    """Held-out documents that are at hand."""

    def __init__(self, sizes: dict[str, list[int]]) -> None:
        self.source_names = tuple(sizes)
        random = np.random.default_rng(5)
        self.by_source = {
            name: [
                Document(random.integers(1, VOCAB, size).astype(np.uint32), 4 * (size - 1))
                for size in found
            ]
            for name, found in sizes.items()
        }

    def documents(self, source: str, rank: int, ranks: int) -> Iterator[Document]:
        yield from self.by_source[source][rank::ranks]


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=12),
    st.integers(1, 12),
)
def test_every_token_but_the_first_is_predicted_once_from_the_one_before(
    given_documents: list[tuple[int, int]], seq_len: int
) -> None:
    documents, expected, begin = [], [], 0
    for source, size in sorted(given_documents):
        tokens = np.arange(begin, begin + size)  # every token of all documents is another one
        documents.append((source, tokens))
        expected += [(source, *pair) for pair in itertools.pairwise(tokens.tolist())]
        begin += size
    rows = pack(documents, seq_len)
    found = [
        (int(rows.sources[row]), int(rows.tokens[row, at]), int(rows.labels[row, at]))
        for row, at in zip(*np.nonzero(rows.labels != IGNORED), strict=True)
    ]
    assert sorted(found) == sorted(expected)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(st.lists(st.integers(2, 40), min_size=1, max_size=12), st.integers(1, 12))
def test_a_piece_sees_nothing_of_other_pieces(sizes: list[int], seq_len: int) -> None:
    begins = np.cumsum([0, *sizes])
    documents = [(0, np.arange(*bounds)) for bounds in itertools.pairwise(begins.tolist())]
    rows = pack(documents, seq_len)
    firsts = {int(first) for first in begins[:-1]}
    firsts |= {
        begin + cut
        for begin, size in zip(begins.tolist(), sizes, strict=False)
        for cut in range(seq_len, size - 1, seq_len)
    }
    for row in range(len(rows.tokens)):
        for at in range(seq_len):
            if rows.labels[row, at] != IGNORED:
                is_first = rows.positions[row, at] == 0
                assert is_first == (int(rows.tokens[row, at]) in firsts)
                if not is_first:
                    assert rows.tokens[row, at] == rows.tokens[row, at - 1] + 1
                    assert rows.positions[row, at] == rows.positions[row, at - 1] + 1
    assert (rows.positions[:, 0] == 0).all()


def judge(settings: TrainSettings) -> tuple[dict[str, SourceLoss], dict[str, SourceLoss], bool]:
    """Return what two evaluations give, and whether the model is as it was."""
    parallel = join(settings)
    model = build_model(settings.model.shape(VOCAB), settings, parallel)
    kinds = [type(parameter) for parameter in model.parameters()]
    first = evaluate(model, settings, parallel, Fixed(SIZES), SEQ_LEN)
    again = evaluate(model, settings, parallel, Fixed(SIZES), SEQ_LEN)
    is_as_before = model.training and kinds == [type(one) for one in model.parameters()]
    is_whole = all(isinstance(one, DTensor) for one in model.parameters())
    return first, again, is_as_before and (is_whole or parallel.world_size == 1)


def judge_alone(settings: TrainSettings) -> dict[str, tuple[float, float, int]]:
    """Return nats per token, bits per byte and tokens, each piece alone and in its own pass."""
    parallel = join(settings)
    model = build_model(settings.model.shape(VOCAB), settings, parallel)
    found = {}
    for name, documents in Fixed(SIZES).by_source.items():
        nats, count, size = 0.0, 0, 0
        for tokens, text_bytes in documents:
            size += text_bytes
            for begin in range(0, len(tokens) - 1, SEQ_LEN):
                piece = torch.from_numpy(tokens[begin : begin + SEQ_LEN + 1].astype(np.int64))[None]
                layout = lay_out(
                    np.arange(piece.shape[1] - 1)[None], head_dim=8, rope_theta=10_000.0,
                    kernel="sdpa", device=parallel.device,
                )  # fmt: skip
                with torch.no_grad():
                    losses, _ = token_losses(model(piece[:, :-1], layout), piece[:, 1:])
                nats += losses.double().sum().item()
                count += losses.shape[1]
        if count:
            found[name] = (nats / count, nats / math.log(2) / size, count)
    return found


def test_it_is_the_loss_of_each_document_alone_on_any_ranks(
    settings: Any, run_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = settings(batch={"global_rows": 8, "micro_rows": 3})
    (alone,) = run_ranks(1, judge_alone, ours)
    assert {name: one[2] for name, one in alone.items()} == {
        name: sum(size - 1 for size in sizes) for name, sizes in SIZES.items() if name != "empty"
    }
    tensor = ours.model_copy(update={"parallel": ParallelSettings(tensor=2)})
    context = ours.model_copy(update={"parallel": ParallelSettings(context=2)})
    cases = ((1, 40, ours), (2, 40, tensor), (3, 1 << 20, ours), (4, 40, context))
    for ranks, window, given in cases:
        monkeypatch.setattr(evaluation, "WINDOW_TOKENS", window)
        for first, again, is_as_before in run_ranks(ranks, judge, given):
            assert is_as_before
            assert first == again
            assert {
                name: (one.loss, one.bits_per_byte, one.tokens) for name, one in first.items()
            } == {name: pytest.approx(expected, rel=1e-5) for name, expected in alone.items()}


def work(settings: TrainSettings) -> None:
    train(settings, join(settings), None, Fixed(SIZES))


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (1, {}),
        (
            2,
            {
                "parallel": {"zero": 1},
                "dtype": "bfloat16",
                "optimizer": {"lr": 1e-2, "average_decay": 0.9},
            },
        ),
    ],
    ids=["1 rank", "2 ranks, weights kept whole, bfloat16, of the average"],
)
def test_evaluations_leave_the_training_bit_for_bit(
    ranks: int, changes: dict[str, Any], settings_for: Any, run_ranks: Any, tmp_path: Path
) -> None:
    often = {"evaluate": {"every_steps": 2}, "checkpoint": {"every_steps": 4}}
    calm = settings_for(tmp_path / "calm", **changes)
    judged = settings_for(tmp_path / "judged", **changes, **often)
    run_ranks(ranks, work, calm)
    run_ranks(ranks, work, judged)
    assert lines_of(judged, "metrics", "loss") == lines_of(calm, "metrics", "loss")
    assert lines_of(judged, "metrics", "grad_norm") == lines_of(calm, "metrics", "grad_norm")
    assert lines_of(judged, "evaluations", "step") == [2, 4, 6, 8]
    losses = [one["web"]["loss"] for one in lines_of(judged, "evaluations", "sources")]
    assert losses[0] != losses[-1]


def test_averages_of_steps_and_of_checkpoints_are_kept_and_evaluated(
    settings_for: Any, run_ranks: Any, tmp_path: Path
) -> None:
    changes = {
        "optimizer": {"lr": 1e-2, "average_decay": 0.5},
        "checkpoint": {"every_steps": 1, "keep": 9},
        "evaluate": {"every_steps": 4},
    }
    calm = settings_for(tmp_path / "calm", **changes, steps=4)
    run_ranks(1, work, calm)
    for steps in (2, 4):  # stopped, and continued
        run_ranks(2, work, settings_for(tmp_path / "again", **changes, steps=steps))
    model = Decoder(calm.model.shape(VOCAB))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    steps = [find_checkpoint(calm.output, step) for step in (1, 2, 3, 4)]
    weights = [list(read_weights([step], shapes)) for step in steps]
    for output in ("again", "calm"):
        last = find_checkpoint(tmp_path / output)
        kept = list(read_weights(find_averaged(last, "ema"), shapes, is_average=True))
        for one, two, three, four, average in zip(*weights, kept, strict=True):
            expected = one / 8 + two / 8 + three / 4 + four / 2
            torch.testing.assert_close(average, expected, rtol=0, atol=1e-5)
    mean = list(read_weights(find_averaged(steps[3], "3"), shapes))
    for two, three, four, average in zip(*weights[1:], mean, strict=True):
        torch.testing.assert_close(average, (two + three + four) / 3)
    with torch.no_grad():
        for parameter, average in zip(model.parameters(), kept, strict=True):
            parameter.copy_(average)
    expected_loss = run_ranks(1, losses_of_model, model, calm)[0]
    assert lines_of(calm, "evaluations", "of_average") == [True]
    (judged,) = lines_of(calm, "evaluations", "sources")
    assert judged["web"]["loss"] == pytest.approx(expected_loss, abs=1e-5)
    with pytest.raises(UsageError, match=r"--average 5: neither ema nor a number .* 1 to 4"):
        find_averaged(steps[3], "5")


def losses_of_model(model: Decoder, settings: TrainSettings) -> float:
    losses = evaluate(model, settings, join(settings), Fixed(SIZES), SEQ_LEN)
    return losses["web"].loss


def lines_of(settings: TrainSettings, name: str, key: str) -> list[Any]:
    lines = Path(settings.output, f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)[key] for line in lines]
