"""Compare language identifiers on texts that none of the settings here were chosen by.

    export CORPUSKIT_SHARED_DATA=...                         # langid/, bench_en/, models/, ...
    python benchmarks/langid/texts.py out packages           # writes out/test and out/messages
    PYTHONPATH=. python benchmarks/accuracy/language.py out --peers peers/bin/python

Prints docs/accuracy/language.md's tables: the embedded model, models given beside it, lid.176.ftz
through official fastText, and tools in an environment of their own (peers.py says which). Texts are
the judging part of benchmarks/langid/sets.py. Figures are means over the languages that each tool
has right at least once, with the 95 % interval of sampling; documents count one by one. CPU seconds
of prediction alone, each tool in a call of its own for short texts and for documents.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import fasttext
import numpy as np
from peers import ask

from corpuskit.stages.annotators._fasttext import FastTextModel
from corpuskit.stages.annotators._labelled import buffers
from corpuskit.stages.annotators.language import EMBEDDED_PATH

sys.path.insert(0, str(Path(__file__).parents[1] / "langid"))
import sets
from texts import CODES

SAME = {**CODES, "nb": "no", "yue": "yue", "wuu": "zh"}
NEAR = (
    ("ms", "id"),
    ("bs", "hr", "sr"),
    ("zu", "xh"),
    ("nn", "no", "da"),
    ("ca", "es", "gl", "pt"),
)


def ours(texts: list[str], path: Path) -> tuple[list[str], float]:
    """Return labels by a model that knows no word yet; loading and compiling are not timed."""
    FastTextModel(path).predict(buffers(texts[::10]))
    model, view = FastTextModel(path), buffers(texts)
    start = time.process_time()
    ranks = model.predict(view).ranks[:, 0].tolist()
    spent = time.process_time() - start
    return [model.labels[rank] if rank >= 0 else "und" for rank in ranks], spent


def official(texts: list[str], path: Path) -> tuple[list[str], float]:
    """Return labels by official fastText, called as its documentation says for many texts."""
    model = fasttext.load_model(str(path))
    lines = [text.replace("\n", " ") for text in texts]
    start = time.process_time()
    labels, _ = model.predict(lines)
    spent = time.process_time() - start
    return [row[0].removeprefix("__label__") if row else "und" for row in labels], spent


def macro(rows: list[sets.Row], labels: list[str], common: set[str]) -> str:
    """Return the mean over languages of the share that is right, and its interval, in percent."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for row, label in zip(rows, labels, strict=True):
        if row.label in common:
            hits[row.label].append(label == row.label)
    shares = [(np.mean(own), len(own)) for own in hits.values()]
    wide = 1.96 * np.sqrt(sum(p * (1 - p) / n for p, n in shares)) / max(1, len(shares))
    return f"{100 * np.mean([p for p, _ in shares]):.1f} ± {100 * wide:.1f}"


def ask_all(given: argparse.Namespace, texts: list[str]) -> dict[str, tuple[list[str], float]]:
    """Return tool -> its labels, and CPU seconds."""
    lid = Path(os.environ["CORPUSKIT_SHARED_DATA"]) / "models" / "lid.176.ftz"
    answers = {path.stem: ours(texts, path) for path in (EMBEDDED_PATH, *given.model)}
    answers["lid.176.ftz"] = official(texts, lid)
    for peer in given.tools if given.peers else ():
        answer = ask(given.peers, peer, texts)
        answers[peer] = ([SAME.get(label, label) for label in answer.found], answer.cpu_seconds)
    return answers


def known_to_all(rows: list[sets.Row], answers: list[list[str]]) -> set[str]:
    """Return the languages of which each tool has a short text right."""
    short = [row.label if row.length != "documents" else "" for row in rows]
    return set.intersection(
        *({a for a, b in zip(short, labels, strict=True) if a == b} for labels in answers)
    )


def figures(
    groups: dict[str, list[int]], rows: list[sets.Row], answers: list[list[str]], common: set[str]
) -> None:
    for name, places in groups.items():
        part, cells = [rows[place] for place in places], []
        for labels in answers:
            own = [labels[place] for place in places]
            cell = macro(part, own, common)
            if part[0].length == "documents":
                right = [a == b.label for a, b in zip(own, part, strict=True)]
                either = [a in (b.label, "en") for a, b in zip(own, part, strict=True)]
                cell = f"{100 * np.mean(right):.1f} ({100 * np.mean(either):.1f})"
            cells.append(cell)
        print(f"| {name} {len(places):,} | {' | '.join(cells)} |")


def neighbours(places: list[int], rows: list[sets.Row], answers: list[list[str]]) -> None:
    """Print the share of near languages that is right, and what the others are mostly taken for."""
    for true in (label for near in NEAR for label in near):
        cells, num = [], 0
        for labels in answers:
            own = [labels[place] for place in places if rows[place].label == true]
            num = max(1, len(own))
            top = Counter(label for label in own if label != true).most_common(1)
            wrong = "".join(f" ({label} {100 * count / num:.0f})" for label, count in top)
            cells.append(f"{100 * own.count(true) / num:.0f}{wrong}")
        print(f"| {true} {num} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what benchmarks/langid/texts.py wrote")
    parser.add_argument("--peers", help="Python of an environment with the other tools")
    parser.add_argument("--tools", nargs="*", default=["heliport", "py3langid"])
    parser.add_argument("--model", type=Path, nargs="*", default=[], help="beside the embedded one")
    parser.add_argument("--documents", type=int, default=1500, help="documents per set of manuals")
    given = parser.parse_args()
    rows = sets.load(given.folder, "judge", given.documents)
    short = [row.text for row in rows if row.length != "documents"]
    parts = {"short texts": short, "documents": [row.text for row in rows[len(short) :]]}
    asked = {name: ask_all(given, texts) for name, texts in parts.items()}
    tools = asked["documents"]
    answers = [asked["short texts"][tool][0] + tools[tool][0] for tool in tools]
    common = known_to_all(rows, answers)
    print(f"{len(common)} languages: {' '.join(sorted(common))}")
    groups: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if row.length != "documents":
            groups[row.length].append(place)
        groups[f"{row.length}, {row.origin}"].append(place)
    head = f" | {' | '.join(tools)} |\n|{'---|' * (len(tools) + 1)}"
    print(f"\n| right, %{head}")
    figures(groups, rows, answers, common)
    for name, texts in parts.items():
        size = sum(len(text.encode()) for text in texts) / 1e6
        speeds = " | ".join(f"{size / spent:.1f}" for _, spent in asked[name].values())
        print(f"| {name}, {size:.1f} MB: MB/CPU s | {speeds} |")
    for length in ("sentences", "pairs"):
        print(f"\n| {length} of{head}")
        neighbours(groups[length], rows, answers)
    for tool, labels in zip(tools, answers, strict=True):
        own = {
            label: [p for p in groups["sentences"] if rows[p].label == label] for label in common
        }
        shares = {
            label: np.mean([labels[place] == label for place in places])
            for label, places in own.items()
            if len(places) >= 20
        }
        low = [f"{label} {100 * s:.0f}" for label, s in sorted(shares.items()) if s < 0.75]
        print(f"\n{tool}, sentences below 75 %: {', '.join(low) or 'none'}")


if __name__ == "__main__":
    main()
