"""MB of token ids exported per CPU second, against copying the same bytes; and what other readers see.

`copy` reads the ids of the same rows from one file and writes them to another, 4 MiB at a time;
`hashed` takes their BLAKE2b on the way, as an export does; `pages` reads the parts with their page
checksums and writes nothing; `limit` is what these two cost together, the least that an export can.
Everything is in the page cache, CPU seconds are those of the process,
each figure is the best of `--repeats`. Memory is the growth of the peak while exporting.

    python benchmarks/exports.py [RUN_DIR] [--mib 512] [--repeats 3] [--check] [--megatron FOLDER]

Without RUN_DIR it packs documents of random ids and lengths: two sources, one of them taken twice.
`--check` reads what was exported with megatron-core, where it can be imported or FOLDER has it (it
needs torch), and compares every row with the parts as PyArrow alone reads them.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.shards import token_schema, write_tokens
from corpuskit.integrations.export import Request, export
from corpuskit.kernels.packing import best_fit, lay_out
from corpuskit.loader import plan_hash, read_mix
from corpuskit.loader.index import PLAN_FORMAT
from corpuskit.stages.sequences._rows import row_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PADDING = 2
SEQ_LEN, PART_ROWS = 2048, 8192
PIECE_BYTES = 4 << 20
REQUESTS = {
    "megatron, documents, stored": Request(),
    "megatron, rows, stored": Request(unit="row"),
    "megatron, documents, run": Request(order="run"),
}


def main() -> None:
    """Export in several ways, print a line each, and check what was asked to be checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", nargs="?", type=Path)
    parser.add_argument("--mib", type=int, default=512, help="ids of the run that is made")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="read with Megatron")
    parser.add_argument("--megatron", help="site-packages folder that has megatron-core")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = options.run_dir or write_run(folder / "run", options.mib)
        bench(run, folder, options.repeats)
        if options.check:
            if options.megatron:
                sys.path.append(options.megatron)
            check(run, folder)


def bench(run: Path, folder: Path, repeats: int) -> None:
    """Print the figures of copies, of verified reads, and of every kind of export."""
    raw = folder / "raw"
    with raw.open("wb") as file:
        for _, tokens, _ in stored_rows(run):
            file.write(tokens.tobytes())
    size = raw.stat().st_size
    floors = {
        "copy": lambda: copy(raw, folder / "copy", is_hashed=False),
        "hashed": lambda: copy(raw, folder / "copy", is_hashed=True),
        "pages": lambda: read_pages(run),
    }
    speeds = {name: size / cpu_seconds(work, repeats) / 1e6 for name, work in floors.items()}
    print(f"{size / 1e6:,.0f} MB of ids; MB per CPU second: " + ", ".join(
        f"{name} {speed:,.0f}" for name, speed in speeds.items()))  # fmt: skip
    limit = 1 / (1 / speeds["hashed"] + 1 / speeds["pages"])
    for name, request in REQUESTS.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        written = []

        def work(request: Request = request, written: list[int] = written) -> None:
            shutil.rmtree(folder / "out", ignore_errors=True)
            found = export(str(run), str(folder / "out"), request)
            itemsize = np.dtype(found["dtype"]).itemsize
            ids = sum(e["tokens"] + e["padding"] * (found["unit"] == "row") for e in found["files"])
            written.append(itemsize * ids)

        speed = 1 / cpu_seconds(work, repeats) * written[0] / 1e6
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"{name:28s} {speed:6,.0f} MB/s, of copy {speed / speeds['copy']:.2f}, of limit "
            f"{speed / limit:.2f}; memory +{growth / 1024:,.0f} MB",
            flush=True,
        )


def copy(source: Path, target: Path, *, is_hashed: bool) -> None:
    digest = hashlib.blake2b(digest_size=16)
    with source.open("rb", 0) as read, target.open("wb", 0) as write:
        while piece := read.read(PIECE_BYTES):
            write.write(piece)
            if is_hashed:
                digest.update(piece)


def read_pages(run: Path) -> None:
    for _ in stored_rows(run):
        pass


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of `work`."""
    taken = []
    for _ in range(repeats):
        gc.collect()
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def stored_rows(run: Path) -> Iterator[tuple[str, np.ndarray, list[Any]]]:
    """Yield (source, tokens, columns of the segments) of every row group, in order."""
    plan = json.loads((run / "mix" / "plan.json").read_text())
    for part in pq.read_table(run / plan["index"]).to_pylist():
        with pq.ParquetFile(run / part["path"], page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                column = table.column("tokens").chunk(0)
                ids = np.frombuffer(column.buffers()[1], plan["dtype"])
                yield part["source"], ids.reshape(-1, plan["seq_len"] + 1), table.columns[1:]


def write_run(run: Path, mib: int) -> Path:
    """Pack documents of random ids, lengths as of web pages, and plan a mixture of them."""
    random = np.random.default_rng(0)
    facts = {"tokenizer": "00ff"}
    entries, index = [], []
    for name, share in (("web", 0.8), ("books", 0.2)):
        rows = documents = tokens = 0
        while rows * 2 * (SEQ_LEN + 1) < mib * share * 1024 * 1024:
            lengths = np.minimum(random.lognormal(6.2, 1.05, 16384), SEQ_LEN + 1).astype(np.int64)
            table = pack(random, lengths, {**facts, "source": name, "first_row": rows})
            path = f"tokens/{name}/part-{rows:08d}.parquet"
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            write_tokens(run / path, table)
            content = (run / path).read_bytes()
            index.append({
                "source": name, "path": path, "rows": len(table), "first_row": rows,
                "size_bytes": len(content), "digest": blake(content),
            })  # fmt: skip
            rows += len(table)
            documents += len(lengths)
            tokens += int(lengths.sum())
        entries.append({
            "name": name, "rows": rows, "tokens": tokens, "documents": documents,
            "text_bytes": 4 * tokens, "max_epochs": 2.0, "shuffled": True,
        })  # fmt: skip
    write_plan(run, entries, index)
    return run


def pack(random: np.random.Generator, lengths: np.ndarray, facts: dict[str, Any]) -> pa.Table:
    """Return rows of random ids in which documents of these lengths lie, in random order."""
    width = SEQ_LEN + 1
    places, num_rows = best_fit(lengths, width)
    bounds, starts, which = lay_out(places, lengths, num_rows, width)
    is_pad = which < 0
    rows = random.integers(1, 50_000, (len(bounds) - 1, width), np.uint16)
    for segment in np.flatnonzero(is_pad).tolist():
        rows[np.searchsorted(bounds, segment, "right") - 1, starts[segment] :] = 0
    sizes = np.where(is_pad, 0, 4 * lengths[which]).astype(np.int32)
    lists = (starts, np.where(is_pad, -1, which), sizes, (PADDING * is_pad).astype(np.uint8))
    columns = [pa.ListArray.from_arrays(pa.array(bounds), pa.array(values)) for values in lists]
    schema = token_schema(SEQ_LEN, "uint16", {**facts, "shuffled": True})
    table = pa.Table.from_arrays([row_bytes(rows), *columns], schema=schema)
    return table.take(random.permutation(len(table))).combine_chunks()


def write_plan(run: Path, sources: list[dict[str, Any]], index: list[dict[str, Any]]) -> None:
    """Write a plan that takes the last source twice."""
    (run / "mix").mkdir()
    pq.write_table(pa.Table.from_pylist(index), run / "mix" / "index.parquet")
    weights = {source["name"]: source["rows"] for source in sources}
    weights[sources[-1]["name"]] *= 2
    plan: dict[str, Any] = {
        "format": PLAN_FORMAT, "name": "bench", "seed": 0, "seq_len": SEQ_LEN, "dtype": "uint16",
        "tokenizer": {"hash": "00ff", "vocab_size": 50_000, "eos": 0, "pad": 0},
        "sources": sources, "skip": [],
        "stages": [{"name": "main", "rows": sum(weights.values()), "weights": weights}],
    }  # fmt: skip
    plan["plan_hash"] = plan_hash(plan, blake((run / "mix" / "index.parquet").read_bytes()))
    plan |= {"index": "mix/index.parquet", "lookups": "mix/none", "files": "mix/none.json"}
    (run / "mix" / "plan.json").write_text(json.dumps(plan))


def blake(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def check(run: Path, folder: Path) -> None:
    """Compare what other readers see with the parts; raise on the first difference."""
    plan = read_mix(run)
    names = [source.name for source in plan.sources]
    groups: dict[str, list[Any]] = {name: [] for name in names}
    for name, tokens, columns in stored_rows(run):
        groups[name].append((tokens, columns))
    rows = {
        name: np.concatenate([tokens for tokens, _ in held])
        for name, held in groups.items()
        if held
    }
    counters = plan.skips.row_indices(np.arange(plan.skips.num_consumed))
    sources, numbers, _ = plan.order.rows_at(counters)
    delivered = [(names[k], row) for k, row in zip(sources.tolist(), numbers.tolist(), strict=True)]
    try:
        from megatron.core.datasets import indexed_dataset
    except ImportError as error:
        print(f"megatron-core: not checked, {error}")
        return
    check_megatron(run, folder, indexed_dataset.IndexedDataset, rows, groups, delivered)


def check_megatron(
    run: Path,
    folder: Path,
    opened: Callable[[str], Any],
    rows: dict[str, np.ndarray],
    groups: dict[str, list[Any]],
    delivered: list[tuple[str, int]],
) -> None:
    """Read documents of the sources, and rows of the run, as Megatron does."""
    export(str(run), str(folder / "documents"), Request())
    for name, held in groups.items():
        read = opened(str(folder / "documents" / name))
        number = 0
        for tokens, (starts, _, _, flags) in held:
            pairs = zip(starts.to_pylist(), flags.to_pylist(), strict=True)
            for row, (begins, marks) in enumerate(pairs):
                for begin, end, mark in zip(begins, [*begins[1:], None], marks, strict=True):
                    if not mark & PADDING:
                        assert (read[number] == tokens[row, begin:end]).all(), f"{name}: {number}"
                        number += 1
        assert len(read) == number == len(read.document_indices) - 1
        print(f"megatron-core: {number:,} documents of {name} are equal")
    export(str(run), str(folder / "rows"), Request(order="run", unit="row"))
    read = opened(str(folder / "rows" / "run"))
    assert len(read) == len(delivered)
    for number, (name, row) in enumerate(delivered):
        assert (read[number] == rows[name][row]).all(), f"row {number}"
    print(f"megatron-core: {len(read):,} rows of the run are equal")


if __name__ == "__main__":
    main()
