"""Text to token ids."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from corpuskit.errors import UsageError
from corpuskit.kernels.packing import add_ends
from corpuskit.stage import Cost, Outcome, StreamingStage
from corpuskit.stages.sequences import _tokenizer
from corpuskit.storage import digest_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.stage import View, Volume

Engine = Literal["auto", "huggingface", "gigatoken"]


class Tokenize(StreamingStage):
    """Encode documents with a tokenizer.json, for `pack`.

    Ids are those of Hugging Face tokenizers, whichever engine computes them. Text that spells a
    special token is encoded as text: a page about tokenizers can't end a document in the middle.

    Source: Hugging Face tokenizers, `Tokenizer.encode(text, add_special_tokens=False)`; differs in
    that special tokens in the text are not recognised (`encode_special_tokens`), unless
    `allow_special`.
    """

    tokenizer: str
    """Path of a tokenizer.json."""
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
    """`huggingface`, `gigatoken` (same ids, many times faster; the extra `fast`), or `auto`:
    gigatoken where it is installed and knows this kind of tokenizer."""

    def files(self) -> tuple[str, ...]:
        return (self.tokenizer,)

    def libraries(self) -> tuple[str, ...]:
        fast = self.engine != "huggingface" and importlib.util.find_spec("gigatoken") is not None
        return ("tokenizers", "gigatoken") if fast else ("tokenizers",)

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"tokens": pa.large_list(pa.uint32())}

    def provides(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `pack` and the loader need to know of the tokenizer.

        Raises:
            UsageError: the file is no tokenizer, or it can't be told which token ends documents.
        """
        known = _tokenizer.vocabulary(self.tokenizer)
        specials = self._specials()
        eos, bos = (None if name is None else known[name] for name in specials[:2])
        size = max(known.values()) + 1
        fallback = next((token for token in (eos, bos) if token is not None), 0)
        return {
            "tokenizer": {
                "hash": digest_file(Path(self.tokenizer)),
                "path": self.tokenizer,
                "vocab_size": size,
                "eos": eos,
                "bos": bos,
                "pad": fallback if specials.pad is None else known[specials.pad],
                "dtype": "uint16" if size <= 1 << 16 else "uint32",
            }
        }

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        """Return what the engine needs.

        Hugging Face takes 100 bytes of memory for a byte of the document it encodes; it checks some
        of what gigatoken does. Both engines hold 75 MB and 45 times the file of the tokenizer.
        """
        fast = self.engine != "huggingface" and importlib.util.find_spec("gigatoken") is not None
        size = Path(self.tokenizer).stat().st_size if Path(self.tokenizer).exists() else 0
        batch = 60_000_000 if fast else 180_000_000
        return Cost(
            cpu_seconds=volume.text_bytes / (100e6 if fast else 2.5e6),
            start_seconds=1.5,
            resident_bytes=75_000_000 + 45 * size,
            unit_bytes=batch + 100 * volume.mean_document_bytes,
        )

    def apply(self, view: View) -> Outcome:
        specials = self._specials()
        known = _tokenizer.vocabulary(self.tokenizer)
        first = known[str(specials.bos)] if self.add_bos else -1
        last = known[str(specials.eos)] if self.add_eos else -1
        encoder = _open(
            self.tokenizer,
            _tokenizer.stamp(self.tokenizer),
            self.engine,
            specials,
            self.allow_special,
        )
        ids, offsets = add_ends(*encoder.encode(view.column("text")), first, last)
        return Outcome(columns={"tokens": pa.LargeListArray.from_arrays(offsets, ids)})

    def _specials(self) -> _tokenizer.Specials:
        """Return the tokens this stage adds or names; what is added is not None."""
        path = self.tokenizer
        found = _tokenizer.find_specials(path, eos=self.eos, bos=self.bos)
        if self.add_eos:
            _tokenizer.require(path, "eos", found.eos)
        if self.add_bos:
            _tokenizer.require(path, "bos", found.bos)
        return found


@functools.lru_cache(maxsize=4)
def _open(
    path: str, stamp: int, engine: Engine, specials: _tokenizer.Specials, allow_special: bool
) -> _tokenizer.Encoder:
    """Open an engine, once per process."""
    del stamp  # a file that changed is another file
    fields = _tokenizer.with_controls(_tokenizer.read_tokenizer(path), specials)
    if engine != "huggingface":
        try:
            from corpuskit.stages.sequences._gigatoken import GigatokenEncoder

            return GigatokenEncoder(fields, allow_special=allow_special)
        except ImportError:
            if engine == "gigatoken":
                raise UsageError(
                    "tokenize.engine: gigatoken is not installed. "
                    "Run pip install 'corpuskit[fast]', or set engine: auto."
                ) from None
        except RuntimeError as error:
            if engine == "gigatoken":
                raise UsageError(
                    f"tokenize.engine: gigatoken can't do {path}: {error}. Set engine: auto."
                ) from None
    return _tokenizer.ReferenceEncoder(fields, allow_special=allow_special)
