"""Writes run directories after docs/formats.md, and says in plain Python what their order is.

Shares no code with the package: it is the other side of the contract.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

if TYPE_CHECKING:
    from pathlib import Path

PAD = 0
LOW = (1 << 40) - 1
DOCUMENT, CONTINUES, PADDING, GOES_ON = 0, 1, 2, 4
TOKENIZER = {"hash": "00ff", "vocab_size": 60000, "eos": 1, "pad": PAD}


@dataclass(frozen=True)
class Segment:
    start: int
    end: int
    key: int
    flags: int

    @property
    def text_bytes(self) -> int:
        return 0 if self.flags & PADDING else 3 * (self.end - self.start)


@dataclass
class Shards:
    """What was written: per source the stored tokens and the segments of each row."""

    path: Path
    seq_len: int
    dtype: str
    shuffled: dict[str, bool]
    tokens: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    segments: dict[str, list[list[Segment]]] = field(default_factory=dict, repr=False)
    ids: dict[int, str] = field(default_factory=dict, repr=False)
    index: list[dict[str, Any]] = field(default_factory=list, repr=False)


def write_shards(
    path: Path,
    rows: dict[str, int],
    *,
    seq_len: int = 16,
    dtype: str = "uint16",
    part_rows: int = 150,
    unshuffled: tuple[str, ...] = (),
    seed: int = 0,
) -> Shards:
    """Write parts, index and lookups of sources with so many rows each."""
    shuffled = {name: name not in unshuffled for name in rows}
    shards = Shards(path, seq_len, dtype, shuffled)
    random = np.random.default_rng(seed)
    for ordinal, (name, num_rows) in enumerate(rows.items()):
        _pack(shards, random, name, ordinal, num_rows)
        for first in range(0, num_rows, part_rows):
            shards.index.append(write_part(shards, name, first, min(num_rows, first + part_rows)))
    (path / "mix").mkdir(parents=True)
    write_index(shards)
    write_lookups(shards)
    files = [{"ordinal": i, "source": name, "path": f"{name}.jsonl"} for i, name in enumerate(rows)]
    (path / "mix" / "files.json").write_text(json.dumps({"format": 1, "files": files}))
    return shards


def write_plan(
    shards: Shards,
    stages: list[tuple[int, dict[str, int]]],
    *,
    seed: int = 0,
    skip: list[list[int]] | None = None,
    max_epochs: float = 100.0,
    folder: Path | None = None,
) -> Path:
    """Write a plan over the shards and return its run directory.

    With `folder`, that becomes another run directory over the same files.
    """
    path = shards.path
    if folder is not None:
        (folder / "mix").mkdir(parents=True)
        for name in ("index.parquet", "lookups.parquet", "files.json"):
            (folder / "mix" / name).symlink_to(shards.path / "mix" / name)
        for name in ("tokens", "work"):
            (folder / name).symlink_to(shards.path / name)
        path = folder
    sources = [
        {
            "name": name,
            "rows": len(tokens),
            "tokens": tokens.size,
            "documents": 1,
            "text_bytes": 1,
            "max_epochs": max_epochs,
            "shuffled": shards.shuffled[name],
        }
        for name, tokens in shards.tokens.items()
    ]
    plan: dict[str, Any] = {
        "format": 2,
        "name": "made",
        "seed": seed,
        "seq_len": shards.seq_len,
        "dtype": shards.dtype,
        "tokenizer": TOKENIZER,
        "sources": sources,
        "stages": [
            {"name": f"stage-{i}", "rows": rows, "weights": weights}
            for i, (rows, weights) in enumerate(stages)
        ],
        "skip": skip or [],
    }
    index = (path / "mix" / "index.parquet").read_bytes()
    hashed = plan | {"index_digest": hashlib.blake2b(index, digest_size=16).hexdigest()}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    plan["plan_hash"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    plan |= {
        "index": "mix/index.parquet",
        "lookups": "mix/lookups.parquet",
        "files": "mix/files.json",
        "digests": {
            name: hashlib.blake2b((path / "mix" / file).read_bytes(), digest_size=16).hexdigest()
            for name, file in (("lookups", "lookups.parquet"), ("files", "files.json"))
        },
    }
    (path / "mix" / "plan.json").write_text(json.dumps(plan))
    return path


def part_of(shards: Shards, path: Path, names: dict[str, str]) -> Shards:
    """Return some sources of shards as a run of their own: what they are called, and were.

    Its parts are written again, with its own keys.
    """
    some = Shards(path, shards.seq_len, shards.dtype, {})
    for ordinal, (name, old) in enumerate(names.items()):
        some.shuffled[name], some.tokens[name] = shards.shuffled[old], shards.tokens[old]
        some.segments[name] = [
            [
                replace(s, key=s.key if s.flags & PADDING else ordinal << 40 | s.key & LOW)
                for s in row
            ]
            for row in shards.segments[old]
        ]
        kept = {s.key for row in some.segments[name] for s in row}
        place = next(key >> 40 for key, text in shards.ids.items() if text.startswith(f"{old}/"))
        renamed = {ordinal << 40 | key & LOW: text for key, text in shards.ids.items()
                   if key >> 40 == place}  # fmt: skip
        some.ids |= {key: text for key, text in renamed.items() if key in kept}
        for first in range(0, len(some.tokens[name]), 150):
            last = min(len(some.tokens[name]), first + 150)
            some.index.append(write_part(some, name, first, last))
    (path / "mix").mkdir(parents=True)
    write_index(some)
    write_lookups(some)
    files = [{"ordinal": i, "source": name, "path": f"{old}.jsonl"}
             for i, (name, old) in enumerate(names.items())]  # fmt: skip
    (path / "mix" / "files.json").write_text(json.dumps({"format": 1, "files": files}))
    return some


def expected_order(run: Path) -> list[tuple[str, int, int]]:
    """Return (source, row, epoch) at every counter of a run, skipped ones included."""
    plan = expected_plan(run)
    rows = {source["name"]: source["rows"] for source in plan["sources"]}
    shuffled = {source["name"]: source["shuffled"] for source in plan["sources"]}
    taken = dict.fromkeys(rows, 0)
    order = []
    for stage in plan["stages"]:
        turns = expected_turns(stage["rows"], [stage["weights"].get(name, 0) for name in rows])
        for k in turns:
            name = list(rows)[k]
            epoch, row = divmod(taken[name], rows[name])
            if epoch or not shuffled[name]:
                row = expected_permutation(row, rows[name], plan["seed"], name, epoch)
            order.append((name, row, epoch))
            taken[name] += 1
    return order


def expected_plan(run: Path) -> dict[str, Any]:
    """Return the plan of a run with its edits, as docs/formats.md says."""
    plan = json.loads((run / "mix" / "plan.json").read_text())
    for path in sorted((run / "edits").glob("*.json")) if (run / "edits").exists() else []:
        edit = json.loads(path.read_text())
        if edit["kind"] == "skip":
            plan["skip"] += edit["spans"]
        if edit["kind"] == "source":
            plan["sources"] += edit["sources"]
        if edit["kind"] in ("stages", "source"):
            kept, left = [], edit["row"]
            for stage in plan["stages"]:
                kept.append(stage | {"rows": min(left, stage["rows"])})
                left -= kept[-1]["rows"]
            plan["stages"] = [stage for stage in kept if stage["rows"]] + edit["stages"]
            spans = [(first, min(end, edit["row"])) for first, end in plan["skip"]]
            plan["skip"] = [[first, end] for first, end in spans if first < end]
    return plan


def expected_turns(num_rows: int, weights: list[int]) -> list[int]:
    """Return whose turn each of the rows is, given one after another by Sainte-Lague."""
    given = [0] * len(weights)
    turns = []
    for _ in range(num_rows):
        able = [k for k, weight in enumerate(weights) if weight]
        best = able[0]
        for k in able[1:]:
            if (2 * given[k] + 1) * weights[best] < (2 * given[best] + 1) * weights[k]:
                best = k
        given[best] += 1
        turns.append(best)
    return turns


def expected_permutation(index: int, size: int, *key_parts: int | str) -> int:
    """Return where the keyed permutation sends `index`, with Python's own integers."""
    text = json.dumps(list(key_parts), separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=48).digest()
    keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 48, 8)]
    a = next(a for a in range(math.isqrt(size), size + 2) if a * a >= size)
    b = -(-size // a)
    while True:
        high, low = divmod(index, b)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                high = (high + _scaled(low ^ key, a)) % a
            else:
                low = (low + _scaled(high ^ key, b)) % b
        index = high * b + low
        if index < size:
            return index


def _scaled(x: int, bound: int) -> int:
    mask = 2**64 - 1
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & mask
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & mask
    x ^= x >> 33
    return (x >> 32) * bound >> 32


INDEX_SCHEMA = pa.schema(
    {
        "source": pa.string(),
        "path": pa.string(),
        "rows": pa.int64(),
        "first_row": pa.int64(),
        "size_bytes": pa.int64(),
        "digest": pa.string(),
    }
)


def _pack(
    shards: Shards, random: np.random.Generator, name: str, ordinal: int, num_rows: int
) -> None:
    """Lay documents one after another over the rows, some rows with a padded tail, then shuffle."""
    width = shards.seq_len + 1
    tokens = np.full((num_rows, width), PAD, shards.dtype)
    rows: list[list[Segment]] = []
    key, left, is_begun, position = -1, 0, False, 0
    for number in range(num_rows):
        row, at = [], 0
        end = width - int(random.integers(1, width // 2)) if random.random() < 0.2 else width
        while at < end:
            if not left:
                key, left, is_begun = (
                    ordinal << 40 | position,
                    int(random.integers(1, 2 * width)),
                    False,
                )
                shards.ids[key] = f"{name}/{name}.jsonl#{position}"
                position += 7
            size = min(left, end - at)
            left -= size
            if number == num_rows - 1:
                left = 0
            flags = (CONTINUES if is_begun else 0) | (GOES_ON if left else 0)
            row.append(Segment(at, at + size, key, flags))
            is_begun = True
            at += size
        tokens[number, :end] = random.integers(2, 60000, end)
        if end < width:
            row.append(Segment(end, width, -1, PADDING))
        rows.append(row)
    order = random.permutation(num_rows) if shards.shuffled[name] else np.arange(num_rows)
    shards.tokens[name] = tokens[order]
    shards.segments[name] = [rows[i] for i in order]


def write_index(shards: Shards) -> None:
    """Write the index of the parts."""
    columns = {name: [part[name] for part in shards.index] for name in INDEX_SCHEMA.names}
    pq.write_table(pa.table(columns, INDEX_SCHEMA), shards.path / "mix" / "index.parquet")


def write_part(shards: Shards, name: str, first: int, end: int) -> dict[str, Any]:
    """Write rows [first, end) of a source as a part; return its row of the index."""
    tokens, rows = shards.tokens[name][first:end], shards.segments[name][first:end]
    row_bytes = tokens.shape[1] * tokens.itemsize
    facts = {
        "format": 1,
        "source": name,
        "seq_len": shards.seq_len,
        "dtype": shards.dtype,
        "tokenizer": TOKENIZER["hash"],
        "first_row": first,
        "shuffled": shards.shuffled[name],
    }
    schema = pa.schema(
        [
            pa.field("tokens", pa.binary(row_bytes), nullable=False),
            pa.field("doc_starts", pa.list_(pa.int32())),
            pa.field("doc_keys", pa.list_(pa.int64())),
            pa.field("text_bytes", pa.list_(pa.int32())),
            pa.field("flags", pa.list_(pa.uint8())),
        ],
        metadata={"corpuskit": json.dumps(facts)},
    )
    columns = [
        [row.tobytes() for row in tokens],
        [[segment.start for segment in row] for row in rows],
        [[segment.key for segment in row] for row in rows],
        [[segment.text_bytes for segment in row] for row in rows],
        [[segment.flags for segment in row] for row in rows],
    ]
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    relative = f"tokens/{name}/part-{first:05d}-aa.parquet"
    path = shards.path / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        row_group_size=64,
        compression="none",
        use_dictionary=False,
        column_encoding="PLAIN",
        write_statistics=False,
        write_page_checksum=True,
        data_page_size=1 << 30,
    )
    return {
        "source": name,
        "path": relative,
        "rows": end - first,
        "first_row": first,
        "size_bytes": path.stat().st_size,
        "digest": xxhash.xxh3_128_hexdigest(path.read_bytes()),
    }


def write_lookups(shards: Shards) -> None:
    """Write the lookups of the documents that the rows hold, ids in two runs."""
    ids = sorted(shards.ids.items())
    half = len(ids) // 2
    runs = [
        ("ids", "", {"key": pa.int64(), "id": pa.string()}, part)
        for part in (ids[:half], ids[half:])
    ]
    hashes = sorted((id_hash(text), key) for key, text in ids)
    runs.append(("id_hashes", "", {"id_hash": pa.uint64(), "key": pa.int64()}, hashes))
    kinds = {
        "key": pa.int64(),
        "row": pa.int64(),
        "first_token": pa.int32(),
        "num_tokens": pa.int32(),
    }
    for name, rows in shards.segments.items():
        spans = sorted(
            (segment.key, row, segment.start, segment.end - segment.start)
            for row, segments in enumerate(rows)
            for segment in segments
            if segment.key >= 0
        )
        runs.append(("doc_rows", name, kinds, spans))
    lookups = []
    for number, (role, source, types, values) in enumerate(runs):
        if values:
            relative = f"work/lookups/{number}.arrow"
            write_exchange_run(shards.path / relative, types, values)
            lookups.append((role, relative, values[0][0], values[-1][0], source))
    kinds = {
        "role": pa.string(),
        "path": pa.string(),
        "first": pa.uint64(),
        "last": pa.uint64(),
        "source": pa.string(),
    }
    table = pa.table(
        [pa.array(c, t) for c, t in zip(zip(*lookups, strict=True), kinds.values(), strict=True)],
        names=list(kinds),
    )
    pq.write_table(table, shards.path / "mix" / "lookups.parquet")


def write_exchange_run(
    path: Path, types: dict[str, pa.DataType], rows: list[tuple[Any, ...]], batch_rows: int = 40
) -> None:
    """Write rows, sorted by the first column, in small batches so that ranges span several."""
    batches = []
    for i in range(0, len(rows), batch_rows):
        columns = zip(*rows[i : i + batch_rows], strict=True)
        arrays = [pa.array(c, t) for c, t in zip(columns, types.values(), strict=True)]
        batches.append(pa.record_batch(arrays, names=list(types)))
    facts = {
        "format": 1,
        "rows": len(rows),
        "first": [str(batch.column(0)[0].as_py()) for batch in batches],
        "crc32": [crc32(batch.serialize()) for batch in batches],
    }
    schema = pa.schema(types, metadata={"corpuskit": json.dumps(facts)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), schema) as file:
        for batch in batches:
            file.write_batch(batch.replace_schema_metadata(schema.metadata))


def id_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
