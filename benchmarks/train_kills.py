"""Kill a training run in every way, then let it finish: one loss curve, every row once?

    python benchmarks/train_kills.py [--kills 60] [--steps 60] [--seed N] [--forms FORM ...]

`torchrun`: first two ranks under torchrun (--max-restarts) with three kills: rank 1 alone, the whole job
(torchrun and its ranks) while it trains, and the whole job in the midst of a save, as soon as there
is a file in a `step-*.tmp`. Every row that the loaders gave is written down by each rank of each start.
Compared with a run of as many ranks that nobody disturbs: losses bit for bit, metrics.jsonl without
gap or repeat, rows of every step those of the plan, in its order.

`alone` (one rank), `pipeline` (two ranks with half of the layers each) and `experts` (two ranks with
half of the experts each): `--kills` kills of a rank at random moments around a save, half of them
with a save after every step, half after every other one. After each of them every complete checkpoint is loaded and
compared, tensor by tensor, with the undisturbed run's of that step, and the losses so far; then the
run goes on. Prints where the kills fell.

`uploads`: `--kills` kills while checkpoints are copied to an S3 server of the tests, every second
one with the loss of the output folder. After each the complete copies are read and compared with
their digests, and the losses so far; then the run goes on, on an empty folder from the copy.

The data is that of the tests: 240 rows of 32 tokens from two sources.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from corpuskit.loader import StreamingLoader  # noqa: E402
from corpuskit.train.heartbeat import LEFT, read_heartbeats  # noqa: E402
from corpuskit.train.settings import TrainSettings  # noqa: E402
from tests.s3_server import S3Server  # noqa: E402 - lies beside, not installed
from tests.train import conftest  # noqa: E402
from tests.train.test_kills import (  # noqa: E402
    FORMS,
    WHERE,
    Calm,
    build_tiny,
    kill_around_saves,
    losses_of,
)
from tests.train.test_upload import Machine, kill_uploads  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 2
PROGRAM = """
import json, os, sys
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train.loop import main
from corpuskit.train.settings import TrainSettings

log = open(f"{sys.argv[2]}/rows-{os.environ['RANK']}-{os.getpid()}.jsonl", "w", buffering=1)
stream, init = StreamingLoader.__iter__, StreamingLoader.__init__

def with_all_fields(loader, *args, **options):
    init(loader, *args, **options | {"fields": None})

def noted(loader):
    step = loader.state_dict()["step"]
    for step, batch in enumerate(stream(loader), step):
        print(json.dumps([step, int(os.environ["RANK"]), batch["run_rows"].tolist()]), file=log)
        yield batch

StreamingLoader.__iter__, StreamingLoader.__init__ = noted, with_all_fields
main(TrainSettings.model_validate_json(sys.argv[1]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--steps", type=int, default=60, help="of the run under torchrun")
    parser.add_argument("--forms", nargs="+", default=["torchrun", "alone"],
                        choices=["torchrun", *FORMS, "uploads"])  # fmt: skip
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="train-kills-") as name:
        folder = Path(name)
        build = settings_in(folder)
        for form in asked.forms:
            begun = sum(os.times()[:4])
            if form == "torchrun":
                three_kills(folder, build, asked.steps, rng)
            elif form == "uploads":
                upload_kills(folder, build, asked.kills, rng)
            else:
                random_kills(folder, build, asked.kills, rng, form)
            print(f"{form}: {sum(os.times()[:4]) - begun:.0f} CPU s")


def settings_in(folder: Path) -> Callable[..., TrainSettings]:
    """Write the tests' data; return what builds settings of a run over it."""
    run_dir = folder / "run"
    run_dir.mkdir()
    for number, (name, rows) in enumerate(conftest.ROWS.items()):
        conftest._write_part(run_dir, name, rows, number)
    conftest._write_mix(run_dir)

    def build(output: Path, **fields: Any) -> TrainSettings:
        usual = {
            "data": str(run_dir), "output": str(output), "device": "cpu",
            "batch": {"global_rows": 8, "micro_rows": 4}, "optimizer": {"lr": 1e-2},
            "schedule": {"kind": "constant", "warmup_tokens": 0},
        }  # fmt: skip
        return TrainSettings.model_validate(usual | fields)

    return build


def random_kills(
    folder: Path,
    build: Callable[..., TrainSettings],
    kills: int,
    rng: random.Random,
    form: str,
) -> None:
    import corpuskit.train.pipeline  # noqa: F401 - 2 s, once instead of in each rank

    for every_steps, number in ((1, kills - kills // 2), (2, kills // 2)):
        place = folder / f"{form}-every-{every_steps}"
        place.mkdir()
        tiny = functools.partial(build_tiny, build, every_steps, form)
        found = kill_around_saves(Calm(tiny(place / "calm", keep=99)), tiny, place, number, rng)
        where = ", ".join(f"{found[name]} {name}" for name in WHERE)
        print(
            f"{form}, a save after every {every_steps} steps: {found.total()} kills: {where}: same run"
        )


def upload_kills(
    folder: Path, build: Callable[..., TrainSettings], kills: int, rng: random.Random
) -> None:
    server = S3Server().start()
    os.environ.update(server.env)
    checkpoint = {"every_steps": 1, "keep": 2}
    fields = {"steps": 12, "model": FORMS["alone"]["model"]}
    calm = build(folder / "calm-uploads", checkpoint=checkpoint, **fields)
    told, error = Machine(calm).finish()
    assert not error, told
    upload = {"upload": f"{server.make_bucket('kills')}/one"}
    settings = build(folder / "uploads", checkpoint=checkpoint | upload, **fields)
    where = kill_uploads(server, settings, losses_of(calm), kills, rng)
    told, error = Machine(settings).finish()
    assert not error, told
    assert losses_of(settings) == losses_of(calm)
    server.stop()
    print(f"copies: {where.total()} kills: {dict(where)}: complete or absent, same losses")


class Job:
    """torchrun and its ranks."""

    def __init__(self, settings: TrainSettings, rows: Path) -> None:
        self.output = Path(settings.output)
        rows.mkdir(exist_ok=True)
        program = rows / "train.py"
        program.write_text(PROGRAM)
        self.begun = time.time()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3",
             f"--nproc-per-node={RANKS}", program, settings.model_dump_json(), rows],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL, stderr=(rows / "log").open("a"), start_new_session=True,
        )  # fmt: skip

    def ranks(self) -> dict[int, int]:
        """Return the process id of each rank at work, as its heartbeat says."""
        return {
            beat.rank: beat.pid
            for beat in read_heartbeats(self.output)
            if beat.started > self.begun and beat.phase not in LEFT
        }

    def wait_for(self, happened: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 300
        while not happened():
            assert self.process.poll() is None, f"it ended: {self.process.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    def kill(self) -> None:
        """Kill torchrun, then its ranks, which have sessions of their own."""
        ranks = self.ranks()
        self.process.kill()
        for pid in ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        assert self.process.wait(600) == 0, "torchrun failed"


def three_kills(
    folder: Path, build: Callable[..., TrainSettings], steps: int, rng: random.Random
) -> None:
    every_steps = 5
    saved = {"every_steps": every_steps, "keep": 2}
    # Wide enough that a save takes some ten ms.
    model = {"dim": 256, "layers": 4, "heads": 8, "kv_heads": 4, "ffn_dim": 704}
    calm, killed = (
        build(folder / name, steps=steps, checkpoint=saved, model=model)
        for name in ("calm", "killed")
    )
    Job(calm, folder / "calm-rows").finish()
    rows = folder / "killed-rows"
    metrics = Path(killed.output, "metrics.jsonl")

    def count() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    def events(kind: str) -> list[dict[str, Any]]:
        lines = (metrics.parent / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    job = Job(killed, rows)
    job.wait_for(lambda: count() >= rng.randint(steps // 6, steps // 4) and len(job.ranks()) == 2)
    os.kill(job.ranks()[1], signal.SIGKILL)
    first = count()
    job.wait_for(lambda: len(events("start")) == 2 and count() >= steps // 2)
    job.kill()
    second = count()
    job = Job(killed, rows)
    job.wait_for(lambda: len(events("start")) == 3)
    tries = 0
    while True:  # until the kill finds the save still going on
        tries += 1
        job.wait_for(lambda: any(Path(killed.output, "checkpoints").glob("step-????????.tmp/*")))
        job.kill()
        if left := list(Path(killed.output, "checkpoints").glob("step-????????.tmp")):
            break
        job = Job(killed, rows)
    third = count()
    files = sum(1 for path in left[0].iterdir())
    job = Job(killed, rows)
    job.finish()
    starts = [event["step"] for event in events("start")]
    print(
        f"{RANKS} ranks, {steps} steps, a save after every {every_steps}: rank 1 killed at step "
        f"{first}, the job at {second}, the job at {third} in the save {left[0].name} "
        f"({files} files written; try {tries}); starts from {starts}"
    )
    assert losses_of(killed) == losses_of(calm), "the losses differ"
    print(f"losses of {steps} steps: the same, bit for bit; metrics.jsonl: each step once")
    check_rows(killed, rows, steps)
    names = sorted(path.name for path in Path(killed.output, "checkpoints").iterdir())
    assert names == [f"step-{done:08d}" for done in (steps - every_steps, steps)], names
    print(f"checkpoints left: {', '.join(names)}; partial ones: none")


def check_rows(settings: TrainSettings, rows: Path, steps: int) -> None:
    """Compare what the ranks took, start by start, with the rows of the plan."""
    plan = [batch["run_rows"].tolist() for batch in StreamingLoader(settings.data, 8)][:steps]
    taken: dict[tuple[int, int], list[int]] = {}
    again: Counter[int] = Counter()
    for log in sorted(rows.glob("rows-*.jsonl")):
        for line in log.read_text().splitlines():
            step, rank, mine = json.loads(line)
            assert taken.setdefault((step, rank), mine) == mine, "a step taken again got other rows"
            again[step] += rank == 0
    for step, expected in enumerate(plan):
        both = [row for rank in range(RANKS) for row in taken[step, rank]]
        assert both == expected, f"step {step}: {both}, the plan has {expected}"
    everything = [row for step in plan for row in step]
    assert everything == list(range(8 * steps)), "rows of the run, in order"
    repeated = sum(number > 1 for number in again.values())
    print(
        f"rows: {len(everything)} trained on, in the order of the plan, none lost, none twice in "
        f"what was kept ({repeated} steps were taken again after a kill, with the same rows)"
    )


if __name__ == "__main__":
    main()
