"""corpuskit turns raw text into the token stream that a pretraining run consumes.

Public names load what they need on first use, so `import corpuskit` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "read_plan": "corpuskit.engine.plan",
    "run": "corpuskit.engine.pipeline",
    "StreamingLoader": "corpuskit.loader",
    "open_held_out": "corpuskit.stages.sequences._heldout",
    "StreamingStage": "corpuskit.stage",
    "CellStage": "corpuskit.stage",
    "GlobalStage": "corpuskit.stage",
    "Source": "corpuskit.stage",
    "Outcome": "corpuskit.stage",
    "View": "corpuskit.stage",
    "CorpuskitError": "corpuskit.errors",
    "ConfigError": "corpuskit.errors",
    "UsageError": "corpuskit.errors",
    "TaskError": "corpuskit.errors",
    "DataError": "corpuskit.errors",
}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'corpuskit' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
