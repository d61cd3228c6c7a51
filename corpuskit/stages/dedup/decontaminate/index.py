"""The index of benchmark items: their words, the weight of each, and which n-grams are where."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.closure import closure
from corpuskit.formats.batch import large_strings, utf8
from corpuskit.formats.mapped import open_or_build
from corpuskit.kernels.jit import cache_dir
from corpuskit.kernels.overlap import Grams, ItemParts, fill_table, gram_hashes
from corpuskit.kernels.wordhash import fold_all, folded_characters
from corpuskit.stages.dedup.decontaminate.items import (
    BenchmarkColumns,
    Item,
    distinct_items,
    read_benchmarks,
    read_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from corpuskit.kernels.arrays import AnyArray, Bools, Bytes, Float64s, Int32s, Int64s, Uint64s


QUESTION, ANSWER, PASSAGE, BOTH = range(4)
"""Kinds of parts; BOTH is a question too short to count alone, followed by its answer."""

KINDS = 4

LONE_ANSWER = 20
"""An answer of this many words is searched for without its question, too."""

GRAIN = 2.0**-20
"""Weights are multiples of it: sums of them are exact, whatever a library makes of a logarithm."""

REFERENCE_WORDS = 50
"""Words of a reference text that count as one document, about as many as an item has."""

_CHUNK = 4096
"""Texts that are split into words at a time."""

MAX_WORDS = 1024
"""Words of a part that are searched for."""

MAX_SHARED = 100
"""An n-gram that more parts share does not lead to them; a part that has no other keeps its
rarest. Runs of words are found by such n-grams, too."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What an index is made of.

    Attributes:
        files: (benchmark, path).
        ngram: words of an n-gram.
        min_words: a question of fewer words is searched for only with its answer.
        reference: files of ordinary texts, which show what words are common.
        chunk_words: words in a row that are found by themselves; 0: none are.
        passages: whether words of passages are.
    """

    files: tuple[tuple[str, str], ...]
    columns: BenchmarkColumns
    ngram: int
    min_words: int
    reference: tuple[str, ...] = ()
    chunk_words: int = 8
    passages: bool = False


@dataclasses.dataclass(frozen=True)
class ItemIndex:
    """Benchmark items, ready for searching. All arrays are read-only.

    Attributes:
        grams: the table of n-grams.
        gram_parts, gram_words: int32, where n-grams occur, those of one n-gram together: the part,
            and its word with which the n-gram begins.
        parts: the parts as words.
        kinds, items: (P,) what a part is, and of which item.
        parts_of: (I, KINDS) int64: part of an item, -1 where it has none.
        lengths, totals: (P,) words of a part, and the sum of their weights.
        names: I names.
        runs, run_words: (R,) hashes of all runs of `Recipe.chunk_words` words, ascending; the word
            among those of all parts with which each begins first.
    """

    grams: Grams
    gram_parts: Int32s
    gram_words: Int32s
    parts: ItemParts
    kinds: Bytes
    items: Int32s
    parts_of: Int64s
    lengths: Int64s
    totals: Float64s
    names: pa.Array
    runs: Uint64s
    run_words: Int64s

    def is_found(self, min_weight: float, *, passages: bool) -> Bools:
        """Return (I,) whether an item has a part that suffices alone, if a text holds all of it.

        Args:
            min_weight: least weight of such a part.
            passages: whether a passage can be one.
        """
        suffices = _is_searched(self.kinds, self.lengths)
        suffices &= (self.totals >= min_weight) & ((self.kinds != PASSAGE) | passages)
        return np.bincount(self.items, suffices, len(self.names)) > 0


def _is_searched(kinds: Bytes, lengths: Int64s) -> Bools:
    """Return (P,) which parts are searched for; short answers only count beside their question."""
    is_searched: Bools = (kinds != ANSWER) | (lengths >= LONE_ANSWER)
    return is_searched


def open_index(recipe: Recipe) -> ItemIndex:
    """Return the index of some benchmarks, built on first use, once per process.

    A large one is kept in a file beside the compiled kernels: one process of a machine builds it,
    and all map it into memory, which they share.

    Raises:
        UsageError: a file cannot be read, or holds no items.
    """
    return _opened(recipe, file_stamps(_files(recipe)))


def check_files(recipe: Recipe) -> None:
    """Read the files of an index, unless the index is there already; build nothing.

    Raises:
        UsageError: a file cannot be read, or holds no items.
    """
    _checked(recipe, file_stamps(_files(recipe)))


_ABSENT = (0, -1)
"""Stamp of a file that cannot be read; reading it says why."""


def _files(recipe: Recipe) -> tuple[str, ...]:
    return (*(path for _, path in recipe.files), *recipe.reference)


def file_stamps(paths: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return modification time and size of files, which tell their versions apart."""
    stamps = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            stamps.append(_ABSENT)
        else:
            stamps.append((stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)


@functools.lru_cache(maxsize=8)
def _opened(recipe: Recipe, stamps: tuple[tuple[int, int], ...]) -> ItemIndex:
    if not _is_kept(stamps):
        return _index(_build(recipe))
    kept = open_or_build(_path(recipe), lambda _: _padded(_build(recipe)))
    return _index({name: array[:-1] for name, array in kept.items()})


@functools.lru_cache(maxsize=8)
def _checked(recipe: Recipe, stamps: tuple[tuple[int, int], ...]) -> None:
    if _is_kept(stamps) and _path(recipe).exists():
        return  # the name has the digest of the contents: they were read when it was built
    read_benchmarks(recipe.files, recipe.columns)
    for path in recipe.reference:
        read_texts(path)


def _is_kept(stamps: tuple[tuple[int, int], ...]) -> bool:
    return _ABSENT not in stamps and sum(size for _, size in stamps) >= KEPT_BYTES


def _path(recipe: Recipe) -> Path:
    return cache_dir() / "lists" / f"benchmarks-{_digest(recipe)}.map"


KEPT_BYTES = 1_000_000
"""Benchmarks in smaller files are indexed by each process."""


def _digest(recipe: Recipe) -> str:
    """Return the hash of all that decides what an index is: files, parameters, code."""
    digest = hashlib.blake2b(json.dumps(dataclasses.asdict(recipe)).encode(), digest_size=8)
    for path in (*map(Path, _files(recipe)), *sorted(closure(Path(__file__)))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _padded(arrays: dict[str, AnyArray]) -> Iterator[tuple[str, list[AnyArray]]]:
    """Yield arrays with one number more each: a mapped file cannot hold an empty one."""
    for name, array in arrays.items():
        yield name, [np.append(array, np.zeros(1, array.dtype))]


def _index(arrays: Mapping[str, AnyArray]) -> ItemIndex:
    for array in arrays.values():
        array.flags.writeable = False
    return ItemIndex(
        Grams(*(arrays[name] for name in ("bitmap", "slots", "numbers", "gram_starts"))),
        arrays["gram_parts"],
        arrays["gram_words"],
        ItemParts(*(arrays[name] for name in ("starts", "words", "joined", "weights"))),
        arrays["kinds"],
        arrays["items"],
        arrays["parts_of"].reshape(-1, KINDS),
        arrays["lengths"],
        arrays["totals"],
        large_strings(arrays["name_offsets"], arrays["name_data"]),
        arrays["runs"],
        arrays["run_words"],
    )


def _build(recipe: Recipe) -> dict[str, AnyArray]:
    """Read the benchmarks and index them: about 1 s for 40,000 items."""
    items = distinct_items(read_benchmarks(recipe.files, recipe.columns))
    arrays = _parts(items, recipe)
    num_items = len(items)
    reference = [text for path in recipe.reference for text in read_texts(path)]
    arrays["weights"] = _weights(arrays, num_items, reference)
    del arrays["sizes"]
    sums = np.append(0.0, np.cumsum(arrays["weights"]))
    arrays["totals"] = sums[arrays["starts"][1:]] - sums[arrays["starts"][:-1]]
    is_searched = _is_searched(arrays["kinds"], arrays["lengths"])
    arrays |= _grams(arrays, recipe.ngram, is_searched)
    if not recipe.passages:
        is_searched &= arrays["kinds"] != PASSAGE
    arrays["runs"], arrays["run_words"] = _runs(arrays, recipe.chunk_words, is_searched)
    names = utf8(pa.array([item.name for item in items], pa.large_string()))
    return arrays | {"name_offsets": names.offsets, "name_data": names.data}


class _ItemWords(NamedTuple):
    """Words of N texts: bounds (N + 1,); hashes, hashes joined with the word before, bytes (W,)."""

    bounds: Int64s
    words: Uint64s
    joined: Uint64s
    sizes: Int32s


def _words(texts: Sequence[str]) -> Iterator[_ItemWords]:
    for first in range(0, len(texts), _CHUNK):
        chunk = utf8(pa.array(texts[first : first + _CHUNK], pa.large_string()))
        yield _ItemWords(*fold_all(*chunk, folded_characters()))


def _parts(items: Sequence[Item], recipe: Recipe) -> dict[str, AnyArray]:
    """Cut items into parts: those long enough to be searched for, and answers of any length."""
    texts = [
        text
        for item in items
        for text in (
            *(item.question, item.answer, item.passage),
            f"{item.question}\n{item.answer}" if item.answer else "",
        )
    ]
    pieces = list(_words(texts))
    num_words = np.concatenate([np.diff(piece.bounds) for piece in pieces])
    lengths = np.minimum(num_words, MAX_WORDS).reshape(-1, KINDS)
    is_used = lengths >= recipe.ngram
    is_used[:, ANSWER] = lengths[:, ANSWER] > 0  # they count beside their question, however short
    is_short = lengths[:, QUESTION] < recipe.min_words
    is_used[:, QUESTION] &= ~is_short
    is_used[:, BOTH] &= is_short
    numbers = np.arange(num_words.sum()) - np.repeat(np.cumsum(num_words) - num_words, num_words)
    is_indexed = np.repeat(is_used.ravel(), num_words) & (numbers < MAX_WORDS)
    lengths = lengths[is_used]
    owners, kinds = np.nonzero(is_used)
    return {
        "starts": np.append(0, np.cumsum(lengths)),
        "words": np.concatenate([piece.words for piece in pieces])[is_indexed],
        "joined": np.concatenate([piece.joined for piece in pieces])[is_indexed],
        "sizes": np.concatenate([piece.sizes for piece in pieces])[is_indexed],
        "kinds": kinds.astype(np.uint8),
        "items": owners.astype(np.int32),
        "parts_of": np.where(is_used, np.cumsum(is_used).reshape(is_used.shape) - 1, -1).ravel(),
        "lengths": lengths,
    }


def word_weights(items: Sequence[str]) -> Float64s:
    """Return the weight of each word of some items, (W,), a multiple of `GRAIN`."""
    pieces = list(_words(items))
    arrays: dict[str, AnyArray] = {
        "words": np.concatenate([piece.words for piece in pieces]),
        "sizes": np.concatenate([piece.sizes for piece in pieces]),
        "lengths": np.concatenate([np.diff(piece.bounds) for piece in pieces]),
        "items": np.arange(len(items)),
    }
    return _weights(arrays, len(items), ())


def _weights(arrays: dict[str, AnyArray], num_items: int, reference: Sequence[str]) -> Float64s:
    """Return the weight of each word: 1 if one item has it, near 0 if all have it.

    It is its inverse document frequency, as a share of the largest there is; words of less than
    four bytes count a quarter a byte. A document is an item, or some words of a reference text.
    """
    values, numbers = np.unique(arrays["words"], return_inverse=True)
    owners = np.repeat(arrays["items"], arrays["lengths"]).astype(np.int64)
    counts = _documents_with(numbers, owners, num_items, len(values))
    num_docs = num_items
    for piece in _words(reference):
        nearest = np.minimum(np.searchsorted(values, piece.words), len(values) - 1)
        known = np.flatnonzero(values[nearest] == piece.words)
        num_pieces = len(piece.words) // REFERENCE_WORDS + 1
        counts += _documents_with(nearest[known], known // REFERENCE_WORDS, num_pieces, len(values))
        num_docs += num_pieces
    rarity = 1 - np.log(np.maximum(counts, 1)) / np.log(num_docs + 1)
    weights: Float64s = rarity[numbers] * np.minimum(arrays["sizes"] / 4, 1)
    return np.ceil(weights / GRAIN) * GRAIN


def _documents_with(words: Int64s, documents: Int64s, num_docs: int, num_words: int) -> Int64s:
    """Return in how many documents each word is, (num_words,)."""
    pairs = np.sort(words * num_docs + documents)  # np.unique alone takes 20 times as long
    is_new = np.diff(pairs, prepend=-1) > 0
    return np.bincount(pairs[is_new] // num_docs, minlength=num_words)


def _runs(arrays: dict[str, AnyArray], size: int, is_searched: Bools) -> tuple[Uint64s, Int64s]:
    """Return the hashes of all runs of `size` words, ascending, and the first word of each."""
    if size == 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    parts = np.empty(len(arrays["words"]), np.int32)
    hashes = gram_hashes(arrays["starts"].astype(np.int64), arrays["words"], size, parts)
    words = np.flatnonzero((hashes != 0) & is_searched[parts])
    values, firsts = np.unique(hashes[words], return_index=True)
    return values, words[firsts]


def _grams(arrays: dict[str, AnyArray], ngram: int, is_searched: Bools) -> dict[str, AnyArray]:
    """Return the table of n-grams and where they occur, in parts that are searched for, (P,)."""
    starts = arrays["starts"].astype(np.int64)
    parts = np.empty(len(arrays["words"]), np.int32)
    hashes = gram_hashes(starts, arrays["words"], ngram, parts)
    words = np.flatnonzero((hashes != 0) & is_searched[parts])
    values, numbers = np.unique(hashes[words], return_inverse=True)
    counts = np.bincount(numbers, minlength=len(values))
    shared = counts[numbers]
    rarest = np.full(len(starts) - 1, np.iinfo(np.int64).max)
    np.minimum.at(rarest, parts[words], shared)
    kept = shared <= np.maximum(rarest[parts[words]], MAX_SHARED)
    words, numbers = words[kept], numbers[kept]
    words = words[np.argsort(numbers, kind="stable")]
    counts = np.bincount(numbers, minlength=len(values))
    bitmap, slots, slot_numbers = make_table(values)
    return {
        "bitmap": bitmap,
        "slots": slots,
        "numbers": slot_numbers,
        "gram_starts": np.append(0, np.cumsum(counts)),
        "gram_parts": parts[words],
        "gram_words": (words - starts[parts[words]]).astype(np.int32),
    }


def make_table(hashes: Uint64s) -> tuple[Uint64s, Uint64s, Int32s]:
    """Return bitmap, slots and numbers of `kernels.overlap.Grams`; `hashes` are all different."""
    size = 1 << max(2 * len(hashes), 64).bit_length()
    table = np.zeros(size >> 3, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.int32)
    fill_table(hashes, *table)
    return table
