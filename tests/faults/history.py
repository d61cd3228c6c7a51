"""Histories of edits: which sources there are, in which order, of which files, again and again.

A run directory that has lived through a history must end as a fresh one does.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENTS = 60
SOURCES = ("web", "books", "news", "code")
EDITS = ("plain", "plain", "words", "ngram", "mask", "length", "parts", "delete")

Files = dict[str, dict[str, tuple[int, ...]]]
"""Source -> name of a file -> which documents of the pool are in it."""


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The sources in their order with their files, and which variant of the stages runs."""

    files: Files
    edit: str


@functools.cache
def history(seed: int) -> tuple[Arrangement, ...]:
    """Return two to four arrangements, each a small edit of the one before it."""
    rng = random.Random(f"history {seed}")
    files: Files = {}
    for name in rng.sample(SOURCES, rng.randint(1, 3)):
        files[name] = {_name(rng, {}): _documents(rng) for _ in range(rng.randint(1, 3))}
    steps = [Arrangement(files, "plain")]
    for _ in range(rng.randint(1, 3)):
        files = {source: dict(held) for source, held in steps[-1].files.items()}
        for _ in range(rng.choice((1, 1, 2))):
            files = rng.choice(CHANGES)(rng, files)
        steps.append(Arrangement(files, rng.choice(EDITS)))
    return tuple(steps)


def _documents(rng: random.Random) -> tuple[int, ...]:
    """Draw the documents of a file; two files, of one source or two, may share some."""
    first = rng.randrange(DOCUMENTS)
    return tuple((first + i) % DOCUMENTS for i in range(rng.randint(8, 14)))


def _name(rng: random.Random, others: dict[str, tuple[int, ...]]) -> str:
    return rng.choice([f"{one}.jsonl" for one in "abcdefgh" if f"{one}.jsonl" not in others])


def _place(rng: random.Random, files: Files) -> tuple[str, str]:
    source = rng.choice(sorted(files))
    return source, rng.choice(sorted(files[source]))


def _swap(rng: random.Random, files: Files) -> Files:
    names = rng.sample(list(files), len(files))
    return {name: files[name] for name in names}


def _add_source(rng: random.Random, files: Files) -> Files:
    """Add a source, often with the documents of another one, anywhere in the order."""
    spare = [name for name in SOURCES if name not in files]
    if not spare:
        return files
    held = rng.choice((_documents(rng), files[_place(rng, files)[0]].popitem()[1]))
    files = {source: some or {"z.jsonl": _documents(rng)} for source, some in files.items()}
    return _swap(rng, {**files, rng.choice(spare): {_name(rng, {}): held}})


def _remove_source(rng: random.Random, files: Files) -> Files:
    if len(files) > 1:
        files.pop(rng.choice(sorted(files)))
    return files


def _add_file(rng: random.Random, files: Files) -> Files:
    held = files[rng.choice(sorted(files))]
    held[_name(rng, held)] = _documents(rng)
    return files


def _remove_file(rng: random.Random, files: Files) -> Files:
    source, name = _place(rng, files)
    if len(files[source]) > 1:
        files[source].pop(name)
    return files


def _move_file(rng: random.Random, files: Files) -> Files:
    """Rename a file, perhaps into another source."""
    source, name = _place(rng, files)
    other = rng.choice((source, rng.choice(sorted(files))))
    if other == source or len(files[source]) > 1:
        files[other][_name(rng, files[other])] = files[source].pop(name)
    return files


def _swap_names(rng: random.Random, files: Files) -> Files:
    (one, first), (other, second) = _place(rng, files), _place(rng, files)
    files[one][first], files[other][second] = files[other][second], files[one][first]
    return files


def _rewrite_file(rng: random.Random, files: Files) -> Files:
    source, name = _place(rng, files)
    files[source][name] = _documents(rng)
    return files


CHANGES: tuple[Callable[[random.Random, Files], Files], ...] = (
    _swap, _swap, _add_source, _remove_source, _add_file, _remove_file, _move_file, _swap_names,
    _rewrite_file,
)  # fmt: skip
