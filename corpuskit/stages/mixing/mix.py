"""The order in which a run takes rows from its sources."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, model_validator

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.loader.index import plan_hash
from corpuskit.loader.order import apportion
from corpuskit.stage import Cost, GlobalStage, Pass, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.manifest import Part
    from corpuskit.stage import PassContext, PassPlan, Volume

Weights = dict[str, Annotated[int, Field(ge=1)]]
Epochs = Annotated[float, Field(gt=0, allow_inf_nan=False)]

INDEX = pa.schema(
    [
        ("source", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("first_row", pa.int64()),
        ("size_bytes", pa.int64()),
        ("digest", pa.string()),
    ]
)
LOOKUPS = pa.schema(
    [
        ("role", pa.string()),
        ("path", pa.string()),
        ("first", pa.uint64()),
        ("last", pa.uint64()),
        ("source", pa.string()),
    ]
)
LOOKUP_RUNS = {
    "ids": "pack/run:ids",
    "id_hashes": "pack/run:id_hashes",
    "doc_rows": "shuffle.gather/run:doc_rows",
}


class StageWeights(BaseModel):
    """A stretch of the run with its own weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """What reports call it."""
    weights: Weights
    """Source -> integer share of the rows; a source left out gives none."""
    rows: int | None = Field(None, ge=1)
    """Packed rows; all stages have `rows`, or all have `ratio`."""
    ratio: int | None = Field(None, ge=1)
    """Integer share of all rows of the run."""

    @model_validator(mode="after")
    def _has_one_size(self) -> StageWeights:
        if (self.rows is None) == (self.ratio is None):
            raise ValueError(f"stage {self.name!r} must have rows or ratio, and not both")
        return self


class Mix(GlobalStage):
    """Fix how often and in which order the run takes rows from each source.

    Writes the mix plan, all that the loader needs: at any row of the run each source has given its
    share to within a few rows, and none gives more than `max_epochs` times what it has. Without
    `weights` each source is taken in proportion to its rows, which is everything once.

    Source: Sainte-Lague apportionment (Balinski and Young 1982, Fair Representation, Appendix A);
    epoch caps as in Chung et al. 2023, UniMax.
    """

    reads = "tokens"

    weights: Weights | None = None
    """Source -> integer share of the rows; null takes the number of rows of each."""
    stages: tuple[StageWeights, ...] | None = None
    """Stretches of the run with weights of their own, in order; instead of `weights` and `rows`."""
    max_epochs: Epochs | dict[str, Epochs] = 1.0
    """How often a source's rows may be taken; a number, or source -> number (1 where left out)."""
    rows: int | None = Field(None, ge=1)
    """Packed rows of the run; null takes as many as `max_epochs` allows."""
    block_rows: int = Field(1024, ge=1, le=1 << 24)
    """Rows within which the mixture is exact, and permuted."""
    seed: int | None = Field(None, ge=0)
    """Of the order; null takes the seed of the run."""

    @model_validator(mode="after")
    def _has_one_schedule(self) -> Mix:
        stages = self.stages
        if stages is None:
            return self
        if not stages:
            raise ValueError("stages must not be empty")
        if self.weights is not None:
            raise ValueError("weights must be null where stages have their own")
        if len({stage.name for stage in stages}) < len(stages):
            raise ValueError("names of stages must differ")
        if len({stage.rows is None for stage in stages}) > 1:
            raise ValueError("all stages must have rows, or all ratio")
        if self.rows is not None and stages[0].rows is not None:
            raise ValueError("rows must be null where stages have their own")
        return self

    def passes(self) -> tuple[Pass, ...]:
        return (Pass("plan", self._plan, _one_unit, at_end=True, owns=("mix/",)),)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(disk_bytes=300 * volume.cells, units=1)

    def _plan(self, context: PassContext) -> None:
        """Write the four files of the mix plan.

        Raises:
            UsageError: weights and sources don't match, or the run is longer than the caps allow.
            DataError: a source with a weight has no rows.
        """
        given = context.given
        order = list(given["sources"])
        parts = sorted(
            context.parts("shuffle.gather/tokens"),
            key=lambda part: (order.index(part.source), part.first),
        )
        sources = self._sources(order, parts, context)
        stages = self._schedule(sources)
        index = _parquet(INDEX, [_index_row(part) for part in parts])
        context.write_file("mix/index.parquet", index)
        lookups = [
            {"role": role, **{name: getattr(part, name) for name in LOOKUPS.names[1:]}}
            for role, run in LOOKUP_RUNS.items()
            for part in context.parts(run)
        ]
        context.write_file("mix/lookups.parquet", _parquet(LOOKUPS, lookups))
        context.write_file("mix/files.json", _json({"format": 1, "files": given["files"]}))
        tokenizer = given["tokenizer"]
        plan = {
            "format": 1,
            "name": given["name"],
            "seed": context.seed if self.seed is None else self.seed,
            "seq_len": given["packing"]["seq_len"],
            "dtype": tokenizer["dtype"],
            "block_rows": self.block_rows,
            "tokenizer": {name: tokenizer[name] for name in ("hash", "vocab_size", "eos", "pad")},
            "sources": sources,
            "stages": stages,
            "skip": [],
            "index": "mix/index.parquet",
            "lookups": "mix/lookups.parquet",
            "files": "mix/files.json",
        }
        digest = hashlib.blake2b(index, digest_size=16).hexdigest()
        context.write_file("mix/plan.json", _json({**plan, "plan_hash": plan_hash(plan, digest)}))

    def _sources(
        self, order: Sequence[str], parts: Sequence[Part], context: PassContext
    ) -> list[dict[str, Any]]:
        """Return the entries of the sources that have rows."""
        rows = dict.fromkeys(order, 0)
        for part in parts:
            rows[part.source] += part.rows
        self.check_sources(tuple(order))
        self._check_rows(rows)
        counters = context.counters("pack")
        shuffled = context.given["shuffle"]["order"] == "global"
        return [
            {
                "name": name,
                "rows": rows[name],
                **{key: counters[f"{key}/{name}"] for key in ("tokens", "documents", "text_bytes")},
                "max_epochs": self._max_epochs(name),
                "shuffled": shuffled,
            }
            for name in order
            if rows[name]
        ]

    def _max_epochs(self, source: str) -> float:
        caps = self.max_epochs
        return caps.get(source, 1.0) if isinstance(caps, dict) else caps

    def check_sources(self, names: tuple[str, ...]) -> None:
        weighed = [stage.weights for stage in self.stages or ()]
        if self.weights is not None:
            weighed = [self.weights]
        caps = list(self.max_epochs) if isinstance(self.max_epochs, dict) else []
        named = [("max_epochs", name) for name in caps]
        named += [("weights", name) for weights in weighed for name in weights]
        for parameter, name in named:
            if name not in names:
                raise UsageError(
                    f"mix.{parameter}: there is no source {name!r}. {suggest(name, names)}"
                )
        for name in names if weighed else ():
            if not any(name in weights for weights in weighed):
                raise UsageError(
                    f"mix.weights: the source {name!r} has no weight. "
                    "Give it one, or take it out of sources."
                )

    def _check_rows(self, rows: Mapping[str, int]) -> None:
        """Check that every source with a weight has rows."""
        if self.weights is None and self.stages is None:
            return
        for name, count in rows.items():
            if not count:
                raise DataError(
                    f"mix: the source {name!r} has a weight, but none of its documents is left. "
                    "Take it out of sources, or see the funnel for what dropped them."
                )

    def _schedule(self, sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the stages with their rows.

        Raises:
            UsageError: they take more of a source than its cap allows.
            DataError: there is no row at all.
        """
        if not sources:
            raise DataError("mix: no source has any rows. See the report for what dropped them.")
        stages = self.stages
        if stages is None:
            weights = self.weights or {source["name"]: source["rows"] for source in sources}
            stages = (StageWeights(name="main", weights=weights, ratio=1),)
        shares = [[stage.weights.get(source["name"], 0) for source in sources] for stage in stages]
        caps = [int(Fraction(str(source["max_epochs"])) * source["rows"]) for source in sources]
        ratios = [stage.ratio or 0 for stage in stages]
        if stages[0].rows is not None:
            sizes = [stage.rows or 0 for stage in stages]
        elif self.rows is not None:
            sizes = apportion(self.rows, ratios).tolist()
        else:
            sizes = apportion(_longest(ratios, shares, caps), ratios).tolist()
        self._check_caps(sources, _taken(sizes, shares), caps)
        return [
            {"name": stage.name, "rows": size, "weights": stage.weights}
            for stage, size in zip(stages, sizes, strict=True)
        ]

    def _check_caps(
        self, sources: Sequence[Mapping[str, Any]], taken: Sequence[int], caps: Sequence[int]
    ) -> None:
        for source, count, cap in zip(sources, taken, caps, strict=True):
            if count > cap:
                raise UsageError(
                    f"mix: the run takes {count} rows of {source['name']!r}, max_epochs "
                    f"{source['max_epochs']} allows {cap}. Lower its weight or the rows of the "
                    f"run, or raise max_epochs."
                )
        if not sum(taken):
            raise DataError("mix: max_epochs leaves no row to take. Raise it.")


@dataclasses.dataclass(frozen=True)
class MixtureRow:
    """What one stage of the run takes from one source."""

    stage: str
    source: str
    rows: int
    tokens: int
    epochs: float


def mixture_table(plan: Mapping[str, Any]) -> list[MixtureRow]:
    """Return what each stage of a mix plan takes from each source.

    Tokens are rows times the mean tokens of the source's rows; epochs are of this stage alone.
    """
    sources = plan["sources"]
    table = []
    for stage in plan["stages"]:
        weights = [stage["weights"].get(source["name"], 0) for source in sources]
        for source, rows in zip(sources, apportion(stage["rows"], weights).tolist(), strict=True):
            tokens = round(Fraction(source["tokens"] * rows, source["rows"]))
            epochs = rows / source["rows"]
            table.append(MixtureRow(stage["name"], source["name"], rows, tokens, epochs))
    return table


def _one_unit(plan: PassPlan) -> list[Unit]:
    del plan
    return [Unit(0)]


def _taken(sizes: Sequence[int], shares: Sequence[Sequence[int]]) -> list[int]:
    """Return how many rows stages of these sizes take of each source."""
    counts = [apportion(size, share) for size, share in zip(sizes, shares, strict=True)]
    return sum(counts[1:], counts[0]).tolist()  # type: ignore[no-any-return]


def _longest(ratios: Sequence[int], shares: Sequence[Sequence[int]], caps: Sequence[int]) -> int:
    """Return the most rows that a run can have with no source over its cap.

    Counts are monotone in the length of the run, so bisection is exact.
    """

    def fits(rows: int) -> bool:
        taken = _taken(apportion(rows, ratios).tolist(), shares)
        return all(count <= cap for count, cap in zip(taken, caps, strict=True))

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _index_row(part: Part) -> dict[str, Any]:
    names = {"first_row": "first"}
    return {name: getattr(part, names.get(name, name)) for name in INDEX.names}


def _parquet(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"
