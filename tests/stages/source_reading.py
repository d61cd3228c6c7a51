"""Reads files through a source, as the runner does, and lays the batches out as plain values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from corpuskit.stage import InputFile

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.stage import Slice, Source, SourceBatch

MOST = 1 << 20


@dataclasses.dataclass
class Reading:
    """All documents and rejects of a file: what must not depend on slices or batches."""

    documents: list[dict[str, Any]]
    rejects: list[tuple[int, str]]
    values: list[tuple[float, float]]
    heads: list[str | None]
    replaced: list[int]

    @property
    def texts(self) -> list[str]:
        return [document["text"] for document in self.documents]


def input_file(path: Path) -> InputFile:
    return InputFile(0, "web", str(path), path.name, path.stat().st_size, "")


def batches(
    source: Source, path: Path, target: int = 1 << 26, most: int = MOST
) -> list[SourceBatch]:
    file = input_file(path)
    found = []
    for piece in source.slices(file, target):
        found += list(source.read(file, piece, most))
    return found


def read(source: Source, path: Path, target: int = 1 << 26, most: int = MOST) -> Reading:
    """Read all slices of a file, one after another."""
    reading = Reading([], [], [], [], [])
    for batch in batches(source, path, target, most):
        add(reading, batch)
    return reading


def read_slice(source: Source, path: Path, piece: Slice, most: int = MOST) -> Reading:
    reading = Reading([], [], [], [], [])
    for batch in source.read(input_file(path), piece, most):
        add(reading, batch)
    return reading


def add(reading: Reading, batch: SourceBatch) -> None:
    batch.texts.validate(full=True)
    assert batch.texts.null_count == 0
    columns = {"text": batch.texts, "id": batch.ids, "url": batch.urls, "date": batch.dates}
    columns |= {"extra": batch.extra, **batch.columns}
    for row, position in enumerate(batch.positions.tolist()):
        document = {"position": position}
        for name, column in columns.items():
            if column is not None:
                assert len(column) == len(batch.positions), name
                document[name] = column[row].as_py()
        reading.documents.append(document)
    for reject in batch.rejects:
        reading.rejects.append((reject.position, reject.rule))
        reading.values.append((reject.value, reject.threshold))
        reading.heads.append(reject.text)
    reading.replaced += [int(batch.positions[row]) for row in batch.replaced]
