"""What a small model learns on real text, beside n-gram models of the same tokens.

Sets documents aside, trains a BPE on the others, tokenizes, packs and mixes them; then trains the
quickstart's model in float32 and in bfloat16, on the same rows in the same order, and prints bits
per byte of the held-out documents, source by source, after some steps. A unigram and a bigram
model (interpolated Kneser-Ney), counted on exactly the tokens that the model was trained on, are
judged on the same held-out tokens: a model that has learnt anything from context is below the
bigram.

    python benchmarks/learning.py [--output runs/learning] [--vocab 512] [--steps 1600] [--lr 0.01]
    python benchmarks/learning.py --optimizers adamw muon --steps 400    # rates tuned, then judged
    python benchmarks/learning.py --widths --steps 400                   # muP: one rate for all widths

Real texts: the folder that CORPUSKIT_SHARED_DATA names. The output folder gets `curves.csv`,
`held_out.csv` and `learning.json`. What is finished is not done again: delete the folder to start
over. At the defaults: 5 minutes of one core for each dtype. The vocabulary is small because the
training is: the larger it is, the longer the bigram is ahead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from corpuskit import open_held_out
from corpuskit.loader import StreamingLoader

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.learning_rates import (  # noqa: E402
    OPTIMIZERS,
    Study,
    compare_optimizers,
    compare_widths,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Model = Callable[[Numbers, Numbers], NDArray[np.float64]]

DTYPES = ("float32", "bfloat16")
SOURCES = {
    "microsoft": ("MicrosoftDocs/win32", "MicrosoftDocs/cpp-docs", "MicrosoftDocs/PowerShell-Docs"),
    "linux": ("debian:linux-doc-6.1", "debian:manpages-dev", "debian:manpages"),
    "fiction": ("COST-ELTeC/ELTeC-eng",),
    "python": ("debian:python3.11-doc",),
}
WEIGHTS = {"microsoft": 4, "linux": 3, "fiction": 2, "python": 1}
MAX_DOCUMENTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--files", type=int, default=2, help="of the four files of real texts")
    parser.add_argument("--vocab", type=int, default=512, help="tokens of the BPE")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--preset", default="0.5m")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--rows", type=int, default=2, help="rows per step")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--evaluations", type=int, default=5, help="over the run")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, help="compare these instead")
    parser.add_argument("--seeds", type=int, default=2, help="of the judged runs of --optimizers")
    parser.add_argument(
        "--widths", action="store_true", help="sweep rates with and without muP instead"
    )
    options = parser.parse_args()
    out = options.output.resolve()
    out.mkdir(parents=True, exist_ok=True)
    prepare(out, options)
    if options.optimizers or options.widths:
        study = Study(out / "run", out / "rates", options.rows, MAX_DOCUMENTS)
        if options.optimizers:
            compare_optimizers(study, options.optimizers, options.steps, sizes(64), options.seeds)
        if options.widths:
            compare_widths(study, options.steps // 2)
        return
    for dtype in options.dtypes:
        train(out, options, dtype)
    baselines = judge_baselines(str(out / "run"), options)
    curves = {dtype: read_lines(out / dtype / "metrics.jsonl") for dtype in options.dtypes}
    judged = {dtype: read_lines(out / dtype / "evaluations.jsonl") for dtype in options.dtypes}
    write(out, options, baselines, curves, judged)
    show(options, baselines, curves, judged)


def prepare(out: Path, options: argparse.Namespace) -> None:
    """Split the real texts by source, set documents aside, train a tokenizer, pack and mix."""
    given = os.environ.get("CORPUSKIT_SHARED_DATA")
    folder = (Path(given) if given else ROOT.parent / "shared" / "data") / "bench_en"
    files = sorted(folder.glob("*.parquet"))[: options.files]
    if not files:
        sys.exit(f"no real texts at {folder}: set CORPUSKIT_SHARED_DATA")
    for name, members in SOURCES.items():
        path = out / "texts" / f"{name}.parquet"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            tables = [pq.read_table(file) for file in files]
            table = pa.concat_tables(tables)
            keep = pc.is_in(table["source"], pa.array(members))
            pq.write_table(table.filter(keep).select(["id", "text"]), path, compression="zstd")
    sources = {
        name: {"parquet": str(out / "texts" / f"{name}.parquet"), "id_column": "id"}
        for name in SOURCES
    }
    first: list[Any] = [{"holdout": {"ratio": 0.04}}, "exact_dedup"]
    common = {"seed": 0, "sources": sources, "executor": {"kind": "local", "workers": 1}}
    texts = {"name": "texts", "output": str(out / "documents"), "stages": first, **common}
    call("run", save(out / "texts.yaml", texts))
    tokenizer = out / "tokenizer.json"
    if not tokenizer.exists():
        call(
            "tokenizer", "train", out / "documents", "--output", tokenizer, "--vocab-size", options.vocab,
            "--max-mb", 20,
        )  # fmt: skip
    rows = options.steps * options.rows
    stages = [
        *first,
        {"mix": {"weights": WEIGHTS, "max_epochs": 4, "rows": rows}},
        {"tokenize": {"tokenizer": str(tokenizer)}},
        {"pack": {"seq_len": options.seq_len}},
        "shuffle",
    ]
    packed = {"name": "learning", "output": str(out / "run"), "stages": stages, **common}
    call("run", save(out / "run.yaml", packed))


def train(out: Path, options: argparse.Namespace, dtype: str) -> None:
    """Train with the command line, from where an earlier call got to."""
    settings = {
        "name": f"learning-{dtype}",
        "data": str(out / "run"),
        "output": str(out / dtype),
        "seed": 0,
        "model": {"preset": options.preset},
        "batch": {"global_rows": options.rows, "micro_rows": options.rows},
        "steps": options.steps,
        "optimizer": {"lr": options.lr},
        "schedule": {"kind": "cosine", "warmup_ratio": 0.05},
        "evaluate": {
            "every_steps": max(options.steps // options.evaluations, 1),
            "max_documents": MAX_DOCUMENTS,
        },
        "checkpoint": {"every_steps": 250, "keep": 1},
        "log_every_steps": 100,
        "device": "cpu",
        "dtype": dtype,
    }
    call("train", save(out / f"{dtype}.yaml", settings))


def save(path: Path, fields: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def call(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "corpuskit", *map(str, words)], cwd=ROOT, check=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Score(NamedTuple):
    """A loss on held-out documents."""

    loss: float  # nats per token
    bits_per_byte: float


def judge_baselines(run_dir: str, options: argparse.Namespace) -> dict[str, dict[str, Score]]:
    """Return the scores of n-gram models of the training's tokens, by model and source."""
    before, after = training_pairs(run_dir, options)
    models = {
        "unigram": unigram(after, options.vocab),
        "bigram": kneser_ney(before, after, options.vocab),
    }
    held_out = open_held_out(run_dir, MAX_DOCUMENTS)
    found: dict[str, dict[str, Score]] = {}
    for name, log_probability in models.items():
        sums = {}
        for source in held_out.source_names:
            nats, num_tokens, size_bytes = 0.0, 0, 0
            for tokens, text_bytes in held_out.documents(source, 0, 1):
                pairs = tokens.astype(np.int64)
                nats -= float(log_probability(pairs[:-1], pairs[1:]).sum())
                num_tokens += max(len(tokens) - 1, 0)
                size_bytes += text_bytes
            sums[source] = (nats, num_tokens, size_bytes)
        sums["all"] = tuple(map(sum, zip(*sums.values(), strict=True)))
        found[name] = {
            source: Score(nats / num_tokens, nats / math.log(2) / size_bytes)
            for source, (nats, num_tokens, size_bytes) in sums.items()
        }
    return found


def training_pairs(run_dir: str, options: argparse.Namespace) -> tuple[Numbers, Numbers]:
    """Return each token that the training predicts, and the one before it."""
    before, after = [], []
    with StreamingLoader(run_dir, options.rows, num_steps=options.steps) as loader:
        for batch in loader:
            is_label = batch["labels"] >= 0
            before.append(batch["tokens"][is_label])
            after.append(batch["labels"][is_label])
    return np.concatenate(before).astype(np.int64), np.concatenate(after).astype(np.int64)


def unigram(after: Numbers, size: int) -> Model:
    """Return log P(token), absolutely discounted, the rest spread evenly."""
    table = np.log(discounted(np.bincount(after, minlength=size)))
    return lambda _before, tokens: table[tokens]


def kneser_ney(before: Numbers, after: Numbers, size: int) -> Model:
    """Return log P(token | the one before it), by interpolated Kneser-Ney.

    Source: Chen and Goodman 1999, section 2.7 with one discount, n1 / (n1 + 2 n2); the lower order
    counts in how many contexts a token was seen, and is discounted likewise over even chances.
    """
    counts = np.bincount(before * size + after, minlength=size * size).reshape(size, size)
    contexts = np.count_nonzero(counts, axis=0)
    lower = discounted(contexts)
    discount = best_discount(counts)
    totals = counts.sum(1)
    kinds = np.count_nonzero(counts, axis=1)

    def log_probability(first: Numbers, second: Numbers) -> NDArray[np.float64]:
        seen = np.maximum(totals[first], 1)
        direct = np.maximum(counts[first, second] - discount, 0) / seen
        weight = np.where(totals[first] > 0, discount * kinds[first] / seen, 1.0)
        return np.log(direct + weight * lower[second])

    return log_probability


def discounted(counts: Numbers) -> NDArray[np.float64]:
    """Return probabilities: counts less the discount, which is spread evenly over all."""
    discount = best_discount(counts)
    kept = np.maximum(counts - discount, 0)
    return (kept + (counts.sum() - kept.sum()) / len(counts)) / counts.sum()


def best_discount(counts: Numbers) -> float:
    """Return n1 / (n1 + 2 n2), n1 being how many were counted once."""
    once, twice = (int((counts == number).sum()) for number in (1, 2))
    return once / (once + 2 * twice) if once else 0.5


def pooled(line: dict[str, Any]) -> dict[str, Score]:
    """Return the scores of an evaluation by source, and over all tokens."""
    sources = line["sources"]
    nats = sum(one["loss"] * one["tokens"] for one in sources.values())
    tokens = sum(one["tokens"] for one in sources.values())
    size_bytes = sum(
        one["loss"] * one["tokens"] / math.log(2) / one["bits_per_byte"] for one in sources.values()
    )
    found = {name: Score(one["loss"], one["bits_per_byte"]) for name, one in sources.items()}
    return {**found, "all": Score(nats / tokens, nats / math.log(2) / size_bytes)}


def write(
    out: Path,
    options: argparse.Namespace,
    baselines: dict[str, dict[str, Score]],
    curves: dict[str, list[dict[str, Any]]],
    judged: dict[str, list[dict[str, Any]]],
) -> None:
    """Write the curves, the held-out scores, and both as JSON with the options."""
    with (out / "curves.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", "tokens", *(f"loss_{dtype}" for dtype in curves)])
        for lines in zip(*curves.values(), strict=True):
            losses = [line["loss"] for line in lines]
            table.writerow([lines[0]["step"] + 1, lines[0]["tokens"], *losses])
    rows = [
        (model, "", source, *score)
        for model, scores in baselines.items()
        for source, score in scores.items()
    ] + [
        (dtype, line["step"], source, *score)
        for dtype, lines in judged.items()
        for line in lines
        for source, score in pooled(line).items()
    ]
    with (out / "held_out.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["model", "step", "source", "loss", "bits_per_byte"])
        table.writerows(rows)
    fields = {name: str(value) for name, value in vars(options).items()}
    names = ("model", "step", "source", "loss", "bits_per_byte")
    held_out = [dict(zip(names, row, strict=True)) for row in rows]
    (out / "learning.json").write_text(
        json.dumps({"options": fields, "held_out": held_out}, indent=1)
    )


def show(
    options: argparse.Namespace,
    baselines: dict[str, dict[str, Score]],
    curves: dict[str, list[dict[str, Any]]],
    judged: dict[str, list[dict[str, Any]]],
) -> None:
    """Print the table."""
    names = list(baselines["bigram"])
    tokens = options.steps * options.rows * options.seq_len
    print(
        f"\n{options.preset}, {options.steps} steps of {options.rows} rows of {options.seq_len} "
        f"({tokens / 1e6:.1f} M tokens), lr {options.lr}. Bits per byte of held-out documents:\n"
    )
    print(f"{'model':10s}{'step':>7s}" + "".join(f"{name:>11s}" for name in names))
    lines: list[tuple[str, object, dict[str, Score]]] = [
        (model, "", scores) for model, scores in baselines.items()
    ]
    lines += [(d, one["step"], pooled(one)) for d, found in judged.items() for one in found]
    for model, step, scores in lines:
        shown = "".join(f"{scores[name].bits_per_byte:11.4f}" for name in names)
        print(f"{model:10s}{step!s:>7s}{shown}")
    for dtype, found in curves.items():
        seconds = sum(line["step_seconds"] for line in found)
        print(f"\n{dtype}: {seconds:,.0f} s in steps, {tokens / seconds:,.0f} tokens per second")
    if set(DTYPES) <= curves.keys():
        full, half = (np.array([line["loss"] for line in curves[dtype]]) for dtype in DTYPES)
        last = max(len(full) // 10, 1)
        print(
            f"training loss, mean of the last {last} steps: float32 {full[-last:].mean():.4f}, "
            f"bfloat16 {half[-last:].mean():.4f}; largest difference of a step behind the first "
            f"tenth: {np.abs(full - half)[last:].max():.4f}"
        )
    bigram = baselines["bigram"]
    beaten = {
        dtype: [name for name in names if pooled(found[-1])[name].loss < bigram[name].loss]
        for dtype, found in judged.items()
    }
    for dtype, those in beaten.items():
        print(f"{dtype} is better than the bigram on: {', '.join(those) or 'nothing'}")


if __name__ == "__main__":
    main()
