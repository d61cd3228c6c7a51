"""Vocabularies of bytes as tokenizer.json: rank files of tiktoken, Mistral's Tekken, GPT-2's pair.

Rank files have an order of tokens where tokenizer.json has merges; kernels/merges.py says why one
merge for each token gives the same ids. In both a word that is a token becomes that token, whatever
merging would make of it: `ignore_merges`, which is needed where merging can't make some token.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corpuskit.errors import UsageError, suggest

TEKKEN_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Of Tekken files that have none of their own, by id."""

MAX_SPECIALS = 1 << 16
"""Of Tekken files; Mistral's have 1,000."""


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Tokens of bytes, the first merge first.

    Attributes:
        tokens: the 256 single bytes among them.
        ids: of the tokens.
        regex: how text is split into words.
        specials: name -> id.
    """

    tokens: Sequence[bytes]
    ids: Sequence[int]
    regex: str
    specials: Mapping[str, int]

    @functools.cached_property
    def names(self) -> list[str]:
        """What tokenizer.json calls the tokens: a printable character for each byte."""
        characters = b"".join(self.tokens).decode("latin-1").translate(NAMES_OF_BYTES)
        edges = [0, *itertools.accumulate(map(len, self.tokens))]
        return [characters[begin:end] for begin, end in itertools.pairwise(edges)]

    def vocabulary(self) -> dict[str, int]:
        """Return token -> id."""
        return dict(zip(self.names, self.ids, strict=True)) | dict(self.specials)

    def to_fields(self) -> dict[str, Any]:
        """Return the tokenizer as the content of a tokenizer.json."""
        from corpuskit.kernels.merges import last_merges
        from corpuskit.kernels.stringset import make_table

        table = make_table(list(self.tokens))
        halves = last_merges(table, np.arange(len(self.tokens)), False).tolist()
        merges = [
            [name[:half], name[half:]]
            for name, half in zip(self.names, halves, strict=True)
            if half > 0
        ]
        return byte_level_fields(
            self.vocabulary(), merges, self.regex, self.specials, ignore_merges=-1 in halves
        )


def byte_level_fields(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    regex: str,
    specials: Mapping[str, int],
    *,
    ignore_merges: bool,
) -> dict[str, Any]:
    """Return a tokenizer.json of byte-level BPE."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    words: dict[str, Any] = {**level, "use_regex": True}
    if regex != GPT2:
        pattern = {"Regex": regex}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        words = {"type": "Sequence", "pretokenizers": [split, {**level, "use_regex": False}]}
    decoder = {**level, "use_regex": True}
    model = {"ignore_merges": ignore_merges, "vocab": dict(vocabulary), "merges": merges}
    return bpe_fields(specials, model, pre_tokenizer=words, decoder=decoder)


def bpe_fields(
    specials: Mapping[str, int], model: Mapping[str, Any], **components: Any
) -> dict[str, Any]:
    """Return a tokenizer.json of BPE, as Hugging Face saves it.

    Args:
        specials: name -> id.
        model: what differs from the defaults; with `vocab` and `merges`.
        components: `pre_tokenizer`, `decoder` and `normalizer`, where there is one.
    """
    outer = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(specials),
        **outer,
        **components,
        "model": {**defaults, **model},
    }


def _added_tokens(specials: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return special tokens as a tokenizer.json lists them."""
    return [
        {
            "id": number,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for name, number in sorted(specials.items(), key=lambda item: item[1])
    ]


def _names_of_bytes() -> list[str]:
    """Return a printable character for each byte, as GPT-2 chose them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte if byte in plain else 256 + others.index(byte)) for byte in range(256)]


NAMES_OF_BYTES = dict(enumerate(_names_of_bytes()))


def read_ranks(
    path: str, content: bytes, pattern: str | None, special_tokens: Mapping[str, int] | None
) -> Ranks:
    """Read a rank file of tiktoken: lines of a token in base64 and its rank.

    Raises:
        UsageError: a line is something else, or it is unknown how text is split into words.
    """
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            token, rank = fields
            ranks[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise UsageError(
                f"{path}:{number}: is not a token in base64 and its rank: {line[:40]!r}. "
                "Check the file."
            ) from None
    preset = find_preset(path, pattern, recognise(content))
    # In another vocabulary with the pattern of a published one, these ids may be those of tokens.
    published = preset.specials if len(ranks) == preset.num_ranks else {}
    ordered = sorted(ranks.items())
    specials = published if special_tokens is None else special_tokens
    tokens = Ranks([t for _, t in ordered], [r for r, _ in ordered], preset.regex, specials)
    return _checked(path, tokens)


def read_tekken(path: str, fields: Mapping[str, Any]) -> Ranks:
    """Read a Tekken file of Mistral.

    Source: mistral-common, `Tekkenizer`: special tokens first, then as many ranks as fit.
    """
    config = fields["config"]
    num_special = config["default_num_special_tokens"]
    if not 0 <= num_special <= MAX_SPECIALS:
        raise ValueError(f"default_num_special_tokens is {num_special}")
    num_ranks = config["default_vocab_size"] - num_special
    ordered = sorted((entry["rank"], entry["token_bytes"]) for entry in fields["vocab"])
    ordered = ordered[:num_ranks]
    listed = fields.get("special_tokens")
    names = {number: name for number, name in enumerate(TEKKEN_SPECIALS) if number < num_special}
    if listed is not None:
        names = {entry["rank"]: entry["token_str"] for entry in listed}
    specials = {names.get(n, f"<SPECIAL_{n}>"): n for n in range(num_special)}
    tokens = [base64.b64decode(token) for _, token in ordered]
    ids = [rank + num_special for rank, _ in ordered]
    return _checked(path, Ranks(tokens, ids, config["pattern"], specials))


def _checked(path: str, ranks: Ranks) -> Ranks:
    missing = set(range(256)) - {token[0] for token in ranks.tokens if len(token) == 1}
    if missing:
        raise UsageError(
            f"{path} has no token for {len(missing)} of the 256 bytes, so not every text "
            "can be encoded. Check the file."
        )
    if len(set(ranks.tokens)) != len(ranks.tokens):
        raise UsageError(f"{path} has a token twice. Check the file.")
    ids, names = set(ranks.ids), set(ranks.names)
    for name, number in ranks.specials.items():
        if number in ids or name in names or number < 0:
            raise UsageError(
                f"special_tokens: {name!r}: {number} is a token of {path} already. "
                f"Give a name and an id of its own, from {max(ids) + 1} on."
            )
    if len(set(ranks.specials.values())) != len(ranks.specials):
        raise UsageError("special_tokens: two names have the same id. Give each its own.")
    return ranks


def read_pair(
    paths: Sequence[str],
    contents: Sequence[bytes],
    pattern: str | None,
    special_tokens: Mapping[str, int] | None,
) -> tuple[dict[str, Any], str]:
    """Return vocab.json and merges.txt as one tokenizer.json, and how text is split into words.

    A token that no merge makes is special, unless it is a byte: these files hold <|endoftext|> so.

    Raises:
        UsageError: they don't belong together, or it is unknown how text is split into words.
    """
    vocabulary: dict[str, int] = json.loads(contents[0])
    lines = contents[1].decode().split("\n")
    merges = [line.split() for line in lines if line and not line.startswith("#version")]
    for pair in merges:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise UsageError(
                f"{paths[1]}: {' '.join(pair)!r} is not a pair of tokens of {paths[0]}. "
                "Check that the two belong together."
            )
    if not set(NAMES_OF_BYTES.values()) <= vocabulary.keys():
        raise UsageError(
            f"{paths[0]} has no token for each of the 256 bytes: this is not byte-level "
            "BPE. Save it as a tokenizer.json."
        )
    merged = {first + second for first, second in merges} | set(NAMES_OF_BYTES.values())
    unmerged = {name: number for name, number in vocabulary.items() if name not in merged}
    is_gpt2 = len(merges) == 50000 and vocabulary.get("<|endoftext|>") == 50256
    preset = find_preset(paths[0], pattern, "gpt2" if is_gpt2 else None)
    specials = unmerged if special_tokens is None else unmerged | dict(special_tokens)
    fields = byte_level_fields(
        vocabulary | specials, merges, preset.regex, specials, ignore_merges=False
    )
    return fields, preset.regex


# ---------------------------------------------------------------- published rank files
#
# Published with the code of each model, not with its file. A file is recognised by its SHA-256.


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LATER = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LATER
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _LATER,
    ]
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
END = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class Preset:
    """What belongs to a published rank file.

    Attributes:
        regex: each match is a word, and so is what lies between matches.
        num_ranks: tokens in the published file; `specials` go with these.
        digests: SHA-256 of the published files.
    """

    regex: str
    num_ranks: int = 0
    specials: Mapping[str, int] = dataclasses.field(default_factory=dict)
    digests: tuple[str, ...] = ()


def _numbered(first: int, *names: str) -> dict[str, int]:
    return {name: first + number for number, name in enumerate(names)}


def _reserved(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"<|reserved_special_token_{number}|>" for number in range(first, last + 1))


PRESETS: Mapping[str, Preset] = {
    "gpt2": Preset(
        GPT2,
        50256,
        {END: 50256},
        ("306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",),
    ),
    "p50k": Preset(
        GPT2,
        50280,
        {END: 50256},
        ("94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",),
    ),
    "cl100k": Preset(
        _CL100K,
        100256,
        {
            **_numbered(100257, END, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
            "<|endofprompt|>": 100276,
        },
        ("223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",),
    ),
    "o200k": Preset(
        _O200K,
        199998,
        {END: 199999, "<|endofprompt|>": 200018},
        ("446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",),
    ),
    # Names as of Llama 3.1; Llama 3 called the one for padding reserved.
    "llama3": Preset(
        _CL100K,
        128000,
        _numbered(
            128000,
            *("<|begin_of_text|>", "<|end_of_text|>", *_reserved(0, 1)),
            *("<|finetune_right_pad_id|>", *_reserved(2, 2)),
            *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
            *("<|python_tag|>", *_reserved(3, 247)),
        ),
        ("82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",),
    ),
    "qwen": Preset(
        _CL100K.replace("{1,3}", ""),
        151643,
        _numbered(
            151643, END, "<|im_start|>", "<|im_end|>",
            *(f"<|extra_{number}|>" for number in range(205)),
        ),
        ("6cf5f2a2560a7d581548aeb0c31c6a60de2d3e873152346e421affc871699be4",),
    ),
}  # fmt: skip


def recognise(content: bytes) -> str | None:
    """Return the name of the preset that a published file belongs to."""
    digest = hashlib.sha256(content).hexdigest()
    return next((name for name, preset in PRESETS.items() if digest in preset.digests), None)


def find_preset(path: str, pattern: str | None, recognised: str | None) -> Preset:
    """Return how text is split into words; `pattern`, a name or regular expression, comes first.

    Raises:
        UsageError: it is unknown, or `pattern` is neither a name nor a regular expression.
    """
    name = pattern or recognised
    if name is None:
        raise UsageError(
            f"{path} does not say how text is split into words, and it is not one of the "
            f"published files. Set pattern to one of {', '.join(PRESETS)}, or to a regular "
            "expression."
        )
    if name in PRESETS:
        return PRESETS[name]
    if name.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"pattern: {name!r} is not a known name. {suggest(name, PRESETS)}")
    return Preset(name)
