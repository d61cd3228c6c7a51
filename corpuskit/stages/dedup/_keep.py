"""Which document of a cluster stays, and among which documents duplicates are searched for.

`minhash_dedup`, `exact_dedup`, `line_dedup`, `overlap_dedup` and `substring_dedup` share these
parameters: `keep`, `prefer` and `scope`.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import re
from typing import Literal

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import utf8
from corpuskit.kernels.arrays import Float64s, Uint64s
from corpuskit.kernels.hashing import hash_texts
from corpuskit.stage import Known, Parameters, View
from corpuskit.stages._numbers import check_strings, to_numbers, to_strings


class Best(Parameters):
    """The document with the highest value of a column, as in `{best: quality.score}`."""

    best: str
    """Column of numbers; higher is better, no number is worst."""


Keep = Literal["first", "longest", "newest", "none"] | Best

_MONTH = re.compile(r"\d{4}-\d\d")

MAX_SOURCES = 250
"""Most names in `prefer`: the rank of a source is one byte of a priority."""


def keep_columns(keep: Keep, prefer: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that `priorities` reads."""
    columns = {"longest": ("text",), "newest": ("origin",)}
    best = (keep.best,) if isinstance(keep, Best) else columns.get(keep, ())
    return (*best, *(("source",) if prefer else ()))


def priorities(view: View, keep: Keep, prefer: tuple[str, ...]) -> Uint64s:
    """Return the priorities of documents, (N,): the smallest of a cluster is kept.

    The first byte is the rank of the source, the rest the merit as a float of 44 bits of precision.
    The reading order breaks ties.
    """
    merits = _merits(view, keep)
    bits = np.where(np.isnan(merits), -np.inf, merits + 0.0).view(np.int64)  # -0.0 becomes 0.0
    # Ascending as signed integers, where floats are: of negative ones the magnitude is reversed.
    ascending = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    descending = ~(ascending.view(np.uint64) ^ np.uint64(1 << 63))
    return (source_ranks(view, prefer) << np.uint64(56)) | (descending >> np.uint64(8))


def _merits(view: View, keep: Keep) -> Float64s:
    if isinstance(keep, Best):
        return to_numbers(view.column(keep.best), keep.best)
    if keep == "longest":
        return view.text.sizes().astype(np.float64)
    if keep == "newest":
        return dates_as_seconds(view.column("origin").field("date"))
    return np.zeros(view.num_docs)


def source_ranks(view: View, prefer: tuple[str, ...]) -> Uint64s:
    """Return the index of each document's source in `prefer`, (N,); sources not in it come last."""
    if not prefer:
        return np.zeros(view.num_docs, np.uint64)
    order = {name: index for index, name in enumerate(prefer)}
    sources = view.column("source").to_pylist()
    return np.array([order.get(name, len(prefer)) for name in sources], np.uint64)


def dates_as_seconds(dates: pa.Array) -> Float64s:
    """Return dates as seconds since 1970, (N,); NaN if there is none.

    ISO 8601 (also with slashes, or a year and month), or as in HTTP and e-mail headers; without an
    offset they are taken as UTC.
    """
    return np.array([_seconds(date) for date in dates.to_pylist()], np.float64)


def _seconds(date: str | None) -> float:
    text = (date or "").strip().replace("/", "-")
    try:
        if _MONTH.fullmatch(text):
            text += "-01"
        date_time = dt.datetime.fromisoformat(text)
    except ValueError:
        try:
            date_time = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return float("nan")
    return (date_time if date_time.tzinfo else date_time.replace(tzinfo=dt.UTC)).timestamp()


# ---------------------------------------------------------------- scope


GLOBAL = "global"


def scope_columns(scope: str) -> tuple[str, ...]:
    """Return the columns to read for a scope: `global`, or the name of a column of strings."""
    return () if scope == GLOBAL else (scope,)


def check_scope(known: Known, scope: str, prefer: tuple[str, ...]) -> None:
    """Check that the column of a scope holds strings, and that preferred sources exist.

    Raises:
        UsageError: one does not.
    """
    if scope != GLOBAL:
        check_strings(known, "scope", scope)
    for name in prefer:
        known.check_source("prefer", name)


def scope_hashes(view: View, scope: str) -> Uint64s:
    """Return a number for the scope of each document, (N,); 0 for all in the global one.

    Documents without a value share a scope. Numbers differ where scopes do (64-bit hashes), so
    what is XORed with them before it is compared is equal only within a scope.

    Raises:
        DataError: the column holds no strings.
    """
    if scope == GLOBAL:
        return np.zeros(view.num_docs, np.uint64)
    names = to_strings(view.column(scope), scope).fill_null("").cast(pa.large_string())
    hashes, _ = hash_texts(*utf8(names))
    hashes[hashes == 0] = 1  # 0 is the global scope
    return hashes
