"""Do the tests notice? Random one-operator mutants, each run against the tests that cover it.

    python -m tests.mutants --num 32 --seed 1 > table.tsv

A mutant swaps one operator (`<` becomes `<=`, `and` becomes `or`) or adds 1 to a small number. The
tests run in a copy of the checkout, and stop at the first failure; whatever runs for longer than
`--timeout` seconds counts as killed. Each row of the table names the site and whether it survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]

TESTS = {
    "loader": {
        "loader/order": "loader/test_loader_order loader/test_loader_row_chunks",
        "loader/steps": "loader/test_loader_order loader/test_loader_stream",
        "loader/edits": "loader/test_loader_edits",
        "loader/editing": "loader/test_loader_edits",
        "loader/parts": "loader/test_loader_pages loader/test_loader_stream",
        "loader/index": "loader/test_loader_row_chunks loader/test_loader_stream",
        "loader/reader": "loader/test_loader_pages loader/test_loader_row_chunks",
        "loader/state": "loader/test_loader_state",
        "loader/stream": "loader/test_loader_stream loader/test_loader_state",
        "loader/assemble": "loader/test_loader_stream loader/test_loader_state",
        "loader/provenance": "loader/test_loader_provenance",
        "loader/cache": "loader/test_loader_cache",
    },
    "engine": {
        "engine/config": "test_config",
        "engine/mixture": "engine/test_mixture",
        "engine/eta": "engine/test_eta",
        "engine/plan": "engine/test_plan_checks",
        "engine/resources": "engine/test_preflight engine/test_cpu",
        "engine/records": "engine/test_measures",
        "engine/status": "engine/test_inspect",
        "engine/stream": "engine/test_small_files engine/test_spans_of_dropped",
        "engine/pipeline": "engine/test_plan_checks engine/test_until",
        "formats/manifest": "formats/test_manifest",
        "formats/shards": "formats/test_shards",
        "formats/ledger": "formats/test_ledger",
        "formats/shuffle_files": "formats/test_shuffle_files",
    },
    "deduplication": {
        "stages/dedup/_keep": "stages/test_exact_dedup stages/test_minhash_dedup",
        "stages/dedup/_cluster_stage": "stages/test_exact_dedup stages/test_minhash_dedup",
        "stages/dedup/exact_dedup": "stages/test_exact_dedup",
        "stages/dedup/line_dedup": "stages/test_line_dedup",
        "stages/dedup/minhash_dedup/__init__": "stages/test_minhash_dedup",
        "stages/dedup/minhash_dedup/schemes": "stages/test_minhash_schemes",
        "stages/dedup/minhash_dedup/signatures": "stages/test_minhash_schemes",
        "stages/dedup/minhash_dedup/verification": "stages/test_minhash_verification",
        "stages/dedup/substring_dedup/__init__": "stages/test_substring_dedup",
        "stages/dedup/substring_dedup/partitioned": "stages/test_substring_partitioned",
        "stages/dedup/substring_dedup/suffix_array": "stages/test_substring_dedup",
        "stages/dedup/substring_dedup/symbols": "stages/test_substring_dedup",
        "stages/dedup/decontaminate/__init__": "stages/test_decontaminate",
        "stages/dedup/decontaminate/index": "stages/test_decontaminate",
        "stages/dedup/decontaminate/items": "stages/test_decontaminate",
        "stages/dedup/decontaminate/search": "stages/test_decontaminate",
        "stages/dedup/decontaminate/ngrams": "stages/test_decontaminate_ngrams",
        "stages/dedup/decontaminate_ngrams": "stages/test_decontaminate_ngrams",
    },
    "filters": {
        "stages/filters/_derive": "stages/test_derive",
        "stages/filters/_languages": "stages/test_languages",
        "stages/filters/_measured": "stages/test_gopher_quality stages/test_fineweb_quality",
        "stages/filters/bad_words": "stages/test_bad_words",
        "stages/filters/c4_paragraphs": "stages/test_c4_paragraphs",
        "stages/filters/c4_quality": "stages/test_c4_quality",
        "stages/filters/datatrove": "stages/test_datatrove_stage",
        "stages/filters/fineweb_quality": "stages/test_fineweb_quality",
        "stages/filters/gopher_quality": "stages/test_gopher_quality",
        "stages/filters/gopher_repetition": "stages/test_gopher_repetition",
        "stages/filters/threshold": "stages/test_threshold",
        "stages/filters/url_filter/__init__": "stages/test_url_filter",
        "stages/filters/url_filter/lists": "stages/test_url_filter",
    },
    "training": {
        "train/estimate": "train/test_estimate",
        "train/checkpoint": "train/test_checkpoints",
        "train/guard": "train/test_guard",
        "train/flops": "train/test_flops",
        "train/evaluation": "train/test_evaluation",
        "train/metrics": "train/test_metrics",
        "train/optim": "train/test_optim",
        "train/settings": "train/test_train_settings",
        "train/status": "train/test_status",
        "train/model": "train/test_model",
        "train/heartbeat": "train/test_health",
    },
}  # fmt: skip
"""Area -> module -> the test files that cover it, quick ones."""

SWAP: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutate(node: ast.AST) -> bool:
    """Change one operator or number in place; return whether there was one."""
    match node:
        case ast.Compare(ops=[first, *_]) if type(first) in SWAP:
            node.ops = [SWAP[type(first)](), *node.ops[1:]]
        case ast.BinOp(left=left, op=op) if type(op) in SWAP and not isinstance(left, ast.Constant):
            node.op = SWAP[type(op)]()
        case ast.BoolOp(op=op):
            node.op = SWAP[type(op)]()
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and number < 100:
            node.value = number + 1
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            node.operand = ast.UnaryOp(ast.Not(), operand)
        case _:
            return False
    return True


def sites(module: str) -> Iterator[tuple[str, int]]:
    """Yield (module, index in `ast.walk`) of what can be mutated; nothing under TYPE_CHECKING."""
    tree = ast.parse((ROOT / f"corpuskit/{module}.py").read_text())
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for index, node in enumerate(list(ast.walk(tree))):
        if id(node) not in types_only and mutate(node):
            yield module, index


def passes(copy: Path, tests: str, timeout: float) -> bool:
    """Return whether the tests of a copy pass, and in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "CI": "true"}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{name}.py" for name in tests.split())],
            cwd=copy, env=environment, capture_output=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def killed(copy: Path, module: str, index: int, tests: str, timeout: float) -> tuple[bool, str]:
    """Run the tests of a mutant; return whether they failed, and the site in words."""
    path = copy / f"corpuskit/{module}.py"
    source = path.read_text()
    tree = ast.parse(source)
    node = list(ast.walk(tree))[index]
    before = ast.unparse(node)
    mutate(node)
    path.write_text(ast.unparse(tree))
    try:
        noticed = not passes(copy, tests, timeout)
    finally:
        path.write_text(source)
    return noticed, f"{module}:{getattr(node, 'lineno', 0)}\t{before} -> {ast.unparse(node)}"


def main() -> None:
    """Draw the mutants, run them, print one row each and the share that was killed per area."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num", type=int, default=32, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("areas", nargs="*", default=[*TESTS])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("corpuskit", "tests", "docs", "pipelines", "sample_data", "packages"):
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, copy / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy)
        for area in args.areas:
            drawn = [site for module in TESTS[area] for site in sites(module)]
            random.Random(args.seed).shuffle(drawn)
            del drawn[args.num :]
            whole = {TESTS[area][module] for module, _ in drawn}
            # With a longer deadline: kernels are compiled on the way.
            broken = {tests for tests in whole if not passes(copy, tests, 10 * args.timeout)}
            for tests in sorted(broken):
                print(f"# left out, fails without a mutant: {tests}", flush=True)  # noqa: T201
            noticed = []
            for module, index in drawn:
                tests = TESTS[area][module]
                if tests in broken:
                    continue
                outcome, site = killed(copy, module, index, tests, args.timeout)
                noticed.append(outcome)
                print("killed" if outcome else "SURVIVED", site, sep="\t", flush=True)  # noqa: T201
            print(f"# {area}: {sum(noticed)} of {len(noticed)} killed", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
