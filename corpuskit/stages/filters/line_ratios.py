"""Shares of digits and of lines of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from corpuskit.kernels.arrays import Bools, Float64s
from corpuskit.kernels.filters.code import MEASURES, measure_code
from corpuskit.stage import Example, View
from corpuskit.stages.filters._measured import MeasuredFilter, Rule

_PROSE = "A line of prose with words.\n"


class LineRatios(MeasuredFilter):
    """Drop documents whose lines are mostly numbers or rows of tables.

    Use it on text from PDFs, where tables become lines of digits or of cells between pipes. Lines
    are those of str.splitlines, blank ones left out. A value equal to its bound is too large.

    Source: Dolma 3 (Ai2 2025), PDFs; equals the taggers avg_fraction_numbers_in_line_v1 and
    pipe_delimited_lines_v1 (allenai/dolma, branch jakep-s2pdfs) with its `< 0.2` and `< 0.3`.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("too_many_digits", "digit_ratio", above="max_digit_ratio"),
        Rule("too_many_table_lines", "table_line_ratio", above="max_table_line_ratio"),
    )
    text_speed: ClassVar[float] = 90e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PROSE * 3),
        Example(f"{_PROSE}12 345 678 90\n31.4 27.1 16.1", "too_many_digits"),
        Example(f"{_PROSE}| a |", "too_many_table_lines", {"max_table_line_ratio": 0.5}),
    )

    max_digit_ratio: float | None = Field(0.2, ge=0, le=1)
    """Drop a document if the share of digits in a line, on average, is at least this."""
    max_table_line_ratio: float | None = Field(0.3, ge=0, le=1)
    """Drop a document if the share of lines between two pipes is at least this."""

    def fails(self, rule: str, values: Float64s) -> Bools:
        """Return which values reach a bound; without one, none does."""
        return values >= self.threshold(rule)

    def measure(self, view: View) -> Mapping[str, Float64s]:
        return dict(zip(MEASURES, view.fact(measure_code), strict=True))
