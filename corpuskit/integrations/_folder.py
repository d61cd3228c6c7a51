"""The folder of an export, and what it says about itself.

`export.json` appears last. Until then `export.unfinished.json` marks the folder as ours and lists
the files that are complete.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.storage import is_remote

if TYPE_CHECKING:
    from corpuskit.storage import LocalStore

DONE, UNFINISHED = "export.json", "export.unfinished.json"


def begun(store: LocalStore, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what there is of this very export: `files` that are whole, and `is_finished`.

    Raises:
        UsageError: the folder holds something else.
        DataError: a finished export is broken.
    """
    others = store.top() - {"lock"}
    for name in (DONE, UNFINISHED):
        if name not in others:
            continue
        found = read_record(store, name)
        kind = "an export" if name == DONE else "an unfinished export"
        differs = sorted(key for key in facts if found.get(key) != facts[key])
        if differs:
            key = differs[0]
            raise UsageError(
                f"{store.address}: holds {kind} with another {key}: {found.get(key)!r}, now "
                f"{facts[key]!r}. Give another folder, or delete this one."
            )
        entries = [entry for entry in found["files"] if _is_whole(store, entry)]
        if name == DONE and entries != found["files"]:
            raise DataError(
                f"{store.where(DONE)}: names files that are missing or of another size. Delete the "
                "folder and export again."
            )
        return {"files": entries, "is_finished": name == DONE}
    if others:
        raise UsageError(
            f"{store.address}: is not empty, it has {sorted(others)[0]!r}. Give a new folder."
        )
    return {"files": [], "is_finished": False}


def _is_whole(store: LocalStore, entry: dict[str, Any]) -> bool:
    return all(store.size(name) == file["size_bytes"] for name, file in entry["files"].items())


def read_record(store: LocalStore, name: str) -> dict[str, Any]:
    """Return the content of a record.

    Raises:
        UsageError: it is none of ours.
    """
    try:
        found = json.loads(store.read(name))
        is_ours = isinstance(found, dict) and isinstance(found["files"], list)
    except (ValueError, KeyError, RecursionError):
        is_ours = False
    if not is_ours:
        raise UsageError(f"{store.where(name)}: no record of an export. Give another folder.")
    return dict(found)


def content_of(facts: dict[str, Any]) -> bytes:
    """Return the bytes of a record."""
    return json.dumps(facts, indent=1).encode() + b"\n"


def check_apart(run_dir: str, out: str) -> None:
    """Refuse to write into the run directory, where only seals name what may be there.

    Raises:
        UsageError: `out` is in it.
    """
    if is_remote(run_dir):
        return
    run, folder = Path(run_dir).resolve(), Path(out).resolve()
    if folder == run or run in folder.parents:
        raise UsageError(f"{out}: is inside of the run directory. Give a folder outside of it.")
