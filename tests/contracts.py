"""Random pipelines with random bounds in `expect`: a run passes if and only if all of them hold.

    python -m tests.contracts --num 2000 [--seed 0]

What is true is counted here from inputs, ledger rows and documents, not from counters of seals. Of
the draws of a pipeline the first runs in a new folder and is killed at some step of a commit, then
run again; the others edit the bounds of a finished run, which must compute nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import Tokenizer

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.errors import ContractError, DataError
from corpuskit.formats.batch import utf8
from corpuskit.stages.annotators._fasttext import open_model
from corpuskit.stages.annotators.language import EMBEDDED_PATH
from corpuskit.storage import faults
from tests.engine.conftest import ROOT, corpus
from tests.engine.here import Here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corpuskit.engine.plan import Plan

DRAWS = 8
"""Draws of bounds for each pipeline."""

TOKENIZER = ROOT / "sample_data" / "tokenizer.json"
GERMAN = "Der Ausschuss trifft sich im Frühjahr wieder, wenn die Ergebnisse bekannt sind. "
LINES = ("Back to the top of this page.", "All rights reserved, see the notice below.")

Key = tuple[str, str, str]
"""Stage, source (empty: all), name of the bound."""


def random_documents(dice: random.Random, num: int) -> list[dict[str, str]]:
    """Return documents of two languages, with duplicates, short ones and repeated lines."""
    documents = corpus(num, dice.randrange(1 << 30))
    for document in documents:
        document["kind"] = dice.choice(["a", "b", "c"])
        if dice.random() < 0.2:
            document["text"] = GERMAN * dice.randint(1, 4) + str(dice.random())
        for line in LINES:
            if dice.random() < 0.3:
                document["text"] += f"\n{line}"
    return documents


def random_pipeline(dice: random.Random, folder: Path) -> dict[str, Any]:
    """Write inputs; return a pipeline that reads them. At most one stage cuts text.

    Stages before `tokenize` may apply to some sources, and under a condition.
    """
    sources = {}
    for name in dice.sample(["web", "books", "notes"], dice.randint(1, 3)):
        documents = random_documents(dice, dice.randint(5, 60))
        lines = "".join(json.dumps(document) + "\n" for document in documents)
        (folder / f"{name}.jsonl").write_text(lines)
        sources[name] = {"jsonl": str(folder / f"{name}.jsonl"), "id_column": "id",
                         "columns": {"kind": "string"}}  # fmt: skip
    stages: list[Any] = []
    if dice.random() < 0.7:
        keep = dice.choice([["en"], ["de"], ["en", "de"], ["de", "en", "fr"]])
        stages.append({"language": {"keep": keep, "min_score": dice.choice([0.0, 0.5, 0.9])}})
    if has_line_rules := dice.random() < 0.4:
        stages.append({"line_rules": {"min_words": dice.choice([5, 8])}})
    if dice.random() < 0.7:
        words = {"words": "whitespace", "min_words": dice.choice([20, 40, 80])}
        stages.append({"gopher_quality": words})
    stages += ["exact_dedup"] * (dice.random() < 0.6)
    if not has_line_rules and dice.random() < 0.6:
        stages.append({"line_dedup": {"min_count": dice.choice([2, 6])}})
    stages += [{"minhash_dedup": {"ngram": 3}}] * (dice.random() < 0.4)
    stages = limited(dice, stages or ["exact_dedup"], list(sources))
    if dice.random() < 0.5:
        stages += [{"tokenize": {"tokenizer": str(TOKENIZER)}}, {"pack": {"seq_len": 64}}]
    return {
        "output": str(folder / "out"), "documents": True, "cell_bytes": 15_000,
        "sources": sources, "stages": stages,
        "ledger": {"keep_text": True}, "executor": {"workers": 0},
    }  # fmt: skip


def limited(dice: random.Random, stages: list[Any], sources: list[str]) -> list[Any]:
    """Return the stages, some of them with `sources` and `where`."""
    labelled: set[str] = set()
    labels: list[str] = []
    given = [{item: {}} if isinstance(item, str) else item for item in stages]
    for item in given:
        [(stage, params)] = item.items()
        if dice.random() < 0.4:
            params["sources"] = dice.sample(sources, dice.randint(1, len(sources)))
        applied = set(params.get("sources", sources))
        if dice.random() < 0.4:
            params["where"] = {"kind": dice.choice(["a", ["a", "b"], {"not": "a"}])}
            if applied <= labelled and dice.random() < 0.5:
                params["where"] = {"language.label": {"not": dice.choice(labels)}}
        if stage == "language":
            labelled, labels = applied, params["keep"]
    return given


def holds(params: dict[str, Any], row: dict[str, str | None]) -> bool:
    """Return whether the condition of a stage, if it has one, holds for a document."""
    [(column, wanted)] = params.get("where", {"": None}).items()
    value = row.get(column)
    if isinstance(wanted, dict):
        return value is not None and value != wanted["not"]
    return wanted is None or value in wanted


# ---------------------------------------------------------------- what is true


def count_truth(pipeline: dict[str, Any]) -> dict[Key, Fraction]:
    """Count what every bound of a finished run would measure; None seen is left out."""
    out = Path(pipeline["output"])
    ledger = sorted(out.glob("ledger/*.parquet"))
    rows = [row for path in ledger for row in pq.read_table(path).to_pylist()]
    truth: dict[Key, Fraction] = {}
    for source, given in pipeline["sources"].items():
        lines = Path(given["jsonl"]).read_text().splitlines()
        documents = {document["id"]: document for document in map(json.loads, lines)}
        alive = {name: document["text"] for name, document in documents.items()}
        for item in pipeline["stages"]:
            stage, params = next(iter(item.items()))
            if source not in params.get("sources", [source]):
                continue
            own = [row for row in rows if row["stage"] == stage and row["source"] == source]
            seen = {name: alive[name] for name in alive if holds(params, documents[name])}
            if stage == "language":
                texts = pa.array(list(seen.values()), pa.large_string())
                for name, label in zip(seen, labels_of(texts), strict=True):
                    documents[name]["language.label"] = label
            for bound, (part, whole) in measure(stage, params, own, seen):
                if whole:
                    truth[stage, source, bound] = Fraction(part, whole)
            for row in own:
                if row["action"] == "drop":
                    del alive[row["doc_id"]]
    return truth | count_tokens(pipeline)


def measure(
    stage: str, params: dict[str, Any], rows: list[dict[str, Any]], alive: dict[str, str]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield bounds of a stage with (how many, of how many)."""
    dropped = {row["doc_id"] for row in rows if row["action"] == "drop"}
    if stage in ("tokenize", "pack"):
        return
    if stage != "line_rules":
        yield "max_drop", (len(dropped), len(alive))
        yield "min_keep", (len(alive) - len(dropped), len(alive))
        rules = Counter(row["rule"] for row in rows if row["action"] == "drop")
        for rule in {"gopher_short_doc", "exact_duplicate", *rules} & {*RULES.get(stage, ())}:
            yield f"rules.{rule}.max_drop", (rules[rule], len(alive))
    if stage == "language":
        texts = pa.array([alive[name] for name in alive if name not in dropped], pa.large_string())
        labels = Counter(labels_of(texts))
        for label in params["keep"]:
            yield f"min_keep.{label}", (labels[label], len(alive))
    if stage in ("line_rules", "line_dedup"):
        cuts = [row for row in rows if row["action"] == "cut"]
        lost = sum(span["end"] - span["start"] for row in cuts for span in row["spans"])
        seen = sum(len(text.encode()) for text in alive.values())
        yield "max_cut", (len({row["doc_id"] for row in cuts}), len(alive))
        yield "max_cut_bytes", (lost, seen)


RULES = {"gopher_quality": ("gopher_short_doc",), "exact_dedup": ("exact_duplicate",)}


def labels_of(texts: pa.Array) -> list[str]:
    """Return the label of each text, as the model alone gives it."""
    if not len(texts):
        return []
    model = open_model(EMBEDDED_PATH)
    ranks = model.predict(utf8(texts), 1, max_bytes=None).ranks[:, 0]
    return [model.labels[rank] for rank in ranks.tolist()]


def count_tokens(pipeline: dict[str, Any]) -> dict[Key, Fraction]:
    """Count the tokens of documents that are left, each with the one that ends it."""
    if not any(isinstance(item, dict) and "pack" in item for item in pipeline["stages"]):
        return {}
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    counts = {("tokens", source, "min"): Fraction(0) for source in pipeline["sources"]}
    for path in sorted(Path(pipeline["output"]).glob("documents/*.parquet")):
        for row in pq.read_table(path, columns=["source", "text"]).to_pylist():
            num = len(tokenizer.encode(row["text"], add_special_tokens=False).ids) + 1
            counts["tokens", row["source"], "min"] += num
    return {**counts, ("tokens", "", "min"): sum(counts.values(), Fraction(0))}


# ---------------------------------------------------------------- bounds


def random_bounds(dice: random.Random, truth: dict[Key, Fraction]) -> dict[Key, str]:
    """Return some bounds as decimals, near to what is true; each can fail.

    A source of "*" is every source that the stage applies to, and that has no bound of its own.
    """
    bounds: dict[Key, str] = {}
    for key in dice.sample(sorted(truth), min(len(truth), dice.randint(1, 5))):
        value = truth[key]
        if key[0] == "tokens":
            bounds[key] = str(max(int(value) + dice.choice([-1, 0, 0, 1, 5]), 1))
            continue
        place = (key[0], key[1] if dice.random() < 0.7 else "*", key[2])
        if any(place[:2] == other[:2] and "min_keep" in (key[2], other[2]) for other in bounds):
            continue  # a number, or one for each label
        shift = dice.choice([0, 0, 0, Fraction(1, 10_000), Fraction(-1, 10_000), Fraction(1, 3)])
        limit = round(value * 10_000 + shift * 10_000)
        low, high = (1, 10_000) if key[2].startswith("min") else (0, 9_999)
        bounds[place] = f"{min(max(limit, low), high) / 10_000:.4f}"
    return bounds


def expect_of(bounds: dict[Key, str]) -> dict[str, Any]:
    """Return the bounds as a pipeline file has them."""
    expect: dict[str, Any] = {}
    for (stage, source, bound), limit in bounds.items():
        at = expect.setdefault(stage, {})
        at = at.setdefault(source, {}) if source not in ("", "*") else at
        *path, last = bound.split(".")
        for key in path:
            at = at.setdefault(key, {})
        at[last] = int(limit) if stage == "tokens" else float(limit)
    return expect


def broken_keys(bounds: dict[Key, str], truth: dict[Key, Fraction]) -> set[Key]:
    """Return the bounds that do not hold, those of every source for each of them."""
    broken: set[Key] = set()
    for key, value in truth.items():
        limit = Fraction(bounds.get(key) or bounds.get((key[0], "*", key[2])) or value)
        if value < limit if key[2].startswith("min") else value > limit:
            broken.add(key)
    return broken


def first_stop(plan: Plan, broken: set[Key]) -> tuple[int, set[Key]]:
    """Return the phase after which a run stops, and what it names; the last one if it passes."""
    stages = {key: "pack" if key[0] == "tokens" else key[0] for key in broken}
    ends = {
        key: max(phase.index for phase in plan.phases if stage in phase.labels)
        for key, stage in stages.items()
    }
    stop = min(ends.values(), default=len(plan.phases) - 1)
    return stop, {key for key, end in ends.items() if end == stop}


# ---------------------------------------------------------------- draws


def attempt(path: Path, *, accept: bool = False) -> tuple[set[Key] | None, str]:
    """Run a pipeline; return the bounds that its error names (None: it passed) and the error."""
    plan = read_plan(path)
    try:
        run(plan, RunCallbacks(), accept=accept, launcher=Here(plan.settings.output))
    except ContractError as error:
        cells = [line.split() for line in str(error).splitlines() if line.startswith("  ")][1:]
        return {(c[0], "" if c[1] == "all" else c[1], c[2]) for c in cells}, str(error)
    return None, ""


def sealed_phases(plan: Plan) -> set[str]:
    """Return the phases of which a run directory holds a seal."""
    folder = Path(plan.settings.output) / "manifests"
    return {phase.name for phase in plan.phases if (folder / phase.name / "seal.json").exists()}


def seals(plan: Plan) -> dict[str, int]:
    """Return when each seal was written."""
    folder = Path(plan.settings.output) / "manifests"
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/seal.json")}


def try_new(dice: random.Random, path: Path, broken: set[Key]) -> None:
    """Run in a new folder: killed at a random step first, then to the end or to the stop."""
    plan = read_plan(path)
    out = Path(plan.settings.output)
    shutil.rmtree(out)
    stop, named = first_stop(plan, broken)
    last = f"manifests/{plan.phases[stop].name}/seal.json"
    left = [dice.randint(1, 200)]
    after_seal = dice.random() < 0.5

    def hook(step: str, name: str) -> None:
        left[0] -= 1
        if (step == "put:after" and name.endswith(last)) if after_seal else left[0] == 0:
            raise faults.Death

    faults.install_hook(hook)
    try:
        with contextlib.suppress(faults.Death, ContractError):
            attempt(path)
    finally:
        faults.install_hook(None)
    found, error = attempt(path)
    assert found == (named or None), (found, named, error)
    expected = {phase.name for phase in plan.phases[: stop + 1]}
    assert sealed_phases(plan) == expected, (sealed_phases(plan), expected)
    assert attempt(path)[1] == error, "again: the same stop"
    if named:
        assert attempt(path, accept=True) == (None, "")
        assert sealed_phases(plan) == {phase.name for phase in plan.phases}


def try_edited(path: Path, broken: set[Key]) -> None:
    """Run again with other bounds in a finished run: it stops or passes, and computes nothing."""
    plan = read_plan(path)
    before = seals(plan)
    _, named = first_stop(plan, broken)
    found, error = attempt(path)
    assert found == (named or None), (found, named, error)
    assert seals(plan) == before


def draw_pipeline(seed: int, num: int) -> tuple[int, int]:
    """Check some draws of bounds on one pipeline; return how many hold and how many do not."""
    dice = random.Random(seed)
    passed = 0
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "p.yaml"
        pipeline = random_pipeline(dice, Path(name))
        path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
        try:
            assert attempt(path) == (None, "")
        except DataError:  # nothing is left to pack: such a run fails whatever it expects
            return 0, 0
        truth = count_truth(pipeline)
        for index in range(num if truth else 0):
            bounds = random_bounds(dice, truth)
            expect = expect_of(bounds)
            path.write_text(yaml.safe_dump({**pipeline, "expect": expect}, sort_keys=False))
            broken = broken_keys(bounds, truth)
            passed += not broken
            try:
                if index == num - 1:
                    try_new(dice, path, broken)
                else:
                    try_edited(path, broken)
            except Exception as error:
                error.add_note(f"seed {seed}, draw {index}: {path.read_text()}")
                raise
    return passed, num - passed if truth else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    held = broken = 0
    seed = given.seed
    began = time.process_time()
    os.fsync = lambda handle: None  # tests/faults has the losses of power
    while held + broken < given.num:
        counts = draw_pipeline(seed, DRAWS)
        held, broken, seed = held + counts[0], broken + counts[1], seed + 1
    sys.stdout.write(
        f"{seed - given.seed} pipelines, {held + broken} draws: {held} hold, {broken} do not; "
        f"{time.process_time() - began:.0f} CPU s\n"
    )


if __name__ == "__main__":
    main()
