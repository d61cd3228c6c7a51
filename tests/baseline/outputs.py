"""What runs write, as hashes that do not depend on the code that wrote it.

No file of `documents/`, `tokens/`, `mix/`, `ledger/` and `holdout/` holds a fingerprint of code or
a path of this machine; the files are named by their bytes. Two hashes are taken of each folder:

- `files`: names and bytes of all files. Parquet footers name the release of pyarrow, which also
  compresses, and fastText's scores may differ in their last bit between kinds of processor. So this
  hash is compared only where `made_with` is what it was.
- `content`: schemas and rows, whatever the container: without the hashes and sizes of files that
  stand in names and in `mix/`, and with floats rounded to 6 digits.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BASELINE = Path(__file__).with_name("baseline.json")
FOLDERS = ("documents", "holdout", "ledger", "mix", "tokens")
OF_THE_FILE = {"digest", "digests", "plan_hash", "size_bytes"}
"""Fields of `mix/` that follow from the bytes of other files."""
DIGEST = re.compile(r"-[0-9a-f]{12}(?=\.\w+$)")
"""The hash of a part in its name."""
NUM_STEPS = 20
LOSS_TOLERANCE = 1e-6
"""Processors with other vector units add in another order."""


def made_with() -> dict[str, str]:
    """Return what the bytes of files depend on besides corpuskit and its inputs."""
    return {"machine": platform.machine(), "pyarrow": version("pyarrow")}


def baseline() -> dict[str, Any]:
    """Return what is recorded."""
    recorded: dict[str, Any] = json.loads(BASELINE.read_text("utf-8"))
    return recorded


def hashes(run: Path) -> dict[str, dict[str, Any]]:
    """Return the number of rows and both hashes of each folder of a run directory."""
    return {name: _hashes(run, name) for name in FOLDERS if (run / name).is_dir()}


def losses(training: Path) -> list[float]:
    """Return the loss of each of the first steps of a training run."""
    lines = (training / "metrics.jsonl").read_text("utf-8").splitlines()
    steps = [record for record in map(json.loads, lines) if "grad_norm" in record]
    return [record["loss"] for record in steps[:NUM_STEPS]]


def differences(name: str, run: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Return how the hashes of a run differ from what is recorded under its name."""
    fields = ["rows", "content"]
    if recorded["made_with"] == made_with():
        fields.append("files")
    before = recorded["runs"].get(name, {})
    return [
        f"{name}: {folder}: {field} {old.get(field)} -> {new.get(field)}"
        for folder in FOLDERS
        for old, new in [(before.get(folder, {}), run.get(folder, {}))]
        for field in fields
        if old.get(field) != new.get(field)
    ]


def _hashes(run: Path, name: str) -> dict[str, Any]:
    content, files = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    num_rows = 0
    paths = [path for path in sorted((run / name).rglob("*")) if path.is_file()]
    for path in paths:
        inside = path.relative_to(run).as_posix()
        data = path.read_bytes()
        files.update(f"{inside}\0{len(data)}\0".encode() + data)
        content.update(f"{DIGEST.sub('', inside)}\0".encode())
        if path.suffix == ".parquet":
            table = pq.read_table(path, use_threads=False, partitioning=None)
            num_rows += table.num_rows
            _add_table(content, table, name)
        else:
            content.update(_canonical(_without_digests(json.loads(data))))
    return {"rows": num_rows, "content": content.hexdigest(), "files": files.hexdigest()}


def _add_table(content: Any, table: pa.Table, folder: str) -> None:
    """Add schema, our own metadata and rows of a table to a hash."""
    metadata = table.schema.metadata or {}
    content.update(metadata.get(b"corpuskit", b""))
    for field, column in zip(table.schema, table.columns, strict=True):
        if folder == "mix" and field.name in OF_THE_FILE:
            continue
        content.update(f"\0{field.name}\0{field.type}\0".encode())
        values = column.to_pylist()
        if pa.types.is_floating(field.type):
            values = [None if value is None else f"{value:.6g}" for value in values]
        if folder == "mix":
            values = _without_digests(values)
        content.update(_canonical(values))


def _without_digests(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_digests(v) for k, v in value.items() if k not in OF_THE_FILE}
    if isinstance(value, list):
        return [_without_digests(v) for v in value]
    return DIGEST.sub("", value) if isinstance(value, str) else value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=bytes.hex).encode()
