"""Codes of languages: `hu`, `hun` and `hun_Latn` name one language."""

from __future__ import annotations

import csv
import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def same_language(one: str, other: str) -> bool:
    """Return whether two labels are codes of one language; scripts are not compared."""
    return _long_code(one) == _long_code(other)


def _long_code(label: str) -> str:
    code = label.replace("-", "_").partition("_")[0].lower()
    return _long_codes().get(code, code)


@functools.cache
def _long_codes() -> Mapping[str, str]:
    """Return ISO 639-1 -> ISO 639-3, from the table of languages that comes with datatrove."""
    found = importlib.util.find_spec("datatrove")
    if found is None or found.origin is None:
        return {}
    codes: dict[str, str] = {}
    path = Path(found.origin).parent / "assets" / "tokenizer_assignment.csv"
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["code_1"] and (row["default_code_1"] == "TRUE" or row["code_1"] not in codes):
                codes[row["code_1"]] = row["code_3"]
    return codes
