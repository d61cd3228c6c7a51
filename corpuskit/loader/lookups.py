"""What answers for documents: sorted files that say which ids, keys and rows belong together."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError
from corpuskit.loader.files import FORMAT, RunFiles, get, inside, one_line, read_json, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from corpuskit.loader.index import MixPlan


class ExchangeRun:
    """A sorted Arrow file, of which only the batches that can hold the keys asked for are read."""

    def __init__(self, files: RunFiles, name: str) -> None:
        self._path = path = files.where(name)
        try:
            self._file = pa.ipc.open_file(files.open(name))
            facts = json.loads((self._file.schema.metadata or {})[b"corpuskit"])
            self._firsts = [int(first) for first in facts["first"]]
            self._checksums = facts.get("crc32", ())
            known = facts["format"] == FORMAT and len(self._firsts) <= self._file.num_record_batches
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            what = "missing: the folder work/ of a run is needed to find documents"
            raise DataError(
                f"{path}: {what if missing else f'not a shuffle file: {error!r}'}."
                f" {'Restore it, or run' if missing else 'Run'} the mix again."
            ) from error
        if not known:
            raise DataError(f"{path}: not a shuffle file of format {FORMAT}. Update corpuskit.")

    def find(self, keys: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
        """Yield (key, value of the second column) of those ascending `keys` that the run has."""
        numbers = np.searchsorted(np.array(self._firsts), keys, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            batch = self._batch(number)
            values = batch.column(0).to_numpy()
            wanted = keys[numbers == number]
            places = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
            found = values[places] == wanted
            column = batch.column(1).take(pa.array(places[found])).to_pylist()
            yield from zip(wanted[found].tolist(), column, strict=True)

    def among(self, values: NDArray[np.generic]) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose first column is one of the ascending `values`."""
        firsts = np.array(self._firsts, values.dtype)
        # Batch i may hold values from its first to the first of the next one, both included.
        lows = np.searchsorted(values, firsts)
        highs = np.append(np.searchsorted(values, firsts[1:], side="right"), len(values))
        for number in np.flatnonzero(highs > lows).tolist():
            batch = self._batch(number)
            column = batch.column(0).to_numpy()
            some = values[lows[number] : highs[number]]
            places = np.minimum(np.searchsorted(some, column), len(some) - 1)
            found = some[places] == column
            if found.any():
                yield batch.filter(pa.array(found))

    def _batch(self, number: int) -> pa.RecordBatch:
        try:
            batch = self._file.get_batch(number)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._path}: batch {number} can't be read: {one_line(error)}. Run the mix again."
            ) from error
        # It is serialized as it lies in the file.
        if self._checksums and crc32(batch.serialize()) != self._checksums[number]:
            raise DataError(f"{self._path}: batch {number} is damaged. Delete it and run again.")
        return batch


class Lookups:
    """The lookups of a plan, opened when asked."""

    def __init__(self, plan: MixPlan) -> None:
        self._files, self._name, self._origins = plan.files, plan.lookups, plan.origins
        self._digests = plan.digests

    @property
    def where(self) -> str:
        """What messages call the list of lookups."""
        return self._files.where(self._name)

    def stretches_of(self, keys: set[int]) -> list[tuple[str, int, int, int, int]]:
        """Return (source, key, row, first token, number of tokens) of all that documents have."""
        wanted = np.array(sorted(keys), np.int64)
        found: list[tuple[str, int, int, int, int]] = []
        if not len(wanted):
            return found
        for source, run in self._runs("doc_rows", int(wanted[0]), int(wanted[-1])):
            for batch in run.among(wanted):
                columns = [
                    batch.column(name).to_pylist()
                    for name in ("key", "row", "first_token", "num_tokens")
                ]
                found += [(source, *row) for row in zip(*columns, strict=True)]
        return sorted(found)

    def keys_of(self, documents: Iterable[str]) -> dict[str, set[int]]:
        """Return the keys of the documents with each id: one, unless the user's ids repeat."""
        keys: dict[str, set[int]] = {document: set() for document in documents}
        hashes = {
            int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little")
            for document in keys
        }
        if not hashes:
            return keys
        wanted = np.array(sorted(hashes), np.uint64)
        candidates = {
            key
            for _, run in self._runs("id_hashes", int(wanted[0]), int(wanted[-1]))
            for batch in run.among(wanted)
            for key in batch.column("key").to_pylist()
        }
        # A hash of 8 bytes can be shared: the ids themselves decide.
        for key, name in self.ids(np.array(sorted(candidates), np.int64)).items():
            if name in keys:
                keys[name].add(key)
        return keys

    def ids(self, keys: NDArray[np.int64]) -> dict[int, str]:
        """Return the ids of documents, by key; those that are not known are left out."""
        ids: dict[int, str] = {}
        if keys.size:
            for _, run in self._runs("ids", int(keys[0]), int(keys[-1])):
                ids |= run.find(keys)
        return ids

    def _runs(self, role: str, first: int, last: int) -> Iterator[tuple[str, ExchangeRun]]:
        """Yield (source, run) of the runs that may have something in [first, last]."""
        where = self._files.where(self._name)
        for entry in self._entries:
            if entry["role"] == role and entry["first"] <= last and first <= entry["last"]:
                name = inside(entry["path"], where)
                yield entry["source"], ExchangeRun(self._files, name)

    @functools.cached_property
    def _entries(self) -> list[dict[str, Any]]:
        columns = ("role", "path", "first", "last", "source")
        table = read_table(self._files, self._name, columns, self._digests.get("lookups"))
        entries: list[dict[str, Any]] = table.to_pylist()
        if any(None in entry.values() for entry in entries):
            raise DataError(f"{self.where}: has an entry without a value. Run the mix again.")
        return entries

    @functools.cached_property
    def origins(self) -> dict[int, str]:
        """The path of every input file by its ordinal."""
        fields = read_json(self._files, self._origins, digest=self._digests.get("files"))
        where = self._files.where(self._origins)
        return {
            get(where, entry, "ordinal", int): get(where, entry, "path", str)
            for entry in get(where, fields, "files", list)
        }
