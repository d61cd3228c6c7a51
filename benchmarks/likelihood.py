"""Likelihoods of task items beside lm-evaluation-harness, on an exported model.

    python benchmarks/likelihood.py MODEL [--items 125] [--python PYTHON]

MODEL is a folder of `corpuskit train --export` (float32). Writes ARC, PIQA, HellaSwag and MMLU items
of CORPUSKIT_SHARED_DATA in their published forms, scores every choice with `corpuskit evaluate` and
with lm-evaluation-harness 0.4.9 and its own task files, and prints how far the two are apart in nats
at most, how far each is from lm-evaluation-harness in float64, the accuracies of both, and CPU
seconds of whole commands. PYTHON has lm-eval installed; without it an environment is made in
build/peers.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import performance
import pyarrow.parquet as pq
from end_to_end import DATA

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
performance.ENVIRONMENTS["lm-eval"] = ["lm-eval==0.4.9", "torch", "transformers<5"]


def arc(row: dict[str, Any]) -> dict[str, Any]:
    letters = "ABCDEFGH"[: len(row["choices"])]
    return {
        "question": row["text"].removeprefix("Question: ").strip(),
        "choices": {"text": row["choices"], "label": list(letters)},
        "answerKey": letters[row["choices"].index(row["answer"])],
    }


def piqa(row: dict[str, Any]) -> dict[str, Any]:
    goal = row["text"].removeprefix("Question: ").strip()
    first, second = row["choices"]
    return {"goal": goal, "sol1": first, "sol2": second, "label": int(row["answer"] == second)}


def hellaswag(row: dict[str, Any]) -> dict[str, Any]:
    label, _, context = row["text"].partition(": ")
    gold = row["choices"].index(row["answer"])
    return {
        "activity_label": label, "ctx_a": context, "ctx_b": "", "endings": row["choices"],
        "label": str(gold),
    }  # fmt: skip


def mmlu(row: dict[str, Any]) -> dict[str, Any]:
    return {"question": row["text"], "choices": row["choices"], "answer": int(row["answer"])}


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "arc_easy": arc, "piqa": piqa, "hellaswag": hellaswag, "mmlu": mmlu,
}  # fmt: skip


def main() -> None:
    """Score and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--items", type=int, default=125)
    parser.add_argument("--python", help="an interpreter that has lm-eval")
    options = parser.parse_args()
    python = options.python or performance.environment("lm-eval")
    if not python:
        sys.exit("lm-eval is needed: name an interpreter that has it with --python")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task, form in FORMS.items():
            rows = pq.read_table(DATA / "benchmarks" / f"{task}.parquet").to_pylist()
            usable = [row for row in rows if len(row["choices"]) > 1 and row["text"] != "question"]
            lines = [json.dumps(form(row)) + "\n" for row in usable[: options.items]]
            (folder / f"{task}.jsonl").write_text("".join(lines), "utf-8")
        named = [f"{task}={folder / task}.jsonl" for task in FORMS]
        ours_seconds, printed = run(
            [sys.executable, "-m", "corpuskit", "evaluate", str(options.model), *named, "--json",
             "--unconditional", "--items", str(folder / "items")]
        )  # fmt: skip
        ours = json.loads(printed)
        program = [python, str(HERE / "peers" / "lm_eval_tasks.py"), str(options.model), name]
        theirs_seconds, _ = run([*program, "float32"])
        run([*program, "float64"])
        theirs, exact = (
            json.loads((folder / f"{dtype}.json").read_text("utf-8"))
            for dtype in ("float32", "float64")
        )
        print("largest differences, in nats")
        print(f"{'task':10} items choices  ours-theirs  ours-float64  theirs-float64  accuracies")
        for task in FORMS:
            compare(task, folder, ours[task], theirs[task], exact[task]["nats"])
    print(f"CPU s of the whole command: {ours_seconds:.1f}, lm-eval {theirs_seconds:.1f}")


def compare(
    task: str, folder: Path, ours: dict[str, Any], theirs: dict[str, Any], exact: list[list[float]]
) -> None:
    """Print how far two results of a task are apart, and each from the exact one."""
    lines = (folder / "items" / f"{task}.jsonl").read_text("utf-8").splitlines()
    items = {line["id"]: line["nats"] for line in map(json.loads, lines)}
    left_out = ours["too_long"]
    rows = [int(number) - 1 for number in items]
    mine = np.concatenate(list(items.values()))
    other, truth = (np.concatenate([nats[row] for row in rows]) for nats in (theirs["nats"], exact))
    worst = [np.abs(a - b).max() for a, b in ((mine, other), (mine, truth), (other, truth))]
    shares = ", ".join(
        f"{name} {ours[field]:.4f} and {theirs[name]:.4f}"
        for name, field in (("acc", "accuracy"), ("acc_norm", "accuracy_per_character"))
        if name in theirs
    )
    note = f" ({left_out} too long, left out)" if left_out else ""
    print(
        f"{task:10} {len(items):5} {len(mine):7} {worst[0]:12.1e} {worst[1]:13.1e} "
        f"{worst[2]:15.1e}  {shares}{note}"
    )


def run(command: list[str]) -> tuple[float, str]:
    """Run a command; return CPU seconds of it and its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


if __name__ == "__main__":
    main()
