"""Fixtures for runs over crafted corpora."""

from tests.run.conftest import tokenizer

__all__ = ["tokenizer"]
