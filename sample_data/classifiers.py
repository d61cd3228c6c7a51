"""Make the two tiny classifiers of this folder, to try the stages `quality` and `toxicity` on.

    python sample_data/classifiers.py

`quality.ftz` tells sentences as `prose.py` makes them from navigation and lists; `toxicity.ftz`
tells rude remarks from friendly ones. All texts are put together here from word lists, so the
models know nothing of the world: they are for examples and tests, not for use.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.stages.annotators._classifier import Shrink, train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings
from corpuskit.stages.annotators._labelled import LabelledRow

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
TEXTS = 1500
SETTINGS = ClassifierSettings(
    dim=8, epochs=5, lr=0.5, minn=2, maxn=4, buckets=2000, min_count=1_000_000
)

SUBJECTS = (
    "the old captain", "my neighbour", "a young clerk", "the committee", "her brother", "we",
    "the teacher", "a quiet visitor", "the whole village", "they", "the second author", "I",
)  # fmt: skip
VERBS = (
    "had repaired", "described", "carried", "measured", "has written about", "looked for",
    "explained", "remembered", "brought back", "finished", "opened", "compared",
)  # fmt: skip
OBJECTS = (
    "the lantern", "a small wooden boat", "the results of the survey", "an atlas", "the garden",
    "the letter", "the last chapter", "a map of the valley", "the machine", "the bread",
)  # fmt: skip
ENDS = (
    "before the ferry left for the other side.", "when the rain had stopped.", "in the spring.",
    "because nobody else had the time.", "as the season allowed.", "and went home late.",
    "while the others were waiting.", "without saying a word about it.", "at the end of the road.",
)  # fmt: skip
LINKS = (
    "Home", "Products", "Contact", "Login", "Register", "Privacy policy", "Terms of use", "Sitemap",
    "About us", "Next page", "Read more", "Share", "Tweet", "Print", "Subscribe", "FAQ", "Search",
    "Add to cart", "Click here", "Cookies", "All rights reserved", "Back to top", "Download", "RSS",
)  # fmt: skip
RUDE = (
    "you are a stupid idiot", "shut up, you moron", "nobody wants to read your pathetic garbage",
    "what a dumb, worthless loser", "go away, you disgusting creep", "you are an ignorant fool",
    "your work is rubbish and so are you", "stupid people like you ruin everything",
)  # fmt: skip
FRIENDLY = (
    "thank you for the careful review", "I have changed the second paragraph as you asked",
    "could you please look at the table again", "the source is named in the first note",
    "that is a good point, and well put", "welcome, and let me know if I can help",
    "I agree with you about the title", "sorry for the delay, here is the answer",
)  # fmt: skip


def prose(rng: random.Random) -> str:
    """Return one to four sentences."""
    made = []
    for _ in range(rng.randint(1, 4)):
        parts = (rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS), rng.choice(ENDS))
        made.append(" ".join(parts).capitalize())
    return " ".join(made)


def navigation(rng: random.Random) -> str:
    """Return what surrounds the text of a web page."""
    mark = rng.choice((" | ", " > ", " - ", "\n", " / "))
    return mark.join(rng.choice(LINKS) for _ in range(rng.randint(3, 14)))


def remarks(phrases: tuple[str, ...]) -> Callable[[random.Random], str]:
    """Return a maker of remarks from one to three of the phrases."""

    def make(rng: random.Random) -> str:
        said = ". ".join(rng.choice(phrases) for _ in range(rng.randint(1, 3)))
        return said.upper() if rng.random() < 0.1 else said[0].upper() + said[1:] + "."

    return make


def main() -> None:
    """Write both models."""
    kinds = {
        "quality.ftz": {"prose": prose, "other": navigation},
        "toxicity.ftz": {"toxic": remarks(RUDE), "fine": remarks(FRIENDLY)},
    }
    for name, makers in kinds.items():
        rng = random.Random(0)
        rows = [
            LabelledRow(make(rng), label) for label, make in makers.items() for _ in range(TEXTS)
        ]
        report = train_classifier(rows, FOLDER / name, SETTINGS, shrink=Shrink(quantize=True))
        print(f"{name}: {report.size_bytes:,} bytes")


if __name__ == "__main__":
    main()
