"""A lease in an object store: its holder renews it every few seconds, or loses it.

No clocks are compared between machines. The holder replaces the object every `renew_seconds`, on
condition that it is still its own. A contender watches: if the object changes, the holder is alive;
if it does not change for `lease_seconds` of the contender's clock, the contender replaces it on
the same condition, so one of many contenders wins. A holder that could not renew for that long by
its own clock must assume that it has lost the lease: then `check` raises, before anything is
written or deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import TaskError, UsageError

if TYPE_CHECKING:
    from corpuskit.storage.client import Bucket, RetryPolicy

RENEW_SECONDS = 10.0
LEASE_SECONDS = 60.0

FREE = b'{"owner": ""}'
"""What a holder leaves. It does not delete: a late delete could end the lease of another run."""

REQUEST_SHARE = 0.5
"""Share of the lease that a request may take, and that must be left when it is sent."""

CONFLICTS = 3
"""How often a write is tried that the server refuses although no other process wrote."""


class Lease:
    """The exclusive right to write to a run directory, held while the context is entered.

    Args:
        bucket: with a retry policy that fits: see `lease_retries`.
        key: of the object that represents the lease.
        address: of the run directory, for messages.

    Attributes:
        guarded: the bucket, with `check` before each request.
    """

    def __init__(
        self, bucket: Bucket, key: str, address: str, renew_seconds: float, lease_seconds: float
    ) -> None:
        self.bucket, self.key, self.address = bucket, key, address
        self.guarded = bucket.guarded(self.check)
        self.renew_seconds, self.lease_seconds = renew_seconds, lease_seconds
        self._owner, self._beat, self._version = secrets.token_hex(8), 0, ""
        self._is_lost, self._renewed = False, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        """Take the lease.

        Raises:
            UsageError: another run holds it, or the server cannot keep one.
        """
        self._renewed = _clock()
        self._version = self._take()
        self._refuse_unconditional()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # it expires by itself; the run is done
            self.bucket.replace(self.key, FREE, self._version)

    def check(self) -> None:
        """Return once a request can be sent and end before another run can take the lease.

        Raises:
            TaskError: another run has it, or may have.
        """
        while not self._is_over():
            if self._age() <= self.lease_seconds * (1 - REQUEST_SHARE):
                return
            time.sleep(self.lease_seconds / 100)  # the next renewal is due
        raise self._lost_error()

    def put(self, key: str, content: bytes) -> None:
        """Write an object over the one that is there now, and over no other one.

        Raises:
            TaskError: another run has the right, or may have.
        """
        for _ in range(CONFLICTS):
            before = self.guarded.read(key)
            # The check before the next request proves that the lease was held when this was read.
            if before is None:
                version = self.guarded.put_new(key, content)
            else:
                version = self.guarded.replace(key, content, before[1].version)
            now = None if version else self.guarded.read(key)
            is_written = version or (now and now[0] == content)  # the latter: the answer was lost
            if is_written and not self._is_over():
                return
            if version and before:  # written late, and nobody else wrote meanwhile: undo it
                self.bucket.replace(key, before[0], version)
            elif now != before:
                break
        raise self._lost_error()

    def delete(self, keys: list[str]) -> None:
        """Delete objects that may exist, if any.

        Raises:
            TaskError: another run has the right, or may have.
        """
        self.check()
        self.guarded.delete(keys)
        if self._is_over():
            raise TaskError(
                f"{self.address}: this run lost its lease while it deleted files that another run "
                f"may need. `corpuskit verify {self.address}` names what is missing; run the same "
                "command again to make it again."
            )

    def _is_over(self) -> bool:
        return self._is_lost or self._age() >= self.lease_seconds

    def _lost_error(self) -> TaskError:
        return TaskError(
            f"{self.address}: this run could not renew its lease for {self.lease_seconds:.0f} s, "
            "so another one may have taken over. Nothing more is written. Run the same command "
            "again to continue."
        )

    def _age(self) -> float:
        return _clock() - self._renewed

    def _take(self) -> str:
        """Return the version of the lease, taken as soon as nobody holds it."""
        watched, since = "", 0.0
        while True:
            self._renewed = _clock()
            if tag := self.bucket.put_new(self.key, self._content()):
                return tag
            current = self.bucket.read(self.key)
            if current is None:
                continue
            holder, tag = _parse(current[0]), current[1].version
            if holder.get("owner") == self._owner:  # taken over, and the answer was lost
                return tag
            can_take = is_free(current[0]) or _is_dead(holder)
            if watched and tag != watched and not can_take:
                raise self._held_by(holder)
            if not watched:
                watched, since = tag, _clock()
            if can_take or _clock() - since >= self.lease_seconds:
                self._renewed = _clock()
                if version := self.bucket.replace(self.key, self._content(), tag):
                    return version
                continue
            remaining = self.lease_seconds - (_clock() - since)
            time.sleep(max(0.0, min(self.renew_seconds / 2, remaining)))

    def _held_by(self, holder: dict[str, Any]) -> UsageError:
        holder_name = f"process {holder.get('pid')!r} on {holder.get('host')!r}"[:120]
        return UsageError(
            f"{self.address}: another run is using this directory ({holder_name}). Wait for it, or "
            "set another output."
        )

    def _refuse_unconditional(self) -> None:
        """Refuse a server that ignores conditions: the lease itself is the probe."""
        content = self._content()
        broken = [
            name
            for name, version in (
                ("If-None-Match", self.bucket.put_new(self.key, content)),
                (
                    "If-Match",
                    self.bucket.replace(self.key, content, self.bucket.provider.no_version),
                ),
            )
            if version is not None
        ]
        if broken:
            self.bucket.delete([self.key])
            raise UsageError(
                f"{self.address}: the server at {self.bucket.endpoint} ignores {broken[0]}, so of "
                "two writers both could win. Use a server with conditional writes "
                "(docs/object_storage.md), or a local output."
            )

    def _keep(self) -> None:
        """Renew until the end, or until it is lost."""
        pause = self.renew_seconds
        while not self._stop.wait(pause) and not self._is_lost:
            began = _clock()
            is_renewed = False
            with contextlib.suppress(OSError):  # it may pass; `check` raises when it lasts too long
                is_renewed = self._renew()
            if is_renewed:
                self._renewed = began
            pause = self.renew_seconds / (1 if is_renewed else 4)

    def _renew(self) -> bool:
        """Replace the lease by one with the next beat; return whether that was written."""
        self._beat += 1
        tag = self.bucket.replace(self.key, self._content(), self._version)
        if tag is None:
            current = self.bucket.read(self.key)
            holder = _parse(current[0]) if current else {}
            if current is None or holder.get("owner") != self._owner:
                self._is_lost = True
                return False
            self._version = current[1].version
            return holder.get("beat") == self._beat  # it was renewed, and the answer was lost
        self._version = tag
        return True

    def _content(self) -> bytes:
        holder = {"owner": self._owner, "beat": self._beat, "pid": os.getpid()}
        return json.dumps({**holder, "host": socket.gethostname(), "machine": _machine()}).encode()


def lease_retries(retries: RetryPolicy, lease_seconds: float) -> RetryPolicy:
    """Return the retry policy of a lease holder: each request ends before the lease does."""
    limit = lease_seconds * REQUEST_SHARE
    return dataclasses.replace(
        retries, answer_seconds=min(retries.answer_seconds, limit), repeats_here=True
    )


def is_free(content: bytes | None) -> bool:
    """Return whether nobody holds the lease, by the content of its object."""
    return content is None or content == FREE


def _parse(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Return whether the holder was a process of this machine that is gone."""
    pid = holder.get("pid")
    is_here = holder.get("machine") == _machine()
    return is_here and isinstance(pid, int) and pid > 0 and not is_running(pid)


def is_running(process: int) -> bool:
    """Return whether a process of this machine lives, as far as that can be seen."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return process > 0


@functools.cache
def _machine() -> str:
    """Return a hash that two processes share exactly if each can see whether the other runs."""
    facts = [socket.gethostname()]
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        path = Path(name)
        if path.exists():
            facts.append(os.readlink(path) if path.is_symlink() else path.read_text("ascii"))
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()


def _clock() -> float:
    """Return seconds that go on while the machine sleeps, where the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
