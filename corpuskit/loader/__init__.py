"""The streaming loader, importable alone: beside `corpuskit.errors` it needs NumPy and PyArrow.

Names are imported on first use, so commands that only read a mix plan do not import the stream.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corpuskit.loader.index import MixPlan, plan_hash, read_mix
    from corpuskit.loader.provenance import DocumentSpan, Occurrence, StepRow
    from corpuskit.loader.state import LoaderState
    from corpuskit.loader.stream import StreamingLoader

__all__ = [
    "DocumentSpan",
    "LoaderState",
    "MixPlan",
    "Occurrence",
    "StepRow",
    "StreamingLoader",
    "plan_hash",
    "read_mix",
]

_MODULES = {
    "DocumentSpan": "provenance",
    "LoaderState": "state",
    "MixPlan": "index",
    "Occurrence": "provenance",
    "StepRow": "provenance",
    "StreamingLoader": "stream",
    "plan_hash": "index",
    "read_mix": "index",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
