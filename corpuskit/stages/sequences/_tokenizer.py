"""A tokenizer file: which ids mean what, and the reference engine that turns text into ids."""

from __future__ import annotations

import functools
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

EOS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Tokens that end documents, by what they are called in published tokenizers."""
BOS = (
    "<s>",
    "<|begin_of_text|>",
    "<bos>",
    "<|startoftext|>",
    "<|bos|>",
    "[BOS]",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
)
PAD = ("<|pad|>", "<pad>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>")

BATCH_DOCS = 256


class Ids(NamedTuple):
    """Token ids of documents: those of document i are `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


class Encoder(Protocol):
    """Turns texts into ids, without ids that begin or end documents."""

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""


class Specials(NamedTuple):
    """Names of the tokens that end and begin documents and that fill rows."""

    eos: str | None
    bos: str | None
    pad: str | None


@functools.lru_cache(maxsize=4)
def _read(path: str, stamp: int) -> dict[str, Any]:
    del stamp  # a file that changed is another file
    try:
        fields = json.loads(Path(path).read_bytes())
        assert "vocab" in fields["model"]
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UsageError(
            f"tokenize: {path} is not a tokenizer.json of Hugging Face tokenizers. "
            "Save one with Tokenizer.save(path)."
        ) from None
    if fields["model"].get("dropout"):
        raise UsageError(
            f"tokenize: {path} drops merges at random (dropout {fields['model']['dropout']}). "
            "Set model.dropout to null in the file."
        )
    # Set for training or inference; a corpus is never cut or padded by its tokenizer.
    return {**fields, "truncation": None, "padding": None}


def read_tokenizer(path: str) -> dict[str, Any]:
    """Return the content of a tokenizer.json; callers must not change it.

    Raises:
        UsageError: there is no such file, or it is something else.
    """
    return _read(path, stamp(path))


def stamp(path: str) -> int:
    """Return what changes when the file does.

    Raises:
        UsageError: there is no such file.
    """
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise UsageError(
            f"tokenize: can't open the tokenizer {path!r}: {error.strerror}. "
            "Give the path of a tokenizer.json."
        ) from None


@functools.lru_cache(maxsize=4)
def _vocabulary(path: str, stamp: int) -> dict[str, int]:
    from tokenizers import Tokenizer

    fields = _read(path, stamp)
    return Tokenizer.from_str(json.dumps(fields)).get_vocab(with_added_tokens=True)


def vocabulary(path: str) -> Mapping[str, int]:
    """Return token -> id, added tokens included."""
    return _vocabulary(path, stamp(path))


def find_specials(path: str, *, eos: str | None, bos: str | None) -> Specials:
    """Return the named tokens, or those that can only be meant.

    A name that is given must exist. What can't be told is None.

    Raises:
        UsageError: `eos` or `bos` is not in the vocabulary.
    """
    known = vocabulary(path)
    for parameter, token in (("eos", eos), ("bos", bos)):
        if token is not None and token not in known:
            could_be = _join(candidates(path, parameter)) or "any token of its vocabulary"
            raise UsageError(
                f"tokenize.{parameter}: {path} has no token {token!r}. It could be {could_be}."
            )
    found = [candidates(path, name) for name in ("eos", "bos", "pad")]
    only = [names[0] if len(names) == 1 else None for names in found]
    return Specials(eos or only[0], bos or only[1], only[2])


def candidates(path: str, kind: str) -> list[str]:
    """Return the tokens of the vocabulary that are called as `eos`, `bos` or `pad` usually are."""
    known = vocabulary(path)
    return [token for token in {"eos": EOS, "bos": BOS, "pad": PAD}[kind] if token in known]


def require(path: str, kind: str, token: str | None) -> str:
    """Return `token`, or say what to set.

    Raises:
        UsageError: it is None.
    """
    if token is not None:
        return token
    named = candidates(path, kind)
    problem = f"{_join(named)} could each be it" if named else "no token has one of the usual names"
    raise UsageError(
        f"tokenize.{kind}: can't tell which token of {path}, because {problem}. "
        f"Set {kind}, or add_{kind}: false."
    )


def _join(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)


def with_controls(fields: Mapping[str, Any], specials: Specials) -> dict[str, Any]:
    """Return the tokenizer with eos, bos and pad marked as special.

    Phi-3's </s> is not, so a text that spells it would end a document in the middle.
    """
    added = [
        token | {"special": bool(token["special"] or token["content"] in specials)}
        for token in fields.get("added_tokens") or []
    ]
    return {**fields, "added_tokens": added}


class ReferenceEncoder:
    """Encodes with Hugging Face tokenizers.

    Args:
        fields: the tokenizer.
        allow_special: a text that spells a special token gets its id.
    """

    def __init__(self, fields: Mapping[str, Any], *, allow_special: bool) -> None:
        # Workers are processes, one per core; threads of its own would only queue.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(json.dumps(fields))
        self._tokenizer.encode_special_tokens = not allow_special

    def encode(self, texts: pa.Array) -> Ids:
        """Return the ids of a large_string array without nulls."""
        lists: list[list[int]] = []
        for begin in range(0, len(texts), BATCH_DOCS):
            batch = texts[begin : begin + BATCH_DOCS].to_pylist()
            found = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            lists.extend(encoding.ids for encoding in found)
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        flat = itertools.chain.from_iterable(lists)
        return Ids(np.fromiter(flat, np.uint32, int(offsets[-1])), offsets)


def same(one: Ids, other: Ids) -> bool:
    """Say whether both engines gave the same ids."""
    return np.array_equal(one.offsets - one.offsets[0], other.offsets - other.offsets[0]) and (
        np.array_equal(_content(one), _content(other))
    )


def _content(found: Ids) -> NDArray[np.uint32]:
    return found.ids[found.offsets[0] : found.offsets[-1]]
