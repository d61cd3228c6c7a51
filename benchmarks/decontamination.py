"""Decontamination: what is found of planted benchmark items, by kind, and how fast.

Three methods on the same documents: our stage, any shared 13-gram as in GPT-3's paper, and datatrove's
NGramsDecontFilter (12-grams of answers and of the seam between question and answer; with `queries` those of
questions, too). The planted documents are halved, even rows and odd ones: defaults were chosen on the even half, the
table is of the other one unless `--half even`. An item counts as found if its document is flagged at all; `named` is
the share of flagged documents for which our stage names the item, or another with the same words. `bench_en` is
clean but for what it shares with benchmarks by itself: its hits are counted, and `--show` prints them.

    python benchmarks/decontamination.py [--half odd] [--choose] [--show 20] [--without-datatrove] [--mb 30]

    python benchmarks/decontamination.py --chunks 300

plants runs of 8 and 13 words of a question, at a random place of a random item (seed 0), into documents of bench_en
in which nothing is found, 300 of each benchmark and length, and prints the share dropped (`chunk`) and reported
(`phrase`). `--clean` counts both in documents without planted items of five sets on which nothing was chosen.
`--frequency 300` does both for `decontaminate_ngrams: {rule: chunks}`: the run is bench_en, or all sets; each planted
run of words is judged alone, in one document more.

`--janitor FILE` compares `decontaminate_ngrams: {rule: janitor}` with lm_eval's `Janitor`, of which it needs the file
`lm_eval/decontamination/janitor.py` (`pip download --no-deps lm_eval`, and unzip it), piece by piece on all documents.

Reads decontam, benchmarks and bench_en from CORPUSKIT_SHARED_DATA. Speed: CPU seconds on one core, start apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import os
import random
import string
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.stage import View
from corpuskit.stages.dedup.decontaminate import Decontaminate
from corpuskit.stages.dedup.decontaminate.index import open_index
from corpuskit.stages.dedup.decontaminate.items import (
    BenchmarkColumns,
    benchmark_files,
    read_benchmarks,
    read_items,
)
from corpuskit.stages.dedup.decontaminate.ngrams import janitor_pieces, word_spans
from corpuskit.stages.dedup.decontaminate.search import find_items
from corpuskit.stages.dedup.decontaminate_ngrams import DecontaminateNgrams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Spans = list[tuple[int, int]]
    Verdict = tuple[bool, Spans]

DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
BATCH_ROWS = 512
GPT3_WORDS = 13
_DROPPED = str.maketrans("", "", string.punctuation)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=["odd", "even", "both"], default="odd")
    parser.add_argument("--choose", action="store_true", help="try other bounds on the even half")
    parser.add_argument("--show", type=int, default=0, help="hits of bench_en to print")
    parser.add_argument("--mb", type=float, default=1000, help="text of bench_en")
    parser.add_argument("--without-datatrove", action="store_true")
    parser.add_argument("--clean", action="store_true", help="count flags in other clean documents")
    parser.add_argument("--chunks", type=int, help="plant so many runs of words of each benchmark")
    parser.add_argument("--frequency", type=int, help="the same by documents of the run")
    parser.add_argument("--seed", default="", help="of the runs of words that --frequency plants")
    parser.add_argument("--janitor", type=Path, help="compare with this janitor.py of lm_eval")
    options = parser.parse_args()
    if not (DATA / "decontam").exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    rows = pq.read_table(DATA / "decontam" / "planted.parquet").to_pylist()
    stage = Decontaminate(benchmarks=(str(DATA / "benchmarks" / "*.parquet"),))
    if options.janitor:
        janitor(options.janitor)
        return
    if options.clean:
        clean(stage)
        return
    if options.chunks:
        chunks(stage, options.chunks, {row["benchmark"] for row in rows if row["benchmark"]})
        return
    if options.frequency:
        frequency(
            options.frequency, options.seed, {row["benchmark"] for row in rows if row["benchmark"]}
        )
        return
    if options.choose:
        choose(stage, rows[::2])
        return
    start = {"odd": 1, "even": 0, "both": 0}[options.half]
    rows = rows[start :: 1 if options.half == "both" else 2]
    methods = methods_of(stage, without_datatrove=options.without_datatrove)
    table(rows, methods, stage)
    natural(stage, methods, options)


# --- methods


def methods_of(
    stage: Decontaminate, *, without_datatrove: bool
) -> dict[str, Callable[[list[str]], list[Verdict]]]:
    """Return name -> texts to verdicts; says what building each costs."""
    began = time.process_time()
    index = open_index(stage._recipe())
    ours(stage, ["warm up"])
    spent = time.process_time() - began
    print(f"our index: {len(index.names):,} different items, {(~index.is_found(0.0, passages=False)).sum()} too short; "
          f"opened in {spent:.2f} CPU s")  # fmt: skip
    items = [
        item
        for name, path in stage._recipe().files
        for item in read_items(name, path, BenchmarkColumns())
    ]
    began = time.process_time()
    grams = {
        gram for one in items for gram, *_ in gpt3_grams(f"{one.question} {one.answer}", GPT3_WORDS)
    }
    print(f"13-grams: {len(grams):,}, {time.process_time() - began:.1f} CPU s")
    methods = {
        "corpuskit": lambda texts: ours(stage, texts),
        "any 13-gram": lambda texts: [gpt3(text, grams) for text in texts],
    }
    if not without_datatrove:
        for queries in (False, True):
            name = "datatrove queries" if queries else "datatrove"
            began = time.process_time()
            methods[name] = datatrove(items, queries=queries)
            print(f"{name}: {time.process_time() - began:.1f} CPU s to index")
    return methods


def batches(texts: list[str]) -> Iterator[View]:
    """Yield batches as a stage sees them."""
    for first in range(0, len(texts), BATCH_ROWS):
        part = pa.array(texts[first : first + BATCH_ROWS], pa.large_string())
        yield View(pa.record_batch({"text": part}))


def ours(stage: Decontaminate, texts: list[str]) -> list[Verdict]:
    """Judge by our stage."""
    found: list[Verdict] = []
    for view in batches(texts):
        outcome = stage.apply(view)
        assert outcome.codes is not None
        assert outcome.spans is not None
        spans = defaultdict(list)
        parts = (outcome.spans.rows, outcome.spans.starts, outcome.spans.ends)
        for row, start, end in zip(*(part.tolist() for part in parts), strict=True):
            spans[row].append((start, end))
        found += [(code > 0, spans[row]) for row, code in enumerate(outcome.codes.tolist())]
    return found


def gpt3_grams(text: str, num: int) -> Iterator[tuple[int, int, int]]:
    """Yield the n-grams of a text as hashes, with their first and last word."""
    words = text.lower().translate(_DROPPED).split()
    for at in range(len(words) - num + 1):
        yield hash(tuple(words[at : at + num])), at, at + num


def gpt3(text: str, grams: set[int]) -> Verdict:
    """Judge by any shared 13-gram of lower-case words without punctuation."""
    hits = [(first, last) for gram, first, last in gpt3_grams(text, GPT3_WORDS) if gram in grams]
    if not hits:
        return False, []
    places, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        if word.lower().translate(_DROPPED):
            places.append((at, at + len(word)))
        at += len(word)
    sizes = np.append(0, np.cumsum([len(char.encode()) for char in text]))
    spans: Spans = []
    for first, last in hits:
        start, end = int(sizes[places[first][0]]), int(sizes[places[last - 1][1]])
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return True, spans


def datatrove(items: list[Any], *, queries: bool) -> Callable[[list[str]], list[Verdict]]:
    """Return datatrove's filter with its own n-grams of the items."""
    from datatrove.data import Document
    from datatrove.pipeline.decont.n_grams import (
        NGramsDecontConfig,
        NGramsDecontFilter,
        NGramsDecontIndexer,
    )

    config = NGramsDecontConfig(find_query_ngrams=queries)
    judge = NGramsDecontFilter("/nowhere", config)
    # The indexer itself asks for lighteval, which downloads benchmarks; this is what it computes.
    maker = SimpleNamespace(tokenizer=judge.tokenizer, config=config, hash_func=judge.hash_func)
    judge._index_hashes = {
        value: "task"
        for one in items
        for value in NGramsDecontIndexer.compute_hashes(maker, one.answer, one.question)
    }
    return lambda texts: [
        (judge.filter(Document(text=text, id="")) is not True, []) for text in texts
    ]


# --- tables


def table(rows: list[dict[str, Any]], methods: dict[str, Any], stage: Decontaminate) -> None:
    """Print recall per kind, precision, spans and speed of all methods."""
    texts = [row["text"] for row in rows]
    size = sum(len(text.encode()) for text in texts) / 1e6
    kinds = sorted({row["kind"] for row in rows if row["contaminated"]})
    verdicts, speeds = {}, {}
    for name, judge in methods.items():
        judge(texts[:4])
        began = time.process_time()
        verdicts[name] = judge(texts)
        speeds[name] = size / (time.process_time() - began)
    named = names_right(rows, stage)
    print(f"\n{len(rows)} documents, {size:.1f} MB\n\n{'recall':18}{'docs':>6}", end="")
    print("".join(f"{name:>19}" for name in methods), f"{'named':>8}")
    for kind in kinds:
        at = [place for place, row in enumerate(rows) if row["kind"] == kind]
        cells = [np.mean([verdicts[name][place][0] for place in at]) for name in methods]
        right = np.mean([named[place] for place in at if verdicts["corpuskit"][place][0]])
        print(f"{kind:18}{len(at):6}" + "".join(f"{cell:19.3f}" for cell in cells), f"{right:8.3f}")
    for label, value in (("precision", precision), ("false positives", false_positives)):
        cells = [value(rows, verdicts[name]) for name in methods]
        print(f"{label:24}" + "".join(f"{cell:19}" for cell in cells))
    for label, value in (("span precision", 0), ("span recall", 1)):
        cells = [span_quality(rows, verdicts[name])[value] for name in methods]
        print(f"{label:24}" + "".join(f"{cell:19.3f}" for cell in cells))
    print(f"{'MB per CPU s':24}" + "".join(f"{speeds[name]:19.2f}" for name in methods))


def false_positives(rows: list[dict[str, Any]], verdicts: list[Verdict]) -> str:
    """Return how many clean documents are flagged."""
    clean = [place for place, row in enumerate(rows) if not row["contaminated"]]
    return f"{sum(verdicts[place][0] for place in clean)} of {len(clean)}"


def precision(rows: list[dict[str, Any]], verdicts: list[Verdict]) -> str:
    """Return the share of contaminated documents among the flagged ones."""
    flagged = [row["contaminated"] for row, (hit, _) in zip(rows, verdicts, strict=True) if hit]
    return f"{np.mean(flagged):.4f}" if flagged else "none"


def span_quality(rows: list[dict[str, Any]], verdicts: list[Verdict]) -> tuple[float, float]:
    """Return which share of the spans' bytes was planted, and of the planted bytes is in spans.

    Over documents that hold an item and were flagged with spans.
    """
    both = marked = planted = 0
    for row, (_, spans) in zip(rows, verdicts, strict=True):
        if not row["contaminated"] or not spans:
            continue
        start, end = planted_bytes(row)
        for first, last in spans:
            both += max(0, min(end, last) - max(start, first))
            marked += last - first
        planted += end - start
    return (both / marked, both / planted) if marked else (float("nan"), float("nan"))


def planted_bytes(row: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes of what was planted; the truth has characters."""
    start = len(row["text"][: row["start"]].encode())
    return start, start + len(row["text"][row["start"] : row["end"]].encode())


def names_right(rows: list[dict[str, Any]], stage: Decontaminate) -> list[bool]:
    """Return whether the stage names the planted item, or one with the same question."""
    questions: dict[str, str] = {}
    for name, path in benchmark_files(stage.benchmarks):
        for item in read_items(name, path, BenchmarkColumns()):
            questions[item.name] = " ".join(item.question.split()).lower()
    found: list[set[str]] = []
    for view in batches([row["text"] for row in rows]):
        found += [
            {questions[name] for name in names}
            for names in stage.apply(view).columns["items"].to_pylist()
        ]
    right = []
    for row, names in zip(rows, found, strict=True):
        prefix = f"{row['benchmark']}/"
        own = (
            row["item_id"]
            if (row["item_id"] or "").startswith(prefix)
            else f"{prefix}{row['item_id']}"
        )
        right.append(bool(row["contaminated"]) and questions.get(own) in names)
    return right


def natural(stage: Decontaminate, methods: dict[str, Any], options: argparse.Namespace) -> None:
    """Print what is found in documents in which nothing was planted, and the speed of the stage."""
    texts, left = [], options.mb * 1e6
    for file in sorted((DATA / "bench_en").glob("*.parquet")):
        for text in pq.read_table(file, columns=["text"])["text"].to_pylist():
            if left > 0:
                texts.append(text)
                left -= len(text.encode())
    views = list(batches(texts))
    size = sum(int(view.text.sizes().sum()) for view in views) / 1e6
    index, bounds = open_index(stage._recipe()), stage._thresholds()
    began = time.process_time()
    found = [find_items(view.text, index, stage.ngram, bounds) for view in views]
    spent = time.process_time() - began
    counts: Counter[str] = Counter()
    for one in found:
        _, firsts = np.unique(one.rows, return_index=True)
        counts.update(stage.rules[code - 1] for code in one.codes[firsts].tolist())
    print(
        f"\nbench_en: {len(texts):,} documents, {size:.0f} MB: corpuskit flags {counts.total()}: {dict(counts)}"
    )
    print(f"corpuskit {size / spent:.1f} MB per CPU s")
    began = time.process_time()
    hits = sum(hit for hit, _ in methods["any 13-gram"](texts))
    print(f"any 13-gram flags {hits}, {size / (time.process_time() - began):.2f} MB per CPU s")
    shown: Counter[str] = Counter()
    for view, one in zip(views, found, strict=True):
        for at in range(len(one)):
            text = view.text.row(int(one.rows[at]))[one.starts[at] : one.ends[at]].decode()
            place = f"{stage.rules[one.codes[at] - 1]} {one.scores[at]:.2f} {index.names[int(one.items[at])]}"
            shown[f"{place}: {text!r:.150}"] += 1
    for line, num in shown.most_common(options.show):
        print(f"{num:5} {line}")


def chunks(stage: Decontaminate, num: int, known: set[str]) -> None:
    """Print the share found of runs of words of each benchmark, planted here.

    Args:
        known: benchmarks that decontam/planted.parquet has items of; the defaults were chosen on it.
    """
    draw = random.Random(0)
    file = min((DATA / "bench_en").glob("*.parquet"))
    texts = [t for t in pq.read_table(file)["text"].to_pylist() if 1000 < len(t) < 20_000]
    hosts = [text for text, label in zip(texts, labels(stage, texts), strict=True) if not label]
    totals: defaultdict[tuple[bool, int], list[list[float]]] = defaultdict(list)
    print(
        f"{len(hosts):,} documents; dropped and reported\n"
        f"{'':18}{'in decontam/':>14}{'items':>8}{'8 words':>10}{'':10}{'13 words':>10}"
    )
    for name, path in benchmark_files(stage.benchmarks):
        questions = [item.question.split() for item in read_items(name, path, BenchmarkColumns())]
        long = [words for words in questions if len(words) >= 13]
        shares = []
        for length in (8, 13):
            planted = []
            for words in draw.choices(long, k=num):
                at, host = draw.randrange(len(words) - length + 1), draw.choice(hosts).split(" ")
                place = draw.randrange(len(host) + 1)
                host[place:place] = words[at : at + length]
                planted.append(" ".join(host))
            verdicts = labels(stage, planted)
            shares += [verdicts.count(label) / num for label in ("dropped", "reported")]
            totals[name in known, length].append(shares[-2:])
        cells = "".join(f"{share:10.2f}" for share in shares)
        print(f"{name:18}{'yes' if name in known else 'no':>14}{len(long):8,}{cells}")
    for is_known, label in ((True, "mean of those"), (False, "mean of others")):
        means = [mean for length in (8, 13) for mean in np.mean(totals[is_known, length], axis=0)]
        print(f"{label:40}" + "".join(f"{mean:10.3f}" for mean in means))


def labels(stage: Decontaminate, texts: list[str]) -> list[str]:
    """Return of each text `dropped`, `reported` or an empty string."""
    found = []
    for view in batches(texts):
        outcome = stage.apply(view)
        reported = [bool(phrases) for phrases in outcome.columns["phrases"].to_pylist()]
        for code, is_reported in zip(outcome.codes.tolist(), reported, strict=True):
            found.append("dropped" if code else "reported" if is_reported else "")
    return found


CLEAN = (
    "bench_en/*", "bench_multi/*", "neardup/plagiarism_articles*", "toxicity/davidson_tweets*",
    "toxicity/wiki_toxicity*", "code/*",
)  # fmt: skip
"""Sets of clean documents; bounds were chosen on the first half of bench_en, nothing on the others."""


def clean(stage: Decontaminate) -> None:
    """Print how many clean documents of each set are dropped and reported, with 95 % intervals."""
    for pattern in CLEAN:
        texts = []
        for file in sorted(DATA.glob(f"{pattern}.parquet")):
            texts += pq.read_table(file, columns=["text"])["text"].to_pylist()
        verdicts = labels(stage, texts)
        cells = []
        for label in ("dropped", "reported"):
            low, high = interval(verdicts.count(label), len(texts))
            cells.append(
                f"{label} {verdicts.count(label):4} ({5000 * low:.2f} to {5000 * high:.2f} in 5,000)"
            )
        print(f"{pattern:30}{len(texts):8,}  " + "  ".join(cells), flush=True)


def frequency(num: int, seed: str, known: set[str]) -> None:
    """Print what `rule: chunks` drops of clean documents and of planted runs, by `max_documents`.

    Args:
        num: planted runs of each benchmark and length.
        seed: of the runs; parameters were chosen on those of `tune` and the first half of bench_en.
        known: as in `chunks`.
    """
    stage = DecontaminateNgrams(benchmarks=(str(DATA / "benchmarks" / "*.parquet"),), rule="chunks")
    index = stage._index()
    planted = planted_hits(stage, num, seed, known)
    documents, sets, first = np.zeros(len(index.hashes), np.int64), [], 0
    size, spent, one_pass = 0, 0.0, 0.0
    other = Decontaminate(benchmarks=stage.benchmarks)
    items = open_index(other._recipe())
    for pattern in CLEAN:
        found = []
        for file in sorted(DATA.glob(f"{pattern}.parquet")):
            table = pq.read_table(file, columns=["text"])
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                view = View(batch.set_column(0, "text", batch["text"].cast(pa.large_string())))
                size += int(view.text.sizes().sum())
                began = time.process_time()
                rows, words, hashes = index.find(view.text)
                middle = time.process_time()
                find_items(view.text, items, other.ngram, other._thresholds())
                spent, one_pass = spent + middle - began, one_pass + time.process_time() - middle
                found.append((rows + first, words, hashes))
                first += view.num_docs
        rows, words, hashes = (np.concatenate(column) for column in zip(*found, strict=True))
        places = np.searchsorted(index.hashes, hashes)
        documents += np.bincount(np.unique(rows * len(documents) + places) % len(documents),
                                 minlength=len(documents))  # fmt: skip
        sets.append((rows, words, hashes, places))
        if pattern == CLEAN[0]:
            sets_half = first // 2
        elif pattern != CLEAN[-1]:
            continue
        print(f"a run of {first:,} documents, up to {pattern}")
        for most in (1, 2, 3, 5, 10):
            flags = [in_a_row(stage, *hits, (documents <= most)[places]) for *hits, places in sets]
            cells, rare = [], documents < most
            for length, is_known in itertools.product((8, 13), (True, False)):
                shares = [
                    len(in_a_row(stage, *hits, rare[np.searchsorted(index.hashes, hits[2])])) / num
                    for *one, hits in planted if one == [length, is_known]
                ]  # fmt: skip
                cells.append(f"{np.mean(shares):.3f}")
            half = int((flags[0] < sets_half).sum())
            print(f"  max_documents {most:2}: flagged {[*map(len, flags)]} ({half} in the first half of "
                  f"bench_en); found {' '.join(cells)}", flush=True)  # fmt: skip
    speeds = [f"{size / 1e6 / seconds:.0f}" for seconds in (spent, one_pass)]
    print(f"{size / 1e6:.0f} MB, per CPU s: find {speeds[0]}, decontaminate {speeds[1]}")


def planted_hits(
    stage: DecontaminateNgrams, num: int, seed: str, known: set[str]
) -> list[tuple[int, bool, Any]]:
    """Plant runs of words: return length, whether the benchmark is known, and n-grams found."""
    planted = []
    for name, path in benchmark_files(stage.benchmarks):
        questions = [item.question.split() for item in read_items(name, path, BenchmarkColumns())]
        long = [words for words in questions if len(words) >= 13]
        for length in (8, 13):
            draw, texts = random.Random(f"{length}{name}{seed}"), []
            for words in draw.choices(long, k=num):
                at = draw.randrange(len(words) - length + 1)
                texts.append(" ".join(words[at : at + length]))
            view = View(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
            planted.append((length, name in known, stage._index().find(view.text)))
    return planted


def in_a_row(stage: DecontaminateNgrams, rows: Any, words: Any, hashes: Any, counts: Any) -> Any:
    """Return texts in which n-grams that count follow one another as the stage asks for."""
    rows, words, hashes = rows[counts], words[counts], hashes[counts]
    return np.unique(rows[stage.in_a_row(rows, words, hashes)])


def janitor(path: Path) -> None:
    """Print on how many documents lm_eval's Janitor and `rule: janitor` do not leave the same."""
    spec = importlib.util.spec_from_file_location("janitor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)  # it says that its C++ is not there
    theirs = module.Janitor()
    stage = DecontaminateNgrams(
        benchmarks=(str(DATA / "benchmarks" / "*.parquet"),), rule="janitor"
    )
    index, num = stage._index(), 13
    for item in read_benchmarks(stage.benchmark_files(), stage.columns()):
        theirs.register_contaminant_python(f"{item.question}\n{item.answer}")
    for pattern in ("decontam/*", "code/*", "bench_multi/*"):
        documents = matched = dropped = different = short = 0
        spent = [0.0, 0.0]
        for file in sorted(DATA.glob(f"{pattern}.parquet")):
            texts = pq.read_table(file, columns=["text"])["text"].to_pylist()
            for view in batches(texts):
                began = time.process_time()
                rows, words, _ = index.find(view.text)
                spent[0] += time.process_time() - began
                for at in range(view.num_docs):
                    text = view.text.row(at).decode()
                    began = time.process_time()
                    chunks = theirs.clean_python(text)
                    spent[1] += time.process_time() - began
                    mine = words[rows == at].tolist()
                    places = word_spans(text, "janitor") if mine else []
                    spans = [(places[one][0], places[one + num - 1][1]) for one in mine]
                    kept, hits = janitor_pieces(len(text), spans, 200, 200)
                    left = [text[a:b] for a, b in kept] if hits <= 10 else []
                    if not mine and not chunks:  # we leave these as they are
                        short += 1
                        left = []
                    documents, matched = documents + 1, matched + bool(mine)
                    dropped += bool(mine) and not left
                    different += left != chunks
        print(f"{pattern:14}{documents:7,} documents, {matched:4} with matches, {dropped:4} dropped, "
              f"{different} differ; {short} below 200 characters without a match stay here; "
              f"{spent[0]:.1f} and {spent[1]:.1f} CPU s", flush=True)  # fmt: skip


def interval(hits: int, num: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share, wide = hits / num, 1.96**2 / num
    middle = (share + wide / 2) / (1 + wide)
    half = 1.96 * (share * (1 - share) / num + wide / num / 4) ** 0.5 / (1 + wide)
    return max(middle - half, 0.0), middle + half


def choose(stage: Decontaminate, rows: list[dict[str, Any]]) -> None:
    """Print how often other bounds find what was planted in a half, by kind."""
    kinds = sorted({row["kind"] for row in rows})
    texts = [row["text"] for row in rows]
    print(f"{'ngram words weight':22}" + "".join(f"{kind:>16}" for kind in kinds))
    grid = itertools.product(
        (4, 5, 6), ((0, 0.0), (8, 1.5), (8, 2.0), (8, 2.5), (10, 2.0), (13, 2.0))
    )
    for ngram, (words, weight) in grid:
        change = {"ngram": ngram, "chunk_words": words, "chunk_weight": weight}
        verdicts = ours(stage.model_copy(update=change), texts)
        cells = []
        for kind in kinds:
            hits = [
                hit for row, (hit, _) in zip(rows, verdicts, strict=True) if row["kind"] == kind
            ]
            cells.append(f"{np.mean(hits):16.3f}")
        print(f"{ngram:5}{words:6}{weight:7.1f}    " + "".join(cells))


if __name__ == "__main__":
    main()
