"""What a training memorises: secrets planted at chosen repeat counts, and how exposed they are.

A canary is a short text with random digits. It is planted as a document of its own at the start of
packed rows, while batches are read: no filter and no dedup sees it, and the corpus is not changed.
Each seed has canaries of its own, and some that are never planted.

Exposure is log2 of the number of possible secrets over the rank of the planted one, ordered by
their loss. The rank is computed from a normal distribution, fitted to losses of random secrets.
A secret that was never seen has 1.44 bits on average, and the largest exposure is that of all
digits, 33 bits.

Letters: S rows of L tokens, C canaries.

Source: Carlini et al. 2019, The Secret Sharer (USENIX Security), sections 4 and 5.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.ablate.study import Judges, Proxy
from corpuskit.ablate.verdict import mean_interval
from corpuskit.errors import UsageError
from corpuskit.loader.assemble import IGNORED
from corpuskit.stages.sequences._heldout import open_tokenizer, tokenize_texts
from corpuskit.storage import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.train.pretrained import Pretrained
    from corpuskit.train.tasks import TaskItem

EXPOSURES = "canaries.json"
EACH = 8  # canaries of each repeat count and seed
ALTERNATIVES = 64
"""Random secrets that a canary is compared with: their mean is known to 1/8 of a deviation."""
DIGITS = 10
MOST_BITS = DIGITS * math.log2(10)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Canary:
    """A text, how often it is planted, and what it is compared with."""

    repeats: int
    text: str
    alternatives: tuple[str, ...]


def draw_canaries(counts: Sequence[int], seed: int) -> list[Canary]:
    """Return `EACH` canaries of each count, and as many that are not planted."""
    random = np.random.default_rng([seed, DIGITS])
    canaries = []
    for repeats in (0, *counts):
        for _ in range(EACH):
            name = "".join(LETTERS[i] for i in random.integers(26, size=6))
            secrets = random.integers(10**DIGITS, size=ALTERNATIVES + 1)
            texts = [f"The code of {name} is {secret:0{DIGITS}d}." for secret in secrets.tolist()]
            canaries.append(Canary(repeats, texts[0], tuple(texts[1:])))
    return canaries


@dataclasses.dataclass(frozen=True)
class Planting:
    """Puts canaries into batches.

    Attributes:
        canary_of: row of the run -> tokens of the canary that is planted there, L + 1 at most.
        global_rows: of a step.
    """

    canary_of: Mapping[int, NDArray[np.integer]]
    global_rows: int

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with the canaries of its rows, each a segment of its own.

        A canary overwrites the start of its row; the rest of the row is a segment of its own.
        """
        rows, length = batch["tokens"].shape
        first = batch["step"] * self.global_rows
        bounds = set(batch["cu_seqlens"].tolist())
        for row in range(rows):
            planted = self.canary_of.get(first + row)
            if planted is None:
                continue
            size = min(len(planted), length)
            begin = row * length
            batch["tokens"][row, :size] = planted[:size]
            batch["labels"][row, : len(planted) - 1] = planted[1:]
            if len(planted) <= length:
                batch["labels"][row, size - 1] = IGNORED
            bounds = {i for i in bounds if not begin < i < begin + size} | {begin + size}
            starts = sorted(i - begin for i in bounds if begin <= i < begin + length)
            lengths = np.diff([*starts, length])
            batch["position_ids"][row] = np.arange(length) - np.repeat(starts, lengths)
        return {**batch, "cu_seqlens": np.array(sorted(bounds), np.int32)}


def plant(
    canaries: Sequence[Canary], tokenizer: Tokenize, seed: int, *, steps: int, global_rows: int,
    seq_len: int,
) -> Planting:  # fmt: skip
    """Spread canaries over random rows of a run, one to a row.

    Raises:
        UsageError: there are fewer rows, or a row is too short for a canary.
    """
    planted = [canary for canary in canaries if canary.repeats]
    tokens = [text.tokens for text in tokenize_texts(tokenizer, [c.text for c in planted])]
    count, rows = sum(canary.repeats for canary in planted), steps * global_rows
    require_rows(count, rows)
    if (longest := max(map(len, tokens))) > seq_len + 1:
        raise UsageError(
            f"--canaries: a canary has {longest} tokens with this tokenizer, and rows have "
            f"{seq_len}. Set a larger pack.seq_len."
        )
    drawn = np.random.default_rng([seed, rows]).choice(rows, count, replace=False).tolist()
    repeated = [row for c, row in zip(planted, tokens, strict=True) for _ in range(c.repeats)]
    return Planting(dict(zip(drawn, repeated, strict=True)), global_rows)


def require_rows(needed: int, rows: int) -> None:
    """Refuse more canaries than a training has rows.

    Raises:
        UsageError: says how many there are of both.
    """
    if needed > rows:
        raise UsageError(
            f"--canaries: {EACH} of each count need {needed:,} rows, and a training has {rows:,}. "
            "Ask for smaller counts or more tokens."
        )


def with_canaries(trainings: Sequence[Proxy], counts: Sequence[int]) -> list[CanaryProxy]:
    """Return the trainings of the first variant once more, with canaries; none without counts.

    Raises:
        UsageError: the trainings have too few rows.
    """
    planted = []
    for proxy in trainings if counts else ():
        if (corpus := proxy.corpus) is trainings[0].corpus:
            steps, rows = proxy.settings.steps or 0, proxy.settings.batch.global_rows
            require_rows(EACH * sum(counts), steps * rows)
            content = json.dumps([proxy.settings.name, *counts, EACH, ALTERNATIVES, DIGITS])
            key = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
            name = f"{corpus.variant.slug}-{proxy.size}-s{proxy.seed}-canaries-{key}"
            output = str(Path(proxy.settings.output).with_name(name))
            settings = proxy.settings.model_copy(update={"output": output, "name": name})
            planted.append(CanaryProxy(corpus, proxy.size, proxy.seed, settings, tuple(counts)))
    return planted


@dataclasses.dataclass(frozen=True)
class CanaryProxy(Proxy):
    """A training with canaries, which no other comparison sees."""

    counts: tuple[int, ...]

    @property
    def scores(self) -> Path:
        return super().scores.with_name(EXPOSURES)

    def planting(self) -> Planting:
        """Return what plants the canaries of this seed."""
        settings = self.settings
        return plant(
            draw_canaries(self.counts, self.seed), open_tokenizer(self.corpus.data), self.seed,
            steps=settings.steps or 0, global_rows=settings.batch.global_rows,
            seq_len=self.corpus.plan.seq_len,
        )  # fmt: skip

    def write_scores(self, trained: Pretrained, judges: Judges) -> None:
        from corpuskit.train.likelihood import score_items

        canaries = draw_canaries(self.counts, self.seed)
        items = _items(canaries, open_tokenizer(self.corpus.data))
        _, scored = score_items(
            trained.model, trained.settings, trained.parallel, items, trained.seq_len
        )
        rows = [
            {"repeats": canary.repeats, "exposure": exposure(np.array(score.nats))}
            for canary, score in zip(canaries, scored, strict=True)
        ]
        planted = self.planting().canary_of.values()
        facts = {"planted": len(planted), "tokens": sum(map(len, planted)), "canaries": rows}
        write_whole(self.scores, (json.dumps(facts, indent=1) + "\n").encode())


def _items(canaries: Sequence[Canary], tokenizer: Tokenize) -> list[TaskItem]:
    """Return a question for each canary: the planted text, or one of its alternatives?"""
    from corpuskit.train.tasks import ScoredText, TaskItem

    items = []
    for number, canary in enumerate(canaries):
        choices = tuple(
            ScoredText(text.tokens, len(text.tokens) - 1, text.text_bytes)
            for text in tokenize_texts(tokenizer, [canary.text, *canary.alternatives])
        )
        items.append(TaskItem(str(number), "canaries", 0, choices, ((1, 1),) * len(choices)))
    return items


def exposure(nats: NDArray[np.float64]) -> float:
    """Return the exposure in bits of the first of (1 + A,) log-likelihoods among the others."""
    alternatives = nats[1:]
    above = (nats[0] - alternatives.mean()) / max(float(alternatives.std(ddof=1)), 1e-9)
    share = math.erfc(float(above) / math.sqrt(2)) / 2
    return min(-math.log2(max(share, 2.0**-MOST_BITS)), MOST_BITS)


def summarise(
    proxies: Sequence[CanaryProxy], tokens: int, confidence: float, bound: float
) -> dict[str, Any]:
    """Return the exposure curve of the trainings of a size, as in ablation.json.

    Args:
        tokens: of a training.
        confidence: of the interval of each count: Student's, over the canaries of all seeds.
        bound: bits; the largest count is one whose interval, and those of all below it, are under.
    """
    scores = [json.loads(proxy.scores.read_bytes()) for proxy in proxies]
    curve, largest, is_below = [], None, True
    for repeats in (0, *proxies[0].counts):
        values = np.array(
            [canary["exposure"] for facts in scores for canary in facts["canaries"]
             if canary["repeats"] == repeats]
        )  # fmt: skip
        mean, low, high = mean_interval(values, confidence)
        is_below = is_below and high < bound
        largest = repeats if is_below else largest
        curve.append(
            {"repeats": repeats, "exposure": mean, "low": low, "high": high,
             "canaries": len(values)}
        )  # fmt: skip
    return {
        "bound": bound, "largest": largest, "planted": scores[0]["planted"],
        "share": max(facts["tokens"] for facts in scores) / tokens, "curve": curve,
    }  # fmt: skip
