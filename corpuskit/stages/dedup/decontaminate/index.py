"""The index of benchmark items: their words, what each is worth, and where their n-grams are."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    read_benchmarks,
    read_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


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
"""Texts that are taken apart at a time."""

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
        short: a question of fewer words is searched for only with its answer.
        reference: files of ordinary texts, to learn from which words are common.
        run: least words of a run that is found by itself; 0: none are.
        passages: whether runs of passages are.
    """

    files: tuple[tuple[str, str], ...]
    columns: BenchmarkColumns
    ngram: int
    short: int
    reference: tuple[str, ...] = ()
    run: int = 8
    passages: bool = False


@dataclasses.dataclass(frozen=True)
class ItemIndex:
    """Benchmark items, ready for searching. All arrays are read-only.

    Attributes:
        grams: the table of n-grams.
        gram_parts, gram_places: (places,) int32: part and its word where an n-gram begins.
        parts: the parts as words.
        kinds, items: (P,) what a part is, and of which item.
        parts_of: (I, KINDS) int64: part of an item, -1 where it has none.
        lengths, totals: (P,) words of a part, and the sum of their weights.
        names: I names.
        runs, run_places: (R,) hashes of all runs of `Recipe.run` words, ascending; the first word
            where each begins.
        num_read: items read; equal ones are one here.
    """

    grams: Grams
    gram_parts: NDArray[np.int32]
    gram_places: NDArray[np.int32]
    parts: ItemParts
    kinds: NDArray[np.uint8]
    items: NDArray[np.int32]
    parts_of: NDArray[np.int64]
    lengths: NDArray[np.int64]
    totals: NDArray[np.float64]
    names: pa.Array
    runs: NDArray[np.uint64]
    run_places: NDArray[np.int64]
    num_read: int

    def is_found(self, min_weight: float, *, passages: bool) -> NDArray[np.bool_]:
        """Return (I,) whether an item has a part that suffices alone, if a text holds all of it.

        Args:
            min_weight: least weight of a part; `passages`: whether a passage is one.
        """
        leads = (self.kinds != ANSWER) | (self.lengths >= LONE_ANSWER)
        leads &= (self.totals >= min_weight) & ((self.kinds != PASSAGE) | passages)
        return np.bincount(self.items, leads, len(self.names)) > 0

    @property
    def size_bytes(self) -> int:
        """Memory of all arrays."""
        arrays: list[NDArray[Any]] = [
            *self.grams, self.gram_parts, self.gram_places, *self.parts, self.kinds, self.items,
            self.parts_of, self.lengths, self.totals, self.runs, self.run_places,
        ]  # fmt: skip
        return sum(array.nbytes for array in arrays) + int(self.names.nbytes)


def open_index(recipe: Recipe) -> ItemIndex:
    """Return the index of some benchmarks, built on first use, once per process.

    One that takes long to build is kept beside the compiled kernels: one process of a machine makes
    it, and all map it into memory, which they share.

    Raises:
        UsageError: a file cannot be read, or holds no items.
    """
    return _opened(recipe, stamps_of(_files(recipe)))


def check_files(recipe: Recipe) -> None:
    """Read the files of an index, unless the index is there already; build nothing.

    Raises:
        UsageError: a file cannot be read, or holds no items.
    """
    _checked(recipe, stamps_of(_files(recipe)))


_ABSENT = (0, -1)


def _files(recipe: Recipe) -> tuple[str, ...]:
    return (*(path for _, path in recipe.files), *recipe.reference)


def stamps_of(paths: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return times and sizes of files, which tell their versions apart."""
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
    kept = open_or_build(_path(recipe), lambda _: _kept(_build(recipe)))
    return _index({name: array[:-1] for name, array in kept.items()})


@functools.lru_cache(maxsize=8)
def _checked(recipe: Recipe, stamps: tuple[tuple[int, int], ...]) -> None:
    if _is_kept(stamps) and _path(recipe).exists():
        return  # it was made of these very contents
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
    given = map(Path, _files(recipe))
    for path in (*given, *sorted(closure(Path(__file__)))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _kept(arrays: dict[str, NDArray[Any]]) -> Iterator[tuple[str, list[NDArray[Any]]]]:
    """Yield arrays for a file, which holds none that is empty: each has one number more."""
    for name, array in arrays.items():
        yield name, [np.append(array, np.zeros(1, array.dtype))]


def _index(arrays: Mapping[str, NDArray[Any]]) -> ItemIndex:
    for array in arrays.values():
        array.flags.writeable = False
    return ItemIndex(
        Grams(*(arrays[name] for name in ("bitmap", "slots", "numbers", "gram_starts"))),
        arrays["gram_parts"],
        arrays["gram_places"],
        ItemParts(*(arrays[name] for name in ("starts", "words", "joined", "weights"))),
        arrays["kinds"],
        arrays["items"],
        arrays["parts_of"].reshape(-1, KINDS),
        arrays["lengths"],
        arrays["totals"],
        large_strings(arrays["name_offsets"], arrays["name_data"]),
        arrays["runs"],
        arrays["run_places"],
        int(arrays["counts"][0]),
    )


def _build(recipe: Recipe) -> dict[str, NDArray[Any]]:
    """Read the benchmarks and index them: about 1 s for 40,000 items."""
    read = read_benchmarks(recipe.files, recipe.columns)
    unique = {(one.question, one.answer, one.passage): one for one in reversed(read)}
    items = list(reversed(unique.values()))
    arrays = _parts(items, recipe)
    num_items = len(items)
    reference = [text for path in recipe.reference for text in read_texts(path)]
    arrays["weights"] = _weights(arrays, num_items, reference)
    del arrays["sizes"]
    sums = np.append(0.0, np.cumsum(arrays["weights"]))
    arrays["totals"] = sums[arrays["starts"][1:]] - sums[arrays["starts"][:-1]]
    leads = (arrays["kinds"] != ANSWER) | (arrays["lengths"] >= LONE_ANSWER)
    arrays |= _grams(arrays, recipe.ngram, leads)
    if not recipe.passages:
        leads &= arrays["kinds"] != PASSAGE
    arrays["runs"], arrays["run_places"] = _runs(arrays, recipe.run, leads)
    names = utf8(pa.array([item.name for item in items], pa.large_string()))
    arrays |= {"name_offsets": names.offsets, "name_data": names.data}
    arrays["counts"] = np.array([len(read)])
    return arrays


class _ItemWords(NamedTuple):
    """Words of texts: where those of each begin, hashes, joined with the one before, bytes."""

    bounds: NDArray[np.int64]
    words: NDArray[np.uint64]
    joined: NDArray[np.uint64]
    sizes: NDArray[np.int32]


def _words(texts: Sequence[str]) -> Iterator[_ItemWords]:
    for first in range(0, len(texts), _CHUNK):
        chunk = utf8(pa.array(texts[first : first + _CHUNK], pa.large_string()))
        yield _ItemWords(*fold_all(*chunk, folded_characters()))


def _parts(items: Sequence[Item], recipe: Recipe) -> dict[str, NDArray[Any]]:
    """Cut items into parts: those long enough to be searched for, and answers of any length."""
    texts = [
        text
        for one in items
        for text in (
            *(one.question, one.answer, one.passage),
            f"{one.question}\n{one.answer}" if one.answer else "",
        )
    ]
    pieces = list(_words(texts))
    num_words = np.concatenate([np.diff(piece.bounds) for piece in pieces])
    lengths = np.minimum(num_words, MAX_WORDS).reshape(-1, KINDS)
    is_used = lengths >= recipe.ngram
    is_used[:, ANSWER] = lengths[:, ANSWER] > 0  # they count beside their question, however short
    is_short = lengths[:, QUESTION] < recipe.short
    is_used[:, QUESTION] &= ~is_short
    is_used[:, BOTH] &= is_short
    places = np.arange(num_words.sum()) - np.repeat(np.cumsum(num_words) - num_words, num_words)
    taken = np.repeat(is_used.ravel(), num_words) & (places < MAX_WORDS)
    lengths = lengths[is_used]
    owners, kinds = np.nonzero(is_used)
    return {
        "starts": np.append(0, np.cumsum(lengths)),
        "words": np.concatenate([piece.words for piece in pieces])[taken],
        "joined": np.concatenate([piece.joined for piece in pieces])[taken],
        "sizes": np.concatenate([piece.sizes for piece in pieces])[taken],
        "kinds": kinds.astype(np.uint8),
        "items": owners.astype(np.int32),
        "parts_of": np.where(is_used, np.cumsum(is_used).reshape(is_used.shape) - 1, -1).ravel(),
        "lengths": lengths,
    }


def word_weights(items: Sequence[str]) -> NDArray[np.float64]:
    """Return what each word of some items is worth, (W,), a multiple of `GRAIN`."""
    pieces = list(_words(items))
    arrays: dict[str, NDArray[Any]] = {
        "words": np.concatenate([piece.words for piece in pieces]),
        "sizes": np.concatenate([piece.sizes for piece in pieces]),
        "lengths": np.concatenate([np.diff(piece.bounds) for piece in pieces]),
        "items": np.arange(len(items)),
    }
    return _weights(arrays, len(items), ())


def _weights(
    arrays: dict[str, NDArray[Any]], num_items: int, reference: Sequence[str]
) -> NDArray[np.float64]:
    """Return what each word is worth: 1 if one item has it, near 0 if all have it.

    That is its inverse document frequency, as a share of the largest there is; words of less than
    four bytes count a quarter a byte. A document is an item, or some words of a reference text.
    """
    values, places = np.unique(arrays["words"], return_inverse=True)
    owners = np.repeat(arrays["items"], arrays["lengths"]).astype(np.int64)
    counts = _documents_with(places, owners, num_items, len(values))
    num_docs = num_items
    for piece in _words(reference):
        ranks = np.minimum(np.searchsorted(values, piece.words), len(values) - 1)
        known = np.flatnonzero(values[ranks] == piece.words)
        num_pieces = len(piece.words) // REFERENCE_WORDS + 1
        counts += _documents_with(ranks[known], known // REFERENCE_WORDS, num_pieces, len(values))
        num_docs += num_pieces
    rarity = 1 - np.log(np.maximum(counts, 1)) / np.log(num_docs + 1)
    weights: NDArray[np.float64] = rarity[places] * np.minimum(arrays["sizes"] / 4, 1)
    return np.ceil(weights / GRAIN) * GRAIN


def _documents_with(
    words: NDArray[np.int64], documents: NDArray[np.int64], num_docs: int, num_words: int
) -> NDArray[np.int64]:
    """Return in how many documents each word is, (num_words,)."""
    pairs = np.sort(words * num_docs + documents)  # np.unique alone takes 20 times as long
    is_new = np.diff(pairs, prepend=-1) > 0
    return np.bincount(pairs[is_new] // num_docs, minlength=num_words)


def _runs(
    arrays: dict[str, NDArray[Any]], size: int, leads: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all runs of `size` words, ascending, and where each is first."""
    if size == 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    parts = np.empty(len(arrays["words"]), np.int32)
    hashes = gram_hashes(arrays["starts"].astype(np.int64), arrays["words"], size, parts)
    places = np.flatnonzero((hashes != 0) & leads[parts])
    values, firsts = np.unique(hashes[places], return_index=True)
    return values, places[firsts]


def _grams(
    arrays: dict[str, NDArray[Any]], ngram: int, leads: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Return the table of n-grams and the places they lead to; `leads`: (P,) in which parts."""
    starts = arrays["starts"].astype(np.int64)
    parts = np.empty(len(arrays["words"]), np.int32)
    hashes = gram_hashes(starts, arrays["words"], ngram, parts)
    places = np.flatnonzero((hashes != 0) & leads[parts])
    values, numbers = np.unique(hashes[places], return_inverse=True)
    counts = np.bincount(numbers, minlength=len(values))
    shared = counts[numbers]
    rarest = np.full(len(starts) - 1, np.iinfo(np.int64).max)
    np.minimum.at(rarest, parts[places], shared)
    kept = shared <= np.maximum(rarest[parts[places]], MAX_SHARED)
    places, numbers = places[kept], numbers[kept]
    order = np.argsort(numbers, kind="stable")
    places = places[order]
    size = 1 << max(2 * len(values), 64).bit_length()
    bitmap = np.zeros(size >> 3, np.uint64)
    slots, codes = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    fill_table(values, bitmap, slots, codes)
    counts = np.bincount(numbers, minlength=len(values))
    return {
        "bitmap": bitmap,
        "slots": slots,
        "numbers": codes,
        "gram_starts": np.append(0, np.cumsum(counts)),
        "gram_parts": parts[places],
        "gram_places": (places - starts[parts[places]]).astype(np.int32),
    }
