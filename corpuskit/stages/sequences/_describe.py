"""What a tokenizer file is, for people, and as a tokenizer.json."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pyarrow as pa

from corpuskit.stages.sequences._definition import define, files_of, identify
from corpuskit.stages.sequences._engines import open_engine
from corpuskit.stages.sequences._specials import candidates
from corpuskit.stages.sequences._tokenizer import ReferenceEncoder
from corpuskit.stages.sequences._train import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from corpuskit.stages.sequences._definition import Named

ENGINES = {
    "GigatokenEncoder": "gigatoken",
    "ReferenceEncoder": "huggingface",
    "SentencePieceEncoder": "sentencepiece",
}


@dataclasses.dataclass(frozen=True)
class Description:
    """A tokenizer as `tokenize` sees it.

    Attributes:
        hash: of all that decides ids.
        specials: special tokens and their ids.
        eos, bos, pad: tokens that could be meant; `tokenize` takes the only one.
        regex: how text is split into words, where the file does not say it.
        engine: what `engine: auto` uses here.
        tokens: of the sample text, with their ids.
    """

    kind: str
    files: tuple[str, ...]
    hash: str
    vocab_size: int
    dtype: str
    specials: Mapping[str, int]
    eos: tuple[str, ...]
    bos: tuple[str, ...]
    pad: tuple[str, ...]
    regex: str | None
    engine: str
    text: str
    tokens: tuple[tuple[int, str], ...]


def describe(named: Named, text: str) -> Description:
    """Return what is known of a tokenizer, and the ids of a text.

    Raises:
        UsageError: the file is no tokenizer, or something is missing.
    """
    found = define(named)
    encoder = open_engine(named)
    names = {number: name for name, number in found.vocabulary.items()}
    ids = encoder.encode(pa.array([text], pa.large_string())).ids.tolist()
    size = max(names) + 1
    return Description(
        kind=found.kind,
        files=files_of(named.path),
        hash=identify(named),
        vocab_size=size,
        dtype="uint16" if size <= 1 << 16 else "uint32",
        specials={name: found.vocabulary[name] for name in found.specials},
        eos=tuple(candidates(found, "eos")),
        bos=tuple(candidates(found, "bos")),
        pad=tuple(candidates(found, "pad")),
        regex=found.regex,
        engine=ENGINES[type(encoder).__name__],
        text=text,
        tokens=tuple((number, names[number]) for number in ids),
    )


def convert(named: Named, output: Path) -> list[str]:
    """Write a tokenizer as a tokenizer.json of Hugging Face; return tokens it treats otherwise.

    Raises:
        UsageError: no tokenizer.json has its ids, or `output` cannot be written.
    """
    found = define(named)
    fields = found.fields
    ReferenceEncoder(fields, allow_special=False)  # Hugging Face can open it
    write_whole(output, json.dumps(fields, ensure_ascii=False).encode())
    return [] if found.model is None else found.model.own_pieces()
