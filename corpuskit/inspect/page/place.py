"""Where a report goes, and which trainings belong to a run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, UsageError
from corpuskit.inspect.page.assemble import render
from corpuskit.inspect.why.sightings import read_training
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "report.html"
MOST_TRAININGS = 4
"""So many are found without being named, the newest ones."""


def place_of(directory: str, output: str | None) -> Path:
    """Return where the report of a run directory goes.

    Raises:
        UsageError: there it cannot be written.
    """
    if output is not None:
        if is_remote(output):
            raise UsageError(
                f"-o {output}: a report is written to a local file. Copy it from there."
            )
        path = Path(output.removeprefix("file://"))
        if path.is_dir():
            return path / NAME
        if not path.parent.is_dir():
            raise UsageError(f"-o {output}: there is no folder {path.parent}. Make it first.")
        return path
    if is_remote(directory):
        return Path(f"{directory.rstrip('/').rpartition('/')[2]}-{NAME}")
    return _local(directory) / NAME


def find_trainings(directory: str) -> list[str]:
    """Return outputs of trainings on a run: folders beside it whose names begin with its name.

    Only these are looked at. A run in object storage has none beside it.
    """
    if is_remote(directory):
        return []
    run = _local(directory).resolve()
    found: list[tuple[float, str]] = []
    for folder in sorted(run.parent.glob("*")):
        metrics = folder / "metrics.jsonl"
        if folder != run and folder.name.startswith(run.name) and metrics.is_file():
            try:
                trained_on = read_training(str(folder)).data
            except CorpuskitError:
                continue  # unfinished or damaged, and nobody asked for it
            if Path(trained_on).name == run.name:
                found.append((metrics.stat().st_mtime, os.path.relpath(folder)))
    return [name for _, name in sorted(found)[-MOST_TRAININGS:]]


def write(path: Path, facts: Mapping[str, Any], training_html: str = "") -> int:
    """Write the page, whole or not at all; return its size in bytes.

    Raises:
        UsageError: there it cannot be written.
    """
    content = render(facts, training_html).encode()
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot be written: {reason}. Set another place by -o.") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return len(content)


def _local(directory: str) -> Path:
    return Path(directory.removeprefix("file://"))
