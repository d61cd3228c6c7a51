"""Make corpuskit/models/quality.model: English prose against what is around it on web pages.

    export CORPUSKIT_SHARED_DATA=...                  # the folder that holds quality/ and bench_en/
    mkdir packages && pip download --no-deps -d packages django==5.2.19 django-oscar==4.2.1 \\
        django-machina==1.3.1 django-allauth==65.22.1 mezzanine==6.1.1 wagtail==8.0.1
    PYTHONPATH=. python benchmarks/models/quality.py packages corpuskit/models/quality.model

Good: novels, government posts, Wikipedia, handbooks, product documentation. Bad: what this file puts
together from the labels and messages of web programs (menus, notices, baskets, forums), headlines
of clickbait, and prose whose words are shuffled, listed or cut off. Origins and licences are in
corpuskit/models/LICENSE.md. No web page and no spam message is learned from: those judge
(benchmarks/accuracy/quality.py --embedded).
"""

from __future__ import annotations

import gettext
import io
import os
import random
import re
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq

from corpuskit.stages.annotators._classifier import train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings
from corpuskit.stages.annotators._labelled import LabelledRow

SETTINGS = ClassifierSettings(family="linear", normalize="lower,punct", word_ngrams=2, min_count=2)
GOOD = ("COST-ELTeC", "18F", "pytorch/examples", "github/opensource", "debian:", "rust-lang")
NUM_BAD = 500
"""Texts of each kind that is put together."""
_FOREIGN = re.compile(r"%\(\w+\)s|%[sd]|\{[^{}]*\}|<[^<>]*>|&\w+;")


def read_good(shared: Path, rng: random.Random) -> list[LabelledRow]:
    """Return texts of 300 to 4,000 characters, cut at line ends."""
    rows = pq.read_table(shared / "quality" / "quality_train.parquet").to_pylist()
    texts = [(r["source"], r["text"]) for r in rows if r["source"].startswith(GOOD)]
    for part in (0, 1):
        path = shared / "bench_en" / f"bench_en-0000{part}-of-00004.parquet"
        manuals = pq.read_table(path).to_pylist()
        texts += [(r["source"], r["text"]) for r in manuals if r["source"].startswith("Microsoft")]
    rng.shuffle(texts)
    kept: dict[str, list[str]] = {}
    for source, text in texts:
        group = kept.setdefault(source.split("#")[0].split("/")[0], [])
        if len(group) < 900 and len(text) > 300:
            group.append(text[: rng.randrange(300, 4000)].rpartition("\n")[0] or text[:4000])
    return [LabelledRow(text, "prose", name) for name, group in kept.items() for text in group]


def read_messages(packages: Path) -> list[str]:
    """Return the English messages of programs, without what is filled in."""
    messages = set()
    for wheel in sorted(packages.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/de/LC_MESSAGES/" in name and name.endswith(".mo"):
                    catalog = gettext.GNUTranslations(io.BytesIO(archive.read(name)))
                    found = [m if isinstance(m, str) else m[0] for m in catalog._catalog]
                    messages.update(" ".join(_FOREIGN.sub(" ", m).split()) for m in found)
    return sorted(m for m in messages if 2 < len(m) < 120)


def headlines(shared: Path) -> list[LabelledRow]:
    rows = pq.read_table(shared / "quality" / "quality_train.parquet").to_pylist()
    return [
        LabelledRow(r["text"], "other", "clickbait") for r in rows if r["source"] == "clickbait"
    ]


class Boilerplate:
    """Texts that are no prose, put together at random; each method makes one."""

    def __init__(self, messages: list[str], prose: list[str], rng: random.Random) -> None:
        self.messages, self.prose, self.rng = messages, prose, rng
        self.labels = [m for m in messages if len(m) < 30]
        self.words = sorted({w for text in prose for w in re.findall(r"[A-Za-z]{4,12}", text)})
        self.names = [w for w in self.words if w[0].isupper()]

    def rows(self) -> list[LabelledRow]:
        """Return NUM_BAD texts of each kind."""
        kinds = (
            self.menu, self.notices, self.shop, self.forum, self.keywords, self.shuffled,
            self.teasers, self.offers, self.table,
        )  # fmt: skip
        return [
            LabelledRow(make()[:4000], "other", make.__name__)
            for make in kinds
            for _ in range(NUM_BAD)
        ]

    def _title(self, most: int = 5) -> str:
        return " ".join(self.rng.choices(self.words, k=self.rng.randint(1, most))).title()

    def _price(self) -> str:
        cents = self.rng.choice(["00", "95", "99"])
        return f"{self.rng.choice('$£€')}{self.rng.randint(1, 900)}.{cents}"

    def _day(self) -> str:
        month = self.rng.choice("January March May July October December".split())
        return f"{month} {self.rng.randint(1, 28)}, {self.rng.randint(2004, 2025)}"

    def _begin(self, least: int, most: int) -> str:
        return " ".join(self.rng.choice(self.prose).split()[: self.rng.randint(least, most)])

    def menu(self) -> str:
        items = self.rng.choices(self.labels, k=self.rng.randint(8, 60))
        items += [self._title(3) for _ in range(10)]
        items += self.rng.sample(items, len(items) // 3)  # for small screens again
        self.rng.shuffle(items)
        year, owner = self.rng.randint(2005, 2025), self.rng.choice(self.names)
        foot = f"© {year} {owner}. {self.rng.choice(self.messages)}"
        return self.rng.choice(["\n", "\n", " | ", " "]).join(items) + "\n" + foot

    def notices(self) -> str:
        return "\n".join(self.rng.choices(self.messages, k=self.rng.randint(5, 40)))

    def shop(self) -> str:
        num = self.rng.randint(4, 25)
        items = ((self._title(), self._price(), self.rng.choice(self.labels)) for _ in range(num))
        return "\n".join("\n".join(item) for item in items)

    def forum(self) -> str:
        lines = []
        for _ in range(self.rng.randint(3, 15)):
            author = f"{self.rng.choice(self.names).lower()}{self.rng.randint(1, 99)}"
            posts = f"Posts: {self.rng.randint(1, 9000)}"
            lines += [author, self._day(), posts, self._begin(2, 12)]
            lines += self.rng.choices(self.labels, k=3)
        return "\n".join(lines)

    def keywords(self) -> str:
        words = self.rng.choices(self.words, k=self.rng.randint(3, 12))
        num = self.rng.randint(10, 60)
        phrases = [" ".join(self.rng.sample(words, min(len(words), 3))) for _ in range(num)]
        return self.rng.choice([", ", " ", " - ", "\n"]).join(phrases)

    def shuffled(self) -> str:
        words = self._begin(50, 400).split()
        self.rng.shuffle(words)
        return " ".join(words)

    def teasers(self) -> str:
        lines = []
        for _ in range(15):
            teaser = f"{self._begin(6, 20)}... {self.rng.choice(self.labels)}"
            lines += [self._title(), self._day(), teaser]
        return "\n".join(lines)

    def offers(self) -> str:
        cries = [
            self.rng.choice(self.messages).upper() + "!" * self.rng.randint(1, 3) for _ in range(6)
        ]
        cries += [
            f"{self._title(3)} {self._price()} {self.rng.randint(10**6, 10**10)}" for _ in range(6)
        ]
        cries += [
            f"{self._title(2)} {self.rng.randint(5, 90)}% {self.rng.choice(self.labels)}"
            for _ in range(2)
        ]
        self.rng.shuffle(cries)
        return " ".join(cries)

    def table(self) -> str:
        rows = (
            f"{self._title(2)} {self.rng.randint(0, 9999)} {self.rng.random():.2f} {self._day()}"
            for _ in range(self.rng.randint(8, 50))
        )
        return "\n".join(rows)


def main() -> None:
    packages, output = map(Path, sys.argv[1:])
    shared, rng = Path(os.environ["CORPUSKIT_SHARED_DATA"]), random.Random(0)
    good = read_good(shared, rng)
    boilerplate = Boilerplate(read_messages(packages), [row.text for row in good], rng)
    rows = [*good, *headlines(shared), *boilerplate.rows()]
    train_classifier(rows, output, SETTINGS, folds=3, positive="prose", progress=print)


if __name__ == "__main__":
    main()
