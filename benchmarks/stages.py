"""Each stage, three fused filters and a whole recipe beside datatrove 0.10.1, in one run on the same documents.

    python benchmarks/stages.py [table] [trio] [recipe] [compile] [--mb 30] [--reference-mb 4] [--recipe-mb 120]

`table`: every stage with a reference alone; ours on `--mb`, warm (kernels compiled, chunks known), the reference
on the first `--reference-mb` of the same documents; decisions compared on those.
`trio`: Gopher quality, Gopher repetition and FineWeb quality, every document through all three; words shared on
both sides (datatrove keeps those of the last text). Cold: a new process with compiled kernels and an empty memo;
warm: the same documents again.
`recipe`: FineWeb's filters, Parquet (zstd-3) in and out, one worker, start-up included: `corpuskit run` against
datatrove's steps chained as its executors do (without an executor's start); floor: pyarrow reads and writes the
same rows.
`compile`: CPU seconds of the first batch of a new process, without and with compiled kernels.

bench_en of CORPUSKIT_SHARED_DATA; seconds are CPU seconds, user + system, children included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from corpuskit.engine import registry
from corpuskit.stage import StreamingStage, View

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracles import oracle_of

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))
BATCH_ROWS = 1024
TRIO = ("gopher_repetition", "gopher_quality", "fineweb_quality")
SECTIONS = ("table", "trio", "recipe", "compile")


def main() -> None:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", default=[])
    parser.add_argument("--mb", type=float, default=30)
    parser.add_argument("--reference-mb", type=float, default=4)
    parser.add_argument("--recipe-mb", type=float, default=120)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    if options.worker:
        print(json.dumps(WORKERS[options.worker](options)))
        return
    for section in options.sections or SECTIONS:
        {"table": table, "trio": trio, "recipe": recipe, "compile": compiling}[section](options)


# ---------------------------------------------------------------- documents


def read_texts(megabytes: float) -> list[str]:
    """Return whole documents of bench_en until there are enough bytes."""
    texts, size = [], 0
    for file in sorted((DATA / "bench_en").glob("*.parquet")):
        for text in pq.read_table(file, columns=["text"])["text"].to_pylist():
            if size > megabytes * 1e6:
                return texts
            texts.append(text)
            size += len(text.encode())
    return texts


def size_of(texts: list[str]) -> float:
    """Return MB of UTF-8."""
    return sum(len(text.encode()) for text in texts) / 1e6


def batches(texts: list[str]) -> list[pa.RecordBatch]:
    """Return record batches as a stage sees them."""
    table = pa.table(
        {
            "key": pa.array(range(len(texts)), pa.int64()),
            "id": pa.array(map(str, range(len(texts)))),
            "text": pa.array(texts, pa.large_string()),
            "source": pa.array(["web"] * len(texts)),
        }
    )
    return [
        table.slice(first, BATCH_ROWS).combine_chunks().to_batches()[0]
        for first in range(0, len(texts), BATCH_ROWS)
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def peak_mb() -> float:
    """Return the largest resident size of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


# ---------------------------------------------------------------- each stage alone


def word_list(folder: Path) -> str:
    """Write the English list of LDNOOBW as a file, return its path."""
    rows = pq.read_table(DATA / "toxicity" / "ldnoobw_words.parquet").to_pylist()
    path = folder / "en.txt"
    path.write_text("\n".join(row["word"] for row in rows if row["lang"] == "en") + "\n")
    return str(path)


def parameters(name: str, folder: Path) -> dict[str, Any] | None:
    """Return the parameters a stage is measured with, None if it is not in the table."""
    known: dict[str, Any] = {
        "gopher_quality": {},
        "gopher_repetition": {},
        "c4_quality": {},
        "fineweb_quality": {},
        "line_rules": {},
        "bad_words": {"lists": word_list(folder)},
        "pii": {"mode": "datatrove"},
        "unicode": {},
        "language": {"model": str(DATA / "models" / "lid.176.ftz")},
    }
    return known.get(name)


def table(options: argparse.Namespace) -> None:
    """Print a line for every stage with a reference."""
    print(
        f"\n{'stage':18} {'MB/CPU s':>9} {'reference':>10} {'ratio':>6}  {'equal':14} {'peak RSS MB'}"
    )
    for name in registry.names():
        if not issubclass(registry.load(name), StreamingStage):
            continue
        with tempfile.TemporaryDirectory() as folder:
            if parameters(name, Path(folder)) is None:
                continue
        found = ask("alone:" + name, options)
        ours, reference = found["ours"], found["reference"]
        print(
            f"{name:18} {ours:9.1f} {reference:10.2f} {ours / reference:5.0f}x  "
            f"{found['equal']:5} of {found['docs']:5} {found['peak_mb']:8.0f}",
            flush=True,
        )


def alone(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure one stage: in a process of its own, ours before the reference."""
    with tempfile.TemporaryDirectory() as folder:
        stage = registry.load(name).model_validate(parameters(name, Path(folder)))
        assert isinstance(stage, StreamingStage)
        texts = read_texts(options.mb)
        few = read_texts(options.reference_mb)
        parts = batches(texts)

        def run() -> None:
            for part in parts:
                stage.apply(View(part))

        run()
        ours = size_of(texts) / min(cpu_seconds(run) for _ in range(3))
        peak = peak_mb()
        oracle = oracle_of(stage)
        assert oracle is not None, f"{name} has no reference"
        oracle("A text to warm up with.")
        expected: list[tuple[str | None, str]] = []
        seconds = cpu_seconds(lambda: expected.extend(oracle(text) for text in few))
        equal = 0
        for at, part in enumerate(batches(few)):
            view = View(part)
            outcome = stage.apply(view)
            codes = outcome.codes if outcome.codes is not None else [0] * view.num_docs
            after = outcome.text if outcome.text is not None else view.text
            for row, code in enumerate(codes):
                rule, text = expected[at * BATCH_ROWS + row]
                mine = stage.rules[code - 1] if code else None
                equal += mine == rule and (rule is not None or after.row(row).decode() == text)
    return {
        "ours": ours, "reference": size_of(few) / seconds, "equal": equal, "docs": len(few), "peak_mb": peak,
    }  # fmt: skip


# ---------------------------------------------------------------- three filters together


def trio(options: argparse.Namespace) -> None:
    """Print the three filters together, cold and warm, beside the reference."""
    ours, reference = ask("trio", options), ask("trio-reference", options)
    size = ours["mb"]
    print(
        f"\n{', '.join(TRIO)}: every document through all, {size:.1f} MB, {ours['docs']} documents"
    )
    slow = size / reference["seconds"]
    print(f"{'reference':14} {reference['seconds']:8.2f} s {slow:8.2f} MB/CPU s")
    for name in ("cold", "warm"):
        rate = size / ours[name]
        print(f"{'ours, ' + name:14} {ours[name]:8.3f} s {rate:8.1f} MB/CPU s {rate / slow:5.0f}x")
    equal = sum(a == b for a, b in zip(ours["reasons"], reference["reasons"], strict=True))
    print(f"reasons equal: {equal} of {len(ours['reasons'])}; memo: {ours['memo']}")


def our_trio(texts: list[str]) -> dict[str, Any]:
    """Run the three on an empty memo, then again."""
    stages = [registry.load(name)() for name in TRIO]
    parts = batches(texts)
    first = batches(["The first batch loads the compiled kernels."])[0]
    for stage in stages:
        stage.apply(View(first))

    def run() -> list[str | None]:
        reasons = []
        for part in parts:
            view = View(part)
            codes = [(stage, stage.apply(view).codes) for stage in stages]
            for stage, found in codes:
                reasons += [stage.rules[code - 1] if code else None for code in found]
        return reasons

    found: list[str | None] = []
    cold = cpu_seconds(lambda: found.extend(run()))
    warm = min(cpu_seconds(run) for _ in range(5))
    from corpuskit.text.words import splitter

    # Reasons come batch by batch, stage by stage: the order of the reference.
    return {
        "mb": size_of(texts), "docs": len(texts), "cold": cold, "warm": warm, "reasons": found,
        "memo": splitter("spacy", "en").stats(),
    }  # fmt: skip


def reference_trio(texts: list[str]) -> dict[str, Any]:
    """Run datatrove's three filters on each document."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = [GopherRepetitionFilter(), GopherQualityFilter(), FineWebQualityFilter()]
    for one in filters:
        one.filter(Document(text="The first document loads the tokenizer.", id=""))
    rows: list[list[str | None]] = []

    def decide(one: Any, text: str) -> str | None:
        kept = one.filter(Document(text=text, id=""))
        return None if kept is True else kept[1]

    seconds = cpu_seconds(
        lambda: rows.extend([decide(one, text) for one in filters] for text in texts)
    )
    reasons = []
    for at in range(0, len(rows), BATCH_ROWS):
        for column in range(len(filters)):
            reasons += [row[column] for row in rows[at : at + BATCH_ROWS]]
    return {"seconds": seconds, "reasons": reasons}


# ---------------------------------------------------------------- the recipe

URL = "https://docs.example.org/{}"


def recipe(options: argparse.Namespace) -> None:
    """Print FineWeb's filters from Parquet to Parquet, with and without language identification."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = read_texts(options.recipe_mb)
        source = folder / "in" / "documents.parquet"
        source.parent.mkdir()
        urls = [URL.format(at) for at in range(len(texts))]
        rows = pa.table({"id": [str(at) for at in range(len(texts))], "url": urls, "text": texts})
        pq.write_table(rows, source, compression="zstd", compression_level=3, row_group_size=1024)
        size = size_of(texts)
        floor = cpu_seconds(lambda: copy(source, folder / "copy.parquet"))
        print(f"\nFineWeb's filters, Parquet in and out, {size:.0f} MB, {len(texts)} documents")
        print(f"{'floor: pyarrow reads and writes':44} {floor:8.2f} s {size / floor:9.1f} MB/CPU s")
        few = folder / "few" / "documents.parquet"
        few.parent.mkdir()
        pq.write_table(rows.slice(0, 50), few)
        run_ours(folder, few, "warm-up", stages_of_recipe([]))  # compiles kernels and URL lists
        start = run_ours(folder, few, "start", stages_of_recipe([]))
        print(f"{'corpuskit, all stages, 50 documents':44} {start:8.2f} s")
        idle = run_ours(folder, source, "idle", [])
        print(
            f"{'corpuskit, no stage (every row written)':44} {idle:8.2f} s {size / idle:9.1f} MB/CPU s"
        )
        lid = {"model": str(DATA / "models" / "lid.176.ftz"), "keep": ["en"], "min_score": 0.65}
        for label, before in (
            ("without language ID", []),
            ("with language ID", [{"language": lid}]),
        ):
            ours = run_ours(folder, source, label.split()[0], stages_of_recipe(before))
            print(
                f"{'corpuskit, ' + label:44} {ours:8.2f} s {size / ours:9.1f} MB/CPU s; "
                f"{ours / floor:.1f} times the floor; {size / (ours - start):.1f} without start-up"
            )
            reference = run_reference(folder, source, with_language=bool(before))
            print(
                f"{'datatrove, ' + label:44} {reference:8.2f} s {size / reference:9.1f} MB/CPU s; "
                f"ours {reference / ours:.0f}x, without start-up {reference / (ours - start):.0f}x",
                flush=True,
            )
            compare_outputs(folder, label.split()[0], with_language=bool(before))


def stages_of_recipe(before: list[Any]) -> list[Any]:
    """Return FineWeb's filters in its order."""
    return [
        "url_filter",
        *before,
        "gopher_repetition",
        "gopher_quality",
        {"c4_quality": {"filter_no_terminal_punct": False}},
        "fineweb_quality",
        {"pii": {"mode": "datatrove"}},
    ]


def copy(source: Path, target: Path) -> None:
    """Read and write with pyarrow alone, row group by row group."""
    reader = pq.ParquetFile(source)
    with pq.ParquetWriter(
        target, reader.schema_arrow, compression="zstd", compression_level=3
    ) as out:
        for group in range(reader.num_row_groups):
            out.write_table(reader.read_row_group(group, use_threads=False))


def children_cpu() -> float:
    """Return the CPU seconds of waited-for children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_ours(folder: Path, source: Path, name: str, stages: list[Any]) -> float:
    """Run a pipeline in a process of its own; return CPU seconds."""
    pipeline = {
        "output": str(folder / name),
        "sources": {"web": {"parquet": str(source), "id_column": "id", "url_column": "url"}},
        "stages": stages,
        "executor": {"workers": 1},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False))
    began = children_cpu()
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(path)], cwd=ROOT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return children_cpu() - began


def run_reference(folder: Path, source: Path, *, with_language: bool) -> float:
    """Run datatrove's chain in a process of its own; return CPU seconds."""
    began = children_cpu()
    command = [
        sys.executable,
        __file__,
        "--worker",
        f"chain:{folder}:{source}:{int(with_language)}",
    ]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return children_cpu() - began


def chain(folder: str, source: str, with_language: str) -> dict[str, Any]:
    """Run datatrove's readers, filters and writers."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
        LanguageFilter,
        URLFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    language = []
    if with_language == "1":
        from tests.oracles.annotators import reference

        one = reference(LanguageFilter, languages=["en"], language_threshold=0.65)
        # Its own model is a download: the same lid.176.ftz as ours in its place.
        one.model._model = Numpy2Model(DATA / "models" / "lid.176.ftz")
        language = [one]
    steps = [
        ParquetReader(str(Path(source).parent), text_key="text", id_key="id"),
        URLFilter(),
        *language,
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        PIIFormatter(),
        ParquetWriter(f"{folder}/reference-{with_language}", compression="zstd"),
    ]
    data: Any = None
    with contextlib.redirect_stdout(io.StringIO()):
        for step in steps:  # what its executors do for a rank
            data = step(data, 0, 1)
        for _ in data:
            pass
    return {}


class Numpy2Model:
    """An official fastText model whose predict works with NumPy 2, as that of datatrove's wheel does."""

    def __init__(self, path: Path) -> None:
        import fasttext

        self.model = fasttext.load_model(str(path)).f

    def predict(self, text: str, k: int) -> tuple[list[str], Any]:
        import numpy as np

        pairs = self.model.predict(text + "\n", k, 0.0, "strict")
        return [label for _, label in pairs], np.array([score for score, _ in pairs])


def compare_outputs(folder: Path, name: str, *, with_language: bool) -> None:
    """Print how many documents both kept, and how many texts are equal."""
    ours = {
        row["id"]: row["text"]
        for path in sorted((folder / name / "documents").glob("*.parquet"))
        for row in pq.read_table(path, columns=["id", "text"]).to_pylist()
    }
    reference = {
        row["id"]: row["text"]
        for path in sorted((folder / f"reference-{int(with_language)}").glob("*.parquet"))
        for row in pq.read_table(path, columns=["id", "text"]).to_pylist()
    }
    both = ours.keys() & reference.keys()
    equal = sum(ours[one] == reference[one] for one in both)
    print(
        f"    kept: {len(ours)} and {len(reference)}, {len(both)} by both, of which {equal} texts equal"
    )


# ---------------------------------------------------------------- compile time


def compiling(options: argparse.Namespace) -> None:
    """Print the CPU seconds of the first batch through FineWeb's filters."""
    with tempfile.TemporaryDirectory() as cache:
        for label in ("no kernel compiled yet", "kernels compiled"):
            found = ask("first", options, {"CORPUSKIT_CACHE_DIR": cache})
            print(
                f"\nfirst batch, {label}: {found['seconds']:.2f} CPU s, of which imports {found['imports']:.2f}"
            )


def first_batch(_: argparse.Namespace) -> dict[str, float]:
    """Apply FineWeb's filters to one small batch."""
    began = time.process_time()
    names = ("gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality", "pii")
    stages = [registry.load(name)() for name in names]
    imported = time.process_time()
    part = batches(["A first text, with some words. And a second sentence (of others)."] * 3)[0]
    for stage in stages:
        assert isinstance(stage, StreamingStage)
        stage.apply(View(part))
    return {"seconds": time.process_time() - imported, "imports": imported - began}


# ---------------------------------------------------------------- processes of their own


def ask(
    worker: str, options: argparse.Namespace, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a worker in a new process, return what it prints."""
    done = subprocess.run(
        [
            sys.executable, __file__, "--worker", worker,
            "--mb", str(options.mb), "--reference-mb", str(options.reference_mb),
        ],
        text=True, capture_output=True, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class _Workers(dict):
    """Workers by name; `alone:STAGE` and `chain:...` carry arguments."""

    def __missing__(self, key: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
        kind, *rest = key.split(":")
        if kind == "alone":
            return lambda options: alone(rest[0], options)
        return lambda _: chain(*rest)


WORKERS = _Workers(
    {
        "trio": lambda options: our_trio(read_texts(options.reference_mb)),
        "trio-reference": lambda options: reference_trio(read_texts(options.reference_mb)),
        "first": first_batch,
    }
)


if __name__ == "__main__":
    main()
