"""What `decontaminate` and `decontaminate_ngrams` share: which benchmarks, and their columns."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator, model_validator

from corpuskit.paths import PathText
from corpuskit.stage import Stage
from corpuskit.stages.dedup.decontaminate.items import BenchmarkColumns, benchmark_files

if TYPE_CHECKING:
    from corpuskit.kernels.arrays import Bools, Int64s
MAX_NAMED = 20
"""Most items that are named for one document."""

SEPARATOR = "; "
"""Between the items that a ledger row names."""


def by_benchmark(names: Sequence[str], is_found: Bools) -> dict[str, tuple[int, int]]:
    """Return benchmark -> how many of its items are not found, and how many it has."""
    benchmarks = [name.partition("/")[0] for name in names]
    missed = Counter(itertools.compress(benchmarks, ~is_found))
    return {name: (missed[name], total) for name, total in sorted(Counter(benchmarks).items())}


def first_of_rows(rows: Int64s) -> Bools:
    """Return which entries are among the first MAX_NAMED of their row; rows ascend."""
    is_first: Bools = np.arange(len(rows)) - np.searchsorted(rows, rows) < MAX_NAMED
    return is_first


def lists_of_rows(rows: Int64s, values: pa.Array, num_rows: int) -> pa.ListArray:
    """Return a list of values for each row; rows ascend."""
    offsets = np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


class BenchmarkStage(Stage):
    """Base of stages that look for benchmark items.

    Source: none.
    """

    benchmarks: tuple[PathText, ...] | dict[str, PathText] = Field(min_length=1)
    """Files or glob patterns, JSON lines (`.gz`, `.zst`) or Parquet, one item a row; a benchmark is
    named after its file, or `name: path`."""
    question_column: str | None = None
    """Column of questions; null takes the first of question, query, prompt, problem, goal, ctx,
    input, text."""
    answer_column: str | None = None
    """Column of answers: texts, or numbers or letters of choices; null takes answer, answers,
    answerKey, target, canonical_solution, solution, gold, label or output, if there is one."""
    passage_column: str | None = None
    """Column of passages; null takes passage, context, article, story or support."""
    choices_column: str | None = None
    """Column of choices; null takes choices, options or endings."""
    id_column: str | None = None
    """Column of ids; null takes id, task_id, question_id, qid, uid, idx or ind, if there is one;
    `#` numbers the rows."""

    @field_validator("benchmarks", "reference", mode="before", check_fields=False)
    @classmethod
    def _one_or_many(cls, value: Any, given: ValidationInfo) -> Any:
        if isinstance(value, str):
            return (value,)
        named = isinstance(value, Mapping) and given.field_name == "benchmarks"
        paths = list(value.values()) if named else value
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
            names = ", or {name: path}" if given.field_name == "benchmarks" else ""
            raise ValueError(f"must be a path, a list of paths{names}")
        return value if named else tuple(value)  # strict validation refuses a list for a tuple

    @model_validator(mode="after")
    def _check_columns(self) -> BenchmarkStage:
        kinds: dict[str, str] = {}
        for kind in ("question", "answer", "passage"):
            name = getattr(self, f"{kind}_column")
            if name is not None and name in kinds:
                raise ValueError(f"{kind}_column: {name!r} is the {kinds[name]}_column, too.")
            kinds[name] = kind
        return self

    def columns(self) -> BenchmarkColumns:
        """Return the names of columns that are set."""
        return BenchmarkColumns(
            self.question_column, self.answer_column, self.passage_column, self.choices_column,
            self.id_column,
        )  # fmt: skip

    @abstractmethod
    def not_found(self) -> tuple[str, dict[str, tuple[int, int]]]:
        """Return why some items are never found; benchmark -> how many, and all different items.

        Raises:
            UsageError: a file cannot be read.
        """

    def warnings(self) -> tuple[str, ...]:
        why, counts = self.not_found()
        listed = [f"{name} {num:,} of {total:,}" for name, (num, total) in counts.items() if num]
        return (f"items {why} are never found: {', '.join(listed)}.",) if listed else ()

    def benchmark_files(self) -> tuple[tuple[str, str], ...]:
        """Return (benchmark, path) of all files.

        Raises:
            UsageError: as `items.benchmark_files`.
        """
        return tuple(benchmark_files(self.benchmarks))
