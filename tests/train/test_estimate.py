"""The estimate before a run, against exact counts of real models."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from corpuskit.cli.train import command
from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.train.attention import lay_out
from corpuskit.train.context import Context
from corpuskit.train.estimate import (
    FLOAT,
    Work,
    checkpoint_cost,
    count_parameters,
    estimate,
    plan_work,
    read_length,
    step_moments,
)
from corpuskit.train.flops import step_flops
from corpuskit.train.model import Decoder, token_losses
from corpuskit.train.optim import build_optimizer
from corpuskit.train.record import CheckpointRecord, write_record
from corpuskit.train.settings import PRESETS, ModelSettings, OptimizerSettings, TrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.train.settings import ModelShape

TINY = {"dim": 48, "layers": 3, "heads": 6, "kv_heads": 2, "ffn_dim": 80}
ROWS, LENGTH, VOCAB = 2, 64, 200


def work_of(**changes: Any) -> Work:
    """Return what one rank does in float32, with fields replaced."""
    fields: dict[str, Any] = {
        "rows": ROWS, "seq_len": LENGTH, "shards": 1, "tensor": 1, "zero": 3, "recompute": "none",
        "item_bytes": 4, "kernel": "sdpa", "is_cuda": False, "is_wrapped": False,
        "accumulates": False, "z_loss": False, "copies_state": False,
        "optimizer": "adamw", "keeps_average": False,
    }  # fmt: skip
    return Work(**(fields | changes))


def most(shape: ModelShape, work: Work) -> float:
    """Return the peak."""
    return max(moment.total for moment in step_moments(shape, work))


EXPERTS = {"experts": {"count": 6, "per_token": 2, "shared": 2, "ffn_dim": 32}}


@pytest.mark.parametrize(
    "changes", [{}, {"tied": False}, {"qk_norm": False}, {"head_dim": 12}, EXPERTS]
)
def test_parameters_are_counted_exactly(changes: dict[str, Any]) -> None:
    shape = ModelSettings.model_validate(TINY | changes).shape(VOCAB)
    with torch.device("meta"):
        model = Decoder(shape)
    count = count_parameters(shape)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert count.blocks == sum(parameter.numel() for parameter in model.blocks.parameters())
    assert count.embedding == model.embedding.weight.numel()


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_named_by_their_blocks(preset: str) -> None:
    shape = ModelSettings.model_validate({"preset": preset}).shape(1000)
    number = float(preset[:-1]) * {"m": 1e6, "b": 1e9}[preset[-1]]
    assert count_parameters(shape).blocks == pytest.approx(number, rel=0.25)


class Repeated(Context):
    """Ranks that all have the same tokens."""

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        return mine.repeat(1, self.size, 1, 1)


def saved_bytes(shape: ModelShape, dtype: torch.dtype, context: int) -> int:
    """Return what autograd saves in a forward pass, each storage once, weights apart."""
    model = Decoder(shape).to(dtype)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    layout = lay_out(
        np.tile(np.arange(LENGTH), (ROWS, 1)), head_dim=shape.head_dim, rope_theta=1e4,
        kernel="sdpa", device=torch.device("cpu"),
        context=Repeated(0, context, None) if context > 1 else None,  # type: ignore[arg-type]
    )  # fmt: skip
    tokens = torch.randint(shape.vocab_size, (ROWS, LENGTH // context))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_losses(model(tokens, layout), tokens.clone())
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": False}, {"kv_heads": 6, "head_dim": 12}, EXPERTS]
)
@pytest.mark.parametrize("context", [1, 4])
def test_activations_are_within_one_percent(
    context: int, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    shape = ModelSettings.model_validate(TINY | changes).shape(VOCAB)
    work = work_of(item_bytes=dtype.itemsize, context=context)
    forward = step_moments(shape, work)[0].parts
    log_softmax = FLOAT * work.tokens * VOCAB
    expected = saved_bytes(shape, dtype, context)
    assert forward["activations"] + log_softmax == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "average"),
    [(kind, 0.0) for kind in ("adamw", "muon", "lion", "adamw8bit", "schedule_free")]
    + [("adamw", 0.9)],
)
def test_optimizer_and_gradients_are_counted_exactly(kind: Any, average: float) -> None:
    shape = ModelSettings.model_validate(TINY).shape(VOCAB)
    model = Decoder(shape)
    optimizer = build_optimizer(model, OptimizerSettings(kind=kind, average_decay=average))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    update = step_moments(shape, work_of(optimizer=kind, keeps_average=average > 0))[-1].parts
    state = [kept for s in optimizer.state.values() for key, kept in s.items() if key != "step"]
    assert update["optimizer"] == sum(tensor.nbytes for tensor in state)
    assert update["gradients"] == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "none"}),
        ({"shards": 8, "is_wrapped": True}, {"shards": 2, "is_wrapped": True}),
        ({"shards": 8, "is_wrapped": True}, {"shards": 8, "is_wrapped": True, "zero": 2}),
        ({"tensor": 2, "is_wrapped": True}, {"is_wrapped": True}),
        ({"context": 2, "is_wrapped": True}, {"is_wrapped": True}),
        ({"kernel": "varlen", "is_cuda": True}, {"kernel": "sdpa", "is_cuda": True}),
        ({"rows": 1}, {"rows": 2}),
        ({}, {"accumulates": True}),
        ({}, {"z_loss": True}),
        ({}, {"copies_state": True}),
        (
            {"shards": 8, "is_wrapped": True, "accumulates": True, "zero": 2},
            {"shards": 8, "is_wrapped": True, "accumulates": True, "zero": 1},
        ),
    ],
)  # fmt: skip
def test_what_saves_memory_is_estimated_to(less: dict[str, Any], more: dict[str, Any]) -> None:
    shape = ModelSettings.model_validate(TINY | {"layers": 12}).shape(VOCAB)
    assert most(shape, work_of(**less)) < most(shape, work_of(**more))


def test_half_the_precision_needs_less_of_a_long_row() -> None:
    shape = ModelSettings(preset="15m").shape(VOCAB)
    long = {"seq_len": 2048, "kernel": "varlen", "is_cuda": True, "is_wrapped": True}
    assert most(shape, work_of(**long, item_bytes=2)) < 0.7 * most(shape, work_of(**long))


def test_the_work_of_a_rank_follows_from_the_settings(settings: Callable[..., Any]) -> None:
    told = settings(
        batch={"global_rows": 64, "micro_rows": 4}, dtype="bfloat16",
        parallel={"replicas": 2, "tensor": 2, "zero": 2, "recompute": "full"},
    )  # fmt: skip
    shape = told.model.shape(VOCAB)
    work = plan_work(shape, told, seq_len=LENGTH, ranks=16, is_cuda=True)
    assert (work.shards, work.tensor, work.rows, work.item_bytes) == (4, 2, 4, 2)
    assert (work.kernel, work.accumulates, work.zero) == ("varlen", True, 2)
    shared = settings(parallel={"context": 4, "replicas": 2}, batch={"global_rows": 64})
    work = plan_work(shape, shared, seq_len=LENGTH, ranks=16, is_cuda=True)
    assert (work.shards, work.context, work.rows, work.tokens) == (8, 4, 1, LENGTH // 4)
    alone = plan_work(shape, settings(), seq_len=LENGTH, ranks=1, is_cuda=False)
    assert (alone.is_wrapped, alone.accumulates, alone.kernel) == (False, False, "sdpa")


def test_length_and_epochs_are_those_of_the_plan(settings: Callable[..., Any]) -> None:
    length = read_length(settings(steps=20))
    assert (length.steps, length.tokens, length.plan_steps) == (20, 20 * 8 * 32, 80)
    rows = {source.name: source.rows for source in length.sources}
    assert rows == {"web": 107, "books": 53}  # two to one
    assert {one.name: one.epochs for one in length.sources} == {"web": 107 / 160, "books": 53 / 80}


def test_operations_are_those_of_documents_of_the_plans_mean_length(
    settings: Callable[..., Any],
) -> None:
    found = estimate(settings())
    assert found.length.visible_from == "documents of mean length"
    length = round(2 * found.length.visible_tokens - 1)  # the fixture says 32 tokens a document
    assert found.token_flops == step_flops(found.length.shape, [length]) / length


def test_time_and_cost_are_operations_over_what_devices_reach(settings: Callable[..., Any]) -> None:
    found = estimate(settings(dtype="bfloat16"), ranks=4, device_name="h100", mfu=0.5, price=3.0)
    assert found.seconds == pytest.approx(found.flops / (4 * 989e12 * 0.5))
    assert found.cost == pytest.approx(4 * found.seconds / 3600 * 3.0)


def test_peak_tflops_of_the_file_wins(settings: Callable[..., Any]) -> None:
    found = estimate(settings(peak_tflops=100.0), device_name="a100")
    assert found.peak_flops == 100e12


def test_steps_taken_already_say_how_long_the_others_take(settings: Callable[..., Any]) -> None:
    told = settings()
    assert estimate(told).seconds is None
    output = Path(told.output)
    output.mkdir()
    lines = [json.dumps({"step": step, "step_seconds": 2.0}) + "\n" for step in range(9)]
    (output / "metrics.jsonl").write_text("".join(lines) + '{"step": 9, "st')
    found = estimate(told)
    assert (found.seconds, found.is_measured) == (2.0 * 8, True)


def test_checkpoints_are_best_written_where_young_and_daly_say() -> None:
    cost = checkpoint_cost(12 * 10**9, 100, 50_000, 2.0, in_background=False)
    assert cost.size_bytes == 12 * 10**9
    assert cost.failure_seconds == 500 * 3600
    young = math.sqrt(2 * cost.stall_seconds * cost.failure_seconds)
    assert young * 0.9 < cost.every_seconds < young * 1.1
    assert cost.every_steps == round(cost.every_seconds / 2.0)


def test_more_ranks_fail_more_often_and_save_more_often() -> None:
    few, many = (checkpoint_cost(12 * 10**9, n, 50_000, 1.0, in_background=False) for n in (8, 800))
    assert many.every_seconds < few.every_seconds / 5


def test_writing_does_not_begin_before_the_last_one_is_through() -> None:
    cost = checkpoint_cost(12 * 10**11, 10**5, 10.0, 1.0, in_background=True)
    assert cost.every_seconds == cost.write_seconds


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        (
            {"parallel": {"replicas": 2}},
            3,
            r"parallel.replicas: 2 does not divide the 3 ranks\. .* start 4 ranks\.",
        ),
        ({}, 3, r"batch.global_rows: 8 rows are not shared out evenly by 3 ranks\."),
        ({"parallel": {"tensor": 4}}, 4, r"parallel.tensor: 4 does not divide model.kv_heads 2\."),
        (
            {"parallel": {"context": 3}},
            3,
            r"parallel.context: 3 needs packed rows of a multiple of 6 tokens .* Set .*: 1, or",
        ),
        ({"steps": 1000}, 1, r"1000 steps of 8 rows: .* has rows for 80\."),
        ({"attention": "varlen"}, 1, "attention: 'varlen' needs CUDA"),
        (
            {"schedule": {"warmup_tokens": 2049}},
            1,
            r"schedule.warmup_tokens: 2,049 are more than the run's 2,048 tokens, .* most 2,048,",
        ),
        (
            {"schedule": {"kind": "wsd", "warmup_tokens": 2000, "decay_tokens": 49}},
            1,
            r"schedule.decay_tokens: 49, and 2,000 of warmup, .* to at most 48, or train longer",
        ),
        (
            {"branch_from": "step-00000004"},
            1,
            "branch_from: step-00000004 is not a checkpoint. Name",
        ),
    ],
)
def test_what_the_loop_would_refuse_is_refused(
    settings: Callable[..., Any], changes: dict[str, Any], ranks: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        estimate(settings(**changes), ranks=ranks)


def test_before_the_pipeline_has_run_the_file_is_enough(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "data": str(tmp_path / "none"),
        "output": str(tmp_path),
        "model": {"preset": "0.5m", "vocab_size": 500},
        "batch": {"global_rows": 4},
        "tokens": 100_000,
    }
    found = estimate(TrainSettings.model_validate(fields), seq_len=256)
    assert (found.length.steps, found.length.visible_from) == (98, "whole rows")
    assert found.length.visible_tokens == 128.5
    del fields["tokens"], fields["model"]["vocab_size"]
    with pytest.raises(UsageError, match=r"set model.vocab_size, steps or tokens, --seq-len\."):
        estimate(TrainSettings.model_validate(fields))


def test_a_length_that_is_not_the_plans_is_refused(settings: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"--seq-len 64: the rows of .* have 32 tokens\."):
        estimate(settings(), seq_len=64)


def test_what_does_not_fit_is_said_with_ways_out(settings: Callable[..., Any]) -> None:
    big = settings(model={"preset": "7b"}, dtype="bfloat16")
    found = estimate(big, device_name="h100")
    assert found.peak.total > 80e9
    assert "More ranks" in " ".join(found.advice)
    assert not any("Memory" in line for line in estimate(settings(), device_name="h100").advice)


def test_a_far_interval_of_checkpoints_is_advised_on(settings: Callable[..., Any]) -> None:
    told = settings(peak_tflops=1e-6, checkpoint={"every_steps": 10**6})
    found = estimate(told)
    assert found.checkpoint.every_steps
    assert any("1000000 is seldom" in line for line in found.advice)
    near = settings(peak_tflops=1e-6, checkpoint={"every_steps": found.checkpoint.every_steps})
    assert estimate(near).advice == []


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [True, False])
def test_the_command_prints_it_without_torch(
    settings: Callable[..., Any], tmp_path: Path, is_packed: bool
) -> None:
    path, tasks = tmp_path / "t.yaml", tmp_path / "tasks.jsonl"
    tasks.write_text(QUESTION)
    evaluate = {"max_documents": 0, "tasks": {"t": str(tasks)}}
    model = {"preset": "0.5m", "vocab_size": 50}
    unpacked = settings(data=str(tmp_path / "none"), model=model, evaluate=evaluate)
    asked = settings() if is_packed else unpacked
    path.write_text(json.dumps(asked.model_dump(mode="json", exclude_defaults=True)))
    code = (
        "import sys\n"
        "from corpuskit.cli.train import command\n"
        "command(sys.argv[1:], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    words = [sys.executable, "-c", code, str(path), "--plan", "--device", "h100", "--price", "2"]
    words += ["--seq-len", "32"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for word in ("non-embedding", "per parameter", "recompute: none", "Daly", "Fits:", "cost"):
        assert word in shown


QUESTION = '{"context": "a", "choices": [" b", " c"], "gold": 1}\n'


@pytest.mark.parametrize(
    ("content", "track", "problem"),
    [
        (None, [], "no such file"),
        ('{"q": 1}', [], "columns q are of no known form. Known:"),
        (QUESTION + '{"choices": [" b"], "gold": 1}', [], "line 2: as plain: gold is 1; it must"),
        (QUESTION, ["wandb"], "track: wandb is not installed. Run: pip install wandb"),
        (QUESTION, [], "not a run directory"),
    ],
)
@pytest.mark.parametrize("is_packed", [True, False])
def test_what_a_training_opens_first_is_opened_by_its_plan(
    settings: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    content: str | None, track: list[str], problem: str, is_packed: bool,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", None)
    tasks = tmp_path / "tasks.jsonl"
    if content is not None:
        tasks.write_text(content)
    data = {} if is_packed else {"data": str(tmp_path / "none")}
    model = {"preset": "0.5m", "vocab_size": 50}
    evaluate = {"max_documents": 0, "tasks": {"t": str(tasks)}}
    asked = settings(**data, model=model, evaluate=evaluate, track=track)
    path = tmp_path / "t.yaml"
    path.write_text(json.dumps(asked.model_dump(mode="json", exclude_defaults=True)))
    answer = CliRunner().invoke(command, [str(path), "--plan", "--seq-len", "32"])
    if problem == "not a run directory" and not is_packed:
        assert answer.exit_code == 0, "what the run directory would say is not known yet"
    else:
        assert isinstance(answer.exception, CorpuskitError), answer.output
        assert problem in str(answer.exception)
        assert "Memory" not in answer.output


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": 3}, "seed: 3 here, and the training in "),
        ({"batch": {"global_rows": 4}}, "step-00000002: the checkpoint is of another run: global"),
        ({"optimizer": {"kind": "lion"}}, "optimizer.kind 'adamw' there, 'lion' here"),
        (
            {"optimizer": {"kind": "schedule_free", "beta1": 0.5}},
            "optimizer.beta1 0.9 there, 0.5 here",
        ),
        ({"steps": 1}, "2 steps are done, and the run is to have 1. Raise steps"),
        ({"adapter": {"rank": 2}, "init_from": "m"}, "adapter: {'rank': 2, "),
        ({"schedule": {"warmup_tokens": 2049}}, "schedule.warmup_tokens: 2,049 are more than the"),
        ({}, ""),
    ],
)
def test_a_run_that_cannot_continue_has_no_plan(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any], problem: str,
) -> None:  # fmt: skip
    kind = "schedule_free" if "beta1" in str(changes) else "adamw"
    before = settings(optimizer={"kind": kind})
    shape = read_length(before).shape
    record = CheckpointRecord(
        2, asdict(shape), before.model_dump(mode="json"), "", "", loader={}, world_size=1
    )
    for step, steps_done in ((2, 2), (4, 3)):  # the newer one is damaged
        folder = Path(before.output, "checkpoints", f"step-{step:08d}")
        folder.mkdir(parents=True)
        write_record(folder, replace(record, step=steps_done))
    monkeypatch.setattr("corpuskit.train.estimate.choose_shape", lambda *_: shape)
    with pytest.raises(UsageError, match=re.escape(problem)) if problem else nullcontext():
        estimate(settings(**changes))


def test_an_evaluation_of_nothing_is_refused(settings: Callable[..., Any], tmp_path: Path) -> None:
    path, asked = tmp_path / "t.yaml", settings(evaluate={"max_documents": 0})
    path.write_text(json.dumps(asked.model_dump(mode="json", exclude_defaults=True)))
    for words in ([], ["--plan"]):
        answer = CliRunner().invoke(command, [str(path), *words])
        assert "evaluate.max_documents: 0, and no tasks" in answer.output + str(answer.exception)
        assert answer.exit_code


def test_options_of_the_plan_reach_it(settings: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(json.dumps(settings().model_dump(mode="json", exclude_defaults=True)))
    words = [str(path), "--plan", "--ranks", "2", "--device", "a100", "--mfu", "0.25"]
    answer = CliRunner().invoke(command, words, catch_exceptions=False)
    assert "at 25 % of 2 x 19.5 TFLOP/s" in answer.output
    assert answer.exit_code == 0
