"""Our streaming stages as steps of a datatrove pipeline (docs/datatrove.md).

Importing this module imports datatrove.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.utils.logging import logger
from pydantic import ValidationError

from corpuskit.engine import registry
from corpuskit.errors import DataError, UsageError, suggest
from corpuskit.formats.batch import ORIGIN, without_surrogates
from corpuskit.stage import StreamingStage, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter

    from corpuskit.stage import Outcome

BATCH_TEXT_BYTES = 8 << 20  # text of a batch, about; as in our own runs

# Our columns -> datatrove's names of the same values.
_NAMES = {"language.label": "language", "language.score": "language_score"}


class CorpuskitFilter(BaseFilter):  # type: ignore[misc]
    """A streaming stage of corpuskit as a step of a datatrove pipeline.

    Documents that the stage drops go to the exclusion writer with `filter_reason` in their
    metadata. Others continue with the text that the stage returns, and its columns as metadata
    `<stage>.<field>`. Statistics are those of datatrove's filters.

    Args:
        stage: a name (`gopher_quality`), or a configured stage.
        exclusion_writer: gets the dropped documents, with their original texts.
        batch_size: documents that the stage gets at a time; small batches are slow.
        params: parameters of the stage, if it is given by name.

    Raises:
        UsageError: there is no such streaming stage, or a parameter is wrong.
    """

    name = "corpuskit"

    def __init__(
        self,
        stage: str | StreamingStage,
        *,
        exclusion_writer: DiskWriter | None = None,
        batch_size: int = 1000,
        **params: Any,
    ) -> None:
        self.stage = _configured(stage, params)
        self.name = f"corpuskit {self.stage.stage_name()}"
        super().__init__(exclusion_writer, batch_size)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Decide about one document; see `filter_batch`."""
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        """Decide about documents; set text and metadata of those that are kept."""
        outcomes: list[bool | tuple[bool, str]] = []
        for documents in _split(batch):
            outcomes += self._apply(documents)
        return outcomes

    def _apply(self, documents: list[Document]) -> list[bool | tuple[bool, str]]:
        outcome = self.stage.apply(_view(documents, self.stage))
        reasons = _reasons(outcome, self.stage, len(documents))
        columns = {
            f"{self.stage.stage_name()}.{field}": values.to_pylist()
            for field, values in outcome.columns.items()
        }
        for row, (document, reason) in enumerate(zip(documents, reasons, strict=True)):
            if reason is not None:
                continue
            if outcome.text is not None:
                document.text = outcome.text.row(row).decode()
            for name, values in columns.items():
                document.metadata[name] = values[row]
        return [True if reason is None else (False, reason) for reason in reasons]


def _configured(stage: str | StreamingStage, params: dict[str, Any]) -> StreamingStage:
    if not isinstance(stage, str):
        if params:
            raise UsageError(f"{stage.stage_name()}: is configured already. Leave out {params}.")
        return stage
    loaded = registry.load(stage)
    if not issubclass(loaded, StreamingStage):
        usable = ", ".join(filter(_is_streaming, registry.names()))
        raise UsageError(f"{stage} needs to see all documents. Usable here: {usable}.")
    try:
        instance = loaded(**params)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join([stage, *(str(part) for part in first["loc"])])
        if first["type"] == "extra_forbidden":
            hint = suggest(str(first["loc"][-1]), loaded.model_fields)
            raise UsageError(f"{stage} has no parameter {first['loc'][-1]!r}. {hint}") from None
        message = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{name}: {message}, got {first['input']!r}.") from None
    instance.files()  # a missing file is refused now, not in a task
    return instance


def _is_streaming(name: str) -> bool:
    return registry.kind_of(name) in {"annotators", "filters", "rewriters"}


def _split(batch: list[Document]) -> Iterator[list[Document]]:
    """Yield consecutive documents with about BATCH_TEXT_BYTES of text."""
    waiting: list[Document] = []
    size = 0
    for document in batch:
        if not isinstance(document.text, str):
            raise DataError(
                f"document {document.id!r} has a {type(document.text).__name__} as text. Put a "
                "step in front that makes it a string."
            )
        waiting.append(document)
        size += len(document.text)
        if size >= BATCH_TEXT_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _view(documents: list[Document], stage: StreamingStage) -> View:
    """Return the view of documents for a stage; keys follow from ids."""
    metadata = [document.metadata for document in documents]
    origins = [
        {
            "file": _text(fields.get("file_path")) or "",
            "position": 0,
            "url": _text(fields.get("url")),
            "date": _text(fields.get("date")),
        }
        for fields in metadata
    ]
    columns: dict[str, pa.Array] = {
        "key": pa.array([_key(document.id) for document in documents], pa.int64()),
        "id": pa.array(
            [without_surrogates(str(document.id)) for document in documents], pa.string()
        ),
        "text": pa.array(
            [without_surrogates(document.text) for document in documents], pa.large_string()
        ),
        "source": pa.array([_text(fields.get("source")) or "" for fields in metadata], pa.string()),
        "origin": pa.array(origins, ORIGIN),
    }
    for name in stage.needs():
        if name not in columns:
            columns[name] = _column(name, documents, stage)
    return View(pa.record_batch(columns))


def _column(name: str, documents: list[Document], stage: StreamingStage) -> pa.Array:
    """Return a column that the stage needs, from the metadata: numbers, or strings.

    Each value is converted by itself, so that it does not depend on the batch.

    Raises:
        DataError: a value is neither.
    """
    alias = _NAMES.get(name, name)
    values = []
    for document in documents:
        value = document.metadata.get(name, document.metadata.get(alias))
        value = value.item() if isinstance(value, np.generic) else value
        if value is not None and not isinstance(value, str | bool | int | float):
            raise DataError(
                f"{stage.stage_name()} needs {name!r} as number or string, document "
                f"{document.id!r} has a {type(value).__name__}. Convert it in a step before."
            )
        values.append(value)
    present = [value for value in values if value is not None]
    if not present:
        _warn_of_missing(stage.stage_name(), name)
        return pa.nulls(len(values), pa.string())
    if any(isinstance(value, str) for value in present):
        return pa.array([_as_string(value) for value in values], pa.string())
    try:
        numbers = [None if value is None else float(value) for value in values]
    except OverflowError:
        raise DataError(f"{stage.stage_name()}: {name!r} has an integer beyond 1e308.") from None
    return pa.array(numbers, pa.float64())


def _as_string(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(int(value))  # as the number in a column without strings
    return _text(value)


@functools.cache
def _warn_of_missing(stage: str, name: str) -> None:
    """Warn once that a batch of documents lacks what a stage needs."""
    logger.warning(
        f"{stage} needs {name!r}, which is in no document's metadata of a batch. Put the step that "
        "adds it in front."
    )


def _reasons(outcome: Outcome, stage: StreamingStage, num_docs: int) -> list[str | None]:
    reasons: list[str | None] = [None] * num_docs
    if outcome.codes is not None:
        rows = outcome.codes.nonzero()[0]
        for row, reason in zip(
            rows.tolist(), outcome.reasons_of(rows, stage.rules).to_pylist(), strict=True
        ):
            reasons[row] = reason
    return reasons


def _key(identity: str) -> int:
    """Return a document's key, a hash: in our own runs it is the document's position."""
    digest = hashlib.blake2b(str(identity).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _text(value: Any) -> str | None:
    return None if value is None else without_surrogates(str(value))
