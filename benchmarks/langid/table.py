"""Judge the embedded language model beside lid.176.ftz and print the tables of docs/langid.md.

Reads what texts.py wrote, and `bench_en`, `bench_multi`, `code`, `quality/sms_spam` and
`models/lid.176.ftz` under `CORPUSKIT_SHARED_DATA`. Each set has a part for validation, by which
settings were chosen, and one for the test, by which nothing was: shard 0 of bench_en and shards 1
to 3; of the others 3 in 10 documents and the rest, of text messages one half and the other, by a
hash of the id. Sources of bench_en that the model learned from are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from english import SOURCES as LEARNED

from corpuskit.formats.batch import utf8
from corpuskit.stages.annotators._fasttext import FastTextModel, open_model
from corpuskit.stages.annotators.language import EMBEDDED_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_SCORE = 0.65
# Languages told apart in bench_multi by lid.176's code for them.
SAME = {"nb": "no"}


@dataclass(frozen=True)
class Judged:
    """True and found labels of N texts, and whether the score reaches 0.65."""

    true: list[str]
    found: list[str]
    sure: list[bool]

    def share(self, test: Callable[[str, str, bool], bool]) -> str:
        rows = list(zip(self.true, self.found, self.sure, strict=True))
        return f"{100 * sum(test(*row) for row in rows) / max(1, len(rows)):.1f}"

    def only(self, chosen: list[bool]) -> Judged:
        def pick(values: list) -> list:
            return [value for value, keep in zip(values, chosen, strict=True) if keep]

        return Judged(pick(self.true), pick(self.found), pick(self.sure))


def judge(model: FastTextModel, texts: list[str], true: list[str]) -> Judged:
    found = model.predict(utf8(pa.array(texts, pa.large_string())))
    names = [model.labels[rank] if rank >= 0 else "und" for rank in found.ranks[:, 0].tolist()]
    return Judged(true, names, (found.scores[:, 0] >= MIN_SCORE).tolist())


def right(true: str, found: str, _sure: bool) -> bool:
    return true == found


def kept(true: str, found: str, sure: bool) -> bool:
    return true == found and sure


def astray(true: str, found: str, sure: bool) -> bool:
    """A wrong label with a high score; English in a translated manual is no error."""
    return found not in (true, "en") and sure


def part_of(row: dict, tenths: int) -> str:
    """Return validation for some tenths of the rows, test for the others."""
    digest = hashlib.blake2b(row["id"].encode(), digest_size=4).digest()
    return "validation" if int.from_bytes(digest, "little") % 10 < tenths else "test"


def manuals_in_english(shared: Path, part: str) -> list[dict]:
    rows = []
    for shard in (0,) if part == "validation" else (1, 2, 3):
        path = shared / "bench_en" / f"bench_en-0000{shard}-of-00004.parquet"
        rows += pq.read_table(path).to_pylist()
    return [row for row in rows if row["source"] not in LEARNED]


def manuals_in_many(shared: Path, part: str) -> list[dict]:
    rows = []
    for path in sorted((shared / "bench_multi").glob("*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return [row for row in rows if part_of(row, 3) == part]


def chat(shared: Path, part: str) -> list[dict]:
    """Return text messages that people wrote to people."""
    rows = pq.read_table(shared / "quality" / "sms_spam.parquet").to_pylist()
    return [row for row in rows if row["label"] == "ham" and part_of(row, 5) == part]


def table(head: str, rows: list[list[str]]) -> None:
    print(f"\n| {head.replace('|', ' | ')} |\n|{'---|' * len(head.split('|'))}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def held_out(models: dict[str, FastTextModel], path: Path) -> None:
    rows = pq.read_table(path).to_pylist()
    common = set.intersection(*(set(model.labels) for model in models.values()))
    out = []
    for origin in ("udhr", "tatoeba"):
        chosen = [row for row in rows if row["origin"] == origin and row["label"] in common]
        for name, model in models.items():
            found = judge(model, [r["text"] for r in chosen], [r["label"] for r in chosen])
            by_label: dict[str, list[bool]] = defaultdict(list)
            for true, guess in zip(found.true, found.found, strict=True):
                by_label[true].append(true == guess)
            macro = 100 * float(np.mean([np.mean(hits) for hits in by_label.values()]))
            out.append(
                [
                    origin,
                    name,
                    f"{len(chosen):,}",
                    str(len(by_label)),
                    found.share(right),
                    f"{macro:.1f}",
                    found.share(kept),
                ]
            )
    table("texts|model|number|languages|right|mean of languages|right and score >= 0.65", out)


def english(models: dict[str, FastTextModel], rows: list[dict]) -> None:
    sources = [row["source"] for row in rows]
    judged = {
        name: judge(model, [row["text"] for row in rows], ["en"] * len(rows))
        for name, model in models.items()
    }
    out = []
    for source, number in [("all", len(rows)), *Counter(sources).most_common(4)]:
        line = [source, f"{number:,}"]
        for found in judged.values():
            part = found.only([source in ("all", one) for one in sources])
            line += [part.share(right), part.share(kept), part.share(astray)]
        out.append(line)
    names = "|".join(f"{n}: en|{n}: en >= 0.65|{n}: other >= 0.65" for n in models)
    table(f"bench_en|documents|{names}", out)
    for name, found in judged.items():
        wrong = Counter(guess for guess in found.found if guess != "en").most_common(6)
        print(f"{name}, taken for: {', '.join(f'{guess} {count}' for guess, count in wrong)}")


def unlike_manuals(models: dict[str, FastTextModel], shared: Path, part: str) -> None:
    """English of other kinds, short texts among them."""
    sets = {"text messages (ham)": [row["text"] for row in chat(shared, part)]}
    if part == "test":
        for name in ("neardup/plagiarism_articles", "toxicity/wiki_toxicity"):
            sets[name] = pq.read_table(shared / f"{name}.parquet")["text"].to_pylist()
    out = []
    for name, texts in sets.items():
        line = [name, f"{len(texts):,}", f"{np.median([len(text) for text in texts]):.0f}"]
        for model in models.values():
            found = judge(model, texts, ["en"] * len(texts))
            line += [found.share(right), found.share(kept), found.share(astray)]
        out.append(line)
    names = "|".join(f"{n}: en|{n}: en >= 0.65|{n}: other >= 0.65" for n in models)
    table(f"English|texts|median chars|{names}", out)


def languages(rows: list[dict]) -> list[str]:
    codes = [row["lang"].replace("_", "-").lower().partition("-")[0] for row in rows]
    return [SAME.get(code, code) for code in codes]


def multilingual(models: dict[str, FastTextModel], rows: list[dict]) -> None:
    true = languages(rows)
    judged = {n: judge(m, [row["text"] for row in rows], true) for n, m in models.items()}
    out, strays = [], defaultdict(list)
    for label, number in [("all", len(rows)), *sorted(Counter(true).items(), key=lambda x: -x[1])]:
        if number < 20:
            continue
        line = [label, f"{number:,}"]
        for name, found in judged.items():
            part = found.only([label in ("all", one) for one in true])
            line += [part.share(right), part.share(kept)]
            strays[name].append((label, part.share(astray)))
        out.append(line)
    names = "|".join(f"{n}: right|{n}: right >= 0.65" for n in models)
    table(f"bench_multi|documents|{names}", out)
    for name, shares in strays.items():
        print(f"{name}, astray: {', '.join(' '.join(one) for one in shares if one[1] != '0.0')}")
    for name, found in judged.items():
        either = found.share(lambda true, guess, _: guess in (true, "en"))
        wrong = Counter(
            (one, guess)
            for one, guess in zip(found.true, found.found, strict=True)
            if guess not in (one, "en")
        )
        often = ", ".join(f"{a}->{b} {count}" for (a, b), count in wrong.most_common(10))
        print(f"{name}: right or en {either} %; most often {often}")


def code(models: dict[str, FastTextModel], folder: Path, part: str) -> None:
    rows = pq.read_table(folder / "code_slice.parquet").to_pylist()
    rows = [row for row in rows if part_of(row, 3) == part]
    out = []
    for kind, number in [("all", len(rows)), *Counter(row["lang"] for row in rows).most_common(4)]:
        texts = [row["text"] for row in rows if kind in ("all", row["lang"])]
        line = [kind, f"{number:,}"]
        for model in models.values():
            found = judge(model, texts, ["en"] * len(texts))
            line += [found.share(right), found.share(kept), found.share(astray)]
        out.append(line)
    names = "|".join(f"{n}: en|{n}: en >= 0.65|{n}: other >= 0.65" for n in models)
    table(f"code|files|{names}", out)


def speed(models: dict[str, FastTextModel], folder: Path) -> None:
    texts = pq.read_table(folder / "bench_en-00001-of-00004.parquet")["text"][:3000]
    view = utf8(texts.cast(pa.large_string()).combine_chunks())
    size = int(view.offsets[-1] - view.offsets[0])
    rounds: dict[str, list[float]] = defaultdict(list)
    for _ in range(3):
        for name, model in models.items():
            start = time.process_time()
            model.predict(view)
            rounds[name].append(size / 1e6 / (time.process_time() - start))
    out = [[name, f"{np.median(rates):.1f}"] for name, rates in rounds.items()]
    table(f"{size / 1e6:.0f} MB of bench_en|MB per CPU second", out)


def summary(models: dict[str, FastTextModel], folder: Path, shared: Path, part: str) -> None:
    """Print the few figures that settings are chosen by."""
    common = set.intersection(*(set(model.labels) for model in models.values()))
    aside = pq.read_table(folder / f"{part}.parquet").to_pylist()
    sets = {
        origin: [row for row in aside if row["origin"] == origin and row["label"] in common]
        for origin in ("tatoeba", "udhr")
    }
    manuals, many = manuals_in_english(shared, part), manuals_in_many(shared, part)
    sets["bench_en"] = [{"text": row["text"], "label": "en"} for row in manuals]
    sets["bench_multi"] = [
        {"text": row["text"], "label": label}
        for row, label in zip(many, languages(many), strict=True)
    ]
    sets["sms"] = [{"text": row["text"], "label": "en"} for row in chat(shared, part)]
    out = []
    for name, model in models.items():
        line = [name]
        for rows in sets.values():
            found = judge(model, [row["text"] for row in rows], [row["label"] for row in rows])
            line.append(" / ".join(found.share(test) for test in (right, kept, astray)))
        out.append(line)
    table(f"{part}|{'|'.join(f'{name} ({len(rows):,})' for name, rows in sets.items())}", out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what texts.py wrote")
    parser.add_argument("--part", choices=("validation", "test"), default="test")
    parser.add_argument("--model", type=Path, nargs="*", default=[], help="beside the embedded one")
    parser.add_argument("--summary", action="store_true", help="a line per model, no tables")
    given = parser.parse_args()
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    models = {
        "embedded": open_model(EMBEDDED_PATH),
        **{path.stem: FastTextModel(path) for path in given.model},
        "lid.176.ftz": FastTextModel(shared / "models" / "lid.176.ftz"),
    }
    if given.summary:
        return summary(models, given.folder, shared, given.part)
    held_out(models, given.folder / f"{given.part}.parquet")
    english(models, manuals_in_english(shared, given.part))
    unlike_manuals(models, shared, given.part)
    multilingual(models, manuals_in_many(shared, given.part))
    code(models, shared / "code", given.part)
    return speed(models, shared / "bench_en")


if __name__ == "__main__":
    main()
