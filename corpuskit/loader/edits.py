"""Reads and writes edits of a running mixture: a chain of small files beside the mix plan.

`edits/00001.json`, `edits/00002.json`, ...: each names the hash of the plan that it changes and the
row of the run from which it applies, so rows consumed before do not change. Edits are appended, and
never change a shard. docs/formats.md (Edits) is the contract.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.errors import DataError, UsageError
from corpuskit.loader.files import FORMAT, digest_bytes, digest_json, get, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.files import RunFiles

FOLDER = "edits"
_RESTORE = "Restore it from a copy, or delete it and the edits after it"
KINDS = ("stages", "skip", "takedown", "source")
REPLACING = ("stages", "source")  # kinds that replace all stages from their row on
SPAN_COLUMNS = ("source", "row", "first_token", "num_tokens", "text_bytes", "key")


@dataclass(frozen=True)
class Edit:
    """A file of the chain; `before` and `after` are hashes of the plan without and with it."""

    name: str
    before: str
    after: str
    kind: str
    row: int
    fields: Mapping[str, Any]


def describe_edit(edit: Edit) -> str:
    """Describe an edit in one line."""
    fields = edit.fields
    if edit.kind in REPLACING:
        change = ", ".join(
            f"{stage['name']}: {stage['rows']:,} rows of {stage['weights']}"
            for stage in fields["stages"]
        )
        if edit.kind == "source":
            names = ", ".join(source["name"] for source in fields["sources"])
            change += f", with {names} from {fields['from']}"
    elif edit.kind == "skip":
        change = ", ".join(f"rows {first:,} to {end:,}" for first, end in fields["spans"])
    else:
        rows = set(zip(fields["spans"]["source"], fields["spans"]["row"], strict=True))
        change = f"{len(fields['documents'])} documents in {len(rows)} rows"
    reason = f" ({fields['reason']})" if fields.get("reason") else ""
    return f"{edit.name}: {edit.kind} from row {edit.row:,}: {change}{reason}"


def edit_hash(fields: Mapping[str, object]) -> str:
    """Return the hash of a plan with an edit: blake2b-128 of the edit's canonical JSON."""
    return digest_json({key: value for key, value in fields.items() if key != "after"})


def edit_name(number: int) -> str:
    """Return the name of the file of an edit; numbers start at 1."""
    return f"{FOLDER}/{number:05d}.json"


def read_edits(files: RunFiles, plan: str) -> list[Edit]:
    """Return the chain of edits of a plan, checked link by link.

    Args:
        files: of the run directory.
        plan: hash of its mix plan.

    Raises:
        UsageError: they are edits of another plan: the mix was made again.
        DataError: an edit is missing or was changed, or this version does not know its kind.
    """
    names = [name for name in files.list(FOLDER) if name.endswith(".json")]
    chain: list[Edit] = []
    for number, name in enumerate(names, 1):
        if name != edit_name(number):
            raise DataError(
                f"{files.where(edit_name(number))}: missing, but {name} is there. Restore it: edits"
                " build on each other."
            )
        edit = _parse(files.where(name), name, read_json(files, name, advice=_RESTORE))
        expected = chain[-1].after if chain else plan
        if edit.before != expected:
            raise UsageError(
                f"{files.where(name)}: edits plan {edit.before}, but the plan is {expected}: the"
                f" mix was made again since. Run the former pipeline again, or move {FOLDER}/ away"
                " and repeat the edits that still apply (takedowns are listed in it)."
            )
        chain.append(edit)
    return chain


def _parse(path: str, name: str, fields: Mapping[str, Any]) -> Edit:
    kind = get(path, fields, "kind", str, _RESTORE)
    row = get(path, fields, "row", int, _RESTORE)
    if kind not in KINDS:
        raise DataError(f"{path}: kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    after = get(path, fields, "after", str, _RESTORE)
    if after != edit_hash(fields):
        raise DataError(
            f"{path}: after is {after!r}, but its content gives {edit_hash(fields)!r}."
            " It was changed by hand: restore it, or delete it and those after it."
        )
    before = get(path, fields, "before", str, _RESTORE)
    return Edit(name, before, after, kind, row, fields)


def apply_edits(path: str, plan: Mapping[str, Any], edits: Sequence[Edit]) -> dict[str, Any]:
    """Return the fields of a mix plan with its edits.

    Raises:
        DataError: an edit does not fit the plan.
    """
    fields = dict(plan)
    for edit in edits:
        name = f"{path}: {edit.name}"
        if edit.kind in REPLACING:
            fields["stages"] = _cut(name, fields, edit.row) + get(name, edit.fields, "stages", list)
            # Skipped spans in replaced rows no longer apply.
            fields["skip"] = [
                [first, min(end, edit.row)] for first, end in fields["skip"] if first < edit.row
            ]
            caps = get(name, edit.fields, "max_epochs", dict)
            added = get(name, edit.fields, "sources", list) if edit.kind == "source" else []
            fields["sources"] = [
                {**source, "max_epochs": caps.get(source["name"], source["max_epochs"])}
                for source in [*fields["sources"], *added]
            ]
        elif edit.kind == "skip":
            fields["skip"] = [*fields["skip"], *get(name, edit.fields, "spans", list)]
    return fields


def _cut(path: str, plan: Mapping[str, Any], row: int) -> list[Any]:
    """Return the mixture stages of a plan up to a row of the run."""
    stages, start = [], 0
    for stage in plan["stages"]:
        rows = get(path, stage, "rows", int)
        rows_left = min(row - start, rows)
        if rows_left > 0:
            stages.append({**stage, "rows": rows_left})
        start += rows
    if not 0 <= row <= start:
        raise DataError(f"{path}: row {row} is not within the {start} rows of the plan.")
    return stages


class Masks(NamedTuple):
    """Masked spans of rows: (n,) the row of a window, first token, end, text bytes."""

    into: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    text_bytes: NDArray[np.int64]


class Takedowns:
    """The masked spans of stored rows, and the row of the run from which each applies.

    Args:
        path: the plan, for messages.
        edits: those of the plan.
        begins: source name -> number of its first row, counted over all sources.
        rows: source name -> rows.
    """

    def __init__(
        self, path: str, edits: Sequence[Edit], begins: Mapping[str, int], rows: Mapping[str, int]
    ) -> None:
        # An edit that adds sources brings the takedowns of their run along.
        self.edits = tuple(
            edit
            for edit in edits
            if edit.kind == "takedown" or (edit.kind == "source" and edit.fields.get("spans"))
        )
        columns = [_spans(f"{path}: {edit.name}", edit, begins, rows) for edit in self.edits]
        spans = np.concatenate([np.zeros((6, 0), np.int64), *columns], axis=1)
        spans = spans[:, np.lexsort((spans[1], spans[2], spans[0]))]
        # A span that several edits name applies once, from the first of them on.
        is_repeated = (spans[0, 1:] == spans[0, :-1]) & (spans[2, 1:] == spans[2, :-1])
        spans = spans[:, np.concatenate([[True], ~is_repeated])[: spans.shape[1]]]
        self._row_numbers, self._from, self._firsts, self._counts, self._bytes, self.keys = spans
        self._all_keys = np.unique(self.keys)

    def __len__(self) -> int:
        return len(self._row_numbers)

    def history(self, rows: int) -> list[str]:
        """Return what identifies the takedowns that apply to the first `rows` rows of a run."""
        return [digest for row, digest in self._digests if row < rows]

    @functools.cached_property
    def _digests(self) -> list[tuple[int, str]]:
        """For each edit, its row, and a hash of that row and its spans."""
        return [
            (edit.row, digest_bytes(json.dumps([edit.row, edit.fields["spans"]]).encode()))
            for edit in self.edits
        ]

    def masks(self, row_numbers: NDArray[np.int64], row_indices: NDArray[np.int64]) -> Masks | None:
        """Return the masked spans of rows; None if there are none.

        Args:
            row_numbers: (M,) numbers of the rows, counted over all sources.
            row_indices: (M,) row indices of the run.
        """
        if not len(self):
            return None
        lows = np.searchsorted(self._row_numbers, row_numbers)
        counts = np.searchsorted(self._row_numbers, row_numbers, side="right") - lows
        into = np.repeat(np.arange(len(row_numbers)), counts)
        if not len(into):
            return None
        skipped = np.cumsum(counts) - counts
        spans = np.arange(len(into)) - skipped[into] + lows[into]
        is_masked = self._from[spans] <= row_indices[into]
        into, spans = into[is_masked], spans[is_masked]
        firsts = self._firsts[spans]
        return Masks(into, firsts, firsts + self._counts[spans], self._bytes[spans])

    def names(self, key: int, row_index: int) -> bool:
        """Return whether a document is masked at a row of the run."""
        i = np.searchsorted(self._all_keys, key)
        if i == len(self._all_keys) or self._all_keys[i] != key:
            return False
        return bool(self._from[self.keys == key].min() <= row_index)


def _spans(
    path: str, edit: Edit, begins: Mapping[str, int], rows: Mapping[str, int]
) -> NDArray[np.int64]:
    """Return the spans of an edit: row number, row of the run, first token, tokens, bytes, key."""
    spans = get(path, edit.fields, "spans", dict)
    columns = [get(path, spans, name, list) for name in SPAN_COLUMNS]
    if len({len(column) for column in columns}) != 1:
        raise DataError(f"{path}: the columns of spans differ in length. Restore the file.")
    sources = columns[0]
    unknown = sorted({str(name) for name in sources} - set(begins))
    if unknown:
        raise DataError(f"{path}: the plan has no source {unknown[0]!r}.")
    try:
        row, first, count, size, key = (np.array(column, np.int64) for column in columns[1:])
    except (ValueError, TypeError, OverflowError):
        raise DataError(f"{path}: spans must hold whole numbers. Restore the file.") from None
    limit = np.array([rows[name] for name in sources], np.int64)
    if ((row < 0) | (row >= limit) | (first < 0) | (count < 1)).any():
        raise DataError(f"{path}: spans lie outside the rows of their source. Restore the file.")
    row_numbers = np.array([begins[name] for name in sources], np.int64) + row
    return np.stack([row_numbers, np.full(len(row), edit.row, np.int64), first, count, size, key])


def new_edit(
    chain: Sequence[Edit], plan: str, kind: str, row: int, payload: Mapping[str, object]
) -> Edit:
    """Return an edit that follows a chain; nothing is written.

    Args:
        chain: the existing edits.
        plan: hash of the mix plan without them.
        kind: one of `KINDS`.
        row: of the run, from which it applies.
        payload: other fields of the file.
    """
    before = chain[-1].after if chain else plan
    fields = {"format": FORMAT, "kind": kind, "before": before, "row": row, **payload}
    after = edit_hash(fields)
    name = edit_name(len(chain) + 1)
    return Edit(name, before, after, kind, row, fields | {"after": after})


def write_edit(run_dir: str, edit: Edit) -> None:
    """Append an edit to its chain, whole or not at all.

    Raises:
        UsageError: another process has appended an edit meanwhile.
    """
    from corpuskit.storage import open_store

    content = json.dumps(edit.fields, indent=1).encode() + b"\n"
    if not open_store(run_dir).put_new(edit.name, content):
        raise UsageError(
            f"{run_dir}: {edit.name} was written by another process meanwhile. Look at it with"
            " `corpuskit edit list` and repeat yours."
        )
