"""Write sentences, paragraphs and articles from word lists and a seed."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
PHRASES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text("utf-8"))
LANGUAGES = ("en", *PHRASES["other"])
PARAGRAPH = "\n\n"


class Dice:
    """Random choices that no Python version changes: `random()` alone is promised to stay."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, share: float) -> bool:
        return self._random() < share

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: list[Item] | tuple[Item, ...]) -> Item:
        return items[int(self._random() * len(items))]

    def mixed(self, items: list[Item]) -> list[Item]:
        """Return the items in random order."""
        drawn = [(self._random(), place) for place in range(len(items))]
        return [items[place] for _, place in sorted(drawn)]


class English:
    """Writes about one topic, word by word, so that documents share few runs of words."""

    def __init__(self, dice: Dice, topic: str | None = None) -> None:
        words = PHRASES["en"]
        self._dice, self._words = dice, words
        topics = list(words["topics"])
        self.topic = topic or dice.pick(topics)
        self._topic = words["topics"][self.topic]
        self._other = words["topics"][dice.pick(topics)]
        self._patterns = (
            self._past, self._past, self._two_acts, self._scene, self._plan, self._thought,
            self._had, self._speech, self._inventory, self._question, self._reason,
        )  # fmt: skip

    def title(self) -> str:
        adjective, thing = self._adjective().capitalize(), self._thing()
        return f"The {adjective} {thing.title()} of the {self._place().title()}"

    def paragraph(self, low: int = 3, high: int = 7) -> str:
        return " ".join(self.sentence() for _ in range(self._dice.between(low, high)))

    def article(self, paragraphs: int) -> str:
        return PARAGRAPH.join(self.paragraph() for _ in range(paragraphs))

    def sentence(self) -> str:
        text = self._dice.pick(self._patterns)()
        if self._dice.chance(0.08):
            text = f"{self._word('openers')}, {self._lowered(text)}"
        return text[0].upper() + text[1:]

    def _lowered(self, text: str) -> str:
        """Return a sentence as it stands behind others; names keep their capital."""
        is_name = text.split(maxsplit=1)[0].strip(",") in self._words["names"]
        return text if is_name else text[0].lower() + text[1:]

    def _past(self) -> str:
        where = f" {self._where()}" if self._dice.chance(0.6) else ""
        how = f" {self._word('adverbs')}" if self._dice.chance(0.5) else ""
        time = f"{self._word('times')}, " if self._dice.chance(0.5) else ""
        return f"{time}{self._who()} {past(self._word('verbs'))} {self._what()}{where}{how}."

    def _two_acts(self) -> str:
        link = self._dice.pick(("and", "and then", "but", "while"))
        return f"{self._act()} {self._word('adverbs')}, {link} {self._act()} {self._where()}."

    def _scene(self) -> str:
        state = self._word("states")
        return f"{self._word('times')} the {self._place()} was {state}, and {self._act()}."

    def _plan(self) -> str:
        wish = self._dice.pick(("wanted to", "hoped to", "had to", "was asked to", "promised to"))
        time = self._lowered(self._word("times"))
        return f"{self._who()} {wish} {self._word('verbs')} {self._what()} {self._where()} {time}."

    def _thought(self) -> str:
        return f"{self._word('thoughts')} {self._act()} {self._where()}."

    def _had(self) -> str:
        link, state = self._word("connectors"), self._word("states")
        done = past(self._word("verbs"))
        return f"{self._who()} had {done} {self._what()} {link} the {self._place()} was {state}."

    def _speech(self) -> str:
        who, what = self._who(), self._what()
        verb = self._word("verbs")
        how = self._word("adverbs")
        said = self._dice.pick(("said", "answered", "explained", "wrote", "whispered"))
        return f'"We will {verb} {what} {self._where()} {how}," {said} {who}.'

    def _inventory(self) -> str:
        first, second, third = self._thing(), self._thing(), self._thing()
        number, adjective = self._word("numbers"), self._adjective()
        place = self._where()
        return f"There were {number} {plural(first)}, {article(adjective)} {second} and {article(third)} {place}."

    def _question(self) -> str:
        verb = self._word("verbs")
        return f"Who would {verb} {self._what()} {self._where()} if {self._who()} had not {past(verb)} it?"

    def _reason(self) -> str:
        link = self._word("connectors")
        return f"{self._act()} {link} {self._act()} {self._where()}."

    def _act(self) -> str:
        return f"{self._who()} {past(self._word('verbs'))} {self._what()}"

    def _who(self) -> str:
        if self._dice.chance(0.3):
            return self._word("names")
        person = self._dice.pick(self._topic["people"])
        if self._dice.chance(0.3):
            return f"{article(self._adjective())} {person}"
        return f"the {person}"

    def _what(self) -> str:
        draw = self._dice.between(0, 5)
        if draw == 0:
            return f"{self._word('numbers')} {self._adjective()} {plural(self._thing())}"
        if draw == 1:
            return f"the {self._thing()} and the {self._thing()}"
        if draw == 2:
            return f"{article(self._adjective())} {self._thing()}"
        if draw == 3:
            return f"the {self._thing()} of {self._word('names')}"
        return f"the {self._adjective()} {self._thing()}"

    def _where(self) -> str:
        adjective = f"{self._adjective()} " if self._dice.chance(0.4) else ""
        return f"{self._word('prepositions')} the {adjective}{self._place()}"

    def _thing(self) -> str:
        pool = self._topic if self._dice.chance(0.85) else self._other
        return self._dice.pick(pool["things"])

    def _place(self) -> str:
        return self._dice.pick(self._topic["places"])

    def _adjective(self) -> str:
        return self._word("adjectives")

    def _word(self, kind: str) -> str:
        return self._dice.pick(self._words[kind])


class Translated:
    """Writes in another language, phrase by phrase."""

    def __init__(self, dice: Dice, language: str) -> None:
        self._dice, self._words = dice, PHRASES["other"][language]

    def sentence(self) -> str:
        pattern = self._dice.pick(self._words["patterns"])
        parts = {kind: self._dice.pick(self._words[f"{kind}s"])
                 for kind in ("subject", "verb", "object", "place", "time", "tail")}  # fmt: skip
        subject = parts["subject"]
        return pattern.format(Subject=subject[0].upper() + subject[1:], **parts)

    def article(self, paragraphs: int) -> str:
        return PARAGRAPH.join(
            " ".join(self.sentence() for _ in range(self._dice.between(4, 7)))
            for _ in range(paragraphs)
        )


def write_article(dice: Dice, language: str, paragraphs: int) -> str:
    """Return an article in one of LANGUAGES."""
    writer = English(dice) if language == "en" else Translated(dice, language)
    return writer.article(paragraphs)


def past(verb: str) -> str:
    """Return the past tense of a regular verb of the list."""
    if verb.endswith("y") and verb[-2] not in "aeo":
        return verb[:-1] + "ied"
    if verb == "wrap":
        return "wrapped"
    return verb + ("d" if verb.endswith("e") else "ed")


def plural(noun: str) -> str:
    """Return the plural of a regular noun of the list."""
    if noun.endswith("y") and noun[-2] not in "aeo":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def article(words: str) -> str:
    """Return the words with `a` or `an` in front."""
    is_vowel = words[0] in "aeio" or words.startswith(("un", "umb"))
    return f"{'an' if is_vowel and not words.startswith('uni') else 'a'} {words}"
