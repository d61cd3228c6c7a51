"""mC4's rule: enough long lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from corpuskit.kernels.arrays import Float64s
from corpuskit.kernels.filters.c4 import count_long_lines
from corpuskit.stage import Example, View
from corpuskit.stages.filters._measured import MeasuredFilter, Rule


class C4Paragraphs(MeasuredFilter):
    r"""Drop documents with too few long lines.

    Use it instead of `c4_quality` in languages whose lines need not end in Latin punctuation. Lines
    end with \n and count as they are, spaces included.

    Source: Xue et al. 2021 (mC4), section 3.1; with the default parameters equals datatrove
    0.10.1's C4ParagraphFilter, which has no others and calls the reason `< 3 paragraphs`.
    """

    table: ClassVar[tuple[Rule, ...]] = (Rule("too_few_paragraphs", below="min_paragraphs"),)
    text_speed: ClassVar[float] = 1e9
    examples: ClassVar[tuple[Example, ...]] = (
        Example("\n".join(["long " * 40] * 3)),
        Example("\n".join(["long " * 40, "short", "long " * 40]), "too_few_paragraphs"),
    )

    min_paragraphs: int = Field(3, ge=0)
    """Fewest long lines."""
    min_paragraph_chars: int = Field(200, ge=0)
    """A line of at least this many characters is long."""

    def measure(self, view: View) -> Mapping[str, Float64s]:
        offsets, data = view.text
        num = count_long_lines(offsets, data, self.min_paragraph_chars)
        return {"too_few_paragraphs": num.astype(np.float64)}
