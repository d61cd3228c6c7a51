"""Which document of a cluster stays."""

from __future__ import annotations

import datetime as dt
import email.utils
import re
from typing import TYPE_CHECKING, Literal

import numpy as np

from corpuskit.stage import Parameters
from corpuskit.stages._numbers import to_numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from corpuskit.stage import View


class Best(Parameters):
    """The document with the highest value of a column, as in `{best: quality.score}`."""

    best: str
    """Column of numbers; higher is better, no number is worst."""


Keep = Literal["first", "longest", "newest", "none"] | Best

_MONTH = re.compile(r"\d{4}-\d\d")

MAX_SOURCES = 250
"""Most names in `prefer`: a preference is one byte."""


def keep_columns(keep: Keep, prefer: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that `places` reads."""
    columns = {"longest": ("text",), "newest": ("origin",)}
    wanted = (keep.best,) if isinstance(keep, Best) else columns.get(keep, ())
    return (*wanted, *(("source",) if prefer else ()))


def has_places(keep: Keep, prefer: tuple[str, ...]) -> bool:
    """Return whether anything but the reading order decides."""
    return bool(prefer) or keep not in ("first", "none")


def places(view: View, keep: Keep, prefer: tuple[str, ...]) -> NDArray[np.uint64]:
    """Return where documents stand in line to be kept, (N,): the smaller, the sooner.

    The first byte is the place of the source in `prefer` (others stand behind all of them), the
    rest the merit as a float of 44 bits of precision. Ties are for the reading order to break.
    """
    merits = _merits(view, keep)
    bits = np.where(np.isnan(merits), -np.inf, merits + 0.0).view(np.int64)  # -0.0 becomes 0.0
    # Ascending as signed integers, where floats are: of negative ones the magnitude is reversed.
    ordered = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    falling = ~(ordered.view(np.uint64) ^ np.uint64(1 << 63))
    return (_favours(view, prefer) << np.uint64(56)) | (falling >> np.uint64(8))


def _merits(view: View, keep: Keep) -> NDArray[np.float64]:
    if isinstance(keep, Best):
        return to_numbers(view.column(keep.best), keep.best)
    if keep == "longest":
        return view.text.sizes().astype(np.float64)
    if keep == "newest":
        return dates_as_seconds(view.column("origin").field("date"))
    return np.zeros(view.num_docs)


def _favours(view: View, prefer: tuple[str, ...]) -> NDArray[np.uint64]:
    if not prefer:
        return np.zeros(view.num_docs, np.uint64)
    order = {name: place for place, name in enumerate(prefer)}
    sources = view.column("source").to_pylist()
    return np.array([order.get(name, len(prefer)) for name in sources], np.uint64)


def dates_as_seconds(dates: pa.Array) -> NDArray[np.float64]:
    """Return dates as seconds since 1970, (N,); NaN where there is none.

    ISO 8601 (also with slashes, or a year and month), or as in HTTP and e-mail headers; without an
    offset they are taken as UTC.
    """
    return np.array([_seconds(date) for date in dates.to_pylist()], np.float64)


def _seconds(date: str | None) -> float:
    text = (date or "").strip().replace("/", "-")
    try:
        if _MONTH.fullmatch(text):
            text += "-01"
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        try:
            found = email.utils.parsedate_to_datetime(text)
        except ValueError:
            return float("nan")
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
