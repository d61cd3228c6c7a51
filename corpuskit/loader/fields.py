"""The fields of a batch, and which stored columns each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from corpuskit.errors import UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGE_FIELDS = ("tokens", "labels", "position_ids")
SEGMENT_FIELDS = frozenset({"labels", "position_ids", "cu_seqlens", "max_seqlen"})
_COLUMNS = {
    "tokens": {"tokens", "labels"},
    "doc_starts": SEGMENT_FIELDS,
    "text_bytes": {"text_bytes"},
    "flags": {"labels"},
}
"""Of stored columns, the fields that are made of them."""

FIELDS = (
    "tokens",
    "labels",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
    "step",
    "source_ids",
    "row_ids",
    "run_rows",
    "text_bytes",
    "row_parts",
)


class BatchFields(NamedTuple):
    """What a batch holds.

    Attributes:
        delivered: the fields that were asked for, and `step`, in the order of `FIELDS`.
        made: those and the ones that they are computed from.
        large: of these, the ones with a number for each token.
        columns: the stored columns that have to be read for them.
    """

    delivered: tuple[str, ...]
    made: frozenset[str]
    large: tuple[str, ...]
    columns: tuple[str, ...]


def choose_fields(names: Iterable[str] | None, row_chunks: int) -> BatchFields:
    """Return the fields with these names; all for None.

    Args:
        names: some of `FIELDS`. `step` comes with every batch.
        row_chunks: rows that a stored row is handed out as.

    Raises:
        UsageError: there is no such field; suggests one.
    """
    if isinstance(names, str):
        raise UsageError(f"loader: fields must be several names, got {names!r}. Write [{names!r}].")
    if names is None:
        names = [name for name in FIELDS if name != "row_parts" or row_chunks > 1]
    made = frozenset(names) | {"step"}
    for name in sorted(made.difference(FIELDS)):
        raise UsageError(f"loader: a batch has no field {name!r}. {suggest(name, FIELDS)}")
    delivered = tuple(name for name in FIELDS if name in made)
    if row_chunks > 1 and "text_bytes" in made:
        made |= {"labels"}  # the bytes of a row are divided among its chunks by their labels
    columns = tuple(column for column, fields in _COLUMNS.items() if made & fields)
    large = tuple(name for name in LARGE_FIELDS if name in made)
    return BatchFields(delivered, made, large, columns)
