"""Token ids as something to compare texts by, and where tokens are in a text."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.stages.sequences._definition import Named, define, files_of, stamp
from corpuskit.stages.sequences._engines import check_engine, open_engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.stages.sequences._tokenizer import Encoder


def open_encoder(path: str) -> Encoder:
    """Return the fastest engine there is for a tokenizer, opened once per process."""
    return open_engine(Named(path))


def check_edges(path: str) -> None:
    """Check that a tokenizer can be opened for `open_encoder` and `token_edges`.

    Raises:
        UsageError: it cannot, or only the library of SentencePiece knows its ids.
    """
    model = define(Named(path)).model
    if model is not None and model.set_apart:
        raise UsageError(
            f"tokenizer: {path}: only SentencePiece knows its tokens. Use a tokenizer.json."
        )
    check_engine(Named(path))


def token_edges(path: str, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each token of a text begins and ends, (T,), in bytes.

    Tokens that share a character have the bounds of that character.
    """
    stamps = tuple(map(stamp, files_of(path)))
    found = _exact(path, stamps).encode(text, add_special_tokens=False)
    edges = np.array(found.offsets, np.int64).reshape(-1, 2)
    if not text.isascii():
        lead = np.frombuffer(text.encode(), np.uint8) & 0xC0 != 0x80
        places = np.append(np.flatnonzero(lead), len(lead))
        edges = places[edges]
    return edges[:, 0], edges[:, 1]


@functools.lru_cache(maxsize=4)
def _exact(path: str, stamps: tuple[int, ...]) -> Any:
    """Return the tokenizer without what comes after the model: that would trim offsets.

    Raises:
        UsageError: only the library of SentencePiece knows its ids.
    """
    del stamps  # a file that changed is another file
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    definition = define(Named(path))
    if definition.model is not None and definition.model.set_apart:
        raise UsageError(f"{path}: only SentencePiece knows its tokens. Use a tokenizer.json.")
    tokenizer = Tokenizer.from_str(json.dumps(definition.fields | {"post_processor": None}))
    tokenizer.encode_special_tokens = True
    return tokenizer
