"""Which encoder a tokenizer gets; it is opened once per process."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpuskit.cache import cache_dir
from corpuskit.distribution import install_command
from corpuskit.errors import CorpuskitError, UsageError, reason_of
from corpuskit.formats.derived import Derived, derived
from corpuskit.stages.sequences.tokenize.definition import (
    Specials,
    TokenizerSpec,
    define,
    files_of,
    identify,
    stamp,
    with_controls,
    without_names,
)
from corpuskit.stages.sequences.tokenize.encoders import (
    Encoder,
    GigatokenEncoder,
    ReferenceEncoder,
    SentencePieceEncoder,
    raise_interrupts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.kernels.arrays import Int64s
    from corpuskit.stages.sequences.tokenize.sentencepiece import SentencePieceModel


Engine = Literal["auto", "huggingface", "gigatoken", "sentencepiece"]
_NO_SPECIALS = Specials(None, None, None)


def open_engine(
    spec: TokenizerSpec,
    engine: Engine = "auto",
    specials: Specials = _NO_SPECIALS,
    *,
    allow_special: bool = False,
) -> Encoder:
    """Return an encoder for a tokenizer: the fastest engine, or the one named.

    Args:
        specials: tokens that text must not become, besides those marked in the file.
        allow_special: text that spells a special token becomes it.

    Raises:
        UsageError: the engine is not installed, or can't do this tokenizer.
    """
    stamps = tuple(map(stamp, files_of(spec.path)))
    return _open(spec, stamps, engine, specials, allow_special)


def check_engine(
    spec: TokenizerSpec,
    engine: Engine = "auto",
    specials: Specials = _NO_SPECIALS,
    *,
    allow_special: bool = False,
) -> None:
    """Check that `open_engine` can open a tokenizer.

    That takes 0.3 to 6 CPU seconds, so success is recorded beside the compiled kernels: the second
    plan with the same tokenizer does not open it.

    Raises:
        UsageError: it cannot.
    """
    facts = [identify(spec), engine, list(specials), allow_special, _versions()]

    def make() -> Derived:
        open_engine(spec, engine, specials, allow_special=allow_special)
        return Derived({"opens": True}, {})

    stamp = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    try:
        cache_dir()
    except UsageError:  # no cache folder: a run refuses that with its own message
        make()
        return
    derived("tokenizer", stamp, __file__, make)


@functools.cache
def _versions() -> list[str]:
    names = ("tokenizers", "gigatoken", "sentencepiece")
    return [importlib.metadata.version(name) if is_installed(name) else "" for name in names]


def is_installed(library: str) -> bool:
    """Return whether a library can be imported, without importing it."""
    return importlib.util.find_spec(library) is not None


@functools.lru_cache(maxsize=4)
def _open(
    spec: TokenizerSpec,
    stamps: tuple[int, ...],
    engine: Engine,
    specials: Specials,
    allow_special: bool,
) -> Encoder:
    del stamps  # a file that changed is another file
    definition = define(spec)
    if definition.model is not None:
        return _open_pieces(spec.path, definition.model, engine, specials, allow_special)
    if engine == "sentencepiece":
        raise UsageError(
            f"engine: sentencepiece can't do {spec.path}, which is not a SentencePiece "
            f"model ({definition.kind}). Set engine: auto."
        )
    try:
        fields = with_controls(definition.fields, specials)
        if not allow_special:
            fields = without_names(fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{spec.path}: is not a tokenizer that can be read: {reason_of(error)}. "
            "Check that the file is whole."
        ) from None
    fast = _open_fast(spec.path, engine, fields, allow_special=allow_special)
    return fast or ReferenceEncoder(fields, allow_special=allow_special, path=spec.path)


def _open_fast(
    path: str, engine: Engine, fields: Mapping[str, Any], **options: Any
) -> Encoder | None:
    """Return gigatoken; None if `engine` is another one, or `auto` where gigatoken can't do it."""
    if engine == "huggingface":
        return None
    try:
        return GigatokenEncoder(fields, path=path, **options)
    except ImportError:
        if engine == "gigatoken":
            raise UsageError(
                "engine: gigatoken is not installed. "
                f"Run {install_command('fast')}, or set engine: auto."
            ) from None
    except CorpuskitError:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is no Exception
        raise_interrupts(error)
        if engine == "gigatoken":
            raise UsageError(
                f"engine: gigatoken can't do {path}: {reason_of(error)}. Set engine: auto."
            ) from None
    return None


def _open_pieces(
    path: str, model: SentencePieceModel, engine: Engine, specials: Specials, allow_special: bool
) -> Encoder:
    """Open an encoder for a SentencePiece model: its library, or one that gives the same ids."""
    reason = model.needs_library
    if not reason and allow_special:
        reason = "spelled special tokens are cut out of the text otherwise"
    if engine == "huggingface" and model.set_apart:
        reason = reason or "it has pieces of its own that are not merged"
    if reason and engine not in {"auto", "sentencepiece"}:
        raise UsageError(
            f"engine: {engine} can't do {path} with the same ids as SentencePiece: "
            f"{reason}. Set engine: auto."
        )
    library: Encoder | None = None
    if engine == "sentencepiece" or reason or model.set_apart or is_installed("sentencepiece"):
        library = _open_library(path, model, specials, allow_special)
        if engine == "sentencepiece" or reason:
            return library
    fields = model.to_fields()
    options = {"allow_special": False, "reference": library, "set_apart": model.set_apart}
    fast = _open_fast(path, engine, fields, **options)
    if engine == "huggingface":
        return ReferenceEncoder(fields, allow_special=False, path=path)
    return fast or library or ReferenceEncoder(fields, allow_special=False, path=path)


def _open_library(
    path: str, model: SentencePieceModel, specials: Specials, allow_special: bool
) -> Encoder:
    names = {name for name in specials if name is not None}
    try:
        return SentencePieceEncoder(model, names, allow_special=allow_special)
    except ImportError:
        raise UsageError(
            f"{path} is a SentencePiece model that needs its own library. "
            f"Run: {install_command('sentencepiece')}"
        ) from None
    except RuntimeError as error:
        raise UsageError(
            f"{path}: SentencePiece can't open this model: {reason_of(error)}. Check the file."
        ) from None


# ---------------------------------------------------------------- where tokens are in a text


def check_edges(path: str) -> None:
    """Check that a tokenizer can be opened for `open_engine` and `token_edges`.

    Raises:
        UsageError: it cannot, or only the library of SentencePiece knows its ids.
    """
    model = define(TokenizerSpec(path)).model
    if model is not None and model.set_apart:
        raise UsageError(
            f"tokenizer: {path}: only SentencePiece knows its tokens. Use a tokenizer.json."
        )
    check_engine(TokenizerSpec(path))


def token_edges(path: str, text: str) -> tuple[Int64s, Int64s]:
    """Return the first byte and the end of each token of a text, (T,) each.

    Tokens that share a character have the bounds of that character.
    """
    stamps = tuple(map(stamp, files_of(path)))
    encoding = _exact(path, stamps).encode(text, add_special_tokens=False)
    edges = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    if not text.isascii():
        is_lead = np.frombuffer(text.encode(), np.uint8) & 0xC0 != 0x80
        char_starts = np.append(np.flatnonzero(is_lead), len(is_lead))  # from characters to bytes
        edges = char_starts[edges]
    return edges[:, 0], edges[:, 1]


@functools.lru_cache(maxsize=4)
def _exact(path: str, stamps: tuple[int, ...]) -> Any:
    """Return the tokenizer without its post-processor, which would trim offsets.

    Raises:
        UsageError: only the library of SentencePiece knows its ids.
    """
    del stamps  # a file that changed is another file
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    definition = define(TokenizerSpec(path))
    if definition.model is not None and definition.model.set_apart:
        raise UsageError(f"{path}: only SentencePiece knows its tokens. Use a tokenizer.json.")
    tokenizer = Tokenizer.from_str(json.dumps(definition.fields | {"post_processor": None}))
    tokenizer.encode_special_tokens = True
    return tokenizer
