"""Token ids as something to compare texts by, and where tokens are in a text."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.stages.sequences import _tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray


def open_encoder(path: str) -> _tokenizer.Encoder:
    """Return the fastest engine there is for a tokenizer, opened once per process."""
    return _open(path, _tokenizer.stamp(path))


def token_edges(path: str, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each token of a text begins and ends, (T,), in bytes.

    Tokens that share a character have the bounds of that character.
    """
    found = _exact(path, _tokenizer.stamp(path)).encode(text, add_special_tokens=False)
    edges = np.array(found.offsets, np.int64).reshape(-1, 2)
    if not text.isascii():
        lead = np.frombuffer(text.encode(), np.uint8) & 0xC0 != 0x80
        places = np.append(np.flatnonzero(lead), len(lead))
        edges = places[edges]
    return edges[:, 0], edges[:, 1]


@functools.lru_cache(maxsize=4)
def _open(path: str, stamp: int) -> _tokenizer.Encoder:
    del stamp  # a file that changed is another file
    fields = _tokenizer.read_tokenizer(path)
    try:
        from corpuskit.stages.sequences._gigatoken import GigatokenEncoder

        return GigatokenEncoder(fields, allow_special=False)
    except (ImportError, RuntimeError):  # not installed, or it does not know this kind
        return _tokenizer.ReferenceEncoder(fields, allow_special=False)


@functools.lru_cache(maxsize=4)
def _exact(path: str, stamp: int) -> Any:
    """Return the tokenizer without what comes after the model: that would trim offsets."""
    del stamp
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    fields = _tokenizer.read_tokenizer(path) | {"post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    tokenizer.encode_special_tokens = True
    return tokenizer
