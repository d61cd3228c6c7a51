"""What rank files leave out: how text is split into words, and which tokens are special.

Published with the code of each model, not with its file. A file is recognised by its SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LATER = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = (
    _ENDINGS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    + _LATER
)  # fmt: skip
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
    """Return how the words of a file are found; a regular expression of the user's own counts.

    Raises:
        UsageError: it can't be told, or `pattern` is neither a name nor a regular expression.
    """
    name = pattern or recognised
    if name is None:
        raise UsageError(
            f"{path} does not say how text is split into words, and it is none of the "
            f"published files. Set pattern to one of {', '.join(PRESETS)}, or to a regular "
            "expression."
        )
    if name in PRESETS:
        return PRESETS[name]
    if name.replace("_", "").replace("-", "").isalnum():
        raise UsageError(f"pattern: {name!r} is no known name. {suggest(name, PRESETS)}")
    return Preset(name)
