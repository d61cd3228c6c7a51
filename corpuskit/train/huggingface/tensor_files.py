"""Files of tensors in the safetensors format, read slice by slice and written tensor by tensor.

A file is the length of its header (8 bytes, little endian), the header (JSON: of each tensor its
type, shape and place), and the tensors' bytes. Its own library maps whole files into memory, where
a file that is cut off while it is read ends the process, and it writes from a dictionary that holds
a whole file; here a read touches the bytes of its slice only, and a write holds one tensor.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from corpuskit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # as the format's own library bounds it


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies."""

    path: Path
    name: str
    dtype: str  # as the format calls it: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int  # byte of the file

    @property
    def place(self) -> str:
        """What messages call it."""
        return f"{self.path}: tensor {self.name!r}"


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return what a file holds; the file must be as long as its header says.

    Raises:
        DataError: it can't be read, is cut off, or is no such file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = file.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}. Check the folder.") from None
    try:
        fields = json.loads(head)
        fields.pop("__metadata__", None)
        begin = 8 + length
        found = {name: _stored(path, name, entry, begin) for name, entry in fields.items()}
        end = begin + max((entry["data_offsets"][1] for entry in fields.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise DataError(
            f"{path}: no header of a safetensors file in its {size:,} bytes. Fetch it again."
        ) from None
    if size != end:
        raise DataError(
            f"{path}: is {size:,} bytes long, and its header tells of {end:,}. Fetch it again."
        )
    return found


def _stored(path: Path, name: str, entry: Mapping[str, Any], begin: int) -> StoredTensor:
    first, end = (int(offset) for offset in entry["data_offsets"])
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if dtype in DTYPES and end - first != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError("bytes and shape don't agree")
    if not 0 <= first <= end or min(shape, default=0) < 0:
        raise ValueError("no place")
    return StoredTensor(path, name, dtype, shape, begin + first)


def read_slice(stored: StoredTensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Read a box of a tensor of one or two dimensions, in the type of the file.

    Whole rows are one read, parts of rows one read each.

    Args:
        stored: of a type of DTYPES.
        offsets: where the box begins, in each dimension.
        sizes: of the box.

    Raises:
        DataError: the file ends before the box does.
    """
    dtype = DTYPES[stored.dtype]
    found = torch.empty(tuple(sizes), dtype=dtype)
    if not found.numel():
        return found
    rows = found.view(-1, found.shape[-1]) if found.ndim > 1 else found.view(1, -1)
    width, columns = stored.shape[-1], rows.shape[1]
    begin = stored.begin + dtype.itemsize * offsets[-1]
    if found.ndim > 1:
        begin += dtype.itemsize * width * offsets[0]
    if columns == width:
        rows = rows.view(1, -1)
    step = dtype.itemsize * rows.shape[1]
    content = found.view(-1).view(torch.uint8).numpy().data
    handle = os.open(stored.path, os.O_RDONLY)
    try:
        for number in range(len(rows)):
            part = content[number * step : (number + 1) * step]
            _fill(handle, part, begin + number * width * dtype.itemsize, stored)
    finally:
        os.close(handle)
    return found


def _fill(handle: int, target: memoryview, begin: int, stored: StoredTensor) -> None:
    """Read until `target` is full; the system reads at most 2 GB at a time."""
    done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done:]], begin + done)
        if not count:
            raise DataError(f"{stored.place}: the file ends in it. Fetch it again.")
        done += count


def write_tensors(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    tensors: Iterable[torch.Tensor],
) -> None:
    """Write a file, durably.

    Args:
        path: must not exist.
        shapes: of the tensors, by name.
        dtype: of all of them, in the file.
        tensors: in the order of `shapes`; taken one at a time.
    """
    ends = list(
        itertools.accumulate(
            (math.prod(shape) * dtype.itemsize for shape in shapes.values()), initial=0
        )
    )
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, shape), place in zip(shapes.items(), itertools.pairwise(ends), strict=True):
        fields[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": list(place)}
    head = json.dumps(fields, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # so that the tensors are aligned
    with path.open("xb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            assert tensor.shape == torch.Size(shape), name
            flat = tensor.to(dtype).contiguous().view(-1)
            file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
