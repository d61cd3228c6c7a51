"""The compiled pipeline: steps become phases, phases become tasks."""

from corpuskit.engine.plan.compile import Phase, Plan, read_plan

__all__ = ["Phase", "Plan", "read_plan"]
