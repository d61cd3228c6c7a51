"""fastText model files: checked before anything else reads them, and read.

fastText does not check whether its reads succeed: of a file cut off in the dictionary it reads for
ever, cut off in the weights it predicts from old memory. If sizes disagree, it reads and writes
beyond its arrays. So sizes are checked here, without reading weights: a dictionary of 2 million
words takes 0.07 CPU seconds, and labels are known without loading the model.

Source: fastText 0.9.3, `save` of args.cc, dictionary.cc, matrix and productquantizer.cc.
"""

from __future__ import annotations

import functools
import mmap
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from corpuskit.errors import DataError, UsageError, reason_of
from corpuskit.kernels.fasttext import (
    HIERARCHICAL,
    LONGEST_RUN,
    Features,
    Output,
    build_tree,
    index_words,
    sigmoid_table,
)
from corpuskit.stages.annotators._card import ModelCard, read_card
from corpuskit.stages.annotators._linear import is_linear, read_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_Result = TypeVar("_Result")

MAGIC = 793712314
NEWEST = 12
SUPERVISED = 3
PREFIX = "__label__"

ENTRY_TAIL = 9
"""Bytes of a dictionary entry after its word and NUL: count and type."""

# A regular expression checks 2 million words in 0.07 CPU s, a loop in Python in 0.53.
_WORD = rb"[^\0]*+\0.{8}\0"
_STEP = 4096
_WORDS = re.compile(rb"(?s:%s){%d}+" % (_WORD, _STEP))
_LABEL = re.compile(rb"(?s)([^\0]*+)\0(.{8})\x01")

ARGUMENTS = struct.Struct("<12id")
COUNTS = struct.Struct("<iiiqq")
"""Entries, words and labels; tokens of the training text; pruned rows, -1 if nothing was pruned."""

MOST = {"dim": 1 << 14, "word_ngrams": 100, "minn": 100, "maxn": LONGEST_RUN}
"""Larger values occur in broken files only."""

MOST_COUNTS = 10**15
"""fastText's count of an unused node in the tree of hierarchical softmax: labels have fewer."""

MOST_BYTES = 1 << 30
"""A quantized matrix whose rows are cut into parts of more than 16 numbers, fastText's own being 2,
may take no more than this once it is read: a small file must not fill the memory."""

CALIBRATION_MARK = b"corpuskit-lengths"
CALIBRATED = struct.Struct("<i17s")
"""End of a file with a calibration: the number of scales, and the mark."""

MOST_SCALES = 32

MOST_BUCKETS = 1 << 28
"""Buckets of a pruned model, most of which have no row; a quarter of a byte each."""


class Header(NamedTuple):
    """The arguments that decide the sizes of the other parts, and how labels are predicted."""

    dim: int
    word_ngrams: int
    loss: int
    kind: int
    bucket: int
    minn: int
    maxn: int


class MatrixLayout(NamedTuple):
    """Where in a file a matrix is.

    Attributes:
        rows, dim: its shape.
        offset: of its numbers, or of the codes of a quantized one.
        part: numbers that a code encodes; 0 if it is not quantized.
        codebook: offset of the centroids.
        norms: offset of the codes of the rows' norms, 0 if it has none; their centroids follow.
    """

    rows: int
    dim: int
    offset: int
    part: int = 0
    codebook: int = 0
    norms: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that it takes once it is read."""
        return 4 * self.rows * self.dim


class ModelLayout(NamedTuple):
    """The parts of a model file, and their offsets.

    Attributes:
        header: its arguments.
        labels, counts: of its labels, as the file has them.
        num_words: words in the dictionary, which is followed by the labels.
        words, end_words: offsets of the dictionary and of the end of the labels.
        pruned: buckets that have a row, listed at `end_words`; -1 if all have one.
        input, output: the matrices.
        card: normalisation and calibration.
    """

    header: Header
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    num_words: int
    words: int
    end_words: int
    pruned: int
    input: MatrixLayout
    output: MatrixLayout
    card: ModelCard


class Model(NamedTuple):
    """A model in memory.

    Attributes:
        labels: as the file has them, with their prefix.
        features, output: see there.
        matrix: its rows one after another, each filled up with zeros to `stride` numbers.
        dim, stride: numbers of a row, and those with the zeros.
        card: normalisation and calibration.
    """

    labels: tuple[str, ...]
    features: Features
    output: Output
    matrix: Floats
    dim: int
    stride: int
    card: ModelCard


class _Facts(NamedTuple):
    """What is known of a model without reading its weights.

    Attributes:
        labels: in the model's order, with fastText's prefix.
        resident_bytes: memory that the model takes.
        bounds: least and largest score.
    """

    labels: tuple[str, ...]
    resident_bytes: int
    bounds: tuple[float, float] = (0.0, 1.0)


def resident_bytes(path: str | Path) -> int:
    """Return the memory that a model takes, 0 if there is none at `path`."""
    return _facts(path).resident_bytes if Path(path).exists() else 0


def labels_of(path: str | Path) -> tuple[str, ...]:
    """Return the labels of a model in its order, with fastText's prefix, also of a linear model.

    Raises:
        UsageError: there is no such file.
        DataError: it is neither a whole, supervised fastText model nor a linear one.
    """
    return _facts(path).labels


def bounds_of(path: str | Path) -> tuple[float, float]:
    """Return the least and largest score of a model: 0 and 1, or what a model of numbers learned.

    Raises:
        UsageError: there is no such file.
        DataError: it is neither a whole, supervised fastText model nor a linear one.
    """
    return _facts(path).bounds


def _facts(path: str | Path) -> _Facts:
    try:
        stat = Path(path).stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"model: {path} cannot be read: {reason}. Check the path.") from None
    return _read_facts(Path(path), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _read_facts(path: Path, modified_ns: int, size_bytes: int) -> _Facts:
    """Return the facts; the arguments after the path tell versions of a file apart."""
    if is_linear(path):
        weights = read_linear(path)
        labels = tuple(PREFIX + label for label in weights.labels)
        return _Facts(labels, 2 * weights.table.nbytes, weights.bounds or (0.0, 1.0))
    return _open(path, lambda content, layout: _Facts(layout.labels, _memory(layout)))


def _memory(layout: ModelLayout) -> int:
    words = 2 * (layout.end_words - layout.words) + 32 * layout.num_words
    buckets = layout.header.bucket // 4 if layout.pruned > 0 else 0
    return layout.input.size_bytes + layout.output.size_bytes + words + buckets


def read_model(path: Path) -> Model:
    """Read a whole, supervised fastText model.

    Raises:
        DataError: it is another kind of file, cut off, or holds word vectors only.
    """
    return _open(path, _read)


def _open(path: Path, use: Callable[[mmap.mmap, ModelLayout], _Result]) -> _Result:
    """Return what `use` makes of a file once it is checked."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            layout, end, size = _walk(content)
            size -= _calibration(content)[1]
            if layout is None:
                raise DataError(
                    f"{path}: is a fastText model without labels. Give a supervised one."
                )
            if end != size:
                raise DataError(
                    f"{path}: has {size:,} bytes, a fastText model with its header has {end:,}. "
                    "Fetch it again."
                )
            return use(content, layout)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        # Nothing to map, no model, or a field beyond the end.
        raise DataError(
            f"{path}: is not a whole fastText model: {reason_of(error)}. "
            "Give a .bin or .ftz file, or fetch it again."
        ) from None


def _walk(content: mmap.mmap) -> tuple[ModelLayout | None, int, int]:
    """Return the layout, None if the model is not supervised, and where it and the file end."""
    magic, version = struct.unpack_from("<ii", content, 0)
    if magic != MAGIC or version > NEWEST:
        raise ValueError("another kind of file")
    values = ARGUMENTS.unpack_from(content, 8)
    header = Header(values[0], *values[5:11])
    if header.kind != SUPERVISED:
        return None, 0, len(content)
    if version == 11:
        header = header._replace(maxn=0)  # no runs of characters in supervised models
    _check_header(header)
    entries, words, num_labels, _, pruned = COUNTS.unpack_from(content, 64)
    if min(words, num_labels) < 0 or entries != words + num_labels or pruned < -1 or not num_labels:
        raise ValueError(f"it says {entries} entries, {words} words, {num_labels} labels")
    labels, counts, end_words = _labels(content, _words_end(content, 92, words), num_labels)
    _check_pruned(content, end_words, pruned, header.bucket)
    offset = end_words + 8 * max(pruned, 0)
    quantized, offset = content[offset : offset + 1] == b"\1", offset + 1
    if pruned >= 0 and not quantized:
        raise ValueError("it is pruned, but not quantized")
    rows = words + (header.bucket if pruned < 0 else pruned)
    inputs, offset = _matrix(content, offset, quantized, rows, header.dim)
    output_quantized, offset = content[offset : offset + 1] == b"\1", offset + 1
    output, offset = _matrix(
        content, offset, quantized and output_quantized, num_labels, header.dim
    )
    card, offset = read_card(content, offset, len(labels))
    layout = ModelLayout(header, labels, counts, words, 92, end_words, pruned, inputs, output, card)
    return layout, offset, len(content)


def _check_header(header: Header) -> None:
    for name, highest in MOST.items():
        value = getattr(header, name)
        if not (name in {"dim", "word_ngrams"}) <= value <= highest:
            raise ValueError(f"{name} is {value}")
    if header.bucket < 0 or not 1 <= header.loss <= 4:
        raise ValueError(f"bucket is {header.bucket}, loss {header.loss}")
    if header.bucket == 0 and (header.maxn > 0 or header.word_ngrams > 1):
        raise ValueError("bucket is 0, by which it divides")


def _labels(
    content: mmap.mmap, offset: int, num: int
) -> tuple[tuple[str, ...], tuple[int, ...], int]:
    """Return the labels, which follow the words, their counts, and where the dictionary ends."""
    labels, counts, total = [], [], 0
    for number in range(num):
        entry = _LABEL.match(content, offset)
        if entry is None:
            raise ValueError(f"label {number} of the dictionary is no label, or cut off")
        (count,) = struct.unpack("<q", entry[2])
        total += count
        if count < 0 or total >= MOST_COUNTS:
            raise ValueError(f"label {number} has the count {count}")
        labels.append(entry[1].decode())
        counts.append(count)
        offset = entry.end()
    return tuple(labels), tuple(counts), offset


def _words_end(content: mmap.mmap, offset: int, number: int) -> int:
    """Return where `number` words end that begin at `offset`."""
    while number > 0:
        step = min(_STEP, number)
        pattern = _WORDS if step == _STEP else re.compile(rb"(?s:%s){%d}+" % (_WORD, step))
        entries = pattern.match(content, offset)
        if entries is None:
            raise ValueError("an entry of the dictionary is no word, or cut off")
        offset, number = entries.end(), number - step
    return offset


def _check_pruned(content: mmap.mmap, offset: int, pruned: int, bucket: int) -> None:
    if pruned > 0 and bucket > MOST_BUCKETS:
        raise ValueError(f"it is pruned, and bucket is {bucket}, more than {MOST_BUCKETS}")
    if pruned > 0:
        pairs = np.frombuffer(content[offset : offset + 8 * pruned], "<i4").reshape(-1, 2)
        if len(pairs) < pruned or pairs[:, 1].min() < 0 or pairs[:, 1].max() >= pruned:
            raise ValueError("n-grams are mapped to rows that there are not")


def _matrix(
    content: mmap.mmap, offset: int, quantized: bool, rows: int, dim: int
) -> tuple[MatrixLayout, int]:
    """Return the matrix that begins at `offset`, and where it ends."""
    if not quantized:
        shape = struct.unpack_from("<qq", content, offset)
        _check_shape(shape, (rows, dim))
        return MatrixLayout(rows, dim, offset + 16), offset + 16 + 4 * rows * dim
    with_norms, *shape, codes = struct.unpack_from("<?qqi", content, offset)
    _check_shape(tuple(shape), (rows, dim))
    codebook = offset + 21 + max(codes, 0)
    end, parts, part = _quantizer_end(content, codebook, dim)
    _check_shape((codes,), (rows * parts,))
    matrix = MatrixLayout(rows, dim, offset + 21, part, codebook + 16, end if with_norms else 0)
    if part > 16 and matrix.size_bytes > MOST_BYTES:
        raise ValueError(f"{rows} rows of {dim} numbers have a code for {part} numbers each")
    return matrix, _quantizer_end(content, end + rows, 1)[0] if with_norms else end


def _quantizer_end(content: mmap.mmap, offset: int, dim: int) -> tuple[int, int, int]:
    """Return where the codebook at `offset` ends, the codes of a row, and the numbers of a code.

    It has 256 centroids for each of the parts that a row is cut into.
    """
    width, count, size, last = struct.unpack_from("<iiii", content, offset)
    _check_shape((width,), (dim,))
    if size <= 0 or count != -(-dim // size) or last != (dim % size or size):
        raise ValueError(f"a row of {dim} numbers is cut into {count} parts of {size}, last {last}")
    return offset + 16 + 4 * 256 * dim, count, size


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"a matrix is said to have {shape}, and must have {expected}")


# ----------------------------------------------------------------------
# The arrays of a checked file, in the form that kernels take. All are copies: the file is closed.


def _read(content: mmap.mmap, layout: ModelLayout) -> Model:
    header = layout.header
    stride = -(-header.dim // 4) * 4
    if stride % 16 > 8:
        stride += 16 - stride % 16
    rows, norms = _numbers(content, layout.input, stride)
    if layout.input.norms:
        rows *= norms[:, np.newaxis]
    bucket_rows = np.empty(0, np.uint64)
    if layout.pruned > 0:
        bucket_rows = _bucket_rows(content, layout, rows)
    num_entries = layout.num_words + len(layout.labels)
    has_buckets = layout.pruned != 0
    features = Features(
        _array(content, "u1", layout.words, layout.end_words - layout.words).copy(),
        np.empty((num_entries, 2), np.int64),
        np.zeros(1 << (2 * num_entries).bit_length(), np.uint64),
        layout.num_words,
        max(header.minn, 1),
        header.maxn if has_buckets else 0,
        max(header.word_ngrams, 1) if has_buckets else 1,
        header.bucket,
        bucket_rows,
        -1,
    )
    features = features._replace(end_row=int(index_words(features, ENTRY_TAIL)))
    return Model(
        layout.labels, features, _output(content, layout), rows.reshape(-1), header.dim, stride,
        layout.card,
    )  # fmt: skip


def _numbers(content: mmap.mmap, matrix: MatrixLayout, stride: int) -> tuple[Floats, Floats]:
    """Return a matrix, (rows, stride), not yet multiplied by the norms of its rows, (rows,)."""
    rows, dim = matrix.rows, matrix.dim
    numbers, norms = np.zeros((rows, stride), np.float32), np.ones(rows, np.float32)
    if not matrix.part:
        numbers[:, :dim] = _array(content, "<f4", matrix.offset, rows * dim).reshape(rows, dim)
        return numbers, norms
    num_blocks = -(-dim // matrix.part)
    codes = _array(content, "u1", matrix.offset, rows * num_blocks).reshape(rows, num_blocks)
    for block, first in enumerate(range(0, dim, matrix.part)):
        width = min(matrix.part, dim - first)
        centroids = _array(content, "<f4", matrix.codebook + 4 * 256 * first, 256 * width)
        numbers[:, first : first + width] = centroids.reshape(256, width)[codes[:, block]]
    if matrix.norms:
        norm_codes = _array(content, "u1", matrix.norms, rows)
        norms = _array(content, "<f4", matrix.norms + rows + 16, 256)[norm_codes]
    return numbers, norms


def _array(content: mmap.mmap, kind: str, offset: int, num: int) -> NDArray[Any]:
    size = num * np.dtype(kind).itemsize
    return np.frombuffer(content[offset : offset + size], kind)


def _bucket_rows(content: mmap.mmap, layout: ModelLayout, rows: Floats) -> NDArray[np.uint64]:
    """Return which buckets have a row, as `Features.bucket_rows`; sort the rows by bucket."""
    pairs = _array(content, "<i4", layout.end_words, 2 * layout.pruned).reshape(-1, 2)
    last = {int(bucket): int(row) for bucket, row in pairs if 0 <= bucket < layout.header.bucket}
    buckets = np.array(sorted(last), np.int64)
    order = np.array([last[bucket] for bucket in buckets.tolist()], np.int64)
    first = layout.num_words
    rows[first : first + len(order)] = rows[first + order]
    groups = -(-layout.header.bucket // 32)
    bits = np.zeros(groups, np.uint64)
    np.bitwise_or.at(bits, buckets >> 5, np.uint64(1) << (buckets & 31).astype(np.uint64))
    counts = np.bincount(buckets >> 5, minlength=groups)
    ranks = (np.cumsum(counts) - counts).astype(np.uint64)
    return bits | ranks << np.uint64(32)


def _output(content: mmap.mmap, layout: ModelLayout) -> Output:
    matrix, norms = _numbers(content, layout.output, layout.header.dim)
    left = right = np.full(1, -1, np.int32)
    if layout.header.loss == HIERARCHICAL:
        left, right = build_tree(np.array(layout.counts, np.int64))
    else:
        matrix = np.ascontiguousarray(matrix.T)
    tables = (matrix, norms.copy(), left, right, sigmoid_table())
    return Output(layout.header.loss, *tables, _calibration(content)[0])


def _calibration(content: mmap.mmap) -> tuple[Floats, int]:
    """Return the calibration (`Output.scales`) at the end of a file, and how many bytes it takes.

    Raises:
        ValueError: they are out of bounds.
    """
    offset = len(content) - CALIBRATED.size
    num, mark = CALIBRATED.unpack_from(content, offset)
    if mark != CALIBRATION_MARK:
        return np.ones(1, np.float32), 0
    if not 0 < num <= MOST_SCALES:
        raise ValueError(f"its calibration has {num} scales")
    scales = _array(content, "<f4", offset - 4 * num, num).copy()
    if not ((scales > 0) & (scales < 100)).all():
        raise ValueError("its calibration is out of bounds")
    return scales, CALIBRATED.size + 4 * num


def append_calibration(path: Path, scales: Floats) -> None:
    """Append a calibration to a model of the loss softmax; fastText itself does not read so far.

    Args:
        path: a file without one.
        scales: see Output.
    """
    with path.open("ab") as file:
        file.write(scales.astype("<f4").tobytes() + CALIBRATED.pack(len(scales), CALIBRATION_MARK))
