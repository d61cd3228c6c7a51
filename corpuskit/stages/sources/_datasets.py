"""Which files of a dataset belong to a configuration and a split, as Hugging Face lays them out."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING, Any

from corpuskit.errors import UsageError
from corpuskit.storage.search import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
"""What can be read, and the format behind it."""

METADATA = frozenset(
    "dataset_info.json dataset_infos.json dataset_dict.json state.json package.json".split()
)

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Names of splits, and the words that stand for them in paths."""

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

    `pattern` decides alone where it is given. Otherwise the card's `configs` do; without them
    folders are configurations, and words in paths tell splits (`train-00000.parquet`,
    `test/a.jsonl`). Where no path names any split, all files are `train`.

    Args:
        names: all files of the dataset, relative to its root.
        card: metadata at the top of its README.md.
        config: name of the configuration, None for the only or the default one.
        split: name of the split; `all` takes every file.
        pattern: of the files, `**` being any folders.

    Raises:
        UsageError: there are no such files, or of more than one format.
    """
    known = sorted(name for name in names if format_of(name))
    others = sorted({"." + name.rpartition(".")[2] for name in names} - set(ENDINGS))
    if not known:
        raise UsageError(
            f"holds no file that can be read ({', '.join(ENDINGS)}); has {', '.join(others[:8])}."
        )
    configs = {str(one["config_name"]): one for one in _configs(card)}
    if pattern is not None:
        found = _fitting(known, [pattern])
        hint = f"has no file that fits pattern: {pattern!r}; one is {known[0]!r}."
    elif configs:
        found, hint = _by_card(known, configs, config, split)
    else:
        found, hint = _by_name(known, config, split)
    if not found:
        raise UsageError(hint)
    kinds = collections.Counter(format_of(name) for name in found)
    if len(kinds) > 1:
        raise UsageError(
            f"has files of several formats: {dict(kinds)}. Name those of one by pattern, as in "
            "'data/*.parquet'."
        )
    return found


def _configs(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    configs = card.get("configs")
    if not isinstance(configs, list):
        return []
    return [one for one in configs if isinstance(one, dict) and one.get("config_name")]


def _by_card(
    known: Sequence[str], configs: Mapping[str, Mapping[str, Any]], config: str | None, split: str
) -> tuple[list[str], str]:
    if config is None:
        defaults = [name for name, one in configs.items() if one.get("default")]
        config = next(iter([*defaults, *(["default"] if "default" in configs else [])]), None)
        config = next(iter(configs)) if config is None and len(configs) == 1 else config
    if config is None or config not in configs:
        names = ", ".join(sorted(configs)[:40])
        return [], f"needs a configuration, got config: {config!r}. It has: {names}."
    patterns = _patterns(configs[config])
    if not patterns:
        folder = str(configs[config].get("data_dir", "")).strip("/")
        inside = [name for name in known if not folder or name.startswith(folder + "/")]
        return _by_name(inside, None, split)
    wanted = [p for ps in patterns.values() for p in ps] if split == "all" else patterns.get(split)
    if wanted is None:
        return [], f"has no split {split!r}. It has: {', '.join(sorted(patterns))}."
    return _fitting(known, wanted), f"has no file that fits {wanted}."


def _patterns(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return split -> patterns, from the forms that `data_files` may have."""
    given = config.get("data_files")
    folder = str(config.get("data_dir") or "").strip("/")
    entries = given if isinstance(given, list) else [] if given is None else [given]
    found: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = "train", entry
        if isinstance(entry, dict):
            split, paths = str(entry.get("split", "train")), entry.get("path", [])
        for path in paths if isinstance(paths, list) else [paths]:
            found.setdefault(split, []).append(f"{folder}/{path}" if folder else str(path))
    return found


def _by_name(known: Sequence[str], config: str | None, split: str) -> tuple[list[str], str]:
    if config is not None:
        folder = config.strip("/") + "/"
        inside = [n for n in known if n.startswith(folder) or f"/{folder}" in n]
        if not inside:
            return [], f"has no folder {config!r}, and no configurations."
        known = inside
    if split == "all":
        return list(known), ""
    named = {name: _split_words(name) for name in known}
    words = set(SPLITS.get(split, (split.lower(),)))
    found = [name for name, held in named.items() if held & words]
    every = {word for several in SPLITS.values() for word in several}
    if found or split != "train" or any(held & every for held in named.values()):
        return (
            found,
            f"has no file of a split {split!r}; one is {known[0]!r}. Set split or pattern.",
        )
    return list(known), ""


def _split_words(name: str) -> set[str]:
    return set(_WORDS.split(name.lower()))


def _fitting(known: Iterable[str], patterns: Sequence[str]) -> list[str]:
    cut = [pattern.removeprefix("./").split("/") for pattern in patterns]
    return [name for name in known if any(matches(name.split("/"), one) for one in cut)]
