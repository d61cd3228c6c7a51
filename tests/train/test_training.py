"""The loop: same losses on any topology and after any kill; learning, stopping, refusing."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train import loop
from corpuskit.train.continuation import changed_settings
from corpuskit.train.estimate import estimate
from corpuskit.train.heartbeat import HeartbeatWriter
from corpuskit.train.likelihood import Evaluated
from corpuskit.train.loop import main, take_step, train
from corpuskit.train.metrics import StepMetrics, TrainResult
from corpuskit.train.parallel import join
from corpuskit.train.record import CheckpointRecord, read_record
from corpuskit.train.setup import set_up
from corpuskit.train.watch import StopSignals, Watch
from tests.patience import HANG_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow

# Two topologies add floats in different orders: their losses, near 3 nats, part by 1e-6 within 8
# steps. A wrong weight for a row or token moves them by 1e-3 and more.
TOLERANCE = 1e-5


def losses_of(settings: TrainSettings) -> list[float]:
    """Return the losses of a run's metrics, which must have a line per step, in order."""
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    return [step["loss"] for step in steps]


def work(*all_settings: TrainSettings) -> TrainResult:
    """Run each of the settings in this rank; return the last result."""
    for settings in all_settings:
        result = train(settings, join(settings), None)
    return result


@pytest.fixture(scope="module")
def straight(
    tmp_path_factory: pytest.TempPathFactory,
    settings_for: Callable[..., TrainSettings],
    run_ranks: Callable[..., list[Any]],
) -> list[float]:
    """The losses of an uninterrupted run on one rank."""
    settings = settings_for(tmp_path_factory.mktemp("straight"))
    run_ranks(1, work, settings)
    return losses_of(settings)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {}),
        (4, {"batch": {"global_rows": 8, "micro_rows": 1}, "parallel": {"replicas": 2}}),
    ],
    ids=["sharded over 2", "2 replicas over 4, accumulating"],
)
def test_ranks_do_not_change_the_losses(
    ranks: int, changes: dict[str, Any], straight: list[float], settings: Any, run_ranks: Any
) -> None:
    ours = settings(**changes)
    run_ranks(ranks, work, ours)
    assert losses_of(ours) == pytest.approx(straight, abs=TOLERANCE)


def test_micro_batches_and_recomputation_do_not_change_the_losses(
    straight: list[float], settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    runs = [
        settings_for(tmp_path / "1", batch={"global_rows": 8, "micro_rows": 1}),
        settings_for(tmp_path / "3", batch={"global_rows": 8, "micro_rows": 3}),
        settings_for(tmp_path / "full", parallel={"recompute": "full"}),
    ]
    run_ranks(1, work, *runs)
    for run in runs:
        assert losses_of(run) == pytest.approx(straight, abs=TOLERANCE)


def test_several_decays_branch_off_one_trunk_bit_for_bit(
    settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    # Of 10 steps of 256 tokens, the last 4 decay.
    changes = {
        "steps": 10,
        "optimizer": {"lr": 1e-2, "kind": "muon"},
        "checkpoint": {"every_steps": 3, "keep": 9},
    }
    decay = {"kind": "wsd", "warmup_tokens": 512, "decay_tokens": 4 * 256}
    at_six = str(tmp_path / "trunk" / "checkpoints" / "step-00000006")
    constant = decay | {"kind": "constant", "decay_tokens": None}
    trunk = settings_for(tmp_path / "trunk", **changes, schedule=constant)
    alone = settings_for(tmp_path / "alone", **changes, schedule=decay)
    branch = settings_for(tmp_path / "branch", **changes, schedule=decay, branch_from=at_six)
    short = settings_for(
        tmp_path / "short", **changes | {"steps": 8}, branch_from=at_six,
        schedule=decay | {"decay_tokens": 512, "decay_shape": "sqrt"},
    )  # fmt: skip
    run_ranks(2, work, trunk, alone, branch, short)
    lines = Path(branch.output, "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert [line["step"] for line in metrics] == [6, 7, 8, 9]
    assert [line["loss"] for line in metrics] == losses_of(alone)[6:]
    assert losses_of(trunk)[:7] == losses_of(alone)[:7]
    assert losses_of(trunk)[8:] != losses_of(alone)[8:]
    assert "branch" in [event["event"] for event in events_of(branch)]
    ends = [
        read_record(Path(run.output, "checkpoints", "step-00000010")) for run in (branch, alone)
    ]
    assert ends[0].loader == ends[1].loader
    assert ends[0].run != ends[1].run
    other = settings_for(tmp_path / "other", **changes | {"optimizer": {}}, branch_from=at_six)
    nothing = settings_for(tmp_path / "nothing", branch_from=str(tmp_path / "trunk"))
    assert "optimizer.kind 'muon' there, 'adamw' here" in run_ranks(1, _fail, other)[0]
    for schedule, key, start in (
        (decay | {"decay_tokens": 1025}, "decay_tokens", "1,535"),
        ({"kind": "wsd", "decay_ratio": 0.5}, "decay_ratio", "1,280"),
        ({"kind": "cosine", "warmup_tokens": 512}, "kind", "512"),
    ):
        jump = settings_for(tmp_path / "jump", **changes, schedule=schedule, branch_from=at_six)
        refusal = (
            f"schedule.{key}: the rate falls after {start} of 2,560 tokens, and the branch begins "
            "after 1,536: it would jump. Set kind to wsd and decay_tokens to at most 1,024, or"
        )
        assert refusal in run_ranks(1, _fail, jump)[0]
        with pytest.raises(UsageError, match=re.escape(refusal)):
            estimate(jump)
    estimate(branch)
    # In the midst of a decay: the rate goes on as it was.
    at_nine = str(tmp_path / "alone" / "checkpoints" / "step-00000009")
    late = settings_for(tmp_path / "late", **changes, schedule=decay, branch_from=at_nine)
    estimate(late)
    run_ranks(2, work, late)
    (last,) = Path(late.output, "metrics.jsonl").read_text().splitlines()
    assert (json.loads(last)["step"], json.loads(last)["loss"]) == (9, losses_of(alone)[9])
    assert "trunk is not a checkpoint. Name a folder step-N" in run_ranks(1, _fail, nothing)[0]


def test_a_killed_run_resumes_bit_for_bit(
    settings_for: Any, tmp_path: Path, start_ranks: Any, run_ranks: Any
) -> None:
    changes = {"steps": 14, "checkpoint": {"every_steps": 3, "keep": 2}}
    calm, killed = (settings_for(tmp_path / name, **changes) for name in ("calm", "killed"))
    run_ranks(2, work, calm)
    ranks = start_ranks(2, work, killed)
    metrics, enough = Path(killed.output, "metrics.jsonl"), random.randint(7, 10)
    wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= enough)
    ranks.kill()
    run_ranks(2, work, killed)
    assert losses_of(killed) == losses_of(calm)
    starts = [event["step"] for event in events_of(killed) if event["event"] == "start"]
    assert starts[0] == 0
    assert 3 <= starts[1] < 14


def test_a_kill_while_saving_leaves_the_checkpoint_before(
    straight: list[float], settings: Any, start_ranks: Any, run_ranks: Any
) -> None:
    ours = settings(checkpoint={"every_steps": 1, "keep": 2, "background": False})
    folder = Path(ours.output, "checkpoints")
    ranks = start_ranks(1, work, ours)
    partial, later = folder / "step-00000003.tmp", folder / "step-00000004"
    wait_until(lambda: partial.exists() or later.exists())
    ranks.kill()
    for checkpoint in folder.glob("step-????????"):
        assert read_record(checkpoint).step == int(checkpoint.name[5:])
        assert (checkpoint / ".metadata").exists()
    run_ranks(1, work, ours)
    assert losses_of(ours) == straight
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000007", "step-00000008"]


def test_a_checkpoint_continues_on_any_number_of_ranks(
    straight: list[float], settings: Any, run_ranks: Any
) -> None:
    for ranks, steps in ((4, 3), (1, 5), (2, 8)):
        run_ranks(ranks, work, settings(steps=steps))
    assert losses_of(settings()) == pytest.approx(straight, abs=TOLERANCE)


def test_a_checkpoint_knows_the_next_rows(settings: Any, run_ranks: Any) -> None:
    ours = settings(steps=3)
    run_ranks(2, work, ours)
    record = read_record(Path(ours.output, "checkpoints", "step-00000003"))
    whole, resumed = StreamingLoader(ours.data, 8), StreamingLoader(ours.data, 8)
    resumed.load_state_dict(record.loader)
    batches = list(whole)
    for batch, expected in zip(resumed, batches[3:], strict=True):
        assert batch["run_rows"].tolist() == expected["run_rows"].tolist()
        assert batch["row_ids"].tolist() == expected["row_ids"].tolist()
    assert record.plan_hash == whole.plan.hash
    assert record.settings_hash == ours.digest()


@pytest.mark.parametrize("parallel", [{}, {"tensor": 2}, {"context": 2}])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(
    parallel: dict[str, int], settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    shared = {"parallel": parallel}
    calm = settings_for(tmp_path / "calm", **shared)
    stopped = settings_for(tmp_path / "stopped", log_every_steps=3, **shared)
    run_ranks(2, work, calm)
    results = run_ranks(2, _stop_at_the_third_step, stopped)
    assert [(r.steps_done, r.exit_code) for r in results] == [(4, 75)] * 2
    assert results[0].stopped_by == "SIGUSR1"
    run_ranks(2, work, stopped)
    assert losses_of(stopped) == losses_of(calm)


def _stop_at_the_third_step(settings: TrainSettings) -> TrainResult:
    def stop(told: StepMetrics | TrainResult) -> None:
        if isinstance(told, StepMetrics) and told.step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    return train(settings, join(settings), stop)


@pytest.mark.parametrize("context", [1, 2])
def test_a_non_finite_step_is_not_applied_and_names_rows(
    context: int, settings: Any, run_ranks: Any
) -> None:
    ours = settings(
        parallel={"context": context},
        optimizer={"lr": 1e30, "clip_norm": 0},
        checkpoint={"every_steps": 1},
        guard={"tolerate": 1},
    )
    messages = run_ranks(2, _fail, ours)
    bad = [event for event in events_of(ours) if event["event"] == "bad_step"]
    steps = [event["step"] for event in bad]
    assert steps == [steps[0], steps[0] + 1], "one is tolerated"
    assert 1 <= steps[0] < 7
    named = ", ".join(map(str, steps))
    assert messages[0] == messages[1]
    assert f": a step was bad 2 times within 128 steps (steps {named}), and guard" in messages[0]
    for event, batch in zip(bad, [*StreamingLoader(ours.data, 8)][steps[0] :], strict=False):
        assert [name for name, _ in event["rows"]] == row_names(batch)
    assert events_of(ours)[-1]["event"] == "failed"
    lines = Path(ours.output, "metrics.jsonl").read_text().splitlines()
    applied = [json.loads(line)["is_applied"] for line in lines]
    assert applied == [True] * steps[0] + [False] * 2


def test_only_rows_without_a_finite_loss_are_named(settings: Any, run_ranks: Any) -> None:
    model = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "tied": False}
    ours = settings(model=model)
    ((is_applied, is_unchanged, bad),) = run_ranks(1, _meet_a_poisoned_token, ours)
    assert 0 < len(bad) < 8
    assert not is_applied
    assert is_unchanged
    (event,) = [event for event in events_of(ours) if event["event"] == "bad_step"]
    assert [name for name, loss in event["rows"] if loss == "nan"] == bad


def _meet_a_poisoned_token(settings: TrainSettings) -> tuple[bool, bool, list[str]]:
    """Return whether the step was applied, whether the weights stayed, and the rows it is in."""
    run = set_up(settings, join(settings))
    batch = next(iter(StreamingLoader(settings.data, 8)))
    holders = [(batch["tokens"] == token).any(1) for token in range(48)]
    token = min(range(48), key=lambda token: holders[token].sum() or 99)
    with torch.no_grad():
        local_part(run.model.embedding.weight)[token] = float("nan")
        head = local_part(run.model.head.weight)
        before = head.clone()
    bad = [name for name, held in zip(row_names(batch), holders[token], strict=True) if held]
    heartbeat = HeartbeatWriter(settings.output, 0, 60)
    judged = Evaluated()
    with heartbeat, StopSignals() as stop, Watch(run, None, heartbeat, stop, judged) as watch:
        progress, _ = take_step(run, 0, iter(run.loader), watch)
    return progress.is_applied, torch.equal(head, before), bad


def local_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def row_names(batch: dict[str, Any]) -> list[str]:
    pairs = zip(batch["source_ids"], batch["row_ids"], strict=True)
    return [f"{('web', 'books')[source]}/{row}" for source, row in pairs]


def _fail(settings: TrainSettings) -> str:
    try:
        work(settings)
    except CorpuskitError as error:
        return f"{type(error).__name__}: {error}"
    return "finished"


def test_a_failed_save_is_raised_while_training_goes_on(settings: Any, run_ranks: Any) -> None:
    ours = settings(steps=79, checkpoint={"every_steps": 20})
    (message,) = run_ranks(1, _fail_to_write, ours)
    assert "step-00000020: the checkpoint could not be written: " in message
    assert "File too large" in message
    assert 20 <= len(losses_of(ours)) < 40, "no later than the next save"
    assert [path.suffix for path in Path(ours.output, "checkpoints").iterdir()] == [".tmp"]


def _fail_to_write(settings: TrainSettings) -> str:
    import resource

    # Room for metrics and small files, and not for the checkpoint's 400 kB.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    return _fail(settings)


def test_the_loss_falls_below_the_unigram_entropy(settings: Any, run_ranks: Any) -> None:
    ours = settings(steps=60, schedule={"kind": "cosine"})
    run_ranks(1, work, ours)
    labels = np.concatenate([b["labels"][b["labels"] >= 0] for b in StreamingLoader(ours.data, 8)])
    shares = np.bincount(labels) / len(labels)
    entropy = -(shares * np.log(np.where(shares, shares, 1))).sum()
    assert entropy > 3.5
    assert np.mean(losses_of(ours)[-5:]) < entropy - 1


@pytest.mark.parametrize("context", [1, 2])
def test_metrics_add_up(context: int, settings: Any, run_ranks: Any) -> None:
    ours = settings(steps=3, parallel={"context": context})
    run_ranks(2, work, ours)
    lines = Path(ours.output, "metrics.jsonl").read_text().splitlines()
    for line, batch in zip(map(json.loads, lines), StreamingLoader(ours.data, 8), strict=False):
        sources = line["sources"]
        tokens = sum(source["tokens"] for source in sources.values())
        assert tokens == (batch["labels"] >= 0).sum()
        assert line["loss"] == pytest.approx(
            sum(source["loss"] * source["tokens"] for source in sources.values()) / tokens
        )
        for number, (name, source) in enumerate(sources.items()):
            assert name == ("web", "books")[number]
            size = batch["text_bytes"][batch["source_ids"] == number].sum()
            bits = source["loss"] * source["tokens"] / np.log(2) / size
            assert source["bits_per_byte"] == pytest.approx(bits)
        assert line["tokens"] == 8 * 32 * (line["step"] + 1)


def test_bfloat16_learns_too(straight: list[float], settings: Any, run_ranks: Any) -> None:
    ours = settings(dtype="bfloat16")
    run_ranks(2, work, ours)
    assert losses_of(ours) == pytest.approx(straight, abs=0.02)
    assert losses_of(ours) != straight


def test_alone_main_needs_no_group_and_returns(settings: Any, run_ranks: Any) -> None:
    ((first, again, lines),) = run_ranks(1, _main_twice, settings(log_every_steps=4), group=False)
    assert (first.steps_done, first.exit_code) == (8, 0)
    assert (again.steps_done, again.loss) == (8, None)
    steps = [line.split()[0] for line in lines if not line.startswith(("mixture", "checkpoint"))]
    assert steps == ["4/8", "8/8", "finished", "resume:", "finished"]


def _main_twice(settings: TrainSettings) -> tuple[TrainResult, TrainResult, list[str]]:
    lines: list[str] = []
    first = main(settings, lambda told: lines.append(str(told)))
    return first, main(settings, lambda told: lines.append(str(told))), lines


def test_among_several_main_ends_the_process(settings: Any, start_ranks: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = settings()
    ranks = [start_ranks(1, _main_as, ours, rank, port, group=False) for rank in range(2)]
    for rank in ranks:
        rank.processes[0].join(HANG_SECONDS)
    assert [rank.processes[0].exitcode for rank in ranks] == [0, 0]
    assert len(losses_of(ours)) == 8


def _main_as(settings: TrainSettings, rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    main(settings)
    os._exit(9)  # not reached


def test_torchrun_restarts_a_killed_rank(
    straight: list[float], settings: Any, tmp_path: Path
) -> None:
    ours = settings(checkpoint={"every_steps": 2, "background": False}, log_every_steps=1)
    program = tmp_path / "train.py"
    program.write_text(SUICIDAL)
    restarts = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    run = subprocess.run(
        [*restarts, "--nproc-per-node=1", str(program), ours.model_dump_json()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert losses_of(ours) == pytest.approx(straight, abs=TOLERANCE)
    assert [e["step"] for e in events_of(ours) if e["event"] == "start"] == [0, 4]


SUICIDAL = """
import os, signal, sys
from corpuskit.train.loop import main
from corpuskit.train.metrics import StepMetrics
from corpuskit.train.settings import TrainSettings

def observe(told):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and isinstance(told, StepMetrics) and told.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)

main(TrainSettings.model_validate_json(sys.argv[1]), observe)
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 81}, r"steps: 81 of 8 rows: .* has rows for 80\."),
        ({"steps": None, "tokens": 99_999}, r"tokens: 99999, 391 steps of 8 rows: .* for 80\."),
        ({"parallel": {"replicas": 3}}, "parallel.replicas: 3 does not divide the 1 ranks"),
        ({"device": "cuda"}, "device: 'cuda' is set, and torch finds no CUDA device"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], message: str, settings: Any, run_ranks: Any
) -> None:
    with pytest.raises(UsageError, match=message):
        raise UsageError(run_ranks(1, _fail, settings(**changes))[0])


def test_ranks_with_different_settings_do_not_start(settings: Any, run_ranks: Any) -> None:
    messages = run_ranks(2, _fail_apart, settings())
    assert messages[0] == messages[1]
    assert "the training file with its overrides differs between ranks (rank 0: " in messages[0]


def _fail_apart(settings: TrainSettings) -> str:
    return _fail(settings.model_copy(update={"seed": torch.distributed.get_rank()}))


def test_a_folder_has_one_training_at_a_time(
    settings: Any, run_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = settings(steps=2)
    monkeypatch.setattr("corpuskit.train.record.LOCK_SECONDS", 0.1)
    run_ranks(1, work, ours)
    with Path(ours.output, "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (message,) = run_ranks(1, _fail, ours)
    assert "another process trains into this folder" in message
    (message,) = run_ranks(1, _fail, settings(steps=1))
    assert "step-00000002: 2 steps are done, and the run is to have 1." in message


def test_another_model_or_step_size_does_not_continue(settings: Any, run_ranks: Any) -> None:
    model = {"dim": 32, "layers": 3, "heads": 4, "kv_heads": 2, "ffn_dim": 64}
    wrong = settings(model=model, batch={"global_rows": 16, "micro_rows": 8})
    run_ranks(1, work, settings(steps=2))
    (message,) = run_ranks(1, _fail, wrong)
    assert "step-00000002: the checkpoint is of another run: " in message
    assert "layers 2 there, 3 here; global_rows 8 there, 16 here." in message


def test_other_settings_are_used_and_reported(settings: Any, run_ranks: Any) -> None:
    first = settings(steps=2, optimizer={"lr": 1e-3})
    run_ranks(1, work, first)
    other = {"lr": 2e-3, "weight_decay": 0.5, "beta1": 0.5}
    changed = settings(steps=3, optimizer=other, log_every_steps=7)
    (groups,) = run_ranks(1, _groups, changed)
    assert {(group["betas"], group["weight_decay"]) for group in groups} == {
        ((0.5, 0.95), 0.5), ((0.5, 0.95), 0.0)
    }  # fmt: skip
    (event,) = (one for one in events_of(changed) if one["event"] == "settings_changed")
    assert event["text"] == (
        "since step-00000002: optimizer.beta1: 0.9, now 0.5; optimizer.lr: 0.001, now 0.002; "
        "optimizer.weight_decay: 0.1, now 0.5; steps: 2, now 3"
    )


def test_every_setting_that_decides_what_is_learned_is_reported(settings: Any) -> None:
    changes: dict[str, Any] = {
        "adapter.rank": (2, 4), "distill.weight": (0.5, 0.25), "dtype": ("float32", "bfloat16"),
        "float8": (False, True), "guard.sigmas": (6.0, 0.0), "init_from": ("a", "b"),
        "model.z_loss": (0.0, 0.5), "optimizer.clip_norm": (1.0, 2.0), "steps": (8, 9),
        "schedule.final_ratio": (0.1, 0.0), "tokens": (None, 99),
    }  # fmt: skip
    same = {"log_every_steps": 3, "peak_tflops": 1.0, "parallel": {"recompute": "full"}}
    needed = {"adapter": {"rank": 2}, "init_from": "a", "distill": {"teacher": "t"}}
    before = settings(**needed)
    record = CheckpointRecord(2, {}, before.model_dump(mode="json"), "", "", {}, world_size=1)
    assert changed_settings(record, settings(**needed, **same)) == []
    for key, (old, new) in changes.items():
        section, _, name = key.partition(".")
        now = getattr(before, section)
        value = now.model_copy(update={name: new}) if name else new
        changed = changed_settings(record, before.model_copy(update={section: value}))
        assert changed == [f"{key}: {old}, now {new}"]


PIPELINE = {
    "parallel": {"pipeline": 2},
    "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "tied": False,
              "mup_base_dim": 16},
    "batch": {"global_rows": 8, "micro_rows": 4},
}  # fmt: skip
EXPERTS = {
    "parallel": {"expert": 2},
    "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64,
              "experts": {"count": 4, "per_token": 2}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(kind, {}) for kind in ("adamw", "muon", "lion", "adamw8bit", "schedule_free")]
    + [(kind, PIPELINE) for kind in ("adamw", "muon", "lion", "adamw8bit", "schedule_free")]
    + [(kind, EXPERTS) for kind in ("muon", "adamw8bit")],
)
def test_every_optimizer_goes_on_with_the_settings_of_now(
    kind: str, changes: dict[str, Any], settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    # As an optimizer that had them from its first step, stopped once or twice.
    ranks = 2 if changes else 1
    beta1 = 0.9 if kind == "schedule_free" else 0.5  # its weights lie where beta1 says
    other = {
        "kind": kind, "lr": 2e-3, "weight_decay": 0.5, "beta1": beta1, "beta2": 0.6, "eps": 1e-5,
        "momentum": 0.7,
    }  # fmt: skip
    optimizers = [{"kind": kind, "lr": 1e-3}, other, other]
    stopped = [
        settings_for(tmp_path / "stopped", steps=steps, optimizer=optimizer, **changes)
        for steps, optimizer in enumerate(optimizers, 1)
    ]
    whole = settings_for(tmp_path / "whole", steps=3, optimizer=other, **changes)
    same = [
        settings_for(tmp_path / "same", steps=steps, optimizer=other, **changes)
        for steps in (1, 2, 3)
    ]
    found = run_ranks(ranks, _groups, *same, *stopped)
    expected = run_ranks(ranks, _groups, whole)
    for by_group, from_the_start in zip(found, expected, strict=True):
        assert len(by_group) == len(from_the_start)
        for group, fresh in zip(by_group, from_the_start, strict=True):
            assert group | {"weights": 0} == fresh | {"weights": 0}
            assert ("weights" in group) == (kind == "schedule_free")
    assert losses_of(same[-1]) == losses_of(whole)


def _groups(*all_settings: TrainSettings) -> list[dict[str, Any]]:
    """Run each of the settings in this rank; return the groups of the last optimizer."""
    return [_groups_of(settings) for settings in all_settings][-1]


def _groups_of(settings: TrainSettings) -> list[dict[str, Any]]:
    found = []
    take_steps = loop.take_steps

    def spy(run: Any, *rest: Any) -> Any:
        result = take_steps(run, *rest)
        found.extend({**group, "params": None} for group in run.optimizer.param_groups)
        return result

    loop.take_steps = spy
    try:
        work(settings)
    finally:
        loop.take_steps = take_steps
    return found


def test_another_seed_or_trunk_does_not_continue(
    settings: Any, run_ranks: Any, tmp_path: Path
) -> None:
    run_ranks(1, work, settings(steps=2))
    (message,) = run_ranks(1, _fail, settings(steps=3, seed=5))
    assert "seed: 5 here, and the training in " in message
    (message,) = run_ranks(1, _fail, settings(steps=3, branch_from=str(tmp_path / "step-00000001")))
    assert "branch_from: step-00000001 here, and the training in " in message
    assert "began with none. Restore it" in message


def events_of(settings: TrainSettings) -> list[dict[str, Any]]:
    lines = Path(settings.output, "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
