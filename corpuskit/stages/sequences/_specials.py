"""Which tokens end and begin documents, and how text is kept from making them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.errors import UsageError
from corpuskit.stages.sequences._definition import define

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stages.sequences._definition import Definition, Named

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


class Specials(NamedTuple):
    """Names of the tokens that end and begin documents and that fill rows."""

    eos: str | None
    bos: str | None
    pad: str | None


def find_specials(named: Named, *, eos: str | None, bos: str | None) -> Specials:
    """Return the named tokens, or those that can only be meant.

    A name that is given must exist. What can't be told is None.

    Raises:
        UsageError: `eos` or `bos` is not in the vocabulary.
    """
    definition = define(named)
    for parameter, token in (("eos", eos), ("bos", bos)):
        if token is not None and token not in definition.vocabulary:
            could_be = _join(candidates(definition, parameter)) or "any token of its vocabulary"
            raise UsageError(
                f"{parameter}: {named.path} has no token {token!r}. It could be {could_be}."
            )
    found = [candidates(definition, name) for name in ("eos", "bos", "pad")]
    only = [names[0] if len(names) == 1 else None for names in found]
    return Specials(eos or only[0], bos or only[1], only[2])


def candidates(definition: Definition, kind: str) -> list[str]:
    """Return the tokens that are called as `eos`, `bos` or `pad` usually are.

    Where some are apart from the model's tokens it is one of them: Qwen has a "</s>" from text.
    """
    usual = {"eos": EOS, "bos": BOS, "pad": PAD}[kind]
    known = definition.added or definition.vocabulary
    return [token for token in usual if token in known]


def require(named: Named, kind: str, token: str | None) -> str:
    """Return `token`, or say what to set.

    Raises:
        UsageError: it is None.
    """
    if token is not None:
        return token
    usual = candidates(define(named), kind)
    problem = f"{_join(usual)} could each be it" if usual else "no token has one of the usual names"
    raise UsageError(
        f"{kind}: can't tell which token of {named.path}, because {problem}. "
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


def without_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer with names for its special tokens that no text spells.

    Models that look up whole words (Unigram, WordPiece, WordLevel, BPE with `ignore_merges`) would
    find the special token in their vocabulary, though it is not recognised as one.
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
    added = [
        token | {"content": hidden.get(token["content"], token["content"])}
        for token in fields["added_tokens"]
    ]
    unknown = model.get("unk_token")
    changed = {**model, "vocab": vocabulary}
    if unknown in hidden:
        changed["unk_token"] = hidden[unknown]
    return {**fields, "added_tokens": added, "model": changed, "post_processor": None}


def _unspelled(name: str) -> str:
    return "\U0010ffff" + hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + "\U0010ffff"
