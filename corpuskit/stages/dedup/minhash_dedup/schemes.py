"""Signature schemes of near-duplicate detection: how a document becomes band keys."""

from __future__ import annotations

import itertools
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from corpuskit.errors import UsageError
from corpuskit.formats.batch import Utf8
from corpuskit.kernels import minhash
from corpuskit.kernels.arrays import AnyArray, Bools, Int64s, Uint32s, Uint64s
from corpuskit.kernels.minhash import distinct_shingles, permutations, sketch_texts
from corpuskit.kernels.ngrams import JoinedWords, hash_ngrams, join_words, lower_words
from corpuskit.stage import Parameters, View
from corpuskit.text.simplify import simplify_texts
from corpuskit.text.words import check_language, splitter
from corpuskit.text.words import libraries as libraries_of_words

Scheme = Literal["fast", "datatrove", "datasketch"]
"""`fast`: one-permutation sketches of `\\w+` words; `datatrove`: as datatrove 0.10.1;
`datasketch`: as datasketch 2.0.0 MinHash of n-grams of `\\w+` words."""

HashFunction = Literal["sha1", "xxhash"]
Precision = Literal[32, 64]

_DEFAULTS: dict[str, tuple[HashFunction, Precision]] = {
    "datatrove": ("xxhash", 64),
    "datasketch": ("sha1", 32),
}

_BLOCK_BYTES, _BLOCK_DOCS = 1 << 20, 4096
"""Bytes of text and documents of a block that is signed at a time: shingles take 30 bytes
a word and signatures up to 900 a document, which should not leave the processor's cache."""


class SignatureParameters(Parameters):
    """Parameters that decide signatures."""

    ngram: int = Field(5, ge=1, le=64)
    """Words, or characters, per shingle."""
    shingles: Literal["words", "characters"] = "words"
    """What shingles are made of: words, or characters as they are (scheme fast), about five times
    as many, for languages without spaces or as Nemotron-CC: `ngram: 24`."""
    bands: int = Field(14, ge=1, le=255)
    """Bands; more of them find less similar pairs, and cost time and scratch disk."""
    rows: int = Field(8, ge=1, le=255)
    """Hashes per band; more of them find fewer pairs that are not similar."""
    scheme: Scheme = "fast"
    """`fast`, or signatures equal to those of datatrove, or of datasketch."""
    language: str = "en"
    """Language of the words, for scheme datatrove."""
    hash_function: HashFunction | None = None
    """Of shingles; null: the scheme's own."""
    precision: Precision | None = None
    """Bits of that hash; null: the scheme's own."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of the permutations."""


class Signatures(NamedTuple):
    """Signatures of N documents.

    Attributes:
        bands: (N, bands) uint64 band keys: equal where all values of a band are.
        signed: (N,) False: the document has no shingle, its keys mean nothing.
        values: (N, bands * rows) uint32 or uint64, or None if not requested.
    """

    bands: Uint64s
    signed: Bools
    values: Uint32s | Uint64s | None


def check(stage: SignatureParameters) -> None:
    """Refuse parameters that the scheme does not have, without loading a tokenizer.

    Raises:
        UsageError: names the parameter.
    """
    if stage.scheme == "datatrove":
        try:
            check_language("spacy", stage.language)
        except UsageError as error:
            why = str(error).partition(". ")[0]
            raise UsageError(f"{why}. Use scheme: fast or datasketch.") from None
    elif stage.language != "en":
        raise UsageError(
            f"language: scheme {stage.scheme} takes words of all languages alike, got "
            f"{stage.language!r}. Leave it out, or use scheme: datatrove."
        )
    if stage.scheme != "fast" and stage.shingles != "words":
        raise UsageError(f"shingles: scheme {stage.scheme} has words only. Use scheme: fast.")
    if stage.scheme == "fast" and (stage.hash_function or stage.precision):
        raise UsageError(
            "hash_function, precision: scheme fast has its own. Leave them out, or use scheme: "
            "datatrove or datasketch."
        )


def hashing(stage: SignatureParameters) -> tuple[HashFunction, Precision]:
    """Return the hash function of shingles and its bits; not for `fast`."""
    function, precision = _DEFAULTS[stage.scheme]
    return stage.hash_function or function, stage.precision or precision


def libraries(stage: SignatureParameters) -> tuple[str, ...]:
    """Return distributions whose version decides signatures."""
    if stage.scheme != "datatrove":
        return ("numpy",)
    return ("numpy", "spacy", "regex", *libraries_of_words("spacy", stage.language)[2:])


def sign(view: View, stage: SignatureParameters, *, values: bool = False) -> Signatures:
    """Return the signatures of a batch under `stage.scheme`.

    Without words a document has none; with `datatrove` also with fewer words than `ngram`.
    """
    if stage.scheme == "fast":
        sketches = sketch_texts(
            *view.text, ngram=stage.ngram, bands=stage.bands, rows=stage.rows, seed=stage.seed,
            by_character=stage.shingles == "characters", values=values,
        )  # fmt: skip
        return Signatures(*sketches)
    signer = _Signer(stage)
    keys = np.zeros((view.num_docs, stage.bands), np.uint64)
    signed = np.zeros(view.num_docs, np.bool_)
    signatures = signer.empty(view.num_docs if values else 0)
    for first, last in _blocks(view.text.offsets):
        text = Utf8(view.text.offsets[first : last + 1], view.text.data)
        bounds, hashes = _ngram_hashes(text, stage)
        out = signatures[first:last] if values else signer.empty(last - first)
        signer.fill(bounds, hashes, out)
        keys[first:last] = minhash.keys_of_bands(out.view(np.uint8), stage.bands)
        signed[first:last] = np.diff(bounds) > 0
    return Signatures(keys, signed, signatures if values else None)


def _blocks(offsets: Int64s) -> list[tuple[int, int]]:
    """Cut documents into blocks that stay in the processor's cache."""
    cuts, last, num_docs = [0], 0, len(offsets) - 1
    while last < num_docs:
        full = int(np.searchsorted(offsets, offsets[last] + _BLOCK_BYTES))
        last = min(max(full, last + 1), last + _BLOCK_DOCS, num_docs)
        cuts.append(last)
    return list(itertools.pairwise(cuts))


class _Signer:
    """Turns hashes of shingles into signatures; not for `fast`."""

    def __init__(self, stage: SignatureParameters) -> None:
        self._precision = hashing(stage)[1]
        self._width = stage.bands * stage.rows
        self._ab: tuple[AnyArray, AnyArray]  # factors and summands of the permutations
        self._is_affine = stage.scheme == "datasketch"
        if self._is_affine:
            self._ab = minhash.affine_permutations(self._width, stage.seed, self._precision)
        else:
            self._ab = permutations(self._width, stage.seed)

    def empty(self, num_docs: int) -> AnyArray:
        """Return an array for signatures, (num_docs, bands * rows)."""
        return np.zeros((num_docs, self._width), np.uint32 if self._precision == 32 else np.uint64)

    def fill(self, bounds: Int64s, hashes: Uint64s, out: AnyArray) -> None:
        """Fill `out` with the signatures of some documents."""
        if self._is_affine:
            sign: Any = minhash.sign_affine32 if self._precision == 32 else minhash.sign_affine64
        else:
            sign = minhash.sign_mersenne32 if self._precision == 32 else minhash.sign_mersenne
        sign(bounds, hashes, *self._ab, out)


def _ngram_hashes(text: Utf8, stage: SignatureParameters) -> tuple[Int64s, Uint64s]:
    """Return the hashes of each document's shingles, in order; not for `fast`."""
    function, precision = hashing(stage)
    if stage.scheme == "datasketch":
        return hash_ngrams(lower_words(*text), stage.ngram, function, precision, keeps_short=True)
    words = splitter("spacy", stage.language)(*simplify_texts(*text))
    lexicon = words.lexicon
    starts, data = join_words(words.offsets, words.tokens, lexicon.starts, lexicon.data)
    strings = JoinedWords(words.offsets, starts, data)
    return hash_ngrams(strings, stage.ngram, function, precision, keeps_short=False)


def shingles(view: View, stage: SignatureParameters) -> tuple[Int64s, Uint64s]:
    r"""Return the different 64-bit shingle hashes of each document, ascending: offsets, hashes.

    Shingles are n-grams of `\w+` words in lower case whatever the scheme, or of characters; a
    document of fewer has one, of all of them, and one without any none.
    """
    by_character = stage.shingles == "characters"
    return distinct_shingles(*view.text, ngram=stage.ngram, by_character=by_character)
