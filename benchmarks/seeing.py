"""What it costs to look at a run: report, why, inspect and status at 1e5 documents and 1e7 rows.

    python benchmarks/seeing.py --work DIR [--documents 100000] [--rows 10000000] [--only make-real
        make-ledger real ledger] [--workers 2]

Two runs are made below DIR, once; what is there is used again. `real`: bench_en, bench_multi and
code from CORPUSKIT_SHARED_DATA, cut into pages of about 1.6 kB at blank lines, so that there are
100,000 documents in three sources, with URLs; every kind of stage. `ledger`: 10,000,000 documents
of about 50 bytes with ids, in three sources, made by this script from a seed; filters, PII and
exact_dedup leave about as many ledger rows.

Then `report`, `why` (by id, for a document of each fate), `inspect` and `status` are called, each
in a process of its own: CPU seconds with start-up, wall seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

PAGE_BYTES = 1600
GROUP_ROWS = 1 << 16
FILE_GROUPS = 16
DISTINCT = 100_000
"""Texts that the copies of the small documents are copies of."""

REAL = {"web": "bench_en", "world": "bench_multi", "code": "code"}
SMALL = ("news", "forum", "shop")


# The real run.


def pages(text: str) -> Iterator[str]:
    """Yield a text in pages of about PAGE_BYTES, cut at blank lines."""
    page: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        page.append(paragraph)
        size += len(paragraph.encode()) + 2
        if size >= PAGE_BYTES:
            yield "\n\n".join(page)
            page, size = [], 0
    if size > 2:
        yield "\n\n".join(page)


def address(document: dict[str, Any], page: int) -> str:
    """Return a URL that the origin of a document makes up: host by origin, path by id."""
    names = re.findall(r"[a-z0-9]+", document["source"].lower())
    host = "-".join(names[1:] or names) + "." + names[0] + ".example.org"
    return f"https://www.{host}/{document['id']}?page={page}"


def write_real(folder: Path, num: int) -> None:
    """Write the pages of the three sources: to each the same share of its documents."""
    found: dict[str, list[dict[str, str]]] = {}
    for source, name in REAL.items():
        rows = [
            row
            for path in sorted((DATA / name).glob("*.parquet"))
            for row in pq.read_table(path, columns=["id", "text", "source"]).to_pylist()
        ]
        found[source] = [
            {"id": f"{row['id']}#{page}", "url": address(row, page), "text": text}
            for row in rows
            for page, text in enumerate(pages(row["text"]))
        ]
    total = sum(map(len, found.values()))
    if total < num:
        sys.exit(f"{DATA} has {total} pages. Give --documents {total}, or less.")
    folder.mkdir(parents=True)
    for place, (source, documents) in enumerate(found.items()):
        wanted = len(documents) * num // total if place else num
        if place == 0:
            wanted -= sum(len(other) * num // total for other in list(found.values())[1:])
        for part, begin in enumerate(range(0, wanted, 20_000)):
            chosen = documents[begin : min(begin + 20_000, wanted)]
            table = pa.Table.from_pylist(chosen)
            pq.write_table(table, folder / f"{source}-{part}.parquet", row_group_size=4000)


def real_pipeline(folder: Path, workers: int) -> dict[str, Any]:
    """Return the pipeline of the real run: every kind of stage."""
    words = "the of and to that with have be de la el und der die le et que en o e".split()
    return {
        "name": "real",
        "output": str(folder / "run"),
        "cell_bytes": 8_000_000,
        "sources": {
            source: {
                "parquet": str(folder / "in" / f"{source}-*.parquet"),
                "id_column": "id", "url_column": "url",
            }
            for source in REAL
        },
        "stages": [
            {"holdout": {"ratio": 0.002}},
            {"language": {"min_score": 0.2, "max_bytes": 4096}},
            {"gopher_quality": {"words": "whitespace", "min_words": 30, "stop_words": words}},
            {"fineweb_quality": {"words": "whitespace", "max_char_dup_ratio": 0.1}},
            "exact_dedup",
            "minhash_dedup",
            {"line_dedup": {"min_count": 200}},
            "pii",
            {"mix": {"weights": {"web": 6, "world": 3, "code": 1}, "max_epochs": 4}},
            {"tokenize": {"tokenizer": str(ROOT / "sample_data" / "tokenizer.json")}},
            {"pack": {"seq_len": 2048}},
            "shuffle",
        ],
        "executor": {"workers": workers},
    }  # fmt: skip


# The run with a large ledger.


def mixed(numbers: np.ndarray[Any, Any], salt: int) -> np.ndarray[Any, Any]:
    """Return well mixed 64-bit numbers (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) + np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def vocabulary() -> pa.Array:
    """Return 512 words of three to eight letters."""
    rng = np.random.default_rng(8)
    words: dict[str, None] = {}
    while len(words) < 512:
        letters = rng.choice(list("aeioubcdfglmnprst"), int(rng.integers(3, 9)))
        words["".join(letters)] = None
    return pa.array(words)


def small_documents(first: int, num: int, words: pa.Array) -> pa.Table:
    """Return small documents: short ones, symbols, copies, e-mail addresses, and plain ones."""
    index = np.arange(first, first + num, dtype=np.uint64)
    share = (mixed(index, 1) >> np.uint64(11)).astype(np.float64) / 2**53
    kinds = np.searchsorted([0.55, 0.65, 0.90, 0.98], share, "right")
    content = mixed(np.where(kinds == 2, mixed(index, 2) % np.uint64(DISTINCT), index), 3)
    columns = [
        words.take(pa.array((mixed(content, 10 + place) % np.uint64(512)).astype(np.int64)))
        for place in range(9)
    ]
    long = pc.binary_join_element_wise(*columns, " ")
    short = pc.binary_join_element_wise(*columns[:5], " ")
    ids = pc.binary_join_element_wise("doc-", pa.array(index.astype(np.int64)).cast("string"), "")
    mail = pc.binary_join_element_wise(long, columns[0], " ")
    mail = pc.binary_join_element_wise(mail, "mail.example.net", "@")
    marked = pc.binary_join_element_wise(long, "# # # #", " ")
    tables = (short, marked, long, mail, long)
    text = pa.concat_arrays(tables).take(pa.array(kinds * num + np.arange(num)))
    return pa.table({"id": ids, "text": text})


def write_small(folder: Path, num: int) -> None:
    """Write small documents in three sources, a million to a file."""
    folder.mkdir(parents=True)
    words = vocabulary()
    each = -(-num // len(SMALL))
    for place, source in enumerate(SMALL):
        begin, end = place * each, min((place + 1) * each, num)
        for part, first in enumerate(range(begin, end, GROUP_ROWS * FILE_GROUPS)):
            last = min(first + GROUP_ROWS * FILE_GROUPS, end)
            path = folder / f"{source}-{part:03d}.parquet"
            schema = small_documents(0, 1, words).schema
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for row in range(first, last, GROUP_ROWS):
                    writer.write_table(small_documents(row, min(GROUP_ROWS, last - row), words))


def small_pipeline(folder: Path, workers: int) -> dict[str, Any]:
    """Return the pipeline that leaves a ledger row for nearly every document."""
    off = dict.fromkeys(("min_stop_words", "max_bullet_lines_ratio", "max_ellipsis_lines_ratio"))
    return {
        "name": "ledger",
        "output": str(folder / "run"),
        "cell_bytes": 4_000_000,
        "sources": {
            source: {"parquet": str(folder / "in" / f"{source}-*.parquet"), "id_column": "id"}
            for source in SMALL
        },
        "stages": [
            {"gopher_quality": {"words": "whitespace", "min_words": 8, **off}},
            "pii",
            "exact_dedup",
        ],
        "executor": {"workers": workers},
    }


# Running and measuring.


def timed(arguments: list[str], folder: Path) -> tuple[dict[str, float], str]:
    """Run a command line in a process of its own; return what it cost and what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    log = folder / "command.log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "corpuskit", *arguments],
            stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    said = log.read_text("utf-8", errors="replace")
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code
    if code:
        sys.exit(f"{' '.join(arguments)}: exit {code}\n{said[-2000:]}")
    cost = {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_seconds": round(wall, 2),
        "peak_rss_mb": round(usage.ru_maxrss / 1024),
    }
    return cost, said


def make(folder: Path, kind: str, num: int, workers: int) -> None:
    """Write the corpus and run its pipeline, unless that was done."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "in").exists():
        (write_real if kind == "real" else write_small)(folder / "in.new", num)
        (folder / "in.new").rename(folder / "in")
    pipeline = (real_pipeline if kind == "real" else small_pipeline)(folder, workers)
    (folder / "p.yaml").write_text(yaml.safe_dump(pipeline, sort_keys=False))
    cost, _ = timed(["run", "p.yaml"], folder)
    print(json.dumps({"run": kind, **cost}), flush=True)


def fates(run: Path) -> dict[str, str]:
    """Return the id of one document of each fate, from the middle of a ledger part."""
    found: dict[str, str] = {}
    for path in sorted(run.glob("ledger/*.parquet")):
        table = pq.read_table(path, columns=["doc_id", "stage", "action"])
        names = pc.binary_join_element_wise(table.column("action"), table.column("stage"), " ")
        for name in names.unique().to_pylist():
            if name not in found:
                rows = table.filter(pc.equal(names, name))
                found[name] = rows.column("doc_id")[len(rows) // 2].as_py()
    documents = sorted(run.glob("documents/*.parquet"))
    kept = pq.read_table(documents[len(documents) // 2], columns=["id"]).column("id")
    return {**found, "kept": kept[len(kept) // 2].as_py()}


def look(folder: Path) -> None:
    """Call the commands that look at a run, and print what each costs."""
    run = folder / "run"
    rows = sum(pq.read_metadata(path).num_rows for path in run.glob("ledger/*.parquet"))
    print(json.dumps({"ledger_rows": rows, "run": folder.name}), flush=True)
    asked = {
        "report": ["report", str(run)],
        "status": ["status", str(run), "--json"],
        "inspect": ["inspect", str(run), "-n", "5"],
    }
    for name, arguments in asked.items():
        cost, _ = timed(arguments, folder)
        page = run / "report.html"
        more = {"page_bytes": page.stat().st_size} if name == "report" and page.exists() else {}
        print(json.dumps({"command": name, **cost, **more}), flush=True)
    for fate, document in fates(run).items():
        cost, _ = timed(["why", str(run), document], folder)
        print(json.dumps({"command": "why", "fate": fate, **cost}), flush=True)


def main() -> None:
    """Make the runs that are not there, and look at them."""
    choices = ("make-real", "make-ledger", "real", "ledger")
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=choices, default=list(choices))
    given = parser.parse_args()
    work = given.work.resolve()
    for kind, num in (("real", given.documents), ("ledger", given.rows)):
        step = f"make-{kind}"
        if given.only == [step]:
            make(work / kind, kind, num, given.workers)
        elif step in given.only:
            # Apart: Linux counts the peak of who starts a process as that of the process.
            subprocess.run([sys.executable, *sys.argv, "--only", step], check=True)
        if kind in given.only:
            look(work / kind)


if __name__ == "__main__":
    main()
