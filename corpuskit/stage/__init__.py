"""The contract between stages and the engine: what a stage is, sees and returns."""

from __future__ import annotations

from corpuskit.stage.contract import (
    ORIGINS,
    CellStage,
    GlobalStage,
    InputFile,
    Known,
    Parameters,
    Reject,
    Slice,
    Source,
    SourceBatch,
    Stage,
    StreamingStage,
)
from corpuskit.stage.passes import Cost, Pass, PassContext, PassPlan, Unit, UnitContext, Volume
from corpuskit.stage.view import Example, Outcome, Spans, View

__all__ = [
    "ORIGINS", "CellStage", "Cost", "Example", "GlobalStage", "InputFile", "Known", "Outcome",
    "Parameters", "Pass", "PassContext", "PassPlan", "Reject", "Slice", "Source", "SourceBatch",
    "Spans", "Stage", "StreamingStage", "Unit", "UnitContext", "View", "Volume",
]  # fmt: skip
