"""Figures in TensorBoard, Weights & Biases and MLflow, read back with their own readers; traces."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from corpuskit.errors import UsageError
from corpuskit.train.loop import main
from corpuskit.train.metrics import (
    EvaluationMetrics,
    ExpertLoads,
    SourceLoss,
    StepMetrics,
    TaskScores,
    TrainResult,
)
from corpuskit.train.trackers import OPENERS, Trackers, figures_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.train.settings import TrainSettings


def silent(_update: object) -> None:
    """Observe nothing."""


def train_twice(settings: Callable[..., TrainSettings], tracker: str) -> list[dict[str, Any]]:
    """Train 4 of 8 steps, then the rest, as after a stop; return the lines of metrics.jsonl."""
    for steps in (4, 8):
        chosen = settings(steps=steps, log_every_steps=1, track=[tracker])
        with Trackers(chosen, silent) as observer:
            main(chosen, observer)
    lines = Path(chosen.output, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.filterwarnings("ignore")  # of its own imports
def test_tensorboard_has_every_step_once(settings: Callable[..., TrainSettings]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = train_twice(settings, "tensorboard")
    events = EventAccumulator(str(Path(settings().output, "tensorboard"))).Reload()
    assert {"loss", "lr", "loss_of/web", "mixture/books"} <= set(events.Tags()["scalars"])
    for name in ("loss", "grad_norm"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [*range(1, 9)]
        wanted = [line[name] for line in lines]
        assert [scalar.value for scalar in scalars] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_one_run_over_all_starts(settings: Callable[..., TrainSettings]) -> None:
    mlflow = pytest.importorskip("mlflow")
    lines = train_twice(settings, "mlflow")
    client = mlflow.MlflowClient(Path(settings().output, "mlruns").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("corpuskit").experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [
        (line["step"] + 1, line["loss"]) for line in lines
    ]
    assert run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_offline(settings: Callable[..., TrainSettings]) -> None:
    pytest.importorskip("wandb")
    train_twice(settings, "wandb")
    runs = [*Path(settings().output, "wandb").glob("offline-run-*")]
    identity = json.loads(Path(settings().output, "run.json").read_text())["id"]
    assert len(runs) == 2
    assert all(run.name.endswith(identity) for run in runs)


def test_a_missing_package_is_refused(
    settings: Callable[..., TrainSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        UsageError, match=r"mlflow is not installed\. Run: pip install mlflow-skinny"
    ):
        Trackers(settings(track=["mlflow"]), silent)


def test_a_tracker_that_fails_ends_nothing(
    settings: Callable[..., TrainSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken: list[dict[str, float]] = []

    def fails(values: dict[str, float], _step: int) -> None:
        taken.append(values)
        raise OSError("disk full")

    monkeypatch.setitem(OPENERS, "tensorboard", lambda *_: (fails, lambda: None))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    chosen = settings(log_every_steps=1, track=["tensorboard"])
    updates: list[object] = []
    with Trackers(chosen, updates.append) as observer:
        assert main(chosen, observer).steps_done == 8
    assert len(taken) == 1
    assert isinstance(updates[-1], TrainResult)
    assert capsys.readouterr().err.count("tensorboard gets no more figures: disk full") == 1


def test_evaluations_are_figures_too() -> None:
    loss = SourceLoss(2.0, 0.7, 10)
    task = TaskScores(3, 0, (), 0.5, None, None, None, None, 0.9, {})
    assert figures_of(EvaluationMetrics(40, {"web": loss}, {"arc": task})) == (
        {"held_out/web": 0.7, "task/arc/accuracy": 0.5, "task/arc/bits_per_byte": 0.9}, 40,
    )  # fmt: skip


def test_loads_of_experts_are_figures_too() -> None:
    step = StepMetrics(
        step=4, steps=9, tokens=5, loss=2.0, lr=1.0, grad_norm=1.0, tokens_per_second=1.0,
        step_seconds=1.0, data_wait_seconds=1.0, sources={}, mfu=None, data_wait_p50_ms=1.0,
        data_wait_p99_ms=1.0, is_applied=True, experts=ExpertLoads(1.5, 2),
    )  # fmt: skip
    values, done = figures_of(step)
    assert (done, values["experts/imbalance"], values["experts/idle"]) == (5, 1.5, 2)


def test_chosen_steps_are_traced_and_compute_the_same(
    settings_for: Callable[..., TrainSettings], tmp_path: Path
) -> None:
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    main(settings_for(plain, steps=3))
    main(settings_for(traced, steps=3, profile={"steps": [1], "memory": True}))
    losses = [
        [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]
        for output in (plain, traced)
    ]
    assert losses[0] == losses[1]
    assert os.listdir(traced / "profile") == ["step-00000001-rank-00000.json.gz"]
    trace = json.loads(
        gzip.decompress((traced / "profile" / os.listdir(traced / "profile")[0]).read_bytes())
    )
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"aten::mm", "[memory]"} <= names
