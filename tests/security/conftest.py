"""Fixtures for runs over crafted corpora."""

from tests.engine.conftest import tokenizer

__all__ = ["tokenizer"]
