"""Batch sizes as they are written on the command line: a number, or a ramp of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.loader.steps import BatchSize


class RampType(click.ParamType):  # type: ignore[type-arg]
    """`256`, or `0:256,1000:512`: 256 rows from step 0, 512 from step 1000."""

    name = "rows"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> BatchSize:
        """Parse it."""
        if isinstance(value, int | list):
            return value
        from corpuskit.loader.steps import parse_batch_size

        try:
            return parse_batch_size(value)
        except ValueError as error:
            self.fail(str(error))


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --global-batch-rows and --training, which say what rows a step takes: see `steps_of`."""
    function = click.option(
        "--training", metavar="OUTPUT",
        help="Count the steps of this training: its batch size, without rows that it skipped.",
    )(function)  # fmt: skip
    return click.option(
        "--global-batch-rows", "-b", type=RampType(), metavar="ROWS",
        help="Rows per step of the training in question; a ramp as STEP:ROWS,STEP:ROWS.",
    )(function)  # fmt: skip


def steps_of(
    directory: str, rows: BatchSize | None, training: str | None, default: int | None = None
) -> tuple[BatchSize, list[tuple[int, int, str]]]:
    """Return the batch size of a training, and the rows that it skips.

    Args:
        default: the size where none is given; None refuses that.

    Raises:
        UsageError: not exactly one is given, or the training reads another run.
    """
    from corpuskit.errors import UsageError

    if training is None and (rows is not None or default is not None):
        return (default if rows is None else rows), []  # type: ignore[return-value]
    if training is None or rows is not None:
        raise UsageError("Give the batch size (-b ROWS) or a training (--training OUTPUT).")
    from corpuskit.inspect.occurrences import read_training, require_plan
    from corpuskit.loader.index import read_mix

    trained = read_training(training)
    require_plan(read_mix(directory), trained)
    return trained.starts[-1].rows, trained.skips


seq_len_option = click.option(
    "--seq-len", type=click.IntRange(1),
    help="Tokens of a row, where training takes packed rows in pieces.",
)  # fmt: skip
