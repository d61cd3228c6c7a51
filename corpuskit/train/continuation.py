"""What a training may continue from, with which settings; known without torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import UsageError
from corpuskit.train.settings import require_smooth_branch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.train.record import CheckpointRecord
    from corpuskit.train.settings import ModelShape, TrainSettings


def require_continuation(
    newest: tuple[Path, CheckpointRecord] | None,
    shape: ModelShape,
    settings: TrainSettings,
    steps: int,
    tokens: int,
) -> None:
    """Refuse to continue a checkpoint with settings that it was not made for, or that never fit.

    Args:
        newest: folder and record of the checkpoint; None at the beginning of a run.
        shape: of the model.
        settings: of the run.
        steps, tokens: of the whole run.

    Raises:
        UsageError: names what differs.
    """
    if newest is None:
        settings.schedule.require_fit(tokens)
        return
    folder, record = newest
    require_same_run(folder, record, shape, settings)
    if folder.is_relative_to(settings.output):
        require_same_beginning(folder, record, settings)
        if changed_settings(record, settings):  # a rollback has shortened those that are the same
            settings.schedule.require_fit(tokens)
    else:
        settings.schedule.require_fit(tokens)
        require_smooth_branch(settings, tokens, record.step * tokens // steps, record.settings)
    require_same_adapter(record.settings.get("adapter"), settings)
    require_steps_left(folder, record, steps)


def require_same_run(
    folder: Path, record: CheckpointRecord, shape: ModelShape, settings: TrainSettings
) -> None:
    """Refuse to continue from a checkpoint of another model, or with steps of another size.

    Raises:
        UsageError: names every difference.
    """
    saved = {
        "experts": None,
        **record.shape,
        "global_rows": record.settings["batch"]["global_rows"],
        "optimizer.kind": record.settings["optimizer"].get("kind", "adamw"),
        "optimizer.average_decay": record.settings["optimizer"].get("average_decay", 0.0),
    }
    current = {
        **asdict(shape),
        "global_rows": settings.batch.global_rows,
        "optimizer.kind": settings.optimizer.kind,
        "optimizer.average_decay": settings.optimizer.average_decay,
    }
    if settings.optimizer.kind == "schedule_free":  # its weights lie where beta1 says
        saved["optimizer.beta1"] = record.settings["optimizer"]["beta1"]
        current["optimizer.beta1"] = settings.optimizer.beta1
    differing = [
        f"{name} {saved.get(name)!r} there, {value!r} here"
        for name, value in current.items()
        if saved.get(name) != value
    ]
    if differing:
        raise UsageError(
            f"{folder}: the checkpoint is of another run: {'; '.join(differing)}. "
            "Restore these settings, or set another output."
        )


def require_same_beginning(folder: Path, record: CheckpointRecord, settings: TrainSettings) -> None:
    """Refuse to continue a training that began in another way than the settings now say.

    Raises:
        UsageError: names both.
    """
    began = record.settings
    there = {"seed": began["seed"], "branch_from": Path(began.get("branch_from") or "").name}
    here = {"seed": settings.seed, "branch_from": Path(settings.branch_from or "").name}
    for key, value in here.items():
        if value != there[key] and (key == "seed" or value):
            raise UsageError(
                f"{key}: {value} here, and the training in {folder.parent.parent} began with "
                f"{there[key] or 'none'}. Restore it, or set another output."
            )


_DECIDING = (
    "adapter", "distill", "dtype", "float8", "guard", "init_from", "model", "optimizer", "schedule",
    "steps", "tokens",
)  # fmt: skip
"""Settings that decide what is learned; the others, how and where."""


def changed_settings(record: CheckpointRecord, settings: TrainSettings) -> list[str]:
    """Return what decides the next steps and was different before, as `key: before, now X`."""
    here = settings.model_dump(mode="json")
    changed = []

    def compare(key: str, before: Any, now: Any) -> None:
        if isinstance(before, dict) and isinstance(now, dict):
            for name in before.keys() & now.keys():  # versions differ in what they know
                compare(f"{key}.{name}", before[name], now[name])
        elif before != now:
            changed.append(f"{key}: {before}, now {now}")

    for key in _DECIDING:
        if key in record.settings:
            compare(key, record.settings[key], here[key])
    return sorted(changed)


def require_same_training(folder: Path, record: CheckpointRecord, identity: str) -> None:
    """Refuse to continue from a checkpoint that another training has written.

    Args:
        folder: of the checkpoint.
        record: its own.
        identity: of this training; empty for any.

    Raises:
        UsageError: names the checkpoint.
    """
    if identity and record.run != identity:
        raise UsageError(
            f"{folder}: the checkpoint is of another training ({record.run or 'unknown'}; run.json "
            f"says {identity}). Move it away; or, to continue from it, name it in branch_from of "
            "a new output."
        )


def require_same_adapter(saved: Mapping[str, Any] | None, settings: TrainSettings) -> None:
    """Refuse to continue from a checkpoint with other adapters.

    Args:
        saved: `adapter` in the settings of the checkpoint.

    Raises:
        UsageError: names both.
    """
    current = settings.adapter and settings.adapter.model_dump(mode="json")
    saved = saved and {"quantize": None, **saved}  # which older checkpoints do not have
    if saved != current:
        raise UsageError(
            f"adapter: {current} here, {saved} in the newest checkpoint. Restore it, or set "
            "another output."
        )


def require_steps_left(folder: Path, record: CheckpointRecord, steps: int) -> None:
    """Refuse a run that is to end before its newest checkpoint.

    Raises:
        UsageError: names both.
    """
    if record.step > steps:
        raise UsageError(
            f"{folder}: {record.step} steps are done, and the run is to have {steps}. Raise steps "
            "or tokens, or set another output."
        )
