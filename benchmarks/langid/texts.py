"""Make the texts that the embedded language model is trained on and judged by.

Writes `train.parquet` (lines put together from sentences and paragraphs, with noise),
`validation.parquet` and `test.parquet` (untouched sentences and paragraphs), and `near.parquet`
(untouched texts of languages that have a near neighbour, for neighbours.py), columns `text`,
`label`, `origin`. Settings are chosen on the validation part, the test part is only reported. The
sources are `langid/udhr_paragraphs.parquet`, `langid/tatoeba_v1.parquet` and three sources of
`bench_en` (english.py) under `CORPUSKIT_SHARED_DATA`. Labels are the codes of lid.176 (Wikipedia's):
ISO 639-1 where it has one, else ISO 639-3 or Wikipedia's own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import english
import pyarrow as pa
import pyarrow.parquet as pq
import repair
import scripts
import translations
from noise import decorate, phrases, recase, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

HELDOUT_SHARE = 10  # one paragraph or sentence in ten: half for validation, half for the test
LID176 = frozenset(
    """af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb
    ckb co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom
    gu gv he hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw
    ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap
    nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco
    sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo
    wa war wuu xal xmf yi yo yue zh""".split()
)
# ISO 639-3 (Tatoeba) and BCP 47 (UDHR) to the codes of lid.176.
CODES = {
    "afr": "af", "amh": "am", "ara": "ar", "aze": "az", "bel": "be", "ben": "bn", "bos": "bs",
    "bre": "br", "bul": "bg", "cat": "ca", "ces": "cs", "cmn": "zh", "cor": "kw", "cym": "cy",
    "dan": "da", "deu": "de", "ell": "el", "eng": "en", "epo": "eo", "est": "et", "eus": "eu",
    "fin": "fi", "fra": "fr", "fry": "fy", "gla": "gd", "gle": "ga", "glg": "gl", "gsw": "als",
    "heb": "he", "hin": "hi", "hrv": "hr", "hun": "hu", "hye": "hy", "ido": "io", "ile": "ie",
    "ina": "ia", "ind": "id", "isl": "is", "ita": "it", "jav": "jv", "jpn": "ja", "kat": "ka",
    "kaz": "kk", "khm": "km", "kor": "ko", "kur": "ku", "lat": "la", "lit": "lt", "lvs": "lv",
    "mal": "ml", "mar": "mr", "mkd": "mk", "mon": "mn", "nld": "nl", "nno": "nn", "nob": "no",
    "oci": "oc", "pes": "fa", "pol": "pl", "por": "pt", "ron": "ro", "rus": "ru", "slk": "sk",
    "slv": "sl", "spa": "es", "sqi": "sq", "srp": "sr", "swe": "sv", "swh": "sw", "tam": "ta",
    "tat": "tt", "tel": "te", "tgl": "tl", "tha": "th", "tuk": "tk", "tur": "tr", "uig": "ug",
    "ukr": "uk", "urd": "ur", "uzb": "uz", "vie": "vi", "xho": "xh", "yid": "yi", "zsm": "ms",
    "fao": "fo",
    "nb": "no", "bho": "bh", "bik": "bcl", "lah": "pnb", "nhn": "nah", "zlm": "ms",
}  # fmt: skip
# UDHR texts in a script or spelling in which the language is hardly ever met, or of unclear code.
SKIPPED_UDHR = frozenset(
    """ckb vie_han san_gran khk_mong tgl_tglg tzm_tfng jav_java azj_cyrl bos_cyrl tuk_cyrl uig_latn
    mly_arab ell_polytonic cbs 042 068 041 067 058 059 069 053 054""".split()
)
# Languages that lid.176 lacks, wanted all the same.
EXTRA = frozenset("fo ha ig lg ln mi ny om rn rw se sm sn st ti tn to ts wo xh zu".split())
# Too near to a language that is far more often met, with too little text to tell them apart:
# Scots and Interlingue took English documents, Wu took Chinese ones.
LEFT_OUT = frozenset("ie sco wuu".split())
# Characters per language. Much-written languages get more, English most: the prior of the model.
CHARS = 600_000
FRAGMENTS = 0.65  # share of the lines that are a few words, so that short texts are not a surprise
MESSAGES = 0.4  # share of what is drawn from the messages of programs, in languages that have some
# Sentences from which neighbours have their full share of prose; below, messages take their place:
# Zulu has 54, which would be drawn thousands of times each.
ENOUGH = 300
FEW = 1_000  # messages below which a language takes those of FILLERS, too
FILLERS = ("android", "chromium")
OTHER_SCRIPT = 0.5  # characters in the other script of a language (scripts.py), beside these
# Neighbours, which take more text to tell apart; those of Nguni and Yoruba have little of it.
NEAR = frozenset(
    "ms id bs hr sr sl mk nn no da ca es gl pt oc ast zu xh yo ha ig tn st ts sn rw rn".split()
)
MAJOR = frozenset(
    "de fr es it pt nl ru pl ja zh ko ar fa hi tr vi id cs sv uk el hu fi da no ro he th bg".split()
)


# Neighbours that a model of their own tells apart (neighbours.py).
GROUPS = (
    ("id", "ms"),
    ("bs", "hr", "sr"),
    ("da", "nn", "no"),
    ("ast", "ca", "es", "gl", "oc", "pt"),
    ("xh", "zu"),
)


@dataclass(frozen=True)
class Unit:
    """One sentence or paragraph."""

    text: str
    label: str
    origin: str
    part: str


def label_of(code: str) -> str | None:
    """Return our label for an ISO 639-3 code or a BCP 47 tag, None for languages left out."""
    primary = code.partition("-")[0]
    label = CODES.get(primary, primary)
    return label if label in (LID176 | EXTRA) - LEFT_OUT else None


def part_of_sentence(sentence: str) -> str:
    """Return train, validation or test, by a hash of the sentence."""
    first, second = hashlib.blake2b(sentence.encode(), digest_size=4).digest()[:2]
    return "train" if first % HELDOUT_SHARE else ("validation", "test")[second % 2]


def part_of_paragraph(number: int) -> str:
    """Return train, validation or test, by the paragraph's number in the declaration.

    Every language is cut alike: its variants (Brazilian, European Portuguese) share paragraphs.
    """
    if number % HELDOUT_SHARE != 7:
        return "train"
    return ("validation", "test")[number // HELDOUT_SHARE % 2]


def read_units(folder: Path) -> list[Unit]:
    """Read both sets, repair the UDHR, and set one in ten aside, never a text that is learned."""
    units: list[Unit] = []
    tatoeba = pq.read_table(folder / "tatoeba_v1.parquet").to_pylist()
    every = repair.Habits()
    habits: dict[str, repair.Habits] = defaultdict(repair.Habits)
    for row in tatoeba:
        words, label = row["text"].split(), label_of(row["lang"])
        every.learn(words)
        if label is not None:
            habits[label].learn(words)
            units.append(Unit(" ".join(words), label, "tatoeba", part_of_sentence(row["text"])))
    parsed = []
    for row in pq.read_table(folder / "udhr_paragraphs.parquet").to_pylist():
        label = None if row["code"] in SKIPPED_UDHR else label_of(row["bcp47"])
        if label is not None and label != "und":
            items = repair.parse(row["text"])
            parsed.append((label, items, int(row["id"].rsplit("/", 1)[1])))
            habits[label].learn(repair.clean_words(items))
    for label, items, number in parsed:
        text = repair.restore(items, label, habits[label], every)
        if text:
            units.append(Unit(text, label, "udhr", part_of_paragraph(number)))
    trained = {unit.text for unit in units if unit.part == "train"}
    return [unit for unit in units if unit.part == "train" or unit.text not in trained]


def fragment(text: str, rng: random.Random) -> str:
    """Return one to five words, or two to ten characters of a text without spaces."""
    words = text.split(" ")
    if max(map(len, words)) > 15 and not text.isascii():
        start = rng.randrange(len(text))
        return text[start : start + rng.randint(2, 10)].strip() or text
    start = rng.randrange(len(words))
    return " ".join(words[start : start + rng.randint(1, 5)])


def compose(
    prose: list[str], messages: list[str], share: float, chars: int, rng: random.Random
) -> Iterator[str]:
    """Yield training lines of one language, about `chars` characters in all.

    That share of the units is drawn from messages, if there are any.

    A line is 1 to 10 units, longer ones cut to 4 to 30 words, in changed case and with noise; or,
    mostly, a few words as they are, which cost little and teach short texts.
    """
    made = 0
    while made < chars:
        units = messages if messages and rng.random() < share else prose
        if rng.random() < FRAGMENTS:
            line = recase(fragment(rng.choice(units), rng), rng)
            made += len(line)
            yield line
            continue
        parts = []
        for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 5, 10))):
            words = rng.choice(units).split(" ")
            if len(words) > 12 and rng.random() < 0.7:
                start = rng.randrange(len(words) - 6)
                words = words[start : start + rng.randint(4, 30)]
            parts.append(" ".join(words))
        line = recase(" ".join(parts), rng)
        if rng.random() < 0.5:
            line = decorate(line, rng, rng.choice((0.1, 0.3, 0.8, 2.0)))
        made += len(line)
        yield line


def manuals(units: list[str], chars: int, rng: random.Random) -> Iterator[str]:
    """Yield English as manuals have it, in light to heavy noise; almost only code counts, too."""
    made = 0
    while made < chars:
        kind = rng.randrange(10)
        words = rng.choice(units).split()[: rng.randint(3, 20)]
        text = " ".join(words) if kind < 3 else phrases(rng) if kind < 7 else repeated(rng)
        if kind < 9:
            text = decorate(recase(text, rng), rng, rng.choice((0.3, 1, 2, 4, 8, 16)))
        made += len(text)
        yield text


def messages(units: list[str], chars: int, rng: random.Random) -> Iterator[str]:
    """Yield English as text messages have it: one to three short sentences."""
    made = 0
    while made < chars:
        words = " ".join(rng.choice(units) for _ in range(rng.choice((1, 1, 2, 3)))).split()
        text = english.texting(" ".join(words[: rng.randint(2, 30)]), rng)
        made += len(text)
        yield text


def family(label: str) -> tuple[str, ...]:
    """Return a language and its near neighbours."""
    return next((labels for labels in GROUPS if label in labels), (label,))


def is_shared(source: str, label: str, translated: dict[tuple[str, str], list[str]]) -> bool:
    """Return whether a language has near neighbours, all of which have messages of a source."""
    kin = family(label)
    return len(kin) > 1 and all((source, each) in translated for each in kin)


def to_learn(translated: dict[tuple[str, str], list[str]]) -> dict[str, list[str]]:
    """Return label -> messages to learn from.

    FILLERS and LibreOffice are for languages with few other messages, and for near neighbours that
    all have them: with more of a source than its neighbour has, a language is taken for what all
    of that source is about.
    """
    learned: dict[str, list[str]] = defaultdict(list)
    for source in ("firefox", "kolibri", "libreoffice", *FILLERS):
        few = {label for _, label in translated if len(learned[label]) < FEW}
        for (one, label), texts in sorted(translated.items()):
            wanted = source in ("firefox", "kolibri") or label in few
            if one == source and (wanted or is_shared(source, label, translated)):
                learned[label] += texts
    return learned


def write(path: Path, rows: list[tuple[str, str, str]]) -> None:
    """Write (text, label, origin) rows."""
    texts, labels, origins = zip(*rows, strict=True)
    pq.write_table(pa.table({"text": texts, "label": labels, "origin": origins}), path)
    print(f"{path}: {len(rows):,} rows, {len(set(labels))} labels, {sum(map(len, texts)):,} chars")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for train, validation and test.parquet")
    parser.add_argument("packages", type=Path, help="folder of packages: see translations.py")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    shared = Path(os.environ["CORPUSKIT_SHARED_DATA"])
    rng = random.Random(given.seed)
    units = read_units(shared / "langid")
    by_label: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        if unit.part == "train":
            by_label[unit.label].append(unit.text)
    plain = by_label["en"] + english.prose(shared / "bench_en", rng)
    translated = translations.read(given.packages.iterdir())
    rows = [
        (text, label, source, translations.PARTS[source])
        for (source, label), texts in translated.items()
        for text in texts
        if translations.PARTS[source] != "train" and label in by_label
    ]
    names = ("text", "label", "source", "part")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table(columns), given.out / "messages.parquet")
    learned = to_learn(translated)
    rows = []
    for label, own in sorted(by_label.items()):
        times = 4 if label in MAJOR | NEAR else 1
        if label == "en":
            own, times = plain, 8
        kin = family(label)
        least = min(len(by_label[near]) for near in kin) if len(kin) > 1 else ENOUGH
        share = 1 - (1 - MESSAGES) * min(1, least / ENOUGH)
        chars = int(CHARS * times)
        lines = list(compose(own, learned[label], share, chars, rng))
        if label in scripts.OTHER:
            other = [list(map(scripts.OTHER[label], units)) for units in (own, learned[label])]
            lines += compose(*other, share, int(OTHER_SCRIPT * chars), rng)
        rows += [(line, label, "composed") for line in lines]
    rows += [(line, "en", "manuals") for line in manuals(plain, CHARS * 30, rng)]
    rows += [(line, "en", "messages") for line in messages(plain, CHARS * 5, rng)]
    write(given.out / "train.parquet", rows)
    both = [(text, label) for group in GROUPS for label in group for text in by_label[label]]
    for (source, label), texts in translated.items():
        if translations.PARTS[source] == "train" and is_shared(source, label, translated):
            both += [(text, label) for text in texts]
    both += [(scripts.OTHER[label](text), label) for text, label in both if label in scripts.OTHER]
    write(given.out / "near.parquet", [(text, label, "near") for text, label in sorted(set(both))])
    for part in ("validation", "test"):
        chosen = [(u.text, u.label, u.origin) for u in units if u.part == part]
        write(given.out / f"{part}.parquet", chosen)


if __name__ == "__main__":
    main()
