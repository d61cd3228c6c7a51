"""Optimizers at learning rates of their own, and muP at several widths; see benchmarks/learning.py.

Rates are tuned on the mean training loss of the last fifth of shorter runs: rows that are seen once.
What judges is other text: bits per byte of documents that were set aside. CPU seconds of a step are
those of the whole loop, the least of three short runs.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from corpuskit import open_held_out
from corpuskit.train.loop import main as train
from corpuskit.train.settings import TrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIMIZERS: dict[str, tuple[int, dict[str, Any]]] = {
    # The exponents of two around which the rate is tuned.
    "adamw": (-7, {"kind": "adamw"}),
    "adamw8bit": (-7, {"kind": "adamw8bit"}),
    "muon": (-7, {"kind": "muon"}),
    "lion": (-10, {"kind": "lion", "beta2": 0.99}),
    "schedule_free": (-6, {"kind": "schedule_free"}),
}
TUNING = 0.5
"""Steps of a tuning run, as a share of a judged one's."""
WIDTHS = (32, 64, 128)
EXPONENTS = range(-8, -3)

Row = dict[str, Any]


class Study:
    """Trainings of a small model, each done once and noted in a file.

    Args:
        run: run directory with held-out documents.
        out: for the trainings and the notes.
        rows: per step.
    """

    def __init__(self, run: Path, out: Path, rows: int, documents: int) -> None:
        self._run, self._out, self._rows = run, out, rows
        self._held_out = open_held_out(str(run), documents)
        self._documents = documents

    def train(self, name: str, steps: int, *, judge: bool = False, **fields: Any) -> Row:
        """Train; return the loss of the last fifth, CPU seconds of a step, and the judgement."""
        place = self._out / name
        note = place / "result.json"
        if note.exists():
            return dict(json.loads(note.read_text()))
        kind = fields["optimizer"]["kind"]
        schedule = {"kind": "constant" if kind == "schedule_free" else "cosine"}
        settings = TrainSettings.model_validate(
            {
                "data": str(self._run), "output": str(place), "steps": steps, "device": "cpu",
                "batch": {"global_rows": self._rows, "micro_rows": self._rows},
                "schedule": {**schedule, "warmup_ratio": 0.1}, "guard": {"sigmas": 0},
                "checkpoint": {"every_steps": 1 << 30, "keep": 1}, **fields,
                "evaluate": {"every_steps": 1 << 30, "max_documents": self._documents} if judge else None,
            }
        )  # fmt: skip
        begun = time.process_time()
        train(settings, held_out=self._held_out if judge else None)
        seconds = (time.process_time() - begun) / steps
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        last = [line["loss"] for line in lines[-(-4 * steps // 5) :]]
        row: Row = {"loss": statistics.fmean(last), "cpu_seconds": seconds, "steps": steps}
        if judge:
            (line,) = (place / "evaluations.jsonl").read_text().splitlines()
            row["bits_per_byte"] = _pooled(json.loads(line)["sources"].values())
        note.write_text(json.dumps(row))
        return row


def _pooled(sources: Any) -> float:
    nats = [source["loss"] * source["tokens"] for source in sources]
    pairs = zip(nats, sources, strict=True)
    # Bits over bytes of all sources; a source's bytes are its bits over its bits per byte.
    return sum(nats) / sum(each / source["bits_per_byte"] for each, source in pairs)


def compare_optimizers(study: Study, names: list[str], steps: int, model: Row, seeds: int) -> None:
    """Tune each optimizer's rate; judge it after as many tokens, and as many CPU seconds as the fastest's."""
    found = {}
    for name in names:
        middle, fields = OPTIMIZERS[name]
        tuned: dict[int, Row] = {}

        def loss_at(
            exponent: int, tuned: Any = tuned, fields: Row = fields, name: str = name
        ) -> float:
            if exponent not in tuned:
                optimizer = {**fields, "lr": 2.0**exponent}
                tuned[exponent] = study.train(
                    f"{name}{exponent}",
                    round(TUNING * steps),
                    model=model,
                    optimizer=optimizer,
                    seed=1,
                )
            return float(tuned[exponent]["loss"])

        best = _descend(loss_at, middle)
        found[name] = (best, fields | {"lr": 2.0**best})
        tried = ", ".join(f"2^{e} {tuned[e]['loss']:.3f}" for e in sorted(tuned))
        print(f"{name}: tuned to 2^{best} = {2.0**best:.2g} of {tried}", flush=True)
    print(f"\n{'optimizer':14s}{'rate':>9s}{'ms/step':>9s}{'steps':>7s}  bits per byte")
    # In turns, so that a busy machine slows all of them.
    timed = [(name, number) for number in range(3) for name in names]
    seconds = dict.fromkeys(names, math.inf)
    for name, number in timed:
        row = study.train(f"time-{name}-{number}", 40, model=model, optimizer=found[name][1])
        seconds[name] = min(seconds[name], row["cpu_seconds"])
    for name, (best, optimizer) in found.items():
        equal = round(steps * min(seconds.values()) / seconds[name])
        for number in dict.fromkeys((steps, equal if abs(equal / steps - 1) > 0.03 else steps)):
            bits = [
                study.train(
                    f"{name}-{number}-{seed}", number, judge=True, model=model,
                    optimizer=optimizer, seed=seed,
                )["bits_per_byte"]
                for seed in range(seeds)
            ]  # fmt: skip
            shown = "".join(f"{each:8.4f}" for each in bits)
            print(
                f"{name:14s}{2.0**best:9.2g}{1e3 * seconds[name]:9.1f}{number:7d}{shown}",
                flush=True,
            )


def _descend(loss_at: Callable[[int], float], middle: int) -> int:
    """Return the exponent with the least loss, whose neighbours are both tried."""
    best = middle
    while True:
        nearest = min((best - 1, best, best + 1), key=loss_at)
        if nearest == best:
            return best
        best = nearest


def compare_widths(study: Study, steps: int) -> None:
    """Sweep the rate at each width, with muP and without; print losses and the best rate."""
    print(f"{'':8s}{'width':>6s}" + "".join(f"{f'2^{e}':>8s}" for e in EXPONENTS) + "    best")
    for base in (None, WIDTHS[0]):
        for width in WIDTHS:
            losses = {}
            for exponent in EXPONENTS:
                own = None if width == base else base  # there muP changes nothing
                losses[exponent] = study.train(
                    f"width{width}-{own}-{exponent}", steps, seed=1,
                    model=sizes(width) | {"mup_base_dim": own},
                    optimizer={"kind": "adamw", "lr": 2.0**exponent},
                )["loss"]  # fmt: skip
            shown = "".join(f"{loss:8.3f}" for loss in losses.values())
            best = min(losses, key=lambda exponent: losses[exponent])
            name = "muP" if base else "without"
            print(f"{name:8s}{width:6d}{shown}    2^{best}", flush=True)


def sizes(width: int) -> Row:
    """Return a model of a width: heads keep their size, the feed-forward its proportion."""
    heads = width // 16
    return {
        "dim": width, "layers": 2, "heads": heads, "kv_heads": heads // 2, "ffn_dim": 5 * width // 2,
    }  # fmt: skip
