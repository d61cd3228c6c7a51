"""Runs a global stage over texts in memory; runs, sidecars and ledger are files in a folder."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.formats.batch import REQUIRED
from corpuskit.formats.ledger import LedgerWriter
from corpuskit.formats.manifest import Part
from corpuskit.formats.shards import read_sidecars, write_sidecar
from corpuskit.formats.shuffle_files import read_shuffles, write_shuffle
from corpuskit.stage import PassContext, PassPlan, Unit, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.formats.ledger import Entries
    from corpuskit.stage import GlobalStage, Pass

FIRST_KEY, KEY_STEP = 3 << 40, 7
"""Document i has key FIRST_KEY + KEY_STEP * i: no test passes that takes a key for a row."""

CELL_STEP = 1 << 32
"""Cell i has the number CELL_STEP * i, since those of real runs have up to 36 bits, with gaps."""


@dataclasses.dataclass
class Decided:
    """What a stage decided about N documents; arrays are (N,), in the order of the texts."""

    keep: NDArray[np.bool_]
    columns: dict[str, NDArray[Any]]
    ledger: list[dict[str, Any]]
    counters: dict[str, Counter[str]]
    units: dict[str, int]
    texts: list[str]
    """All N texts afterwards, cut; of dropped documents too."""

    def clusters(self) -> set[tuple[int, ...]]:
        """Return the clusters of two and more, as document numbers."""
        members: dict[int, list[int]] = {}
        for number, cluster in enumerate(self.columns["cluster_id"].tolist()):
            members.setdefault(cluster, []).append(number)
        return {tuple(numbers) for numbers in members.values() if len(numbers) > 1}


class GlobalRun(PassPlan):
    """A plan over texts that are cut into cells.

    Args:
        texts: the documents.
        bounds: documents before which a new cell begins.
        alive: which documents earlier stages kept; None = all.
        memory_bytes: of tasks; a mapping gives some passes another figure.
        batch_docs: documents per view.
        columns: more columns, or `source`, or `date` of origin; one value per text each.
    """

    given: Mapping[str, Any] = {}
    seed = 0

    def __init__(
        self,
        texts: Sequence[str],
        folder: Path,
        *,
        bounds: Sequence[int] = (),
        alive: Sequence[bool] | None = None,
        memory_bytes: int | Mapping[str, int] = 1 << 30,
        batch_docs: int = 3,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.folder, self.batch_docs = folder, batch_docs
        self.memory = {"": memory_bytes} if isinstance(memory_bytes, int) else dict(memory_bytes)
        self.memory_bytes = self.memory.setdefault("", 1 << 30)
        self.written: dict[str, list[Part]] = {}
        self.counted: dict[str, Counter[str]] = {}
        self.sidecars: dict[int, Path] = {}
        self.label = "dedup"
        self.ledgers: list[pa.Table] = []
        table = documents(texts, columns or {})
        keep = np.ones(len(texts), np.bool_) if alive is None else np.array(alive, np.bool_)
        edges = [0, *bounds, len(texts)]
        pieces = [slice(low, high) for low, high in itertools.pairwise(edges)]
        self.tables = [table.slice(p.start, p.stop - p.start) for p in pieces]
        self.alive = [keep[p] for p in pieces]
        self.units = [
            Unit(
                CELL_STEP * number, first_source(t), key_of(p.start), key_of(p.stop - 1) + 1, len(t)
            )
            for number, (t, p) in enumerate(zip(self.tables, pieces, strict=True))
            if len(t)
        ]

    def cells(self) -> list[Unit]:
        return self.units

    def parts(self, name: str) -> list[Part]:
        return sorted(self.written.get(name, []))

    def counters(self, name: str) -> Mapping[str, int]:
        return self.counted[name]

    def run_pass(self, one: Pass) -> int:
        """Run a pass, its units last to first since any order must do; return how many."""
        self.memory_bytes = self.memory.get(one.name, self.memory[""])
        self.counted[one.name] = Counter()
        units = self.cells() if one.units is None else one.units(self)
        for unit in reversed(units):
            one.run(Context(self, one.name, unit))
        return len(units)

    def run(self, stage: GlobalStage) -> Decided:
        """Run all passes and collect what they decided."""
        self.label = stage.stage_name()
        num_units = {one.name: self.run_pass(one) for one in stage.passes()}
        read = [read_sidecars([self.sidecars[unit.number]]) for unit in self.units]
        columns = {
            name: np.concatenate([np.array([], int), *(one.columns[name] for one in read)])
            for name in stage.adds()
        }
        masks = [one.keep for one in read if one.keep is not None]
        texts = [
            text
            for unit, one in zip(self.units, read, strict=True)
            for text in cut(
                self.tables[unit.number // CELL_STEP].column("text").to_pylist(), one.cuts
            )
        ]
        rows = [row for table in self.ledgers for row in table.to_pylist()]
        rows.sort(key=lambda row: row["doc_key"])
        keep = np.concatenate([np.array([], np.bool_), *masks])
        return Decided(keep, columns, rows, self.counted, num_units, texts)


class Context(PassContext):
    """What one unit of a pass may touch."""

    def __init__(self, run: GlobalRun, pass_name: str, unit: Unit) -> None:
        self.run, self.pass_name, self.unit = run, pass_name, unit
        self.label = run.label
        self.seed, self.given, self.memory_bytes = run.seed, run.given, run.memory_bytes

    def count(self, name: str, value: int = 1) -> None:
        self.run.counted[self.pass_name][name] += value

    def add_ledger(self, entries: Entries) -> None:
        writer = LedgerWriter(keep_text=True)
        writer.add(entries)
        path = self.run.folder / f"ledger-{len(self.run.ledgers)}"
        self.run.ledgers.append(writer.write(path))

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        if len(next(iter(columns.values()))) == 0:
            return
        file = f"{self.pass_name}/{name}"
        path = f"{self.pass_name}-{name}-{self.unit.number}.arrow"
        table = write_shuffle(self.run.folder / path, columns, is_sorted=is_sorted)
        keys = table.column(0).to_numpy()
        assert (keys[:-1] <= keys[1:]).all(), f"{file} is not sorted"
        part = Part(
            self.unit.number, f"run:{name}", path, rows=len(keys), first=int(keys[0]),
            last=int(keys[-1]), source=self.unit.source,
        )  # fmt: skip
        parts = self.run.written.setdefault(file, [])
        assert part.unit not in {other.unit for other in parts}, f"{file} was written twice"
        parts.append(part)

    def read_shuffle(
        self, name: str, low: int | None, high: int | None, schema: pa.Schema,
        producers: tuple[int, int] | None = None,
    ) -> pa.Table:  # fmt: skip
        parts = self.run.parts(name)[slice(*producers or (None,))]
        paths = [self.path(part) for part in parts]
        return read_shuffles(paths, schema, low, high)

    def parts(self, name: str) -> list[Part]:
        return self.run.parts(name)

    def counters(self, name: str) -> Mapping[str, int]:
        return self.run.counters(name)

    def path(self, part: Part) -> Path:
        return self.run.folder / part.path

    def keeps_text(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(keys), np.bool_)

    def read(self, *columns: str, keys: NDArray[np.int64] | None = None) -> Iterator[View]:
        wanted = ["key", *(name for name in columns if name != "key")]
        table = self.run.tables[self.unit.number // CELL_STEP].select(wanted)
        table = table.filter(pa.array(self.run.alive[self.unit.number // CELL_STEP]))
        for batch in table.combine_chunks().to_batches(max_chunksize=self.run.batch_docs):
            yield View(batch)

    def part_keys(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        number = self.unit.number // CELL_STEP
        return self.run.tables[number].column("key").to_numpy(), self.run.alive[number]

    def write_sidecar(
        self,
        keep: NDArray[np.bool_],
        columns: Mapping[str, pa.Array] | None = None,
        cuts: pa.ListArray | None = None,
    ) -> None:
        assert self.unit.number not in self.run.sidecars, "a cell was decided twice"
        assert len(keep) == self.unit.rows
        path = self.run.folder / f"sidecar-{self.unit.number}.arrow"
        write_sidecar(path, keep, dict(columns or {}), cuts)
        self.run.sidecars[self.unit.number] = path

    def write_part(self, *arguments: Any, **fields: Any) -> None:
        raise AssertionError("a pass of a global stage over documents writes runs and sidecars")

    def write_file(self, name: str, content: bytes) -> None:
        raise AssertionError("a pass of a global stage over documents writes runs and sidecars")


def run_global(stage: GlobalStage, texts: Sequence[str], **settings: Any) -> Decided:
    """Run a stage over texts in a folder of its own; settings as GlobalRun takes them."""
    with tempfile.TemporaryDirectory() as folder:
        return GlobalRun(texts, Path(folder), **settings).run(stage)


def key_of(number: int) -> int:
    """Return the key of a document by its position among the texts."""
    return FIRST_KEY + KEY_STEP * number


def first_source(documents: pa.Table) -> str:
    """Return the source of a cell."""
    source: str = documents.column("source")[0].as_py()
    return source


def number_of(key: int) -> int:
    """Return the position of a document among the texts."""
    number, rest = divmod(key - FIRST_KEY, KEY_STEP)
    assert rest == 0, "not a key"
    return number


def cut(texts: list[str], cuts: Sequence[pa.ListArray]) -> list[str]:
    """Return texts without the spans of bytes that were cut."""
    for lists in cuts:
        left = []
        for text, spans in zip(texts, lists.to_pylist(), strict=True):
            whole = text.encode()
            edges = [0, *(edge for s in spans for edge in (s["start"], s["end"])), len(whole)]
            assert edges == sorted(edges), "spans are sorted and disjoint"
            pieces = zip(edges[::2], edges[1::2], strict=True)
            left.append(b"".join(whole[begin:end] for begin, end in pieces).decode())
        texts = left
    return texts


def documents(texts: Sequence[str], more: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return texts as a table with the columns that stages may ask for; ids are `doc-<number>`."""
    dates = more.get("date", [None] * len(texts))
    columns = {
        "key": [key_of(number) for number in range(len(texts))],
        "id": [f"doc-{number}" for number in range(len(texts))],
        "text": list(texts),
        "source": ["web"] * len(texts),
        "origin": [
            {"file": "f", "position": number, "url": None, "date": date}
            for number, date in enumerate(dates)
        ],
        **{name: list(values) for name, values in more.items() if name != "date"},
    }
    return pa.table({name: pa.array(v, REQUIRED.get(name)) for name, v in columns.items()})


def check_ledger(
    decided: Decided, stage: str, rule: str, same: Callable[[int, int], bool],
    value: Callable[[int, int], float] | None = None,
) -> None:  # fmt: skip
    """Assert that each dropped document has its row, and a survivor that is kept and is `same`.

    Args:
        value: of the row of a survivor and a dropped document; None: the size of the cluster.
    """
    dropped = np.flatnonzero(~decided.keep).tolist()
    assert [number_of(row["doc_key"]) for row in decided.ledger] == dropped
    for number, row in zip(dropped, decided.ledger, strict=True):
        survivor = int(row["survivor_id"].removeprefix("doc-"))
        assert row["doc_id"] == f"doc-{number}"
        assert (row["stage"], row["rule"], row["action"]) == (stage, rule, "drop")
        size = decided.columns["cluster_size"][number]
        assert row["value"] == (value(survivor, number) if value else size)
        assert decided.keep[survivor]
        assert same(survivor, number)
