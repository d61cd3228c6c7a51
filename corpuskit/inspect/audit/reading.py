"""Finds the files of an audit, guesses the text column, and chooses what is read and analysed."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from corpuskit.engine.recipes import PARAMETERS, string_columns
from corpuskit.engine.settings import PipelineSettings
from corpuskit.errors import CorpuskitError, DataError, UsageError, listing, reason_of
from corpuskit.inspect.samples import marks_of
from corpuskit.stage import InputFile, Slice
from corpuskit.stages.sources.huggingface.files import ENDINGS, format_of
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from corpuskit.storage import find_files, find_objects, hub, is_remote, local_file, walk_files
from corpuskit.storage.search import WILDCARDS, matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corpuskit.stage import SourceBatch
    from corpuskit.stages.sources._columns import ColumnSource
    from corpuskit.storage import FoundFile

SAMPLE_BYTES, DOCUMENT_BYTES = 1_000_000_000, 500
"""Text that is analysed by default: 32 CPU s; less of short texts, since each costs as much as
500 bytes."""

READ_FACTOR = 2
"""Text that is read, as a multiple of what is analysed: more text has more copies of a document.
9 CPU s a gigabyte."""

SPARE = 1.2  # if all data is less than this multiple of the sample, all is analysed

PIECE_BYTES = 4 << 20
"""Text of a piece, that is chosen or not; of Parquet whole row groups, of .gz and .zst files."""

MOST_FILES, HUB_FILES = 400, 4
"""Files that are looked into where there are more, drawn at random; of the Hub each is fetched."""

LOOKED_AT = 8  # files of a format that are tried for their columns

MAX_DOCUMENT_BYTES: int = PipelineSettings.model_fields["max_document_bytes"].default

DEFAULT, ALL = "auto", "all"  # amounts to analyse: what takes less than 60 CPU s, and everything

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

KINDS: dict[str, type[ColumnSource]] = {"jsonl": Jsonl, "parquet": Parquet}
NAMES: dict[type[ColumnSource], str] = {Jsonl: "JSON lines", Parquet: "Parquet"}

BROKEN = (CorpuskitError, OSError, pa.ArrowException, UnicodeDecodeError)
"""What a file that cannot be read raises."""


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A file, or a part of one, that could not be read; `place` is the file."""

    place: str
    reason: str


@dataclasses.dataclass(frozen=True)
class AuditPiece:
    """A part of a file that is read, or not, as a whole."""

    file: InputFile
    source: ColumnSource
    bounds: Slice
    text_bytes: int


@dataclasses.dataclass
class Selection:
    """What is read.

    Attributes:
        pieces: those chosen, in reading order.
        piece_share: the share of all pieces that they are.
        kept_share: the share of the documents read that is analysed.
        text_bytes: about how much text all files that were looked into hold.
        read_bytes: about how much text the pieces hold.
        num_files, found_files: that were looked into, and that there are.
        file_bytes: size of those looked into.
        columns: formats, each with a column of the texts.
        unreadable: what could not be read so far.
    """

    pieces: list[AuditPiece]
    piece_share: float
    kept_share: float
    text_bytes: int
    read_bytes: int
    num_files: int
    found_files: int
    file_bytes: int
    columns: set[tuple[str, str]]
    unreadable: list[Unreadable]

    def batches(self) -> Iterator[tuple[int, SourceBatch]]:
        """Yield documents with the number of their piece; note what cannot be read, and go on."""
        for number, piece in enumerate(self.pieces):
            waiting, last = [piece.bounds], -1
            while waiting:
                bounds = waiting.pop(0)
                slices = [(piece.file, bounds)]
                try:
                    for batch in piece.source.read_keyed(slices, MAX_DOCUMENT_BYTES):
                        if not len(batch.positions) or batch.positions[0] > last:
                            yield number, batch
                            last = int(max([last, *batch.positions[-1:]]))
                except BROKEN as error:
                    if bounds.whole is not None and bounds.end - bounds.begin > 1:
                        waiting = [
                            dataclasses.replace(bounds, begin=group, end=group + 1)
                            for group in range(bounds.begin, bounds.end)
                        ]  # row group by row group, what was read not again
                        continue
                    reason = _reason(error, piece.file.path)
                    self.unreadable.append(Unreadable(piece.file.path, reason))

    def locate(self, piece: int, position: int) -> str:
        """Return file and row, or byte, of a document, for people."""
        piece_read = self.pieces[piece]
        unit = "row" if isinstance(piece_read.source, Parquet) else "byte"
        return f"{piece_read.file.name}: {unit} {position:,}"


def select(
    paths: Sequence[str], text_column: str | None = None, sample: str = DEFAULT, seed: int = 0
) -> Selection:
    """Return what an audit of some paths reads.

    Files, then pieces of them, are drawn at random by numbers that follow from `seed` and their
    order, each with the same chance, so that every document has the same chance, too.

    Args:
        paths: files, folders, patterns or addresses.
        text_column: of all files; None guesses it.
        sample: how much to analyse: `500MB`, `10%`, ALL or DEFAULT.
        seed: another one draws others.

    Raises:
        UsageError: there is nothing to read, or it is not clear which column is the text.
        DataError: no file can be read.
    """
    _sample_bytes(sample, 0)
    matched, num_found = _find(paths, seed, None if sample == ALL else HUB_FILES)
    if len(matched) > MOST_FILES and sample != ALL:
        matched = [matched[index] for index in _shuffled(len(matched), seed)[:MOST_FILES]]
    files = sorted((file for file in matched if file.size_bytes), key=lambda file: file.address)
    if not files:
        raise UsageError(f"{paths[0]}: the files are empty. Check the path.")
    num_found -= len(matched) - len(files)
    unreadable: list[Unreadable] = []
    sources = _sources(files, text_column, unreadable)
    pieces = _cut_all(files, sources, unreadable)
    total = sum(piece.text_bytes for piece in pieces)
    order = _shuffled(len(pieces), seed + 1)
    limit = _sample_bytes(sample, total)
    if sample == DEFAULT and total > SAMPLE_BYTES // 10:
        size = _mean_bytes(pieces[order[0]])
        limit = min(limit, int(SAMPLE_BYTES * size / (size + DOCUMENT_BYTES)))
    limit = total if total < SPARE * limit else limit
    sizes = np.cumsum([pieces[index].text_bytes for index in order])
    num = int(np.searchsorted(sizes, READ_FACTOR * limit)) + 1 if limit < total else len(order)
    read_bytes = int(sizes[:num][-1])
    return Selection(
        [pieces[index] for index in sorted(order[:num])],
        min(num / len(order), 1.0) * len(files) / num_found,
        min(limit / max(read_bytes, 1), 1.0), total, read_bytes, len(files), num_found,
        sum(file.size_bytes for file in files),
        {(NAMES[type(file)], file.text_column) for file in sources.values()}, unreadable,
    )  # fmt: skip


def _sample_bytes(sample: str, total: int) -> int:
    """Return how much of `total` bytes of text is to be analysed.

    Raises:
        UsageError: it is not an amount of data.
    """
    if sample in (DEFAULT, ALL):
        return total if sample == ALL else min(SAMPLE_BYTES, total)
    form = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KB|MB|GB|TB|%)", sample.strip().upper())
    number, unit = (float(form[1]), form[2]) if form else (0.0, "")
    if number <= 0 or (unit == "%" and number > 100):
        raise UsageError(f"--sample {sample!r}: is not an amount of data. Write 500MB, 10% or all.")
    return int(number / 100 * total if unit == "%" else min(number * _UNITS[unit], total))


def _mean_bytes(piece: AuditPiece) -> float:
    """Return about how long texts are: those of one batch."""
    try:
        batches = piece.source.read_keyed([(piece.file, piece.bounds)], MAX_DOCUMENT_BYTES)
        batch = next(iter(batches))
    except (*BROKEN, StopIteration):
        return DOCUMENT_BYTES
    return float(batch.texts.nbytes / max(len(batch.positions), 1))


def _shuffled(number: int, seed: int) -> list[int]:
    """Return 0 to `number` - 1 in an order that looks drawn at random."""
    order: list[int] = np.argsort(marks_of(np.arange(1, number + 1), seed)).tolist()
    return order


def _find(paths: Sequence[str], seed: int, limit: int | None) -> tuple[list[FoundFile], int]:
    """Return the files that paths name, and how many there are; of the Hub `limit` are fetched."""
    files: dict[str, FoundFile] = {}
    left_out = 0
    for path in paths:
        if path.startswith(hub.SCHEME):
            matched, num = _find_on_hub(path, seed, limit)
            left_out += num - len(matched)
        elif is_remote(path):
            is_one = WILDCARDS & set(path) or format_of(path)
            matched = find_objects(path if is_one else f"{path.rstrip('/')}/**")
            matched = matched if is_one else [m for m in matched if format_of(m.address)]
        elif os.path.isdir(path):
            matched = _find_in_folder(path)
        else:
            matched = find_files(path.removeprefix("file://"))
        if not matched:
            raise UsageError(f"no file matches {path!r}. Check the path.")
        for file in matched:
            files[file.address if is_remote(path) else os.path.abspath(file.address)] = file
    return list(files.values()), len(files) + left_out


def _find_in_folder(folder: str) -> list[FoundFile]:
    names = walk_files(folder)
    data_files = [name for name in names if format_of(name) in KINDS]
    # Beside data in other files, `.json` is a description of it.
    data_files = [name for name in data_files if not name.lower().endswith(".json")] or data_files
    if not data_files:
        endings = {os.path.splitext(name)[1] or name for name in names}
        contents = f"it has files ending in {listing(endings)}" if names else "it is empty"
        raise UsageError(
            f"{folder}: holds no file of a format that can be audited "
            f"({', '.join(ending for ending in ENDINGS if ENDINGS[ending] in KINDS)}): "
            f"{contents}. Name files of another ending one by one, or by a pattern."
        )
    return [local_file(os.path.join(folder, name)) for name in data_files]


def _find_on_hub(address: str, seed: int, limit: int | None) -> tuple[list[FoundFile], int]:
    location = hub.split(address)
    num = 0

    def choose(names: list[str], _: Any) -> list[str]:
        nonlocal num
        path = location.path.rstrip("/")
        names = sorted(
            name for name in names
            if format_of(name) in KINDS
            if not path or name.startswith(f"{path}/") or matches(name.split("/"), path.split("/"))
        )  # fmt: skip
        num = len(names)
        return names if limit is None else [names[i] for i in _shuffled(num, seed)[:limit]]

    return [file for file, _ in hub.fetch(location.dataset, location.revision, choose)], num


def _sources(
    files: Sequence[FoundFile], text_column: str | None, unreadable: list[Unreadable]
) -> dict[str, ColumnSource]:
    """Return address -> how to read it; the column of the text is that of the file, if it is known.

    Raises:
        UsageError: the column can be guessed in no file.
    """
    kinds: dict[str, tuple[str, str | None]] = {}
    num_seen: Counter[str] = Counter()
    unclear: list[UsageError] = []
    for file in files:
        kind, address, column = format_of(file.address), file.address, text_column
        num_seen[kind] += 1
        if kind not in KINDS or num_seen[kind] <= LOOKED_AT:
            try:
                look, names = string_columns(address)
            except UsageError:  # its first line is not a document; others may be
                look, names = "", None
            except BROKEN as error:
                unreadable.append(Unreadable(address, _reason(error, address)))
                continue
            kind = look if look in KINDS else kind
            if kind not in KINDS:
                problem = "is neither Parquet nor JSON lines (one object a line)"
                unreadable.append(Unreadable(address, problem))
                continue
            try:
                column = column or (names and _guess(address, names)) or None
            except UsageError as error:
                unclear.append(error)
                unreadable.append(Unreadable(address, _reason(error, address)))
                continue
        kinds[address] = kind, column
    columns = {kind: column for kind, column in reversed(kinds.values()) if column}
    if unclear and not columns:
        raise unclear[0]
    return {
        address: KINDS[kind](
            paths=(address,), text_column=column or columns.get(kind, "text"), extra=False
        )
        for address, (kind, column) in kinds.items()
    }


def _guess(address: str, names: Sequence[str]) -> str:
    """Return which column of strings is the text: one of the usual names, or the only one."""
    candidates = [name for name in PARAMETERS["text_column"] if name in names]
    if candidates or len(names) == 1:
        return (candidates or list(names))[0]
    raise UsageError(
        f"{address}: no column is called {' or '.join(PARAMETERS['text_column'])}; columns of "
        f"strings: {listing(names, 20)}. Say which one is the text: --text-column NAME."
    )


def _cut_all(
    files: Sequence[FoundFile], sources: Mapping[str, ColumnSource], unreadable: list[Unreadable]
) -> list[AuditPiece]:
    """Return the pieces of all files, in order.

    Raises:
        DataError: no file can be read.
    """
    prefix = os.path.commonprefix([file.address for file in files])  # noqa: RUF071 - of addresses
    root = len(prefix.rpartition("/")[0])
    pieces: list[AuditPiece] = []
    for ordinal, file in enumerate(files):
        if (source := sources.get(file.address)) is None:
            continue
        path, name = file.address, file.address[root:].lstrip("/")
        entry = InputFile(ordinal, "audit", path, name, file.size_bytes, file.stamp, file.state)
        try:
            if isinstance(source, Jsonl):
                source.check_files([path])
            pieces += [
                AuditPiece(entry, source, bounds, source.text_size(entry, bounds)[0])
                for bounds in source.slices(entry, PIECE_BYTES)
            ]
        except BROKEN as error:
            unreadable.append(Unreadable(path, _reason(error, path)))
    if not pieces:
        first = unreadable[0]
        rest_note = f" {len(files) - 1:,} other files neither." if len(files) > 1 else ""
        raise DataError(f"{first.place}: cannot be read: {first.reason}.{rest_note}")
    return pieces


def _reason(error: BaseException, path: str) -> str:
    """Return why a file cannot be read: without its name, and what only a pipeline can do."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    reason = reason_of(error).removeprefix("text_column: ").removeprefix(f"{path}: ")
    for advice in (" Set sources.audit", " Fetch ", " Take ", " Name another", " Rename ", " Say "):
        reason = reason.partition(advice)[0]
    return reason.rstrip(".")
