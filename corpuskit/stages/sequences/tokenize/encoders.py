"""What turns text into ids: Hugging Face tokenizers, SentencePiece, gigatoken."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import os
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.errors import DataError, UsageError, reason_of
from corpuskit.formats.batch import utf8
from corpuskit.formats.derived import Derived, derived
from corpuskit.kernels.jit import inline, kernel

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from corpuskit.kernels.arrays import AnyArray, Bools, Bytes, Int64s, Uint32s
    from corpuskit.stages.sequences.tokenize.sentencepiece import SentencePieceModel


BATCH_DOCS = 256

_NO_IDS = np.zeros(0, np.uint32)


class Ids(NamedTuple):
    """Token ids of documents: those of document i are `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Uint32s
    offsets: Int64s

    @classmethod
    def from_lists(cls, lists: Sequence[AnyArray]) -> Ids:
        """Return the ids of documents, one array each."""
        bounds = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(np.concatenate([_NO_IDS, *lists]), bounds)


class Encoder(Protocol):
    """Turns texts into ids, without ids that begin or end documents."""

    engine: str
    """As in `tokenize.engine`."""

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""


def to_text(fields: Mapping[str, Any], model: str | None = None) -> str:
    """Return a tokenizer.json as text.

    Args:
        model: its model as text, if that is there already: nearly all of the file.
    """
    others = {name: value for name, value in fields.items() if name != "model"}
    return f'{json.dumps(others)[:-1]}, "model": {model or json.dumps(fields["model"])}}}'


class ReferenceEncoder:
    """Encodes with Hugging Face tokenizers.

    Args:
        fields: the tokenizer.
        allow_special: a text that spells a special token gets its id.
        model: as `to_text` takes it.
        path: of the tokenizer, for errors.

    Raises:
        UsageError: Hugging Face tokenizers can't open it, or gives added tokens other ids than the
            file says.
    """

    engine = "huggingface"

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        allow_special: bool,
        model: str | None = None,
        path: str = "tokenizer",
    ) -> None:
        self._path = path
        # Workers are processes, one per core; threads of its own would only queue.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(to_text(fields, model))
        except BaseException as error:  # noqa: BLE001 - of a wrong pattern it raises nothing else
            raise_interrupts(error)
            raise UsageError(
                f"{path}: Hugging Face tokenizers can't open this tokenizer: {reason_of(error)}. "
                "Check the file, and pattern."
            ) from None
        self._tokenizer.encode_special_tokens = not allow_special
        for token in fields.get("added_tokens") or []:
            number = self._tokenizer.token_to_id(token["content"])
            if number != token["id"]:
                raise UsageError(
                    f"{path}: the added token {token['content']!r} has the id {token['id']} in "
                    f"the file, but Hugging Face tokenizers gives it {number}. Save the file "
                    "again with Tokenizer.save(path)."
                )

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""
        lists: list[AnyArray] = []
        for begin in range(0, len(texts), BATCH_DOCS):
            batch = texts[begin : begin + BATCH_DOCS].to_pylist()
            try:
                encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            except BaseException as error:  # noqa: BLE001 - it raises nothing else
                raise_interrupts(error)
                raise DataError(
                    f"{self._path}: Hugging Face tokenizers can't encode a text with this "
                    f"tokenizer: {reason_of(error)}. Check the file."
                ) from None
            lists.extend(np.array(encoding.ids, np.uint32) for encoding in encodings)
        return Ids.from_lists(lists)


def raise_interrupts(error: BaseException) -> None:
    """Raise again what comes from outside of a library; panics of Rust are no Exceptions either."""
    if isinstance(error, (KeyboardInterrupt, MemoryError, SystemExit, GeneratorExit)):
        raise error


def have_same_ids(left: Ids, right: Ids) -> bool:
    """Return whether both engines gave the same ids."""
    ids, other_ids = (e.ids[e.offsets[0] : e.offsets[-1]] for e in (left, right))
    sizes, other_sizes = np.diff(left.offsets), np.diff(right.offsets)
    return np.array_equal(sizes, other_sizes) and np.array_equal(ids, other_ids)


class SentencePieceEncoder:
    """Encodes with the library of SentencePiece, which is the reference for its models.

    Raises:
        ImportError: it is not installed.
    """

    engine = "sentencepiece"

    def __init__(
        self, model: SentencePieceModel, names: Collection[str], *, allow_special: bool
    ) -> None:
        import sentencepiece

        content = model.with_specials(names, allow_special=allow_special)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""
        encode = self._processor.encode
        return Ids.from_lists([np.array(encode(text), np.uint32) for text in texts.to_pylist()])


# ---------------------------------------------------------------- gigatoken
#
# It knows Unicode 17, Hugging Face an older version. So the reference encodes texts with a code
# point on which they may differ; both encode the first documents of each process.


CHECKED_BYTES = 1 << 18
"""Bytes of text that the reference also encodes in each process: about 0.1 CPU seconds."""

PROBES = (
    "The quick brown fox doesn't jump; WE'LL see: it's 12345 o'clock, 3.14 (1,000,000)!?\r\n\n\t",
    "  def f(x):\n        return x ** 2  # \u00e9te\u0301 nai\u0308ve \u4f60\u597d \U0001f600",
    "",
)
"""Both encode them when a tokenizer is opened: gigatoken ignores some settings it doesn't know."""


class GigatokenEncoder:
    """Encodes with gigatoken; other arguments as of ReferenceEncoder.

    Args:
        reference: whose ids count; None opens Hugging Face tokenizers.
        set_apart: the reference encodes texts that match this regular expression.

    Raises:
        RuntimeError: gigatoken does not know this kind of tokenizer.
    """

    engine = "gigatoken"

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
        added_tokens = fields.get("added_tokens") or []
        accepted = [token for token in added_tokens if allow_special or not token["special"]]
        self._fast = gigatoken.Tokenizer.from_json(
            to_text({**fields, "added_tokens": accepted}, model)
        )
        self._disputed = disputed(normalizes=_knows_unicode(fields.get("normalizer")))
        self._unchecked = CHECKED_BYTES
        spelled = [f"a {token['content']} b{token['content']}" for token in added_tokens]
        probes = pa.array([*PROBES, *spelled], pa.large_string())
        by_reference = np.zeros(len(probes), np.bool_)
        if not have_same_ids(self._encode(probes, by_reference), self._reference.encode(probes)):
            raise RuntimeError("it gives other ids than the reference")

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls.

        Raises:
            DataError: the engines disagree about one of the first documents.
        """
        offsets, data = utf8(texts)
        if len(texts) == 0:
            return Ids(_NO_IDS, offsets)
        by_reference = find_disputed(offsets, data, self._disputed)
        if self._set_apart:
            is_apart = pc.match_substring_regex(texts, self._set_apart)
            by_reference |= is_apart.to_numpy(zero_copy_only=False)
        encoded = self._encode(texts, by_reference)
        if self._unchecked > 0:
            self._check(texts, encoded)
        return encoded

    def _encode(self, texts: pa.Array, by_reference: Bools) -> Ids:
        """Encode texts, some of them with the reference."""
        offsets, data = utf8(texts)
        # Not as a batch: that answers in arrays of awkward, whose import takes 0.3 CPU s.
        ids = [
            _NO_IDS if is_slow else self._fast.encode(data[begin:end].tobytes())
            for is_slow, (begin, end) in zip(
                by_reference.tolist(), itertools.pairwise(offsets.tolist()), strict=True
            )
        ]
        rows = np.flatnonzero(by_reference)
        if len(rows):
            slow = self._reference.encode(texts.take(pa.array(rows)))
            for row, (begin, end) in zip(rows, itertools.pairwise(slow.offsets), strict=True):
                ids[row] = slow.ids[begin:end]
        return Ids.from_lists(ids)

    def _check(self, texts: pa.Array, encoded: Ids) -> None:
        """Compare the ids of the first documents with those of the reference."""
        sizes = np.diff(utf8(texts).offsets)
        count = int(np.searchsorted(np.cumsum(sizes), self._unchecked)) + 1
        self._unchecked -= int(sizes[:count].sum())
        offsets = encoded.offsets[: min(count, len(texts)) + 1]
        if not have_same_ids(Ids(encoded.ids, offsets), self._reference.encode(texts[:count])):
            raise DataError(
                "tokenize: gigatoken gives other ids than the tokenizer's own library for one of "
                f"the first {len(offsets) - 1} documents of this process. Set engine: huggingface "
                "(or sentencepiece, for its models)."
            )


def _knows_unicode(normalizer: Mapping[str, Any] | None) -> bool:
    """Return whether what a normalizer does depends on kinds of characters."""
    if normalizer is None:
        return False
    steps = normalizer.get("normalizers", [normalizer])
    return any(
        step["type"] not in {"Prepend", "Replace"} or "Regex" in step.get("pattern", {})
        for step in steps
    )


# ---------------------------------------------------------------- disputed code points


PLANES = np.r_[:0x40000, 0xE0000:0xE1000].astype("<u4")
"""Where code points have been assigned so far."""
PRIVATE = 0xF0000
"""From here on code points are for private use, in every version."""


@functools.cache
def disputed(*, normalizes: bool) -> Bytes:
    """Return a bitmap, (0x22000,) uint8, of the code points on which the engines may differ.

    Those that the reference's Unicode has not assigned. Its normalizers are older still (they don't
    compose U+11935 U+11930, of Unicode 13), so with one all letters and marks newer than Unicode
    3.2 count, the one older version that every Python knows. Takes 0.1 CPU seconds once per
    machine and version.
    """
    stamp = f"{importlib.metadata.version('tokenizers')} {normalizes}"
    cached = derived("disputed", stamp, __file__, lambda: Derived({}, {"bits": _bits(normalizes)}))
    return cached.arrays["bits"]


def _bits(normalizes: bool) -> Bytes:
    is_disputed = np.ones(0x110000, np.uint8)
    is_disputed[PLANES] = is_disputed[PRIVATE:] = 0
    is_disputed[_matching(r"[^\p{Cn}]")] = 1
    if normalizes:
        recent = _matching(r"[^\p{L}\p{M}]").tolist()
        unicode_3 = unicodedata.ucd_3_2_0
        is_disputed[[point for point in recent if unicode_3.category(chr(point)) == "Cn"]] = 1
    return np.packbits(is_disputed, bitorder="little")


def _matching(pattern: str) -> Uint32s:
    """Return the code points that Hugging Face's regular expressions do not put in `pattern`."""
    from tokenizers import Regex, normalizers

    remove = normalizers.Replace(Regex(pattern), "")
    # In blocks: one text of all code points costs 1 CPU second, and 0.7 GB.
    starts = (start for start in range(0, len(PLANES), 2048) if start != 0xD800)  # surrogates
    blocks = (PLANES[start : start + 2048] for start in starts)
    texts = (remove.normalize_str(block.tobytes().decode("utf-32-le")) for block in blocks)
    return np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")


@kernel
def find_disputed(offsets: Int64s, data: Bytes, marked: Bytes) -> Bools:
    """Return which texts hold a marked code point, (N,). O(B), stops at the first in each text.

    Args:
        offsets, data: (N + 1,), (B,) valid UTF-8.
        marked: bitmap over code points, lowest bit first.
    """
    is_disputed = np.zeros(len(offsets) - 1, np.bool_)
    for text in range(len(is_disputed)):
        offset, end = offsets[text], offsets[text + 1]
        while offset < end:
            if offset + 32 <= end and _is_ascii(data[offset : offset + 32]):
                offset += 32
                continue
            point, size = np.int64(data[offset]), 1
            if point >= 0x80:
                size = 2 if point < 0xE0 else 3 if point < 0xF0 else 4
                point &= 0x7F >> size
                for follow in range(offset + 1, offset + size):
                    point = point << 6 | np.int64(data[follow]) & 0x3F
                if marked[point >> 3] >> (point & 7) & 1:
                    is_disputed[text] = True
                    break
            offset += size
    return is_disputed


@inline
def _is_ascii(block: Bytes) -> bool:
    """Return whether 32 bytes are all ASCII, without a branch per byte."""
    bits = np.uint8(0)
    for index in range(32):
        bits |= block[index]
    return bool(bits < np.uint8(0x80))
