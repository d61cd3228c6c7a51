"""TensorBoard, Weights & Biases and MLflow as observers of a training.

Each gets the figures that the observer gets, over the number of steps done. A tracker that fails
does not end the training: it gets no more figures, and one line on standard error says so.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from corpuskit.errors import UsageError
from corpuskit.train.metrics import EvaluationMetrics, MixtureMetrics, StepMetrics, TrainResult
from corpuskit.train.record import id_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corpuskit.train.metrics import Observer, Update
    from corpuskit.train.settings import TrainSettings

    Log = Callable[[dict[str, float], int], None]
    Close = Callable[[], None]

STEP_FIGURES = (
    "loss", "lr", "grad_norm", "tokens", "tokens_per_second", "step_seconds", "data_wait_seconds",
    "mfu",
)  # fmt: skip


class Trackers:
    """An observer that calls `observer` first, then the trackers that `settings.track` names.

    Trackers are opened when the first figures come, so only on the rank that gets figures.

    Raises:
        UsageError: the package of a tracker is missing.
    """

    def __init__(self, settings: TrainSettings, observer: Observer) -> None:
        require_trackers(settings.track)
        self._settings, self._observer = settings, observer
        self._unopened: list[str] = list(settings.track)
        self._open: dict[str, tuple[Log, Close]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._open):
            self._attempt(name, self._open.pop(name)[1])

    def __call__(self, update: Update) -> None:
        self._observer(update)
        if isinstance(update, TrainResult):
            self.__exit__()  # a process of several ranks ends without leaving the context
        values, step = figures_of(update)
        while values and self._unopened:
            name = self._unopened.pop()
            self._attempt(name, functools.partial(self._begin, name, step))
        for name, (log, _) in list(self._open.items()) if values else ():
            self._attempt(name, functools.partial(log, values, step))

    def _begin(self, name: str, step: int) -> None:
        path = Path(self._settings.output, "run.json")
        identity = id_in(path.read_bytes(), str(path))  # the same at all starts of a training
        self._open[name] = OPENERS[name](self._settings, identity, step)

    def _attempt(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever other packages raise
            self._open.pop(name, None)
            print(f"track: {name} gets no more figures: {error}", file=sys.stderr)  # noqa: T201


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose package is missing.

    Raises:
        UsageError: names it.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            package = "mlflow-skinny" if name == "mlflow" else name
            raise UsageError(
                f"track: {name} is not installed. Run: pip install {package}; or leave it out."
            )


def figures_of(update: Update) -> tuple[dict[str, float], int]:
    """Return the figures of an update by name, and the number of steps done."""
    values: dict[str, float | None] = {}
    step = 0
    if isinstance(update, StepMetrics):
        step = update.step + 1
        values = {name: getattr(update, name) for name in STEP_FIGURES}
        if update.experts:
            values |= {f"experts/{name}": value for name, value in asdict(update.experts).items()}
        for name, source in update.sources.items():
            # Not `loss/`: MLflow stores the metric `loss` as a file of this name.
            values[f"loss_of/{name}"] = source.loss
            values[f"bits_per_byte/{name}"] = source.bits_per_byte
    elif isinstance(update, EvaluationMetrics):
        step = update.step
        for name, source in update.sources.items():
            values[f"held_out/{name}"] = source.bits_per_byte or source.loss
        for name, task in update.tasks.items():
            values[f"task/{name}/accuracy"] = task.accuracy
            values[f"task/{name}/bits_per_byte"] = task.bits_per_byte
    elif isinstance(update, MixtureMetrics):
        step = update.step
        values = {
            f"mixture/{name}": source.realised_ratio for name, source in update.sources.items()
        }
    return {name: value for name, value in values.items() if value is not None}, step


def _tensorboard(settings: TrainSettings, _identity: str, step: int) -> tuple[Log, Close]:
    from torch.utils.tensorboard import SummaryWriter

    folder = str(Path(settings.output, "tensorboard"))
    # Hides what a killed run wrote after its last checkpoint.
    writer = SummaryWriter(folder, purge_step=step)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(settings: TrainSettings, identity: str, _step: int) -> tuple[Log, Close]:
    import wandb  # type: ignore[import-not-found,unused-ignore]

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(
        project="corpuskit", name=settings.name, id=identity, resume="allow", dir=settings.output,
        mode=mode, config=settings.model_dump(mode="json"),
    )  # fmt: skip
    # wandb's own step counter cannot go back, as a run does after a kill.
    run.define_metric("*", step_metric="steps_done")
    return lambda values, step: run.log(values | {"steps_done": step}), run.finish


def _mlflow(settings: TrainSettings, identity: str, _step: int) -> tuple[Log, Close]:
    # Without a server MLflow needs a file store, which version 3 must be told to allow.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient  # type: ignore[import-not-found,unused-ignore]

    folder = Path(settings.output, "mlruns").resolve()
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", folder.as_uri()))
    experiment = client.get_experiment_by_name("corpuskit")
    experiment_id = (
        experiment.experiment_id if experiment else client.create_experiment("corpuskit")
    )
    earlier = client.search_runs([experiment_id], f"tags.training = '{identity}'")
    tags = {"training": identity}
    runs = earlier or [client.create_run(experiment_id, run_name=settings.name, tags=tags)]
    run = runs[0].info.run_id

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            client.log_metric(run, name, value, step=step)

    return log, lambda: client.set_terminated(run)


OPENERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
