"""Personal data: what is found in texts whose personal data is known, by kind and by system.

A span counts as right if it begins and ends where the gold span does and is of its kind; each other
span is wrong, each gold span without a right one is missed. `ip` is IPv4 and IPv6. Gold spans of
types that have no form (names, places, dates, passwords, licence numbers ...) are left out, and so
is what a system finds of such types. presidio's recognizers of these kinds run without a language
model and thus without context words; `presidio 0.4` leaves out scores below 0.4.

    python benchmarks/accuracy/pii.py [--peers PYTHON] [--set NAME ...] [--web-mb 2]

`--peers` names an interpreter that has presidio-analyzer and scrubadub; without it they are left
out. Reads pii and bench_en from CORPUSKIT_SHARED_DATA. The second table counts what is found in web
texts and manuals of bench_en, where there is no gold: most e-mail and IP addresses there are real.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Span = tuple[str, int, int]
Spans = list[list[Span]]

DATA = Path(os.environ.get("CORPUSKIT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SETS = {
    "planted": "tuned on",
    "presidio_generated_large": "tuned on",
    "presidio_synth_dataset_v2": "unseen",
    "nannigalaxy_nano": "unseen",
}
KINDS = {
    "email": ("EMAIL", "EMAIL_ADDRESS"),
    "ip": ("IPV4", "IPV6", "IP_ADDRESS"),
    "phone": ("PHONE", "PHONE_NUMBER"),
    "credit_card": ("CREDIT_CARD",),
    "iban": ("IBAN", "IBAN_CODE"),
    "us_ssn": ("US_SSN", "SSN"),
    "secret": (),
}
TYPES = {gold: kind for kind, types in KINDS.items() for gold in types}
OURS = {"ipv4": "ip", "ipv6": "ip"}
SCRUBADUB = {"email": "email", "phone": "phone", "credit_card": "credit_card",
             "social_security_number": "us_ssn"}  # fmt: skip
SYSTEMS = ("pii", "presidio", "presidio 0.4", "scrubadub", "datatrove")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="interpreter that has presidio-analyzer and scrubadub")
    parser.add_argument("--set", nargs="*", choices=SETS, default=list(SETS), dest="sets")
    parser.add_argument("--web-mb", type=float, default=2, help="of bench_en, for the second table")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if not (DATA / "pii").exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    finders = systems(options.peers)
    print("set                        kind         gold " + "".join(f"{n:>24s}" for n in finders))
    print(" " * 46 + "   precision recall  F1  " * len(finders))
    for name in options.sets:
        print_accuracy(name, finders)
    print_web(options.web_mb, finders)


def systems(peers: str | None) -> dict[str, Callable[[list[str]], Spans]]:
    """Return name -> finder; says which cannot run."""
    found: dict[str, Callable[[list[str]], Spans]] = {"pii": find_ours}
    for name in ("presidio", "presidio 0.4", "scrubadub"):
        if peers is None:
            print(f"{name}: left out, --peers names no interpreter that has it")
        else:
            found[name] = lambda texts, name=name: ask(peers, name, texts)  # type: ignore[misc]
            try:
                found[name](["jo@x.org"])
            except subprocess.CalledProcessError as error:
                last = (error.stderr.strip().splitlines() or ["it said nothing"])[-1]
                print(f"{name}: left out, {last}")
                del found[name]
    return {**found, "datatrove": find_datatroves}


def print_accuracy(name: str, finders: dict[str, Callable[[list[str]], Spans]]) -> None:
    """Print one line per kind of one set."""
    import pyarrow.parquet as pq

    rows = pq.read_table(DATA / "pii" / f"{name}.parquet").to_pylist()
    texts = [row["text"] for row in rows]
    gold = [
        {(TYPES[s["type"]], s["start"], s["end"]) for s in row["spans"] if s["type"] in TYPES}
        for row in rows
    ]
    answers = {system: find(texts) for system, find in finders.items()}
    scores = {system: score(gold, found) for system, found in answers.items()}
    for kind in KINDS:
        wanted = sum(span[0] == kind for spans in gold for span in spans)
        if wanted == 0:
            continue
        cells = "".join(f"{figures(scores[system][kind], wanted):>24s}" for system in finders)
        print(f"{name:26s} {kind:12s} {wanted:4d} {cells}", flush=True)
    if "hard_negatives" in rows[0]:
        traps = [[(t["start"], t["end"]) for t in row["hard_negatives"]] for row in rows]
        cells = "".join(f"{fooled(traps, answers[system]):24d}" for system in finders)
        print(f"{name:26s} look-alikes  {sum(map(len, traps)):4d} {cells}")


def score(gold: Sequence[set[Span]], found: Spans) -> dict[str, tuple[int, int]]:
    """Return kind -> spans that are right, spans that are found."""
    right, all_found = Counter[str](), Counter[str]()
    for wanted, spans in zip(gold, found, strict=True):
        for span in {tuple(span) for span in spans}:
            all_found[span[0]] += 1
            right[span[0]] += span in wanted
    return {kind: (right[kind], all_found[kind]) for kind in KINDS}


def figures(counts: tuple[int, int], wanted: int) -> str:
    """Return precision, recall and F1."""
    right, found = counts
    if found == 0:
        return "-     0.000     -  "
    precision, recall = right / found, right / wanted
    mean = 2 * right / (found + wanted)
    return f"{precision:.3f}  {recall:.3f}  {mean:.3f}"


def fooled(traps: list[list[tuple[int, int]]], found: Spans) -> int:
    """Return how many look-alikes overlap something found."""
    return sum(
        any(low < end and start < high for _, start, end in spans)
        for edges, spans in zip(traps, found, strict=True)
        for low, high in edges
    )


def print_web(size_mb: float, finders: dict[str, Callable[[list[str]], Spans]]) -> None:
    """Print spans per MB in documents taken evenly from bench_en."""
    import pyarrow.parquet as pq

    texts: list[str] = []
    for path in sorted((DATA / "bench_en").glob("*.parquet")):
        texts += pq.read_table(path, columns=["text"])["text"].to_pylist()
    every = max(1, int(sum(map(len, texts)) / 1e6 / size_mb))
    texts = texts[::every]
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"\n{size:.1f} MB of bench_en: spans per MB")
    print(" " * 18 + "".join(f"{kind:>13s}" for kind in KINDS))
    for system, find in finders.items():
        counts = Counter(span[0] for spans in find(texts) for span in spans)
        print(
            f"{system:18s}" + "".join(f"{counts[kind] / size:13.2f}" for kind in KINDS), flush=True
        )


def find_ours(texts: list[str]) -> Spans:
    """Return what the stage finds, private addresses left out."""
    import pyarrow as pa

    from corpuskit.stage import View
    from corpuskit.stages.rewriters.pii import Pii

    stage = Pii()
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    spans = stage.apply(View(batch)).spans
    found: Spans = [[] for _ in texts]
    for row, start, end, code in (
        zip(spans.rows, spans.starts, spans.ends, spans.codes, strict=True) if spans else ()
    ):
        data, kind = texts[row].encode(), stage.rules[code - 1]
        found[row].append(
            (OURS.get(kind, kind), len(data[:start].decode()), len(data[:end].decode()))
        )
    return found


def find_datatroves(texts: list[str]) -> Spans:
    """Return what datatrove's formatter would replace."""
    from datatrove.pipeline.formatters import PIIFormatter

    formatter = PIIFormatter()
    pairs = (("email", formatter.emails_replacer), ("ip", formatter.ip_replacer))
    return [
        [
            (kind, *match.span())
            for kind, replacer in pairs
            for match in replacer.regex.finditer(text)
            if replacer.validator is None or replacer.validator(match[0])
        ]
        for text in texts
    ]


def ask(python: str, system: str, texts: list[str]) -> Spans:
    """Return what a peer finds, asked in its own interpreter."""
    command = [python, __file__, "--serve", system]
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    print(f"  ({system}: {answer['seconds']:.1f} CPU s)", file=sys.stderr)
    return [[tuple(span) for span in spans] for spans in answer["found"]]


def serve(system: str) -> None:
    """Read texts, write the spans that a peer finds in them."""
    texts = json.load(sys.stdin)
    find = scrubadub_finder() if system == "scrubadub" else presidio_finder(system)
    begin = time.process_time()
    found = [find(text) for text in texts]
    json.dump({"found": found, "seconds": time.process_time() - begin}, sys.stdout)


def presidio_finder(system: str) -> Callable[[str], list[Span]]:
    """Return presidio's recognizers of our kinds, without a language model."""
    import logging

    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer import predefined_recognizers as recognizers
    from presidio_analyzer.nlp_engine import NoOpNlpEngine

    logging.disable(logging.WARNING)
    language = NoOpNlpEngine([{"lang_code": "en", "model_name": ""}])
    language.load()
    names = ("EmailRecognizer", "IpRecognizer", "PhoneRecognizer", "CreditCardRecognizer",
             "IbanRecognizer", "UsSsnRecognizer")  # fmt: skip
    registry = RecognizerRegistry([getattr(recognizers, name)() for name in names])
    engine = AnalyzerEngine(
        registry=registry,
        nlp_engine=language,
        supported_languages=["en"],
        default_score_threshold=0.4 if system.endswith("0.4") else 0,
    )
    types = [name for name in TYPES if name in registry.get_supported_entities()]

    def find(text: str) -> list[Span]:
        found = engine.analyze(text, "en", entities=types)
        return [(TYPES[one.entity_type], one.start, one.end) for one in found]

    return find


def scrubadub_finder() -> Callable[[str], list[Span]]:
    """Return scrubadub with its detectors of our kinds."""
    import scrubadub

    scrubber = scrubadub.Scrubber(
        detector_list=[
            scrubadub.detectors.EmailDetector(),
            scrubadub.detectors.PhoneDetector(),
            scrubadub.detectors.CreditCardDetector(),
            scrubadub.detectors.en_US.SocialSecurityNumberDetector(),
        ]
    )

    def find(text: str) -> list[Span]:
        return [
            (SCRUBADUB[filth.detector_name], filth.beg, filth.end)
            for filth in scrubber.iter_filth(text, run_post_processors=False)
            if filth.detector_name in SCRUBADUB
        ]

    return find


if __name__ == "__main__":
    main()
