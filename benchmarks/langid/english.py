"""English beyond the two multilingual sets: prose, and prose spelt as in text messages.

Tatoeba and the Universal Declaration hold about 1,100 English sentences, too few for a vocabulary:
a model that knows no more took a quarter of all text messages for other languages. Prose comes from
the novels of ELTeC (CC BY 4.0), from 18F (CC0) and from opensource.guide (CC BY 4.0), as they stand
in `bench_en`; these sources are no part of any table. The spellings were written for this purpose.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    import random
    from pathlib import Path

SOURCES = ("COST-ELTeC/ELTeC-eng", "18F/18f.gsa.gov", "github/opensource.guide")
SENTENCES = 60_000
_END = re.compile(r"(?<=[.?!;])[\"'\u2019\u201d)]*\s+")
_WORD = re.compile(r"[A-Za-z']+")

# Shortened spellings that are common in text messages and chats.
SHORT = {
    "you": "u", "your": "ur", "yours": "urs", "are": "r", "to": "2", "too": "2", "for": "4",
    "see": "c", "why": "y", "be": "b", "okay": "ok", "ok": "k", "please": "pls", "thanks": "thx",
    "thank": "thank", "and": "n", "the": "da", "that": "dat", "this": "dis", "with": "wif",
    "what": "wat", "when": "wen", "where": "whr", "because": "cos", "about": "abt", "before": "b4",
    "tomorrow": "tmr", "tonight": "2nite", "night": "nite", "good": "gd", "great": "gr8",
    "love": "luv", "message": "msg", "text": "txt", "have": "hv", "just": "jus", "don't": "dont",
    "can't": "cant", "i'm": "im", "i'll": "ill", "won't": "wont", "going": "goin", "got": "gt",
    "something": "smth", "someone": "sum1", "anyone": "ne1", "anything": "nethin", "much": "mch",
    "people": "ppl", "week": "wk", "weekend": "wkend", "from": "frm", "back": "bk", "time": "tym",
    "work": "wrk", "would": "wud", "could": "cud", "should": "shud", "know": "no", "think": "thk",
    "later": "l8r", "late": "l8", "wait": "w8", "today": "2day", "dear": "dear", "really": "rly",
    "little": "lil", "sorry": "sry", "friend": "frnd", "friends": "frnds", "doing": "doin",
    "nothing": "nthing", "coming": "comin", "want": "wana", "hours": "hrs", "minutes": "mins",
    "already": "alrdy", "there": "der", "them": "dem", "then": "den", "yes": "ya", "no": "nope",
}  # fmt: skip
FILLERS = (
    *("lol", "haha", "hehe", "ok", "k", "yeah", "hey", "hi", "oh", "hmm", "omg", "btw", "xx"),
    *(":)", ":-)", ";)", "...", "..", "!!", "??", "gonna", "wanna", "gotta", "yup", "nah", "pls"),
    *("thx", "cya", "bro", "babe", "mate", "lor", "wat", "tho", "cuz", "idk", "asap", "call", "txt"),
    *("sms", "free", "reply", "stop", "mobile", "phone", "msg", "pm", "am", "tv", "plz", "wot"),
)  # fmt: skip


def prose(folder: Path, rng: random.Random) -> list[str]:
    """Return sentences of 2 to 60 words, in random order."""
    found: list[str] = []
    for path in sorted(folder.glob("bench_en-*.parquet")):
        table = pq.read_table(path, columns=["text", "source"])
        for text, source in zip(
            table["text"].to_pylist(), table["source"].to_pylist(), strict=True
        ):
            if source in SOURCES:
                sentences = _END.split(" ".join(text.split()))
                found += [one for one in sentences if 2 <= len(one.split()) <= 60]
    found = sorted(set(found))
    rng.shuffle(found)
    return found[:SENTENCES]


def texting(text: str, rng: random.Random) -> str:
    """Return English as people type it in a hurry: short spellings, lost vowels and marks."""
    habit = rng.choice((0.15, 0.4, 0.8))

    def shorten(match: re.Match[str]) -> str:
        word = match[0]
        if rng.random() > habit:
            return word
        if word.lower() in SHORT:
            return SHORT[word.lower()]
        if len(word) > 4 and rng.random() < 0.2 * habit:
            return word[0] + re.sub("[aeiou]", "", word[1:])
        return word.replace("'", "")

    out = _WORD.sub(shorten, text)
    if rng.random() < 0.5:
        out = out.lower()
    words = out.split()
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        words.insert(rng.randrange(len(words) + 1), rng.choice(FILLERS))
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), str(rng.randrange(10 ** rng.randint(1, 11))))
    return " ".join(words)
