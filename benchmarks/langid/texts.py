"""Make the texts that the embedded language model is trained on and judged by.

Writes `train.parquet` (lines put together from sentences and paragraphs, with noise) and
`heldout.parquet` (untouched sentences and paragraphs), columns `text`, `label`, `origin`. The sources are
`langid/udhr_paragraphs.parquet` and `langid/tatoeba_v1.parquet` under `CORPUSKIT_SHARED_DATA`.
Labels are the codes of lid.176 (Wikipedia's): ISO 639-1 where it has one, else ISO 639-3 or Wikipedia's own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import repair
from noise import decorate, recase

HELDOUT_SHARE = 10  # one paragraph or sentence in ten
LID176 = frozenset(
    """af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs
    cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb
    ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv
    mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl
    pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr
    tt tyv ug uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh""".split()
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
# UDHR texts in a script or spelling in which the language is hardly ever met, and codes that collide.
SKIPPED_UDHR = frozenset(
    "ckb vie_han san_gran khk_mong tgl_tglg tzm_tfng jav_java azj_cyrl bos_cyrl tuk_cyrl uig_latn "
    "mly_arab ell_polytonic cbs 042 068 041 067 058 059 069 053 054".split()
)
EXTRA_3 = frozenset()  # three-letter codes that lid.176 lacks and that are wanted all the same


@dataclass(frozen=True)
class Unit:
    """One sentence or paragraph."""

    text: str
    label: str
    origin: str
    held_out: bool


def label_of(code: str) -> str | None:
    """Return our label for an ISO 639-3 code or a BCP 47 tag, None where the language is left out."""
    primary = code.split("-")[0]
    label = CODES.get(primary, primary)
    return label if label in LID176 or len(label) == 2 or label in EXTRA_3 else None


def held_out(sentence: str) -> bool:
    """Say whether a sentence is kept for judging: one in ten, by a hash of its text."""
    return hashlib.blake2b(sentence.encode(), digest_size=4).digest()[0] % HELDOUT_SHARE == 0


def read_units(folder: Path) -> list[Unit]:
    """Read both sets, repair the UDHR, and hold out paragraphs by their number in every language alike.

    Variants of one language (Brazilian and European Portuguese) share paragraphs, hence by number.
    """
    units: list[Unit] = []
    tatoeba = pq.read_table(folder / "tatoeba_v1.parquet").to_pylist()
    every = repair.Habits()
    habits: dict[str, repair.Habits] = defaultdict(repair.Habits)
    for row in tatoeba:
        words, label = row["text"].split(), label_of(row["lang"])
        every.learn(words)
        if label is not None:
            habits[label].learn(words)
            units.append(Unit(" ".join(words), label, "tatoeba", held_out(row["text"])))
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
            units.append(Unit(text, label, "udhr", number % HELDOUT_SHARE == 7))
    trained = {unit.text for unit in units if not unit.held_out}
    return [unit for unit in units if not unit.held_out or unit.text not in trained]


def compose(units: list[Unit], label: str, chars: int, rng: random.Random) -> list[str]:
    """Put training lines together for one label, about `chars` characters in all.

    A line is 1 to 12 units of the language, cut at a random word, in changed case and with noise.
    """
    lines: list[str] = []
    made = 0
    while made < chars:
        parts = []
        for _ in range(min(rng.choice((1, 1, 1, 1, 2, 2, 3, 4, 6, 9, 12)), 12)):
            words = rng.choice(units).text.split(" ")
            if len(words) > 12 and rng.random() < 0.7:
                start = rng.randrange(len(words) - 6)
                words = words[start : start + rng.randint(4, 30)]
            parts.append(" ".join(words))
        text = recase(" ".join(parts), rng)
        if rng.random() < 0.5:
            text = decorate(text, rng, rng.choice((0.1, 0.3, 0.8, 2.0)))
        lines.append(text)
        made += len(text)
    return lines
