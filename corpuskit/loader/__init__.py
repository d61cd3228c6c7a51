"""The streaming loader, importable alone: beside `corpuskit.errors` it needs NumPy and PyArrow."""

from __future__ import annotations

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
