"""What all adapters of peers do: take documents, find what to keep, say what that cost.

An adapter is `python benchmarks/peers/<peer>.py DOCUMENTS.parquet OUT.json [VARIANT]`, run by the
interpreter of the peer's own environment, and needs nothing of corpuskit. It writes the ids that
are kept, and the CPU seconds and the peak memory of itself and of the processes that it started.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

BANDS, ROWS, NGRAM = 14, 8, 5


def measured(peer: str, work: Callable[[Path, str], Callable[[], Any]]) -> None:
    """Run `work(documents, variant)`; what it returns is asked for the ids after measuring.

    Args:
        peer: the distribution whose version is noted, if it is installed.
        work: returns a function that returns the ids, or facts with the ids as `kept`.
    """
    documents, out, *more = sys.argv[1:]
    read = work(Path(documents), more[0] if more else "")
    facts = {"cpu_seconds": cpu_seconds(), "peak_rss_bytes": peak_rss_bytes(), "version": ""}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["version"] = importlib.metadata.version(peer)
    found = read()
    facts |= found if isinstance(found, dict) else {"kept": found}
    Path(out).write_text(json.dumps(facts), "utf-8")
    # Engines with threads of their own have been seen to hang at exit.
    sys.stdout.flush()
    os._exit(0)


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_rss_bytes() -> int:
    """Return the most memory that this process, or one that it has waited for, has held.

    Linux counts what the parent held when it started a process as held by that; `VmHWM` does not.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    status = Path("/proc/self/status")
    if status.exists():
        own = next(
            int(line.split()[1]) << 10
            for line in status.read_text("ascii").splitlines()
            if line.startswith("VmHWM")
        )
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)


def roots(num: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return, for each of `num` nodes, the first one of its connected component."""
    parents = list(range(num))

    def root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for left, right in edges:
        one, other = root(left), root(right)
        parents[max(one, other)] = min(one, other)
    return [root(node) for node in range(num)]


def firsts(num: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the first of each connected component of `num` nodes."""
    return [node for node, root in enumerate(roots(num, edges)) if node == root]


def shared(bands: Iterable[Sequence[Hashable]]) -> Iterable[tuple[int, int]]:
    """Yield (document, first document with the same value of a band), band by band."""
    for band in bands:
        seen: dict[Hashable, int] = {}
        for number, value in enumerate(band):
            first = seen.setdefault(value, number)
            if first != number:
                yield number, first
