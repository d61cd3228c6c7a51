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


def batch_size_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --global-batch-rows; where something is written, nobody's size is guessed."""
    what = "Rows per step of the training run in question; a ramp as STEP:ROWS,STEP:ROWS."
    default: dict[str, Any] = {} if required else {"default": 8, "show_default": True}
    return click.option(
        "--global-batch-rows", "-b", type=RampType(), metavar="ROWS", help=what, required=required,
        **default,
    )  # fmt: skip


seq_len_option = click.option(
    "--seq-len", type=click.IntRange(1),
    help="Tokens of a row, where training takes packed rows in pieces.",
)  # fmt: skip
