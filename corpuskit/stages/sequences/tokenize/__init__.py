"""Text to token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pydantic import Field

from corpuskit.kernels.packing import add_ends
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Outcome, StreamingStage, View, Volume
from corpuskit.stages.sequences.tokenize.definition import (
    SENTENCEPIECE,
    Specials,
    TokenizerSpec,
    define,
    files_of,
    find_specials,
    identify,
    kind_of,
    require,
)
from corpuskit.stages.sequences.tokenize.engines import (
    Engine,
    check_engine,
    is_installed,
    open_engine,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stages.sequences.tokenize.encoders import Encoder


class Tokenize(StreamingStage):
    """Encode documents with a tokenizer, for `pack`.

    Ids are those of the tokenizer's own reference, whichever engine computes them. Text that spells
    a special token is encoded as text: a page about tokenizers can't end a document in the middle.

    Source: Hugging Face tokenizers, `Tokenizer.encode(text, add_special_tokens=False)`; tiktoken,
    `Encoding.encode_ordinary`; SentencePiece, `SentencePieceProcessor.encode`. Differs in that
    special tokens in the text are not recognised, unless `allow_special`.
    """

    examples: ClassVar[tuple[Example, ...]] = (
        Example("A text.", None, {"tokenizer": "sample_data/tokenizer.json"}),
    )

    tokenizer: PathText
    """Path of a tokenizer file, or of the folder it is in: a tokenizer.json, vocab.json and
    merges.txt, tiktoken ranks, a SentencePiece model, Mistral's Tekken."""
    pattern: str | None = None
    """How text is split into words, for tiktoken ranks and vocab.json, which don't say it: `gpt2`,
    `cl100k`, `o200k`, `llama3`, `qwen` or a regular expression; null recognises published files."""
    special_tokens: dict[str, int] | None = Field(None)
    """Special tokens and their ids, for files that don't list them; null takes those of a published
    file."""
    add_bos: bool = False
    """Begin each document with the bos token."""
    add_eos: bool = True
    """End each document with the eos token."""
    eos: str | None = None
    """The token that ends documents; null finds the only one with a usual name."""
    bos: str | None = None
    """The token that begins documents; null finds the only one with a usual name."""
    allow_special: bool = False
    """Give text that spells a special token the id of that token."""
    engine: Engine = "auto"
    """`huggingface`, `gigatoken` (same ids, many times faster; the extra `fast`), `sentencepiece`
    (its models only), or `auto`: gigatoken where it is installed and knows the tokenizer."""

    def files(self) -> tuple[str, ...]:
        return files_of(self.tokenizer)

    def libraries(self) -> tuple[str, ...]:
        engines = ("gigatoken", "sentencepiece") if self._is_pieces else ("gigatoken",)
        present = [name for name in engines if self.engine != "huggingface" and is_installed(name)]
        return ("tokenizers", *present)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"tokens": pa.large_list(pa.uint32())}

    def provides(self, provided: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `pack` and the loader need to know of the tokenizer.

        Raises:
            UsageError: the file is not a tokenizer, the engine can't do it, or it is unknown which
                token ends documents.
        """
        definition = define(self._spec)
        vocabulary = definition.vocabulary
        specials = self._specials()
        eos, bos = (None if name is None else vocabulary[name] for name in specials[:2])
        check_engine(self._spec, self.engine, specials, allow_special=self.allow_special)
        size = max(vocabulary.values()) + 1
        fallback = next((token for token in (eos, bos) if token is not None), 0)
        return {
            "tokenizer": {
                "hash": identify(self._spec),
                "path": self.tokenizer,
                "kind": definition.kind,
                "vocab_size": size,
                "eos": eos,
                "bos": bos,
                "pad": fallback if specials.pad is None else vocabulary[specials.pad],
                "dtype": "uint16" if size <= 1 << 16 else "uint32",
            }
        }

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return what the engine needs.

        Hugging Face takes 100 bytes of memory for a byte of the document it encodes; it checks some
        of what gigatoken does. Both engines hold 75 MB and 45 times the file of the tokenizer.
        """
        paths = [Path(path) for path in self.files()]
        size = sum(path.stat().st_size for path in paths if path.exists())
        fast = self.engine in {"auto", "gigatoken"} and is_installed("gigatoken")
        batch = 60_000_000 if fast else 180_000_000
        rate = 25e6 if self._is_pieces else 100e6  # without words nothing is remembered
        return Cost(
            cpu_seconds=volume.text_bytes / (rate if fast else 2.5e6),
            start_seconds=1.5,
            resident_bytes=75_000_000 + 45 * size,
            unit_bytes=batch + 100 * volume.mean_document_bytes,
        )

    def apply(self, view: View) -> Outcome:
        vocabulary = define(self._spec).vocabulary
        specials = self._specials()
        first = vocabulary[str(specials.bos)] if self.add_bos else -1
        last = vocabulary[str(specials.eos)] if self.add_eos else -1
        ids, offsets = add_ends(*self._open().encode(view.column("text")), first, last)
        return Outcome(columns={"tokens": pa.LargeListArray.from_arrays(offsets, ids)})

    @property
    def _is_pieces(self) -> bool:
        path = self.files()[0]
        return Path(path).is_file() and kind_of(path) == SENTENCEPIECE

    def _open(self) -> Encoder:
        specials = self._specials()
        return open_engine(self._spec, self.engine, specials, allow_special=self.allow_special)

    @property
    def _spec(self) -> TokenizerSpec:
        special_tokens = self.special_tokens
        specials = None if special_tokens is None else tuple(sorted(special_tokens.items()))
        return TokenizerSpec(self.tokenizer, self.pattern, specials)

    def _specials(self) -> Specials:
        """Return the tokens this stage adds or names; what is added is not None."""
        specials = find_specials(self._spec, eos=self.eos, bos=self.bos)
        if self.add_eos:
            require(self._spec, "eos", specials.eos)
        if self.add_bos:
            require(self._spec, "bos", specials.bos)
        return specials
