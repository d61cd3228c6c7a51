"""One browser for all tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.inspect.browser import Browser, find_browser

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running browser, or skip."""
    if find_browser() is None:
        pytest.skip("no chromium on PATH: the page is not opened")
    with Browser() as found:
        yield found
