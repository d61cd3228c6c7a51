"""Damages checkpoints of a small training, then goes on from them.

`python -m tests.faults.checkpoints --num 100`, or one case with `--seed N`.

A training of 8 steps was stopped after 6; its checkpoints of steps 2, 4 and 6 were written by two
ranks. Each case damages a copy, and goes on. Either the damage is refused in one line that names
what is damaged, or losses and last checkpoint are those of the undisturbed run, bit for bit, and a
checkpoint that was passed over is named (`healed`). Nothing else is allowed.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

from corpuskit.errors import CorpuskitError
from corpuskit.train.checkpoint import Checkpoints
from corpuskit.train.loop import train
from corpuskit.train.metrics import Event
from corpuskit.train.optim import build_optimizer
from corpuskit.train.parallel import build_model, join
from corpuskit.train.record import read_record
from corpuskit.train.settings import CheckpointSettings, ModelShape, TrainSettings
from tests.faults.file_damage import Damage, copy_over, damage_one, run_command, swap
from tests.train.conftest import Ranks, write_run
from tests.train.test_kills import losses_of, read_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

STEPS, STOPPED, EVERY = 8, 6, 2


class CheckpointRange:
    """A stopped training, another one, and how the first goes on undisturbed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = str(write_run(folder / "data"))
        for name, seed in (("stopped", 0), ("other", 1)):
            Ranks(1, work, (self.settings(name, STOPPED, seed),), has_group=False).answers()
            Ranks(2, save_by_two, (self.settings(name),)).answers()
        # From here on in this process.
        self.parallel = join(self.settings("stopped"))
        shutil.copytree(folder / "stopped", folder / "calm")
        train(self.settings("calm"), self.parallel)
        self.losses = losses_of(self.settings("calm"))
        self.tensors = read_tensors(folder / "calm" / "checkpoints" / f"step-{STEPS:08d}")

    def settings(self, output: str, steps: int = STEPS, seed: int = 0) -> TrainSettings:
        """Return the settings of a training into a folder."""
        fields = {
            "data": self.data,
            "output": str(self.folder / output),
            "model": {"dim": 8, "layers": 1, "heads": 1, "kv_heads": 1, "ffn_dim": 8},
            "batch": {"global_rows": 4, "micro_rows": 4},
            "steps": steps,
            "seed": seed,
            "schedule": {"kind": "constant", "warmup_tokens": 0},
            "optimizer": {"lr": 1e-2},
            "checkpoint": {"every_steps": EVERY, "keep": 9, "background": False},
            "device": "cpu",
        }
        return TrainSettings.model_validate(fields)

    def play(self, seed: int) -> tuple[str, str]:
        """Play a case; return what was damaged and what came of it: `SILENT` and more is bad."""
        rng = random.Random(seed)
        output = self.folder / "case"
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(self.folder / "stopped", output)
        damage = self.damage(rng, output)
        told: list[str] = []
        try:
            train(
                self.settings("case"),
                self.parallel,
                lambda what: told.append(str(what)) if isinstance(what, Event) else None,
            )
        except CorpuskitError as error:
            message = str(error)
            names = {part for path in damage.paths for part in path.relative_to(output).parts}
            is_named = any(name in message for name in names - {"checkpoints"})
            outcome = "refused" if is_named else "SILENT about the name"
            return damage.what, f"{outcome}: {message}"
        except Exception as error:  # noqa: BLE001  whatever else is raised is what we look for
            return damage.what, f"SILENT raw error: {type(error).__name__}: {error}"
        return damage.what, self.compare(output, told)

    def compare(self, output: Path, told: Iterable[str]) -> str:
        """Return how a finished run differs from the undisturbed one."""
        if losses_of(self.settings("case")) != self.losses:
            return "SILENT: other losses"
        ours = read_tensors(output / "checkpoints" / f"step-{STEPS:08d}")
        if any(not torch.equal(ours[name], one) for name, one in self.tensors.items()):
            return "SILENT: other weights"
        passed_over = [line for line in told if line.startswith("damaged_checkpoint: ")]
        return f"healed: {passed_over[0]}" if passed_over else "identical"

    def damage(self, rng: random.Random, output: Path) -> Damage:
        """Damage the checkpoints of a copy."""
        folders = sorted((output / "checkpoints").glob("step-*"))
        target = rng.choice((folders[-1], folders[-1], *folders))
        files = sorted(target.iterdir())
        shards = [path for path in files if path.suffix == ".distcp"]
        other = self.folder / "other" / "checkpoints"
        kind = rng.choice(KINDS)
        if kind in FOLDER_KINDS:
            return damage_folders(rng, kind, target, folders, other)
        if kind == "swap between ranks":
            return swap(rng, shards)
        earlier = rng.choice([folder for folder in folders if folder != target])
        name = rng.choice(files).name
        if kind == "swap between steps":
            return swap(rng, [earlier / name, target / name])
        if kind == "a file of another step":
            return copy_over(earlier / name, target / name)
        if kind == "a file of another training":
            return copy_over(other / target.name / name, target / name)
        if kind == "an extra file":
            return copy_over(shards[0], target / "__7_0.distcp")
        if kind == "of all checkpoints":
            every = [damage_one(rng, rng.choice(sorted(one.iterdir()))) for one in folders]
            paths = tuple(path for one in every for path in one.paths)
            return Damage("; ".join(one.what for one in every), paths)
        return damage_one(rng, output / "run.json" if kind == "run.json" else target / name)


FOLDER_KINDS = (
    "a folder of another training", "rename", "duplicate", "stale .tmp", "swap folders",
    "delete the folder", "a file in the place of the folder",
)  # fmt: skip
KINDS = (
    *("one file",) * 8, "swap between ranks", "swap between steps", "a file of another step",
    "a file of another step", "a file of another training", "an extra file", "of all checkpoints",
    "run.json", *FOLDER_KINDS,
)  # fmt: skip


def damage_folders(
    rng: random.Random, kind: str, target: Path, folders: list[Path], other: Path
) -> Damage:
    """Do something to whole checkpoints."""
    new = target.with_name(f"step-{rng.choice((1, 5, 7, 8, 99, 10**9)):08d}")
    if kind == "a folder of another training":
        return copy_over(other / target.name, target)
    if kind == "rename":
        target.rename(new)
    elif kind == "duplicate":
        shutil.copytree(target, new)
    elif kind == "stale .tmp":
        new = target.with_name(f"step-{STEPS:08d}.tmp")
        shutil.copytree(target, new)
    elif kind == "swap folders":
        new, between = rng.choice([one for one in folders if one != target]), target / "../between"
        for old, name in ((target, between), (new, target), (between, new)):
            old.rename(name)
    else:
        shutil.rmtree(target)
        if kind != "delete the folder":
            target.write_bytes(b"step")
    return Damage(f"{kind} {target.name} {new.name}", (target, new))


def work(settings: TrainSettings) -> None:
    """Train as one rank."""
    train(settings, join(settings))


def save_by_two(settings: TrainSettings) -> None:
    """Write the checkpoints of a training again, by the ranks that run this."""
    parallel = join(settings)
    folder = Path(settings.output, "checkpoints")
    single = folder.with_name("single")
    if parallel.rank == 0:
        folder.rename(single)
    dist.barrier()
    keeping = settings.model_copy(update={"checkpoint": CheckpointSettings(keep=9)})
    checkpoints = Checkpoints(keeping, parallel)
    for place in sorted(single.iterdir()):
        record = read_record(place)
        model = build_model(ModelShape(**record.shape), settings, parallel)
        optimizer = build_optimizer(model, settings.optimizer)
        checkpoints.load(place, model, optimizer)
        checkpoints.save(model, optimizer, replace(record, world_size=2, files={}))
        checkpoints.wait()
    dist.barrier()
    if parallel.rank == 0:
        shutil.rmtree(single)


if __name__ == "__main__":
    sys.exit(run_command("tests.faults.checkpoints", __doc__, CheckpointRange, 100))
