"""What is checked before a plan is made, so that no task fails for what could have been known."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from corpuskit.engine.plan.fingerprint import file_digest, library_version
from corpuskit.errors import ConfigError, DataError, UsageError, describe, suggest
from corpuskit.formats.batch import REQUIRED
from corpuskit.stage import Known, Source
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corpuskit.engine.config import PipelineFile, Step


def check_stages(file: PipelineFile) -> None:
    """Ask every stage whether it can work on what the stages before it leave.

    Raises:
        ConfigError: it cannot, or a column that it needs does not exist by then.
    """
    columns: dict[str, pa.DataType] = {**REQUIRED, "extra": pa.string(), **_declared(file)}
    names = tuple(step.label for step in file.sources)
    values = {"source": frozenset(names)}
    for step in file.sources:
        with located(step):
            _check_integers(step)
            _check_libraries(step)
            step.stage.check(Known(names, columns, values))
    for step in file.steps:
        for column in step.stage.needs():
            if column not in columns:
                raise ConfigError(
                    step.where_of(column),
                    f"{step.label} needs the column {column!r}, which "
                    "no earlier stage adds and no source declares.",
                    suggest(column, columns),
                )
        with located(step):
            _check_integers(step)
            _check_libraries(step)
            _check_reference_runs(step.stage.reference_runs(), file.settings.output)
            step.stage.check(Known(names, columns, values))
            for path in step.stage.files():
                file_digest(path)
        columns |= {f"{step.label}.{field}": kind for field, kind in step.stage.adds().items()}
        values |= {f"{step.label}.{field}": all_ for field, all_ in step.stage.values().items()}


@contextlib.contextmanager
def located(
    step: Step, kinds: type[Exception] | tuple[type[Exception], ...] = (UsageError, DataError)
) -> Iterator[None]:
    """Give what a step refuses its place in the pipeline file.

    Raises:
        ConfigError: instead of errors of these kinds.
    """
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(step.where, f"{step.label}: {describe(error)}") from None
    except kinds as error:
        message = str(error)
        where = step.where_of(message)
        named = message if message.startswith(step.name) else f"{step.label}: {message}"
        raise ConfigError(where, named) from None


def check_place(file: PipelineFile) -> None:
    """Check that the output can be written, and that the executor is there.

    Raises:
        ConfigError: it cannot, or is not.
    """
    output = file.settings.output
    if not is_remote(output) and (problem := _output_problem(output.removeprefix("file://"))):
        where = file.places.get("output", file.path)
        raise ConfigError(where, f"output: {problem}", "Set another one.")
    kind = file.settings.executor.kind
    missing = hint = ""
    if kind == "ray" and importlib.util.find_spec("ray") is None:
        missing, hint = "ray", "Run pip install 'ray[client]'"
    if kind == "slurm" and shutil.which("sbatch") is None:
        missing, hint = "sbatch", "Work on a login node of Slurm"
    if missing:
        where = file.places.get("executor.kind", file.path)
        problem = f"executor.kind: {missing} is not installed here."
        raise ConfigError(where, problem, f"{hint}, or set executor.kind to local.")


def _output_problem(output: str) -> str:
    """Return why nothing can be written there; what does not exist yet will be made."""
    place = os.path.abspath(output)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return f"{place} is no folder."
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} may not be written to."


def _check_integers(step: Step) -> None:
    """Check that integers without a bound of their own fit into the 64 bits that kernels have.

    Raises:
        UsageError: one does not.
    """
    for name, field in type(step.stage).model_fields.items():
        value = getattr(step.stage, name)
        is_bounded = any(hasattr(one, "le") or hasattr(one, "lt") for one in field.metadata)
        if isinstance(value, int) and abs(value) >= 1 << 63 and not is_bounded:
            raise UsageError(f"{name}: {value} is more than {(1 << 63) - 1}. Set a smaller number.")


def _check_libraries(step: Step) -> None:
    """Check that the distributions are installed that a stage cannot do without.

    Raises:
        UsageError: one is not.
    """
    for name in step.stage.libraries():
        if library_version(name) is None:
            raise UsageError(f"{name} is not installed here. Run: pip install {name}")


def _check_reference_runs(runs: tuple[str, ...], output: str) -> None:
    """Check that a stage does not read the run that it is part of: it would find itself there.

    Raises:
        UsageError: it does.
    """
    for one in runs:
        if os.path.realpath(one) == os.path.realpath(output):
            raise UsageError(f"{one} is the output of this run. Write to another directory.")


def _declared(file: PipelineFile) -> Mapping[str, pa.DataType]:
    """Return the columns that sources declare.

    Raises:
        ConfigError: two of them declare one otherwise.
    """
    types: dict[str, pa.DataType] = {}
    for step in file.sources:
        for name, kind in declared_columns(step).items():
            if types.setdefault(name, kind) != kind:
                raise ConfigError(
                    step.places.get(f"columns.{name}", step.where),
                    f"column {name!r} is {kind} here but {types[name]} in another source.",
                    "Declare one type.",
                )
    return types


def declared_columns(step: Step) -> Mapping[str, pa.DataType]:
    """Return the columns that a source declares, and their types."""
    assert isinstance(step.stage, Source), "config.py makes sure of it"
    return step.stage.declared()
