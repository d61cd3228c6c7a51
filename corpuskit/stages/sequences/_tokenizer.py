"""The reference engine that turns text into ids, and what engines have in common."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

BATCH_DOCS = 256


class Ids(NamedTuple):
    """Token ids of documents: those of document i are `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class Encoder(Protocol):
    """Turns texts into ids, without ids that begin or end documents."""

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""


def to_text(fields: Mapping[str, Any], model: str | None = None) -> str:
    """Return a tokenizer.json as text.

    Args:
        model: the model as text; it is nearly all of it, and two engines are opened with it.
    """
    rest = {name: value for name, value in fields.items() if name != "model"}
    return f'{json.dumps(rest)[:-1]}, "model": {model or json.dumps(fields["model"])}}}'


class ReferenceEncoder:
    """Encodes with Hugging Face tokenizers.

    Args:
        fields: the tokenizer.
        allow_special: a text that spells a special token gets its id.
        model: as of to_text.
        path: what errors call it.

    Raises:
        UsageError: Hugging Face tokenizers can't open it, or gives added tokens other ids than the
            file says.
    """

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
        lists: list[list[int]] = []
        for begin in range(0, len(texts), BATCH_DOCS):
            batch = texts[begin : begin + BATCH_DOCS].to_pylist()
            try:
                found = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            except BaseException as error:  # noqa: BLE001 - it raises nothing else
                raise_interrupts(error)
                raise DataError(
                    f"{self._path}: Hugging Face tokenizers can't encode a text with this "
                    f"tokenizer: {reason_of(error)}. Check the file."
                ) from None
            lists.extend(encoding.ids for encoding in found)
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        flat = itertools.chain.from_iterable(lists)
        return Ids(np.fromiter(flat, np.uint32, int(offsets[-1])), offsets)


def raise_interrupts(error: BaseException) -> None:
    """Raise what is no error of a library: one written in Rust that panics raises no Exception."""
    if isinstance(error, (KeyboardInterrupt, MemoryError, SystemExit, GeneratorExit)):
        raise error


def same(one: Ids, other: Ids) -> bool:
    """Say whether both engines gave the same ids."""
    return np.array_equal(one.offsets - one.offsets[0], other.offsets - other.offsets[0]) and (
        np.array_equal(_content(one), _content(other))
    )


def _content(found: Ids) -> NDArray[np.uint32]:
    return found.ids[found.offsets[0] : found.offsets[-1]]
