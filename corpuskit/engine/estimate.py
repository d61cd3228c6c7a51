"""How much there will be to pack of each source, as long as it is not packed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.engine.needs import text_of_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal

PACK = "pack"
"""The phase that packs, called after its last stage."""


class Text(NamedTuple):
    """What there is of a source."""

    documents: int
    size_bytes: int


def estimate_counters(
    run: RunDirectory, seals: Mapping[str, Seal], width: int
) -> tuple[dict[str, int], list[str]]:
    """Return what `pack` will about count, and why it is a guess.

    Phases that are not finished are taken to do what they did when they were last sealed in this
    directory, or nothing.

    Args:
        seals: of the finished phases, by name.
        width: tokens per row.
    """
    sizes = text_of_sources(run)
    guessed = [name for name, (_, _, is_known) in sizes.items() if not is_known]
    text = {name: Text(documents, size) for name, (documents, size, _) in sizes.items()}
    unknown: dict[str, None] = {}
    as_before: dict[str, None] = {}
    for phase in run.plan.phases:
        labels = [label for label in phase.labels if label not in ("tokenize", PACK)]
        if phase.name in seals:
            guessed = [] if phase.is_stream else guessed
            text = _behind(phase, seals[phase.name].counters, text)
        elif labels:
            before = run.usable_seal(phase)
            (unknown if before is None else as_before).update(dict.fromkeys(labels))
            if before is not None and phase.name != PACK:
                text = _as_before(phase, before.counters, text)
        if phase.name == PACK:
            break
    notes = []
    if guessed:
        notes.append(f"the text of {names_of(guessed)} is guessed from the size of files")
    if unknown:
        what = names_of(unknown)
        notes.append(f"not run yet, taken to change nothing: {what}; what they drop adds epochs")
    if as_before:
        notes.append(f"to run again, taken to drop as much as last time: {names_of(as_before)}")
    counters, more = _packed(run, text, width)
    return counters, notes + more


def names_of(names: Iterable[str]) -> str:
    """Return names as a list for people, the first ones if there are many."""
    names = list(names)
    more = f" and {len(names) - 6} more" if len(names) > 7 else ""
    return ", ".join(names[:6] if more else names) + more


def _behind(phase: Phase, counters: Mapping[str, int], text: Mapping[str, Text]) -> dict[str, Text]:
    """Return what is left behind a finished phase."""
    if phase.is_stream:
        return {
            n: Text(counters.get(f"kept/{n}", 0), counters.get(f"kept_bytes/{n}", 0)) for n in text
        }
    lost: Counter[str] = Counter()
    for name, value in counters.items():
        if name.startswith("dropped/"):
            lost[name.rpartition("/")[2]] += value
    # Which documents a mask drops is known, how long they are is not: as long as the others.
    return {
        name: _share(one, one.documents - lost[name], one.documents) for name, one in text.items()
    }


def _as_before(
    phase: Phase, counters: Mapping[str, int], text: Mapping[str, Text]
) -> dict[str, Text]:
    """Return what will be left if a phase keeps the share that it kept before."""
    if not phase.is_stream:
        return _behind(phase, counters, text)
    kept = _behind(phase, counters, text)
    found = {}
    for name, one in text.items():
        read = counters.get(f"read_bytes/{name}", 0)
        found[name] = _share(kept[name], one.size_bytes, read) if read else one
    return found


def _share(text: Text, share: int, total: int) -> Text:
    return Text(*(max(value * share // max(total, 1), 0) for value in text))


def _packed(
    run: RunDirectory, text: Mapping[str, Text], width: int
) -> tuple[dict[str, int], list[str]]:
    """Return counters of rows and tokens, at least one each, and what they rest on.

    If this directory has packed all sources before, the phase that packs makes as much again of a
    byte that it reads: whatever it drops, copies and pads.
    """
    from corpuskit.stages.sequences._rows import TOKENS_PER_BYTE

    seal = run.usable_seal(next(phase for phase in run.plan.phases if phase.name == PACK))
    before = {} if seal is None else seal.counters
    counters: dict[str, int] = {}
    is_measured = True
    for name, one in text.items():
        read, made, padding, documents = (
            before.get(f"{key}/{name}", 0)
            for key in ("read_bytes", "tokens", "padding", "documents")
        )
        is_measured &= bool(read and made)
        if read and made:
            num = one.size_bytes * documents // read
            tokens, fill = one.size_bytes * made // read, made / (made + padding)
        else:
            num, tokens, fill = one.documents, round(one.size_bytes * TOKENS_PER_BYTE), 1.0
        counters |= {
            f"rows/{name}": math.ceil(max(tokens, 1) / width / fill),
            f"tokens/{name}": max(tokens, 1),
            f"documents/{name}": num,
            f"text_bytes/{name}": one.size_bytes,
        }
    if is_measured:
        return counters, ["tokens per byte of text as this directory packed them last"]
    notes = [f"{TOKENS_PER_BYTE} tokens per byte of text assumed"]
    if any(step.name == "upsample" for step in run.plan.file.steps):
        notes.append("copies of documents (upsample) are not counted")
    return counters, notes
