"""corpuskit: a run directory of the rows, read by StreamingLoader with its checks and its defaults.

A row of a store is written as documents of about 850 tokens. Variants are words: `permuted` declares
the source as not shuffled when it was written, so that every epoch is read out of stored order;
`tokens` and `labels` are the fields of a batch, all if there are none.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_case import IDS_ONLY, WITH_LABELS, Loader, serve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

DOCUMENT_TOKENS = 850
INDEX = ("source", "path", "rows", "first_row", "size_bytes", "digest")


class Corpuskit(Loader):
    distributions = ("numpy", "pyarrow")
    delivers = "inputs, labels, positions, segments, row and source ids; CRC checked"

    def load_library(self) -> None:
        from corpuskit import loader

        self.library = loader
        named = [word for word in self.spec.variant.split() if word in ("tokens", "labels")]
        self._more = {"fields": named} if named else {}
        if named:
            self.delivers = WITH_LABELS if "labels" in named else IDS_ONLY
            self.delivers += "; CRC checked"

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        spec, run = self.spec, Path(self.spec.store)
        index, documents = [], {}
        for number, (name, array) in enumerate(rows.items()):
            (run / "tokens" / name).mkdir(parents=True)
            for first in range(0, len(array), spec.rows_per_part):
                part = array[first : first + spec.rows_per_part]
                index.append(write_part(run, name, first, part, number << 40))
            documents[name] = spans_of(number << 40, len(array), spec.width)
        (run / "mix").mkdir()
        write_lookups(run, documents)
        write_plan(run, spec, {name: len(array) for name, array in rows.items()}, index)

    def open(self, state: Any = None) -> None:
        spec = self.spec
        more = self._more | ({"reader_threads": spec.workers} if spec.workers else {})
        self.opened = self.library.StreamingLoader(
            spec.store, spec.global_rows, spec.rank, spec.world_size, **more
        )
        rows = sum(source.rows for source in self.opened.plan.sources)
        if spec.weights or spec.variant == "long":
            rows = self.opened.plan.order.num_rows
        self._steps = rows // spec.global_rows
        self._begin = self.opened.state_dict()
        if state is not None:
            self.opened.load_state_dict(state)

    def epoch(self) -> Iterator[Any]:
        if self.opened.step == self.opened.num_steps:
            self.opened.load_state_dict(self._begin)
        left = self._steps - self.opened.step % self._steps
        return itertools.islice(iter(self.opened), left)

    def state(self) -> Any:
        return self.opened.state_dict()

    def state_at(self, share: float) -> Any:
        self.open()
        step = int(self._steps * share)
        place = self.library.StreamingLoader(
            self.spec.store, self.spec.global_rows, start_step=step
        )
        return place.state_dict()

    def tokens(self, batch: Any) -> NDArray[Any]:
        return batch["tokens"]

    def step(self, number: int) -> Any:
        return self.opened.batches_at(number)[0]

    def which(self, number: int) -> list[list[str]]:
        return [[one.id for one in row.documents] for row in self.opened.which(number)]

    def close(self) -> None:
        self.opened.close()


def starts_of(width: int) -> list[int]:
    """Return the first token of each document of a row."""
    return list(range(0, max(width - DOCUMENT_TOKENS // 2, 1), DOCUMENT_TOKENS))


def keys_of(first: int, num_rows: int, width: int) -> NDArray[np.int64]:
    """Return the (num_rows, documents of a row) keys of documents, the first being `first`."""
    num = len(starts_of(width))
    return first + np.arange(num_rows * num, dtype=np.int64).reshape(num_rows, num)


def write_part(
    run: Path, name: str, first: int, rows: NDArray[np.uint16], first_key: int
) -> dict[str, Any]:
    """Write a part; return its row of the index."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from corpuskit.storage import digest_file

    num_rows, width = rows.shape
    starts = starts_of(width)
    lengths = np.diff([*starts, width])
    facts = {"format": 1, "source": name, "seq_len": width - 1, "dtype": "uint16"}
    facts |= {"tokenizer": "00", "first_row": first, "shuffled": True}
    values = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(2 * width), num_rows, [None, pa.py_buffer(np.ascontiguousarray(rows))]
    )
    keys = keys_of(first_key + first * len(starts), num_rows, width)
    columns = {
        "doc_starts": lists(np.tile(np.int32(starts), num_rows), num_rows),
        "doc_keys": lists(keys.reshape(-1), num_rows),
        "text_bytes": lists(np.tile(4 * lengths.astype(np.int32), num_rows), num_rows),
        "flags": lists(np.zeros(num_rows * len(starts), np.uint8), num_rows),
    }
    schema = pa.schema(
        [
            pa.field("tokens", values.type, nullable=False),
            *(pa.field(key, column.type) for key, column in columns.items()),
        ],
        metadata={"corpuskit": json.dumps(facts)},
    )
    path = run / "tokens" / name / f"part-{first:08d}.parquet"
    pq.write_table(
        pa.table([values, *columns.values()], schema=schema),
        path,
        row_group_size=64,
        compression="none",
        use_dictionary=False,
        column_encoding="PLAIN",
        write_statistics=False,
        write_page_checksum=True,
        data_page_size=1 << 30,
    )
    place = str(path.relative_to(run))
    return dict(
        zip(
            INDEX,
            (name, place, num_rows, first, path.stat().st_size, digest_file(path)),
            strict=True,
        )
    )


def lists(values: NDArray[Any], num_rows: int) -> pa.ListArray:
    """Return lists of equal length."""
    import pyarrow as pa

    ends = np.linspace(0, len(values), num_rows + 1).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))


def spans_of(first_key: int, num_rows: int, width: int) -> dict[str, NDArray[Any]]:
    """Return the columns of the lookup from documents to rows."""
    starts = np.array(starts_of(width), np.int32)
    lengths = np.diff([*starts.tolist(), width]).astype(np.int32)
    return {
        "key": keys_of(first_key, num_rows, width).reshape(-1),
        "row": np.repeat(np.arange(num_rows), len(starts)),
        "first_token": np.tile(starts, num_rows),
        "num_tokens": np.tile(lengths, num_rows),
    }


def write_plan(run: Path, spec: Any, rows: Mapping[str, int], index: list[dict[str, Any]]) -> None:
    """Write the index and a plan of so many epochs, or of 2,048 rows of a mixture."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from corpuskit.loader import plan_hash
    from corpuskit.storage import digest_file

    pq.write_table(pa.Table.from_pylist(index), run / "mix" / "index.parquet")
    total = 2048 if spec.weights else sum(rows.values()) * spec.num_epochs
    plan: dict[str, Any] = {
        "format": 2,
        "name": "benchmark",
        "seed": spec.seed,
        "seq_len": spec.width - 1,
        "dtype": "uint16",
        "tokenizer": {"hash": "00", "vocab_size": 65536, "eos": 0, "pad": 0},
        "sources": [
            {
                "name": name,
                "rows": num,
                "tokens": num * spec.width,
                "documents": num * len(starts_of(spec.width)),
                "text_bytes": 4 * num * spec.width,
                "max_epochs": spec.num_epochs,
                "shuffled": "permuted" not in spec.variant,
            }
            for name, num in rows.items()
        ],
        "stages": [{"name": "main", "rows": total, "weights": dict(spec.weights or {"web": 1})}],
        "skip": [],
    }
    files = [{"ordinal": i, "source": name, "path": f"{name}.jsonl"} for i, name in enumerate(rows)]
    (run / "mix" / "files.json").write_text(json.dumps({"format": 1, "files": files}), "utf-8")
    names = {"lookups": "mix/lookups.parquet", "files": "mix/files.json"}
    plan |= {
        "index": "mix/index.parquet",
        **names,
        "digests": {key: digest_file(run / name) for key, name in names.items()},
    }
    plan["plan_hash"] = plan_hash(plan, digest_file(run / "mix" / "index.parquet"))
    (run / "mix" / "plan.json").write_text(json.dumps(plan), "utf-8")


def write_lookups(run: Path, documents: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Write the lookups from keys to ids and from documents to rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from corpuskit.formats.shuffle_files import write_shuffle

    found = []
    (run / "work").mkdir()
    for name, columns in documents.items():
        keys = columns["key"]
        ids = [f"{name}/{name}.jsonl#{key & (1 << 40) - 1}" for key in keys.tolist()]
        for role, held in (("doc_rows", columns), ("ids", {"key": keys, "id": pa.array(ids)})):
            path = f"work/{role}-{name}.arrow"
            write_shuffle(run / path, held)
            ends = {"first": int(keys[0]), "last": int(keys[-1])}
            of = name if role == "doc_rows" else ""
            found.append({"role": role, "path": path, **ends, "source": of})
    kinds = {
        "role": "string",
        "path": "string",
        "first": "uint64",
        "last": "uint64",
        "source": "string",
    }
    schema = pa.schema({key: pa.type_for_alias(kind) for key, kind in kinds.items()})
    pq.write_table(pa.Table.from_pylist(found, schema), run / "mix" / "lookups.parquet")


if __name__ == "__main__":
    serve(Corpuskit)
