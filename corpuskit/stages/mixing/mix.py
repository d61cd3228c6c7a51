"""The order in which a run takes rows from its sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.loader.files import digest_bytes
from corpuskit.loader.index import PLAN_FORMAT, plan_hash
from corpuskit.stage import Cost, GlobalStage, Known, Pass, PassContext, Volume
from corpuskit.stages._routing import one_unit
from corpuskit.stages.mixing._schedule import (
    Budget,
    Epochs,
    Schedule,
    StageRequest,
    StageWeights,
    Supply,
    Temperature,
    Weights,
    check_weighing,
    make_schedule,
    num_tokens,
    problem_of,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.formats.manifest import Part

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
COUNTED = ("rows", "tokens", "documents", "text_bytes")
"""What the mix plan holds of a source, as `pack` counted it."""
LOOKUP_RUNS = {
    "ids": "pack/run:ids",
    "id_hashes": "pack/run:id_hashes",
    "doc_rows": "shuffle.gather/run:doc_rows",
}


class Mix(GlobalStage):
    """Set how often and in which order the run takes rows from each source.

    Writes the mix plan, from which the loader computes all rows: at any row of a stage of the run
    each source has given its share to within a few rows, and none gives more than `max_epochs`
    times its rows. Without parameters everything is taken once. `corpuskit plan` prints what a
    schedule takes before anything runs; docs/mixing.md explains weights, epochs and budgets.

    Source: Sainte-Lague apportionment (Balinski and Young 1982, Fair Representation, Appendix A);
    temperature as in Xue et al. 2021, mT5; `unimax` and epoch caps as in Chung et al. 2023, UniMax.
    """

    reads = "tokens"

    weights: Weights = None
    """Source -> integer share of the rows; `proportional` (also null) takes the rows of each,
    `unimax` divides the budget evenly; a source that has too little gives all that `max_epochs`
    allows."""
    temperature: Temperature | None = None
    """Computes weights as rows ** (1 / temperature): 1 is proportional, large is even."""
    stages: tuple[StageWeights, ...] | None = None
    """Stages of the run with weights of their own, in order; instead of `weights`."""
    max_epochs: Epochs = 1.0
    """How often a source's rows may be taken; a number, or source -> number (1 where left out)."""
    rows: int | None = Field(None, ge=1)
    """Packed rows of the run; null takes as many as `max_epochs` allows."""
    tokens: Budget = None
    """Instead of `rows`: tokens to train on, an integer or as in `10B`; a row has `seq_len`, and
    what is left of a row is not taken."""
    seed: int | None = Field(None, ge=0)
    """Of the order; null takes the seed of the run."""

    @model_validator(mode="after")
    def _has_one_schedule(self) -> Mix:
        if self.rows is not None and self.tokens is not None:
            raise ValueError("rows and tokens both give the length of the run. Remove one of them.")
        check_weighing(self.weights, self.temperature)
        has_length = self.rows is not None or self.tokens is not None
        if self.stages is not None:
            self._check_stages(self.stages, has_length)
        elif self.weights == "unimax" and not has_length:
            raise ValueError("unimax divides a budget among sources. Set tokens or rows.")
        return self

    def _check_stages(self, stages: Sequence[StageWeights], has_length: bool) -> None:
        if not stages:
            raise ValueError("stages must not be empty")
        if self.weights is not None or self.temperature is not None:
            raise ValueError(
                "weights and temperature are those of stages where there are any. Move them there."
            )
        if len({stage.name for stage in stages}) < len(stages):
            raise ValueError("names of stages must differ")
        if len({stage.ratio is None for stage in stages}) > 1:
            raise ValueError("all stages must have ratio, or all rows or tokens")
        if has_length and stages[0].ratio is None:
            raise ValueError("rows and tokens must be null where stages have their own")
        if not has_length and stages[0].ratio is not None:
            for stage in stages:
                if stage.weights == "unimax":
                    raise ValueError(
                        f"unimax divides a budget, but stage {stage.name!r} has a ratio of a run "
                        "of open length. Set tokens or rows of the run."
                    )

    def passes(self) -> tuple[Pass, ...]:
        return (Pass("plan", self._plan, one_unit, at_end=True, owns=("mix/",)),)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(disk_bytes=300 * volume.cells, units=1)

    def _plan(self, context: PassContext) -> None:
        """Write the four files of the mix plan.

        Raises:
            UsageError: weights and sources don't match, or the run is longer than the caps allow.
            DataError: a source with a weight has no rows.
        """
        provided = context.given
        order = list(provided["sources"])
        parts = sorted(
            context.parts("shuffle.gather/tokens"),
            key=lambda part: (order.index(part.source), part.first),
        )
        sources = self._sources(order, parts, context)
        seq_len = provided["packing"]["seq_len"]
        schedule = self.schedule(sources, seq_len)
        if problem := problem_of(schedule, seq_len):
            raise UsageError(problem)
        index = _parquet(INDEX, [_index_row(part) for part in parts])
        context.write_file("mix/index.parquet", index)
        lookups = [
            {"role": role, **{name: getattr(part, name) for name in LOOKUPS.names[1:]}}
            for role, run in LOOKUP_RUNS.items()
            for part in context.parts(run)
        ]
        contents = {
            "lookups": _parquet(LOOKUPS, lookups),
            "files": _json({"format": 1, "files": provided["files"]}),
        }
        context.write_file("mix/lookups.parquet", contents["lookups"])
        context.write_file("mix/files.json", contents["files"])
        tokenizer = provided["tokenizer"]
        plan = {
            "format": PLAN_FORMAT,
            "name": provided["name"],
            "seed": context.seed if self.seed is None else self.seed,
            "seq_len": seq_len,
            "dtype": tokenizer["dtype"],
            "tokenizer": {name: tokenizer[name] for name in ("hash", "vocab_size", "eos", "pad")},
            "sources": sources,
            "stages": stage_entries(schedule),
            "skip": [],
            "index": "mix/index.parquet",
            "lookups": "mix/lookups.parquet",
            "files": "mix/files.json",
            "digests": {name: digest_bytes(content) for name, content in contents.items()},
        }
        digest = plan_hash(plan, digest_bytes(index))
        context.write_file("mix/plan.json", _json({**plan, "plan_hash": digest}))

    def _sources(
        self, order: Sequence[str], parts: Sequence[Part], context: PassContext
    ) -> list[dict[str, Any]]:
        """Return the entries of the sources that have rows."""
        rows = dict.fromkeys(order, 0)
        for part in parts:
            rows[part.source] += part.rows
        counters = context.counters("pack")
        for name in order:
            packed = counters.get(f"rows/{name}", 0)
            if packed != rows[name]:
                raise DataError(
                    f"mix: source {name!r} has {rows[name]} rows, but {packed} were packed. Run "
                    "again."
                )
        shuffled = context.given["shuffle"]["order"] != "as_read"
        entries = self.source_entries(order, counters)
        return [{**entry, "shuffled": shuffled} for entry in entries]

    def source_entries(
        self, order: Sequence[str], counters: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        """Return the entries of the plan for the sources that have rows, as `pack` counts them.

        Raises:
            UsageError: weights and sources don't match.
            DataError: a source with a weight has no rows.
        """
        self.check_sources(tuple(order))
        entries = []
        for name in order:
            counts = {key: counters.get(f"{key}/{name}", 0) for key in COUNTED}
            if counts["rows"]:
                entries.append({"name": name, **counts, "max_epochs": self._max_epochs(name)})
            elif any(isinstance(w, dict) and name in w for w in self._weighings()):
                raise DataError(
                    f"mix: the source {name!r} has a weight, but none of its documents is left. "
                    "Take it out of sources, or see the funnel for what dropped them."
                )
        return entries

    def _max_epochs(self, source: str) -> float:
        caps = self.max_epochs
        return caps.get(source, 1.0) if isinstance(caps, dict) else caps

    def _weighings(self) -> list[Any]:
        """Return the weights of each stage of the run, as they are given."""
        return [self.weights] if self.stages is None else [stage.weights for stage in self.stages]

    def check(self, known: Known) -> None:
        self.check_sources(known.sources)

    def check_sources(self, names: tuple[str, ...]) -> None:
        """Check that all sources that are named exist, and that each one has a weight.

        Raises:
            UsageError: a name does not exist, or a source has no weight.
        """
        stages = self.stages or ()
        references = [
            (f"{path}max_epochs", name)
            for path, caps in [("", self.max_epochs), *((_path(s), s.max_epochs) for s in stages)]
            for name in (caps if isinstance(caps, dict) else ())
        ]
        references += [
            (f"{_path(stage)}sources", name) for stage in stages for name in stage.sources or ()
        ]
        weightings = self._weighings()
        explicit = [weights for weights in weightings if isinstance(weights, dict)]
        references += [("weights", name) for weights in explicit for name in weights]
        for parameter, name in references:
            if name not in names:
                raise UsageError(
                    f"mix.{parameter}: there is no source {name!r}. {suggest(name, names)}"
                )
        computed = [s.sources or names for s in stages if not isinstance(s.weights, dict)]
        covered = set(names if not stages and not explicit else ()).union(*computed, *explicit)
        for name in names:
            if name not in covered:
                raise UsageError(
                    f"mix.weights: the source {name!r} has no weight. "
                    "Give it one, or take it out of sources."
                )

    def schedule(self, sources: Sequence[Mapping[str, Any]], seq_len: int) -> Schedule:
        """Return what the run takes of sources with these `rows` and `max_epochs`.

        Raises:
            UsageError: a budget is less than a row.
            DataError: there is no row to take.
        """
        if not sources:
            raise DataError("mix: no source has any rows. See the report for what dropped them.")
        supplies = [Supply(entry["name"], entry["rows"], entry["max_epochs"]) for entry in sources]
        rows = _length(self.rows, self.tokens, seq_len, "mix.tokens")
        if self.stages is not None:
            return make_schedule(supplies, [_request(s, seq_len) for s in self.stages], rows)
        weights, temperature = self.weights or "proportional", self.temperature or 1.0
        main = StageRequest("main", ratio=1, weights=weights, temperature=temperature)
        return make_schedule(supplies, [main], rows)


def stage_entries(schedule: Schedule) -> list[dict[str, Any]]:
    """Return the stages as the mix plan writes them; a source that gives nothing is left out."""
    names = [supply.name for supply in schedule.supplies]
    return [
        {
            "name": stage.name,
            "rows": stage.rows,
            "weights": {n: w for n, w in zip(names, stage.weights, strict=True) if w},
        }
        for stage in schedule.stages
    ]


def _request(stage: StageWeights, seq_len: int) -> StageRequest:
    return StageRequest(
        stage.name,
        rows=_length(stage.rows, stage.tokens, seq_len, f"mix: tokens of stage {stage.name!r}"),
        ratio=stage.ratio,
        weights=stage.weights or "proportional",
        temperature=stage.temperature or 1.0,
        sources=stage.sources,
        max_epochs=stage.max_epochs,
    )


def _length(rows: int | None, tokens: int | str | None, seq_len: int, where: str) -> int | None:
    return rows if tokens is None else rows_of(num_tokens(tokens), seq_len, where)


def _path(stage: StageWeights) -> str:
    return f"stages.{stage.name}."


def _index_row(part: Part) -> dict[str, Any]:
    names = {"first_row": "first"}
    return {name: getattr(part, names.get(name, name)) for name in INDEX.names}


def _parquet(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink, compression="zstd")
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"
