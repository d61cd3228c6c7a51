"""Decisions of filters beside those of their reference, on every real document: differences are listed.

    python benchmarks/parity.py [STAGE ...] [--sets en,multi,html] [--mb N] [--jobs 2]

Each stage and its oracle of tests/oracles (datatrove 0.10.1 with spaCy) see all of bench_en, all of bench_multi in the
languages that the reference splits by spaCy's rules, and the main text of the pages of trafilatura_eval, of
CORPUSKIT_SHARED_DATA. Compared are decision, reason and rewritten text. Exit code 1 when any differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.engine import registry
from corpuskit.errors import UsageError
from corpuskit.stage import StreamingStage, View
from corpuskit.text.words import check_language

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.oracles import oracle_of

DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
STAGES = ("gopher_quality", "gopher_repetition", "c4_quality", "fineweb_quality")
CHUNK = 256


class Work(NamedTuple):
    """Some documents of one language for one stage."""

    stage: str
    params: dict[str, object]
    group: str
    texts: list[str]


class Found(NamedTuple):
    """What came of it; `differing` holds (text, ours, reference)."""

    stage: str
    group: str
    num_docs: int
    size_bytes: int
    reasons: Counter[str]
    our_seconds: float
    reference_seconds: float
    differing: list[tuple[str, object, object]]


def main() -> None:
    """Compare, print a table, list what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", default=STAGES)
    parser.add_argument("--sets", default="en,multi,html")
    parser.add_argument("--mb", type=float, default=float("inf"), help="text of each set")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    groups: dict[tuple[str, str], list[str]] = {}
    for name in options.sets.split(","):
        for language, texts in read(name, options.mb):
            groups.setdefault((name, language), []).extend(texts)
    work = [
        Work(stage, params_of(stage, language), f"{name}/{language}", texts[at : at + CHUNK])
        for stage in options.stages
        for (name, language), texts in groups.items()
        for at in range(0, len(texts), CHUNK)
    ]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        done = pool.imap_unordered(compare, work)
        differing = report(list(done))
    sys.exit(1 if differing else 0)


def params_of(stage: str, language: str) -> dict[str, object]:
    """Return the parameters: the language where the stage has one."""
    return {"language": language} if "language" in registry.load(stage).model_fields else {}


def read(name: str, megabytes: float) -> list[tuple[str, list[str]]]:
    """Return (language, texts) of a set; languages that the reference splits otherwise are named."""
    if name == "en":
        files = sorted((DATA / "bench_en").glob("*.parquet"))
        rows = [
            ("en", t) for f in files for t in pq.read_table(f, columns=["text"])["text"].to_pylist()
        ]
    elif name == "html":
        rows = [("en", text) for text in pages()]
    else:
        rows = []
        for file in sorted((DATA / "bench_multi").glob("*.parquet")):
            table = pq.read_table(file, columns=["text", "lang"])
            rows += zip(
                map(plain_code, table["lang"].to_pylist()), table["text"].to_pylist(), strict=True
            )
    found: dict[str, list[str]] = {}
    size = 0
    for language, text in rows:
        size += len(text.encode())
        if size > megabytes * 1e6:
            break
        found.setdefault(language, []).append(text)
    refused = {}
    for language in found:
        try:
            check_language("spacy", language)
        except UsageError as error:
            refused[language] = str(error).splitlines()[0]
    if refused:
        print(
            f"{name}: without a spaCy rule tokenizer in the reference: {' '.join(sorted(refused))}"
        )
    return [(language, texts) for language, texts in found.items() if language not in refused]


def plain_code(code: str) -> str:
    """Return `pt` for `pt_BR` and `pt-br`."""
    return code.replace("_", "-").split("-")[0].lower()


def pages() -> list[str]:
    """Return the main text of real pages."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    table = pq.read_table(DATA / "html" / "trafilatura_eval.parquet", columns=["html"])
    pages = table["html"].to_pylist()
    return [
        extract_plain_text(bytes_to_str(html, detect_encoding(html)), main_content=True)
        for html in pages
    ]


def compare(work: Work) -> Found:
    """Ask both about the same documents."""
    stage = registry.load(work.stage)(**work.params)
    assert isinstance(stage, StreamingStage)
    oracle = oracle_of(stage)
    assert oracle is not None, f"{work.stage} has no reference"
    texts = work.texts
    num = len(texts)
    columns = {
        "key": pa.array(range(num), pa.int64()),
        "id": pa.array(map(str, range(num))),
        "text": pa.array(texts, pa.large_string()),
        "source": pa.array(["web"] * num),
    }
    view = View(pa.record_batch(columns))
    began = time.process_time()
    outcome = stage.apply(view)
    between = time.process_time()
    expected = [oracle(text) for text in texts]
    ended = time.process_time()
    codes = outcome.codes if outcome.codes is not None else [0] * num
    after = outcome.text if outcome.text is not None else view.text
    differing, reasons = [], Counter()
    for row, (code, (rule, text)) in enumerate(zip(codes, expected, strict=True)):
        ours = stage.rules[code - 1] if code else None
        reasons[rule or "kept"] += 1
        if ours != rule or (rule is None and after.row(row).decode() != text):
            differing.append((texts[row], ours, rule))
    size = sum(len(text.encode()) for text in texts)
    return Found(
        work.stage, work.group, num, size, reasons, between - began, ended - between, differing
    )


def report(found: list[Found]) -> int:
    """Print sums by stage and set, then what differs; return how many do."""
    print(
        f"{'stage':18} {'set':8} {'docs':>7} {'MB':>7} {'dropped':>8} {'differ':>7} {'ours s':>8} {'reference s':>12}"
    )
    total = 0
    for stage in dict.fromkeys(one.stage for one in found):
        mine = [one for one in found if one.stage == stage]
        for name in dict.fromkeys(one.group.split("/")[0] for one in mine):
            part = [one for one in mine if one.group.split("/")[0] == name]
            docs, size = sum(p.num_docs for p in part), sum(p.size_bytes for p in part) / 1e6
            kept = sum(p.reasons["kept"] for p in part)
            differ = sum(len(p.differing) for p in part)
            total += differ
            seconds = sum(p.our_seconds for p in part), sum(p.reference_seconds for p in part)
            print(
                f"{stage:18} {name:8} {docs:7} {size:7.1f} {docs - kept:8} {differ:7} "
                f"{seconds[0]:8.1f} {seconds[1]:12.1f}"
            )
    for one in found:
        for text, ours, reference in one.differing[:5]:
            print(f"  {one.stage} {one.group}: ours {ours}, reference {reference}: {text[:80]!r}")
    languages = sorted({p.group.split("/")[1] for p in found if p.group.startswith("multi")})
    print(f"languages of multi: {' '.join(languages)}; {total} differences")
    return total


if __name__ == "__main__":
    main()
