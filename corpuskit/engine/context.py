"""What a stage may touch while it works on one unit, and the parts that come of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.cpu import cpu_seconds
from corpuskit.engine.compiling import COMPILING
from corpuskit.engine.documents import read_part
from corpuskit.engine.phase import PhaseInputs
from corpuskit.engine.records import IDS, MEASURES, PROFILE, Identities, Measures, Profile, rule_of
from corpuskit.engine.reuse import unit_name
from corpuskit.engine.rundir import file_copy
from corpuskit.errors import DataError
from corpuskit.formats.batch import numbers
from corpuskit.formats.ledger import LedgerWriter, sampled
from corpuskit.formats.manifest import NOT_APPLIED, Part
from corpuskit.formats.shards import open_parquet, read_sidecars, write_sidecar
from corpuskit.formats.shuffle_files import read_shuffles, write_shuffle
from corpuskit.kernels.jit import compile_seconds
from corpuskit.stage import View
from corpuskit.storage import digest_footer, digest_part, open_ranged
from corpuskit.storage.faults import fault_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.engine.plan import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.ledger import Entries
    from corpuskit.formats.manifest import RoleParts
    from corpuskit.formats.shards import DocumentWriter
    from corpuskit.stage import Unit
    from corpuskit.storage import Readable


class UnitWork:
    """A `UnitContext`: collects parts, counters and ledger rows of one unit.

    Parts are published under names that hold their hash.

    Args:
        scratch: a private folder on the file system of the run directory.
    """

    def __init__(self, run: RunDirectory, phase: Phase, unit: Unit, scratch: Path) -> None:
        self.run, self.phase, self.unit, self.scratch = run, phase, unit, scratch
        settings = run.plan.settings
        self.label = phase.labels[-1] if phase.labels else ""
        self.seed = settings.seed
        self.given = run.given(phase)
        self.counted: Counter[str] = Counter()
        self.timing: defaultdict[str, float] = defaultdict(float)
        self.published: list[Part] = []
        self.measures = Measures(self._scratch_path)
        self.profile = Profile(unit.source)
        self.ids = Identities(unit.source)
        self._written = 0
        self._ledger = LedgerWriter(
            seed=settings.seed, keep_text=settings.ledger.keep_text, mask=_mask_texts
        )

    def count(self, name: str, value: int = 1) -> None:
        self.counted[name] += int(value)

    def add_ledger(self, entries: Entries) -> None:
        self._ledger.add(entries)
        pairs = pa.table({"rule": entries.rules, "source": entries.sources})
        counts = pairs.group_by(["rule", "source"], use_threads=False).aggregate(
            [([], "count_all")]
        )
        if entries.action == "cut":
            self._count_cuts(entries)
        kind = "dropped" if entries.action == "drop" else entries.action
        for row in counts.to_pylist():
            rule = rule_of(row["rule"])
            self.count(f"{kind}/{entries.stage}/{rule}/{row['source']}", row["count_all"])

    def _count_cuts(self, entries: Entries) -> None:
        """Count documents that lose something, whatever the rules, and the bytes that they lose."""
        lists = entries.spans
        ends = pc.list_flatten(lists)
        pieces = pc.subtract(pc.struct_field(ends, "end"), pc.struct_field(ends, "start"))
        sizes = np.bincount(
            numbers(pc.list_parent_indices(lists)), numbers(pieces), len(entries.keys)
        )
        columns = [pa.array(entries.keys), entries.sources, pa.array(sizes)]
        table = pa.table(columns, names=["key", "source", "size"])
        sums = [("key", "count_distinct"), ("size", "sum")]
        for row in table.group_by("source", use_threads=False).aggregate(sums).to_pylist():
            self.count(f"shortened/{entries.stage}/{row['source']}", row["key_count_distinct"])
            self.count(f"cut_bytes/{entries.stage}/{row['source']}", row["size_sum"])

    def keeps_text(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        settings = self.run.plan.settings
        if settings.ledger.keep_text:
            return np.ones(len(keys), np.bool_)
        return sampled(keys, settings.seed)

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        if len(next(iter(columns.values()))) == 0:
            return
        path = self._scratch_path(".arrow")
        table = write_shuffle(path, columns, is_sorted=is_sorted)
        keys = table.column(0)
        self._publish(
            path, f"run:{name}", f"work/{self.phase.name}", prefix=f"{name.replace('/', '-')}-",
            rows=table.num_rows, first=keys[0].as_py(), last=keys[-1].as_py(),
            source=self.unit.source,
        )  # fmt: skip

    def write_part(
        self,
        role: str,
        folder: str,
        write: Callable[[Path], None],
        *,
        suffix: str = ".parquet",
        source: str = "",
        rows: int = 0,
        first: int = 0,
        last: int = -1,
    ) -> None:
        path = self._scratch_path(suffix)
        write(path)
        self._publish(path, role, folder, source=source, rows=rows, first=first, last=last)

    def write_ledger(self) -> None:
        if not self._ledger.rows:
            return
        path = self._scratch_path(".parquet")
        table = self._ledger.write(path)
        keys = table.column("doc_key")
        self._publish(
            path, "ledger", "ledger", prefix=f"{self.phase.name}-",
            rows=table.num_rows, first=keys[0].as_py(), last=keys[-1].as_py(),
        )  # fmt: skip
        self._ledger = LedgerWriter()

    def write_measures(self) -> None:
        for file in self.measures.files():
            self._publish(
                file.path, f"{MEASURES}{file.label}", f"measures/{file.label}", rows=file.rows,
                text_bytes=file.text_bytes, first=file.first, last=file.last,
                source=self.unit.source,
            )  # fmt: skip

    def write_profile(self) -> None:
        """Publish what was counted in this unit, and under which ids and URLs it is found."""
        path = self._scratch_path(".parquet")
        if rows := self.profile.write(path):
            self._publish(
                path, PROFILE, PROFILE, prefix=f"{self.phase.name}-", rows=rows,
                source=self.unit.source,
            )  # fmt: skip
        path = self._scratch_path(".arrow")
        if rows := self.ids.write(path):
            self._publish(path, IDS, IDS, rows=rows, source=self.unit.source)

    def publish_documents(self, writer: DocumentWriter, role: str, folder: str) -> None:
        """Publish a document shard of a cell, if it has rows."""
        if writer.rows:
            self._publish(
                writer.path, role, folder, rows=writer.rows, text_bytes=writer.text_bytes,
                first=writer.first, last=writer.last, source=self.unit.source,
            )  # fmt: skip

    def _publish(
        self, path: Path, role: str, folder: str, *, prefix: str = "", **fields: Any
    ) -> None:
        fault_point("write:after", str(path))
        number = self.unit.number
        digest = digest_part(path)
        with open_ranged(path) as file:
            footer = digest_footer(file)
        name = f"{folder}/{prefix}part-{unit_name(number)}-{digest[:12]}{path.suffix}"
        size = path.stat().st_size
        self.run.store.publish(path, name)
        self.published.append(
            Part(number, role, name, size_bytes=size, digest=digest, footer=footer, **fields)
        )

    def _scratch_path(self, suffix: str) -> Path:
        self._written += 1
        path = self.scratch / f"{self.unit.number}-{self._written}{suffix}"
        fault_point("write:before", str(path))
        return path


class PassWork(UnitWork, PhaseInputs):
    """A `PassContext`."""

    def __init__(self, run: RunDirectory, phase: Phase, unit: Unit, scratch: Path) -> None:
        UnitWork.__init__(self, run, phase, unit, scratch)
        self.memory_bytes = run.plan.settings.task_memory_bytes
        self._is_alone = run.plan.current_pass(phase).is_cell_alone
        self._where = run.plan.applies(phase)
        self.passing: Iterator[View] | None = None
        """Documents that pass by once, where the phase reads the input."""

    def parts(self, name: str) -> RoleParts:
        self._refuse_if_alone(name)
        return super().parts(name)

    def counters(self, name: str) -> Mapping[str, int]:
        self._refuse_if_alone(name)
        return super().counters(name)

    def _refuse_if_alone(self, name: str) -> None:
        if self._is_alone:
            raise DataError(
                f"phase {self.phase.name}: a pass whose units are reused cell by cell reads "
                f"{name!r}, which is not in the cell. Report it: that is a defect of the stage."
            )

    def sidecar_paths(self) -> list[Readable]:
        return cell_sidecars(self.run, self.phase, self.unit)

    def read(self, *columns: str, keys: NDArray[np.int64] | None = None) -> Iterator[View]:
        if self.phase.refers:
            if self.passing is None:
                self._refuse_if_alone("documents a second time")
            passing, self.passing = self.passing or iter(()), None
            yield from passing
            return
        if self.unit.part is None:
            return
        names = ["key", *(name for name in columns if name != "key")]
        names += [name for name in self._where.columns if name not in names]
        sidecars = self.sidecar_paths()
        for batch in read_part(self.run, self.unit.part, names, sidecars=sidecars, keys=keys):
            view, rows = self._where.select(View(batch))
            if rows is not None and len(rows) == 0:
                continue
            if "text" in names:
                size = int(view.text.sizes().sum())
                self.timing["text_bytes"] += size
                self.timing[f"source_bytes/{self.unit.source}"] += size
                self.count(f"seen_bytes/{self.label}/{self.unit.source}", size)
            yield view

    def part_keys(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        assert self.unit.part is not None, "only cells have a part"
        path = self.path(self.unit.part)
        with open_ranged(path) as source, open_parquet(source, path) as file:
            table = file.read(columns=["key"], use_threads=False)
        keys = table.column("key").to_numpy()
        keep = read_sidecars(self.sidecar_paths()).keep
        alive = np.ones(len(keys), np.bool_) if keep is None else keep
        return keys, alive & self._applies(keys) if self._where.where else alive

    def _applies(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows of this cell's part the stage applies to."""
        met_keys = [view.keys for view in self.read()]
        return np.isin(keys, np.concatenate(met_keys), assume_unique=True) if met_keys else keys < 0

    def read_shuffle(
        self,
        name: str,
        low: int | None,
        high: int | None,
        schema: pa.Schema,
        producers: tuple[int, int] | None = None,
    ) -> pa.Table:
        parts = self.parts(name)
        if producers is not None:
            parts = parts[slice(*producers)]
        self._refuse_if_deleted(name)
        paths = [self.path(part) for part in parts.within(low, high)]
        return read_shuffles(paths, schema, low, high)

    def _refuse_if_deleted(self, name: str) -> None:
        writer, _, file = name.partition("/")
        for index in self.phase.earlier:
            is_writer = self.run.plan.phases[index].pass_name == writer
            if is_writer and f"run:{file}" in self.run.seal(index).deleted:
                raise DataError(
                    f"phase {self.phase.name}: reads {name!r}, which was deleted: an earlier pass "
                    "is done with it. Report it: that is a defect of the stage."
                )

    def path(self, part: Part) -> Readable:
        return self.run.at(part)

    def write_file(self, name: str, content: bytes) -> None:
        path = self._scratch_path(".fixed")
        path.write_bytes(content)
        fault_point("write:after", str(path))
        digest = digest_part(path)
        # Under its own name it would replace that of a newer plan, if this worker is a late one:
        # it gets its name when the phase is sealed.
        copy = file_copy(self.phase, name, digest)
        self.run.store.publish(path, copy)
        number, size = self.unit.number, len(content)
        self.published += [
            Part(number, f"file:{name}", name, size_bytes=size, digest=digest),
            Part(number, f"copy:{name}", copy, size_bytes=size, digest=digest),
        ]

    def write_sidecar(
        self,
        keep: NDArray[np.bool_],
        columns: Mapping[str, pa.Array] | None = None,
        cuts: pa.ListArray | None = None,
    ) -> None:
        fields = {f"{self.label}.{field}": values for field, values in (columns or {}).items()}
        if self._where.where:
            keys, applies = self.part_keys()
            before = read_sidecars(self.sidecar_paths()).keep
            num = len(keys) if before is None else int(before.sum())
            if num > applies.sum():
                self.count(
                    f"{NOT_APPLIED}{self.label}/{self.unit.source}", num - int(applies.sum())
                )
            keep = keep | ~applies
            rows = pa.array(np.arange(len(keys)), mask=~applies)
            fields = {name: values.take(rows) for name, values in fields.items()}
        path = self._scratch_path(".arrow")
        write_sidecar(path, keep, fields, cuts)
        self._publish(
            path, "sidecar", f"work/{self.phase.name}", prefix="sidecar-", rows=len(keep),
            first=self.unit.low, last=self.unit.high - 1, source=self.unit.source,
        )  # fmt: skip


def cell_sidecars(run: RunDirectory, phase: Phase, unit: Unit) -> list[Readable]:
    """Return the sidecars that apply to a cell, oldest first."""
    return [run.at(part) for index in phase.sidecars for part in run.sidecars(index, unit.number)]


class Stopwatch:
    """Adds the CPU seconds between calls to named counters; compilation has a counter of its own.

    Compilation happens once on a machine: charged to a stage, it would make the stage look many
    times slower than it is. Child processes count.

    Args:
        timing: counters of one piece of work; set `timing` to go on with those of the next one.
    """

    def __init__(self, timing: defaultdict[str, float]) -> None:
        self.timing, self._last = timing, cpu_seconds()
        self._compiled = compile_seconds()

    def lap(self, name: str) -> None:
        """Charge the time since the last lap to `name`."""
        now, compiled = cpu_seconds(), compile_seconds()
        spent = compiled - self._compiled
        self.timing[f"cpu_seconds/{name}"] += max(now - self._last - spent, 0.0)
        if spent:
            self.timing[COMPILING] += spent
        self._last, self._compiled = now, compiled


def _mask_texts(texts: pa.Array) -> pa.Array:
    """Mask personal data in sampled texts; imported late because it compiles kernels."""
    from corpuskit.stages.rewriters.pii import mask_texts

    return mask_texts(texts)
