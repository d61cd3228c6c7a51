"""Labelled rows for `corpuskit classifier`: read, split, and shuffled."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import join_bytes

BATCH = 4096
"""Rows that are read or predicted at a time."""
BUCKETS = 32
"""Files that lines are scattered over, to shuffle them with 1/32 of their bytes in memory."""


class LabelledRow(NamedTuple):
    """A text, its true label, and the group (a source, a site) that it belongs to."""

    text: str
    label: str
    group: str = ""


@dataclass(frozen=True)
class Labelled:
    """Where labelled texts come from; each iteration reads them again, in order.

    Attributes:
        inputs: Parquet and JSONL files (.jsonl, .json, .ndjson, also .gz and .zst) with a column
            of labels. Numbers and booleans become strings, 1.0 becomes `1`; rows with a null are
            left out.
        sources: (label, file) of files whose texts all have that label; also .txt, a text a line.
        text_column: column of the texts.
        label_column: column of the labels; a label is one word.
        group_column: column of the groups; without one a row of `sources` belongs to its file.
    """

    inputs: tuple[Path, ...] = ()
    sources: tuple[tuple[str, Path], ...] = ()
    text_column: str = "text"
    label_column: str = "label"
    group_column: str | None = None

    def __iter__(self) -> Iterator[LabelledRow]:
        """Yield the rows.

        Raises:
            UsageError: a file is missing or of another kind, or there is none.
            DataError: a file is broken or lacks a column; names file and line.
        """
        if not self.inputs and not self.sources:
            raise UsageError("there are no labelled texts. Name files, or use --source LABEL=FILE.")
        group = [self.group_column] if self.group_column else []
        for path in self.inputs:
            for values in _records(path, [self.text_column, self.label_column, *group]):
                if None not in values:
                    yield LabelledRow(str(values[0]), _label(values[1]), *map(str, values[2:]))
        for label, path in self.sources:
            lines = _stem(path).endswith(".txt")
            records = _lines(path) if lines else _records(path, [self.text_column, *group])
            for values in records:
                if None not in values:
                    yield LabelledRow(str(values[0]), label, *(map(str, values[1:] or [path.name])))


@dataclass(frozen=True)
class Split:
    """Which rows are held out of training, to judge the model by.

    Attributes:
        share: of the texts, or with `by_group` of the groups, chosen by their hash, so that copies
            of a text stay together, and a larger share includes all rows of a smaller one.
        by_group: hold out whole groups: what is learned about a source then cannot help.
        groups: hold out exactly these groups.

    Raises:
        UsageError: the share is out of bounds, or both ways are given.
    """

    share: float = 0.0
    by_group: bool = False
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise UsageError(f"holdout must be at least 0 and below 1, got {self.share}.")
        if self.share and self.groups:
            raise UsageError("holdout and holdout-group exclude each other. Leave one out.")

    def __bool__(self) -> bool:
        return self.share > 0 or bool(self.groups)

    def holds_out(self, row: LabelledRow) -> bool:
        if self.groups:
            return row.group in self.groups
        return is_held_out(row.group if self.by_group else row.text, self.share)


def is_held_out(text: str, share: float) -> bool:
    """Say whether a text is among this share of all texts, by its hash."""
    return hashed_share(text) < share


def hashed_share(text: str) -> float:
    """Return the hash of a text as a number from 0 to below 1."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def read_texts(paths: Sequence[Path], text_column: str) -> Iterator[str]:
    """Yield texts that need no label.

    Raises:
        UsageError: a file is missing or of another kind.
        DataError: a file is broken or lacks the column.
    """
    for path in paths:
        lines = _stem(path).endswith((".txt", ".md"))
        for values in _lines(path) if lines else _records(path, [text_column]):
            if values[0] is not None:
                yield str(values[0])


def _stem(path: Path) -> str:
    return path.name.lower().removesuffix(".gz").removesuffix(".zst")


def _records(path: Path, columns: list[str]) -> Iterator[list[object]]:
    """Yield the values of some columns of a Parquet or JSONL file, row by row."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    if _stem(path).endswith((".jsonl", ".json", ".ndjson")):
        yield from _read_jsonl(path, columns)
    elif _stem(path).endswith((".parquet", ".pq")):
        yield from _read_parquet(path, columns)
    else:
        raise UsageError(f"{path}: must be .parquet or .jsonl, also .jsonl.gz or .jsonl.zst.")


def _read_parquet(path: Path, columns: list[str]) -> Iterator[list[object]]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for column in columns:
                if column not in file.schema_arrow.names:
                    _missing(str(path), column, file.schema_arrow.names)
            for batch in file.iter_batches(BATCH, columns=columns):
                values = [_values(batch.column(column)) for column in columns]
                yield from map(list, zip(*values, strict=True))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: is not a whole Parquet file: {error}.") from None


def _values(array: pa.Array[Any]) -> list[object]:
    """Return values; bytes that are not UTF-8 become U+FFFD, as in text files."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        raw = array.cast("large_binary").to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]


def _read_jsonl(path: Path, columns: list[str]) -> Iterator[list[object]]:
    for number, line in _raw_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: is not JSON: {error}.") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: must be a JSON object.")
        for column in columns:
            if column not in record:
                _missing(f"{path}:{number}", column, list(record))
        yield [record[column] for column in columns]


def _lines(path: Path) -> Iterator[list[object]]:
    for _, line in _raw_lines(path):
        if line.strip():
            yield [line.decode("utf-8", "replace").rstrip("\r\n")]


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file.")
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            yield from enumerate(io.BufferedReader(stream), 1)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None


def _missing(where: str, column: str, present: list[str]) -> None:
    raise DataError(
        f"{where}: column {column!r} is missing; has {', '.join(map(repr, present))}. "
        "Name yours by --text-column, --label-column or --group-column."
    )


def _label(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of integers with nulls is often one of floats
    return str(value).lower() if isinstance(value, bool) else str(value)


def buffers(texts: Sequence[str]) -> Utf8:
    """Lay texts out as buffers; lone surrogates become U+FFFD."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    cleaned = [raw.decode("utf-8", "replace").encode() for raw in encoded]
    return Utf8(*join_bytes(cleaned))


def write_shuffled(lines: Iterable[str], path: Path, seed: int) -> None:
    """Write lines in random order, the same for the same lines and seed.

    Lines are scattered over 32 files, and each is shuffled in memory: that is a uniform order, and
    memory holds 1/32 of the bytes.
    """
    rng = random.Random(seed)
    buckets = [path.with_suffix(f".{number}") for number in range(BUCKETS)]
    files = [
        bucket.open("w", encoding="utf-8", errors="replace", newline="\n") for bucket in buckets
    ]
    try:
        for line in lines:
            files[rng.randrange(BUCKETS)].write(line)
    finally:
        for file in files:
            file.close()
    with path.open("wb") as out:
        for bucket in buckets:
            content = bucket.read_bytes().split(b"\n")[:-1]
            rng.shuffle(content)
            out.writelines(line + b"\n" for line in content)
            bucket.unlink()
