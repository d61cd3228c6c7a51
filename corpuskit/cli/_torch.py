"""What to say where torch is not installed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """Turn a failed import of torch into advice.

    Raises:
        UsageError: torch is absent.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "corpuskit train needs torch. Install it with: pip install 'corpuskit[train]'"
        ) from None
