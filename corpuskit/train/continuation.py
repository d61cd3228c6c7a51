"""Checks whether a training may continue from a checkpoint with its settings; needs no torch."""

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
    """Refuse settings that don't fit the checkpoint to continue from, or the length of the run.

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
        # With unchanged settings it fitted at the start, before rollbacks shortened the run.
        if changed_settings(record, settings):
            settings.schedule.require_fit(tokens)
    else:
        settings.schedule.require_fit(tokens)
        require_smooth_branch(settings, tokens, record.step * tokens // steps, record.settings)
    require_same_adapter(record.settings["adapter"], settings)
    require_steps_left(folder, record, steps)


def require_same_run(
    folder: Path, record: CheckpointRecord, shape: ModelShape, settings: TrainSettings
) -> None:
    """Refuse to continue from a checkpoint of another model, or with steps of another size.

    Raises:
        UsageError: names every difference.
    """
    saved = {
        **record.shape,
        "global_rows": record.settings["batch"]["global_rows"],
        "optimizer.kind": record.settings["optimizer"]["kind"],
        "optimizer.average_decay": record.settings["optimizer"]["average_decay"],
    }
    current = {
        **asdict(shape),
        "global_rows": settings.batch.global_rows,
        "optimizer.kind": settings.optimizer.kind,
        "optimizer.average_decay": settings.optimizer.average_decay,
    }
    if settings.optimizer.kind == "schedule_free":  # weights lie between x and z as beta1 says
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
    """Refuse to continue a training that began with another seed, or from another trunk.

    Raises:
        UsageError: names both.
    """
    trunk = record.settings["branch_from"]
    saved = {"seed": record.settings["seed"], "branch_from": Path(trunk or "").name}
    current = {"seed": settings.seed, "branch_from": Path(settings.branch_from or "").name}
    for key, value in current.items():
        # `branch_from` may be removed from the file after the first start.
        if value != saved[key] and (key == "seed" or value):
            raise UsageError(
                f"{key}: {value} here, and the training in {folder.parent.parent} began with "
                f"{saved[key] or 'none'}. Restore it, or set another output."
            )


# Settings that decide what is learned. The others decide how and where.
_DECIDING = (
    "adapter", "distill", "dtype", "float8", "guard", "init_from", "model", "optimizer", "schedule",
    "steps", "tokens",
)  # fmt: skip


def changed_settings(record: CheckpointRecord, settings: TrainSettings) -> list[str]:
    """Return the settings that decide what is learned and have changed, as `key: SAVED, now X`."""
    changed = []

    def compare(key: str, saved: Any, current: Any) -> None:
        if isinstance(saved, dict) and isinstance(current, dict):
            for name in saved.keys() & current.keys():  # versions differ in their keys
                compare(f"{key}.{name}", saved[name], current[name])
        elif saved != current:
            changed.append(f"{key}: {saved}, now {current}")

    for key, value in settings.model_dump(mode="json").items():
        if key in _DECIDING and key in record.settings:
            compare(key, record.settings[key], value)
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
