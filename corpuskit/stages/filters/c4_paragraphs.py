"""mC4's rule: enough long lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from corpuskit.kernels.filters.paragraphs import count_long_lines
from corpuskit.stage import Cost, Example, Outcome, StreamingStage

if TYPE_CHECKING:
    from corpuskit.stage import View, Volume


class C4Paragraphs(StreamingStage):
    r"""Drop documents with too few long lines.

    Use it instead of `c4_quality` in languages whose lines need not end in Latin punctuation. Lines
    end with \n and count as they are, spaces included.

    Source: Xue et al. 2021 (mC4), section 3.1; with the default parameters equals datatrove
    0.10.1's C4ParagraphFilter, which has no others and calls the reason `< 3 paragraphs`.
    """

    rules: ClassVar[tuple[str, ...]] = ("too_few_paragraphs",)
    bounds: ClassVar[Mapping[str, str]] = {"too_few_paragraphs": "min_paragraphs"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example("\n".join(["long " * 40] * 3)),
        Example("\n".join(["long " * 40, "short", "long " * 40]), "too_few_paragraphs"),
    )

    min_paragraphs: int = Field(3, ge=0)
    """Fewest long lines."""
    min_paragraph_chars: int = Field(200, ge=0)
    """A line of at least this many characters is long."""
    measures: bool = False
    """Also store the number of long lines, so that its bound can be tuned without another run."""

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.text_bytes / 1e9)

    def apply(self, view: View) -> Outcome:
        offsets, data = view.text
        num = count_long_lines(offsets, data, self.min_paragraph_chars).astype(np.float64)
        return Outcome(
            codes=(num < self.min_paragraphs).astype(np.uint8),
            values=num,
            measures={"too_few_paragraphs": num} if self.measures else {},
        )
