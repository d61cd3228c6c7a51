"""What a streaming stage gets, and what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.formats.batch import Utf8, large_strings, numbers, utf8
from corpuskit.kernels.arrays import Bytes, Float64s, Int64s

Fact = TypeVar("Fact")


class Example(NamedTuple):
    """A document and the rule that drops it (None keeps it): shown in docs, run in tests.

    Attributes:
        text: the document.
        rule: the expected rule.
        params: parameters that differ from the defaults.
        becomes: the text afterwards, for rewriters.
    """

    text: str
    rule: str | None = None
    params: Mapping[str, Any] = {}
    becomes: str | None = None


class View:
    """One batch of documents, as a stage sees it.

    Facts about the text (words, lines) are computed when first used, and shared by all stages of a
    fused phase until a stage rewrites the text.
    """

    def __init__(self, batch: pa.RecordBatch, facts: dict[Any, Any] | None = None) -> None:
        self.batch = batch
        self._facts: dict[Any, Any] = facts if facts is not None else {}
        self._text: Utf8 | None = None

    @property
    def num_docs(self) -> int:
        """Rows of the batch, N."""
        return len(self.batch)

    @property
    def text(self) -> Utf8:
        """The texts as buffers."""
        if self._text is None:
            self._text = utf8(self.batch.column("text"))
        return self._text

    @property
    def keys(self) -> Int64s:
        """Document keys, (N,)."""
        return numbers(self.batch.column("key")).astype(np.int64, copy=False)

    def column(self, name: str) -> pa.Array:
        """Return another column; annotation columns are called `<stage>.<field>`."""
        return self.batch.column(name)

    def fact(self, compute: Callable[[Int64s, Bytes], Fact]) -> Fact:
        """Return `compute(offsets, data)` of this text, computed once per text.

        A fact with a method `select(rows)` survives filtering; others are computed again.
        """
        if compute not in self._facts:
            self._facts[compute] = compute(self.text.offsets, self.text.data)
        return self._facts[compute]  # type: ignore[no-any-return]

    def select(self, rows: Int64s) -> View:
        """Return the view of some rows."""
        facts = {k: f.select(rows) for k, f in self._facts.items() if hasattr(f, "select")}
        return View(self.batch.take(pa.array(rows)), facts)

    def with_text(self, text: Utf8, facts: Mapping[Any, Any] | None = None) -> View:
        """Return the view with other texts, without the facts about the old ones.

        Args:
            text: of all rows.
            facts: known facts about the new texts: computation -> fact.
        """
        array = large_strings(text.offsets, text.data)
        index = self.batch.schema.get_field_index("text")
        return View(self.batch.set_column(index, "text", array), dict(facts or {}))

    def with_columns(self, columns: Mapping[str, pa.Array]) -> View:
        """Return the view with columns appended."""
        batch = self.batch
        for name, values in columns.items():
            batch = batch.append_column(name, values)
        return View(batch, self._facts)


@dataclasses.dataclass(frozen=True)
class Spans:
    """Byte ranges that a stage cut or replaced in the text it saw; sorted by row, then start.

    Attributes:
        rows, starts, ends: (n,) int64: document in the batch, bytes from its beginning.
        codes: (n,) uint8; k names `rules[k - 1]`.
        action: `cut` or `replace`.
    """

    rows: Int64s
    starts: Int64s
    ends: Int64s
    codes: Bytes
    action: Literal["cut", "replace"] = "cut"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a streaming stage; it fills the fields that concern it.

    Attributes:
        codes: (N,) uint8: 0 keeps, k drops by `rules[k - 1]`; the first failing rule wins.
        values: (N,) float64: the measured value of the failing rule, NaN if it has none; only used
            for dropped documents.
        reasons: N strings: names for the ledger instead of `rules[k - 1]`, if that is too coarse;
            null keeps it. The funnel counts by the part before a colon; details follow it.
        bounds: (N,) float64: the threshold of the failing rule if it differs between documents;
            otherwise `Stage.threshold` is used.
        text: the new texts of all rows, dropped ones included.
        facts: known facts about the new texts: computation -> fact, as in `View.fact`; each must
            equal the result of the computation.
        spans: what was cut or replaced in the text that the stage saw.
        columns: field -> values of all rows, as declared by `adds()`.
        measures: name -> (N,) float64 of every rule's value, if the stage stores them.
    """

    codes: Bytes | None = None
    values: Float64s | None = None
    reasons: pa.Array | None = None
    bounds: Float64s | None = None
    text: Utf8 | None = None
    facts: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    spans: Spans | None = None
    columns: Mapping[str, pa.Array] = dataclasses.field(default_factory=dict)
    measures: Mapping[str, Float64s] = dataclasses.field(default_factory=dict)

    def reasons_of(self, rows: Int64s, rules: Sequence[str]) -> pa.Array:
        """Return why dropped documents were dropped, as strings."""
        assert self.codes is not None, "only called when something was dropped"
        codes = self.codes[rows].astype(np.int64) - 1
        names = pa.array(rules, pa.string()).take(pa.array(codes))
        if self.reasons is None:
            return names
        return pc.coalesce(self.reasons.take(pa.array(rows)), names)
