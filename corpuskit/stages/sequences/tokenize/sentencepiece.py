"""SentencePiece models: as a tokenizer.json where that gives the same ids, else by its library.

It does for BPE with byte fallback that neither changes nor cuts the text (Llama 2, Mistral).
Everything else (Unigram, normalization) is left to the library.

Source: sentencepiece_model.proto for the file; bpe_model.cc and model_interface.cc.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.stages.sequences.tokenize.ranks import bpe_fields

PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of a model."""
CONTENT, SCORE, TYPE = 1, 2, 3
"""Fields of a piece."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of a piece."""
BPE = 2
"""Type of a model."""


class Piece(NamedTuple):
    """One token, as the model stores it."""

    content: str
    score: float
    type: int


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """A SentencePiece model, with what decides ids."""

    content: bytes
    pieces: tuple[Piece, ...]
    model_type: int
    byte_fallback: bool
    space_as_suffix: bool
    charsmap: bool
    dummy_prefix: bool
    remove_extra_spaces: bool
    escape_spaces: bool

    def vocabulary(self) -> dict[str, int]:
        """Return token -> id."""
        return {piece.content: number for number, piece in enumerate(self.pieces)}

    def specials(self) -> dict[str, int]:
        """Return the tokens that text never becomes, and their ids."""
        types = {UNKNOWN, CONTROL}
        return {p.content: n for n, p in enumerate(self.pieces) if p.type in types}

    def own_pieces(self) -> list[str]:
        """Return the tokens that text becomes wherever it spells them, without merges."""
        return [piece.content for piece in self.pieces if piece.type == USER_DEFINED]

    @property
    def unknown(self) -> str | None:
        """The token for what can't be encoded."""
        return next((piece.content for piece in self.pieces if piece.type == UNKNOWN), None)

    @functools.cached_property
    def set_apart(self) -> str:
        """A regular expression for texts that may have one of `own_pieces`; "" if there are none.

        More texts match than have one: it assumes a space before the text, say.
        """
        names = [name.removeprefix(SPACE) for name in self.own_pieces()]
        return "|".join(re.escape(name).replace(SPACE, f"[ {SPACE}]") for name in names)

    @functools.cached_property
    def needs_library(self) -> str:
        """Why the ids of a tokenizer.json might differ; "" if they can't."""
        normal = [piece.content for piece in self.pieces if piece.type == NORMAL]
        atoms = {content for content in normal if len(content) == 1}
        reasons = {
            "it is not BPE": self.model_type != BPE,
            "it has no byte fallback": not self.byte_fallback
            or sum(piece.type == BYTE for piece in self.pieces) != 256,
            "it normalizes text": self.charsmap or self.remove_extra_spaces,
            "it treats spaces otherwise": self.space_as_suffix or not self.escape_spaces,
            "it has unused pieces": any(piece.type == UNUSED for piece in self.pieces),
            "a piece has characters that are none": not atoms.issuperset("".join(normal)),
        }
        reason = next((reason for reason, applies in reasons.items() if applies), "")
        return reason or ("" if ties_hold(*self._merges) else "scores tie")

    @functools.cached_property
    def _merges(self) -> tuple[list[Piece], list[int]]:
        normal = [piece for piece in self.pieces if piece.type == NORMAL]
        ordered = merge_order(normal)
        return ordered, last_halves(ordered)

    def to_fields(self) -> dict[str, Any]:
        """Return the content of a tokenizer.json: the same ids for texts without `set_apart`.

        Raises:
            UsageError: no tokenizer.json has the same ids.
        """
        if self.needs_library:
            raise UsageError(
                "the ids of this SentencePiece model can't be had from a tokenizer.json: "
                f"{self.needs_library}. Use the model itself."
            )
        return _as_fields(self, *self._merges)

    def with_specials(self, names: Collection[str], *, allow_special: bool) -> bytes:
        """Return the model with other types for tokens that text must not, or may, become.

        Args:
            names: tokens that end and begin documents, which text must not become.
            allow_special: text that spells a special token becomes it.
        """
        new_types = {
            number: USER_DEFINED if allow_special else CONTROL
            for number, piece in enumerate(self.pieces)
            if piece.type == (CONTROL if allow_special else USER_DEFINED)
            and (allow_special or piece.content in names)
        }
        return _with_types(self.content, new_types)


def looks_like_model(content: bytes) -> bool:
    """Return whether a file may be a SentencePiece model: it begins with a piece."""
    return content[:1] == b"\x0a" and len(content) > 2 and content[2:3] == b"\x0a"


def read_model(path: str, content: bytes) -> SentencePieceModel:
    """Read a SentencePiece model.

    Raises:
        UsageError: it is something else, or damaged.
    """
    pieces: list[Piece] = []
    trainer: Mapping[int, Any] = {}
    normalizer: Mapping[int, Any] = {}
    try:
        for field, value, _ in _read_fields(content):
            if field == PIECES:
                pieces.append(_read_piece(value))
            elif field == TRAINER:
                trainer = _fields_by_number(value)
            elif field == NORMALIZER:
                normalizer = _fields_by_number(value)
        if not pieces:
            raise ValueError("no pieces")
    except (AttributeError, IndexError, TypeError, ValueError, struct.error):
        raise UsageError(
            f"{path} begins like a SentencePiece model, but can't be read as one. "
            "Check that the file is whole."
        ) from None
    # Numbers of fields and defaults are those of sentencepiece_model.proto.
    return SentencePieceModel(
        content=content,
        pieces=tuple(pieces),
        model_type=int(trainer.get(3, 1)),
        byte_fallback=bool(trainer.get(35, False)),
        space_as_suffix=bool(trainer.get(24, False)),
        charsmap=bool(normalizer.get(2)),
        dummy_prefix=bool(normalizer.get(3, True)),
        remove_extra_spaces=bool(normalizer.get(4, True)),
        escape_spaces=bool(normalizer.get(5, True)),
    )


def _read_piece(content: bytes) -> Piece:
    fields = _fields_by_number(content)
    score = struct.unpack("<f", fields.get(SCORE, bytes(4)))[0]
    return Piece(fields.get(CONTENT, b"").decode(), score, fields.get(TYPE, NORMAL))


def _fields_by_number(content: bytes) -> dict[int, Any]:
    return {number: value for number, value, _ in _read_fields(content)}


def _read_fields(content: bytes) -> Iterator[tuple[int, Any, int]]:
    """Yield (number, value, end in `content`) of the fields of a protobuf message."""
    offset = 0
    while offset < len(content):
        tag, offset = _read_number(content, offset)
        wire_type = tag & 7
        value: Any
        if wire_type == 0:
            value, offset = _read_number(content, offset)
        elif wire_type in {1, 5}:
            size = 8 if wire_type == 1 else 4
            value, offset = content[offset : offset + size], offset + size
        elif wire_type == 2:
            size, offset = _read_number(content, offset)
            value, offset = content[offset : offset + size], offset + size
        else:
            raise ValueError(f"wire type {wire_type}")
        if offset > len(content):
            raise ValueError("cut off")
        yield tag >> 3, value, offset


def _read_number(content: bytes, offset: int) -> tuple[int, int]:
    """Return a varint and its end."""
    value = shift = 0
    while True:
        byte = content[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
        if shift > 63:
            raise ValueError("a number without end")


def _write_number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _with_types(content: bytes, types: Mapping[int, int]) -> bytes:
    """Return a model in which some pieces, by number, have other types.

    A later value of a field replaces an earlier one, so a type is added at the end of a piece.
    """
    out, number, begin = bytearray(), 0, 0
    for field, value, end in _read_fields(content):
        if field == PIECES and number in types:
            piece = value + bytes([TYPE << 3, types[number]])
            out += bytes([PIECES << 3 | 2]) + _write_number(len(piece)) + piece
        else:
            out += content[begin:end]
        number += field == PIECES
        begin = end
    return bytes(out)


# ---------------------------------------------------------------- as a tokenizer.json
#
# SentencePiece merges the neighbours whose piece has the highest score, the leftmost of equal ones,
# so kernels/merges.py applies: one merge for each piece. A tokenizer.json can't have merges of
# equal rank, so pieces with equal scores need an argument of their own (`ties_hold`).


SPACE = "\u2581"

_RUN_FACTOR = 4
"""`ties_hold` tries runs of up to this many times the characters of the longest tied piece."""

_MAX_RUN = 64
"""Longest tied piece for which it tries: the time grows with its length to the power of four.
Mistral's have 15 spaces."""


def merge_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces in the order of their merges: of equal scores the longest first."""
    return sorted(pieces, key=lambda piece: (-piece.score, -len(piece.content)))


def last_halves(ordered: Sequence[Piece]) -> list[int]:
    """Return the byte at which the second half of each piece begins (kernels.merges)."""
    from corpuskit.kernels.merges import last_merges
    from corpuskit.kernels.stringset import make_table

    scores = np.array([-piece.score for piece in ordered])
    _, priority = np.unique(scores, return_inverse=True)
    table = make_table([piece.content.encode() for piece in ordered])
    halves: list[int] = last_merges(table, priority.astype(np.int64), True).tolist()
    return halves


def ties_hold(ordered: Sequence[Piece], halves: Sequence[int]) -> bool:
    """Return whether merging equal scores by length gives what merging the leftmost first gives.

    It does if no scores are equal. It may if the pieces with equal scores are runs of one
    character (of spaces, in Mistral's models) that merge after everything else and are in no other
    piece: then only the lengths of runs matter, and those up to a bound are tried.
    """
    indices_by_score: dict[float, list[int]] = {}
    for index, piece in enumerate(ordered):
        if len(piece.content) > 1:
            indices_by_score.setdefault(piece.score, []).append(index)
    tied = {score: indices for score, indices in indices_by_score.items() if len(indices) > 1}
    if not tied:
        return True
    (indices,) = tied.values() if len(tied) == 1 else ([],)
    runs = [ordered[index].content for index in indices]
    chars = set("".join(runs))
    if len(chars) != 1 or min(indices_by_score) not in tied:
        return False
    pair = next(iter(chars)) * 2
    if any(pair in piece.content and piece.content not in runs for piece in ordered):
        return False
    if max(map(len, runs)) > _MAX_RUN:
        return False
    size = len(next(iter(chars)).encode())
    half_by_length = {len(ordered[index].content): halves[index] // size for index in indices}
    return all(
        _merge_leftmost(length, half_by_length) == _merge_longest(length, half_by_length)
        for length in range(2, _RUN_FACTOR * max(half_by_length) + 1)
    )


def _merge_leftmost(length: int, halves: Mapping[int, int]) -> list[int]:
    """Return the lengths of the pieces that SentencePiece makes of a run of one character."""
    lengths = [1] * length
    while True:
        sums = [a + b for a, b in itertools.pairwise(lengths)]
        index = next((index for index, total in enumerate(sums) if total in halves), None)
        if index is None:
            return lengths
        lengths[index : index + 2] = [sums[index]]


def _merge_longest(length: int, halves: Mapping[int, int]) -> list[int]:
    """Return the lengths of the pieces that a tokenizer.json makes of it: one merge per piece."""
    lengths = [1] * length
    while True:
        pairs = itertools.pairwise(lengths)
        sums = [a + b if halves.get(a + b) == a else 0 for a, b in pairs]
        if not any(sums):
            return lengths
        index = sums.index(max(sums))
        lengths[index : index + 2] = [sums[index]]


def _as_fields(
    model: SentencePieceModel, ordered: Sequence[Piece], halves: Sequence[int]
) -> dict[str, Any]:
    """Return the content of a tokenizer.json."""
    merges = [
        [token[:half].decode(), token[half:].decode()]
        for token, half in zip((piece.content.encode() for piece in ordered), halves, strict=True)
        if half > 0
    ]
    to_space = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    from_space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[dict[str, Any]] = [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    prefix: list[dict[str, Any]] = []
    if model.dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        prefix.append({"type": "Prepend", "prepend": SPACE})
    bpe = {
        "unk_token": model.unknown,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": model.vocabulary(),
        "merges": merges,
    }
    normalizer = {"type": "Sequence", "normalizers": [*prefix, from_space]}
    decoder = {"type": "Sequence", "decoders": decoders}
    return bpe_fields(model.specials(), bpe, normalizer=normalizer, decoder=decoder)
