"""Finds the files of a dataset: in a folder, or on the hub, from where it fetches them."""

from __future__ import annotations

import collections
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpuskit import yamlreader
from corpuskit.errors import ConfigError, UsageError
from corpuskit.storage import FoundFile, local_file, walk_files
from corpuskit.storage.hub import fetch
from corpuskit.storage.search import matches

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_METADATA = re.compile(r"^\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")
"""The block of a card that huggingface_hub takes for its metadata."""


def find_files(
    dataset: str, revision: str, config: str | None, split: str, pattern: str | None
) -> list[tuple[FoundFile, str]]:
    """Return the files of a dataset with their names relative to its root.

    Args:
        dataset: a folder, or the name of a dataset on the hub.
        revision: branch, tag or commit; on the hub only.
        config, split, pattern: as `choose` takes them.

    Raises:
        UsageError: there is no such dataset, or it cannot be fetched.
    """
    folder = Path(dataset.removeprefix("file://"))
    dataset = dataset.removeprefix("hf://datasets/")
    pick = functools.partial(choose, config=config, split=split, pattern=pattern)
    if folder.is_dir():
        splits = saved_splits(folder)
        if splits and pattern is None:
            return _saved(folder, splits, split)
        names = pick(walk_files(str(folder)), _card(folder / "README.md"))
        return [_local(folder, name) for name in names]
    if folder.exists() or "://" in dataset or not _NAME.fullmatch(dataset):
        raise UsageError(
            f"{dataset!r} is neither a folder nor the name of a dataset (owner/name). Files are "
            "read by the sources parquet and jsonl."
        )
    return fetch(dataset, revision, lambda names, root: pick(names, _card(root / "README.md")))


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
    names = [name for name in splits if split in {"all", name} or not name]
    if not names:
        raise UsageError(f"{folder}: has no split {split!r}. It has: {', '.join(splits)}.")
    files = []
    for name in names:
        state = _json(folder / name / "state.json")
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise UsageError(
                f"{folder / name}: was saved with a selection of rows. Save it once more after "
                "flatten_indices()."
            )
        saved_split = state.get("_split") or "train"
        if not name and split not in {"all", saved_split}:
            raise UsageError(
                f"{folder}: has no split {split!r}: it was saved as {saved_split!r}. "
                f"Set split: {saved_split!r}, or all."
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
            files.append(_local(folder, f"{name}/{file}" if name else file))
    return files


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read: {error}. Save the dataset again.") from None
    return content if isinstance(content, dict) else {}


def _local(folder: Path, name: str) -> tuple[FoundFile, str]:
    return local_file(str(folder / name)), name


def _card(readme: Path) -> Mapping[str, Any]:
    """Return the metadata of a dataset card; empty if there is none."""
    if not readme.is_file():
        return {}
    try:
        block = _METADATA.search(readme.read_bytes().decode())
        metadata = yamlreader.load(block[1], str(readme)) if block else {}
        if not isinstance(metadata, dict | None):
            raise ValueError("it is no mapping")
    except (OSError, ValueError, ConfigError) as error:
        reason = error.problem if isinstance(error, ConfigError) else str(error)
        raise UsageError(
            f"{readme}: the metadata at its top cannot be read: {reason[:300].rstrip('.')}. "
            "Correct it."
        ) from None
    return metadata or {}


# ---------------------------------------------------------------- configurations and splits


ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".jsonl.gz": "jsonl",
    ".json.gz": "jsonl",
    ".jsonl.zst": "jsonl",
    ".json.zst": "jsonl",
}
"""File endings that can be read, and their formats."""

METADATA = frozenset(
    "dataset_info.json dataset_infos.json dataset_dict.json state.json package.json".split()
)

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split -> words in paths that name it."""

_WORDS = re.compile(r"[^a-z]+")


def format_of(name: str) -> str:
    """Return `parquet`, `jsonl`, `arrow`, or the empty string: by ending."""
    lower = name.lower()
    if lower.rpartition("/")[2] in METADATA:
        return ""
    return next((kind for ending, kind in ENDINGS.items() if lower.endswith(ending)), "")


def choose(
    names: Iterable[str],
    card: Mapping[str, Any],
    config: str | None,
    split: str,
    pattern: str | None,
) -> list[str]:
    """Return the files of a configuration and split, sorted.

    A `pattern` decides alone. Without one the card's `configs` do; without those, folders are
    configurations, and words in paths name splits (`train-00000.parquet`, `test/a.jsonl`). If no
    path names a split, all files are `train`.

    Args:
        names: all files of the dataset, relative to its root.
        card: metadata at the top of its README.md.
        config: name of the configuration, None for the only or the default one.
        split: name of the split; `all` takes every file.
        pattern: of the files, `**` being any folders.

    Raises:
        UsageError: there are no such files, or of more than one format.
    """
    files = sorted(name for name in names if format_of(name))
    endings = sorted({"." + name.rpartition(".")[2] for name in names} - set(ENDINGS))
    if not files:
        raise UsageError(
            f"holds no file that can be read ({', '.join(ENDINGS)}); has {', '.join(endings[:8])}."
        )
    configs = {str(entry["config_name"]): entry for entry in _configs(card)}
    if pattern is not None:
        matching = _fitting(files, [pattern])
        hint = f"has no file that fits pattern: {pattern!r}; one is {files[0]!r}."
    elif configs:
        matching, hint = _card_files(files, configs, config, split)
    else:
        matching, hint = _named_files(files, config, split)
    if not matching:
        raise UsageError(hint)
    kinds = collections.Counter(format_of(name) for name in matching)
    if len(kinds) > 1:
        raise UsageError(
            f"has files of several formats: {dict(kinds)}. Name those of one by pattern, as in "
            "'data/*.parquet'."
        )
    return matching


def _configs(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    configs = card.get("configs")
    if not isinstance(configs, list):
        return []
    return [entry for entry in configs if isinstance(entry, dict) and entry.get("config_name")]


def _card_files(
    files: Sequence[str], configs: Mapping[str, Mapping[str, Any]], config: str | None, split: str
) -> tuple[list[str], str]:
    if config is None:
        defaults = [name for name, entry in configs.items() if entry.get("default")]
        config = next(iter([*defaults, *(["default"] if "default" in configs else [])]), None)
        config = next(iter(configs)) if config is None and len(configs) == 1 else config
    if config is None or config not in configs:
        names = ", ".join(sorted(configs)[:40])
        return [], f"needs a configuration, got config: {config!r}. It has: {names}."
    patterns = _patterns(configs[config])
    if not patterns:
        folder = str(configs[config].get("data_dir", "")).strip("/")
        inside = [name for name in files if not folder or name.startswith(folder + "/")]
        return _named_files(inside, None, split)
    paths = [p for ps in patterns.values() for p in ps] if split == "all" else patterns.get(split)
    if paths is None:
        return [], f"has no split {split!r}. It has: {', '.join(sorted(patterns))}."
    return _fitting(files, paths), f"has no file that fits {paths}."


def _patterns(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return split -> patterns, from any of the forms that `data_files` may have."""
    value = config.get("data_files")
    folder = str(config.get("data_dir") or "").strip("/")
    entries = value if isinstance(value, list) else [] if value is None else [value]
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = "train", entry
        if isinstance(entry, dict):
            split, paths = str(entry.get("split", "train")), entry.get("path", [])
        for path in paths if isinstance(paths, list) else [paths]:
            patterns.setdefault(split, []).append(f"{folder}/{path}" if folder else str(path))
    return patterns


def _named_files(files: Sequence[str], config: str | None, split: str) -> tuple[list[str], str]:
    if config is not None:
        folder = config.strip("/") + "/"
        inside = [n for n in files if n.startswith(folder) or f"/{folder}" in n]
        if not inside:
            return [], f"has no folder {config!r}, and no configurations."
        files = inside
    if split == "all":
        return list(files), ""
    by_name = {name: set(_WORDS.split(name.lower())) for name in files}
    words = set(SPLITS.get(split, (split.lower(),)))
    matching = [name for name, tokens in by_name.items() if tokens & words]
    known = {word for several in SPLITS.values() for word in several}
    if matching or split != "train" or any(tokens & known for tokens in by_name.values()):
        return (
            matching,
            f"has no file of a split {split!r}; one is {files[0]!r}. Set split or pattern.",
        )
    return list(files), ""


def _fitting(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    globs = [pattern.removeprefix("./").split("/") for pattern in patterns]
    return [name for name in names if any(matches(name.split("/"), glob) for glob in globs)]
