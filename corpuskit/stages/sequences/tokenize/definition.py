"""Tokenizer files of all kinds, recognised by their content, read into one class."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from corpuskit.errors import UsageError, reason_of
from corpuskit.stages.sequences.tokenize.ranks import Ranks, read_pair, read_ranks, read_tekken
from corpuskit.stages.sequences.tokenize.sentencepiece import (
    SentencePieceModel,
    looks_like_model,
    read_model,
)
from corpuskit.storage import digest_file

JSON, PAIR, RANKS, TEKKEN, SENTENCEPIECE = (
    "tokenizer.json",
    "vocab.json and merges.txt",
    "tiktoken ranks",
    "Tekken",
    "SentencePiece model",
)
KINDS = (JSON, PAIR, RANKS, TEKKEN, SENTENCEPIECE)

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")
_ZSTD = b"\x28\xb5\x2f\xfd"
_MAX_BYTES = 1 << 30
"""Of a tokenizer, unpacked."""

MAX_ID = 1 << 24
"""Engines take memory for every id up to the largest, 8 bytes and more; published vocabularies end
below 1 << 20."""


class TokenizerSpec(NamedTuple):
    """A tokenizer as users name it.

    Attributes:
        path: of a file, or of the folder it is in.
        pattern: name of a preset or regular expression, for files that don't have it.
        special_tokens: (name, id) pairs, for files that don't have them; None = the preset's.
    """

    path: str
    pattern: str | None = None
    special_tokens: tuple[tuple[str, int], ...] | None = None


@dataclasses.dataclass(frozen=True)
class Definition:
    """What the files of a tokenizer hold.

    Attributes:
        kind: one of KINDS.
        vocabulary: token -> id, special tokens included.
        specials: names of the tokens that text never becomes.
        added: names of the tokens outside the model's vocabulary, special ones included.
        regex: how text is split into words, where the file does not say it.
        to_fields: makes the content of a tokenizer.json.
        model: of SentencePiece, which has a library of its own; otherwise None.
    """

    kind: str
    vocabulary: Mapping[str, int]
    specials: tuple[str, ...]
    added: tuple[str, ...]
    regex: str | None
    to_fields: Callable[[], dict[str, Any]]
    model: SentencePieceModel | None = None

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """The content of a tokenizer.json with the same ids; callers must not change it."""
        return self.to_fields()


def files_of(path: str) -> tuple[str, ...]:
    """Return the files of a tokenizer; names only matter in a folder, and next to merges.txt.

    Raises:
        UsageError: a folder has no tokenizer, or several.
    """
    if not os.path.isdir(path):
        folder, name = os.path.split(path)
        if name == "merges.txt" and os.path.isfile(os.path.join(folder, "vocab.json")):
            return files_of(os.path.join(folder, "vocab.json"))
        merges = os.path.join(folder, "merges.txt")
        is_pair = name != "tokenizer.json" and name.endswith(".json") and os.path.isfile(merges)
        return (path, merges) if is_pair and kind_of(path) is None else (path,)
    names = sorted(os.listdir(path))
    for usual in ("tokenizer.json", "vocab.json"):
        if usual in names:
            return files_of(os.path.join(path, usual))
    tokenizers = [
        name
        for name in names
        if name.endswith((".tiktoken", ".model", ".json", ".json.zst"))
        and kind_of(os.path.join(path, name)) is not None
    ]
    if len(tokenizers) == 1:
        return (os.path.join(path, tokenizers[0]),)
    problem = f"has {' and '.join(tokenizers)}" if tokenizers else "has no tokenizer file"
    raise UsageError(f"tokenizer: the folder {path} {problem}. Give the path of one file.")


def define(spec: TokenizerSpec) -> Definition:
    """Return what the files of a tokenizer hold, read once per process.

    Raises:
        UsageError: there is no such file, it is of an unknown kind, or lacks something.
    """
    paths = files_of(spec.path)
    return _define(spec, paths, tuple(map(stamp, paths)))


def identify(spec: TokenizerSpec) -> str:
    """Return a hash of all that decides ids; for a tokenizer.json it is that of the file."""
    paths = files_of(spec.path)
    digests = [digest_file(Path(path)) for path in paths]
    definition = define(spec)
    if definition.kind in {JSON, SENTENCEPIECE}:
        return digests[0]
    specials = sorted((name, definition.vocabulary[name]) for name in definition.specials)
    facts = json.dumps([definition.kind, digests, definition.regex, specials])
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def stamp(path: str) -> int:
    """Return the modification time of a file, in nanoseconds: readers cache by it.

    Raises:
        UsageError: there is no such file.
    """
    try:
        return os.stat(path).st_mtime_ns
    except OSError as error:
        raise _missing(path, error) from None


def _missing(path: str, error: OSError) -> UsageError:
    return UsageError(
        f"can't open the tokenizer {path!r}: {error.strerror}. "
        "Give the path of a tokenizer.json, or of another tokenizer file."
    )


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError as error:
        raise _missing(path, error) from None


def kind_of(path: str) -> str | None:
    """Return the kind of a file, None if it is no tokenizer by itself.

    Raises:
        UsageError: there is no such file.
    """
    return _kind(path, stamp(path))


@functools.lru_cache(maxsize=64)
def _kind(path: str, stamp: int) -> str | None:
    head = _head(path)
    if head.startswith(_ZSTD):
        return TEKKEN
    if _RANK_LINE.match(head):
        return RANKS
    if looks_like_model(head):
        return SENTENCEPIECE
    if head.lstrip()[:1] == b"{":
        fields = _read_json(path, stamp)
        if isinstance(fields.get("model"), dict) and "vocab" in fields["model"]:
            return JSON
        if isinstance(fields.get("vocab"), list) and "config" in fields:
            return TEKKEN
    return None


@functools.lru_cache(maxsize=4)
def _define(spec: TokenizerSpec, paths: tuple[str, ...], stamps: tuple[int, ...]) -> Definition:
    del stamps  # a file that changed is another file
    try:
        definition = _read_definition(spec, paths)
        _check_ids(definition.vocabulary)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)
        raise UsageError(
            f"{paths[0]}: is not a tokenizer that can be read: {reason}. "
            "Check that the file is whole."
        ) from None
    return definition


def _check_ids(vocabulary: Mapping[str, int]) -> None:
    if not vocabulary:
        raise ValueError("its vocabulary is empty")
    for token, number in vocabulary.items():
        if type(token) is not str or type(number) is not int or not 0 <= number < MAX_ID:
            raise ValueError(f"the token {token!r} has the id {number!r}")


def _read_definition(spec: TokenizerSpec, paths: tuple[str, ...]) -> Definition:
    path = paths[0]
    if len(paths) == 2:
        special_tokens = _special_tokens(spec)
        contents = [Path(file).read_bytes() for file in paths]
        fields, regex = read_pair(paths, contents, spec.pattern, special_tokens)
        return _from_fields(PAIR, fields, regex)
    kind = kind_of(path)
    if kind not in {RANKS, PAIR} and (spec.pattern or spec.special_tokens is not None):
        name = "pattern" if spec.pattern else "special_tokens"
        raise UsageError(
            f"{name}: {path} ({kind or 'of an unknown kind'}) has its own. Leave {name} "
            "out: it is for files of tiktoken ranks."
        )
    if kind == JSON:
        return _from_fields(JSON, _read_tokenizer(path))
    if kind == RANKS:
        content = Path(path).read_bytes()
        return _from_ranks(RANKS, read_ranks(path, content, spec.pattern, _special_tokens(spec)))
    if kind == TEKKEN:
        return _from_ranks(TEKKEN, _read_tekken(path))
    if kind == SENTENCEPIECE:
        model = read_model(path, Path(path).read_bytes())
        specials = tuple(model.specials())
        return Definition(
            kind, model.vocabulary(), specials, specials, None, model.to_fields, model
        )
    raise UsageError(
        f"{path} is not a tokenizer.json, nor another tokenizer file that is known here "
        f"({', '.join(KINDS[1:])}): it {_look(_head(path))}. Save one with Tokenizer.save(path)."
    )


def _special_tokens(spec: TokenizerSpec) -> dict[str, int] | None:
    return None if spec.special_tokens is None else dict(spec.special_tokens)


def _from_ranks(kind: str, tokens: Ranks) -> Definition:
    specials = tuple(tokens.specials)
    return Definition(kind, tokens.vocabulary(), specials, specials, tokens.regex, tokens.to_fields)


def _from_fields(kind: str, fields: dict[str, Any], regex: str | None = None) -> Definition:
    added_tokens = fields.get("added_tokens") or []
    vocabulary = fields["model"]["vocab"]
    if isinstance(vocabulary, list):  # of Unigram: (token, score)
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    ids = {**vocabulary, **{token["content"]: token["id"] for token in added_tokens}}
    specials = tuple(token["content"] for token in added_tokens if token["special"])
    names = tuple(token["content"] for token in added_tokens)
    return Definition(kind, ids, specials, names, regex, lambda: fields)


def _read_tokenizer(path: str) -> dict[str, Any]:
    fields = _read_json(path, stamp(path))
    if fields["model"].get("dropout"):
        raise UsageError(
            f"{path} drops merges at random (dropout {fields['model']['dropout']}). "
            "Set model.dropout to null in the file."
        )
    # Set for training or inference; a corpus is never cut or padded by its tokenizer.
    return {**fields, "truncation": None, "padding": None}


@functools.lru_cache(maxsize=1)  # read twice in a row: for its kind, and for its content
def _read_json(path: str, stamp: int) -> dict[str, Any]:
    del stamp
    try:
        fields = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {}


def _read_tekken(path: str) -> Ranks:
    from corpuskit.formats.zstd import zstd

    open_file = zstd.open if _head(path).startswith(_ZSTD) else open
    try:
        with open_file(path, "rb") as file:
            return read_tekken(path, json.loads(file.read(_MAX_BYTES)))
    except (EOFError, KeyError, TypeError, ValueError, RecursionError, zstd.ZstdError):
        raise UsageError(
            f"{path} is not a Tekken file: it has no config, or no vocabulary. Check the file."
        ) from None


def _look(head: bytes) -> str:
    if not head:
        return "is empty"
    if head.startswith(b"\x1f\x8b"):
        return "is compressed with gzip"
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself (git lfs pull)"
    if head.lstrip()[:1] in {b"{", b"["}:
        return "is JSON without model.vocab"
    if b"\0" in head or not head.isascii():
        return f"begins with the bytes {head[:8].hex(' ')}"
    return f"begins with {head[:30].decode().split(chr(10))[0]!r}"


# ---------------------------------------------------------------- special tokens


EOS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Names of the token that ends documents in published tokenizers."""
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


class Specials(NamedTuple):
    """Names of the tokens that end and begin documents and that fill rows."""

    eos: str | None
    bos: str | None
    pad: str | None


def find_specials(spec: TokenizerSpec, *, eos: str | None, bos: str | None) -> Specials:
    """Return the tokens with these names; where None, the only one with a usual name.

    A token is None if no token, or more than one, has a usual name.

    Raises:
        UsageError: `eos` or `bos` is not in the vocabulary.
    """
    definition = define(spec)
    for parameter, token in (("eos", eos), ("bos", bos)):
        if token is not None and token not in definition.vocabulary:
            hint = _join(candidates(definition, parameter)) or "any token of its vocabulary"
            raise UsageError(
                f"{parameter}: {spec.path} has no token {token!r}. It could be {hint}."
            )
    usual = [candidates(definition, name) for name in ("eos", "bos", "pad")]
    unique = [names[0] if len(names) == 1 else None for names in usual]
    return Specials(eos or unique[0], bos or unique[1], unique[2])


def candidates(definition: Definition, kind: str) -> list[str]:
    """Return the tokens with a usual name of `eos`, `bos` or `pad`."""
    usual = {"eos": EOS, "bos": BOS, "pad": PAD}[kind]
    # Where there are added tokens it is one of them: the "</s>" of Qwen is an ordinary token.
    names = definition.added or definition.vocabulary
    return [token for token in usual if token in names]


def require(spec: TokenizerSpec, kind: str, token: str | None) -> str:
    """Return `token`.

    Raises:
        UsageError: it is None; says what to set.
    """
    if token is not None:
        return token
    usual = candidates(define(spec), kind)
    problem = f"{_join(usual)} could each be it" if usual else "no token has one of the usual names"
    raise UsageError(
        f"{kind}: can't tell which token of {spec.path}, because {problem}. "
        f"Set {kind}, or add_{kind}: false."
    )


def _join(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)


def with_controls(fields: Mapping[str, Any], specials: Specials) -> dict[str, Any]:
    """Return the tokenizer with eos, bos and pad marked as special.

    Phi-3's </s> is not, so a text that spells it would end a document in the middle.
    """
    added_tokens = [
        token | {"special": bool(token["special"] or token["content"] in specials)}
        for token in fields.get("added_tokens") or []
    ]
    return {**fields, "added_tokens": added_tokens}


def without_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer with special tokens renamed, so that no text spells their names.

    Models that look up whole words (Unigram, WordPiece, WordLevel, BPE with `ignore_merges`) would
    else find a special token in their vocabulary, though it is not recognised as one.
    """
    model = fields["model"]
    if model.get("type") == "BPE" and not model.get("ignore_merges"):
        return dict(fields)
    hidden = {
        token["content"]: _unspelled(token["content"])
        for token in fields["added_tokens"]
        if token["special"]
    }
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = [[hidden.get(token, token), score] for token, score in vocabulary]
    else:
        vocabulary = {hidden.get(token, token): number for token, number in vocabulary.items()}
    added_tokens = [
        token | {"content": hidden.get(token["content"], token["content"])}
        for token in fields["added_tokens"]
    ]
    unknown = model.get("unk_token")
    new_model = {**model, "vocab": vocabulary}
    if unknown in hidden:
        new_model["unk_token"] = hidden[unknown]
    return {**fields, "added_tokens": added_tokens, "model": new_model, "post_processor": None}


def _unspelled(name: str) -> str:
    return "\U0010ffff" + hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + "\U0010ffff"
