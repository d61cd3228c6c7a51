"""Kills at random moments around a save: the newest checkpoint loads, and the losses go on.

benchmarks/train_kills.py does the same many more times, and kills ranks under torchrun.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import random
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from corpuskit.train.loop import train
from corpuskit.train.metrics import StepMetrics, TrainResult, Update
from corpuskit.train.parallel import join
from corpuskit.train.record import read_record
from tests.patience import HANG_SECONDS
from tests.train.conftest import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow

WHERE = (
    "between saves", "before the save", "at its start", "in its files", "before its record",
    "before its new name", "in a deletion", "after the save",
)  # fmt: skip
IN = WHERE[2:6]
MODEL = {"dim": 32, "layers": 1, "heads": 4, "kv_heads": 2, "ffn_dim": 64}
EXPERTS = {"count": 4, "per_token": 2, "bias_rate": 0.01}
FORMS: dict[str, dict[str, Any]] = {
    "alone": {"model": MODEL},
    "pipeline": {"model": MODEL | {"layers": 2, "tied": False}, "parallel": {"pipeline": 2}},
    "experts": {"model": MODEL | {"experts": EXPERTS}, "parallel": {"expert": 2}},
}
"""How a model is trained: by one rank, or shared by two."""


@pytest.mark.parametrize(
    ("form", "every_steps", "kills"),
    [("alone", 1, 8), ("alone", 2, 8), ("pipeline", 1, 3), ("experts", 1, 3)],  # benchmark: more
)
def test_a_kill_at_any_moment_leaves_a_checkpoint_that_goes_on(
    form: str,
    every_steps: int,
    kills: int,
    settings_for: Callable[..., TrainSettings],
    tmp_path: Path,
) -> None:
    build = functools.partial(build_tiny, settings_for, every_steps, form)
    calm = Calm(build(tmp_path / "calm", keep=99))
    seed = random.randrange(1 << 32)
    found = kill_around_saves(calm, build, tmp_path, kills, random.Random(seed))
    assert found.total() == kills, f"seed {seed}"
    if form == "alone":
        assert sum(found[name] for name in IN), f"no kill hit a save; seed {seed}: {found}"


def build_tiny(
    settings_for: Callable[..., TrainSettings],
    every_steps: int,
    form: str,
    output: Path,
    keep: int = 2,
) -> TrainSettings:
    """Return settings of a run of 24 steps that saves in the background."""
    return settings_for(
        output,
        steps=24,
        batch={"global_rows": 8, "micro_rows": 1},  # so that a step takes longer than a save
        checkpoint={"every_steps": every_steps, "keep": keep},
        log_every_steps=1,
        **FORMS[form],
    )


class Calm:
    """A run that nobody disturbs, and what it left."""

    def __init__(self, settings: TrainSettings) -> None:
        self.folder = Path(settings.output, "checkpoints")
        child = Child(settings)
        times = [time.perf_counter() for _ in iter(child.told, None)]
        assert child.answer().exit_code == 0
        # From one step to the next, a save in between or beside it.
        self.step_seconds = (times[-1] - times[2]) / (len(times) - 3)
        self.losses = losses_of(settings)

    @functools.cache  # noqa: B019  a run's few checkpoints
    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        return read_tensors(self.folder / name)


class Child:
    """Ranks; the first tells each step just before it may begin to save."""

    def __init__(self, settings: TrainSettings) -> None:
        self._hear, say = multiprocessing.Pipe(duplex=False)
        sizes = settings.parallel
        ranks = sizes.pipeline * sizes.expert
        self._ranks = Ranks(ranks, _train, (settings, say), has_group=ranks > 1)
        say.close()  # so that its end is heard

    def told(self) -> int | None:
        """Wait for the next step that is done; None when the process has ended."""
        with contextlib.suppress(EOFError):
            return int(self._hear.recv())
        return None

    def answer(self) -> TrainResult:
        """Wait for the end of the run."""
        return self._ranks.answers()[0]  # type: ignore[no-any-return]

    def kill(self, rng: random.Random) -> int | None:
        """Kill a rank, and the others if that does not end them; return the last step unheard."""
        first = rng.choice(self._ranks.processes)
        first.kill()
        for process in self._ranks.processes:
            process.join(HANG_SECONDS)
        self._ranks.kill()
        last = None
        while (step := self.told()) is not None:
            last = step
        return last


def _train(settings: TrainSettings, say: Connection) -> TrainResult:
    def tell(told: Update) -> None:
        if isinstance(told, StepMetrics):
            say.send(told.step)

    result = train(settings, join(settings), tell)
    say.close()
    return result


def kill_around_saves(
    calm: Calm,
    build: Callable[[Path], TrainSettings],
    folder: Path,
    kills: int,
    rng: random.Random,
) -> Counter[str]:
    """Kill runs `kills` times, check what each leaves, finish them; return where the kills fell."""
    found: Counter[str] = Counter()
    number = 0
    while found.total() < kills:
        number += 1
        settings = build(folder / f"killed-{number}")
        while found.total() < kills:
            where = kill_once(settings, calm, rng)
            if where is None:
                break
            found[where] += 1
            check_what_is_left(settings, calm)
        finish(settings, calm)
    return found


def kill_once(settings: TrainSettings, calm: Calm, rng: random.Random) -> str | None:
    """Start or continue a run and kill it; return where, None if it was at its end before."""
    child = Child(settings)
    heard = None
    for _ in range(rng.choice((1, 1, 2, 3))):
        step = child.told()
        if step is None:
            assert child.answer().exit_code == 0
            return None
        heard = step
    time.sleep(rng.uniform(0, 1.5) * calm.step_seconds)
    later = child.kill(rng)
    return where_of(settings, 1 + (heard if later is None else later))


def where_of(settings: TrainSettings, done: int) -> str:
    """Return where a kill fell, from what it left.

    Args:
        settings: of the run.
        done: steps that it had told.
    """
    folder = Path(settings.output, "checkpoints")
    names = {path.name for path in folder.iterdir()}
    if any(name.endswith(".old.tmp") for name in names):
        return "in a deletion"
    for partial in folder.glob("step-*.tmp"):
        files = {path.name for path in partial.iterdir()}
        if "train.json" in files:
            return "before its new name"
        if ".metadata" in files:
            return "before its record"
        return "in its files" if files else "at its start"
    if done % settings.checkpoint.every_steps:
        return "between saves"
    return "after the save" if f"step-{done:08d}" in names else "before the save"


def check_what_is_left(settings: TrainSettings, calm: Calm) -> None:
    """Check every complete checkpoint, and the metrics, against the undisturbed run's."""
    folder = Path(settings.output, "checkpoints")
    for place in sorted(folder.glob("step-????????")):
        assert read_record(place).step == int(place.name[5:])
        ours, expected = read_tensors(place), calm.tensors(place.name)
        assert ours.keys() == expected.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, expected[name]), f"{place}: {name}"
    losses = losses_of(settings)
    assert losses == calm.losses[: len(losses)]


def finish(settings: TrainSettings, calm: Calm) -> None:
    """Run to the end; check that nothing tells the run from the undisturbed one."""
    assert Child(settings).answer().exit_code == 0
    assert losses_of(settings) == calm.losses
    names = sorted(path.name for path in Path(settings.output, "checkpoints").iterdir())
    assert names == sorted(path.name for path in calm.folder.iterdir())[-len(names) :]
    check_what_is_left(settings, calm)


def losses_of(settings: TrainSettings) -> list[float]:
    """Return the losses in the metrics, which must have a line per step from 0 on, in order."""
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    return [step["loss"] for step in steps]


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Load all of a checkpoint, without a process group."""
    reader = dcp.FileSystemReader(folder)
    state = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in reader.read_metadata().state_dict_metadata.items()
        if isinstance(one, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state
