"""Looks through all documents of a run: for texts, and for names where nothing looks them up.

One part at a time, only the columns that are asked for; memory does not grow with the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.engine.status import sealed
from corpuskit.errors import CorpuskitError, DataError
from corpuskit.formats.batch import make_keys, numbers
from corpuskit.formats.shards import open_parquet
from corpuskit.inspect.why.afresh import folder_of
from corpuskit.inspect.why.lookup import Hits
from corpuskit.storage import open_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corpuskit.formats.manifest import Part
    from corpuskit.inspect.why.lookup import Documents

    Progress = Callable[[int, int, str], None]

_BATCH_ROWS = 4096


def scan_names(documents: Documents, column: str, name: str, progress: Progress) -> Hits:
    """Return the documents with an id or URL, from a run that has no hashes of them.

    Args:
        column: `id` or `url`; URLs of what the first phase dropped are nowhere.
    """
    seal = documents.seal
    assert seal is not None, "asked for finished phases only"
    parts = [*seal.by_role("documents")]
    ledger = [*seal.by_role("ledger")] if column == "id" else []
    keys: set[int] = set()
    for done, part in enumerate((*parts, *ledger)):
        progress(done, len(parts) + len(ledger), f"for this {column}")
        key, place = ("doc_key", "doc_id") if part.role == "ledger" else ("key", column)
        for batch in _batches(documents, part, [key, "origin" if place == "url" else place]):
            values = batch.column(1)
            values = values.field("url") if place == "url" else values
            keys |= _chosen(batch, pc.equal(values, name))
    what = "id" if column == "id" else "URL"
    how = f"by {what}, looked for in all documents: this run is of before they were looked up"
    return Hits(tuple(sorted(keys)), how)


def scan_texts(
    documents: Documents, text: str, is_piece: bool, limit: int, progress: Progress
) -> Hits:
    """Return the documents with this text, as any streaming phase left it, or as it was read.

    White space at both ends, and CRLF for LF, make no difference to whole texts. Input files are
    read only if no stored text has it.

    Args:
        is_piece: the text need only be part of a document, letter for letter.
        limit: stop after so many documents.
    """
    wanted = text if is_piece else _bare(text)
    line = wanted if is_piece else max(wanted.split("\n"), key=len)
    what = "with this piece in the text" if is_piece else "with this text"
    keys: set[int] = set()
    parts = _stored(documents)
    for done, part in enumerate(parts):
        progress(done, len(parts), "for this text")
        key = "doc_key" if part.role == "ledger" else "key"
        for batch in _batches(documents, part, [key, "text"]):
            keys |= _with_text(batch, wanted, line, is_piece)
        if len(keys) >= limit:
            how = f"{what}; the search stopped at {limit}"
            return Hits(tuple(sorted(keys)[:limit]), how, is_partial=True)
    where = "among all texts that are stored"
    if not keys:
        where = "among all texts that are stored, and in the input files"
        with folder_of(documents.run):
            keys = _in_inputs(documents, wanted, line, is_piece, limit, progress)
    how = f"{what}, looked for {where}"
    return Hits(tuple(sorted(keys)[:limit]), how, is_partial=len(keys) >= limit)


def _stored(documents: Documents) -> list[Part]:
    """Return the parts that hold texts: the newest documents first, then what was dropped."""
    shards: list[Part] = []
    ledger: list[Part] = []
    for phase, seal in sealed(documents.run):
        if phase.is_stream:
            shards = [*seal.by_role("documents"), *shards]
            shards += [part for parts in seal.parts.roles() if parts.role.startswith("aside:")
                       for part in parts]  # fmt: skip
        ledger += seal.by_role("ledger")
    return [*shards, *ledger]


def _in_inputs(
    documents: Documents, wanted: str, line: str, is_piece: bool, limit: int, progress: Progress
) -> set[int]:
    """Look through the input files, as their sources read them; what cannot be read is left out."""
    run = documents.run
    keys: set[int] = set()
    for done, (file, piece) in enumerate(run.inputs.numbered):
        progress(done, len(run.inputs.numbered), "in the input files")
        most = run.plan.settings.max_document_bytes
        try:
            for found in run.plan.source(file.source).read(file, piece, most):
                if len(found.positions):
                    columns = {"key": make_keys(file.ordinal, found.positions), "text": found.texts}
                    keys |= _with_text(pa.record_batch(columns), wanted, line, is_piece)
                for one in found.rejects:
                    if one.text is not None and _matches(one.text, wanted, is_piece):
                        place = np.array([one.position], np.int64)
                        keys |= set(make_keys(file.ordinal, place).tolist())
        except (CorpuskitError, OSError):
            continue
        if len(keys) >= limit:
            break
    return keys


def _batches(documents: Documents, part: Part, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a part; one that is gone has nothing."""
    path = documents.run.at(part)
    try:
        with open_place(path) as source, open_parquet(source, path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False)
    except FileNotFoundError:
        return
    except pa.ArrowException as error:
        raise DataError(f"{path}: cannot be read: {error}. Run again.") from None


def _with_text(batch: pa.RecordBatch, wanted: str, line: str, is_piece: bool) -> set[int]:
    """Return the keys of documents that match; a search for one line finds candidates."""
    rows = batch.filter(pc.match_substring(batch.column("text"), line).fill_null(False))
    pairs = zip(rows.column(0).to_pylist(), rows.column("text").to_pylist(), strict=True)
    return {key for key, text in pairs if _matches(text, wanted, is_piece)}


def _matches(text: str, wanted: str, is_piece: bool) -> bool:
    return wanted in text if is_piece else _bare(text) == wanted


def _bare(text: str) -> str:
    return text.replace("\r\n", "\n").strip().removeprefix("\ufeff")


def _chosen(batch: pa.RecordBatch, mask: Any) -> set[int]:
    return set(numbers(batch.column(0))[numbers(mask.fill_null(False))].tolist())
