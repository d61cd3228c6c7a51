"""Checkpoints that are complete or absent.

`step-00000120/` means: 120 steps are done, step 120 is next. It holds the sharded model and
optimizer as torch.distributed.checkpoint writes them, and `train.json` (record.py): step, model
shape, settings, hashes, the loader's state, and a digest of every file, computed while the file is
written. The folder is `step-00000120.tmp` until every rank's files are on disk, then it is renamed,
so a folder with its final name is complete; the next start deletes the others. Before a checkpoint
is loaded, every file is compared with its digest.

A checkpoint is trusted like code: torch unpickles its `.metadata`. Load only those you trust.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from corpuskit.errors import CorpuskitError, DataError
from corpuskit.storage.local import DigestedFile, sync_folder
from corpuskit.train.record import (
    CheckpointRecord,
    DamagedCheckpointError,
    complete_checkpoints,
    find_damage,
    folder_name,
    forgettable,
    read_record,
    require_checkpoint,
    write_record,
)

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.upload import Uploads


_COUNTERS = ("steps", "weights")  # of an optimizer's groups: state, where their rest is settings


class Damaged(NamedTuple):
    """A checkpoint that is not what was saved, and the difference."""

    folder: Path
    problem: str


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint whose files were compared with their digests."""

    folder: Path
    record: CheckpointRecord
    size_bytes: int  # of all its files
    seconds: float  # that verification took


class Checkpoints:
    """The checkpoints of one run.

    Every rank has an instance, and all call the same methods at the same steps. A save copies the
    state to host memory, then writes it in a thread while training continues; at most one save is
    in flight.

    Args:
        settings: of the run: where checkpoints are, how often to save, and which to keep.
        parallel: this rank.
        uploads: copies them elsewhere; rank 0 has it.
    """

    def __init__(
        self,
        settings: TrainSettings,
        parallel: Parallel,
        uploads: Uploads | None = None,
    ) -> None:
        self._folder = folder = Path(settings.output, "checkpoints")
        self._parallel, self._settings = parallel, settings
        self._uploads = uploads
        self._saved_at = time.monotonic()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Path, Future[None]] | None = None
        self.damaged: list[Damaged] = []
        if parallel.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("step-*.tmp"):
                if not leftover.is_symlink() and leftover.is_dir():
                    shutil.rmtree(leftover)

    def newest(self) -> Path | None:
        """Return the newest checkpoint in rank 0's view of the folder, unchecked; collective."""
        checkpoints = self._candidates(None)
        return checkpoints[0] if checkpoints else None

    def newest_verified(self, at_most: int | None = None) -> VerifiedCheckpoint | None:
        """Return the newest undamaged checkpoint; None if there are no checkpoints; collective.

        `damaged` then lists the damaged ones that are newer, to be reported and set aside.

        Args:
            at_most: of at most this many steps; if all are newer, the oldest. None for any.

        Raises:
            DataError: all are damaged; or one is of a format that this version does not read.
            CorpuskitError: a rank can't read one that is there.
        """
        self.damaged = []
        for folder in self._candidates(at_most):
            checkpoint, problem = self._examine(folder)
            if checkpoint:
                return checkpoint
            self.damaged.append(Damaged(folder, problem))
        if self.damaged:
            folder, problem = self.damaged[0]
            raise DataError(
                f"{folder}: the checkpoint is damaged: {problem}. No undamaged one is left: "
                f"restore one from a copy, or delete {self._folder} to begin at step 0."
            )
        return None

    def verified(self, folder: Path) -> VerifiedCheckpoint:
        """Return a checkpoint of another output; collective.

        Raises:
            UsageError: the folder is not a checkpoint.
            DataError: it is damaged.
        """
        require_checkpoint(folder)
        checkpoint, problem = self._examine(folder)
        if checkpoint is None:
            raise DataError(
                f"{folder}: the checkpoint is damaged: {problem}. Branch from another one."
            )
        return checkpoint

    def set_aside(self) -> list[Path]:
        """Rename the damaged checkpoints, so that saves may use their names; return new names."""
        names = []
        if self._parallel.rank == 0:
            for folder, _ in self.damaged:
                choices = (folder.with_suffix(f".damaged-{n}") for n in itertools.count(1))
                names.append(next(name for name in choices if not os.path.lexists(name)))
                folder.rename(names[-1])
            sync_folder(self._folder)
        self.damaged = []
        return names

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of more than `step` steps."""
        self.wait()
        if self._parallel.rank == 0:
            # The newest first: whatever a kill leaves then is a run that has not gone back so far.
            for number, checkpoint in reversed(complete_checkpoints(self._folder).items()):
                if number > step:
                    _delete(checkpoint)
            if self._uploads:
                self._uploads.forget_after()
        self._parallel.gather(None)

    def is_time(self) -> bool:
        """Return whether the last save is `every_minutes` ago on rank 0; collective if that is set.

        A broadcast of its own: the sum over a step does not reach all ranks of tensor groups.
        """
        minutes = self._settings.checkpoint.every_minutes
        if minutes is None:
            return False
        is_due = torch.tensor([time.monotonic() - self._saved_at >= 60 * minutes])
        dist.broadcast(is_due, 0, group=self._parallel.talk_group)
        return bool(is_due)

    def save(
        self, model: Decoder, optimizer: torch.optim.Optimizer, record: CheckpointRecord
    ) -> None:
        """Begin to save, after the previous save has ended."""
        self.wait()
        self._saved_at = time.monotonic()
        final = self._folder / folder_name(record.step)
        partial = final.with_suffix(".tmp")
        if self._parallel.rank == 0:
            partial.mkdir()
        dist.barrier(self._parallel.save_group)
        writer = dcp.FileSystemWriter(partial)  # fsyncs each file
        writer.fs = files = DigestedFiles()
        writing = dcp.async_save(
            _state(model, optimizer, self._parallel),
            storage_writer=writer,
            process_group=self._parallel.save_group,
        )
        assert isinstance(writing, Future), "the thread-based writer returns a future"
        self._pending = final, self._writer.submit(self._publish, writing, files, final, record)

    def poll(self) -> Path | None:
        """Return the checkpoint of the save in flight if it has ended, else None.

        Raises:
            CorpuskitError: the checkpoint could not be written. If only this rank knows, the others
                fail when its process ends.
        """
        return self.wait() if self._pending and self._pending[1].done() else None

    def wait(self) -> Path | None:
        """Wait for the save in flight, and return its checkpoint; None if there was no save.

        Raises:
            CorpuskitError: the checkpoint could not be written.
        """
        if self._pending is None:
            return None
        (final, saved), self._pending = self._pending, None
        try:
            saved.result()
        except (OSError, CheckpointException) as error:
            why = str(error).strip().splitlines()[-1]
            raise CorpuskitError(
                f"{final}: the checkpoint could not be written: {why}. "
                "Free space or repair the folder, then run again."
            ) from error
        return final

    def finish_uploads(self, beat: Callable[[], None]) -> None:
        """Wait until the newest checkpoint is copied.

        Args:
            beat: called every second.

        Raises:
            CorpuskitError: it could not be copied.
        """
        if self._uploads and (problem := self._uploads.wait(beat)):
            raise CorpuskitError(
                f"checkpoint.upload: {problem} All checkpoints are in {self._folder}: run the same "
                "command again to copy them."
            )
        if self._uploads:
            self._forget()

    def upload_reports(self) -> list[tuple[str, str]]:
        """Return kind and text of the events of uploads since the last call."""
        return list(self._uploads.reports()) if self._uploads else []

    def load(self, folder: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
        """Load a checkpoint into model and optimizer, whatever number of ranks wrote it.

        Raises:
            DataError: it is damaged.
        """
        state = _state(model, optimizer, self._parallel)
        reader = dcp.FileSystemReader(folder)
        try:
            dcp.load(state, storage_reader=reader, process_group=self._parallel.save_group)
        except CheckpointException as error:
            why = str(error).strip().splitlines()[-1]
            raise DataError(
                f"{folder}: the checkpoint can't be read: {why}. Move the folder away and run "
                "again, to go on from the one before."
            ) from error
        groups = optimizer.param_groups
        # torch refuses groups without parameters, which ranks of a pipeline have under muP.
        optimizer.param_groups = [group for group in groups if group["params"]]
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        # The rest of a group (betas, decays) is settings: those of this run hold.
        optimizer.param_groups = groups
        for group, saved in zip(groups, state["optimizer"]["param_groups"], strict=True):
            group.update({name: saved[name] for name in _COUNTERS if name in saved})

    def _candidates(self, at_most: int | None) -> list[Path]:
        """Return the checkpoints, in rank 0's view, in the order in which to try them."""
        local = complete_checkpoints(self._folder) if self._parallel.rank == 0 else {}
        by_step: dict[int, Path] = self._parallel.gather(local)[0]
        newer = [step for step in by_step if at_most is not None and step > at_most]
        older = [step for step in reversed(by_step) if step not in newer]
        return [by_step[step] for step in (*older, *newer)]

    def _examine(self, folder: Path) -> tuple[VerifiedCheckpoint | None, str]:
        """Return a checkpoint if it is undamaged, else what is wrong with it; collective."""
        start = time.perf_counter()
        record, problem, failure = None, "", None
        rank, ranks = self._parallel.rank, self._parallel.world_size
        try:
            record = read_record(folder)
            problem = find_damage(folder, record.files, rank, ranks)
        except DamagedCheckpointError as error:
            problem = error.problem
        except (CorpuskitError, OSError) as error:
            failure = error
        outcomes = self._parallel.gather((problem, failure))
        if failures := [error for _, error in outcomes if error]:
            raise failures[0]
        problem = "; ".join(dict.fromkeys(problem for problem, _ in outcomes if problem))
        if record is None or problem:
            return None, problem
        size = sum(size for size, _ in record.files.values())
        return VerifiedCheckpoint(folder, record, size, time.perf_counter() - start), ""

    def _publish(
        self, writing: Future[Any], files: DigestedFiles, final: Path, record: CheckpointRecord
    ) -> None:
        # Every rank's future ends when all ranks have reported their files as written.
        writing.result()
        by_rank: list[Any] = [None] * self._parallel.world_size
        dist.all_gather_object(by_rank, files.written, group=self._parallel.save_group)
        if self._parallel.rank:
            return
        partial = final.with_suffix(".tmp")
        digests = {name: digest for files in by_rank for name, digest in files.items()}
        write_record(partial, replace(record, files=digests))  # syncs the folder, too
        partial.rename(final)
        sync_folder(self._folder)
        self._forget()
        if self._uploads:
            self._uploads.request()

    def _forget(self) -> None:
        """Delete the checkpoints that no rule keeps, except one that is being uploaded."""
        local = complete_checkpoints(self._folder)
        uploading = self._uploads.held if self._uploads else None
        for step in forgettable(local, self._settings) - {uploading}:
            with contextlib.suppress(OSError):  # the newest is complete; the next save retries
                _delete(local[step])


class DigestedFiles(FileSystem):
    """The file system that torch writes to: records size and digest of each file."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[int, str]] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file for writing."""
        with DigestedFile(path, xxhash.xxh3_128(), mode) as stream:
            yield stream
        self.written[Path(path).name] = (stream.size_bytes, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file."""
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


def _state(model: Decoder, optimizer: torch.optim.Optimizer, parallel: Parallel) -> dict[str, Any]:
    is_new = not optimizer.state
    model_state, optimizer_state = get_state_dict(model, optimizer)
    if model.stages:
        # Groups name their parameters, and one rank's list is saved for all ranks of a pipeline.
        groups: Any = optimizer_state["param_groups"]
        lists = parallel.gather([group["params"] for group in groups])
        for number, group in enumerate(groups):
            names = dict.fromkeys(name for params in lists for name in params[number])
            group["params"] = sorted(names)
    if is_new:
        # To make the missing state, torch took a step without gradients, and counted it.
        for state in optimizer.state.values():
            if "step" in state:
                state["step"].zero_()
        for group in (*optimizer.param_groups, *optimizer_state["param_groups"]):
            group.update({"steps": 0} if "steps" in group else {})
    return {"model": model_state, "optimizer": optimizer_state}


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint; a kill in between leaves a `.tmp`, never half of a complete one."""
    doomed = checkpoint.with_suffix(".old.tmp")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)
