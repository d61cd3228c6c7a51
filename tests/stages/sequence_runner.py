"""Runs tokenize, pack, shuffle and mix over small texts in a folder, without the task layer."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.batch import make_keys
from corpuskit.formats.manifest import Part
from corpuskit.formats.shuffle_files import read_shuffle, write_shuffle
from corpuskit.stage import PassContext, PassPlan, Unit, View
from corpuskit.stages.mixing.mix import Mix
from corpuskit.stages.sequences.pack import Pack
from corpuskit.stages.sequences.shuffle import Shuffle
from corpuskit.stages.sequences.tokenize import Tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from corpuskit.stage import GlobalStage

Texts = dict[str, list[list[str]]]
"""Source -> cells -> texts."""


@dataclasses.dataclass
class Phase:
    """What a finished phase wrote."""

    parts: list[Part] = dataclasses.field(default_factory=list)
    counters: Counter[str] = dataclasses.field(default_factory=Counter)

    def by_role(self, role: str) -> list[Part]:
        return sorted(part for part in self.parts if part.role == role)


class Run(PassPlan):
    """A run directory: phases by name, and what stages provide."""

    memory_bytes = 1 << 30

    def __init__(self, root: Path, sources: Sequence[str], seed: int = 0) -> None:
        files = [{"ordinal": i, "source": s, "path": f"{s}.txt"} for i, s in enumerate(sources)]
        self.root, self.seed = root, seed
        self.given: dict[str, Any] = {"name": "test", "sources": list(sources), "files": files}
        self.phases: dict[str, Phase] = {}
        self.input = "pack"

    def cells(self) -> list[Unit]:
        return [
            Unit(part.unit, part.source, part.first, part.last + 1, part.rows, 0, part)
            for part in self.parts(f"{self.input}/packed")
        ]

    def parts(self, name: str) -> list[Part]:
        phase, _, role = name.partition("/")
        if phase in self.phases:
            return self.phases[phase].by_role(role)
        return self.phases[f"shuffle.{phase}"].by_role(f"run:{role}")

    def counters(self, name: str) -> Mapping[str, int]:
        phase = self.phases.get(name) or self.phases[f"shuffle.{name}"]
        return phase.counters

    def run_stage(self, stage: GlobalStage, *, backwards: bool = False) -> None:
        """Run all passes of a stage; `backwards` takes the units last to first."""
        name = stage.stage_name()
        self.given.update(stage.provides(self.given))
        for one in stage.passes():
            units = self.cells() if one.units is None else one.units(self)
            phase = self.phases[f"{name}.{one.name}"] = Phase()
            for unit in reversed(units) if backwards else units:
                one.run(Context(self, phase, f"{name}.{one.name}", unit))


class Context(PassContext):
    """What one unit of work may touch."""

    def __init__(self, run: Run, phase: Phase, name: str, unit: Unit) -> None:
        self.run, self.phase, self.name, self.unit = run, phase, name, unit
        self.label = name
        self.seed, self.given, self.memory_bytes = run.seed, run.given, run.memory_bytes

    def count(self, name: str, value: int = 1) -> None:
        self.phase.counters[name] += value

    def keeps_text(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(keys), np.bool_)

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        if not len(next(iter(columns.values()))):
            return
        scratch = self.run.root / "scratch"
        keys = write_shuffle(scratch, columns, is_sorted=is_sorted).column(0)
        values = keys.to_numpy()
        assert (values[:-1] <= values[1:]).all(), "runs are sorted by their first column"
        self._publish(
            scratch,
            f"run:{name}",
            f"work/{self.name}",
            ".arrow",
            source=self.unit.source,
            rows=len(keys),
            first=keys[0].as_py(),
            last=keys[-1].as_py(),
        )

    def write_part(
        self, role: str, folder: str, write: Callable[[Path], None], *, suffix: str = ".parquet",
        source: str = "", rows: int = 0, first: int = 0, last: int = -1,
    ) -> None:  # fmt: skip
        scratch = self.run.root / "scratch"
        write(scratch)
        self._publish(
            scratch, role, folder, suffix, source=source, rows=rows, first=first, last=last
        )

    def write_file(self, name: str, content: bytes) -> None:
        path = self.run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def parts(self, name: str) -> list[Part]:
        return self.run.parts(name)

    def counters(self, name: str) -> Mapping[str, int]:
        return self.run.counters(name)

    def path(self, part: Part) -> Path:
        return self.run.root / part.path

    def read_shuffle(
        self, name: str, low: int | None, high: int | None, schema: pa.Schema,
        producers: tuple[int, int] | None = None,
    ) -> pa.Table:  # fmt: skip
        tables = [
            read_shuffle(self.path(part), low, high)
            for part in self.parts(name)[slice(*producers or (None,))]
        ]
        return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()

    def add_ledger(self, entries: object) -> None:
        raise AssertionError("these stages drop nothing")

    def read(self, *columns: str) -> Iterator[View]:
        raise AssertionError("these stages read no documents")

    def part_keys(self) -> Any:
        raise AssertionError("these stages read no documents")

    def write_sidecar(self, keep: object, columns: object = None) -> None:
        raise AssertionError("these stages decide about no documents")

    def _publish(self, scratch: Path, role: str, folder: str, suffix: str, **fields: Any) -> None:
        digest = hashlib.blake2b(scratch.read_bytes(), digest_size=16).hexdigest()
        name = f"{folder}/part-{self.unit.number:06d}-{digest[:12]}{suffix}"
        path = self.run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = scratch.rename(path).stat().st_size
        self.phase.parts.append(
            Part(self.unit.number, role, name, size_bytes=size, digest=digest, **fields)
        )


def save_byte_tokenizer(folder: Path) -> str:
    """Write a tokenizer whose ids are bytes, then <|endoftext|> and <|pad|>; return its path."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    chars = {byte: chr(byte) for byte in plain}
    chars |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE({chars[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def pack_texts(
    root: Path,
    texts: Texts,
    tokenize: Tokenize,
    pack: Pack,
    *,
    batch_docs: int = 5,
    seed: int = 0,
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> Run:
    """Tokenize and pack texts, batch by batch; document i of source s has id `s-i`.

    Args:
        values: columns by name, id -> value; those that end with `.copies` say how often.
    """
    run = Run(root, list(texts), seed)
    copies = [name for name in values or {} if name.endswith(".copies")]
    if copies:
        run.given["upsample"] = {"columns": copies, "factor": 1.0}
    for stage in (tokenize, pack):
        run.given.update(stage.provides(run.given))
    phase = run.phases["pack"] = Phase()
    number = 0
    for ordinal, (source, cells) in enumerate(texts.items()):
        position = 0
        for cell in cells:
            context = Context(run, phase, "pack", Unit(number, source))
            batches = documents(cell, source, ordinal, position, batch_docs, values)
            pack.collect((_apply(tokenize, view) for view in batches), context)
            position += len(cell)
            number += 1
    return run


def documents(
    texts: list[str],
    source: str,
    ordinal: int,
    position: int,
    batch_docs: int,
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[View]:
    """Yield texts as views of `batch_docs` documents."""
    for begin in range(0, len(texts), batch_docs):
        batch = texts[begin : begin + batch_docs]
        positions = np.arange(position + begin, position + begin + len(batch))
        columns = {
            "key": pa.array(make_keys(ordinal, positions)),
            "id": pa.array([f"{source}-{position}" for position in positions]),
            "text": pa.array(batch, pa.large_string()),
        }
        for name, by_id in (values or {}).items():
            kind = pa.int32() if name.endswith(".copies") else pa.float64()
            columns[name] = pa.array([by_id[one.as_py()] for one in columns["id"]], kind)
        yield View(pa.record_batch(columns))


def mixed_run(
    root: Path,
    texts: Texts,
    tokenizer: str,
    *,
    seq_len: int = 32,
    shuffle: Shuffle | None = None,
    mix: Mix | None = None,
    backwards: bool = False,
) -> Run:
    """Run all four stages."""
    run = pack_texts(root, texts, Tokenize(tokenizer=tokenizer), Pack(seq_len=seq_len))
    run.run_stage(shuffle or Shuffle(), backwards=backwards)
    run.run_stage(mix or Mix())
    return run


def rows_of(run: Run, name: str, source: str = "") -> pa.Table:
    """Return the rows of packed or token parts, in part order."""
    parts = [part for part in run.parts(name) if not source or part.source == source]
    tables = [pq.read_table(run.root / part.path) for part in parts]
    return pa.concat_tables([table.replace_schema_metadata() for table in tables])


def token_matrix(rows: pa.Table, dtype: str = "uint16") -> np.ndarray:
    """Return the tokens of rows, (S, seq_len + 1)."""
    return np.array([np.frombuffer(row, dtype) for row in rows.column("tokens").to_pylist()])


def _apply(stage: Tokenize, view: View) -> View:
    columns = stage.apply(view).columns
    return view.with_columns({f"tokenize.{name}": values for name, values in columns.items()})
