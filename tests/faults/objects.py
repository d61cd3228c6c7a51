"""A bucket in memory whose requests can be made to fail."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import corpuskit.storage.remote as remote
from corpuskit.storage.client import Bucket, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

Gate = Callable[[str, str, Callable[[], Any]], Any]


class MemoryBucket(Bucket):
    """obstore's own store in memory behind the project's client; each request passes a gate.

    Args:
        gate: called with (operation, key, send); returns what the request returns.
    """

    def __init__(self, gate: Gate) -> None:
        import obstore
        from obstore.store import MemoryStore

        self.name, self.endpoint, self.retries = "bench", "memory", RetryPolicy()
        self._library, self._client, self._gate = obstore, MemoryStore(), gate
        obstore.put(self._client, "other", b"")  # the tag "0" is that of no object under test

    def _ask(self, key: str, request: Callable[[], Any], *, is_upload: bool = False) -> Any:
        operation = request.__qualname__.split(".")[1]
        send = functools.partial(super()._ask, key, request, is_upload=is_upload)
        return self._gate(operation, key, send)


@contextlib.contextmanager
def bucket(gate: Gate) -> Iterator[None]:
    """Have every object store be one new bucket in memory."""
    made, before = MemoryBucket(gate), remote.open_bucket
    remote.open_bucket = lambda name, retries=None: made
    try:
        yield
    finally:
        remote.open_bucket = before
