"""How texts in two languages score, and what that costs texts in one.

    export CORPUSKIT_SHARED_DATA=...
    PYTHONPATH=. python benchmarks/langid/mixed.py out [--part judge]

Texts are those of sets.py. Mixed ones are made of two documents of which the model is sure, in
languages that are no neighbours, each cut to 1 to 8 KB: one behind the other in equal parts, or seven
tenths and three, their paragraphs or lines in turn; and of two sentences. `before` is the score
without the bound by the share of windows. Settings in kernels/fasttext.py were chosen on `tune`.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import sets

from corpuskit.stages.annotators._fasttext import FastTextModel
from corpuskit.stages.annotators._labelled import buffers
from corpuskit.stages.annotators._languagemodel import LanguageModel
from corpuskit.stages.annotators.language import EMBEDDED_PATH

SIZES = (1000, 3000, 8000)


def beginning(text: str, size_bytes: int) -> str:
    return text.encode()[:size_bytes].decode(errors="ignore")


def in_turn(first: str, second: str, mark: str) -> str:
    pairs = itertools.zip_longest(first.split(mark), second.split(mark), fillvalue="")
    return mark.join(part for pair in pairs for part in pair)


def mixed(rows: list[sets.Row], families: dict[str, int], num: int) -> dict[str, list[str]]:
    """Return mixed documents by kind."""
    rng, out = random.Random(3), defaultdict(list)
    by_label: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_label[row.label].append(row.text)
    while len(out["lines in turn"]) < num:
        one, other = rng.sample(sorted(by_label), 2)
        texts, size = [rng.choice(by_label[label]) for label in (one, other)], rng.choice(SIZES)
        if families[one] == families[other] or min(len(t.encode()) for t in texts) < 1.4 * size:
            continue
        first, second = (beginning(text, size) for text in texts)
        out["half and half"].append(f"{first}\n{second}")
        seven, three = beginning(texts[0], int(1.4 * size)), beginning(texts[1], int(0.6 * size))
        out["7 and 3 tenths"].append(f"{seven}\n{three}")
        out["paragraphs in turn"].append(in_turn(first, second, "\n\n"))
        out["lines in turn"].append(in_turn(first, second, "\n"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what texts.py wrote")
    parser.add_argument("--part", choices=("tune", "judge"), default="judge")
    parser.add_argument("--num", type=int, default=500)
    given = parser.parse_args()
    now, before = FastTextModel(EMBEDDED_PATH), FastTextModel(EMBEDDED_PATH)
    families = LanguageModel(EMBEDDED_PATH, now._model, now.labels)._families
    before._by_windows = LanguageModel(EMBEDDED_PATH, before._model, before.labels)
    before._by_windows._families = np.zeros_like(families)  # no other language at all
    rows = [row for row in sets.load(given.folder, given.part) if row.label in now.labels]
    labels = [now.labels[r] for r in before.predict(buffers([r.text for r in rows])).ranks[:, 0]]
    right = [row for row, label in zip(rows, labels, strict=True) if row.label == label]
    groups: dict[str, list[str]] = defaultdict(list)
    for row in right:
        if row.length in ("documents", "sentences"):
            groups[f"{row.length}, {row.origin}"].append(row.text)
    sure = [row for row in right if row.length == "documents"]
    by_name = dict(zip(now.labels, families.tolist(), strict=True))
    groups |= mixed(sure, by_name, given.num)
    rng = random.Random(4)
    sentences = [row for row in right if row.length == "sentences"]
    pairs = [rng.sample(sentences, 2) for _ in range(2 * given.num)]
    groups["two sentences"] = [
        f"{a.text} {b.text}" for a, b in pairs if by_name[a.label] != by_name[b.label]
    ]
    print("| texts | number | und | score below 0.65 | median score |\n|---|---|---|---|---|")
    for name, texts in groups.items():
        cells = [model.predict(buffers(texts)).scores[:, 0] for model in (before, now)]
        shares = ", ".join(f"{100 * (scores < 0.5).mean():.1f}" for scores in cells)
        low = ", ".join(f"{100 * (scores < 0.65).mean():.1f}" for scores in cells)
        medians = ", ".join(f"{np.median(scores):.2f}" for scores in cells)
        print(f"| {name} | {len(texts):,} | {shares} | {low} | {medians} |")


if __name__ == "__main__":
    main()
