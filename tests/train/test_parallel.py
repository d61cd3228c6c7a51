"""The model on several ranks computes what it computes on one, however they share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

from corpuskit.errors import UsageError
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.attention import lay_out
from corpuskit.train.model import Decoder, init_weights, make_micro_batch, token_losses
from corpuskit.train.optim import build_optimizer, clip_gradients
from corpuskit.train.parallel import (
    Parallel,
    begin_micro_batch,
    build_model,
    join,
    use_float8,
)
from corpuskit.train.settings import ModelSettings, TrainSettings, require_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from corpuskit.train.settings import ModelShape

ROWS, LENGTH, VOCAB = 8, 16, 48
# What 8 steps make of other orders of adding; a gradient that lacks one rank's part moves the
# losses by 1e-3 and more.
TOLERANCE = 1e-5
MODEL = {
    "dim": 32, "head_dim": 4, "layers": 1, "heads": 8, "kv_heads": 4, "ffn_dim": 48, "z_loss": 0.01,
}  # fmt: skip
EXPERTS = {"experts": {"count": 4, "per_token": 2}}


def settings_of(
    model: dict[str, Any] | None = None, kind: str = "adamw", **parallel: Any
) -> TrainSettings:
    """Return settings of which only those of model, optimizer and `parallel` matter here."""
    return TrainSettings.model_validate(
        {
            "data": "-", "output": "o", "model": MODEL | (model or {}), "parallel": parallel,
            "batch": {"global_rows": ROWS, "micro_rows": 1}, "device": "cpu",
            "optimizer": {"lr": 1e-3 if kind == "lion" else 1e-2, "kind": kind},
        }
    )  # fmt: skip


def shape_of(settings: TrainSettings) -> ModelShape:
    return settings.model.shape(VOCAB)


def batch(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, labels and positions of a step, (8, 16) each: two documents in a row."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, VOCAB, (ROWS, LENGTH + 1))
    tokens[:, 1::2] = (7 * tokens[:, :-1:2] + 1) % VOCAB
    labels = np.where(random.random((ROWS, LENGTH)) < 0.2, IGNORED, tokens[:, 1:])
    cut = int(random.integers(2, LENGTH - 2))
    positions = np.tile([*range(cut), *range(LENGTH - cut)], (ROWS, 1))
    return tokens[:, :-1].copy(), labels, positions


def take_step(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    parallel: Parallel | None,
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Train on a step's rows; return its mean loss, gradient norm and gathered gradients."""
    place, places = (parallel.data_rank, parallel.data_ranks) if parallel else (0, 1)
    mine = np.array_split(np.arange(ROWS), places)[place]
    tokens, labels, positions = batch(step)
    num_labels = int((labels != IGNORED).sum())
    total = torch.zeros(())
    for rows in np.array_split(mine, 1 if settings.parallel.zero == 3 else 2):
        part = make_micro_batch(
            model.shape, tokens[rows], labels[rows], positions[rows], kernel="sdpa",
            device=torch.device("cpu"), context=parallel.context if parallel else None,
        )  # fmt: skip
        begin_micro_batch(model, settings, is_last=bool(rows[-1] == mine[-1]))
        logits = model(part.tokens, part.layout)
        losses, objective = token_losses(logits, part.labels, settings.model.z_loss)
        (objective / num_labels).backward()
        losses = losses.detach()
        total += (parallel.whole_rows(losses) if parallel else losses).sum()
    if parallel:
        parallel.sum(total)
    compared = model.named_parameters() if step == 0 else ()
    gradients = {name: whole(p.grad) for name, p in compared}
    norm = clip_gradients(model.parameters(), settings.optimizer.clip_norm).item()
    optimizer.step()
    optimizer.zero_grad()
    return total.item() / num_labels, norm, gradients


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return getattr(tensor, "full_tensor", lambda: tensor)().detach().clone()


def on_one_rank(
    settings: TrainSettings, steps: int
) -> tuple[dict[str, torch.Tensor], list[tuple[float, float, dict[str, torch.Tensor]]]]:
    """Return initial weights and the steps of the bare model, which nothing shards."""
    model = Decoder(shape_of(settings))
    init_weights(model, settings.seed)
    optimizer = build_optimizer(model, settings.optimizer)
    weights = {name: whole(p) for name, p in model.named_parameters()}
    return weights, [take_step(model, optimizer, settings, step, None) for step in range(steps)]


def check(settings: TrainSettings, write: Path | None = None, steps: int = 6) -> None:
    """Take steps on these ranks and compare initial weights, losses, norms and gradients.

    Args:
        settings: how the ranks share the model.
        write: where a checkpoint goes after 4 steps.
        steps: how many.
    """
    parallel = join(settings)
    weights, expected = on_one_rank(settings, steps)
    model = build_model(shape_of(settings), settings, parallel)
    for name, parameter in model.named_parameters():
        assert torch.equal(whole(parameter), weights[name]), (name, "differs from the start")
    optimizer = build_optimizer(model, settings.optimizer)
    for step, (loss, norm, gradients) in enumerate(expected):
        if step == 4 and write:
            dcp.save(_state(model, optimizer), checkpoint_id=write)
        found = take_step(model, optimizer, settings, step, parallel)
        place = f"step {step} of {settings.parallel}"
        assert found[0] == pytest.approx(loss, abs=TOLERANCE), place
        assert found[1] == pytest.approx(norm, rel=1e-3 if step else 1e-5), place
        if step == 0:
            for name, gradient in gradients.items():
                torch.testing.assert_close(found[2][name], gradient, rtol=1e-4, atol=1e-6)


def check_continued(settings: TrainSettings, folder: Path) -> None:
    """Load a checkpoint and compare the losses of steps 4 and 5."""
    parallel = join(settings)
    _, expected = on_one_rank(settings, 6)
    model = build_model(shape_of(settings), settings, parallel)
    optimizer = build_optimizer(model, settings.optimizer)
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for step in range(4, 6):
        loss, _, _ = take_step(model, optimizer, settings, step, parallel)
        assert loss == pytest.approx(expected[step][0], abs=TOLERANCE), step


def check_what_stays_whole(*all_settings: TrainSettings) -> None:
    """Compare what is whole on each rank between two micro-batches with what zero says."""
    whole_by_zero = {}
    for settings in all_settings:
        parallel = join(settings)
        model = build_model(shape_of(settings), settings, parallel)
        tokens, labels, positions = batch(0)
        layout = lay_out(
            positions, head_dim=4, rope_theta=1e4, kernel="sdpa", device=torch.device("cpu")
        )
        begin_micro_batch(model, settings, is_last=False)
        logits = model(torch.from_numpy(tokens), layout)
        token_losses(logits, torch.from_numpy(labels))[1].backward()
        weight = model.blocks[0].feed_forward.up.weight
        whole_by_zero[settings.parallel.zero] = (
            not isinstance(weight, DTensor),
            not isinstance(weight, DTensor) and weight.grad is not None,
        )
    assert whole_by_zero == {1: (True, True), 2: (True, False), 3: (False, False)}


def _state(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def in_turn(*calls: tuple[Callable[..., None], Any]) -> None:
    for function, *arguments in calls:
        function(*arguments)


@pytest.mark.slow
def test_any_ranks_compute_as_one_and_continue_each_other(run_ranks: Any, tmp_path: Path) -> None:
    untied = {"tied": False, "qk_norm": False, "z_loss": 0.0}
    names = ("four", "two", "one", "experts", "muon")
    four, two, one, experts, muon = (tmp_path / name for name in names)
    run_ranks(
        4,
        in_turn,
        (check, settings_of(tensor=2, zero=1, recompute="selective"), four),
        (check, settings_of(EXPERTS, expert=2, zero=1), None, 3),
        (check, settings_of(EXPERTS, expert=2, replicas=2), None, 3),
        (check, settings_of(context=4), None, 3),
        (check, settings_of(context=2, tensor=2, zero=2), None, 3),
        (check, settings_of(EXPERTS, context=2, expert=2, recompute="full"), None, 3),
        (check, settings_of(untied, "muon", tensor=2, replicas=2), muon),
    )
    run_ranks(
        2,
        in_turn,
        (check_continued, settings_of(tensor=2), four),
        (check_continued, settings_of(zero=2, recompute="full"), four),
        (check_continued, settings_of(context=2, zero=1, recompute="selective"), four),
        (check, settings_of(zero=1), two),
        (check, settings_of({"experts": {"count": 3, "per_token": 2}}), None, 3),
        (check, settings_of(EXPERTS, expert=2, recompute="full"), experts),
        (check_continued, settings_of(untied, "muon"), muon),
        (check, settings_of(kind="lion"), None, 3),
        (check_what_stays_whole, *(settings_of(zero=zero) for zero in (1, 2, 3))),
    )
    run_ranks(
        1,
        in_turn,
        (check_continued, settings_of(), four),
        (check_continued, settings_of(), two),
        (check_continued, settings_of(EXPERTS), experts),
        (check_continued, settings_of(untied, "muon"), muon),
        (check, settings_of(), one),
    )
    run_ranks(2, check_continued, settings_of(), one)


def _angles_in_a_block(settings: TrainSettings) -> tuple[torch.dtype, torch.dtype]:
    """Return the types of the stream and of the rotary angles inside a block."""
    model = build_model(shape_of(settings), settings, join(settings))
    layout = lay_out(
        batch(0)[2], head_dim=4, rope_theta=1e4, kernel="sdpa", device=torch.device("cpu")
    )
    types = []
    model.blocks[0].attention.register_forward_pre_hook(
        lambda _module, inputs: types.append((inputs[0].dtype, inputs[1].cos.dtype))
    )
    model(torch.from_numpy(batch(0)[0]), layout)
    return types[0]


def test_bfloat16_leaves_rotary_angles_float32(run_ranks: Any) -> None:
    settings = settings_of().model_copy(update={"dtype": "bfloat16"})
    assert run_ranks(1, _angles_in_a_block, settings) == [(torch.bfloat16, torch.float32)]


def test_uneven_shares_are_refused_with_the_next_sizes() -> None:
    shape = ModelSettings(dim=32, layers=1, heads=6, kv_heads=3, head_dim=4, ffn_dim=50).shape(47)
    with pytest.raises(UsageError) as error:
        require_tensor(shape, 30, 4)
    assert str(error.value) == (
        "parallel.tensor: 4 does not divide model.heads 6, model.kv_heads 3, model.ffn_dim 50, "
        "model.vocab_size 47, seq_len of the packed rows 30. Change it, or set model.heads 8, "
        "model.kv_heads 4, model.ffn_dim 52, model.vocab_size 48, seq_len of the packed rows 32."
    )
    require_tensor(shape, 30, 1)


def test_float8_is_refused_where_it_does_not_run() -> None:
    model = Decoder(shape_of(settings_of()))
    with pytest.raises(UsageError, match=r"float8: true needs CUDA and a GPU of capability 8\.9"):
        use_float8(model, torch.device("cpu"), 1)
