"""Benchmarks as their publishers have them: JSON lines or Parquet, one item a row."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.stages.sources._stream import InputStream
from corpuskit.storage import find_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Row = dict[str, Any]


NUMBERED = "#"
"""As `id_column`: the id of an item is the number of its row."""

KNOWN = {
    "question": ("question", "query", "prompt", "problem", "goal", "ctx", "input", "text"),
    "answer": ("answer", "answers", "answerKey", "answer_key", "target", "canonical_solution",
               "solution", "gold", "label", "output"),
    "passage": ("passage", "context", "article", "story", "support"),
    "choices": ("choices", "options", "endings"),
    "id": ("id", "task_id", "question_id", "qid", "uid", "idx", "ind"),
}  # fmt: skip
"""Columns that are taken without being named, by what they hold; the first that there is."""

_ENDINGS = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz", ".jsonl.zst", ".json.zst")


@dataclasses.dataclass(frozen=True)
class Item:
    """One item of a benchmark; an empty string is what it does not have."""

    name: str
    question: str
    answer: str
    passage: str


@dataclasses.dataclass(frozen=True)
class BenchmarkColumns:
    """Names of columns; None takes the first of those in KNOWN that there is."""

    question: str | None = None
    answer: str | None = None
    passage: str | None = None
    choices: str | None = None
    id: str | None = None


def benchmark_files(
    given: Mapping[str, str] | Sequence[str], *, unique: bool = True
) -> list[tuple[str, str]]:
    """Return (benchmark, path) of all files; a benchmark is named after its file, or as given.

    Args:
        given: paths or patterns, perhaps by name.
        unique: refuse two files of one name.

    Raises:
        UsageError: a pattern matches nothing, or what cannot be read, two files have one name, a
            name holds `/` or `;`, or the format is unknown.
    """
    pairs = given.items() if isinstance(given, Mapping) else [("", path) for path in given]
    files: list[tuple[str, str]] = []
    for name, pattern in pairs:
        is_path = Path(pattern).exists() or not glob.has_magic(pattern)
        paths = [pattern] if is_path else [match.address for match in find_files(pattern)]
        if not paths:
            raise UsageError(f"{pattern}: no file matches. Check the path of the benchmark.")
        for path in paths:
            if not path.endswith(_ENDINGS):
                raise UsageError(
                    f"{path}: is neither JSON lines nor Parquet. Name it *.jsonl, *.jsonl.gz, "
                    "*.jsonl.zst or *.parquet."
                )
            files.append((name or Path(path).name.split(".")[0], path))
            _check_name(*files[-1])
    seen: dict[str, str] = {}
    for name, path in files if unique and not isinstance(given, Mapping) else ():
        if name in seen:
            raise UsageError(
                f"{path}: a benchmark called {name!r} is also {seen[name]}. Name them: "
                "`benchmarks: {name: path}`."
            )
        seen[name] = path
    return files


def _check_name(name: str, path: str) -> None:
    """Refuse names that would make item names ambiguous."""
    if not name or "/" in name or ";" in name:
        raise UsageError(
            f"{path}: {name!r} is not a name for a benchmark: it is empty or holds '/' or ';'. "
            "Name it: `benchmarks: {name: path}`."
        )


def read_benchmarks(files: Sequence[tuple[str, str]], columns: BenchmarkColumns) -> list[Item]:
    """Return the items of all files, each with a name of its own.

    They are called `benchmark/id`; where files of one benchmark have ids in common, its items are
    called `benchmark/file/id`, the files as seen from the folder that holds them all.

    Raises:
        UsageError: as `read_items`, or two items still have the same name.
    """
    benchmarks: defaultdict[str, list[tuple[str, list[Item]]]] = defaultdict(list)
    for benchmark, path in files:
        benchmarks[benchmark].append((path, read_items(benchmark, path, columns)))
    unique: list[Item] = []
    for benchmark, pieces in benchmarks.items():
        names = [item.name for _, items in pieces for item in items]
        if len(set(names)) == len(names):
            unique += [item for _, items in pieces for item in items]
            continue
        root = os.path.commonpath([Path(path).absolute().parent for path, _ in pieces])
        owners: dict[str, str] = {}
        for path, items in pieces:
            file = os.path.relpath(os.path.abspath(path), root)
            ending = max((e for e in _ENDINGS if file.endswith(e)), key=len)
            file = file.removesuffix(ending).replace(os.sep, "/").replace(";", ",")
            for item in items:
                name = f"{benchmark}/{file}/{item.name.removeprefix(f'{benchmark}/')}"
                if name in owners:
                    raise UsageError(
                        f"{path}: an item called {name!r} is also in {owners[name]}. Name the "
                        "files apart: `benchmarks: {name: path}`."
                    )
                owners[name] = path
                unique.append(dataclasses.replace(item, name=name))
    return unique


def distinct_items(items: Sequence[Item]) -> list[Item]:
    """Return the first of items that are equal but for their names, where the last of them was."""
    unique = {(item.question, item.answer, item.passage): item for item in reversed(items)}
    return list(reversed(unique.values()))


def read_items(benchmark: str, path: str, columns: BenchmarkColumns) -> list[Item]:
    """Return the items of a file that have a question or an answer.

    Raises:
        UsageError: a column is missing or holds something else, ids repeat, or there is no item.
    """
    rows = _rows(path)
    if not rows:
        raise UsageError(f"{path}: has no items. Take the file out of `benchmarks`.")
    names = _column_names(path, list(dict.fromkeys(name for row in rows for name in row)), columns)
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        item_id = str(number)
        if names["id"] is not None:
            item_id = _text(path, number, names["id"], row.get(names["id"]))
            # `;` separates items in a row of the ledger; some ids begin with the benchmark's name.
            item_id = item_id.replace(";", ",").removeprefix(f"{benchmark}/")
            if not item_id:
                raise _row_error(path, number, f"{names['id']!r} is empty", _NUMBER_THEM)
            if item_id in seen:
                problem = f"{names['id']} {item_id!r} is that of row {seen[item_id]}, too"
                raise _row_error(path, number, problem, _NUMBER_THEM)
            seen[item_id] = number
        values = {
            kind: _text(path, number, name, row.get(name)) if name is not None else ""
            for kind, name in names.items() if kind in {"question", "passage"}
        }  # fmt: skip
        answer = _answer(path, number, names, row)
        if values["question"].strip() or answer.strip():
            name = f"{benchmark}/{item_id}"
            items.append(Item(name, values["question"], answer, values["passage"]))
    if not items:
        problem = f"{path}: no row has a question in {names['question']!r}."
        raise UsageError(f"{problem} Set question_column.")
    return items


def read_texts(path: str) -> list[str]:
    """Return the texts of a file of documents, which are in its column `text`.

    Raises:
        UsageError: there is none.
    """
    rows = _rows(path)
    if not rows or not isinstance(rows[0].get("text"), str):
        raise UsageError(f"{path}: has no texts in a column 'text'. Take the file out.")
    return [_text(path, number, "text", row.get("text")) for number, row in enumerate(rows)]


_NUMBER_THEM = f"Make ids unique, or number the rows: `id_column: '{NUMBERED}'`."


def _row_error(path: str, number: int, problem: str, advice: str) -> UsageError:
    return UsageError(f"{path}: row {number}: {problem}. {advice}")


def _rows(path: str) -> list[Row]:
    try:
        if path.endswith(".parquet"):
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                rows: list[Row] = pq.read_table(path, partitioning=None).to_pylist()
            except pa.ArrowException as error:
                reason = str(error).split("\n")[0].rstrip(".")
                raise UsageError(f"{path}: is not a Parquet file: {reason}. Check it.") from None
            return rows
        return list(_json_rows(path))
    except DataError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot be read: {reason}. Check the path.") from None


def _json_rows(path: str) -> Iterator[Row]:
    pieces = []
    with InputStream(path) as stream:
        while piece := stream.read(1 << 20):
            pieces.append(piece)
    for number, line in enumerate(b"".join(pieces).removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"line {number + 1} is not JSON: {str(error).rstrip('.')}"
            raise UsageError(f"{path}: {problem}. Write one object a line.") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}: line {number + 1} is not a JSON object. Write one a line.")
        yield row


def _column_names(
    path: str, given: Sequence[str], columns: BenchmarkColumns
) -> dict[str, str | None]:
    """Return what each kind of column is called in this file."""
    names: dict[str, str | None] = {}
    has = ", ".join(repr(name) for name in given)
    for kind, known in KNOWN.items():
        requested = getattr(columns, kind)
        if requested is None or (kind == "id" and requested == NUMBERED):
            names[kind] = next((n for n in known if n in given and requested is None), None)
            continue
        if requested not in given:
            raise UsageError(
                f"{path}: column {requested!r} is missing; has {has}. Set {kind}_column."
            )
        names[kind] = requested
    if names["question"] is None:
        raise UsageError(f"{path}: no column holds the question; has {has}. Set question_column.")
    return names


def _text(path: str, number: int, name: str, value: Any) -> str:
    """Return a value as a string; the values of a list are separated by line feeds."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
        if value is None or isinstance(value, str):
            return _text(path, number, name, value)
    if isinstance(value, list):
        return "\n".join(dict.fromkeys(_text(path, number, name, text) for text in value))
    kind = type(value).__name__
    problem = f"{name!r} holds a value of type {kind}, not a text"
    raise _row_error(path, number, problem, "Set the column that holds it.")


def _answer(path: str, number: int, names: Mapping[str, str | None], row: Row) -> str:
    """Return the answer as a text: a number or letter that names one of the choices is that one."""
    if names["answer"] is None:
        return ""
    given = row.get(names["answer"])
    answer = _text(path, number, names["answer"], given)
    choices = row.get(names["choices"]) if names["choices"] is not None else None
    labels: list[str] = []
    if isinstance(choices, dict):
        given_labels = choices.get("label")
        labels = list(map(str, given_labels)) if isinstance(given_labels, list) else []
        choices = choices.get("text")
    if not isinstance(choices, list) or answer in choices:
        return answer
    if answer in labels:
        index = labels.index(answer)
    elif answer.isdecimal() and len(answer) < 10:  # a longer number is an answer, not an index
        index = int(answer)
    elif len(answer) == 1 and answer.isascii() and answer.isalpha():
        index = ord(answer.upper()) - ord("A")
    else:
        return answer
    if index >= len(choices):
        return answer
    return _text(path, number, names["choices"] or "", choices[index])
