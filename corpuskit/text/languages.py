"""Codes of languages: `hu`, `hun` and `hun_Latn` are the same, and so are `zh` and `cmn_Hani`.

Users and models spell a language in one of these ways. lid.176 and the embedded model say `hu` (ISO
639-1 where it has the language), others `hun` (ISO 639-3), GlotLID, OpenLID and FineWeb2 `hun_Latn`
(with the script, ISO 15924). A code without a script means the default script of the language.
Where ISO 639 has a code for a group (`zho`) and FineWeb2 one of its members (`cmn_Hani`), they mean
the same.

`als` alone is Alemannic, as in lid.176 and Wikipedia, which ISO 639 calls gsw; `als_Latn` is
Albanian. `nah`, `qu` and `sh` cover several of FineWeb2's languages and mean none of them.

Source: languages.txt, written by benchmarks/langid/codes.py from CLDR and datatrove 0.10.1.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from corpuskit.errors import suggest

AMBIGUOUS = {"als": "gsw"}
"""Codes of Wikipedia that ISO 639-3 gives to another language -> ISO 639-3 code of Wikipedia's."""

DIGEST = "382935a897a0f72f"
"""Beginning of the SHA-256 of languages.txt: a change of that file changes this source."""

_WIDER = {"Hans": "Hani", "Hant": "Hani", "Hang": "Kore", "Kore": "Hang"}
"""Script -> one that a less exact label has instead."""


class _Codes(NamedTuple):
    """The packaged file.

    Attributes:
        scripts: ISO 639-3 code, as in FineWeb2 -> script it is written in by default.
        known_scripts: all scripts.
        codes: any code of a language -> its code in `scripts`.
        spellings: that code -> all codes of the language, itself first.
    """

    scripts: Mapping[str, str]
    known_scripts: frozenset[str]
    codes: Mapping[str, str]
    spellings: Mapping[str, tuple[str, ...]]


@functools.cache
def _table() -> _Codes:
    scripts: dict[str, str] = {}
    codes: dict[str, str] = {}
    known_scripts = set(_WIDER)
    for line in Path(__file__).with_name("languages.txt").read_text("ascii").splitlines():
        first, *names = line.split()
        if first == "=":
            codes |= dict(name.split("=") for name in names)
        elif first != "#":
            known_scripts.add(first)
            scripts |= dict.fromkeys(names, first)
    spellings: dict[str, tuple[str, ...]] = {}
    for code, full in codes.items():
        spellings[full] = (*spellings.get(full, (full,)), code)
    return _Codes(scripts, frozenset(known_scripts), codes, spellings)


def _split_code(code: str) -> tuple[str, str] | None:
    """Return language and script of a code, None for an unknown one."""
    table = _table()
    name, _, script = code.partition("_")
    name = name if script else AMBIGUOUS.get(name, name)
    language = table.codes.get(name, name)
    default = table.scripts.get(language)
    if default is None or ("_" in code and script not in table.known_scripts):
        return None
    return language, script or default


def full_name(code: str) -> str | None:
    """Return `hun_Latn` for `hu`, `hun` and `hun_Latn`, None for an unknown code."""
    parts = _split_code(code)
    return parts and "_".join(parts)


@functools.lru_cache(maxsize=1 << 14)
def names_of(label: str) -> tuple[str, ...]:
    """Return all codes that mean the language and script of a label, the label itself first.

    A label of no known language has no other name.
    """
    code_parts = _split_code(label)
    if code_parts is None:
        return (label,)
    language, script = code_parts
    table = _table()
    spellings = table.spellings.get(language, (language,))
    scripts = [script, _WIDER[script]] if script in _WIDER else [script]
    names = [f"{name}_{script}" for script in scripts for name in spellings]
    if table.scripts[language] in scripts:
        names += [name for name in spellings if name not in AMBIGUOUS]
        names += [name for name, meaning in AMBIGUOUS.items() if meaning == language]
    return tuple(dict.fromkeys([label, *names]))


def labels_of(code: str, labels: Collection[str]) -> tuple[str, ...]:
    """Return the labels of a model that a code means, in their order: itself, else others.

    A code that is not a label means none if Wikipedia and ISO 639-3 disagree on it.
    """
    if code in labels:
        return (code,)
    if code in AMBIGUOUS:
        return ()
    return tuple(label for label in labels if code in names_of(label))


def hint(code: str, labels: Collection[str]) -> str:
    """Return what to write instead of a code that means none of these labels."""
    if code in AMBIGUOUS:
        return f"Write {AMBIGUOUS[code]}_Latn (Alemannic) or {code}_Latn (Albanian)."
    parts = _split_code(code)
    siblings = [label for label in labels if parts and (_split_code(label) or "")[:1] == parts[:1]]
    if siblings:
        return f"Did you mean {sorted(siblings)[0]!r}?"
    suggestion = suggest(code, {name for label in labels for name in names_of(label)})
    return suggestion if suggestion.startswith("Did") else suggest(code, labels)


def common_codes() -> frozenset[str]:
    """Return codes to suggest for a misspelt one: those of two letters, and their full names."""
    table = _table()
    full = {f"{name}_{table.scripts[name]}" for name in table.codes.values()}
    return frozenset(code for code in table.codes if len(code) == 2) | full
