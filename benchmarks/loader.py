"""Tokens per CPU second of the streaming loader, against the least that such a loader can do.

`gather` copies rows out of one memory map and widens them to int32, once for each of the fields; it
verifies nothing. `limit` does the same to 64 rows at a time and folds their CRC, too: no loader that
verifies its pages can do less. `arrow` is the verified read of the same row groups by PyArrow alone,
`pages` the loader's own, and `batches` what is made of rows in memory; nothing but both costs
`floor`. Everything is in the page cache, CPU seconds are those of the whole process, and each figure
is the best of `--repeats`, which take turns. `read/used` is read amplification: rows of the row
groups that were read, per row delivered. It grows with the ranks, because each takes some rows of
every row group.

    python benchmarks/loader.py [--mib 256] [--repeats 3] [--threads 1] [--fields tokens labels]
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.loader import StreamingLoader
from corpuskit.loader.assemble import Assembled, BufferPool, PlainRows, choose_fields
from corpuskit.loader.index import ROWS_PER_GROUP, plan_hash
from corpuskit.loader.parts import TOKEN_COLUMNS, FoldedCrc, OpenParts, TokenPages
from corpuskit.loader.stream import ASSEMBLED_BYTES
from corpuskit.storage import digest_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.loader import MixPlan
    from corpuskit.loader.assemble import BatchFields

BATCH_ROWS = 16
GROUPS_PER_READ = 16
MEAN_DOCUMENT_TOKENS = 850


def main() -> None:
    """Run every layout and order, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="tokens of each layout")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="reader threads")
    parser.add_argument("--fields", nargs="+", metavar="NAME", help="of a batch; all by default")
    options = parser.parse_args()
    print("M tokens per CPU second; floor: pages and batches; `of limit` is loader / limit")
    print(
        "seq_len dtype   order     ranks  gather   limit   arrow   pages  batches   floor  loader"
        "  of limit  read/used  order us/row"
    )
    for seq_len, dtype in ((2048, "uint16"), (8192, "uint16"), (8192, "uint32")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            write_run(path, seq_len, dtype, options.mib)
            for order, ranks in (("stored", 1), ("permuted", 1), ("stored", 8)):
                figures = measure(path / order, ranks, options)
                print(f"{seq_len:7d} {dtype}  {order:9s} {ranks:4d} {figures}", flush=True)


def measure(run_dir: Path, ranks: int, options: argparse.Namespace) -> str:
    """Return one line of figures, those of the first rank."""
    loader = StreamingLoader(
        run_dir,
        ranks * BATCH_ROWS,
        0,
        ranks,
        reader_threads=options.threads,
        fields=options.fields,
    )
    plan, begin = loader.plan, loader.state_dict()
    fields = choose_fields(options.fields, 1)
    steps = np.arange(loader.num_steps)[:, None]
    counters = (steps * ranks * BATCH_ROWS + np.arange(BATCH_ROWS)).reshape(-1)
    rows = plan.order.rows_at(counters).rows
    raw = np.memmap(run_dir.parent / "raw", plan.dtype, "r").reshape(-1, plan.seq_len + 1)
    raw.sum()  # into the page cache

    def load() -> None:
        loader.load_state_dict(begin)
        for _ in loader:
            pass

    works = (
        (lambda: gather(raw, rows, fields), len(rows)),
        (lambda: check_and_widen(raw, fields), len(raw)),
        (lambda: read(plan), len(raw)),
        (lambda: read_pages(plan, fields), len(raw)),
        (lambda: assemble(raw, len(rows), fields), len(rows)),
        (load, len(rows)),
    )
    seconds = cpu_seconds([work for work, _ in works], options.repeats)
    speeds = [n * plan.seq_len / t / 1e6 for (_, n), t in zip(works, seconds, strict=True)]
    gathered, limit, arrow, pages, batches, loaded = speeds
    counts = loader.read_counts
    loader.close()
    amplification = counts.rows_read / counts.rows_used
    floor = 1 / (amplification / pages + 1 / batches)
    (order_seconds,) = cpu_seconds([lambda: walk(plan, counters)], options.repeats)
    return (
        f"{gathered:8.0f} {limit:7.0f} {arrow:7.0f} {pages:7.0f} {batches:8.0f} {floor:7.0f}"
        f" {loaded:7.0f} {loaded / limit:9.2f} {amplification:10.2f}"
        f" {order_seconds / len(rows) * 1e6:13.2f}"
    )


def gather(raw: np.ndarray, rows: np.ndarray, fields: BatchFields) -> None:
    """Copy rows, a batch at a time, and widen them."""
    made = np.empty((len(fields.large), BATCH_ROWS, raw.shape[1] - 1), np.int32)
    for chosen in np.split(rows, len(rows) // BATCH_ROWS):
        widen(raw[chosen], made)


def check_and_widen(raw: np.ndarray, fields: BatchFields) -> None:
    """Copy all rows out of the map into the same memory, fold their CRC, and widen them."""
    made = np.empty((len(fields.large), ROWS_PER_GROUP, raw.shape[1] - 1), np.int32)
    copied, crc = np.empty_like(raw[:ROWS_PER_GROUP]), FoldedCrc()
    for first in range(0, len(raw), ROWS_PER_GROUP):
        np.copyto(copied, raw[first : first + ROWS_PER_GROUP])
        crc.add(copied.view(np.uint8).reshape(-1))
        widen(copied, made)
    crc.value()


def widen(stored: np.ndarray, made: np.ndarray) -> None:
    """Write inputs, and labels or whatever else has a number for each token."""
    for number, array in enumerate(made):
        array[:] = stored[:, 1:] if number else stored[:, :-1]


def read(plan: MixPlan) -> None:
    """Read every part once by PyArrow, pages verified."""
    for part in plan.parts.paths:
        path = plan.files.where(part)
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(TOKEN_COLUMNS), use_threads=False)


def read_pages(plan: MixPlan, fields: BatchFields) -> None:
    """Read every part once the way the loader does, pages verified."""
    parts, pages = OpenParts(plan, max_open=1), TokenPages()
    for number, num_rows in enumerate(plan.parts.rows.tolist()):
        groups = range(-(-num_rows // ROWS_PER_GROUP))
        for first in groups[::GROUPS_PER_READ]:
            some = list(groups[first : first + GROUPS_PER_READ])
            parts.read_rows(number, some, fields.columns, pages, Nowhere())
    parts.close()


class Nowhere:
    """Takes rows and does nothing with them."""

    def destination(self, number: int) -> None:
        """Have no memory for them."""

    def put(self, number: int, tokens: np.ndarray) -> None:
        """Leave them."""


def assemble(raw: np.ndarray, num_rows: int, fields: BatchFields) -> None:
    """Make batches of rows whose documents have the mean length."""
    length = raw.shape[1] - 1
    row_bytes = 4 * length * len(fields.large)
    together = max(1, ASSEMBLED_BYTES // (BATCH_ROWS * row_bytes)) * BATCH_ROWS
    others = {name: np.zeros(together, np.int64) for name in ("source_ids", "row_ids", "run_rows")}
    starts = np.arange(0, length, MEAN_DOCUMENT_TOKENS, dtype=np.int32)
    counts = np.full(together, len(starts), np.int32)
    pads, memory = np.full(together, length + 1, np.int32), BufferPool()
    for first in range(0, num_rows - together + 1, together):
        rows = PlainRows(
            raw[first : first + together],
            np.tile(starts, together),
            counts,
            pads,
            np.zeros(together, np.int64),
        )
        made = Assembled(memory, fields, rows, length, others, batch_rows=BATCH_ROWS)
        for _ in made.batches(range(together // BATCH_ROWS)):
            pass


def walk(plan: MixPlan, counters: np.ndarray) -> None:
    """Compute the order the way a reader does, thousands of rows at a time."""
    for window in np.split(counters, range(8192, len(counters), 8192)):
        plan.order.rows_at(window)


def cpu_seconds(works: list[Callable[[], None]], repeats: int) -> list[float]:
    """Return the least CPU time of each of some works, which take turns."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, seconds in zip(works, taken, strict=True):
            gc.collect()
            begun = time.process_time()
            work()
            seconds.append(time.process_time() - begun)
    return [min(seconds) for seconds in taken]


def write_run(path: Path, seq_len: int, dtype: str, mib: int) -> None:
    """Write two run directories over the same parts, `stored` and `permuted`, and the rows raw."""
    row_bytes = (seq_len + 1) * np.dtype(dtype).itemsize
    num_rows = (mib << 20) // row_bytes // 64 * 64
    random = np.random.default_rng(0)
    tokens = random.integers(0, 50_000, (num_rows, seq_len + 1), dtype).view(np.dtype(dtype))
    tokens.tofile(path / "raw")
    (path / "tokens").mkdir()
    part_rows = (64 << 20) // row_bytes // 64 * 64
    parts = [
        write_part(path / "tokens", tokens[first : first + part_rows], first, random)
        for first in range(0, num_rows, part_rows)
    ]
    for name in ("stored", "permuted"):
        write_plan(path / name, seq_len, dtype, num_rows, parts, is_stored=name == "stored")


def write_part(
    path: Path,
    tokens: np.ndarray,
    first_row: int,
    random: np.random.Generator,
    document_tokens: int = MEAN_DOCUMENT_TOKENS,
) -> dict[str, object]:
    """Write one part with documents of random lengths; return its line of the index."""
    num_rows, width = tokens.shape
    starts = [
        [0, *sorted(set(random.integers(1, width, width // document_tokens).tolist()))]
        for _ in range(num_rows)
    ]
    facts = {
        "format": 1,
        "source": "web",
        "seq_len": width - 1,
        "dtype": tokens.dtype.name,
        "tokenizer": "00",
        "first_row": first_row,
    }
    size = width * tokens.itemsize
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(size), num_rows, [None, pa.py_buffer(np.ascontiguousarray(tokens))]
    )
    lists = {
        "doc_starts": pa.int32(),
        "doc_keys": pa.int64(),
        "text_bytes": pa.int32(),
        "flags": pa.uint8(),
    }
    none = [[0] * len(row) for row in starts]
    schema = pa.schema(
        [
            pa.field("tokens", values.type, nullable=False),
            *(pa.field(name, pa.list_(kind)) for name, kind in lists.items()),
        ],
        metadata={"corpuskit": json.dumps(facts)},
    )
    columns = [
        pa.array(v, f.type)
        for v, f in zip((starts, none, none, none), list(schema)[1:], strict=True)
    ]
    name = f"part-{first_row:08d}.parquet"
    pq.write_table(
        pa.table([values, *columns], schema=schema),
        path / name,
        row_group_size=64,
        compression="none",
        use_dictionary=False,
        column_encoding="PLAIN",
        write_statistics=False,
        write_page_checksum=True,
        data_page_size=1 << 30,
    )
    return {
        "source": "web",
        "path": f"tokens/{name}",
        "rows": num_rows,
        "first_row": first_row,
        "size_bytes": (path / name).stat().st_size,
        "digest": digest_file(path / name),
    }


def write_plan(
    run_dir: Path,
    seq_len: int,
    dtype: str,
    num_rows: int,
    parts: list[dict[str, object]],
    *,
    is_stored: bool,
    vocab_size: int = 50_000,
) -> None:
    """Write a plan that reads each row once, in stored order or permuted."""
    (run_dir / "mix").mkdir(parents=True)
    (run_dir / "tokens").symlink_to(run_dir.parent / "tokens")
    pq.write_table(pa.Table.from_pylist(parts), run_dir / "mix" / "index.parquet")
    plan = {
        "format": 2,
        "name": "benchmark",
        "seed": 0,
        "seq_len": seq_len,
        "dtype": dtype,
        "tokenizer": {"hash": "00", "vocab_size": vocab_size},
        "sources": [{"name": "web", "rows": num_rows, "max_epochs": 1, "shuffled": is_stored}],
        "stages": [{"name": "main", "rows": num_rows, "weights": {"web": 1}}],
        "skip": [],
        "index": "mix/index.parquet",
        "lookups": "mix/lookups.parquet",
        "files": "mix/files.json",
        "digests": {"lookups": "none", "files": "none"},
    }
    plan["plan_hash"] = plan_hash(plan, digest_file(run_dir / "mix" / "index.parquet"))
    (run_dir / "mix" / "plan.json").write_text(json.dumps(plan))


if __name__ == "__main__":
    main()
