"""A kernel's first call compiles it, which hypothesis would take for a slow test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
