"""What all adapters of loaders do: one loader, opened, walked, stopped and measured in a process.

An adapter is `python benchmarks/peers/loader_<peer>.py REQUEST.json OUT.json`, run by the
interpreter of the peer's own environment, and needs nothing of corpuskit. The request names a folder
of rows (`raw/<source>.npy`, uint16), which each loader stores in its own format, and an action:
`write`, `speed`, `first`, `memory`, `access`, `walk` or `which`. The first two tokens of a row are
the number of its source and its number in the source where a test must know the rows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import itertools
import json
import pickle
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

IDS_ONLY, WITH_LABELS = "token ids", "ids and labels"


@dataclass(frozen=True)
class Spec:
    """How a loader is to be opened.

    Attributes:
        store: the folder of its own format.
        width: tokens of a row, seq_len + 1.
        global_rows: rows of a step over all ranks.
        workers: processes or threads that read ahead; 0 for none where there is a choice.
        variant: which way to use the loader, where there are several.
        weights: sources and their integer weights; None for the only source, `web`.
        num_epochs: how many epochs the run has, for loaders that want to know.
    """

    store: str
    width: int
    global_rows: int = 8
    rank: int = 0
    world_size: int = 1
    workers: int = 0
    variant: str = ""
    weights: Mapping[str, int] | None = None
    num_epochs: int = 1
    seed: int = 7
    part_rows: int = 0
    """Rows of a file of the store; 0: 64 MB."""

    @property
    def batch_rows(self) -> int:
        """Rows of this rank in a step."""
        return self.global_rows // self.world_size

    @property
    def rows_per_part(self) -> int:
        return self.part_rows or (64 << 20) // (2 * self.width) // 64 * 64

    @property
    def names(self) -> list[str]:
        return list(self.weights or {"web": 1})


class RefusedError(Exception):
    """The loader has no such feature: the reason."""


@dataclass
class Loader:
    """One loader; the adapters derive from it."""

    distributions: ClassVar[tuple[str, ...]] = ()
    """Of which the versions are noted."""
    delivers: ClassVar[str] = ""
    """What a batch is made of."""

    spec: Spec
    opened: Any = field(default=None, init=False)

    def load_library(self) -> None:
        """Import what the loader needs."""
        raise NotImplementedError

    def write(self, rows: Mapping[str, NDArray[np.uint16]]) -> None:
        """Store the rows of each source in the loader's own format."""
        raise NotImplementedError

    def open(self, state: Any = None) -> None:
        """Open the store, at a saved state if there is one."""
        raise NotImplementedError

    def epoch(self) -> Iterator[Any]:
        """Yield the batches from here to the end of the epoch, or of the run for a mixture."""
        raise NotImplementedError

    def state(self) -> Any:
        """Return the position behind the batch that was delivered last."""
        raise RefusedError("it has no state")

    def state_at(self, share: float) -> Any:
        """Return the state behind a share of an epoch; by going there, unless there is a way."""
        self.open()
        batches = self.epoch()
        for _ in itertools.islice(batches, max(1, int(self.num_steps() * share))):
            pass
        return self.state()

    def num_steps(self) -> int:
        """Return the steps of an epoch."""
        rows = np.load(Path(self.spec.store).parent / "raw" / "web.npy", mmap_mode="r")
        return len(rows) // self.spec.global_rows

    def tokens(self, batch: Any) -> NDArray[Any]:
        """Return the token ids of a batch: (rows, seq_len or more)."""
        return np.asarray(batch)

    def step(self, number: int) -> Any:
        """Return the rows of one step, out of turn."""
        raise RefusedError("no random access")

    def which(self, number: int) -> list[list[str]]:
        """Return the ids of the documents of each row of a step."""
        raise RefusedError("it does not know documents")

    def close(self) -> None:
        """Let go of what is open."""


def serve(kind: type[Loader]) -> None:
    """Do what the request asks for, and write what came out."""
    request_path, out = sys.argv[1:]
    request = json.loads(Path(request_path).read_text("utf-8"))
    loader = kind(Spec(**request["spec"]))
    facts: dict[str, Any] = {}
    try:
        begun = time.process_time()
        loader.load_library()
        facts["import_seconds"] = time.process_time() - begun
        facts["delivers"] = loader.delivers
        facts["versions"] = versions(loader.distributions)
        facts |= ACTIONS[request["action"]](loader, request)
    except RefusedError as reason:
        facts["not_offered"] = str(reason)
    except Exception as error:  # noqa: BLE001 - what a peer raises is a result
        facts["error"] = f"{type(error).__name__}: {str(error).strip()}"
        facts["trace"] = traceback.format_exc()
    Path(out).write_text(json.dumps(facts), "utf-8")
    sys.stdout.flush()
    signal.alarm(30)  # threads and processes of loaders have been seen to hang at exit


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed distributions."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def write(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Store the rows of `raw`."""
    raw = Path(request["raw"])
    Path(loader.spec.store).mkdir(parents=True)
    loader.write({name: np.load(raw / f"{name}.npy") for name in loader.spec.names})
    return {}


def speed(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Deliver whole epochs until the time is over; the first, which fills caches, is not counted.

    An epoch that takes longer than the time is cut.
    """
    loader.open()
    rows = loader.spec.batch_rows
    for _ in itertools.islice(loader.epoch(), request["warm_steps"]):
        pass
    loader.close()
    loader.open()
    gc.collect()
    num_rows, begun, wall = 0, time.process_time(), time.perf_counter()
    end = begun + request["seconds"]
    while time.process_time() < end:
        for batch in loader.epoch():
            last, num_rows = batch, num_rows + rows
            if num_rows % 1024 == 0 and time.process_time() > end + 1:
                break
    spent, passed = time.process_time() - begun, time.perf_counter() - wall
    shown = loader.tokens(last)
    return {
        "tokens": num_rows * (loader.spec.width - 1),
        "cpu_seconds": spent,
        "wall_seconds": passed,
        "batch": f"{shown.dtype} {list(shown.shape)}",
    }


def first(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure from after the import to the first batch, at a share of the epoch."""
    state = None
    if request["share"]:
        path = Path(request["state"])
        if not path.exists():
            path.write_bytes(pickle.dumps(loader.state_at(request["share"])))
            return {}  # the file is there for the next process, which has nothing open
        state = pickle.loads(path.read_bytes())
    begun, wall = time.process_time(), time.perf_counter()
    loader.open(state)
    batches = iter(loader.epoch())
    batch = next(batches)
    spent = time.process_time() - begun
    return {
        "cpu_seconds": spent,
        "wall_seconds": time.perf_counter() - wall,
        "row": loader.tokens(batch)[0, :64].tolist(),
        "open_parts": open_files(loader.spec.store),
    }


def open_files(store: str) -> int:
    """Return how many files of the store this process holds open; -1 where that is not known."""
    links = []
    for link in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            links.append(str(link.readlink()))
    return sum(link.startswith(store) for link in links) if links else -1


def memory(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Deliver rows over epochs and note the memory that is not of files, a hundred times."""
    loader.open()
    rows, num_rows, noted = loader.spec.batch_rows, 0, []
    every = max(rows, request["rows"] // 100 // rows * rows)
    begun = time.process_time()
    while num_rows < request["rows"] and time.process_time() - begun < request["seconds"]:
        for _ in loader.epoch():
            num_rows += rows
            if num_rows % every == 0:
                noted.append((num_rows, anonymous_bytes()))
            if num_rows >= request["rows"] or time.process_time() - begun > request["seconds"]:
                break
    return {"rows": num_rows, "noted": noted, "cpu_seconds": time.process_time() - begun}


def anonymous_bytes() -> int:
    """Return the resident memory of this process that is no mapped file."""
    status = Path("/proc/self/status")
    if not status.exists():
        raise RefusedError("memory is only measured on Linux")
    lines = status.read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def access(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Take single steps out of turn."""
    loader.open()
    chosen = random.Random(0).choices(range(loader.num_steps()), k=request["steps"] + 1)
    loader.step(chosen.pop())
    begun = time.process_time()
    for number in chosen:
        loader.step(number)
    return {"cpu_seconds": (time.process_time() - begun) / len(chosen)}


def walk(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Deliver batches and note their rows.

    The request may have `load`, the path of a state; `saves`, paths of states to save by number of
    batches delivered; `steps`, after which to stop (else the end of `epochs`); `pause`, seconds before
    a state is saved that let loaders read ahead; `check`, a folder of rows to compare with; and
    `hold`, a file to make at the end, to wait for being killed.
    """
    state = pickle.loads(Path(request["load"]).read_bytes()) if request.get("load") else None
    saves, limit = request.get("saves", {}), request.get("steps")
    loader.open(state)
    epochs, num = [], 0
    for _ in range(request.get("epochs", 1)):
        seen: list[list[int]] = []
        epochs.append(seen)
        for batch in loader.epoch():
            num += 1
            shown = loader.tokens(batch)
            seen.append([int(one) << 16 | int(two) for one, two in shown[:, :2].tolist()])
            if request.get("check"):
                check(shown, request["check"])
            if str(num) in saves:
                time.sleep(request.get("pause", 0))
                Path(saves[str(num)]).write_bytes(pickle.dumps(loader.state()))
            if num == limit:
                break
        if num == limit:
            break
    if request.get("hold"):
        Path(request["hold"]).write_text("ready", "utf-8")
        time.sleep(600)
    return {"epochs": epochs}


def check(shown: NDArray[Any], raw: str) -> None:
    """Compare the rows of a batch with those that were stored.

    Raises:
        ValueError: a row is not the stored one.
    """
    stored = {number: np.load(path) for number, path in enumerate(sorted(Path(raw).glob("*.npy")))}
    for row in shown:
        source, number = int(row[0]), int(row[1])
        good = source in stored and number < len(stored[source])
        if not good or (stored[source][number][: len(row)] != row).any():
            raise ValueError("ALTERED ROW DELIVERED")


def which(loader: Loader, request: Mapping[str, Any]) -> dict[str, Any]:
    """Name the documents of a step."""
    loader.open()
    return {"documents": loader.which(request["step"])}


ACTIONS = {
    "write": write,
    "speed": speed,
    "first": first,
    "memory": memory,
    "access": access,
    "walk": walk,
    "which": which,
}
