"""Everything that only a GPU can show, in less than ten minutes and without a network.

    make gpu [OUT=build/gpu] [PYTHON=python3] [WHEELS=folder]     on a machine with NVIDIA GPUs
    make gpu DRY=1                                               every part on CPU, reduced

Needs Python with torch, numpy, pyarrow, numba, pydantic and xxhash; torchao for float8. corpuskit
need not be installed. Where a package is missing and there is no network, bring it as a wheel:

    pip download --only-binary=:all: -d folder pydantic xxhash     where there is a network

Each part runs in a process of its own with a time limit; one that fails is recorded with its error
and does not stop the others. Writes OUT/gpu.json after each part, OUT/gpu.html, and what each part
printed to OUT/logs. Exit code: 1 if a part failed or is wrong, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu_parts import Place, Row, Work

ROOT = Path(__file__).resolve().parents[1]
NEEDS = ("torch", "numpy", "pyarrow", "numba", "pydantic", "xxhash")
ALL_SECONDS = 570.0  # of ten minutes; the rest is for start and page
# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (table 1, note 2; 500 W cards) and
# llama3_8b_h200_2025-06_torchtitan.md. Their MFU counts whole rows.
PUBLISHED = [
    {"model": "torchtitan 8B", "with": with_, "rows": 2, "tokens_per_second": rate, "mfu": mfu}
    for with_, rate, mfu in (
        ("8 x H100", 5762, "33 %"), ("8 x H100, compile", 6667, "39 %"),
        ("8 x H100, compile, float8", 8532, "-"), ("32 x H200, compile, float8", 10938, "-"),
    )
]  # fmt: skip
NOTES = {
    "attention": "Output and gradients: largest difference from float32 attention over a dense "
    "mask, as a share of the largest value. Wrong: more than twice that of sdpa.",
    "speed": "Ours: one GPU, rows of 8,192 tokens, AdamW, bfloat16, FSDP, no recomputation; "
    "documents of 850 tokens unless rows are whole; MFU counts the pairs of tokens that see each "
    "other. torchtitan: Llama 3.1 8B, rows of 8,192 tokens, FSDP, selective recomputation; tokens "
    "per second and GPU.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--dry", action="store_true", help="every part on CPU, reduced")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of missing packages")
    parser.add_argument("--only", nargs="+", default=[""], help="parts whose names begin so")
    asked = parser.parse_args(arguments)
    begun, about = time.monotonic(), {"dry": asked.dry, "seconds": 0.0, "parts": []}
    with tempfile.TemporaryDirectory(prefix="corpuskit-gpu-") as name:
        if problem := prepare(Path(name), asked.wheels):
            print(f"make gpu: {problem}", file=sys.stderr)
            return 2
        from benchmarks.gpu_parts import PARTS, Place, write_data

        place = Place(Path(name), asked.dry)
        (asked.out / "logs").mkdir(parents=True, exist_ok=True)
        write_data(place)
        for part in (part for part in PARTS if part.startswith(tuple(asked.only))):
            left = ALL_SECONDS - (time.monotonic() - begun)
            limit, work = PARTS[part]
            record = run_part(part, min(limit, left), work, place, asked.out / "logs")
            print(f"{part:28} {record['state']:10} {record['error']}", flush=True)
            if part == "machine" and record["state"] == "failed":
                print("make gpu: torch finds no GPU. Without one: make gpu DRY=1", file=sys.stderr)
                return 2
            about["parts"].append(record)
            about["seconds"] = time.monotonic() - begun
            (asked.out / "gpu.json").write_text(json.dumps(about, indent=1))
    (asked.out / "gpu.html").write_text(page(about), encoding="utf-8")
    print(f"wrote {asked.out / 'gpu.json'} and {asked.out / 'gpu.html'}")
    return int(any(part["state"] in ("failed", "timed out", "wrong") for part in about["parts"]))


def prepare(folder: Path, wheels: Path | None) -> str:
    """Make what is needed importable; return what is missing, if anything is."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking for devices must not touch CUDA
    sys.path = [str(ROOT), *sys.path, str(folder / "site")]
    for wheel in wheels.glob("*.whl") if wheels else ():
        zipfile.ZipFile(wheel).extractall(folder / "site")
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"{sys.executable} has no {', '.join(missing)}. Set PYTHON to one that has, or bring "
            f"wheels: pip download --only-binary=:all: -d wheels {' '.join(missing)}, where there "
            "is a network, then make gpu WHEELS=wheels."
        )
    try:
        importlib.import_module("benchmarks.gpu_parts")  # once, for all children
    except ImportError as error:
        return f"{sys.executable}: {error}. torch must be 2.12 or newer."
    return ""


def run_part(name: str, limit: float, work: Work, place: Place, logs: Path) -> Row:
    """Run a part in a process of its own, which leads its own group; return its record."""
    log, answer = logs / f"{name.replace(' ', '-')}.log", place.folder / f"{name}.jsonl"
    begun = time.monotonic()
    record: Row = {"part": name, "state": "left out", "error": "no time left"}
    answer.touch()
    if limit > 1:
        # Forked, so that it need not import torch anew, for 7 s.
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=_work, args=(work, place, log, answer))
        child.start()
        child.join(limit)
        state = {None: "timed out", 0: "ok", 3: "skipped"}.get(child.exitcode, "failed")
        if state == "timed out":
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
        lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        error = f"after {limit:.0f} s" if state == "timed out" else lines[-1]
        record |= {"state": state, "error": "" if state == "ok" else error}
    record["rows"] = [json.loads(line) for line in answer.read_text().splitlines()]
    wrong = [row["wrong"] for row in record["rows"] if "wrong" in row]
    if wrong and record["state"] == "ok":
        record |= {"state": "wrong", "error": "; ".join(wrong)}
    return record | {"seconds": time.monotonic() - begun}


def _work(work: Work, place: Place, log: Path, answer: Path) -> None:
    """Do a part in this process; write each row as it comes."""
    from benchmarks.gpu_parts import Skipped

    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
    warnings.simplefilter("default")  # into the log, whatever the caller does with them
    code = 0
    try:
        with answer.open("a") as file:
            for row in work(place):
                print(json.dumps(row), file=file, flush=True)
    except Skipped as reason:
        print(reason, flush=True)
        code = 3
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other parts go on
        traceback.print_exc()
        print(" ".join(f"{type(error).__name__}: {error}".split())[:400], flush=True)
        code = 1
    os._exit(code)


def page(about: Row) -> str:
    """Return all parts as one page that loads nothing."""
    from corpuskit.inspect.report.page import html_table, policy
    from corpuskit.inspect.training import FOLDER

    def cell(value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"

    style = (FOLDER / "training.css").read_text(encoding="utf-8")
    title = f"corpuskit on {'a CPU: reduced' if about['dry'] else 'a GPU'}"
    heads = ("part", "state", "seconds", "error")
    listed = [[cell(part[head]) for head in heads] for part in about["parts"]]
    tables = [html_table("Parts", heads, listed)]
    groups: dict[str, list[Row]] = {}
    for part in about["parts"]:
        groups.setdefault(part["part"].split()[0], []).extend(part["rows"])
    if "speed" in groups:
        groups["speed"] += PUBLISHED
    for name, rows in groups.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [[cell(row.get(column, "")) for column in columns] for row in rows]
        titles = [column.replace("_", " ") for column in columns]
        tables.append(html_table(name.capitalize(), titles, cells, NOTES.get(name, "")))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style], [])}">\n'
        f'<style>{style}</style>\n</head>\n<body>\n<section class="training">\n<h1>{title}</h1>\n'
        f'<p class="state">{about["seconds"]:.0f} seconds in all</p>\n{"".join(tables)}</section>\n'
        f"</body>\n</html>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
