"""Stored rows to what a model takes: inputs, labels, positions and segment boundaries.

Letters: b rows of a batch, L = seq_len.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

IGNORED = -100  # the label that torch's cross entropy leaves out by default


def assemble(
    stored: NDArray[np.unsignedinteger],
    starts: Sequence[NDArray[np.int32]],
    pads: NDArray[np.int32],
) -> dict[str, NDArray[np.int32] | int]:
    """Return `tokens`, `labels`, `position_ids`, `cu_seqlens` and `max_seqlen` of a batch.

    A label is the next stored token, but -100 where that belongs to another segment or is padding.
    A padded tail is a segment of its own.

    Args:
        stored: (b, L + 1) tokens.
        starts: first token of each segment of each row, ascending from 0.
        pads: (b,) first token of the padded tail; L + 1 without one.
    """
    num_rows, length = stored.shape[0], stored.shape[1] - 1
    tokens = np.empty((num_rows, length), np.int32)
    tokens[:] = stored[:, :-1]
    labels = np.empty((num_rows, length), np.int32)
    labels[:] = stored[:, 1:]
    within = np.concatenate(starts)
    counts = np.fromiter(map(len, starts), np.intp, num_rows)
    begins = within + np.repeat(np.arange(0, num_rows * length, length, dtype=np.int32), counts)
    # A segment that starts at token L is only ever a label, and none: it begins no input.
    bounds = np.append(begins[within < length], np.int32(num_rows * length))
    labels.reshape(-1)[begins[within > 0] - 1] = IGNORED
    for row in np.flatnonzero(pads < length).tolist():
        labels[row, pads[row] :] = IGNORED
    lengths = np.diff(bounds)
    positions = np.repeat(bounds[:-1], lengths)
    np.subtract(np.arange(num_rows * length, dtype=np.int32), positions, out=positions)
    return {
        "tokens": tokens,
        "labels": labels,
        "position_ids": positions.reshape(num_rows, length),
        "cu_seqlens": bounds,
        "max_seqlen": int(lengths.max()),
    }
