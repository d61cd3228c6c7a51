"""Texts of known language by length, for tuning and for judging, from sources that differ.

| part | words, word pairs, sentences | documents |
|---|---|---|
| tune | validation parts of Tatoeba and UDHR, messages of Django | bench_en shard 0, 3 in 10 of bench_multi |
| judge | spaCy's example sentences, messages of GTK and GLib, test parts of Tatoeba and UDHR | the rest |
| tune-script, judge-script | messages of Django, of GTK and GLib in the script that is less usual | |

Where a language is written without spaces, two and four characters stand for a word and two.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import table

LENGTHS = ("words", "pairs", "sentences", "documents")
UNSPACED = frozenset("zh yue ja th lo km my bo dz".split())
PER_LANGUAGE = 100
SPACY = {"nb": "no", "kmr": "ku", "xx": None, "grc": None}


@dataclass(frozen=True)
class Row:
    """A text, its language, where it is from, and which of LENGTHS it has."""

    text: str
    label: str
    origin: str
    length: str


def examples() -> list[tuple[str, str, str]]:
    """Return spaCy's example sentences (MIT): 6 to 20 in 66 languages."""
    import spacy.lang

    found = []
    for module in pkgutil.iter_modules(spacy.lang.__path__):
        label = SPACY.get(module.name, module.name)
        try:
            sentences = importlib.import_module(f"spacy.lang.{module.name}.examples").sentences
        except ModuleNotFoundError:
            continue
        found += [(text, label, "spacy") for text in sentences if label]
    return found


def pieces(text: str, label: str, num: int, rng: random.Random) -> str:
    """Return so many words that follow each other, "" if there are not as many."""
    if label in UNSPACED:
        text, num = "".join(filter(str.isalpha, text)), 2 * num
        start = rng.randrange(max(1, len(text) - num + 1))
        return text[start : start + num] if len(text) >= num else ""
    words = [re.sub(r"^\W+|\W+$", "", word) for word in text.split()]
    words = [word for word in words if sum(map(str.isalpha, word)) >= 2]
    start = rng.randrange(max(1, len(words) - num + 1))
    return " ".join(words[start : start + num]) if len(words) >= num else ""


def short(rows: list[tuple[str, str, str]], rng: random.Random) -> list[Row]:
    """Return words, pairs and sentences of (text, label, origin) rows, at most 100 a language."""
    rows = sorted(rows)
    rng.shuffle(rows)
    out: list[Row] = []
    counts: dict[tuple[str, str, str], int] = {}
    for text, label, origin in rows:
        words = [text] if label in UNSPACED else text.split()
        cut = {"words": pieces(text, label, 1, rng), "pairs": pieces(text, label, 2, rng)}
        cut["sentences"] = text if len(text) >= (12 if label in UNSPACED else 25) else ""
        if len(words) < 3 and label not in UNSPACED:
            cut["sentences"] = ""
        for length, piece in cut.items():
            key = (label, origin, length)
            if piece and counts.get(key, 0) < PER_LANGUAGE:
                counts[key] = counts.get(key, 0) + 1
                out.append(Row(piece, label, origin, length))
    return out


def documents(shared: Path, part: str, num: int) -> list[Row]:
    """Return whole manuals; of bench_multi those that are in the folder's language or not English
    is for the caller to tell: English in it is a translation that is missing."""
    rng = random.Random(1)
    manuals = table.manuals_in_english(shared, part)
    many = table.manuals_in_many(shared, part)
    rows = [Row(row["text"], "en", "bench_en", "documents") for row in manuals]
    rows = rng.sample(rows, min(num, len(rows)))
    others = [
        Row(row["text"], label, "bench_multi", "documents")
        for row, label in zip(many, table.languages(many), strict=True)
    ]
    return rows + rng.sample(others, min(num, len(others)))


def load_short(folder: Path, part: str) -> list[Row]:
    """Return words, pairs and sentences of a part of what texts.py wrote: `tune` or `judge`, or
    `tune-script` or `judge-script`, messages in another script than the language mostly has."""
    texts = examples() if part == "judge" else []
    if part in ("tune", "judge"):
        path = folder / ("validation.parquet" if part == "tune" else "test.parquet")
        texts += [(r["text"], r["label"], r["origin"]) for r in pq.read_table(path).to_pylist()]
    rows = pq.read_table(folder / "messages.parquet", filters=[("part", "=", part)]).to_pylist()
    texts += [(row["text"], row["label"], row["source"]) for row in rows]
    return short(texts, random.Random(1))


def load(folder: Path, part: str, num_docs: int = 1500) -> list[Row]:
    """Return the rows of a part, documents too."""
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    which = "validation" if part == "tune" else "test"
    return load_short(folder, part) + documents(shared, which, num_docs)
