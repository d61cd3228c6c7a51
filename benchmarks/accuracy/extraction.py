"""Main text out of HTML: how much of it comes, how much else, and what it costs.

    python benchmarks/accuracy/extraction.py [--peers PYTHON] [--only NAME ...]
        [--judging] [--kinds] [--manuals DIRECTORY]

Reads `html/trafilatura_eval.parquet` (450 pages; for each, segments of the main text that must be
there and segments of the rest that must not) and `html/mozilla_readability.parquet` (130 pages with
the text that Firefox's reader view gives) under `CORPUSKIT_SHARED_DATA`. Every extractor gets the
same decoded pages and runs in a process of its own. `--peers`: a Python with readability-lxml,
jusText, inscriptis and boilerpy3, for the rows of those.

`--judging`: only the quarter of the sites on which nothing was chosen. `--kinds`: the segments of
forum, product and wiki pages, chosen by their addresses from all sites. `--manuals`: a directory with
the Debian packages of MANUALS unpacked; words against the text of the element that a manual's
template names for it.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PAGE = "<html><body><p>Loads what is loaded on first use.</p></body></html>"


def resiliparse(**options: bool) -> Callable[[str], str | None]:
    from resiliparse.extract.html2text import extract_plain_text

    return lambda page: extract_plain_text(page, **options)


def ours(
    extractor: str = "resiliparse", *, main_content: bool = True, comments: bool = False
) -> Callable[[str], str | None]:
    """Return what `warc` and `html` do: all text where no main text is found."""
    sys.path.insert(0, str(ROOT))
    from corpuskit.stages.sources._extract_worker import open_extractor

    given = {
        "extractor": extractor, "main_content": main_content, "comments": comments,
        "favour": "balanced", "fast": False, "structure": (),
    }  # fmt: skip
    extract = open_extractor(given)
    return lambda page: extract(page)[0]


def trafilatura(**options: bool) -> Callable[[str], str | None]:
    import trafilatura

    return lambda page: trafilatura.extract(page, **options)


def readability() -> Callable[[str], str | None]:
    import lxml.html
    from readability import Document

    return lambda page: lxml.html.fromstring(Document(page).summary()).text_content()


def justext() -> Callable[[str], str | None]:
    import justext as library

    stopwords = frozenset().union(*map(library.get_stoplist, library.get_stoplists()))

    def extract(page: str) -> str:
        found = library.justext(page.encode(), stopwords, 50, 200, 0.1, 0.2, 0.2, 200, True)
        return "\n".join(one.text for one in found if not one.is_boilerplate)

    return extract


def inscriptis() -> Callable[[str], str | None]:
    from inscriptis import get_text

    return get_text


def boilerpy3() -> Callable[[str], str | None]:
    from boilerpy3.extractors import ArticleExtractor

    return ArticleExtractor(raise_on_failure=False).get_content


EXTRACTORS: dict[str, tuple[Callable[[], Callable[[str], str | None]], bool]] = {
    "resiliparse": (ours, False),
    "mixed": (lambda: ours("mixed"), False),
    "resiliparse, main text alone": (
        lambda: resiliparse(main_content=True, comments=False, alt_texts=False),
        False,
    ),
    "resiliparse, with alt texts": (lambda: resiliparse(main_content=True, comments=False), False),
    "resiliparse, comments": (lambda: ours(comments=True), False),
    "resiliparse, all text": (lambda: resiliparse(main_content=False, alt_texts=False), False),
    "trafilatura": (lambda: trafilatura(include_comments=False), False),
    "trafilatura, precision": (
        lambda: trafilatura(include_comments=False, favor_precision=True),
        False,
    ),
    "trafilatura, recall": (lambda: trafilatura(include_comments=False, favor_recall=True), False),
    "trafilatura, fast": (lambda: trafilatura(include_comments=False, fast=True), False),
    "trafilatura, comments": (lambda: trafilatura(include_comments=True), False),
    "readability-lxml": (readability, True),
    "jusText": (justext, True),
    "inscriptis (all text)": (inscriptis, True),
    "boilerpy3 (articles)": (boilerpy3, True),
}
"""Name -> how it is opened, and whether it is a peer's."""


COMPARED = ("resiliparse", "mixed", "trafilatura")

KINDS = {
    "forum": r"forumieren\.com|reddit\.com/r/|/forum/|//foren\.|pocketpc\.ch|/user-deals/",
    "product": r"toralin|//shop\.|/products?/|/produkte?/|/produkt_|zooroyal|lavazza|ebrosia|induux"
    r"|/downloads/Best|villacc|/ferienhaus/|/blockhaus|welpenkaufen24",
    "wiki": r"//wiki\.|wikipedia|wikidot|baike",
}
"""Kind -> what its addresses hold."""

MANUALS = {
    "Sphinx, python3.11-doc": ("python3.11/html/**/*.html", '//div[@role="main"]'),
    "AsciiDoc, git-doc": ("git-doc/**/*.html", '//div[@id="content"]'),
    "DocBook, debian-handbook": (
        "debian-handbook/html/en-US/*.html",
        '//body/div[1]|//body/section|//body/div[contains(@class,"section")]',
    ),
    "Doxygen, libeigen3-doc": ("libeigen3-dev/html/*.html", '//div[@class="contents"]'),
    "Node.js, nodejs-doc": ("nodejs/api/*.html", '//div[@id="apicontent"]'),
    "rustdoc, rust-doc": ("rust-doc/html/std/**/*.html", '//section[@id="main-content"]'),
    "mdBook, rust-doc": ("rust-doc/html/book/*.html", "//main"),
    "gi-docgen, libjson-glib-doc": ("json-glib-1.0/*.html", '//section[@id="main"]'),
}
"""Generator and package -> files below usr/share/doc, and where their text is."""
MANUAL_PAGES = 15


def is_judged(name: str) -> bool:
    """Return whether a page's site is of the quarter that judges."""
    return hashlib.sha256(site_of(name).encode()).digest()[0] & 3 == 3


def site_of(name: str) -> str:
    return (urlsplit(name).hostname or "").removeprefix("www.") if "://" in name else name


def score_manuals(folder: Path) -> None:
    """Print the mean word F1 of each extractor on pages of each generator."""
    import lxml.html

    extractors = {name: EXTRACTORS[name][0]() for name in COMPARED}
    print("| manual | " + " | ".join(COMPARED) + " |\n|---" + "|---:" * len(COMPARED) + "|")
    every: list[list[float]] = []
    for manual, (pattern, place) in MANUALS.items():
        paths = [path for path in folder.glob(f"usr/share/doc/{pattern}") if path.is_file()]
        rows: list[list[float]] = []
        for path in sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest()):
            page = path.read_text(errors="replace")
            tree = lxml.html.document_fromstring(page.encode())
            for element in tree.xpath("//script|//style"):
                element.drop_tree()
            gold = " ".join(" ".join(part.itertext()) for part in tree.xpath(place))
            if len(gold) >= 300 and len(page) < 400_000:
                rows.append([words([fn(page) or ""], [gold]) for fn in extractors.values()])
            if len(rows) == MANUAL_PAGES:
                break
        every += rows
        _print_means(manual, rows)
    _print_means("all", every)


def score_kinds(rows: list[dict]) -> None:
    """Print F1 of segments, its interval and the wrong segments by kind of page."""
    sys.path.insert(0, str(ROOT))
    from corpuskit.stages.sources._extract_worker import decode_page

    extractors = {name: EXTRACTORS[name][0]() for name in COMPARED}
    print(
        "| kind | extractor | F1 (95 % interval) | wrongly taken | missing |\n|---|---|---:|---:|---:|"
    )
    for kind, pattern in KINDS.items():
        chosen = [row for row in rows if re.search(pattern, row["url"])]
        for name, extract in extractors.items():
            texts = [extract(decode_page(row["html"], "")) or "" for row in chosen]
            counts = sum(
                (counts_of(*one) for one in zip(texts, chosen, strict=True)), collections.Counter()
            )
            low, high = f1_interval(texts, chosen)
            print(
                f"| {kind} ({len(chosen)}) | {name} | {segments(texts, chosen)['f1']:.3f} "
                f"({low:.3f}-{high:.3f}) | {counts['fp']} | {counts['fn']} |"
            )


def _print_means(name: str, rows: list[list[float]]) -> None:
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    print(f"| {name} ({len(rows)}) | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")


def spaced(text: str) -> str:
    """Return a text with single spaces: where lines are broken is no matter."""
    return " ".join(text.split())


def extract_all(name: str, path: str) -> None:
    """Extract the pages of a file and print texts and costs: the child's part."""
    pages = pq.read_table(path)["page"].to_pylist()
    extract = EXTRACTORS[name][0]()
    extract(PAGE)
    before, start = resident(), time.process_time()
    texts, failed = [], 0
    for page in pages:
        try:
            texts.append(extract(page) or "")
        except Exception:  # noqa: BLE001 - a peer's failure is a result
            texts.append("")
            failed += 1
    seconds = time.process_time() - start
    facts = {"seconds": seconds, "grown_mb": resident() - before}
    print(json.dumps({**facts, "failed": failed, "texts": texts}))


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def counts_of(text: str, row: dict) -> collections.Counter[str]:
    """Count the segments that must and must not be in a text, and are or are not."""
    counts, text = collections.Counter[str](), spaced(text)
    for segment in row["with_"]:
        counts["tp" if spaced(segment) in text else "fn"] += 1
    for segment in row["without"]:
        counts["fp" if spaced(segment) in text else "tn"] += 1
    return counts


def f1_interval(texts: list[str], rows: list[dict]) -> tuple[float, float]:
    """Return the 95 % interval of F1 by 2,000 bootstrap draws of sites."""
    by_site = collections.defaultdict(collections.Counter)
    for text, row in zip(texts, rows, strict=True):
        by_site[site_of(row["url"])] += counts_of(text, row)
    sites, draw = list(by_site.values()), random.Random(0)
    scores = []
    for _ in range(2000):
        drawn = draw.choices(sites, k=len(sites))
        tp, wrong = (sum(c[a] + c[b] for c in drawn) for a, b in (("tp", ""), ("fp", "fn")))
        scores.append(2 * tp / max(2 * tp + wrong, 1))
    scores.sort()
    return scores[50], scores[-51]


def segments(texts: list[str], rows: list[dict]) -> dict[str, float]:
    """Judge texts by segments that must and must not be there."""
    counts = collections.Counter[str]()
    for text, row in zip(texts, rows, strict=True):
        counts += counts_of(text, row)
    tp, fp, tn, fn = (counts[name] for name in ("tp", "fp", "tn", "fn"))
    precision, recall = tp / max(tp + fp, 1), tp / max(tp + fn, 1)
    return {
        "precision": precision, "recall": recall, "accuracy": (tp + tn) / (tp + fp + tn + fn),
        "f1": 2 * precision * recall / max(precision + recall, 1e-9),
    }  # fmt: skip


def words(texts: list[str], expected: list[str]) -> float:
    """Return the mean F1 of words, counted, against the expected texts."""
    scores = []
    for text, gold in zip(texts, expected, strict=True):
        one, two = (collections.Counter(re.findall(r"\w+", t.lower())) for t in (text, gold))
        common = (one & two).total()
        scores.append(2 * common / max(one.total() + two.total(), 1))
    return sum(scores) / len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="", help="Python that has the peers")
    parser.add_argument("--only", nargs="*", default=[], help="names of extractors")
    parser.add_argument("--judging", action="store_true", help="only sites that judge")
    parser.add_argument("--kinds", action="store_true", help="forum, product and wiki pages")
    parser.add_argument("--manuals", type=Path, help="directory of unpacked packages")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        extract_all(*given.child)
        return
    if given.manuals:
        score_manuals(given.manuals)
        return
    sys.path.insert(0, str(ROOT))
    from corpuskit.stages.sources._extract_worker import decode_page

    folder = Path(os.environ.get("CORPUSKIT_SHARED_DATA", ROOT.parent / "shared" / "data")) / "html"
    rows = pq.read_table(folder / "trafilatura_eval.parquet").to_pylist()
    if given.kinds:
        score_kinds(rows)
        return
    reader = pq.read_table(folder / "mozilla_readability.parquet").to_pylist()
    if given.judging:
        rows = [row for row in rows if is_judged(row["url"])]
        reader = [row for row in reader if is_judged(row["id"])]
    pages = [decode_page(row["html"], "") for row in [*rows, *reader]]
    gold_of = resiliparse(main_content=False, alt_texts=False)
    gold = [gold_of(decode_page(row["expected_html"], "")) or "" for row in reader]
    names = "extractor, precision, recall, F1 (95 % interval), accuracy, reader view (word F1), CPU ms per page"
    columns = f"{names}, grown by MB, failed".split(", ")
    print("| " + " | ".join(columns) + " |\n|---" + "|---:" * (len(columns) - 1) + "|")
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/pages.parquet"
        pq.write_table(pa.table({"page": pa.array(pages, pa.large_string())}), path)
        for name, (_, is_peer) in EXTRACTORS.items():
            python = given.peers if is_peer else sys.executable
            if not python or (given.only and name not in given.only):
                continue
            command = [python, str(Path(__file__).resolve()), "--child", name, path]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            texts = found["texts"]
            score = segments(texts[: len(rows)], rows)
            low, high = f1_interval(texts[: len(rows)], rows)
            print(
                f"| {name} | {score['precision']:.3f} | {score['recall']:.3f} | {score['f1']:.3f} "
                f"({low:.3f}-{high:.3f}) "
                f"| {score['accuracy']:.3f} | {words(texts[len(rows) :], gold):.3f} "
                f"| {1000 * found['seconds'] / len(pages):.1f} "
                f"| {found['grown_mb']:.0f} | {found['failed']} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
