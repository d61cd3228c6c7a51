"""Personal data: speed against the references, what is found in real text, and time on hostile text.

Speed: MB per CPU second on one core; `find` is the scan alone, `stage` writes the new texts too. The
references and datatrove see `--slow-mb` of the same documents, evenly taken, in the same run. `re` are the
plain expressions that people use for the seven kinds that have one.
Hostile texts are one line of one piece over and over, at two sizes: linear work keeps the speed.

    python benchmarks/pii.py [--mb 100] [--slow-mb 10] [--repeats 5] [--hostile-mb 200] [--samples 0]

Reads bench_en from CORPUSKIT_SHARED_DATA. What is right and wrong: benchmarks/accuracy/pii.py.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.kernels.pii.scan import KINDS, find_pii
from corpuskit.stage import View
from corpuskit.stages.rewriters.pii import Pii

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracles import oracle_of

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH_ROWS = 1024
PLAIN = [
    re.compile(pattern, re.ASCII)
    for pattern in (
        r"\b[A-Za-z0-9._%+\-]+@[A-Za-z0-9.\-]+\.[A-Za-z]{2,24}\b",
        r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b",
        r"\b(?:[0-9a-fA-F]{1,4}:){2,7}(?::?[0-9a-fA-F]{1,4}){1,6}\b",
        r"(?:\+\d{1,3}[ .\-]?)?\(?\d{2,4}\)?[ .\-]\d{3,4}[ .\-]\d{3,4}\b",
        r"\b(?:\d[ \-]?){12,18}\d\b",
        r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
        r"\b\d{3}-\d{2}-\d{4}\b",
    )
]
HOSTILE = (
    "1",
    "@",
    ".",
    "a-",
    "a.",
    "1.",
    "1:",
    "1 ",
    "-",
    "a@",
    "sk-",
    "eyJ.",
    "phone: 1",
    "4111 ",
)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=100, help="text for our kernels")
    parser.add_argument("--slow-mb", type=float, default=10, help="text for the others")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hostile-mb", type=float, default=200, help="size of a hostile line")
    parser.add_argument("--samples", type=int, default=0, help="of each kind found, to look at")
    options = parser.parse_args()
    if not (DATA / "bench_en").exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    texts = documents(read_texts(), options.mb)
    speed(texts, options)
    findings(texts, options.samples)
    hostile(options.hostile_mb)


def read_texts() -> list[str]:
    """Return the texts of bench_en."""
    files = sorted((DATA / "bench_en").glob("*.parquet"))
    return [
        text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist()
    ]


def documents(texts: list[str], size_mb: float) -> list[str]:
    """Return the first texts, up to a size."""
    taken, left = 0, size_mb * 1e6
    while taken < len(texts) and left > 0:
        left -= len(texts[taken].encode())
        taken += 1
    return texts[:taken]


def batches(texts: list[str]) -> list[pa.RecordBatch]:
    """Return record batches as a stage sees them."""
    return [
        pa.record_batch({"text": pa.array(texts[first : first + BATCH_ROWS], pa.large_string())})
        for first in range(0, len(texts), BATCH_ROWS)
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def speed(texts: list[str], options: argparse.Namespace) -> None:
    """Print MB per CPU second of all of them."""
    from datatrove.pipeline.formatters import PIIFormatter

    few = documents(texts[::10], options.slow_mb)
    parts, formatter = batches(texts), PIIFormatter()
    stage, compatible = Pii(), Pii(mode="datatrove")
    reference = oracle_of(stage)
    assert reference is not None, "pii has a reference"

    def report(name: str, used: list[str], work: Callable[[], object], repeats: int = 1) -> float:
        seconds = min(cpu_seconds(work) for _ in range(repeats))
        rate = sum(len(text.encode()) for text in used) / 1e6 / seconds
        print(f"{name:34s} {rate:8.1f}", flush=True)
        return rate

    def scan(kinds: tuple[str, ...]) -> None:
        for view in views:
            find_pii(view.text.offsets, view.text.data, kinds)

    for one in (stage, compatible):
        one.apply(View(parts[0]))  # compiled, tables built
    print(f"{len(texts)} documents; MB per CPU second on one core")
    views, times = [View(part) for part in parts], options.repeats
    report("find, all kinds", texts, lambda: scan(KINDS), times)
    report("find, email ipv4 ipv6", texts, lambda: scan(KINDS[:3]), times)
    default = report("stage", texts, lambda: [stage.apply(View(p)) for p in parts], times)
    same = report(
        "stage, mode datatrove", texts, lambda: [compatible.apply(View(p)) for p in parts], times
    )
    plain = report("stage's reference (re)", few, lambda: [reference(text) for text in few])
    report("re, 7 plain expressions", few, lambda: [p.sub("x", t) for t in few for p in PLAIN])
    theirs = report("datatrove PIIFormatter", few, lambda: [formatter.format(text) for text in few])
    print(f"stage / its reference {default / plain:.0f}x, stage / datatrove {default / theirs:.0f}x, "
          f"mode datatrove / datatrove {same / theirs:.0f}x")  # fmt: skip
    compare(compatible, texts)


def compare(stage: Pii, texts: list[str], size_mb: float = 30) -> None:
    """Print on how many documents mode datatrove differs from a fresh PIIFormatter."""
    oracle = oracle_of(stage)
    assert oracle is not None, "pii has a reference"
    step = max(1, round(sum(map(len, texts)) / 1e6 / size_mb))
    few = texts[::step]
    changed = differ = 0
    for part in batches(few):
        view = View(part)
        outcome = stage.apply(view)
        after = outcome.text or view.text
        for row, text in enumerate(part.column("text").to_pylist()):
            expected = oracle(text)[1]
            changed += expected != text
            differ += after.row(row).decode() != expected
    print(
        f"mode datatrove differs on {differ} of {len(few)} documents, {changed} of them changed\n"
    )


def findings(texts: list[str], samples: int) -> None:
    """Print spans per MB of each kind, and some of them."""
    stage, counts, shown = Pii(), Counter[str](), {kind: [] for kind in KINDS}
    for part in batches(texts):
        view = View(part)
        spans = stage.apply(view).spans
        if spans is None:
            continue
        for row, start, end, code in zip(
            spans.rows, spans.starts, spans.ends, spans.codes, strict=True
        ):
            counts[KINDS[code - 1]] += 1
            if samples:
                data = view.text.row(row)
                shown[KINDS[code - 1]].append(
                    data[max(0, start - 20) : end + 8].decode(errors="replace")
                )
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"found in {size:.0f} MB of bench_en")
    for kind in KINDS:
        print(f"{kind:12s} {counts[kind]:6d} {counts[kind] / size:8.3f} per MB")
        for text in shown[kind][:: max(1, len(shown[kind]) // max(1, samples))][:samples]:
            print(f"    {text!r}")


def hostile(size_mb: float) -> None:
    """Print the speed on lines of one piece, a quarter of the size and whole."""
    print(f"\none line of one piece: MB per CPU second at {size_mb / 4:.0f} and {size_mb:.0f} MB")
    for mode in ("corpuskit", "datatrove"):
        stage = Pii(mode=mode)
        for piece in HOSTILE:
            slow, fast = (rate(stage, piece, part * size_mb) for part in (0.25, 1))
            print(f"{mode:10s} {piece!r:12s} {slow:8.0f} {fast:8.0f}", flush=True)


def rate(stage: Pii, piece: str, size_mb: float) -> float:
    """Return the MB per CPU second on one line of a piece."""
    part = batches([piece * int(size_mb * 1e6 / len(piece))])[0]
    return size_mb / cpu_seconds(lambda: stage.apply(View(part)))


if __name__ == "__main__":
    main()
