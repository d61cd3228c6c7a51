"""What to say where torch is not installed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from corpuskit.distribution import install_command
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
            f"corpuskit train needs torch. Install it with: {install_command('train')}"
        ) from None
