"""SentencePiece models: as a tokenizer.json where that gives the same ids, else by its library.

The same ids are certain for BPE with byte fallback that neither changes nor cuts the text (Llama 2,
Mistral). Everything else (Unigram, normalization) is left to the library.

Source: sentencepiece_model.proto for the file; bpe_model.cc and model_interface.cc.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.stages.sequences import _pieces
from corpuskit.stages.sequences._pieces import SPACE
from corpuskit.stages.sequences._tokenizer import Ids

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of a model."""
CONTENT, SCORE, TYPE = 1, 2, 3
"""Fields of a piece."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BPE = 2


class Piece(NamedTuple):
    """One token; the type says what makes it."""

    content: str
    score: float
    type: int


@dataclasses.dataclass(frozen=True)
class Model:
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
        """Return the tokens that text never makes."""
        known = {UNKNOWN, CONTROL}
        return {p.content: n for n, p in enumerate(self.pieces) if p.type in known}

    def own_pieces(self) -> list[str]:
        """Return the tokens that text makes where it spells them, and that are not merged."""
        return [piece.content for piece in self.pieces if piece.type == USER_DEFINED]

    @property
    def unknown(self) -> str | None:
        """The token of what can't be encoded."""
        return next((piece.content for piece in self.pieces if piece.type == UNKNOWN), None)

    @functools.cached_property
    def set_apart(self) -> str:
        """A regular expression that matches where text may make a piece that is not merged.

        More texts match than have one: a space before the text, say, is taken for granted.
        """
        own = [name.removeprefix(SPACE) for name in self.own_pieces()]
        return "|".join(re.escape(name).replace(SPACE, f"[ {SPACE}]") for name in own)

    @functools.cached_property
    def needs_library(self) -> str:
        """Why the ids of a tokenizer.json might differ; empty if they can't."""
        normal = [piece.content for piece in self.pieces if piece.type == NORMAL]
        atoms = {content for content in normal if len(content) == 1}
        reasons = {
            "it is no BPE": self.model_type != BPE,
            "it has no byte fallback": not self.byte_fallback
            or sum(piece.type == BYTE for piece in self.pieces) != 256,
            "it normalizes text": self.charsmap or self.remove_extra_spaces,
            "it treats spaces otherwise": self.space_as_suffix or not self.escape_spaces,
            "it has unused pieces": any(piece.type == UNUSED for piece in self.pieces),
            "a piece has characters that are none": not atoms.issuperset("".join(normal)),
        }
        found = next((reason for reason, applies in reasons.items() if applies), "")
        return found or ("" if _pieces.ties_hold(*self._merges) else "scores tie")

    @functools.cached_property
    def _merges(self) -> tuple[list[Piece], list[int]]:
        normal = [piece for piece in self.pieces if piece.type == NORMAL]
        ordered = _pieces.merge_order(normal)
        return ordered, _pieces.last_halves(ordered)

    def to_fields(self) -> dict[str, Any]:
        """Return the content of a tokenizer.json: the same ids for texts without `set_apart`.

        Raises:
            UsageError: there is none.
        """
        if self.needs_library:
            raise UsageError(
                "the ids of this SentencePiece model can't be had from a tokenizer.json: "
                f"{self.needs_library}. Use the model itself."
            )
        return _pieces.bpe_fields(self, *self._merges)

    def with_specials(self, names: Collection[str], *, allow_special: bool) -> bytes:
        """Return the model with other types for tokens that text must not, or may, make.

        Args:
            names: tokens that end and begin documents: never made by text.
            allow_special: text that spells a special token makes it.
        """
        changed = {
            number: USER_DEFINED if allow_special else CONTROL
            for number, piece in enumerate(self.pieces)
            if piece.type == (CONTROL if allow_special else USER_DEFINED)
            and (allow_special or piece.content in names)
        }
        return _with_types(self.content, changed)


def looks_like_model(content: bytes) -> bool:
    """Say whether a file may be a SentencePiece model: it begins with a piece."""
    return content[:1] == b"\x0a" and len(content) > 2 and content[2:3] == b"\x0a"


def read_model(path: str, content: bytes) -> Model:
    """Return the content of a SentencePiece model.

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
                trainer = {name: found for name, found, _ in _read_fields(value)}
            elif field == NORMALIZER:
                normalizer = {name: found for name, found, _ in _read_fields(value)}
        if not pieces:
            raise ValueError("no pieces")
    except (AttributeError, IndexError, TypeError, ValueError, struct.error):
        raise UsageError(
            f"{path} begins like a SentencePiece model, but can't be read as one. "
            "Check that the file is whole."
        ) from None
    return Model(
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
    found = {field: value for field, value, _ in _read_fields(content)}
    score = struct.unpack("<f", found.get(SCORE, bytes(4)))[0]
    return Piece(found.get(CONTENT, b"").decode(), score, found.get(TYPE, NORMAL))


def _read_fields(content: bytes) -> Iterator[tuple[int, Any, int]]:
    """Yield (number, value, where it ends) of the fields of a protobuf message."""
    at = 0
    while at < len(content):
        tag, at = _read_number(content, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = _read_number(content, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
            value, at = content[at : at + size], at + size
        elif kind == 2:
            size, at = _read_number(content, at)
            value, at = content[at : at + size], at + size
        else:
            raise ValueError(f"wire type {kind}")
        if at > len(content):
            raise ValueError("cut off")
        yield tag >> 3, value, at


def _read_number(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
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

    A later value of a field replaces an earlier one, so a type is put behind what a piece has.
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


class SentencePieceEncoder:
    """Encodes with the library of SentencePiece, which is the reference for its models.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(self, model: Model, names: Collection[str], *, allow_special: bool) -> None:
        import sentencepiece

        content = model.with_specials(names, allow_special=allow_special)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""
        lists = [np.array(self._processor.encode(text), np.uint32) for text in texts.to_pylist()]
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        return Ids(np.concatenate([np.zeros(0, np.uint32), *lists]), offsets)
