"""Blocks against earlier text beside their references: decisions, MB per CPU second, memory.

    python benchmarks/blocks_dedup.py overlap [--dolma COMMAND] [--documents 4000]
    python benchmarks/blocks_dedup.py sentences [--documents 4000]
    python benchmarks/blocks_dedup.py characters [--documents 4000]
    python benchmarks/blocks_dedup.py perplexity [--blingfire PYTHON] [--documents 4000]

`overlap`: overlap_dedup, 20-grams of documents and 13-grams of lines, against sets in Python under
its own definition and under bff's (an n-gram counts only if what had it was kept), and against
dolma's deduper (20-grams of documents, Bloom filter at 1e-9). The whole of bench_en measures speed
and memory, the first documents measure decisions. CPU seconds are of one worker's tasks, as the
seals have them. `sentences`: line_dedup over spans of three sentences beside datatrove's
SentenceDedup, in one process. `characters`: minhash_dedup over 24 characters beside sets in Python.
`perplexity`: a table of word frequencies of bench_en's last file, its documents' mean log2
probabilities beside Common Pile's formula with BlingFire's words (PYTHON: the interpreter of an
environment that has blingfire); and the speed of perplexity and of toxicity's sentence cuts.
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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data"))
sys.path.insert(0, str(ROOT))


def read_texts(folder: str, most: int | None = None) -> list[str]:
    """Return the texts of a folder, in reading order."""
    texts: list[str] = []
    for path in sorted((DATA / folder).glob("*.parquet")):
        texts += pq.read_table(path, columns=["text"])["text"].to_pylist()
    return texts[:most]


def run_stage(stage: dict[str, Any], folder: Path) -> None:
    """Run one stage over bench_en with one worker; print speed, memory, scratch."""
    from corpuskit.engine.rundir import RunDirectory

    output = folder / f"run-{len(list(folder.iterdir()))}"
    pipeline = {
        "output": str(output),
        "documents": False,
        "sources": {"web": {"parquet": f"{DATA}/bench_en/*.parquet", "id_column": "id"}},
        "stages": [stage],
        "executor": {"workers": 1},
    }
    path = output.with_suffix(".yaml")
    path.write_text(json.dumps(pipeline), "utf-8")
    name = next(iter(stage))
    command = [sys.executable, "-m", "corpuskit", "run", str(path), "--until", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    run = RunDirectory.open(str(output))
    size = sum(len(text.encode()) for text in read_texts("bench_en"))
    cpu, peak, written, passes = 0.0, 0.0, 0, []
    for phase in run.plan.phases:
        if phase.pass_name:
            seal = run.seal(phase.index)
            seconds = seal.timing.get("cpu_seconds", 0.0)
            passes.append(f"{phase.pass_name} {seconds:.2f}")
            cpu += seconds
            peak = max(peak, seal.timing.get("peak_rss_bytes", 0.0))
            written += sum(p.size_bytes for p in seal.parts if p.role.startswith("run:"))
    print(f"{stage}\n  {size / 1e6:.1f} MB, {cpu:.2f} CPU s ({', '.join(passes)}): "
          f"{size / cpu / 1e6:.0f} MB/s; peak {peak / 1e6:.0f} MB; scratch {written / size:.2f} "
          "bytes per byte of text")  # fmt: skip


# ---------------------------------------------------------------- overlaps


def hashed_words(text: str) -> list[int]:
    """Return hashes of the words as the stage has them."""
    from corpuskit.kernels.arrays import frozen
    from corpuskit.kernels.words.boundaries import hash_boundary_words
    from corpuskit.text.words import boundary_classes

    data = frozen(np.frombuffer(text.encode(), np.uint8))
    words = np.zeros(len(data) + 1, np.uint64)
    return words[: hash_boundary_words(data, 0, len(data), boundary_classes(), words)].tolist()


def units_of(text: str, unit: str) -> list[list[tuple[int, ...]]]:
    """Return the n-grams of each unit: 20 words of a document, 13 of a line."""
    size = 20 if unit == "document" else 13
    pieces = [text] if unit == "document" else [line for line in text.split("\n") if line.strip()]
    words = map(hashed_words, pieces)
    return [[tuple(w[at : at + size]) for at in range(len(w) - size + 1)] for w in words]


def by_sets(texts: list[str], unit: str, most: float, *, kept_only: bool) -> list[list[bool]]:
    """Return which units go, if n-grams count that any earlier unit had, or only one that stays."""
    known: set[tuple[int, ...]] = set()
    answers = []
    for text in texts:
        answers.append([])
        for ngrams in units_of(text, unit):
            goes = bool(ngrams) and sum(gram in known for gram in ngrams) / len(ngrams) > most
            answers[-1].append(goes)
            if not (goes and kept_only):
                known.update(ngrams)
    return answers


def overlap(given: argparse.Namespace, folder: Path) -> None:
    """Print decisions beside sets in Python and dolma, then speed and memory."""
    from corpuskit.stages.dedup.overlap_dedup import OverlapDedup
    from tests.kernels.test_lines import plain_left, plain_units
    from tests.stages.global_runner import run_global

    texts = read_texts("bench_en", given.documents)
    bounds = list(range(1000, len(texts), 1000))
    stages = {"document": {"ngram": 20, "max_overlap": 0.899999}, "line": {"unit": "line"}}
    for unit, parameters in stages.items():
        stage = OverlapDedup(**parameters)
        began = time.process_time()
        whole = by_sets(texts, unit, stage.max_overlap, kept_only=False)
        seconds = time.process_time() - began
        kept = by_sets(texts, unit, stage.max_overlap, kept_only=True)
        decided = run_global(stage, texts, bounds=bounds, batch_docs=256)
        if unit == "document":
            differ = sum(g[0] == k for g, k in zip(whole, decided.keep.tolist(), strict=True))
        else:
            left = [
                plain_left(text.encode(), plain_units(text, False), goes).decode()
                for text, goes in zip(texts, whole, strict=True)
            ]
            says = zip(left, decided.texts, decided.keep, strict=True)
            differ = sum(bool(k) and plain != text for plain, text, k in says)
        num = sum(map(len, whole))
        gone = [sum(map(sum, flags)) for flags in (whole, kept)]
        pairs = zip(chain.from_iterable(whole), chain.from_iterable(kept), strict=True)
        apart = sum(a != b for a, b in pairs)
        size = sum(len(text.encode()) for text in texts) / 1e6
        print(f"{unit}: {len(texts):,} documents of {size:.1f} MB, {num:,} units, {gone[0]:,} go; "
              f"documents that differ from sets in Python: {differ}; bff's rule (what stays counts): "
              f"{gone[1]:,} go, {apart:,} units differ; Python {size / seconds:.1f} MB/s")  # fmt: skip
    if given.dolma:
        dolma_agreement(given.dolma, texts, folder / "dolma")
    for parameters in (*stages.values(), {"unit": "line", "max_document_overlap": 0.8}):
        run_stage({"overlap_dedup": parameters}, folder)


def dolma_agreement(command: str, texts: list[str], folder: Path) -> None:
    """Print how many documents have the share of seen 20-grams that dolma gives them."""
    from corpuskit.stages.dedup.overlap_dedup import OverlapDedup
    from tests.stages.global_runner import run_global

    (folder / "documents").mkdir(parents=True)
    with gzip.open(folder / "documents" / "0.json.gz", "wt", compresslevel=1) as out:
        for number, text in enumerate(texts):
            out.write(json.dumps({"id": str(number), "text": text, "source": "web"}) + "\n")
    by_ngram = {
        "ngram_length": 20, "stride": 1, "overlap_threshold": 0.0, "skip_short_paragraphs": True
    }  # fmt: skip
    content = {
        "documents": [f"{folder}/documents/*.gz"],
        "dedupe": {
            "name": "bloom",
            "paragraphs": {
                "attribute_name": "seen", "by_ngram": by_ngram, "paragraph_separator": "\u2588" * 8,
            },
        },
        "bloom_filter": {
            "file": f"{folder}/bloom.bin", "read_only": False,
            "estimated_doc_count": 30_000_000, "desired_false_positive_rate": 1e-9,
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
    with gzip.open(folder / "attributes" / "bloom" / "0.json.gz", "rt", encoding="utf-8") as file:
        rows = {int(row["id"]): row["attributes"]["seen"] for row in map(json.loads, file)}
    shares = np.array([rows[n][0][2] if rows[n] else 0.0 for n in range(len(texts))])
    decided = run_global(OverlapDedup(ngram=20), texts, batch_docs=256)
    mine = decided.columns["overlap"]
    grams = [units_of(text, "document")[0] for text in texts]
    unique = np.array([len(set(g)) == len(g) for g in grams])
    equal = np.isclose(shares, mine, atol=1e-6)
    goes = [(shares >= 0.9), (mine > 0.899999)]
    seconds = usage.ru_utime + usage.ru_stime
    print(f"dolma: {len(texts):,} documents, {seconds:.1f} CPU s with its start; without a 20-gram "
          f"twice: {unique.sum():,} documents, {(~equal & unique).sum()} have another share; all: "
          f"{(~equal).sum()} have another share, {(goes[0] != goes[1]).sum()} another decision "
          f"(dolma drops {goes[0].sum()}, corpuskit {goes[1].sum()})")  # fmt: skip


# ---------------------------------------------------------------- spans of three sentences


C4_SPANS = {
    "unit": "sentence", "window": 3, "normalize": "simplify", "min_count": 2,
    "count": "occurrences", "min_bytes": 1, "min_words": 1, "min_document": 0, "min_units": 3,
}  # fmt: skip


def sentences(given: argparse.Namespace, folder: Path) -> None:
    """Print decisions and speed beside datatrove's SentenceDedup."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import (
        SentDedupConfig,
        SentenceDedupFilter,
        SentenceDedupSignature,
        SentenceFindDedups,
    )

    from corpuskit.stages.dedup.line_dedup import LineDedup
    from tests.stages.global_runner import run_global

    texts = read_texts("bench_en", given.documents)
    size = sum(len(text.encode()) for text in texts) / 1e6
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    config = SentDedupConfig(min_doc_words=0)
    began = time.process_time()
    SentenceDedupSignature(str(folder / "signatures"), config=config).run(iter(documents))
    found = SentenceFindDedups(str(folder / "signatures"), str(folder / "found"), config=config)
    found.run()
    kept = SentenceDedupFilter(str(folder / "found"), config=config).run(iter(documents))
    theirs = {int(document.id): document.text for document in kept}
    seconds = time.process_time() - began
    began = time.process_time()
    decided = run_global(LineDedup(**C4_SPANS), texts, bounds=[len(texts) // 2], batch_docs=256)
    ours = time.process_time() - began
    mine = {n: t for n, t in enumerate(decided.texts) if decided.keep[n]}
    both = mine.keys() & theirs.keys()
    differ = sum(mine[n].split() != theirs[n].split() for n in both)
    solid = sum("".join(mine[n].split()) != "".join(theirs[n].split()) for n in both)
    cut = sum("".join(theirs[n].split()) != "".join(texts[n].split()) for n in both)
    print(f"{len(texts):,} documents of {size:.1f} MB: datatrove keeps {len(theirs):,}, corpuskit "
          f"{len(mine):,} ({len(both):,} both); cut {cut:,}; of both {differ} differ in words, "
          f"{solid} but for whitespace; datatrove {seconds:.1f} CPU s ({size / seconds:.2f} MB/s), "
          f"corpuskit {ours:.1f} ({size / ours:.1f} MB/s)")  # fmt: skip
    for number in sorted(mine.keys() ^ theirs.keys())[:3]:
        print(f"  document {number} stays in one of the two")
    run_stage({"line_dedup": C4_SPANS}, folder)


# ---------------------------------------------------------------- shingles of characters


def characters(given: argparse.Namespace, folder: Path) -> None:
    """Print whether near duplicates have the similarity that sets in Python give them."""
    from corpuskit.stages.dedup.minhash_dedup import MinhashDedup
    from tests.stages.global_runner import number_of, run_global

    texts = read_texts("bench_en", given.documents)
    stage = {"shingles": "characters", "ngram": 24, "bands": 20, "rows": 13}
    decided = run_global(MinhashDedup(**stage), texts, batch_docs=256)
    wrong = 0
    for row in decided.ledger:
        pair = number_of(row["doc_key"]), int(row["survivor_id"].removeprefix("doc-"))
        one, other = ({texts[n][at : at + 24] for at in range(len(texts[n]) - 23)} for n in pair)
        wrong += len(one & other) / len(one | other) != row["value"]
    print(f"{len(texts):,} documents, {len(decided.ledger):,} go; {wrong} have another similarity to "
          "what stays than sets in Python")  # fmt: skip
    run_stage({"minhash_dedup": stage}, folder)
    run_stage({"minhash_dedup": {}}, folder)


# ---------------------------------------------------------------- streaming blocks


def perplexity(given: argparse.Namespace, folder: Path) -> None:
    """Print how far BlingFire's words move the perplexity, and decisions; then speeds."""
    import pyarrow as pa

    from corpuskit.stage import View
    from corpuskit.stages.annotators._unigrams import count_words
    from corpuskit.stages.annotators.perplexity import Perplexity
    from corpuskit.stages.annotators.toxicity import Toxicity

    texts = read_texts("bench_en")
    counts = count_words(texts[-4000:], "spacy", "en")
    table = folder / "words.csv"
    table.write_text("".join(f"{w},{n}\n" for w, n in counts.items() if n > 2), "utf-8")
    texts = texts[: given.documents]
    size = sum(len(text.encode()) for text in texts) / 1e6
    batches = [
        pa.record_batch({"text": pa.array(texts[at : at + 500], pa.large_string())})
        for at in range(0, len(texts), 500)
    ]
    stages = {
        "perplexity": Perplexity(model=str(table)),
        "toxicity": Toxicity(model=str(ROOT / "sample_data" / "toxicity.ftz"), cut_score=0.1),
    }
    values = np.empty(0)
    for name, stage in stages.items():
        stage.apply(View(batches[0].slice(0, 2)))
        began = time.process_time()
        outcomes = [stage.apply(View(batch)) for batch in batches]
        seconds = time.process_time() - began
        print(f"{name}: {size:.1f} MB in {seconds:.2f} CPU s, {size / seconds:.0f} MB/s")
        if name == "perplexity":
            found = [
                outcome.columns["value"].to_numpy(zero_copy_only=False) for outcome in outcomes
            ]
            values = np.concatenate(found)
    if given.blingfire is None:
        return
    code = (
        "import sys, json, blingfire; "
        "[print(json.dumps(blingfire.text_to_words(json.loads(line)).lower().split())) "
        "for line in sys.stdin]"
    )
    lines = "\n".join(map(json.dumps, texts))
    done = subprocess.run(
        [given.blingfire, "-c", code], input=lines, text=True, capture_output=True, check=True
    )
    kept = {word: count for word, count in counts.items() if count > 2}
    total = np.log2(sum(kept.values()))
    unknown = np.log2(np.sqrt(len(kept)) + 1) - total
    logs = {word: np.log2(count) - total for word, count in kept.items()}
    rows = map(json.loads, done.stdout.splitlines())
    theirs = [sum(logs.get(w, unknown) for w in row) / len(row) if row else np.nan for row in rows]
    mine, means = -np.log2(values), np.array(theirs)
    apart = np.abs(mine - means)
    print(f"{len(texts):,} documents: mean log2 p differs by {np.nanmedian(apart):.3f} in the median, "
          f"{np.nanquantile(apart, 0.99):.2f} at 99 %")  # fmt: skip
    for share in (0.01, 0.05):
        bound = np.nanquantile(means, share)
        differ = ((mine <= bound) != (means <= bound)).sum()
        print(f"  a cut at {bound:.2f} ({share:.0%} of BlingFire's): {differ} decisions differ")


BLOCKS = {
    "perplexity": perplexity,
    "overlap": overlap,
    "sentences": sentences,
    "characters": characters,
}


def main() -> None:
    """Run the block that the command names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("block", choices=BLOCKS)
    parser.add_argument("--dolma", default=os.environ.get("CORPUSKIT_DOLMA"))
    parser.add_argument("--blingfire", help="an interpreter that has blingfire")
    parser.add_argument("--documents", type=int, default=4000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        BLOCKS[given.block](given, Path(folder))


if __name__ == "__main__":
    main()
