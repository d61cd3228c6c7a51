"""Copies of checkpoints at another location, usually a bucket, made while training continues.

The location has the names of OUTPUT: `checkpoints/step-N/`, `run.json`, `metrics.jsonl` and the
other files of lines. A checkpoint is copied file by file, each compared with its digest, and its
`train.json` last; it is deleted in the opposite order. So a checkpoint with a `train.json` is
complete, and readers ignore others. The lines are copied before the `train.json`, so they reach at
least as far as the checkpoint.

A failed copy is reported and retried after the next save. Only the end of a run waits for its copy,
and fails without it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, DataError, UsageError, describe
from corpuskit.storage import SCRATCH, LocalStore, open_store, write_whole
from corpuskit.storage.local import sync_folder
from corpuskit.train.metrics import FILES
from corpuskit.train.record import (
    FILE,
    complete_checkpoints,
    folder_name,
    forgettable,
    id_in,
    read_record,
    read_skips,
    step_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from corpuskit.storage import Store
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

PARALLEL_FILES = 4  # each with up to four requests in flight
FOLDER = "checkpoints"
LINES = tuple(f"{name}.jsonl" for name in FILES)


class Uploads:
    """The copies of one training's checkpoints; rank 0 makes them.

    Args:
        settings: of the training; `checkpoint.upload` says where the copies are.

    Attributes:
        store: where the copies are.
        held: the step that is being copied: its checkpoint must not be deleted yet.
    """

    def __init__(self, settings: TrainSettings) -> None:
        assert settings.checkpoint.upload is not None, "none without an address"
        self.store: Store = open_store(settings.checkpoint.upload)
        self.held: int | None = None
        self._output, self._settings = Path(settings.output), settings
        self._verified: set[int] = set()  # steps whose copy is that of the local checkpoint
        self._reports: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._problem = ""
        self._state = threading.Condition()
        self._is_requested = self._is_busy = False

    def restore(self) -> None:
        """Fetch the training's id and lines into a folder without them, as on a new machine.

        Raises:
            UsageError: it holds the copies of another training.
        """
        content, *lines = self.store.read_each(["run.json", *LINES])
        path = self._output / "run.json"
        if content is None or path.exists():
            self._require_own(content)
            return
        for name, text in zip(LINES, lines, strict=True):
            if text is not None:
                write_whole(self._output / name, text)
        write_whole(path, content)

    def newest(self, step: int) -> tuple[int, bytes] | None:
        """Return step and record of the newest copy, if it is of more than `step` steps.

        Copies made before a rollback are left out: they contain rows that the training now skips.
        """
        skips = read_skips(self._output)
        for copy in sorted((copied for copied in self._copies() if copied > step), reverse=True):
            [content] = self.store.read_each([f"{FOLDER}/{folder_name(copy)}/{FILE}"])
            if content is not None and _skips_of(content, skips)[: len(skips)] == skips:
                return copy, content
        return None

    def request(self) -> None:
        """Start to make the missing copies, in a thread; return at once."""
        with self._state:
            self._is_requested = True
            if not self._is_busy:
                self._is_busy = True
                # A daemon, not of an executor: the interpreter would wait for it after a failure.
                threading.Thread(target=self._work, name="upload", daemon=True).start()

    def wait(self, beat: Callable[[], None] | None = None) -> str:
        """Wait until all is copied or a copy failed; return why it failed, else an empty text.

        Args:
            beat: called every second.
        """
        self.request()
        with self._state:
            while not self._state.wait_for(lambda: not self._is_busy, timeout=1.0):
                if beat:
                    beat()
        return self._problem

    def forget_after(self) -> None:
        """Delete the copies of more steps than there are checkpoints of, after a rollback."""
        self._verified.clear()
        self.wait()

    def reports(self) -> Iterator[tuple[str, str]]:
        """Yield kind and text of the events since the last call."""
        while not self._reports.empty():
            yield self._reports.get()

    def report(self, kind: str, text: str) -> None:
        """Add a report."""
        self._reports.put((kind, text))

    def _work(self) -> None:
        try:
            while True:
                with self._state:
                    if not self._is_requested:
                        return
                    self._is_requested = False
                self._problem = "the copy was not finished."
                self._problem = self._attempt()
                if self._problem:
                    self.report("upload_failed", f"{self._problem} Tried again after the next save")
        finally:
            with self._state:
                self._is_busy, self.held = False, None
                self._state.notify_all()

    def _attempt(self) -> str:
        try:
            with self.store.lock():
                self._synchronise()
        except CorpuskitError as error:
            return str(error)
        except OSError as error:
            return describe(error)
        return ""

    def _synchronise(self) -> None:
        """Make the missing copies, the newest first; delete those that no rule keeps."""
        [content] = self.store.read_each(["run.json"])
        self._require_own(content)
        copies, local = self._copies(), self._local()
        # Copies newer than all checkpoints are from before a rollback.
        outdated = {step for step in copies if step > max(local, default=-1)}
        self._delete(outdated)
        copies -= outdated | {step for step in local & copies if not self._is_same(step)}
        while True:
            local = self._local()
            doomed = forgettable(copies | local, self._settings)
            missing = local - copies - doomed
            if not missing:
                break
            if self._copy(max(missing)):
                copies.add(max(missing))
        self._delete(doomed)
        self._delete(self._steps() - self._copies())  # incomplete ones of a killed run

    def _copy(self, step: int) -> bool:
        """Copy a checkpoint; return False if it was deleted meanwhile."""
        name, start = f"{FOLDER}/{folder_name(step)}", time.monotonic()
        self.held, folder = step, self._output / name
        local = LocalStore(folder)
        try:
            content, files = (folder / FILE).read_bytes(), read_record(folder).files
            self._delete([step])
            with ThreadPoolExecutor(PARALLEL_FILES, "upload") as threads:
                list(threads.map(
                    lambda file: self.store.adopt(
                        local.at(file, digest=files[file][1]), f"{name}/{file}"
                    ),
                    files,
                ))  # fmt: skip
        except (OSError, CorpuskitError):
            if folder.exists():
                raise
            return False
        self._copy_lines()
        self.store.put(f"{name}/{FILE}", content)
        self._verified.add(step)
        size, seconds = sum(size for size, _ in files.values()), time.monotonic() - start
        self.report("upload", f"{folder_name(step)}: {size / 1e6:,.1f} MB in {seconds:.1f} s")
        return True

    def _copy_lines(self) -> None:
        self.store.put("run.json", (self._output / "run.json").read_bytes())
        with self.store.scratch() as scratch:
            for name in LINES:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self._output / name, scratch / name)
                    self.store.publish(scratch / name, name)

    def _is_same(self, step: int) -> bool:
        """Return whether a copy is that of the local checkpoint: a rollback may repeat a step."""
        if step not in self._verified:
            name = f"{FOLDER}/{folder_name(step)}/{FILE}"
            [content] = self.store.read_each([name])
            if content == (self._output / name).read_bytes():
                self._verified.add(step)
        return step in self._verified

    def _require_own(self, content: bytes | None) -> None:
        """Refuse a location whose `run.json` is that of another training."""
        path = self._output / "run.json"
        if content is None or not path.exists():
            return
        copied_id = id_in(content, self.store.where("run.json"))
        local_id = id_in(path.read_bytes(), str(path))
        if copied_id != local_id:
            raise UsageError(
                f"checkpoint.upload: {self.store.address} has the checkpoints of another training "
                f"({copied_id}; {path} says {local_id}). Name another location; or, to continue "
                "that training here, set a new output."
            )

    @property
    def last(self) -> int:
        """Steps of the newest local checkpoint, -1 if there is none."""
        return max(self._local(), default=-1)

    def _local(self) -> set[int]:
        return set(complete_checkpoints(self._output / FOLDER))

    def _steps(self) -> set[int]:
        names = (name.split("/")[1] for name in self.store.list(FOLDER))
        return {step for name in names if (step := step_of(name)) is not None}

    def _copies(self) -> set[int]:
        """Return the steps whose copy is complete."""
        records = (name.split("/") for name in self.store.list(FOLDER) if name.endswith(f"/{FILE}"))
        return {step for _, name, _ in records if (step := step_of(name)) is not None}

    def _delete(self, steps: Iterable[int]) -> None:
        for step in steps:
            name = f"{FOLDER}/{folder_name(step)}"
            self.store.delete([f"{name}/{FILE}"])
            self.store.delete(self.store.list(name))


def fetch_newest(
    output: Path,
    address: str,
    uploads: Uploads | None,
    parallel: Parallel,
    beat: Callable[[], None],
) -> None:
    """Fetch the newest copy, if no local checkpoint is as new; collective, each rank a share.

    Args:
        output: of the training; all ranks see it.
        address: of the copies.
        uploads: on rank 0.
        parallel: this rank.
        beat: called after each file.

    Raises:
        DataError: a file is not what was saved.
        OSError: the copies can't be read.
    """
    start = time.monotonic()
    newest = parallel.gather(uploads.newest(uploads.last) if uploads else None)[0]
    if newest is None:
        return
    step, content = newest
    name = f"{FOLDER}/{folder_name(step)}"
    folder, failure = output / name, None
    partial = folder.with_suffix(".tmp")
    if uploads:
        shutil.rmtree(partial, ignore_errors=True)
        LocalStore(partial).put(FILE, content)
    parallel.gather(None)  # the record is written
    try:
        files, store = read_record(partial).files, open_store(address)
        for file in sorted(files)[parallel.rank :: parallel.world_size]:
            copy = store.at(f"{name}/{file}", digest=files[file][1])
            LocalStore(partial).adopt(copy, file)
            beat()
    except (CorpuskitError, OSError) as error:
        failure = error
    for failed in parallel.gather(failure):
        if isinstance(failed, DataError | FileNotFoundError):
            raise DataError(
                f"{address}/{name}: the checkpoint is damaged: {failed} Delete its "
                f"{FILE}, to go on from the one before."
            )
        if failed:
            raise failed
    if uploads:
        shutil.rmtree(partial / SCRATCH, ignore_errors=True)
        partial.rename(folder)
        sync_folder(folder.parent)
        size, seconds = sum(size for size, _ in files.values()), time.monotonic() - start
        uploads.report("fetch", f"{address}/{name}: {size / 1e6:,.1f} MB in {seconds:.1f} s")
    parallel.gather(None)


def _skips_of(content: bytes, default: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a record skips; `default` of a damaged one, which is refused later."""
    try:
        return list(json.loads(content).get("skips", []))
    except (ValueError, AttributeError, TypeError):
        return default
