"""The output folder of a training: one training at a time, and which training it is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import time
import uuid
from typing import IO, TYPE_CHECKING

from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.storage import LocalStore
from corpuskit.train.record import read_record, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from corpuskit.train.parallel import Parallel

WAIT_SECONDS = 20.0  # ranks that were told to end may still be saving


@contextlib.contextmanager
def claim(output: Path, parallel: Parallel) -> Iterator[str]:
    """Hold the folder while entered, and yield the id that its training got at its first start.

    Rank 0 locks `lock`; the lock goes with the process, however that ends. Where the file system
    has no locks, nothing is held.

    Raises:
        UsageError: another process trains into this folder.
        DataError: `run.json` is damaged.
    """
    with contextlib.ExitStack() as stack:
        identity = ""
        if parallel.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context((output / "lock").open("a")), output)
            identity = _identity(output)
        yield parallel.gather(identity)[0]


def _lock(file: IO[str], output: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{output}: another process trains into this folder. Wait for it, end it, or "
                    "set another output; `corpuskit train FILE --status` says where its ranks are."
                ) from None
            time.sleep(0.2)
        else:
            return


def _identity(output: Path) -> str:
    place = output / "run.json"
    if not place.exists():
        fields = {"format": 1, "id": _identity_of_checkpoints(output) or uuid.uuid4().hex}
        LocalStore(output).put("run.json", json.dumps(fields).encode())
    try:
        return str(json.loads(place.read_bytes())["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: says no id: {error}. Restore it, or delete it.") from None


def _identity_of_checkpoints(output: Path) -> str | None:
    """Return the id in the newest readable checkpoint: of a training that goes on elsewhere."""
    for folder in sorted(output.glob("checkpoints/step-*"), reverse=True):
        with contextlib.suppress(CorpuskitError):
            if step_of(folder.name) is not None and (known := read_record(folder).run):
                return known
    return None
