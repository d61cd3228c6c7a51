"""Adapter of gigatoken: the ids of the tokenizer's own library, many times faster.

It knows Unicode 17, Hugging Face an older version, so a text with a code point on which they may
differ goes to the reference. The first documents of each process are encoded by both.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.errors import DataError
from corpuskit.formats.batch import utf8
from corpuskit.stages.sequences._tokenizer import Ids, ReferenceEncoder, same, to_text
from corpuskit.stages.sequences._unicode import disputed, find_disputed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from corpuskit.stages.sequences._tokenizer import Encoder

CHECKED_BYTES = 1 << 18
"""Text of each process that the reference encodes too: about 0.1 CPU seconds."""

PROBES = (
    "The quick brown fox doesn't jump; WE'LL see: it's 12345 o'clock, 3.14 (1,000,000)!?\r\n\n\t",
    "  def f(x):\n        return x ** 2  # \u00e9te\u0301 nai\u0308ve \u4f60\u597d \U0001f600",
    "",
)
"""Encoded by both when a tokenizer is opened: gigatoken ignores some settings it does not know."""


class GigatokenEncoder:
    """Encodes with gigatoken; other arguments as of ReferenceEncoder.

    Args:
        reference: gives the ids that count; null opens Hugging Face tokenizers.
        set_apart: texts that match this regular expression go to the reference.

    Raises:
        RuntimeError: gigatoken does not know this kind of tokenizer.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        allow_special: bool,
        reference: Encoder | None = None,
        set_apart: str = "",
        path: str = "tokenizer",
    ) -> None:
        import gigatoken

        model = json.dumps(fields["model"])
        self._reference = reference or ReferenceEncoder(
            fields, allow_special=allow_special, model=model, path=path
        )
        self._set_apart = set_apart
        added = fields.get("added_tokens") or []
        kept = [token for token in added if allow_special or not token["special"]]
        self._fast = gigatoken.Tokenizer.from_json(to_text({**fields, "added_tokens": kept}, model))
        self._disputed = disputed(normalizes=_knows_unicode(fields.get("normalizer")))
        self._unchecked = CHECKED_BYTES
        spelled = [f"a {token['content']} b{token['content']}" for token in added]
        probes = pa.array([*PROBES, *spelled], pa.large_string())
        if not same(self._encode(*utf8(probes)), self._reference.encode(probes)):
            raise RuntimeError("it gives other ids than the reference")

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls.

        Raises:
            DataError: the engines disagree about one of the first documents.
        """
        offsets, data = utf8(texts)
        if len(texts) == 0:
            return Ids(np.zeros(0, np.uint32), offsets)
        odd = find_disputed(offsets, data, self._disputed)
        if self._set_apart:
            odd |= pc.match_substring_regex(texts, self._set_apart).to_numpy(zero_copy_only=False)
        if odd.any():
            return self._encode_apart(texts, odd)
        found = self._encode(offsets, data)
        if self._unchecked > 0:
            self._check(texts, found)
        return found

    def _encode(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> Ids:
        from awkward import Array
        from awkward.contents import ListOffsetArray, NumpyArray
        from awkward.index import Index64

        texts = NumpyArray(data, parameters={"__array__": "char"})
        batch = ListOffsetArray(Index64(offsets), texts, parameters={"__array__": "string"})
        # Off its thread pool: workers are processes, and the pool does not survive a fork.
        found = self._fast.encode_batch(Array(batch), parallel=False).layout
        return Ids(np.asarray(found.content.data), np.asarray(found.offsets.data))

    def _encode_apart(self, texts: pa.Array, odd: NDArray[np.bool_]) -> Ids:
        """Encode the odd texts with the reference, and put both halves in order."""
        halves = [
            self.encode(texts.filter(pa.array(~odd))),
            self._reference.encode(texts.filter(pa.array(odd))),
        ]
        arrays = [pa.LargeListArray.from_arrays(half.offsets, half.ids) for half in halves]
        order = np.argsort(np.concatenate([np.flatnonzero(~odd), np.flatnonzero(odd)]))
        merged = pa.concat_arrays(arrays).take(pa.array(order))
        return Ids(merged.values.to_numpy(), merged.offsets.to_numpy())

    def _check(self, texts: pa.Array, found: Ids) -> None:
        sizes = np.diff(utf8(texts).offsets)
        count = int(np.searchsorted(np.cumsum(sizes), self._unchecked)) + 1
        self._unchecked -= int(sizes[:count].sum())
        offsets = found.offsets[: min(count, len(texts)) + 1]
        if not same(Ids(found.ids, offsets), self._reference.encode(texts[:count])):
            raise DataError(
                "tokenize: gigatoken gives other ids than the tokenizer's own library for one of "
                f"the first {len(offsets) - 1} documents of this process. Set engine: huggingface "
                "(or sentencepiece, for its models)."
            )


def _knows_unicode(normalizer: Mapping[str, Any] | None) -> bool:
    """Return whether a normalizer asks what kind of character something is."""
    if normalizer is None:
        return False
    steps = normalizer.get("normalizers", [normalizer])
    return any(
        step["type"] not in {"Prepend", "Replace"} or "Regex" in step.get("pattern", {})
        for step in steps
    )
