"""Which input files of one run are which of another."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stage import InputFile


@dataclasses.dataclass(frozen=True)
class Pairing:
    """The input files of two runs.

    Attributes:
        pairs: files of the same source and name, read alike: documents are matched by where they
            stand in them.
        by_id: source -> its other files in either run, whose documents are matched by their ids.
        only_a, only_b: files that the other run has nothing for.
        notes: what had to be taken for granted.
    """

    pairs: tuple[tuple[InputFile, InputFile], ...]
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]]
    only_a: tuple[InputFile, ...]
    only_b: tuple[InputFile, ...]
    notes: tuple[str, ...]


def pair_files(one: RunDirectory, other: RunDirectory, source: str = "") -> Pairing:
    """Return the pairing of the input files of two runs.

    Args:
        source: of one source only.
    """
    files_a, files_b = (
        {(f.source, f.name): f for f in run.inputs.files if source in ("", f.source)}
        for run in (one, other)
    )
    pairs: list[tuple[InputFile, InputFile]] = []
    rest_a: dict[str, list[InputFile]] = {}
    rest_b: dict[str, list[InputFile]] = {}
    changed: dict[str, int] = {}
    for place, file in files_a.items():
        match = files_b.get(place)
        is_same = match is not None and (file.size_bytes, file.stamp) == (
            match.size_bytes, match.stamp
        )  # fmt: skip
        if match is not None and not is_same:
            changed[file.source] = changed.get(file.source, 0) + 1
        if match is None or not (is_same or not _has_ids(one, other, file.source)):
            rest_a.setdefault(file.source, []).append(file)
            if match is not None:
                rest_b.setdefault(file.source, []).append(match)
        else:
            pairs.append((file, match))
    for place, file in files_b.items():
        if place not in files_a:
            rest_b.setdefault(file.source, []).append(file)
    both = sorted(rest_a.keys() & rest_b.keys())
    by_id = {name: (rest_a.pop(name), rest_b.pop(name))
             for name in both if _has_ids(one, other, name)}  # fmt: skip
    only_a, only_b = (
        tuple(f for files in rest.values() for f in files) for rest in (rest_a, rest_b)
    )
    notes = _notes(one, other, by_id, changed, sorted({file.source for file, _ in pairs}))
    return Pairing(tuple(pairs), by_id, only_a, only_b, tuple(notes))


def _has_ids(one: RunDirectory, other: RunDirectory, source: str) -> bool:
    """Return whether the documents of a source have ids of their own in both runs."""
    for run in (one, other):
        stages = [s.stage for s in run.plan.file.sources if s.label == source]
        if not stages:
            return False
        if not (getattr(stages[0], "id_column", None) or getattr(stages[0], "ids", "") == "record"):
            return False
    return True


def _notes(
    one: RunDirectory, other: RunDirectory,
    by_id: dict[str, tuple[list[InputFile], list[InputFile]]], changed: dict[str, int],
    paired: Sequence[str],
) -> list[str]:  # fmt: skip
    notes = [
        f"{name}: {len(left)} and {len(right)} files are not the same in both runs; their "
        "documents are matched by their ids."
        for name, (left, right) in by_id.items()
    ]
    notes += [
        f"{name}: {count} files have another size or date than in the other run, and their "
        "documents have no ids: they are matched by where they stand in the file."
        for name, count in changed.items()
        if name not in by_id
    ]
    for name in paired:
        steps = [next(s for s in run.plan.file.sources if s.label == name) for run in (one, other)]
        params = [(s.name, s.stage.model_dump(exclude={"paths", "columns"})) for s in steps]
        if params[0] != params[1]:
            notes.append(
                f"{name}: the runs read it with other parameters, so that documents at the same "
                "place of a file may not be the same."
            )
    return notes
