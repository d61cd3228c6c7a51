"""What new chunks split into: the answers to the questions of `split.py`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bytes, Int32s, Int64s, Uint64s
from corpuskit.kernels.jit import kernel, packed_kernel
from corpuskit.kernels.words.english import Rules, SplitScratch, split_chunk
from corpuskit.kernels.words.lexicon import Records, append_record
from corpuskit.kernels.words.split import COUNT_BITS, POSITION, TOUCHY, VALUE, Questions

WHOLE, ASK, RULES = 0, 1, 2
"""How a new chunk is split: not at all; by the caller; by the rules, else by the caller."""

UNKNOWN = -1


class LearnedWords(NamedTuple):
    """The answers to n questions.

    Attributes:
        firsts: (n,) int64 number of the first word.
        counts: (n,) int64 how many words; UNKNOWN without an answer.
        touchy: (n,) uint8: 1 if the chunk may lose a special case to its neighbour.
    """

    firsts: Int64s
    counts: Int64s
    touchy: Bytes


def no_answers(num: int) -> LearnedWords:
    """Return no answers yet."""
    return LearnedWords(
        np.zeros(num, np.int64), np.full(num, UNKNOWN, np.int64), np.zeros(num, np.uint8)
    )


@packed_kernel
def learn(
    data: Bytes,
    first_question: int,
    splitter: int,
    rules: Rules,
    records: Records,
    scratch: SplitScratch,
    queue: Questions,
    learned: LearnedWords,
) -> None:
    """Answer the questions from `first_question` on that the rules can answer.

    Args:
        data: the texts.
        first_question: questions before it are answered.
        splitter, rules: WHOLE or RULES; the rules.
        records: a lexicon with space for all bytes of the questions.
        scratch: for the longest chunk.
        queue, learned: see their classes; `learned` begins with `first_question`.
    """
    ends = scratch.ends
    for question in range(first_question, queue.used[0]):
        if queue.slots[question] < 0:
            continue
        start, stop = queue.spans[question, 0], queue.spans[question, 1]
        count = 1
        if splitter == RULES:
            count = split_chunk(data, start, stop, rules, scratch)
        else:
            ends[0] = stop - start
        index = question - first_question
        if count < 0:
            continue
        learned.firsts[index], learned.counts[index] = records.used[0], count
        pos = start
        for word in range(count):
            append_record(records, data, pos, start + ends[word])
            pos = start + ends[word]


@kernel
def answer(
    slots: Uint64s, records: Records, queue: Questions, first_question: int, learned: LearnedWords
) -> None:
    """Write answers into the slots of questions from `first_question` on."""
    for question in range(first_question, queue.used[0]):
        if queue.slots[question] >= 0:
            slot, index = np.uint64(queue.slots[question]), question - first_question
            first, count = learned.firsts[index], learned.counts[index]
            value = np.uint64(first) | (np.uint64(count) << COUNT_BITS)
            slots[slot + VALUE] = value | (TOUCHY if learned.touchy[index] else np.uint64(0))
            slots[slot + POSITION] = np.uint64(records.starts[first])


@kernel
def _expanded_offsets(
    offsets: Int64s, tokens: Int32s, learned: LearnedWords, is_touched: Bytes, out_offsets: Int64s
) -> None:
    """Fill `out_offsets` with the offsets of words when all questions are answered."""
    counts, touchy = learned.counts, learned.touchy
    num = np.int64(0)
    for row in range(len(offsets) - 1):
        for index in range(offsets[row], offsets[row + 1]):
            token = tokens[index]
            if token >= 0:
                num += 1
            else:
                num += counts[-1 - token]
                is_touched[row] |= touchy[-1 - token]
        out_offsets[row + 1] = num


@kernel
def _expand(size: int, tokens: Int32s, learned: LearnedWords, out: Int32s) -> None:
    firsts, counts = learned.firsts, learned.counts
    num = 0
    for index in range(size):
        token = tokens[index]
        if token >= 0:
            out[num] = token
            num += 1
            continue
        question = -1 - token
        for word in range(counts[question]):
            out[num] = firsts[question] + word
            num += 1


def expand(offsets: Int64s, tokens: Int32s, learned: LearnedWords) -> tuple[Int64s, Int32s, Int64s]:
    """Return offsets and tokens with questions replaced by their answers, and texts to split again.

    Those are the texts, ascending, in which a new chunk may lose a special case to its neighbour.
    """
    is_touched = np.zeros(len(offsets) - 1, np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    _expanded_offsets(offsets, tokens, learned, is_touched, out_offsets)
    out = np.empty(int(out_offsets[-1]), np.int32)
    _expand(int(offsets[-1]), tokens, learned, out)
    return out_offsets, out, np.flatnonzero(is_touched)
