"""Checkpoints that are complete or absent.

`step-00000120/` means: 120 steps are done, step 120 is next. It holds the sharded model and
optimizer as torch.distributed.checkpoint writes them, and `train.json`: step, model shape,
settings, hashes, the loader's state. It is written as `step-00000120.tmp`, made durable, and
renamed when every rank's part is on disk, so a folder under its final name is whole; whatever else
a killed run left is deleted by the next one.

A checkpoint is trusted like code: torch unpickles its `.metadata`. Load none that others made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.storage import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import ModelShape, TrainSettings

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})$")


@dataclass(frozen=True, slots=True)
class Record:
    """What `train.json` says."""

    step: int  # steps done
    shape: dict[str, Any]  # ModelShape
    settings: dict[str, Any]  # TrainSettings
    settings_hash: str
    plan_hash: str  # of the mix plan whose rows were consumed
    loader: dict[str, Any]  # the loader's own state
    world_size: int  # ranks that wrote it; any number may read it


def read_record(folder: Path) -> Record:
    """Read a checkpoint's `train.json`.

    Raises:
        DataError: it is not one of ours, or of a newer format.
    """
    place = folder / "train.json"
    try:
        fields = json.loads(place.read_bytes())
        number = fields.pop("format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{place}: no checkpoint record: {error}. Delete {folder}.") from None
    if number != FORMAT:
        raise DataError(f"{place}: format {number!r} is not known. Use a newer corpuskit.")
    try:
        return Record(**fields)
    except TypeError as error:
        raise DataError(f"{place}: no checkpoint record: {error}. Delete {folder}.") from None


def require_same_run(
    folder: Path, record: Record, shape: ModelShape, settings: TrainSettings
) -> None:
    """Refuse to go on from a checkpoint of another model, or with steps of another size.

    Raises:
        UsageError: names every difference.
    """
    there = {**record.shape, "global_rows": record.settings["batch"]["global_rows"]}
    here = {**asdict(shape), "global_rows": settings.batch.global_rows}
    differing = [
        f"{name} {there.get(name)!r} there, {value!r} here"
        for name, value in here.items()
        if there.get(name) != value
    ]
    if differing:
        raise UsageError(
            f"{folder}: the checkpoint is of another run: {'; '.join(differing)}. "
            "Restore these settings, or set another output."
        )


class Checkpoints:
    """The checkpoints of one run.

    Every rank has one, and all call the same methods at the same steps. A save copies the state to
    host memory, then writes in a thread while training goes on; at most one is in flight.

    Args:
        folder: holds the `step-*` folders.
        parallel: this rank.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, parallel: Parallel, keep: int) -> None:
        self._folder, self._parallel, self._keep = folder, parallel, keep
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Path, Future[None]] | None = None
        if parallel.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("step-*.tmp"):
                if not leftover.is_symlink() and leftover.is_dir():
                    shutil.rmtree(leftover)

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint, as rank 0 sees it."""
        answer: list[Path | None] = [None]
        if self._parallel.rank == 0 and (found := _complete(self._folder)):
            answer = [found[-1]]
        dist.broadcast_object_list(answer, src=0, group=self._parallel.save_group)
        return answer[0]

    def save(self, model: Decoder, optimizer: torch.optim.Optimizer, record: Record) -> None:
        """Begin to save; wait first for the save before."""
        self.wait()
        final = self._folder / f"step-{record.step:08d}"
        partial = final.with_suffix(".tmp")
        if self._parallel.rank == 0:
            partial.mkdir()
        dist.barrier(self._parallel.save_group)
        writing = dcp.async_save(
            _state(model, optimizer),
            storage_writer=dcp.FileSystemWriter(partial),  # fsyncs each file
            process_group=self._parallel.save_group,
        )
        assert isinstance(writing, Future), "the thread-based writer returns a future"
        self._pending = final, self._writer.submit(self._publish, writing, final, record)

    def poll(self) -> None:
        """Raise what the save in flight has failed with, if it has.

        Raises:
            CorpuskitError: the checkpoint could not be written. If only this rank knows, the others
                fail when its process ends.
        """
        if self._pending and self._pending[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save in flight.

        Raises:
            CorpuskitError: the checkpoint could not be written.
        """
        if self._pending is None:
            return
        (final, saved), self._pending = self._pending, None
        try:
            saved.result()
        except (OSError, CheckpointException) as error:
            why = str(error).strip().splitlines()[-1]
            raise CorpuskitError(
                f"{final}: the checkpoint could not be written: {why}. "
                "Free space or repair the folder, then run again."
            ) from error

    def load(self, folder: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
        """Load a checkpoint into model and optimizer, whatever number of ranks wrote it."""
        state = _state(model, optimizer)
        reader = dcp.FileSystemReader(folder)
        dcp.load(state, storage_reader=reader, process_group=self._parallel.save_group)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def _publish(self, writing: Future[Any], final: Path, record: Record) -> None:
        # Rank 0's future ends when every rank has reported its files as written.
        writing.result()
        if self._parallel.rank:
            return
        partial = final.with_suffix(".tmp")
        fields = {"format": FORMAT, **asdict(record)}
        LocalStore(partial).put("train.json", json.dumps(fields).encode())  # syncs the folder, too
        partial.rename(final)
        _sync(self._folder)
        for old in _complete(self._folder)[: -self._keep]:
            _delete(old)


def _state(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [path for path in folder.iterdir() if _NAME.match(path.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint; a kill in between leaves a `.tmp`, never half of a complete one."""
    doomed = checkpoint.with_suffix(".old.tmp")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
