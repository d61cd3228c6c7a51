"""Documents that no training run may see."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from corpuskit.stage import Example, Outcome, StreamingStage, View


class Holdout(StreamingStage):
    """Set a small share of the documents aside for evaluation, by a hash of their text.

    Put it before dedup and before whatever you vary, so that all variants of a pipeline are
    evaluated on the same documents. Copies of a text stay together, and neither the order nor the
    number of files matters. The documents go to `holdout/`; they are not tokenized.

    Source: none; 8 bytes of BLAKE2b (RFC 7693) keyed with the seed, as a number between 0 and 1.
    """

    rules: ClassVar[tuple[str, ...]] = ("held_out",)
    bounds: ClassVar[Mapping[str, str]] = {"held_out": "ratio"}
    diverts: ClassVar[str] = "holdout"
    text_speed: ClassVar[float] = 450e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Most documents go on."),
        Example("Few documents are held out.", "held_out", {"ratio": 0.999}),
    )

    ratio: float = Field(0.005, gt=0, lt=1)
    """Share of the documents to set aside; about, since each is chosen alone."""
    seed: int = Field(0, ge=0, lt=2**64)
    """Another seed chooses other documents."""

    def apply(self, view: View) -> Outcome:
        key = self.seed.to_bytes(8, "little")
        offsets, content = view.text.offsets.tolist(), view.text.data.data
        digests = b"".join(
            hashlib.blake2b(content[begin:end], digest_size=8, key=key).digest()
            for begin, end in itertools.pairwise(offsets)
        )
        shares = np.frombuffer(digests, "<u8") * 2.0**-64
        drops = shares < self.ratio
        return Outcome(codes=drops.astype(np.uint8), values=np.where(drops, shares, np.nan))
