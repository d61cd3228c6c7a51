"""The run that tests of `corpuskit why` share."""

from __future__ import annotations

from tests.inspect.why.lab import tokenizer, whys

__all__ = ["tokenizer", "whys"]
