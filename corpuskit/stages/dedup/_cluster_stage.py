"""What stages have in common that keep one document of a cluster: parameters and last passes."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.formats.batch import numbers
from corpuskit.paths import PathText
from corpuskit.stage import Cost, GlobalStage, Pass
from corpuskit.stages._numbers import check_numbers
from corpuskit.stages.dedup import _clusters
from corpuskit.stages.dedup._against import Against, find_seal, index_counter
from corpuskit.stages.dedup._keep import MAX_SOURCES, Best, Keep, has_places, keep_columns, places
from corpuskit.stages.dedup._scope import GLOBAL, check_scope, scope_columns, scope_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from corpuskit.stage import Known, PassContext, PassPlan, Unit, View, Volume


class ClusterStage(GlobalStage):
    """Base of stages that group documents and keep one of each group.

    A subclass has a first pass that hashes documents, further ones that end in a run `clusters`
    (see `_clusters`), and then `self.last_passes()`.

    Source: none.
    """

    hashed_by: ClassVar[str]
    """The first pass: it calls `write_index`."""

    keep: Keep = "first"
    """Which document of a cluster stays: first (in reading order), longest, newest (by the date of
    its source), {best: <column>} (highest number), or none of them. Ties go to the first."""
    prefer: tuple[str, ...] = Field((), max_length=MAX_SOURCES)
    """Sources whose documents stay before those of others, the most wanted first."""
    scope: str = GLOBAL
    """Look for duplicates among all documents, or only among those with the same value in a column
    of strings: source, language.label, or a declared one such as dump. Those without share one."""
    action: _clusters.Action = "drop"
    """Drop the others, or only annotate all."""
    index: bool = False
    """Keep what later runs need to be compared with this one (`against`)."""
    against: tuple[PathText, ...] = ()
    """Directories of finished runs that have `index: true` here: the documents that this stage saw
    there, also those that it or a later stage dropped, count as earlier ones, and are not touched;
    new ones that duplicate them are dropped, whatever `keep` says."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return the parameters that decide hashes: JSON values; equal in runs to compare."""

    @abstractmethod
    def clustering(self) -> str:
        """Return the pass that writes the run `clusters`."""

    def files(self) -> tuple[str, ...]:
        found = (self.stage_name(), self.hashed_by, self._whole_identity())
        return tuple(str(find_seal(run, *found)) for run in self.against)

    def reference_runs(self) -> tuple[str, ...]:
        return self.against

    def needs(self) -> tuple[str, ...]:
        columns = (*keep_columns(self.keep, self.prefer), *scope_columns(self.scope))
        return tuple(dict.fromkeys(columns))

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"cluster_id": pa.int64(), "cluster_size": pa.int32(), "cluster_rank": pa.int32()}

    def check(self, known: Known) -> None:
        check_scope(known, self.scope)
        if isinstance(self.keep, Best):
            check_numbers(known, "keep", self.keep.best)
        for name in self.prefer:
            known.check_source("prefer", name)
        self.older().check()

    def older(self) -> Against:
        """Return the older runs.

        Raises:
            UsageError: one has no index, or one made with other parameters.
        """
        found = (self.stage_name(), self.hashed_by, self._whole_identity())
        return Against.open(self.against, *found)

    def has_places(self) -> bool:
        """Return whether anything but the reading order decides what is kept."""
        return has_places(self.keep, self.prefer)

    def places(self, view: View) -> NDArray[np.uint64]:
        """Return where documents stand in line to be kept, (N,): the smaller, the sooner."""
        return places(view, self.keep, self.prefer)

    def scopes(self, view: View) -> NDArray[np.uint64]:
        """Return what to XOR into hashes so that only documents of a scope meet, (N,)."""
        return scope_hashes(view, self.scope)

    def write_index(
        self, context: PassContext, keys: list[NDArray[np.int64]], ids: list[pa.Array]
    ) -> None:
        """Keep ids of hashed documents, if asked to, and say with which parameters."""
        if self.index:
            context.count(index_counter(self._whole_identity()))
            named = [*ids, pa.array([], pa.string())]
            columns = {"key": np.concatenate(keys), "id": pa.concat_arrays(named)}
            context.write_shuffle("ids", columns, is_sorted=True)

    def last_passes(self) -> tuple[Pass, ...]:
        """Return the passes from clusters to decisions."""
        return (
            Pass("survivors", self.find_survivors, self.cut_survivors if self.against else None),
            Pass("route", self.route_decisions, self.cut_routes),
            Pass("apply", self.apply_decisions),
        )

    def find_survivors(self, context: PassContext) -> None:
        """Join survivors' ids to their duplicates."""
        run = f"{self.clustering()}/clusters"
        _clusters.find_survivors(context, run, self._living(context))

    def cut_survivors(self, plan: PassPlan) -> list[Unit]:
        """Return the cells, then ranges of older documents."""
        cells = plan.cells()
        return [*cells, *self.older().units(cells[-1].number + 1 if cells else 0)]

    def cut_routes(self, plan: PassPlan) -> list[Unit]:
        """Return ranges of keys where there are very many cells, else none."""
        return _clusters.cut_decisions(plan)

    def route_decisions(self, context: PassContext) -> None:
        """Merge the decisions about a range of keys."""
        _clusters.route_decisions(context)

    def apply_decisions(self, context: PassContext) -> None:
        """Write the sidecar and the ledger."""
        _clusters.apply_decisions(
            context, self.rules[0], self.action, keep_none=self.keep == "none",
            threshold=self.threshold(self.rules[0]),
        )  # fmt: skip

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return _clusters.cost_of_decisions(volume, pass_name)

    def _living(self, context: PassContext) -> Iterator[tuple[NDArray[np.int64], pa.Array]]:
        """Yield keys and ids of this unit's documents."""
        if context.unit.part is None and context.unit.high <= 0:
            ids = self.older().ids(context.unit.low, context.unit.high)
            yield numbers(ids.column("key")), ids.column("id").combine_chunks()
            return
        for view in context.read("id"):
            yield view.keys, view.column("id")

    def _whole_identity(self) -> Mapping[str, Any]:
        return {"scope": self.scope, **self.identity()}
