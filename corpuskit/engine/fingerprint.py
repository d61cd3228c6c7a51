"""Fingerprints: the hash of all that decides what a phase writes.

`<facts>.<code>`: facts are parameters, inputs, model files and library versions; code is the source
of the stages and of all that they import (see `closure`), without docstrings and comments.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import stat
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit import closure
from corpuskit.engine import registry
from corpuskit.errors import UsageError, system_reason
from corpuskit.storage import digest_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.stage import Stage

FORMATS_VERSION = 1
"""Raise it when the runner, not a stage, writes other bytes for the same decisions."""


def fingerprint(facts: Mapping[str, Any], stages: Iterable[tuple[str, str, Stage]]) -> str:
    """Return the fingerprint of a phase.

    Args:
        facts: JSON values: inputs, settings, pass name.
        stages: (label, name, configured stage) of all stages that run in the phase.

    Raises:
        UsageError: a file that a stage names cannot be read.
    """
    stages = list(stages)
    libraries = {"pyarrow", *(lib for *_, stage in stages for lib in stage.libraries())}
    content = {
        "formats": FORMATS_VERSION,
        "unicode": unicodedata.unidata_version,
        "facts": facts,
        "stages": [
            {
                "label": label,
                "name": name,
                "distribution": registry.distribution(name),
                "version": stage.version,
                "params": stage.model_dump(mode="json", exclude={"paths"}),
                "files": [[Path(path).name, file_digest(path)] for path in stage.files()],
            }
            for label, name, stage in stages
        ],
        "libraries": {lib: library_version(lib) or "absent" for lib in sorted(libraries)},
    }
    code = [code_digest(name) for _, name, _ in stages]
    return f"{_hash(content)}.{_hash(code)}"


def same_but_code(first: str, second: str) -> bool:
    """Return whether two fingerprints differ at most in the code."""
    return first.partition(".")[0] == second.partition(".")[0]


def file_digest(path: str) -> str:
    """Return the content hash of a file that decides; remembered while size and time stay.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a device never ends
            raise UsageError(f"{path}: is not a regular file. Check the path.")
        return _file_digest(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        reason = system_reason(error)
        raise UsageError(f"{path}: cannot be read: {reason}. Check the path.") from None


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, size: int, stamp: int) -> str:
    return digest_file(Path(path))


@functools.cache
def code_digest(name: str) -> str:
    """Return the hash of a stage's source and of all that it imports; see `closure`.

    Docstrings, comments and layout do not count.
    """
    files = closure.closure(*registry.sources(name))
    return _hash(sorted([closure.label(file), closure.read(file).digest] for file in files))


APART = frozenset({"kernels", "stages", "loader", "cli", "inspect", "train"})
"""Folders that are no part of the runner: what stages are made of, which has digests of its own,
and what no worker loads."""


@functools.cache
def runner_digest() -> str:
    """Return the hash of what is between stages: plan, runner, formats, stores. Not fingerprinted.

    Processes of one run must agree on it; results of earlier runs need not.
    """
    return _hash([[closure.label(file), file.read_text("utf-8")] for file in runner_files()])


def runner_files() -> list[Path]:
    """Return the source files of the runner, sorted."""
    files = sorted(closure.PACKAGE.rglob("*.py"))
    return [file for file in files if file.relative_to(closure.PACKAGE).parts[0] not in APART]


@functools.cache
def library_version(library: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hash(value: Any) -> str:
    content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
