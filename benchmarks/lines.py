"""line_dedup beside dolma's Bloom filter over paragraphs: CPU seconds, memory, exchange, agreement.

    python benchmarks/lines.py [--dolma COMMAND] [--folders bench_en bench_multi] [--keep DIR]

COMMAND is the `dolma` of an environment that has it (default: CORPUSKIT_DOLMA; without either, no
peer). Reads folders of CORPUSKIT_SHARED_DATA. Each of our rows is `corpuskit run` of the one stage
with one worker: CPU seconds of its phases, Parquet to cuts, as the seals have them, so without
starting processes; dolma's are of its process, JSON lines to
attributes, also less what it takes for a single short document. The floor reads the texts of the
same shards once and hashes all bytes. Agreement is per line, against a set in Python.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import xxhash

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))

AS_DOLMA = {"min_bytes": 1, "min_count": 2, "count": "occurrences", "min_document": 0}
"""Each line that was met before goes, as dolma has it."""

VARIANTS = {
    "as dolma": AS_DOLMA,
    "min_count 2": {"min_count": 2, "count": "occurrences"},
    "defaults": {},
    "case_digits": {"normalize": "case_digits"},
    "ccnet": {"normalize": "ccnet"},
    "paragraph": {"unit": "paragraph"},
}


class Texts(NamedTuple):
    """What both read, in the same order."""

    paths: dict[str, list[Path]]
    texts: dict[str, str]
    size_bytes: int


def read_texts(folders: list[str]) -> Texts:
    """Return ids and texts of all Parquet files of some folders."""
    paths = {name: sorted((DATA / name).glob("*.parquet")) for name in folders}
    texts = {}
    for name, files in paths.items():
        for path in files:
            table = pq.read_table(path, columns=["id", "text"])
            rows = zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
            texts |= {f"{name}/{one}": text for one, text in rows}
    return Texts(paths, texts, sum(len(text.encode()) for text in texts.values()))


def corpuskit(
    texts: Texts, parameters: dict[str, Any], output: Path
) -> dict[str, dict[str, float]]:
    """Run the stage; return CPU seconds, peak memory and bytes written by pass."""
    pipeline = {
        "output": str(output),
        "documents": False,
        "sources": {
            name: {"parquet": [str(path) for path in paths], "id_column": "id"}
            for name, paths in texts.paths.items()
        },
        "stages": [{"line_dedup": parameters}],
        "executor": {"workers": 1},
    }
    path = output.with_suffix(".yaml")
    path.write_text(json.dumps(pipeline), "utf-8")
    command = [sys.executable, "-m", "corpuskit", "run", str(path), "--until", "line_dedup"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    from corpuskit.engine.rundir import RunDirectory

    run = RunDirectory.open(str(output))
    found = {}
    for phase in run.plan.phases:
        if phase.pass_name:
            seal = run.seal(phase.index)
            found[phase.pass_name] = {
                "cpu": seal.timing.get("cpu_seconds", 0.0),
                "peak": seal.timing.get("peak_rss_bytes", 0.0),
                "runs": float(sum(p.size_bytes for p in seal.parts if p.role.startswith("run:"))),
            }
    return found


def show_ours(texts: Texts, folder: Path) -> float:
    """Print a row for each variant; return the CPU seconds of the first."""
    print(f"\n{'line_dedup':28}{'CPU s':>8}{'MB/s':>7}{'hash':>7}{'count':>7}{'apply':>7}"
          f"{'peak MB':>9}{'runs B/B':>10}{'cut B/B':>9}")  # fmt: skip
    first = 0.0
    for name, parameters in VARIANTS.items():
        output = folder / name.replace(" ", "-")
        # The first run compiles what is not cached yet.
        found = min(
            (corpuskit(texts, parameters, output.with_name(f"{output.name}-{n}")) for n in "12"),
            key=lambda passes: sum(one["cpu"] for one in passes.values()),
        )
        cpu = sum(one["cpu"] for one in found.values())
        first = first or cpu
        peak = max(one["peak"] for one in found.values())
        runs = sum(one["runs"] for one in found.values())
        cut = sum(end - start for rows in cuts(output.with_name(f"{output.name}-2")).values()
                  for start, end in rows)  # fmt: skip
        passes = "".join(f"{found[step]['cpu']:7.2f}" for step in ("hash", "count", "apply"))
        size = texts.size_bytes
        print(f"{name:28}{cpu:8.2f}{size / cpu / 1e6:7.0f}{passes}{peak / 1e6:9.0f}"
              f"{runs / size:10.3f}{cut / size:9.3f}")  # fmt: skip
    return first


def cuts(output: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the spans in the ledger, by source and id of the document."""
    found = {}
    for path in (output / "ledger").rglob("*.parquet"):
        table = pq.read_table(path, columns=["source", "doc_id", "spans"])
        for row in table.to_pylist():
            spans = [(span["start"], span["end"]) for span in row["spans"]]
            found[f"{row['source']}/{row['doc_id']}"] = spans
    return found


def floor(output: Path) -> tuple[float, float]:
    """Return the CPU seconds of reading the texts once, and of that with hashing all bytes."""
    from corpuskit.engine.documents import read_part
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.batch import utf8

    run = RunDirectory.open(str(output))
    parts = list(run.seal(0).by_role("documents"))
    best = [float("inf")] * 2
    for _ in range(3):
        for hashes in (False, True):
            began = time.process_time()
            for part in parts:
                for batch in read_part(run, part, ["text"]):
                    if hashes:
                        xxhash.xxh64_intdigest(utf8(batch.column("text")).data)
            best[hashes] = min(best[hashes], time.process_time() - began)
    return best[0], best[1]


def dolma(command: str, texts: dict[str, str], folder: Path, **more: Any) -> tuple[float, int]:
    """Run dolma's paragraph filter with one process; return CPU seconds and peak memory."""
    (folder / "documents").mkdir(parents=True)
    with gzip.open(folder / "documents" / "0.json.gz", "wt", compresslevel=1) as out:
        for one, text in texts.items():
            row = {"id": one, "text": text, "source": "web"}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    content = {
        "documents": [f"{folder}/documents/*.gz"],
        "dedupe": {
            "name": "bloom", "paragraphs": {"attribute_name": "seen"}, "skip_empty": True, **more
        },
        "bloom_filter": {
            "file": f"{folder}/bloom.bin",
            "read_only": False,
            "estimated_doc_count": 4_000_000,
            "desired_false_positive_rate": 1e-6,
        },
        "processes": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content), "utf-8")
    process = subprocess.Popen(
        [command, "-c", str(folder / "config.json"), "dedupe"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def seen(folder: Path) -> dict[str, list[int]]:
    """Return where the paragraphs begin that dolma took for known, in characters, by id."""
    with gzip.open(folder / "attributes" / "bloom" / "0.json.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["id"]: [int(span[0]) for span in row["attributes"]["seen"]] for row in rows}


def show_agreement(texts: Texts, ours: Path, theirs: Path | None) -> None:
    """Print how many lines each cuts that a set in Python does not, and the other way round."""
    spans = cuts(ours)
    starts = seen(theirs) if theirs else {}
    known: set[str] = set()
    counts = {"corpuskit": [0, 0, 0], "dolma": [0, 0, 0]}
    returns, lines, repeats = 0, 0, 0
    for one, text in texts.texts.items():
        begin, chars = 0, 0
        cut, dup = iter(spans.get(one, [])), set(starts.get(one, ()))
        span = next(cut, (1 << 62, 1 << 62))
        for line in text.split("\n"):
            while span[1] <= begin:
                span = next(cut, (1 << 62, 1 << 62))
            if line.strip():
                lines += 1
                is_known = line in known
                repeats += is_known
                known.add(line)
                for name, says in (("corpuskit", span[0] <= begin), ("dolma", chars in dup)):
                    counts[name][0] += says
                    counts[name][1] += says and not is_known
                    counts[name][2] += is_known and not says
                returns += line.endswith("\r")
            begin += len(line.encode()) + 1
            chars += len(line) + 1
    print(f"\n{lines:,} lines that are not blank, {repeats:,} met before; {returns:,} end with \\r")
    print(f"{'':12}{'cut':>12}{'not met before':>18}{'met, not cut':>16}")
    for name, (said, wrong, missed) in counts.items():
        if name == "corpuskit" or theirs:
            print(f"{name:12}{said:12,}{wrong:18,}{missed:16,}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dolma", default=os.environ.get("CORPUSKIT_DOLMA"))
    parser.add_argument("--folders", nargs="+", default=["bench_en", "bench_multi"])
    parser.add_argument("--keep", type=Path, help="an empty folder for what is written")
    given = parser.parse_args()
    texts = read_texts(given.folders)
    print(f"{texts.size_bytes / 1e6:.1f} MB of text, {len(texts.texts):,} documents")
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        ours = show_ours(texts, folder)
        reading, hashing = floor(folder / "as-dolma-2")
        print(f"floor: {reading:.2f} CPU s to read once, {hashing:.2f} to hash all bytes, too; "
              f"as dolma: {ours / hashing:.1f} times that")  # fmt: skip
        theirs = None
        if given.dolma:
            theirs = folder / "dolma"
            whole, peak = dolma(given.dolma, texts.texts, theirs)
            start, _ = dolma(given.dolma, {"a": "b"}, folder / "dolma-start")
            size = texts.size_bytes / 1e6
            print(f"\ndolma{whole:31.2f}{size / whole:7.0f}{'':21}{peak / 1e6:9.0f}")
            print(f"dolma, less its start ({start:.2f}){whole - start:9.2f}"
                  f"{size / (whole - start):7.0f}")  # fmt: skip
            print(f"line_dedup is {whole / ours:.1f} times as fast, {(whole - start) / ours:.1f} "
                  "times without dolma's start")  # fmt: skip
            dolma(given.dolma, dict(list(texts.texts.items())[:500]), folder / "dolma-words",
                  min_words=3)  # fmt: skip
            found = sum(map(len, seen(folder / "dolma-words").values()))
            print(f"dolma with min_words 3 on 500 documents: {found} paragraphs")
        show_agreement(texts, folder / "as-dolma-2", theirs)


if __name__ == "__main__":
    main()
