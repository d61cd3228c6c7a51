"""JSON lines."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.formats.batch import large_strings, utf8
from corpuskit.kernels.arrays import Bools, Bytes, Int64s, frozen, join_bytes
from corpuskit.stage import InputFile, Reject, Slice, SourceBatch
from corpuskit.stages.sources._columns import BrokenRules, ColumnSource, not_utf8, pick
from corpuskit.stages.sources._json import (
    BLANK,
    BOOL,
    FLOAT,
    INTEGER,
    MISSING,
    NESTED,
    NULL,
    STRING,
    UNPARSED,
    LineFields,
    parse_lines,
    read_integers,
    unescape,
)
from corpuskit.stages.sources._records import HEAD_BYTES, LINES, RecordBlock, cut_file, read_blocks
from corpuskit.stages.sources._stream import InputStream, estimate_text

LINE_FACTOR, LINE_SLACK = 3, 1 << 20
"""A line may have this many times the bytes of the longest document, and this much more."""


class Jsonl(ColumnSource):
    """Read JSON lines, plain, .gz or .zst: one object per line, one member of it is the text.

    Use it for web crawls and dataset exports. Plain files are cut into byte ranges that are read in
    parallel; a compressed file is one piece of work, so prefer files of about 100 MB.

    A line becomes a row of the ledger instead of a document if it is not UTF-8 (`invalid_utf8`),
    not a JSON object or nested deeper than 60 levels (`bad_json`), if the text is missing or not a
    string (`bad_text`), if the text has more than `max_document_bytes`, or the line more than three
    times as many and 1 MiB (`too_long`), or if the value of a declared column has another type
    (`bad_column`). Missing values and null are null; an integer is valid as float64; ids, URLs and
    dates may be numbers. Lone surrogates become U+FFFD (`lone_surrogate`, kept). Blank lines are
    skipped, byte order marks removed. Other members are kept as written; in lines that only
    Python's json module reads (NaN, equal names, escaped names), NaN and infinities become null. If
    a member that a parameter names is in none of the first lines, or has another type there, the
    plan is refused.

    Source: RFC 8259 (JSON), jsonlines.org; RFC 1952 (gzip) and RFC 8878 (zstd), several members or
    frames per file included.
    """

    text_speed: ClassVar[float] = 300e6
    rules: ClassVar[tuple[str, ...]] = (
        "bad_json",
        "bad_text",
        "bad_column",
        "invalid_utf8",
        "too_long",
        "lone_surrogate",
    )

    def text_size(self, file: InputFile, piece: Slice) -> tuple[int, bool]:
        return estimate_text(file, piece, self.max_expansion)

    def check_files(self, paths: Sequence[str]) -> None:
        expected = {
            name: ExpectedMember(role, *LABEL) for role, name in self.labels.items() if name
        }
        expected |= {
            name: ExpectedMember("columns", *TYPES[kind]) for name, kind in self.columns.items()
        }
        check_members(paths, {**expected, self.text_column: ExpectedMember("text_column", *TEXT)})

    def slices(self, file: InputFile, target_bytes: int) -> list[Slice]:
        return cut_file(file, target_bytes)

    def read_keyed(
        self, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
    ) -> Iterator[SourceBatch]:
        limit = LINE_FACTOR * max_document_bytes + LINE_SLACK
        for block in read_blocks(pieces, limit, LINES, self.max_expansion):
            yield self._batch(block, max_document_bytes)

    def _batch(self, block: RecordBlock, max_bytes: int) -> SourceBatch:
        labels = self.labels.values()
        columns_and_labels = [self.text_column, *(name for name in labels if name), *self.columns]
        names = list(dict.fromkeys(columns_and_labels))
        members = Members(block, names, with_extra=self.extra)
        broken = BrokenRules(self.rules, len(block))
        broken.mark(None, members.states == BLANK)
        broken.mark("invalid_utf8", members.states == INVALID)
        broken.mark("bad_json", members.states == UNPARSED)
        texts = members.texts()
        sizes = utf8(texts).sizes()
        broken.mark("bad_text", members.kinds(0) != STRING)
        broken.mark("too_long", sizes > max_bytes)
        columns: dict[str, pa.Array] = {}
        for name, kind in self.declared().items():
            columns[name], is_bad = members.typed(names.index(name), kind)
            broken.mark("bad_column", is_bad)
        label_arrays: list[pa.Array | None] = [None, None, None]
        for index, label in enumerate(labels):
            if label:
                slot = names.index(label)
                label_arrays[index] = members.strings(slot).cast(pa.string())
                broken.mark("bad_column", np.isin(members.kinds(slot), (BOOL, NESTED)))
        is_kept = broken.codes == 0
        rows = pa.array(np.flatnonzero(is_kept))
        ids, urls, dates = (pick(array, rows, len(block)) for array in label_arrays)
        return SourceBatch(
            positions=block.positions[is_kept],
            texts=pick(texts, rows, len(block)),
            ids=ids,
            columns={name: pick(array, rows, len(block)) for name, array in columns.items()},
            urls=urls,
            dates=dates,
            extra=pick(members.extra(), rows, len(block)) if self.extra else None,
            rejects=tuple(_rejects(block, broken, texts, sizes, max_bytes, label_arrays[0])),
            replaced=tuple(np.flatnonzero(members.replaced[is_kept]).tolist()),
            size_bytes=block.size_bytes,
        )


def _rejects(
    block: RecordBlock, broken: BrokenRules, texts: pa.Array, sizes: Int64s, max_bytes: int,
    ids: pa.Array | None,
) -> Iterator[Reject]:  # fmt: skip
    for long in block.too_long:
        yield Reject(long.position, "too_long", long.size_bytes, max_bytes, long.head)
    for row, rule in broken.rows():
        value = threshold = np.nan
        if rule == "too_long":
            head = utf8(texts).row(row)[:HEAD_BYTES].decode("utf-8", "ignore")
            value, threshold = float(sizes[row]), max_bytes
        elif rule == "bad_column":
            head = texts[row].as_py()
        else:
            head = block.row(row)[:HEAD_BYTES].decode("utf-8", "replace")
        own_id = None if ids is None else ids[row].as_py()
        yield Reject(int(block.positions[row]), rule, value, threshold, head, own_id)


# ---------------------------------------------------------------- lines as columns


INVALID = 3
"""State of a line that is not UTF-8, beside OK, BLANK and UNPARSED (no JSON object)."""


class Members:
    """The requested members of a block of N lines, K per line.

    Args:
        block: the lines.
        names: of the requested members, each once.
        with_extra: keep the other members as JSON.

    Attributes:
        states: (N,) uint8: OK, BLANK, UNPARSED or INVALID.
        replaced: (N,) whether a lone surrogate was replaced in a string returned so far.
    """

    def __init__(self, block: RecordBlock, names: Sequence[str], *, with_extra: bool) -> None:
        self._offsets, self._names = join_bytes([_dumps(name)[1:-1] for name in names])
        self._data, self._starts, self._ends = block.data, block.starts, block.ends.copy()
        self._with_extra = with_extra
        broken = not_utf8(block.data, block.starts, block.ends)
        self._ends[broken] = self._starts[broken]
        self._parse()
        unparsed = np.flatnonzero(self.states == UNPARSED)
        if len(unparsed):
            self._repair(unparsed, block)
        self.states[broken] = INVALID

    def _parse(self, *, is_plain: bool = False) -> None:
        num, width, size = len(self._starts), len(self._offsets) - 1, len(self._data)
        self._fields = LineFields(
            texts=np.empty(size, np.uint8),
            text_offsets=np.empty(num + 1, np.int64),
            replaced=np.empty(num, np.bool_),
            extra=np.empty(size if self._with_extra else 0, np.uint8),
            extra_offsets=np.empty(num + 1, np.int64),
            kinds=np.empty((num, width), np.uint8),
            spans=np.zeros((num, width, 2), np.int64),
        )
        self.states = parse_lines(
            self._data, self._starts, self._ends, self._names, self._offsets, is_plain, self._fields
        )
        self.replaced = self._fields.replaced

    def _repair(self, unparsed: Int64s, block: RecordBlock) -> None:
        """Parse with Python what the kernel did not, write it as plain JSON, and parse that."""
        self._starts = self._starts.copy()
        pieces, size = [self._data], len(self._data)
        for row in unparsed.tolist():
            plain = _plain_json(block.row(row)) or b""
            pieces.append(np.frombuffer(plain, np.uint8))
            self._starts[row], self._ends[row] = size, size + len(plain)
            size += len(plain)
        self._data = frozen(np.concatenate(pieces))
        self._parse(is_plain=True)
        self.states[unparsed[self.states[unparsed] == BLANK]] = UNPARSED

    def texts(self) -> pa.LargeStringArray:
        """Return the first member, unescaped; empty if it is not a string."""
        return large_strings(self._fields.text_offsets, self._fields.texts)

    def kinds(self, slot: int) -> Bytes:
        return self._fields.kinds[:, slot].copy()

    def strings(self, slot: int, kinds: Bytes | None = None) -> pa.LargeStringArray:
        """Return strings, and numbers as they are written; null for the rest.

        Args:
            slot: which member.
            kinds: (N,) its kinds; None: as parsed.
        """
        kinds = self.kinds(slot) if kinds is None else kinds
        spans = self._spans(slot)
        has_value = (kinds == STRING) | (kinds == INTEGER) | (kinds == FLOAT)
        out = np.empty(int((spans[:, 1] - spans[:, 0])[has_value].sum()), np.uint8)
        offsets = np.empty(len(kinds) + 1, np.int64)
        self.replaced |= unescape(self._data, spans, kinds, out, offsets)
        return large_strings(offsets, out, ~has_value)

    def _spans(self, slot: int) -> Int64s:
        return np.ascontiguousarray(self._fields.spans[:, slot])

    def typed(self, slot: int, kind: pa.DataType) -> tuple[pa.Array, Bools]:
        """Return a declared column and (N,) which of its values are of another type.

        A missing member and null are null; an integer is a float64, too.
        """
        kinds = self.kinds(slot)
        is_null = (kinds == NULL) | (kinds == MISSING)
        if pa.types.is_integer(kind):
            values = np.empty(len(kinds), np.int64)
            is_bad = read_integers(self._data, self._spans(slot), kinds, values)
            return pa.array(values, kind, mask=is_null), is_bad
        if pa.types.is_boolean(kind):
            firsts = np.where(kinds == BOOL, self._spans(slot)[:, 0], 0)
            is_true = (self._data[firsts] if len(self._data) else firsts) == ord("t")
            return pa.array(is_true, kind, mask=kinds != BOOL), (kinds != BOOL) & ~is_null
        fitting = (STRING,) if pa.types.is_string(kind) else (INTEGER, FLOAT)
        fits = np.isin(kinds, fitting)
        kinds[~fits] = NULL
        return self.strings(slot, kinds).cast(kind), ~fits & ~is_null

    def extra(self) -> pa.Array:
        """Return all other members as JSON objects, null where a line has none."""
        offsets = self._fields.extra_offsets
        return large_strings(offsets, self._fields.extra, np.diff(offsets) == 0).cast(pa.string())


def _plain_json(line: bytes) -> bytes | None:
    """Return an object as plain JSON, None if the line is not a JSON object.

    The last of equal names wins. NaN, infinities and numbers beyond float64 become null.
    """
    try:
        value = json.loads(
            line.decode().removeprefix("\ufeff"),
            parse_constant=lambda name: None,
            parse_float=_finite,
        )
        return _dumps(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _dumps(value: object) -> bytes:
    """Write JSON with no escapes but the necessary ones: lone surrogates can be nothing else."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------- first lines, for the plan


LOOK_BYTES = 1 << 18
"""Read of a file: 60 web documents; 2 CPU milliseconds."""

MAX_FILES = 8
"""Files that are read, if the first ones lack a member."""


class ExpectedMember(NamedTuple):
    """A member that lines should have: the parameter that names it, and the JSON types it may have.

    Attributes:
        type_name: of the types, for messages.
    """

    parameter: str
    types: tuple[type, ...]
    type_name: str


TEXT = ((str,), "string")
LABEL = ((str, int, float), "string or number")
TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "string": TEXT,
    "int64": ((int,), "integer"),
    "float64": ((int, float), "number"),
    "bool": ((bool,), "true or false"),
}
"""Declared type -> types of JSON."""


def check_members(paths: Sequence[str], expected: Mapping[str, ExpectedMember]) -> None:
    """Check that some of the first lines have the members that parameters name.

    A line that lacks one, or holds another type, goes to the ledger when it is read. But where all
    first lines do, every document would, or would lack its value.

    Raises:
        UsageError: a member is in none of them, or always of another type; or no line is an object.
    """
    first_lines = _FirstLines(expected)
    step = max(len(paths) // MAX_FILES, 1)
    for path in paths[::step][:MAX_FILES]:
        for line in _first_lines(path):
            first_lines.add(line)
        if first_lines.objects and not first_lines.missing:
            return
    if first_lines.lines and not first_lines.objects:
        raise UsageError(
            f"{paths[0]}: none of the first {first_lines.lines} lines is a JSON object. Write one "
            "object a line, or name another format."
        )
    for name in first_lines.missing if first_lines.objects else ():
        if problem := first_lines.problem(name):
            raise UsageError(
                f"{expected[name].parameter}: {paths[0]}: in its first lines {problem}"
            )


class _FirstLines:
    """Which of the expected members the first lines of some files have."""

    def __init__(self, expected: Mapping[str, ExpectedMember]) -> None:
        self.expected, self.missing = expected, dict.fromkeys(expected)
        self.lines = self.objects = 0
        self._names: set[str] = set()
        self._types: dict[str, set[str]] = {name: set() for name in expected}

    def add(self, line: bytes) -> None:
        self.lines += 1
        row = _object(line)
        if row is None:
            return
        self.objects += 1
        self._names.update(row)
        for name in list(self.missing):
            value = row.get(name)
            if _fits(value, self.expected[name].types):
                del self.missing[name]
            elif value is not None:
                self._types[name].add(_type_name(value))

    def problem(self, name: str) -> str:
        """Return why no line has a usable value of a member; empty if it is null in all."""
        if types := self._types[name]:
            kinds, expected_type = " or ".join(sorted(types)), self.expected[name].type_name
            return f"{name!r} is always {kinds}, not {expected_type}. Name another member."
        if name not in self._names:
            return f"no object has {name!r}. {suggest(name, self._names)}"
        return ""


def _first_lines(path: str) -> list[bytes]:
    """Return the first lines that are not blank; none if the file cannot be read."""
    try:
        with InputStream(path) as stream:
            head = stream.read(LOOK_BYTES)
    except (DataError, OSError):  # reading the file will raise it with more detail
        return []
    lines = head.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if len(head) == LOOK_BYTES:
        lines.pop()
    return [line for line in lines if line.strip()]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _type_name(value: Any) -> str:
    names = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "an array")
