"""E-mail and IP addresses: what is found, and how fast, against `re` and datatrove's PIIFormatter.

Speed: MB per CPU second on one core, `find` is the scan alone, `stage` writes the new texts too. The regular
expressions of `re` are the plain ones that people use for these three kinds.
Accuracy: against the gold spans of the sets. A gold span counts as found when it is covered; a span
found elsewhere is extra. datatrove's spans are its expressions with its check of public addresses.

    python benchmarks/pii.py [--mb 100] [--slow-mb 10] [--repeats 5]

Reads pii and bench_en from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from filters import DATA, batches, cpu_seconds, documents_in, read_texts

from corpuskit.kernels.pii import find_pii
from corpuskit.stage import View
from corpuskit.stages.rewriters.pii import Pii

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Span = tuple[int, int]

PLAIN = [
    re.compile(r"\b[A-Za-z0-9._%+\-]+@[A-Za-z0-9.\-]+\.[A-Za-z]{2,24}\b"),
    re.compile(r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"),
    re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){2,7}(?::?[0-9a-fA-F]{1,4}){1,6}\b"),
]
GOLD = {
    "EMAIL": "email",
    "EMAIL_ADDRESS": "email",
    "IPV4": "ipv4",
    "IPV6": "ipv6",
    "IP_ADDRESS": "ip",
}
SETS = (
    "planted",
    "presidio_synth_dataset_v2",
    "presidio_generated_large",
    "nannigalaxy_nano",
)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=100, help="text for our kernel")
    parser.add_argument("--slow-mb", type=float, default=10, help="text for the others")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not (DATA / "pii").exists():
        sys.exit(f"no real data at {DATA}: set CORPUSKIT_SHARED_DATA")
    speed(options)
    accuracy()


def speed(options: argparse.Namespace) -> None:
    """Print MB per CPU second of all of them."""
    from datatrove.pipeline.formatters import PIIFormatter

    texts = read_texts(sorted((DATA / "bench_en").glob("*.parquet")), options.mb)
    few = texts[: documents_in(texts, options.slow_mb)]
    parts, stage, formatter = batches(texts), Pii(), PIIFormatter()
    reference = stage.oracle()
    assert reference is not None, "pii has a reference"

    def report(name: str, used: list[str], work: Callable[[], object], repeats: int = 1) -> None:
        seconds = min(cpu_seconds(work) for _ in range(repeats))
        size = sum(len(text.encode()) for text in used) / 1e6
        print(f"{name:34s} {size / seconds:8.1f}", flush=True)

    stage.apply(View(parts[0]))  # compiled
    print(f"{len(texts)} documents; MB per CPU second on one core")
    views = [View(part) for part in parts]

    def scan() -> None:
        for view in views:
            find_pii(view.text.offsets, view.text.data)

    report("find", texts, scan, options.repeats)
    report("stage", texts, lambda: [stage.apply(View(part)) for part in parts], options.repeats)
    report("stage's reference (re, ipaddress)", few, lambda: [reference(text) for text in few])
    report(
        "re, 3 plain expressions", few, lambda: [p.sub("x", text) for text in few for p in PLAIN]
    )
    report("datatrove PIIFormatter, no IPv6", few, lambda: [formatter.format(text) for text in few])


def accuracy() -> None:
    """Print what each finds in each set."""
    finders = {
        "pii": ours(Pii()),
        "pii, min_ipv4_part 0": ours(Pii(min_ipv4_part=0)),
        "pii, private too": ours(Pii(only_public_ips=False)),
        "datatrove": theirs(),
    }
    print(
        "\nset                        finder                kind   gold  found  extra  look-alikes"
    )
    for name in SETS:
        rows = pq.read_table(DATA / "pii" / f"{name}.parquet").to_pylist()
        for finder, find in finders.items():
            for kind, (gold, found, extra, fooled) in score(rows, find).items():
                print(
                    f"{name:26s} {finder:21s} {kind:5s} {gold:5d} {found:6d} {extra:6d} {fooled:12d}"
                )


def score(
    rows: list[dict[str, object]], find: Callable[[str], Iterable[tuple[str, int, int]]]
) -> dict[str, tuple[int, int, int, int]]:
    """Return kind -> gold spans, gold spans found, other spans, spans in hard negatives."""
    gold, hits, extra, fooled = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        text = str(row["text"])
        spans = [(kind, start, end) for kind, start, end in find(text)]
        wanted = [
            (kind_of(span), int(span["start"]), int(span["end"]))
            for span in row["spans"]  # type: ignore[attr-defined]
            if span["type"] in GOLD
        ]
        traps = [(h["start"], h["end"]) for h in row.get("hard_negatives") or ()]  # type: ignore[attr-defined]
        for kind, start, end in wanted:
            gold[kind] += 1
            hits[kind] += any(low <= start and end <= high for _, low, high in spans)
        for kind, start, end in spans:
            gold[kind] += 0
            extra[kind] += not any(low < end and start < high for _, low, high in wanted)
            fooled[kind] += any(low < end and start < high for low, high in traps)
    return {kind: (gold[kind], hits[kind], extra[kind], fooled[kind]) for kind in sorted(gold)}


def kind_of(span: dict[str, str]) -> str:
    """Return the kind of a gold span; some sets do not tell IPv4 from IPv6."""
    kind = GOLD[span["type"]]
    return ("ipv6" if ":" in span["text"] else "ipv4") if kind == "ip" else kind


def ours(stage: Pii) -> Callable[[str], Iterable[tuple[str, int, int]]]:
    """Return spans in characters as the stage finds them."""

    def find(text: str) -> Iterable[tuple[str, int, int]]:
        spans = stage.apply(View(batches([text])[0])).spans
        if spans is None:
            return
        coded = text.encode()
        for start, end, code in zip(spans.starts, spans.ends, spans.codes, strict=True):
            kind = stage.rules[code - 1]
            yield kind, len(coded[:start].decode()), len(coded[:end].decode())

    return find


def theirs() -> Callable[[str], Iterable[tuple[str, int, int]]]:
    """Return spans as datatrove's two replacers find them."""
    from datatrove.pipeline.formatters import PIIFormatter

    formatter = PIIFormatter()

    def find(text: str) -> Iterable[tuple[str, int, int]]:
        for kind, replacer in (
            ("email", formatter.emails_replacer),
            ("ipv4", formatter.ip_replacer),
        ):
            for match in replacer.regex.finditer(text):
                if replacer.validator is None or replacer.validator(match[0]):
                    yield kind, match.start(), match.end()

    return find


if __name__ == "__main__":
    main()
