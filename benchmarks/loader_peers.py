"""The streaming loader beside its peers: speed, first batch, resumption, access, memory.

    python benchmarks/loader_peers.py [--tokens 50] [--widths 2049 8193] [--repeats 3]
        [--only NAME ...] [--python litdata=PATH ...] [--record FILE]

The same rows of uint16 tokens in each loader's own format, batches of 8 rows, one process without
worker processes, everything in the page cache. Every figure is of a process of its own, the
processes of a round take turns, and the median of the rounds is shown. `import` and `first` are CPU
seconds to import the library and from there to the first batch; `at 90 %` the same from a state
saved there; `step` CPU milliseconds for a step taken out of turn; `grown` how much the memory that
is not of files grew after the first tenth of a long run. The rows differ in what they
deliver: the last column says so. benchmarks/peers/loaders.txt says how the environments are made.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from loader_process import Places, add_options, request


@dataclasses.dataclass(frozen=True)
class System:
    """One row of the table."""

    name: str
    adapter: str
    variant: str = ""
    store: str = ""
    """What others have written, if it is not its own."""


SYSTEMS = (
    System("memmap gather, reused array", "memmap", "gather"),
    System("memmap gather, inputs + labels", "memmap", "gather labels", "memmap gather"),
    System("memmap crops (nanoGPT)", "memmap", "crops", "memmap gather"),
    System("LitData TokensLoader", "litdata"),
    System("LitData, inputs + labels", "litdata", "labels", "litdata"),
    System("datatrove DatatroveFolderDataset", "datatrove"),
    System("datatrove, inputs + labels", "datatrove", "labels", "datatrove"),
    System("grain MapDataset on a memmap", "grain"),
    System("HF streamed Parquet, file order", "hf", "file order"),
    System("HF streamed Parquet, buffer 1000", "hf", "", "hf file order"),
    System("LanceDB StreamingDataset, file order", "lance", "file order"),
    System("LanceDB StreamingDataset", "lance", "", "lance file order"),
    System("LanceDB, inputs + labels", "lance", "file order labels", "lance file order"),
    System("MosaicML MDS", "mosaic"),
    System("corpuskit, tokens", "corpuskit", "tokens", "corpuskit"),
    System("corpuskit, tokens, permuted", "corpuskit", "permuted tokens", "corpuskit permuted"),
    System("corpuskit, inputs + labels", "corpuskit", "tokens labels", "corpuskit"),
    System("corpuskit, all fields", "corpuskit"),
    System("corpuskit, all fields, permuted", "corpuskit", "permuted"),
)
LIMITS = ("memmap",)


def main() -> None:
    """Write the stores, run all rounds, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=float, default=50, help="millions")
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[2049, 8193], help="tokens of a row"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="CPU seconds of a speed run")
    parser.add_argument("--memory-rows", type=int, default=100_000)
    parser.add_argument(
        "--measures", nargs="+", default=["speed", "first", "resume", "access", "memory"]
    )
    parser.add_argument("--record", help="JSON file for every figure of every run")
    add_options(parser)
    options = parser.parse_args()
    recorded = {}
    with tempfile.TemporaryDirectory() as temporary:
        places = Places.found(options, Path(options.folder or temporary).resolve())
        systems = [one for one in SYSTEMS if one.adapter in places.pythons]
        for width in options.widths:
            folder = places.folder / str(width)
            write_rows(folder / "raw", width, options.tokens)
            specs = {one.name: written(places, one, folder, width) for one in systems}
            figures = rounds(places, systems, specs, options, folder)
            recorded[width] = figures
            show(width, systems, figures, options)
            if not options.folder:
                shutil.rmtree(folder)
    if options.record:
        Path(options.record).write_text(json.dumps(recorded), "utf-8")


def write_rows(raw: Path, width: int, mega_tokens: float) -> None:
    """Write rows of tokens that are distributed like those of text, as far as a loader could care."""
    if raw.exists():
        return
    raw.mkdir(parents=True)
    num_rows = int(mega_tokens * 1e6) // width // 64 * 64
    random = np.random.default_rng(0)
    tokens = (random.zipf(1.3, num_rows * width) % 50_000).astype(np.uint16)
    np.save(raw / "web.npy", tokens.reshape(num_rows, width))


def written(places: Places, system: System, folder: Path, width: int) -> dict[str, Any]:
    """Store the rows for a system, unless they are; return how it is opened."""
    store = folder / (system.store or f"{system.adapter} {system.variant}".strip())
    spec = {"store": str(store), "width": width, "variant": system.variant}
    if not store.exists():
        facts = request(places, system.adapter, spec, "write", raw=str(folder / "raw"))
        if "error" in facts:
            sys.exit(f"{system.name}: {facts['error']}\n{facts.get('trace', '')}")
    return spec


def rounds(
    places: Places, systems: list[System], specs: dict[str, Any], options: Any, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Run every measure of every system in turns; return the answers by system and measure."""
    state = {one.name: folder / f"{one.adapter} {one.variant}.state" for one in systems}
    asked: dict[str, dict[str, Any]] = {
        "speed": {"action": "speed", "seconds": options.seconds, "warm_steps": 10_000},
        "first": {"action": "first", "share": 0},
        "resume": {"action": "first", "share": 0.9},
        "access": {"action": "access", "steps": 20},
        "memory": {"action": "memory", "rows": options.memory_rows, "seconds": 15},
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for turn in range(options.repeats):
        for measure in options.measures:
            if measure == "memory" and turn:
                continue
            for one in systems:
                ask = dict(asked[measure])
                if measure == "resume":
                    ask["state"] = str(state[one.name])
                    if not state[one.name].exists():
                        request(places, one.adapter, specs[one.name], **ask)
                facts = request(places, one.adapter, specs[one.name], **ask)
                found.setdefault(f"{one.name}/{measure}", []).append(facts)
                note = facts.get("error") or facts.get("not_offered") or ""
                print(f"  {turn} {measure} {one.name} {note}"[:150], file=sys.stderr, flush=True)
    return found


def median(
    found: dict[str, Any], name: str, measure: str, key: str = "cpu_seconds"
) -> float | None:
    """Return the median of a figure over the rounds, None if there is none."""
    values = [facts[key] for facts in found.get(f"{name}/{measure}", []) if key in facts]
    return statistics.median(values) if values else None


def speeds(found: dict[str, Any], name: str) -> list[float]:
    """Return the million tokens per CPU second of each round."""
    runs = [facts for facts in found.get(f"{name}/speed", []) if "tokens" in facts]
    return sorted(facts["tokens"] / facts["cpu_seconds"] / 1e6 for facts in runs)


def show(width: int, systems: list[System], found: dict[str, Any], options: Any) -> None:
    """Print the table of a row length, the versions, and where we stand."""
    print(
        f"\nrows of {width:,} tokens, {options.tokens:g} M tokens, batches of 8, median of {options.repeats}"
    )
    print(
        f"{'':33}{'Mtok/CPU s':>11}{'(min-max)':>14}{'of limit':>9}{'import':>8}{'first':>8}"
        f"{'at 90 %':>9}{'step ms':>9}{'rows':>9}{'grown MB':>9}  delivers"
    )
    limit = statistics.median(speeds(found, SYSTEMS[1].name) or [float("nan")])
    middle = {}
    used: dict[str, str] = {}
    for one in systems:
        values = speeds(found, one.name)
        middle[one.name] = statistics.median(values) if values else float("nan")
        access = median(found, one.name, "access")
        runs = [run for key, run in found.items() if key.startswith(one.name + "/")]
        facts = {key: value for run in runs for each in run for key, value in each.items()}
        used |= facts.get("versions", {})
        span = f"({values[0]:.0f}-{values[-1]:.0f})" if values else ""
        print(
            f"{one.name:33}{middle[one.name]:11.0f}{span:>14}{middle[one.name] / limit:9.2f}"
            f"{cell(median(found, one.name, 'first', 'import_seconds'), 8, 2)}"
            f"{cell(median(found, one.name, 'first'), 8, 3)}{cell(median(found, one.name, 'resume'), 9, 3)}"
            f"{cell(None if access is None else access * 1e3, 9, 2)}{grown(found, one.name)}"
            f"  {facts.get('delivers', '')}; {facts.get('batch', '')}"
        )
    rivals = {
        one.name: middle[one.name]
        for one in systems
        if one.adapter not in (*LIMITS, "corpuskit") and middle[one.name] == middle[one.name]
    }
    for ours in ("corpuskit, tokens", "corpuskit, inputs + labels"):
        same = [name for name in rivals if ("labels" in name) == ("labels" in ours)]
        if same and ours in middle:
            best = max(same, key=lambda name: rivals[name])
            print(f"{ours}: {middle[ours] / rivals[best]:.2f} of the best peer, {best}")
    print("; ".join(f"{name} {version}" for name, version in used.items() if version))


def cell(value: float | None, width: int, places: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{places}f}"


def grown(found: dict[str, Any], name: str) -> str:
    """Return the rows of the long run, and the growth after its first tenth."""
    runs = [facts for facts in found.get(f"{name}/memory", []) if facts.get("noted")]
    if not runs:
        return f"{'-':>9}{'-':>9}"
    noted = runs[0]["noted"]
    early = max(size for _, size in noted[: max(1, len(noted) // 10)])
    return f"{runs[0]['rows']:9,}{(max(size for _, size in noted) - early) / 1e6:9.1f}"


if __name__ == "__main__":
    main()
