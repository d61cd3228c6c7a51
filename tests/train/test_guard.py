"""The guard: what counts as a bad step, whose documents it names, and how a run goes back."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from corpuskit.cli.main import main
from corpuskit.errors import CorpuskitError
from corpuskit.inspect.occurrences import read_training
from corpuskit.loader.editing import append, new_stage
from corpuskit.loader.index import read_mix
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train.guard import GuardError, SpikeGuard, document_losses
from corpuskit.train.loop import train
from corpuskit.train.parallel import join
from corpuskit.train.record import complete_checkpoints
from corpuskit.train.settings import GuardSettings, TrainSettings
from tests.engine import conftest as lab_fixtures
from tests.engine.conftest import Lab

if TYPE_CHECKING:
    from corpuskit.train.metrics import TrainResult


tokenizer = lab_fixtures.tokenizer


def guard_after(steps: list[tuple[float, float]], **settings: Any) -> SpikeGuard:
    guard = SpikeGuard(GuardSettings(**{"window": 16, "min_steps": 4, **settings}))
    for step, (loss, norm) in enumerate(steps):
        assert guard.judge(step, loss, norm) is None
    return guard


CALM = [(3.0 + 0.01 * (step % 3), 1.0 + 0.02 * (step % 5)) for step in range(12)]


@pytest.mark.parametrize(
    ("loss", "norm", "reason"),
    [
        (3.02, 1.05, None),
        (math.nan, 1.0, "loss is nan"),
        (3.0, math.inf, "gradient norm is inf"),
        (4.0, 1.0, "loss 4 is 65.8 standard deviations above 3.01"),
        (3.0, 4.0, None),
        (3.0, 20.0, "gradient norm 20 is 7.4 standard deviations, in logarithms, above 1.0"),
        (1.0, 0.1, None),
    ],
)
def test_what_is_far_above_the_window_is_bad(loss: float, norm: float, reason: str | None) -> None:
    found = guard_after(CALM).judge(12, loss, norm)
    assert found == reason or (reason and found and found.startswith(reason))


def test_a_loss_that_stays_higher_becomes_the_usual_one() -> None:
    guard = guard_after(CALM)
    bad = [guard.judge(12 + n, 9.0, 1.0) is not None for n in range(6)]
    assert bad[0]
    assert not bad[-1]
    assert sum(bad) <= GuardSettings().tolerate, "nobody ends for it"


def test_another_stage_of_the_mixture_begins_a_window_of_its_own() -> None:
    guard = guard_after(CALM)
    guard.reset()
    assert guard.judge(12, 9.0, 1.0) is None
    assert guard.usual_loss == 9.0


def test_spikes_are_looked_for_once_there_is_something_to_compare_with() -> None:
    assert guard_after(CALM[:3]).judge(3, 50.0, 50.0) is None
    assert guard_after(CALM[:4]).judge(4, 50.0, 50.0)
    assert guard_after(CALM, sigmas=0).judge(12, 50.0, 50.0) is None


def test_bad_steps_are_tolerated_up_to_a_number_within_the_window() -> None:
    guard = guard_after(CALM, tolerate=2)
    exhausted = []
    for step in (12, 20, 29, 30, 31):
        guard.judge(step, math.nan, 1.0)
        exhausted.append(guard.is_exhausted)
    # 12 is out of the window of 16 steps when 29 comes.
    assert exhausted == [False, False, False, True, True]


@pytest.mark.parametrize("stop", [0, 5, 11, 14])
def test_a_restored_guard_judges_as_the_one_that_never_stopped(stop: int) -> None:
    steps = [*CALM, (3.5, 1.0), (3.02, 1.0), (3.0, 9.0), (math.nan, 1.0), (3.3, 1.1)]
    settings = GuardSettings(window=8, min_steps=4)
    calm, before = SpikeGuard(settings), SpikeGuard(settings)
    expected = [calm.judge(n, *step) for n, step in enumerate(steps)]
    found = [before.judge(n, *step) for n, step in enumerate(steps[:stop])]
    after = SpikeGuard(settings, json.loads(json.dumps(before.state_dict())))
    found += [after.judge(n, *step) for n, step in enumerate(steps[stop:], stop)]
    assert found == expected
    assert after.state_dict() == calm.state_dict()


def test_the_dearest_documents_come_first_and_those_without_a_finite_loss_before_all() -> None:
    batch = {
        "position_ids": np.array([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 3]]),
        "labels": np.array([[5, 5, -100, 5, 5, -100], [5, -100, -100, -100, -100, -100]]),
    }
    losses = np.array([[1, 3, 0, 7, 9, 0], [np.nan, 0, 0, 0, 0, 0]], np.float32)
    found = document_losses(batch, losses, expected=2.0)
    assert [(row, first, tokens) for _, row, first, tokens, _ in found] == [
        (1, 0, 1), (0, 3, 2), (0, 0, 2),
    ]  # fmt: skip
    assert [one[0] for one in found] == [math.inf, 12.0, 0.0]
    assert found[1][4] == 8.0


STEPS = 80
WORDS = "the a red old house stone lies under".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A run directory of easy text with one document of noise in it."""
    lab = Lab(tmp_path_factory.mktemp("poisoned"), tokenizer)
    chance = random.Random(1)
    easy = [
        {"id": f"easy-{n}", "text": " ".join(chance.choice(WORDS) for _ in range(100))}
        for n in range(560)
    ]
    noise = "".join(chr(chance.randrange(0x2800, 0x28FF)) for _ in range(38))
    lab.write("web.jsonl", [*easy[:300], {"id": "poison", "text": noise}, *easy[300:]])
    lab.pipeline["sources"].pop("books")
    lab.pipeline["seed"] = 1  # the noise comes once the loss has fallen, at step 64
    tokenize = {"tokenize": {"tokenizer": str(tokenizer)}}
    lab.pipeline["stages"] = [
        {"mix": {"weights": {"web": 1}}}, tokenize, {"pack": {"seq_len": 128}}, "shuffle",
    ]  # fmt: skip
    lab.save()
    lab.cli("run", "p.yaml")
    return lab.out


@pytest.fixture
def poisoned(made: Path, tmp_path: Path) -> Path:
    """A run directory of this test's own, which may be edited."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def settings_of(run: Path, output: str, **changes: Any) -> TrainSettings:
    fields = {
        "data": str(run),
        "output": str(run.parent / output),
        "model": {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ffn_dim": 64},
        "batch": {"global_rows": 8, "micro_rows": 4},
        "steps": STEPS,
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "cosine", "warmup_ratio": 0.1},
        "checkpoint": {"every_steps": 5, "keep": 3},
        "guard": {"min_steps": 8, "window": 16},
        "device": "cpu",
    }
    return TrainSettings.model_validate(fields | changes)


def work(settings: TrainSettings) -> TrainResult | str:
    try:
        return train(settings, join(settings))
    except CorpuskitError as error:
        return f"{type(error).__name__}: {error}"


def lines_of(settings: TrainSettings, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(settings.output, name).read_text().splitlines()]


def events(settings: TrainSettings, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines_of(settings, "events.jsonl") if event["event"] == kind]


@pytest.mark.slow
def test_the_guard_names_a_planted_document_and_skips_it_for_good(
    poisoned: Path, run_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = StreamingLoader(poisoned, 8)
    (seen,) = loader.occurrences("poison")
    assert 55 < seen.step < STEPS - 5, "choose another seed"

    tolerant = settings_of(poisoned, "tolerant")
    run_ranks(1, work, tolerant)
    (bad,) = events(tolerant, "bad_step")
    assert (bad["step"], bad["documents"][0]["document"]) == (seen.step, "poison")
    assert bad["documents"][0]["file"] == "web.jsonl"
    assert bad["reason"].startswith("loss ")
    assert sorted(row for row, _ in bad["rows"]) == sorted(
        f"{row.source}/{row.source_row}" for row in loader.which(seen.step)
    )
    metrics = lines_of(tolerant, "metrics.jsonl")
    assert [line["step"] for line in metrics if not line["is_applied"]] == [seen.step]
    assert len(metrics) == STEPS

    strict = settings_of(
        poisoned,
        "strict",
        guard={"min_steps": 8, "window": 16, "tolerate": 0, "rollbacks": 1, "rollback_steps": 6},
    )
    run_ranks(2, work, strict)
    (back,) = events(strict, "rollback")
    assert back["bad_steps"] == [seen.step]
    assert back["back_to"] == (seen.step - 6) // 5 * 5
    metrics = lines_of(strict, "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(STEPS))
    assert all(line["is_applied"] for line in metrics)
    trained = read_training(strict.output)
    skipping = StreamingLoader(poisoned, 8, skip=trained.skips)
    assert skipping.num_steps == loader.num_steps - 1
    taught = [rows for step in range(STEPS) for rows in skipping.which(step)]
    assert "poison" not in {span.id for row in taught for span in row.documents}
    step = ["--step", str(seen.step)]
    assert "id=poison" not in told(capsys, "trace", poisoned, *step, "--training", strict.output)
    assert "id=poison" in told(capsys, "trace", poisoned, *step, "--training", tolerant.output)
    assert "rollback passes over" in told(capsys, "why", poisoned, "poison", "--training",
                                          strict.output)  # fmt: skip

    # The skip is this training's own: the plan has no edit, and another training goes on.
    assert not (poisoned / "edits").exists()
    (result,) = run_ranks(1, work, settings_of(poisoned, "tolerant", steps=STEPS + 1))
    assert result.steps_done == STEPS + 1

    # A checkpoint that is copied alone, or branched from, brings it along.
    newest = f"checkpoints/step-{STEPS:08d}"
    shutil.copytree(Path(strict.output, newest), tmp_path / "branch" / newest)
    (result,) = run_ranks(1, work, settings_of(poisoned, "branch", steps=STEPS + 1))
    assert result.steps_done == STEPS + 1
    assert read_training(str(tmp_path / "branch")).skips == trained.skips
    trunk = str(Path(strict.output, newest))
    run_ranks(1, work, settings_of(poisoned, "off", steps=STEPS + 1, branch_from=trunk))
    assert read_training(str(tmp_path / "off")).skips == trained.skips

    # An edit that replaces rows ends the spans from there on: others are not skipped.
    plan = read_mix(poisoned)
    first, end, _ = trained.skips[0]
    append(plan, new_stage(plan, first + 2, {"web": 1}))
    assert StreamingLoader(poisoned, 8, skip=trained.skips).plan.skips.spans == (
        (first, first + 2),
    )
    assert StreamingLoader(poisoned, 8, skip=[(first, end)]).plan.skips.spans == ((first, end),)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([str(argument) for argument in arguments])
    return capsys.readouterr().out


@pytest.mark.slow
def test_without_rollbacks_left_the_run_ends_and_says_why(poisoned: Path, run_ranks: Any) -> None:
    step = StreamingLoader(poisoned, 8).occurrences("poison")[0].step
    settings = settings_of(poisoned, "train", guard={"min_steps": 8, "window": 16, "tolerate": 0})
    for _ in range(2):  # nor does it go on when started again
        (message,) = run_ranks(1, work, settings)
        start = f"GuardError: {settings.output}: a step was bad 1 time within 16 steps (steps "
        assert message.startswith(f"{start}{step}), and guard.rollbacks is 0.")
    assert GuardError.exit_code == 77
    assert lines_of(settings, "metrics.jsonl")[-1]["step"] == step
    assert not (poisoned / "edits").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "back_to", "skipped"),
    [((12,), 10, (12, 13)), ((6, 9, 12, 13), 10, (12, 14))],
    ids=["one", "older than any checkpoint"],
)
def test_a_rollback_keeps_a_checkpoint_and_shortens_a_run_that_has_no_rows_to_spare(
    bad: tuple[int, ...], back_to: int, skipped: tuple[int, int],
    run_dir: Path, settings: Any, tmp_path: Path, run_ranks: Any,
) -> None:  # fmt: skip
    data = shutil.copytree(run_dir, tmp_path / "data")
    ours = settings(
        data=str(data),
        steps=80,
        checkpoint={"every_steps": 10, "keep": 1},
        guard={"tolerate": len(bad) - 1, "rollbacks": 1},
    )
    (result,) = run_ranks(1, find_bad, ours, bad)
    (back,) = events(ours, "rollback")
    assert (back["back_to"], back["bad_steps"]) == (back_to, [*bad])
    assert back["skipped_rows"] == [8 * skipped[0], 8 * skipped[1]]
    left = 80 - (skipped[1] - skipped[0])
    assert (result.steps_done, result.steps) == (left, left)
    assert [line["step"] for line in lines_of(ours, "metrics.jsonl")] == [*range(left)]
    starts = [event["step"] for event in events(ours, "start")]
    assert starts == [0, back_to]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tolerate", "bad", "back_to", "left"),
    [(1, (9, 12), 4, [*range(18, 31, 2)]), (0, (12,), 8, [26, 28, 30])],
)
def test_a_checkpoint_that_a_rollback_may_need_is_kept_whatever_else_is_not(
    tolerate: int, bad: tuple[int, ...], back_to: int, left: list[int],
    settings: Any, run_ranks: Any,
) -> None:  # fmt: skip
    guard = {"tolerate": tolerate, "rollbacks": 1, "rollback_steps": 4, "window": 8}
    ours = settings(steps=30, checkpoint={"every_steps": 2, "keep": 1}, guard=guard)
    run_ranks(1, find_bad, ours, bad)
    (back,) = events(ours, "rollback")
    assert (back["back_to"], back["bad_steps"]) == (back_to, [*bad])
    # None that no rollback could go to.
    assert [*complete_checkpoints(Path(ours.output, "checkpoints"))] == left


def find_bad(settings: TrainSettings, bad: tuple[int, ...]) -> TrainResult | str:
    """Train with a guard that finds some steps bad at their first time."""
    left = [*bad]
    judge = SpikeGuard.judge

    def judge_so(guard: SpikeGuard, step: int, loss: float, norm: float) -> str | None:
        if left and step == left[0]:
            loss = math.nan
            left.pop(0)
        return judge(guard, step, loss, norm)

    SpikeGuard.judge = judge_so  # in a fork of its own
    return work(settings)
