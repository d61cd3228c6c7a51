"""Walk through a fastText model file, to find a broken one before the library reads it.

fastText does not look whether its reads succeed: cut off in the dictionary it reads for ever, cut
off in the weights it predicts from what memory held. Nor whether sizes agree: where they do not it
reads and writes beyond its arrays. Sizes are compared here, weights not touched: a dictionary of 2
million words takes 0.07 CPU seconds, and labels are known without the model.

Source: fastText 0.9.3, `save` of args.cc, dictionary.cc, matrix and productquantizer.cc.
"""

from __future__ import annotations

import functools
import mmap
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of

MAGIC = 793712314
NEWEST = 12
SUPERVISED = 3
ENTRY_TAIL = 9
"""Bytes of a dictionary entry behind its word and NUL: count and type."""

_WORD = rb"[^\0]*+\0.{8}\0"
_SOME = 4096
_WORDS = re.compile(rb"(?s:%s){%d}+" % (_WORD, _SOME))
_LABEL = re.compile(rb"(?s)([^\0]*+)\0(.{8})\x01")

ARGUMENTS = struct.Struct("<12id")
COUNTS = struct.Struct("<iiiqq")
"""Entries, words and labels; tokens of the training text; pruned rows, -1 if nothing was pruned."""

MOST = {"dim": 1 << 14, "word_ngrams": 100, "minn": 100, "maxn": 100}
"""Larger ones are no model's, but a file that lies."""

MOST_COUNTS = 10**15
"""Where the tree of hierarchical softmax takes the count of a label for no label."""


class Header(NamedTuple):
    """What decides how large the rest of a model is, and how labels are found."""

    dim: int
    word_ngrams: int
    loss: int
    kind: int
    bucket: int
    minn: int
    maxn: int


def labels_of(path: str | Path) -> tuple[str, ...]:
    """Return the labels of a model in its order, as they stand in it; remembered while it stays.

    Raises:
        UsageError: there is no such file.
        DataError: it is not a whole, supervised fastText model.
    """
    place = Path(path)
    try:
        found = place.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"model: {path} cannot be read: {reason}. Check the path.") from None
    return _labels_of(place, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=16)
def _labels_of(path: Path, modified_ns: int, size_bytes: int) -> tuple[str, ...]:
    return check_model_file(path)


def check_model_file(path: Path) -> tuple[str, ...]:
    """Make sure that a file is a whole, supervised fastText model; return its labels.

    Raises:
        DataError: it is another kind of file, cut off, or holds word vectors only.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            supervised, labels, end, size = _walk(content)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        # Nothing to map, no model, or a field beyond the end.
        raise DataError(
            f"{path}: is not a whole fastText model: {reason_of(error)}. "
            "Give a .bin or .ftz file, or fetch it again."
        ) from None
    if not supervised:
        raise DataError(f"{path}: is a fastText model without labels. Give a supervised one.")
    if end != size:
        raise DataError(
            f"{path}: has {size:,} bytes, a fastText model with its header has {end:,}. "
            "Fetch it again."
        )
    return labels


def _walk(content: mmap.mmap) -> tuple[bool, tuple[str, ...], int, int]:
    """Return whether the model is supervised, its labels, where it and the file end."""
    magic, version = struct.unpack_from("<ii", content, 0)
    if magic != MAGIC or version > NEWEST:
        raise ValueError("another kind of file")
    values = ARGUMENTS.unpack_from(content, 8)
    header = Header(values[0], *values[5:11])
    if header.kind != SUPERVISED:
        return False, (), 0, len(content)
    _check_header(header)
    entries, words, num_labels, _, pruned = COUNTS.unpack_from(content, 64)
    if min(words, num_labels) < 0 or entries != words + num_labels or pruned < -1 or not num_labels:
        raise ValueError(f"it says {entries} entries, {words} words, {num_labels} labels")
    labels, place = _labels(content, _words_end(content, 92, words), num_labels)
    rows = words + (header.bucket if pruned < 0 else pruned)
    _check_pruned(content, place, pruned)
    place += 8 * max(pruned, 0)
    quantized, place = content[place : place + 1] == b"\1", place + 1
    if pruned >= 0 and not quantized:
        raise ValueError("it is pruned, but not quantized")
    place = _matrix_end(content, place, quantized, rows, header.dim)
    output_quantized, place = content[place : place + 1] == b"\1", place + 1
    place = _matrix_end(content, place, quantized and output_quantized, num_labels, header.dim)
    return True, labels, place, len(content)


def _check_header(header: Header) -> None:
    for name, most in MOST.items():
        value = getattr(header, name)
        if not (name in {"dim", "word_ngrams"}) <= value <= most:
            raise ValueError(f"{name} is {value}")
    if header.bucket < 0 or not 1 <= header.loss <= 4:
        raise ValueError(f"bucket is {header.bucket}, loss {header.loss}")
    if header.bucket == 0 and (header.maxn > 0 or header.word_ngrams > 1):
        raise ValueError("bucket is 0, by which it divides")


def _labels(content: mmap.mmap, place: int, num: int) -> tuple[tuple[str, ...], int]:
    """Return the labels, which follow the words, and where the dictionary ends."""
    labels, counted = [], 0
    for number in range(num):
        entry = _LABEL.match(content, place)
        if entry is None:
            raise ValueError(f"label {number} of the dictionary is no label, or cut off")
        (count,) = struct.unpack("<q", entry[2])
        counted += count
        if count < 0 or counted >= MOST_COUNTS:
            raise ValueError(f"label {number} has the count {count}")
        labels.append(entry[1].decode())
        place = entry.end()
    return tuple(labels), place


def _words_end(content: mmap.mmap, place: int, number: int) -> int:
    """Return where so many words of the dictionary end that begin at `place`."""
    while number > 0:
        at_once = min(_SOME, number)
        pattern = _WORDS if at_once == _SOME else re.compile(rb"(?s:%s){%d}+" % (_WORD, at_once))
        entries = pattern.match(content, place)
        if entries is None:
            raise ValueError("an entry of the dictionary is no word, or cut off")
        place, number = entries.end(), number - at_once
    return place


def _check_pruned(content: mmap.mmap, place: int, pruned: int) -> None:
    """Check that n-grams are mapped to rows that there are."""
    if pruned > 0:
        pairs = np.frombuffer(content[place : place + 8 * pruned], "<i4").reshape(-1, 2)
        if len(pairs) < pruned or pairs[:, 1].min() < 0 or pairs[:, 1].max() >= pruned:
            raise ValueError("n-grams are mapped to rows that there are not")


def _matrix_end(content: mmap.mmap, place: int, quantized: bool, rows: int, dim: int) -> int:
    """Return where the matrix that begins at `place` ends."""
    if not quantized:
        shape = struct.unpack_from("<qq", content, place)
        _check_shape(shape, (rows, dim))
        return place + 16 + 4 * rows * dim
    with_norms, *shape, codes = struct.unpack_from("<?qqi", content, place)
    _check_shape(tuple(shape), (rows, dim))
    place, parts = _quantizer_end(content, place + 21 + max(codes, 0), dim)
    _check_shape((codes,), (rows * parts,))
    return _quantizer_end(content, place + rows, 1)[0] if with_norms else place


def _quantizer_end(content: mmap.mmap, place: int, dim: int) -> tuple[int, int]:
    """Return where the codebook that begins at `place` ends, and the codes of a row.

    It has 256 centroids for each of the parts that a row is cut into.
    """
    found, parts, size, last = struct.unpack_from("<iiii", content, place)
    _check_shape((found,), (dim,))
    if size <= 0 or parts != -(-dim // size) or last != (dim % size or size):
        raise ValueError(f"a row of {dim} numbers is cut into {parts} parts of {size}, last {last}")
    return place + 16 + 4 * 256 * dim, parts


def _check_shape(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ValueError(f"a matrix is said to have {found}, and must have {expected}")
