"""What is checked before a plan is made: columns that stages need, runs that they read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from corpuskit.errors import ConfigError, UsageError, suggest
from corpuskit.stage import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from corpuskit.config import PipelineFile, Step


def check_columns(file: PipelineFile) -> None:
    """Check that every column a stage needs exists by then.

    Raises:
        ConfigError: one does not, or two sources declare it otherwise.
    """
    types: dict[str, pa.DataType] = {}
    for step in file.sources:
        for name, kind in declared_columns(step).items():
            if types.setdefault(name, kind) != kind:
                raise ConfigError(
                    step.where,
                    f"column {name!r} is {kind} here but {types[name]} in another source.",
                    "Declare one type.",
                )
    known = {"key", "id", "text", "source", "origin", "extra", *types}
    for step in file.steps:
        for column in step.stage.needs():
            if column not in known:
                raise ConfigError(
                    step.where,
                    f"{step.label} needs the column {column!r}, which "
                    "no earlier stage adds and no source declares.",
                    suggest(column, known),
                )
        known |= {f"{step.label}.{field}" for field in step.stage.adds()}


def check_runs(runs: tuple[str, ...], output: str) -> None:
    """Check that a stage does not read the run that it is part of: it would find itself there.

    Raises:
        UsageError: it does.
    """
    for one in runs:
        if os.path.realpath(one) == os.path.realpath(output):
            raise UsageError(f"{one} is the output of this run. Write to another directory.")


def declared_columns(step: Step) -> Mapping[str, pa.DataType]:
    """Return the columns that a source declares, and their types."""
    assert isinstance(step.stage, Source), "config.py makes sure of it"
    return step.stage.declared()
