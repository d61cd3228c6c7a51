"""Deduplication beside its peers: CPU, memory and decisions on the same documents, one by one.

    python benchmarks/dedup_peers.py [--sets neardup bench_en] [--copies 1] [--repeats 2]
        [--only minhash|exact|lines] [--record FILE] [--skip-slow] [--ours JSON]
        [--python PEERS] [--text-dedup-python PYTHON] [--dolma-python PYTHON]

Every row is one run of an adapter of `benchmarks/peers/` in the interpreter of the peer; rows whose
interpreter is not given are left out, or shown as `--record` has them from an earlier run. `start`
is what the same run costs over ten documents (imports, start of workers, load of kernels), `net`
the rate without it. Rows `Parquet to masks` are the passes of our stage, without starting Python
and loading kernels. Agreement is that with neardup/pairs.parquet, which knows every pair of
Jaccard >= 0.2: groups are the single-link components at a threshold; a group with none kept is
wiped, documents kept beyond one are left over; precision counts removed documents whose group keeps
one, recall those that should go. Reads CORPUSKIT_SHARED_DATA.

The environment of PEERS: datatrove 0.10.1 with tokenizers, spacy and xxhash < 4, datasketch, rensa,
daft, polars, pyarrow; text-dedup and dolma have their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", HERE.parents[1] / "shared" / "data"))
THRESHOLDS = (0.72, 0.8)
NUM_WARM = 10


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: an adapter, its variant, and which interpreter runs it."""

    name: str
    adapter: str
    variant: str = ""
    python: str = "python"
    is_slow: bool = False
    """Minutes, not seconds: once is enough."""


MINHASH = (
    Case("datatrove, 4 stages", "datatrove_minhash", is_slow=True),
    Case("text-dedup", "text_dedup_minhash", "", "text_dedup_python", is_slow=True),
    Case("datasketch MinHashLSH + union-find", "datasketch_minhash", is_slow=True),
    Case("rensa deduplicator", "rensa_minhash"),
    Case("rensa digests + banding", "rensa_minhash", "bands"),
    Case("daft minhash + banding", "daft_minhash"),
    Case("daft normalize, minhash + banding", "daft_minhash", "normalized"),
)
EXACT = (
    Case("polars unique, streaming", "polars_unique"),
    Case("polars unique, in memory", "polars_unique", "memory"),
    Case("polars unique, eager", "polars_unique", "eager"),
)
LINES = (Case("dolma paragraph Bloom", "dolma_paragraphs", "dolma_python"),)
OURS = {
    "minhash": {
        "corpuskit, verify: 0.8 (default)": {"minhash_dedup": {}},
        "corpuskit, verify: 0.72": {"minhash_dedup": {"verify": 0.72}},
        "corpuskit, bands alone": {"minhash_dedup": {"verify": None}},
        "corpuskit, bands alone, datatrove's": {
            "minhash_dedup": {"verify": None, "scheme": "datatrove"}
        },
    },
    "exact": {"corpuskit exact_dedup": {"exact_dedup": {}}},
    "lines": {
        "corpuskit line_dedup, all lines": {"line_dedup": {"min_count": 2, "min_bytes": 1}},
        "corpuskit line_dedup": {"line_dedup": {}},
    },
}
PEERS = {"minhash": MINHASH, "exact": EXACT, "lines": LINES}


def main() -> None:
    """Run all cases and print the tables."""
    options = parsed()
    record = Path(options.record) if options.record else None
    known = json.loads(record.read_text("utf-8")) if record and record.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for chosen in options.sets:
            documents = write_set(Path(name), chosen, options.copies)
            label = chosen + (f" x {options.copies}" if options.copies > 1 else "")
            truth = Truth.read() if chosen == "neardup" and options.copies == 1 else None
            for kind in options.only:
                found = known.setdefault(f"{label}/{kind}", {})
                run_cases(cases(kind, options), documents, options, found)
                if record:
                    record.write_text(json.dumps(known), "utf-8")
                show(f"{kind}, {label}", documents, found, truth if kind == "minhash" else None)


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["neardup", "bench_en"])
    parser.add_argument("--copies", type=int, default=1, help="of each set, edited")
    parser.add_argument("--only", nargs="+", default=["minhash", "exact"])
    environment = os.environ.get
    parser.add_argument("--python", default=environment("CORPUSKIT_PEERS_PYTHON"))
    parser.add_argument("--text-dedup-python", default=environment("CORPUSKIT_TEXT_DEDUP_PYTHON"))
    parser.add_argument("--dolma-python", default=environment("CORPUSKIT_DOLMA_PYTHON"))
    parser.add_argument("--ours", help="rows of ours instead: JSON, name -> stage")
    parser.add_argument("--skip-slow", action="store_true", help="peers that take minutes")
    parser.add_argument("--record", help="JSON file that keeps the results of all rows")
    parser.add_argument("--repeats", type=int, default=2, help="of quick rows; the least counts")
    return parser.parse_args()


def cases(kind: str, options: argparse.Namespace) -> list[Case]:
    """Return the rows of a table: ours last, next to the quickest peers."""
    ours = json.loads(options.ours) if options.ours else OURS[kind]
    peers = [one for one in PEERS[kind] if not (options.skip_slow and one.is_slow)]
    mine = [Case(name, "corpuskit_run", json.dumps(one), "") for name, one in ours.items()]
    return peers + mine


def run_cases(
    chosen: list[Case], documents: Path, options: argparse.Namespace, found: dict[str, Any]
) -> None:
    """Run the cases whose interpreter is given; fill `found`."""
    few = documents.with_name("few.parquet")
    pq.write_table(pq.read_table(documents).slice(0, NUM_WARM), few)
    for case in chosen:
        python = getattr(options, case.python) if case.python else sys.executable
        if not python:
            continue
        repeats = 1 if case.is_slow else options.repeats
        if case.variant == "dolma_python":
            if not options.dolma_python:
                continue
            case = dataclasses.replace(case, variant=options.dolma_python)
        # The first one compiles and fills caches, ours and others'.
        starts = [run(python, case, few) for _ in range(2)]
        best = min((run(python, case, documents) for _ in range(repeats)), key=cpu)
        best["start_seconds"] = min(map(cpu, starts))
        found[case.name] = best
        print(f"  {case.name}: {cpu(best):.1f} CPU s", file=sys.stderr)


def run(python: str, case: Case, documents: Path) -> dict[str, Any]:
    """Run an adapter and return what it found out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [python, str(HERE / "peers" / f"{case.adapter}.py"), str(documents), str(out),
             case.variant],
            text=True, capture_output=True, check=False, cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder},
        )  # fmt: skip
        if done.returncode or not out.exists():
            sys.exit(f"{case.name}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        return dict(json.loads(out.read_text("utf-8")))


def cpu(facts: dict[str, Any]) -> float:
    return float(facts["cpu_seconds"])


def write_set(folder: Path, name: str, copies: int) -> Path:
    """Write a set of documents as one Parquet file of `id` and `text`; copies are edited."""
    paths = [DATA / "neardup" / "docs.parquet"] if name == "neardup" else []
    paths = paths or sorted((DATA / name).glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(path, columns=["id", "text"]) for path in paths)
    path = folder / f"{name}.parquet"
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for copy in range(copies):
            writer.write_table(edited(table, copy) if copy else table, row_group_size=4096)
    return path


def edited(table: pa.Table, copy: int) -> pa.Table:
    """Return documents that resemble those of no other copy: each word begins by a letter of its own.

    A tenth of them stay as they are, so that there are duplicates across copies.
    """
    mark = f" {chr(97 + copy % 26)}{copy // 26 or ''}"
    texts = [
        text if number % 10 == 0 else text.replace(" ", mark)
        for number, text in enumerate(table.column("text").to_pylist())
    ]
    ids = [f"{one}/{copy}" for one in table.column("id").to_pylist()]
    return pa.table({"id": ids, "text": texts}, schema=table.schema)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How the kept documents meet the groups of a truth; a document alone is a group."""

    one_kept: int
    left_over: int
    wiped: int
    removed: int

    def words(self) -> str:
        right = self.removed - self.wiped
        wanted = right + self.left_over
        return (
            f"{self.one_kept:6,} {self.left_over:5,} {self.wiped:6,}"
            f"{right / max(self.removed, 1):7.3f} {right / max(wanted, 1):6.3f}"
        )


@dataclasses.dataclass(frozen=True)
class Truth:
    """Groups of documents by threshold; each document's group is named by its first."""

    ids: tuple[str, ...]
    groups: dict[float, np.ndarray]

    @classmethod
    def read(cls) -> Truth:
        """Read the pairs and join them."""
        sys.path.insert(0, str(HERE / "peers"))
        from adapter import roots

        ids = tuple(pq.read_table(DATA / "neardup" / "docs.parquet")["id"].to_pylist())
        place = {one: number for number, one in enumerate(ids)}
        pairs = pq.read_table(DATA / "neardup" / "pairs.parquet").to_pylist()
        groups = {}
        for bound in THRESHOLDS:
            close = [
                (place[pair["id_a"]], place[pair["id_b"]])
                for pair in pairs
                if pair["jaccard_word5"] >= bound
            ]
            groups[bound] = np.array(roots(len(ids), close))
        return cls(ids, groups)

    def agreement(self, kept: list[str], bound: float) -> Agreement:
        """Return how many groups of the threshold keep one document, several, none."""
        chosen = set(kept)
        is_kept = np.array([one in chosen for one in self.ids])
        group = self.groups[bound]
        counts = np.bincount(group[is_kept], minlength=len(group))[np.unique(group)]
        over = int(np.maximum(counts - 1, 0).sum())
        wiped, one = int((counts == 0).sum()), int((counts == 1).sum())
        return Agreement(one, over, wiped, int((~is_kept).sum()))


def show(title: str, documents: Path, found: dict[str, Any], truth: Truth | None) -> None:
    """Print a table."""
    table = pq.read_table(documents)
    size = sum(len(text.encode()) for text in table.column("text").to_pylist()) / 1e6
    print(f"\n{title}: {len(table):,} documents, {size:.1f} MB")
    head = f"{'':42}{'CPU s':>8}{'start':>7}{'MB/CPU s':>9}{'net':>7}{'peak MB':>9}{'removed':>9}{'MB cut':>8}"
    if truth:
        head += "".join(f" | J >= {bound}: one  over  wiped  prec.  recall" for bound in THRESHOLDS)
    print(head)
    if truth:
        cells = " | ".join(f"{'':12}{truth_line(truth.groups[bound]):<26}" for bound in THRESHOLDS)
        print(f"{'exact Jaccard, single link':99} | {cells}")
    for name, facts in found.items():
        removed = len(table) - len(facts["kept"])
        line = f"{name + ' ' + facts['version']:42}" + costs(facts, size) + f"{removed:9,}"
        line += f"{facts.get('cut_bytes', 0) / 1e6:8.1f}"
        if truth:
            pairs = [truth.agreement(facts["kept"], bound).words() for bound in THRESHOLDS]
            line += "".join(f" |       {words}" for words in pairs)
        print(line)
        own = [one["cpu_seconds"] for one in facts.get("phases", {}).values()]
        if own:
            print(f"{'  Parquet to masks':42}{sum(own):8.2f}{'':7}{size / sum(own):9.1f}")


def truth_line(groups: np.ndarray) -> str:
    """Return how many groups there are, and how many documents are too many."""
    num = len(np.unique(groups))
    return f"{num:,} groups, {len(groups) - num:,} too many"


def costs(facts: dict[str, Any], size: float) -> str:
    """Return the columns of a row that are about cost."""
    seconds, start = cpu(facts), facts["start_seconds"]
    net = size / max(seconds - start, 1e-9)
    peak = facts["peak_rss_bytes"] / 1e6
    return f"{seconds:8.2f}{start:7.2f}{size / seconds:9.1f}{net:7.1f}{peak:9.0f}"


if __name__ == "__main__":
    main()
