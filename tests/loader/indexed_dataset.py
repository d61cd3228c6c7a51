"""Reads Megatron's `.bin` and `.idx` after their description, with no code of ours."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")


def read_dataset(path: Path) -> tuple[str, list[list[list[int]]]]:
    """Return the type of ids and the documents, each a list of sequences."""
    index, content = path.with_suffix(".idx").read_bytes(), path.read_bytes()
    magic, version, code, count, num_bounds = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\x00\x00", 1)
    name = NAMES[code - 1]
    assert len(index) == 34 + 12 * count + 8 * num_bounds
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    bounds = np.frombuffer(index, "<i8", num_bounds, 34 + 12 * count).tolist()
    assert (bounds[0], bounds[-1]) == (0, count)
    sequences = [
        np.frombuffer(content, name, length, pointer).tolist()
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]
    return name, [sequences[a:b] for a, b in itertools.pairwise(bounds)]
