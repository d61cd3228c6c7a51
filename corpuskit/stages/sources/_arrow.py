"""Arrow IPC streams, as Hugging Face's `save_to_disk` writes them: batch after batch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.storage import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MAGIC = b"ARROW1"


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[pa.RecordBatchReader]:
    """Open an Arrow IPC stream, or an Arrow file, to be read once from front to back.

    Raises:
        DataError: it is none.
    """
    with contextlib.closing(open_input(path)) as file:
        is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        # A file is a stream between two magic words, padded to eight bytes.
        file.seek(8 if is_file else 0)
        try:
            reader = pa.ipc.open_stream(pa.PythonFile(file, "r"))
        except (pa.ArrowException, OSError) as error:
            raise _broken(path, 0, error) from None
        yield reader


def read_batches(path: str, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream, each validated.

    Raises:
        DataError: the stream is broken or ends early; names file and row.
    """
    rows = 0
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise _broken(path, rows, error) from None
        yield batch
        rows += len(batch)


def _broken(path: str, rows: int, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return DataError(f"{path}: row {rows}: no whole Arrow stream: {error}. Save it again.")
