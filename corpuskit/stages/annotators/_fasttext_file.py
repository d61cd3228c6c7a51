"""Walk through a fastText model file, to find a broken one before the library reads it.

fastText does not look whether its reads succeed: cut off in the dictionary it reads for ever, cut
off in the weights it predicts from what memory held. Sizes are added up here, weights not touched.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

from corpuskit.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = 793712314
NEWEST = 12
SUPERVISED = 3
ENTRY_TAIL = 9
"""Bytes of a dictionary entry behind its word and NUL: count and type."""


def check_model_file(path: Path) -> None:
    """Make sure that a file is a whole, supervised fastText model.

    Raises:
        DataError: it is another kind of file, cut off, or holds word vectors only.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            supervised, end, size = _walk(content)
    except (ValueError, struct.error):  # nothing to map, no model, or a field beyond the end
        raise DataError(
            f"{path}: is not a whole fastText model. Give a .bin or .ftz file, or fetch it again."
        ) from None
    if not supervised:
        raise DataError(f"{path}: is a fastText model without labels. Give a supervised one.")
    if end != size:
        raise DataError(
            f"{path}: has {size:,} bytes, a fastText model with its header has {end:,}. "
            "Fetch it again."
        )


def _walk(content: mmap.mmap) -> tuple[bool, int, int]:
    """Return whether the model is supervised, where it must end, and where the file ends."""
    magic, version = struct.unpack_from("<ii", content, 0)
    if magic != MAGIC or version > NEWEST:
        raise ValueError("another kind of file")
    (kind,) = struct.unpack_from("<i", content, 36)
    words, _, _, _, pruned = struct.unpack_from("<iiiqq", content, 64)
    place = 92
    for _ in range(words):
        end_of_word = content.find(b"\0", place)
        if end_of_word < 0:
            raise ValueError("cut off in the dictionary")
        place = end_of_word + 1 + ENTRY_TAIL
    place += 8 * max(pruned, 0)
    quantized, place = content[place : place + 1] == b"\1", place + 1
    place = _matrix_end(content, place, quantized)
    output_quantized, place = content[place : place + 1] == b"\1", place + 1
    place = _matrix_end(content, place, quantized and output_quantized)
    return kind == SUPERVISED, place, len(content)


def _matrix_end(content: mmap.mmap, place: int, quantized: bool) -> int:
    """Return where the matrix that begins at `place` ends."""
    if not quantized:
        num_rows, num_columns = struct.unpack_from("<qq", content, place)
        return int(place + 16 + 4 * num_rows * num_columns)
    with_norms, rows, _, codes = struct.unpack_from("<?qqi", content, place)
    place = _quantizer_end(content, place + 21 + codes)
    return _quantizer_end(content, place + rows) if with_norms else place


def _quantizer_end(content: mmap.mmap, place: int) -> int:
    """Return where the codebook that begins at `place` ends: 256 centroids per dimension."""
    (dim,) = struct.unpack_from("<i", content, place)
    return int(place + 16 + 4 * 256 * dim)
