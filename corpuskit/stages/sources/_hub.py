"""Finds the files of a dataset: in a folder, or on the hub, from where it fetches them."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit import yamlreader
from corpuskit.errors import ConfigError, UsageError
from corpuskit.stages.sources._datasets import choose
from corpuskit.storage import FoundFile, local_file, walk_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Chooser = Callable[[list[str], Mapping[str, Any]], list[str]]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_METADATA = re.compile(r"^\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")
"""The block of a card that huggingface_hub takes for its metadata."""

THREADS = 8


def find_files(
    place: str, revision: str, config: str | None, split: str, pattern: str | None
) -> list[tuple[FoundFile, str]]:
    """Return the files of a dataset with their names relative to its root.

    Args:
        place: a folder, or the name of a dataset on the hub.
        revision: branch, tag or commit; on the hub only.
        config, split, pattern: as `choose` takes them.

    Raises:
        UsageError: there is no such dataset, or it cannot be fetched.
    """
    folder = Path(place.removeprefix("file://"))
    chosen = functools.partial(choose, config=config, split=split, pattern=pattern)
    if folder.is_dir():
        saved = saved_splits(folder)
        if saved and pattern is None:
            return _saved(folder, saved, split)
        names = chosen(walk_files(str(folder)), _card(folder / "README.md"))
        return [_local(folder, name) for name in names]
    if folder.exists() or "://" in place or not _NAME.fullmatch(place):
        raise UsageError(
            f"{place!r} is neither a folder nor the name of a dataset (owner/name). Files are read "
            "by the sources parquet and jsonl."
        )
    return _fetched(place, revision, chosen)


def saved_splits(folder: Path) -> list[str]:
    """Return the splits in a folder that `save_to_disk` wrote; an empty name is the folder itself.

    Raises:
        UsageError: its files cannot be read, or name other files.
    """
    if (folder / "state.json").is_file():
        return [""]
    if not (folder / "dataset_dict.json").is_file():
        return []
    splits = _json(folder / "dataset_dict.json").get("splits")
    names = [str(name) for name in splits] if isinstance(splits, list) else []
    for name in names:
        if name in {"", ".", ".."} or re.search(r"[/\\\0]", name):
            raise UsageError(f"{folder}: dataset_dict.json names the split {name!r}.")
    if not names:
        raise UsageError(f"{folder}: dataset_dict.json names no split. Save the dataset again.")
    return names


def _saved(folder: Path, splits: Sequence[str], split: str) -> list[tuple[FoundFile, str]]:
    wanted = [name for name in splits if split in {"all", name} or not name]
    if not wanted:
        raise UsageError(f"{folder}: has no split {split!r}. It has: {', '.join(splits)}.")
    found = []
    for name in wanted:
        state = _json(folder / name / "state.json")
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise UsageError(
                f"{folder / name}: was saved with a selection of rows. Save it once more after "
                "flatten_indices()."
            )
        own = state.get("_split") or "train"
        if not name and split not in {"all", own}:
            raise UsageError(
                f"{folder}: has no split {split!r}: it was saved as {own!r}. Set split: {own!r}, "
                "or all."
            )
        entries = state.get("_data_files")
        if not isinstance(entries, list) or not entries:
            raise UsageError(
                f"{folder / name}: state.json names no data files. Save the dataset again."
            )
        for entry in entries:
            file = str(entry.get("filename", "")) if isinstance(entry, dict) else ""
            if not file or os.path.isabs(file) or ".." in file.split("/"):
                raise UsageError(f"{folder / name}: state.json names the file {file!r}.")
            found.append(_local(folder, f"{name}/{file}" if name else file))
    return found


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read: {error}. Save the dataset again.") from None
    return content if isinstance(content, dict) else {}


def _local(folder: Path, name: str) -> tuple[FoundFile, str]:
    return local_file(str(folder / name)), name


def _card(readme: Path) -> Mapping[str, Any]:
    """Return the metadata of a dataset card; empty where there is none."""
    if not readme.is_file():
        return {}
    try:
        block = _METADATA.search(readme.read_bytes().decode())
        given = yamlreader.load(block[1], str(readme)) if block else {}
        if not isinstance(given, dict | None):
            raise ValueError("it is no mapping")
    except (OSError, ValueError, ConfigError) as error:
        reason = error.problem if isinstance(error, ConfigError) else str(error)
        raise UsageError(
            f"{readme}: the metadata at its top cannot be read: {reason[:300].rstrip('.')}. "
            "Correct it."
        ) from None
    return given or {}


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError("huggingface_hub is not installed. Install it.") from None
    return huggingface_hub


def _fetched(place: str, revision: str, chosen: Chooser) -> list[tuple[FoundFile, str]]:
    """List a dataset, fetch the files chosen into the library's cache.

    Names are those in the repository, stamps the hashes of contents: neither tells who fetched them
    when, so a run can go on elsewhere.
    """
    library = _library()
    errors: Any = importlib.import_module("huggingface_hub.errors")
    # Of the library's errors some are OSErrors, those of its HTTP client are not.
    failures = (OSError, ValueError, errors.HTTPError, errors.EntryNotFoundError)
    try:
        root, blobs = _listing(library, place, revision)
        names = chosen(list(blobs), _card(root / "README.md"))

        def fetch(name: str) -> str:
            path: str = library.hf_hub_download(
                place, name, repo_type="dataset", revision=root.name
            )
            return path

        with ThreadPoolExecutor(THREADS) as threads:
            paths = list(threads.map(fetch, names))
    except failures as error:
        raise UsageError(_reason(place, revision, error)) from None
    facts = [(path, os.stat(path), name) for name, path in zip(names, paths, strict=True)]
    return [
        (FoundFile(path, status.st_size, blobs[name], str(status.st_mtime_ns)), name)
        for path, status, name in facts
    ]


def _listing(library: Any, place: str, revision: str) -> tuple[Path, dict[str, str]]:
    """Return the folder of a revision in the library's cache, and name -> hash of all its files.

    Only the card is fetched. What was listed before can be listed without a network.
    """
    kind = {"repo_type": "dataset"}
    folder = Path(
        library.snapshot_download(place, **kind, revision=revision, allow_patterns=["README.md"])
    )
    if hasattr(library, "get_cached_repo_tree"):
        tree = library.get_cached_repo_tree(place, **kind, revision=folder.name)
        return folder, {one.path: one.blob_id for one in tree}
    facts = library.HfApi().dataset_info(place, revision=folder.name, files_metadata=True)
    return folder, {one.rfilename: one.blob_id or "" for one in facts.siblings or ()}


def _reason(place: str, revision: str, error: Exception) -> str:
    from huggingface_hub import errors

    what = f"{place}: revision {revision!r}"
    if isinstance(error, errors.GatedRepoError):
        return f"{what}: access must be granted first. Ask on its page, then set HF_TOKEN."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what}: there is no such revision."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{what}: there is no such dataset, or it is private. Check the name, or HF_TOKEN."
    if _library().constants.HF_HUB_OFFLINE:
        return f"{what}: is not fetched yet, and HF_HUB_OFFLINE is set. Fetch it, or give a folder."
    line = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return f"{what}: cannot be fetched: {line}. Try again, or give a folder."
