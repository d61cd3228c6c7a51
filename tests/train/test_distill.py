"""A teacher's logits: losses are those of a plain loop over models of transformers."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.loop import train
from corpuskit.train.parallel import join
from tests.train.test_adapters import settings_of
from tests.train.test_huggingface import ORIGIN, TOKENIZER, _losses, foreign, transformers

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow

STEPS, LR = 4, 1e-2


def model_of(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    foreign("Llama", folder, **changes)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "corpuskit.json").write_text(json.dumps({"tokenizer": ORIGIN}))
    return folder


@pytest.fixture
def student(tmp_path: Path) -> Path:
    return model_of(tmp_path / "student")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    # Its rotary positions and heads are others.
    return model_of(tmp_path / "teacher", num_hidden_layers=3, head_dim=16, rope_theta=700.0)


def plain_loop(student: Path, settings: TrainSettings) -> list[float]:
    """Train the student document by document; return its cross-entropies."""
    asked = settings.distill
    ours, theirs = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (student, asked.teacher)
    )
    groups = [
        {"params": [p for n, p in ours.named_parameters() if free == ("norm" in n or "embed" in n)]}
        | {"weight_decay": 0.0 if free else 0.1}
        for free in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
    found = []
    for batch in itertools.islice(StreamingLoader(settings.data, 2), STEPS):
        entropy, divergence = torch.zeros(()), torch.zeros(())
        for tokens, labels, positions in zip(
            batch["tokens"], batch["labels"], batch["position_ids"], strict=True
        ):
            bounds = [*np.flatnonzero(positions == 0), len(tokens)]
            for first, end in itertools.pairwise(bounds):
                ids = torch.from_numpy(tokens[None, first:end].astype(np.int64))
                wanted = torch.from_numpy(labels[first:end].astype(np.int64))
                logits = ours(ids).logits[0]
                with torch.no_grad():
                    p = (theirs(ids).logits[0] / asked.temperature).softmax(-1)
                q = (logits / asked.temperature).softmax(-1)
                entropy = entropy + cross_entropy(
                    logits, wanted, ignore_index=IGNORED, reduction="sum"
                )
                divergence = divergence + (p * (p / q).log()).sum(-1)[wanted != IGNORED].sum()
        count = int((batch["labels"] != IGNORED).sum())
        mixed = (1 - asked.weight) * entropy + asked.weight * asked.temperature**2 * divergence
        (mixed / count).backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(entropy.item() / count)
    return found


def train_rank(settings: TrainSettings) -> None:
    train(settings, join(settings))


def fail(settings: TrainSettings) -> str:
    with pytest.raises(UsageError) as error:
        train_rank(settings)
    return str(error.value)


def test_losses_are_those_of_a_plain_loop_on_any_ranks(
    student: Path, teacher: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    distill = {"teacher": str(teacher), "weight": 0.7, "temperature": 2.0}

    def settings(name: str, **changes: Any) -> TrainSettings:
        return settings_of(student, tmp_path / name, settings_for, distill=distill, **changes)

    one, alone = settings("one"), settings_of(student, tmp_path / "alone", settings_for)
    run_ranks(1, train_rank, one)
    run_ranks(1, train_rank, alone)
    (expected,) = run_ranks(1, plain_loop, student, one, group=False)
    assert _losses(one) == pytest.approx(expected, abs=1e-5)
    assert _losses(one) != pytest.approx(_losses(alone), abs=1e-3)
    for name, parallel in (("sharded", {}), ("replicas", {"replicas": 2, "zero": 1})):
        two = settings(name, parallel=parallel)
        run_ranks(2, train_rank, two)
        assert _losses(two) == pytest.approx(expected, abs=1e-5)


def test_a_teacher_of_other_tokens_is_refused(
    student: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    other = model_of(tmp_path / "other", vocab_size=64)
    settings = settings_of(student, tmp_path / "run", settings_for, distill={"teacher": str(other)})
    (refusal,) = run_ranks(1, fail, settings)
    assert refusal.endswith(
        "has 64 tokens, and the model has 61. Choose another, or set model.vocab_size."
    )
    unknown = model_of(tmp_path / "unknown")
    (unknown / "corpuskit.json").unlink()
    settings = settings_of(
        student, tmp_path / "run", settings_for, distill={"teacher": str(unknown)}
    )
    (refusal,) = run_ranks(1, fail, settings)
    assert "may not be that of the packed tokens" in refusal
    with pytest.raises(ValidationError, match=r"distill: not fitted to parallel\.tensor\. Leave"):
        settings_for("out", distill={"teacher": "t"}, parallel={"tensor": 2})
