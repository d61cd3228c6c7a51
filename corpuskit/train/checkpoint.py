"""Checkpoints that are complete or absent.

`step-00000120/` means: 120 steps are done, step 120 is next. It holds the sharded model and
optimizer as torch.distributed.checkpoint writes them, and `train.json`: step, model shape,
settings, hashes, the loader's state. It is written as `step-00000120.tmp`, made durable, and
renamed when every rank's part is on disk, so a folder under its final name is whole; whatever else
a killed run left is deleted by the next one.

A checkpoint is trusted like code: torch unpickles its `.metadata`. Load none that others made.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from corpuskit.errors import CorpuskitError, DataError, UsageError, describe
from corpuskit.storage import LocalStore
from corpuskit.storage.local import sync_folder

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
    guard: dict[str, Any] | None = None  # what the spike guard compares the next step with


def read_record(folder: Path) -> Record:
    """Read a checkpoint's `train.json`.

    Raises:
        DataError: it is not one of ours, or of a newer format.
    """
    place = folder / "train.json"
    try:
        fields = json.loads(place.read_bytes())
        number = fields.pop("format")
    except OSError as error:
        raise CorpuskitError(
            f"{describe(error)} Every node must see the output folder, and may read it."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{place}: no checkpoint record: {error}. Move {folder} away and run again, to go on "
            "from the one before."
        ) from None
    if number != FORMAT:
        raise DataError(f"{place}: format {number!r} is not known. Use a newer corpuskit.")
    try:
        return Record(**fields)
    except TypeError as error:
        raise DataError(
            f"{place}: no checkpoint record: {error}. Move {folder} away and run again, to go on "
            "from the one before."
        ) from None


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
        keep_every: multiples of so many steps stay for good; None for none.
    """

    def __init__(
        self, folder: Path, parallel: Parallel, keep: int, keep_every: int | None = None
    ) -> None:
        self._folder, self._parallel = folder, parallel
        self._keep, self._keep_every = keep, keep_every
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: tuple[Path, Future[None]] | None = None
        if parallel.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob("step-*.tmp"):
                if not leftover.is_symlink() and leftover.is_dir():
                    shutil.rmtree(leftover)

    def newest(self, at_most: int | None = None) -> Path | None:
        """Return the newest complete checkpoint, as rank 0 sees it.

        Args:
            at_most: of so many steps; if all are newer, the oldest of them. None for any.
        """
        answer: Path | None = None
        if self._parallel.rank == 0 and (there := _complete(self._folder)):
            older = [one for one in there if at_most is None or _step(one) <= at_most]
            answer = older[-1] if older else there[0]
        answers: list[Path | None] = self._parallel.gather(answer)
        return answers[0]

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of more steps than that."""
        self.wait()
        if self._parallel.rank == 0:
            # The newest first: whatever a kill leaves, the newest of it is not yet to be deleted.
            for checkpoint in reversed(_complete(self._folder)):
                if _step(checkpoint) > step:
                    _delete(checkpoint)
        self._parallel.gather(None)

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

    def poll(self) -> Path | None:
        """Return the checkpoint that the save in flight has written, if it has ended.

        Raises:
            CorpuskitError: the checkpoint could not be written. If only this rank knows, the others
                fail when its process ends.
        """
        return self.wait() if self._pending and self._pending[1].done() else None

    def wait(self) -> Path | None:
        """Wait for the save in flight, and return what it has written; None if there was none.

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

    def load(self, folder: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
        """Load a checkpoint into model and optimizer, whatever number of ranks wrote it.

        Raises:
            DataError: it is damaged.
        """
        state = _state(model, optimizer)
        reader = dcp.FileSystemReader(folder)
        try:
            dcp.load(state, storage_reader=reader, process_group=self._parallel.save_group)
        except CheckpointException as error:
            why = str(error).strip().splitlines()[-1]
            raise DataError(
                f"{folder}: the checkpoint can't be read: {why}. Move the folder away and run "
                "again, to go on from the one before."
            ) from error
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
        sync_folder(self._folder)
        for old in _complete(self._folder)[: -self._keep]:
            if not self._keep_every or _step(old) % self._keep_every:
                with contextlib.suppress(OSError):  # the new one is complete; the next save tries
                    _delete(old)


def _state(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    is_new = not optimizer.state
    model_state, optimizer_state = get_state_dict(model, optimizer)
    if is_new:
        # torch has made the missing state by a step without gradients, and counted it.
        for one in optimizer.state.values():
            one["step"].zero_()
    return {"model": model_state, "optimizer": optimizer_state}


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [path for path in folder.iterdir() if _NAME.match(path.name)]
    return sorted(found, key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint; a kill in between leaves a `.tmp`, never half of a complete one."""
    doomed = checkpoint.with_suffix(".old.tmp")
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)
