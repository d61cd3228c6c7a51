"""Where a stage applies: to which sources, and to which of their documents.

`sources:` decides which stages a source passes through, so units of other sources never meet the
stage; `where:` selects rows of a batch. Stages need to know neither: they see only documents to
which they apply.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.errors import UsageError, suggest
from corpuskit.formats.batch import large_strings, utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from corpuskit.formats.batch import Utf8
    from corpuskit.stage import Outcome, Stage, View

SOURCES, WHERE = "sources", "where"
"""Keys of a stage in a pipeline file, unless the stage has parameters of these names."""

NOT = "not"
BOUNDS = {
    "below": "less", "at_most": "less_equal", "above": "greater", "at_least": "greater_equal",
}  # fmt: skip
"""Name of a bound -> what Arrow calls the comparison."""

_FORMS = (
    "Write a value, a list of values, {not: ...}, or {below, at_most, above, at_least: number}."
)


@dataclasses.dataclass(frozen=True)
class Condition:
    """What must hold of one column; neither null nor NaN ever holds.

    Attributes:
        column: its name.
        given: as the file has it: a value, a list, or a mapping.
        values: the column has one of these (`is_not`: none of them); None = only bounds count.
        bounds: pairs of a name in BOUNDS and a number.
    """

    column: str
    given: Any
    values: tuple[Any, ...] | None = None
    is_not: bool = False
    bounds: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, column: str, value: Any) -> Condition:
        """Read a condition.

        Raises:
            UsageError: it is no condition.
        """
        key = f"{WHERE}.{column}"
        if isinstance(value, dict) and value and NOT not in value:
            for name, bound in value.items():
                if name not in BOUNDS:
                    hint = suggest(str(name), [*BOUNDS, NOT])
                    raise UsageError(f"{key}.{name}: there is no such condition. {hint}")
                is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
                if not is_number or not abs(bound) <= sys.float_info.max:
                    raise UsageError(f"{key}.{name}: must be a number, got {bound!r}.")
            low = max(value.get(name, -np.inf) for name in ("above", "at_least"))
            high = min(value.get(name, np.inf) for name in ("below", "at_most"))
            if low > high:
                raise UsageError(f"{key}: nothing is above {low} and below {high}.")
            return cls(column, value, bounds=tuple(value.items()))
        is_not = isinstance(value, dict) and len(value) == 1
        listed = value[NOT] if is_not else value
        values = tuple(listed) if isinstance(listed, list) else (listed,)
        if not values or not all(isinstance(value, str | int | float) for value in values):
            raise UsageError(f"{key}: cannot be {value!r}. {_FORMS}")
        return cls(column, value, values, is_not)

    def check(self, kind: pa.DataType, values: frozenset[str] | None) -> None:
        """Compare the condition with the type of the column, and with its values where known.

        Raises:
            UsageError: it can hold for no document.
        """
        key = f"{WHERE}.{self.column}"
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (is_text or is_number or pa.types.is_boolean(kind)):
            raise UsageError(f"{key}: a column of type {kind} cannot be compared.")
        if self.bounds and not is_number:
            raise UsageError(
                f"{key}: the column has type {kind}, so it has no bounds. List its values."
            )
        for value in self.values or ():
            fits = isinstance(value, bool) == pa.types.is_boolean(kind)
            try:
                fits = fits and pa.array([value], kind).null_count == 0
            except (pa.ArrowException, OverflowError):
                fits = False
            if not fits:
                hint = " Put it in quotes." if is_text else ""  # YAML reads `no` as false
                raise UsageError(f"{key}: the column has type {kind}, it is never {value!r}.{hint}")
            if values is not None and value not in values:
                raise UsageError(
                    f"{key}: no document has {value!r} there by then. {suggest(value, values)}"
                )

    def holds(self, column: pa.Array) -> NDArray[np.bool_]:
        """Return for each value whether the condition holds, (N,)."""
        import pyarrow.compute as pc  # `plan` does without

        is_true = pc.is_valid(column)
        if pa.types.is_floating(column.type):
            is_true = pc.and_(is_true, pc.invert(pc.is_nan(column).fill_null(True)))
        if self.values is not None:
            is_listed = pc.is_in(column, pa.array(self.values, column.type))
            is_true = pc.and_(is_true, pc.invert(is_listed) if self.is_not else is_listed)
        for name, bound in self.bounds:
            compared = getattr(pc, BOUNDS[name])(*_comparable(column, name, bound))
            is_true = pc.and_(is_true, compared.fill_null(False))
        mask: NDArray[np.bool_] = is_true.to_numpy(zero_copy_only=False)
        return mask

    def describe(self) -> str:
        if self.values is None:
            return " and ".join(f"{self.column} {b.replace('_', ' ')} {n}" for b, n in self.bounds)
        names = ", ".join(map(str, self.values))
        return f"{self.column} {'is not' if self.is_not else 'is'} {names}"


def _comparable(column: pa.Array, name: str, bound: float) -> tuple[pa.Array, float]:
    """Return what Arrow can compare: it refuses a float with integers that no float64 holds."""
    if pa.types.is_integer(column.type) and abs(bound) < 1 << 63:
        return column, math.ceil(bound) if name in ("below", "at_least") else math.floor(bound)
    return column.cast(pa.float64(), safe=False), float(bound)


@dataclasses.dataclass(frozen=True)
class Applies:
    """Where a stage applies.

    Attributes:
        sources: their names; None = all.
        where: conditions that must all hold of a document.
    """

    sources: tuple[str, ...] | None = None
    where: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> Applies:
        """Read the keys `sources` and `where` of a stage.

        Raises:
            UsageError: they are of another form; begins with the key that is wrong.
        """
        sources, columns = params.get(SOURCES), params.get(WHERE)
        if sources is not None and not (
            isinstance(sources, list) and sources and all(isinstance(s, str) for s in sources)
        ):
            raise UsageError(
                f"{SOURCES}: must be a list of names of sources, as in [web], got {sources!r}."
            )
        if columns is not None and not (isinstance(columns, dict) and columns):
            raise UsageError(f"{WHERE}: must map columns to conditions, got {columns!r}.")
        conditions = (Condition.parse(str(name), value) for name, value in (columns or {}).items())
        return cls(None if sources is None else tuple(sources), tuple(conditions))

    def to_json(self) -> dict[str, Any]:
        """Return what `parse` reads; empty if the stage applies to all documents."""
        sources = {} if self.sources is None else {SOURCES: list(self.sources)}
        conditions = {condition.column: condition.given for condition in self.where}
        return sources | ({WHERE: conditions} if conditions else {})

    @property
    def is_limited(self) -> bool:
        """Whether there may be documents to which the stage does not apply."""
        return self != EVERYWHERE

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(condition.column for condition in self.where)

    def to_source(self, name: str) -> bool:
        return self.sources is None or name in self.sources

    def to_rows(self, column: Callable[[str], pa.Array]) -> NDArray[np.bool_]:
        """Return to which documents of its sources the stage applies, (N,).

        Args:
            column: gives those in `columns`.
        """
        masks = [condition.holds(column(condition.column)) for condition in self.where]
        return functools.reduce(np.logical_and, masks)

    def select(self, view: View) -> tuple[View, NDArray[np.int64] | None]:
        """Return the documents that the stage sees, and their rows; None = all."""
        mask = self.to_rows(view.column) if self.where else None
        if mask is None or mask.all():
            return view, None
        rows = np.flatnonzero(mask)
        return view.select(rows), rows

    def describe(self) -> str:
        names = [] if self.sources is None else [f"sources {', '.join(self.sources)}"]
        return "; ".join([*names, *(condition.describe() for condition in self.where)])


EVERYWHERE = Applies()


def view_after(
    label: str, stage: Stage, view: View, outcome: Outcome | None, rows: NDArray[np.int64] | None
) -> View:
    """Return documents as a stage leaves them, those that it drops included.

    Documents that it did not see keep their text, and have null in the columns that it adds.

    Args:
        view: all documents.
        outcome: of those that the stage saw; None if it saw none.
        rows: which these are, as `Applies.select` returned them.
    """
    if outcome is None:
        return view.with_columns(
            {f"{label}.{k}": pa.nulls(view.num_docs, kind) for k, kind in stage.adds().items()}
        )
    columns = {f"{label}.{name}": values for name, values in outcome.columns.items()}
    if rows is None:
        changed = view if outcome.text is None else view.with_text(outcome.text, outcome.facts)
        return changed.with_columns(columns) if columns else changed
    outcome_rows = np.full(view.num_docs, -1, np.int64)
    outcome_rows[rows] = np.arange(len(rows))
    indices = pa.array(outcome_rows, mask=outcome_rows < 0)
    changed = (
        view if outcome.text is None else view.with_text(_merged(view, outcome.text, outcome_rows))
    )
    return changed.with_columns({name: values.take(indices) for name, values in columns.items()})


def _merged(view: View, text: Utf8, outcome_rows: NDArray[np.int64]) -> Utf8:
    """Return the texts of a view; rows with an outcome, `outcome_rows >= 0`, have the new text."""
    new = large_strings(*text)
    old = view.column("text")
    order = np.where(outcome_rows < 0, np.arange(len(outcome_rows)) + len(new), outcome_rows)
    return utf8(pa.concat_arrays([new, old]).take(pa.array(order)))
