"""How long a run is, of what model and of which documents: from the mix plan and the file alone.

Without torch, so that `corpuskit train t.yaml --plan` answers where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.loader.index import MixPlan
    from corpuskit.train.settings import ModelShape, TrainSettings


@dataclass(frozen=True, slots=True)
class SourceShare:
    """What the run takes of a source."""

    name: str
    rows: int
    epochs: float
    document_tokens: float | None  # mean length, as far as it lies in a row; None if not known


@dataclass(frozen=True, slots=True)
class RunLength:
    """The model and how long it is trained."""

    shape: ModelShape
    seq_len: int
    steps: int
    tokens: int  # padding included
    plan_steps: int | None  # as many as the plan has rows for; None without one
    sources: tuple[SourceShare, ...]
    visible_tokens: float  # to a token, on average: itself and those before it in its document
    visible_from: str  # where that is from


def read_length(settings: TrainSettings, seq_len: int | None = None) -> RunLength:
    """Say what is trained and for how long, from the mix plan or, before there is one, the file.

    Raises:
        UsageError: neither says enough, or the plan has fewer rows than are asked for.
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
    steps = _count_steps(settings, plan.seq_len) or possible
    if steps > possible or not steps:
        raise UsageError(
            f"{steps or 'one'} steps of {global_rows} rows: {settings.data} has rows for "
            f"{possible}. Ask for fewer, lower batch.global_rows, or mix more epochs."
        )
    sources = _shares(plan, steps * global_rows)
    rows = sum(source.rows for source in sources)
    lengths = [(one.rows / rows, one.document_tokens) for one in sources if one.rows]
    visible, known = (plan.seq_len + 1) / 2, "whole rows"
    if all(tokens is not None for _, tokens in lengths):
        visible = sum(share * ((tokens or 0) + 1) / 2 for share, tokens in lengths)
        known = "documents of mean length"
    return RunLength(
        shape=_shape(settings, cast("int", plan.tokenizer["vocab_size"])),
        seq_len=plan.seq_len,
        steps=steps,
        tokens=steps * global_rows * plan.seq_len,
        plan_steps=possible,
        sources=sources,
        visible_tokens=visible,
        visible_from=known,
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
    steps = _count_steps(settings, seq_len)
    assert steps is not None, "one of both is set"
    return RunLength(
        shape=_shape(settings, settings.model.vocab_size or 0),
        seq_len=seq_len,
        steps=steps,
        tokens=steps * settings.batch.global_rows * seq_len,
        plan_steps=None,
        sources=(),
        visible_tokens=(seq_len + 1) / 2,
        visible_from="whole rows",
    )


def _count_steps(settings: TrainSettings, seq_len: int) -> int | None:
    """Return the steps that are asked for; None for all that there are."""
    if settings.tokens is None:
        return settings.steps
    return -(-settings.tokens // (settings.batch.global_rows * seq_len))


def _shape(settings: TrainSettings, vocab_size: int) -> ModelShape:
    if settings.init_from is None:
        return settings.model.shape(vocab_size)
    try:
        from corpuskit.train.huggingface.models import read_shape
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "init_from: the shape of a Hugging Face model is read by what needs torch. Install it "
            f"with: {install_command('train')}"
        ) from None
    return read_shape(Path(settings.init_from))


def _shares(plan: MixPlan, num_rows: int) -> tuple[SourceShare, ...]:
    """Return what the first delivered rows of a plan take of each source."""
    end = int(plan.skips.row_indices(np.array([num_rows - 1]))[0]) + 1
    taken = plan.order.taken(end)
    for first, behind in plan.skips.before(end):
        taken = taken - (plan.order.taken(behind) - plan.order.taken(first))
    entries: dict[str, Mapping[str, Any]] = {
        one["name"]: one for one in plan.base.fields["sources"]
    }
    shares = []
    for source, rows in zip(plan.sources, taken.tolist(), strict=True):
        entry = entries.get(source.name, {})
        tokens, documents = entry.get("tokens"), entry.get("documents")
        mean = min(tokens / documents, plan.seq_len) if tokens and documents else None
        shares.append(SourceShare(source.name, rows, rows / max(source.rows, 1), mean))
    return tuple(shares)
