"""The tests of loaders that benchmarks/conformance.py runs; each returns the outcome of a cell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loader_process import Places, Started, finish, finish_all, kill, request, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, PART_ROWS, GLOBAL_ROWS, NUM_EPOCHS = 33, 64, 8, 3
ROWS = {"web": 1024}
MIX_ROWS = {"web": 2048, "books": 1024, "code": 512}
WEIGHTS = {"web": 14, "books": 5, "code": 1}  # 0.7, 0.25, 0.05
MIX_STEPS, BLOCK_STEPS = 256, 128
WITHIN, LATER = (13, 100), (141, 290)  # steps of the first epoch, and of the second and third
DATA_FILES = {
    "corpuskit": "tokens/web/*.parquet",
    "litdata": "web/*.bin",
    "mosaic": "web/*.mds",
    "grain": "web.bin",
    "hf": "web/*.parquet",
    "datatrove": "*.ds",
}
ALTERED = "ALTERED ROW DELIVERED"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A column: a loader, used in one way."""

    name: str
    adapter: str
    variant: str = ""
    mix_variant: str = ""
    hash_variant: str = ""
    tests: tuple[str, ...] = ()
    """Those in which this way differs from the one before; all, if there are none."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One cell."""

    kind: str
    text: str = ""


class StoppedError(Exception):
    """A run brought no rows."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome


@dataclasses.dataclass
class Bench:
    """One subject with its stores and what its uninterrupted runs delivered."""

    places: Places
    subject: Subject
    folder: Path
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    base: list[list[list[int]]] = dataclasses.field(default_factory=list)
    ahead: list[list[int]] = dataclasses.field(default_factory=list)
    mixed: list[list[int]] = dataclasses.field(default_factory=list)

    def spec(self, store: str = "rows", **more: Any) -> dict[str, Any]:
        """Return how the store is opened."""
        chosen = {"variant": self.subject.variant, "part_rows": PART_ROWS, "num_epochs": NUM_EPOCHS}
        folder = self.folder / self.subject.name
        return {"store": str(folder / store), "width": WIDTH, **chosen, **more}

    def mix_spec(self) -> dict[str, Any]:
        return self.spec("mix", weights=WEIGHTS, variant=self.subject.mix_variant)

    def state(self, name: str) -> str:
        return str(self.folder / self.subject.name / f"{name}.state")

    def write(self, spec: dict[str, Any], rows: dict[str, int]) -> None:
        """Write rows that know their source and number, and have the loader store them."""
        raw = Path(spec["store"]).parent / f"raw {Path(spec['store']).name}"
        raw.mkdir(parents=True)
        random = np.random.default_rng(0)
        for number, (name, num_rows) in enumerate(rows.items()):
            array = random.integers(2, 50_000, (num_rows, WIDTH), np.uint16)
            array[:, 0], array[:, 1] = number, np.arange(num_rows)
            np.save(raw / f"{name}.npy", array)
        link = raw.parent / "raw"
        link.unlink(missing_ok=True)
        link.symlink_to(raw.name)
        self.checked(request(self.places, self.subject.adapter, spec, "write", raw=str(raw)))

    def walk(self, spec: dict[str, Any], **more: Any) -> list[list[list[int]]]:
        """Run a loader; return the row numbers of each batch of each epoch."""
        return self.checked(request(self.places, self.subject.adapter, spec, "walk", **more))

    def checked(self, facts: dict[str, Any]) -> Any:
        """Return the rows of a run.

        Raises:
            StoppedError: it raised, or lacks the feature.
        """
        self.versions |= facts.get("versions", {})
        if "not_offered" in facts:
            raise StoppedError(Outcome("not offered", facts["not_offered"]))
        if "error" in facts:
            raise StoppedError(Outcome("refuses", shortened(facts["error"])))
        return facts.get("epochs")

    def ranks(self, world: int, load: str, save: str, **more: Any) -> list[list[list[int]]]:
        """Run `world` ranks at once from a state of rank 0; return rows by global step and rank."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        started = []
        for rank in range(world):
            spec = self.spec(world_size=world, rank=rank)
            variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_PORT": port}
            variables |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
            ask = dict(more)
            if load:
                ask["load"] = self.state(f"{load}-0")
            if save:
                ask["saves"] = {str(more["steps"]): self.state(f"{save}-{rank}")}
            words = {key: str(value) for key, value in variables.items()} if world > 1 else {}
            started.append(start(self.places, self.subject.adapter, spec, "walk", words, **ask))
        found = [self.checked(facts)[0] for facts in finish_all(started, 120)]
        return [
            [row for rank in found if step < len(rank) for row in rank[step]]
            for step in range(max(map(len, found)))
        ]


def uninterrupted(bench: Bench) -> list[list[list[int]]]:
    """Return the batches of three epochs; states are saved on the way."""
    if not bench.base:
        saves = {str(step): bench.state(f"at-{step}") for step in (*WITHIN, *LATER)}
        bench.base = bench.walk(bench.spec(), epochs=NUM_EPOCHS, saves=saves)
    return bench.base


def resumes(bench: Bench, stops: Sequence[int]) -> Outcome:
    """Go on from saved states in new processes, to the end of the last epoch."""
    base = [batch for epoch in uninterrupted(bench) for batch in epoch]
    per_epoch = len(bench.base[0])
    wrong = []
    for stop in stops:
        left = NUM_EPOCHS - stop // per_epoch
        rest = bench.walk(bench.spec(), epochs=left, load=bench.state(f"at-{stop}"))
        difference = compared(base[stop:], [batch for epoch in rest for batch in epoch])
        if difference:
            wrong.append(f"stopped after {stop}: {difference}")
    return Outcome("fail", "; ".join(wrong)) if wrong else Outcome("pass")


def compared(due: list[list[int]], came: list[list[int]]) -> str:
    """Say how batches differ from those that were due; empty if they don't."""
    if due == came:
        return ""
    ahead = next(
        (i for i, (a, b) in enumerate(zip(due, came, strict=False)) if a != b),
        min(len(due), len(came)),
    )
    want = Counter(row for batch in due for row in batch)
    have = Counter(row for batch in came for row in batch)
    missing, extra = sum((want - have).values()), sum((have - want).values())
    sums = f"{missing} of {want.total()} rows missing, {extra} too many"
    return f"differs from batch {ahead} on; " + (
        sums if missing or extra else "the same rows in another order"
    )


def resume_within(bench: Bench) -> Outcome:
    return resumes(bench, WITHIN)


def resume_later(bench: Bench) -> Outcome:
    return resumes(bench, LATER)


def once_per_epoch(bench: Bench) -> Outcome:
    """Count the rows of each epoch, and see that the epochs differ."""
    epochs = [[row for batch in epoch for row in batch] for epoch in uninterrupted(bench)]
    wrong = [
        f"epoch {number}: {len(set(rows))} of {ROWS['web']} rows, {len(rows) - len(set(rows))} repeated"
        for number, rows in enumerate(epochs, 1)
        if sorted(rows) != list(range(ROWS["web"]))
    ]
    if wrong:
        return Outcome("fail", "; ".join(wrong))
    same = "" if epochs[0] != epochs[1] else "each epoch in the same order"
    return Outcome("pass", same)


def elastic(bench: Bench) -> Outcome:
    """Run 10 steps on 2 ranks, 10 on one, the rest on 4, the global batch being the same."""
    base = [sorted(batch) for batch in uninterrupted(bench)[0]]
    steps = bench.ranks(2, "", "two", steps=10)
    steps += bench.ranks(1, "two", "one", steps=10)
    steps += bench.ranks(4, "one", "")
    came = [sorted(batch) for batch in steps]
    if came == base:
        return Outcome("pass")
    # What two ranks deliver without any change tells a different order from a lost place.
    rows = Counter(row for batch in came for row in batch)
    missing = ROWS["web"] - len(rows)
    again = rows.total() - len(rows)
    if came[:10] != base[:10]:
        note = "2 ranks take other rows in a step than 1"
    else:
        note = f"differs from step {next(i for i, (a, b) in enumerate(zip(base, came, strict=False)) if a != b)} on"
    whole = (
        "each row once"
        if not missing and not again
        else f"{missing} rows of the epoch missing, {again} repeated"
    )
    return Outcome("fail", f"{note}; {whole}")


def workers(bench: Bench) -> Outcome:
    """Compare the orders of 0, 1 and 2 workers, and go on with 2 where 0 have stopped."""
    base = uninterrupted(bench)[0]
    wrong = []
    saves = {"13": bench.state("ahead")}
    for num, more in ((1, {}), (2, {"saves": saves, "pause": 0.5})):
        came = bench.walk(bench.spec(workers=num), **more)[0]
        if num == 2:
            bench.ahead = came
        difference = compared(base, came)
        if difference:
            wrong.append(f"{num} workers: {difference}")
    try:
        came = bench.walk(bench.spec(workers=2), load=bench.state("at-13"))[0]
    except StoppedError as stopped:
        words = f"a state of no workers loaded by 2: {stopped.outcome.text}"
        return Outcome("fail" if wrong else stopped.outcome.kind, "; ".join([*wrong, words]))
    difference = compared(base[13:], came)
    if difference:
        wrong.append(f"a state of no workers loaded by 2: {difference}")
    return Outcome("fail", "; ".join(wrong)) if wrong else Outcome("pass")


def prefetching(bench: Bench) -> Outcome:
    """Save a state while 2 workers read ahead, and go on from it with as many."""
    if not bench.ahead:
        raise StoppedError(Outcome("-", "no run with 2 workers"))
    rest = bench.walk(bench.spec(workers=2), load=bench.state("ahead"))[0]
    difference = compared(bench.ahead[13:], rest)
    return Outcome("fail", difference) if difference else Outcome("pass")


def mixture(bench: Bench) -> Outcome:
    """Count the sources over 2,048 rows, at blocks of 1,024 and in single batches."""
    bench.write(bench.mix_spec(), MIX_ROWS)
    saves = {"100": bench.state("mix-100")}
    bench.mixed = bench.walk(bench.mix_spec(), steps=MIX_STEPS, saves=saves)[0]
    sources = np.array([[row >> 16 for row in batch] for batch in bench.mixed])
    counts = np.stack([(sources == number).sum(1) for number in range(len(WEIGHTS))], axis=1)
    shares = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())
    if len(counts) < MIX_STEPS:
        return Outcome("fail", f"ends after {len(counts)} of {MIX_STEPS} batches")
    sums = counts.cumsum(0) - np.arange(1, MIX_STEPS + 1)[:, None] * shares * GLOBAL_ROWS
    at_blocks = np.abs(sums[BLOCK_STEPS - 1 :: BLOCK_STEPS]).max()
    text = (
        f"{at_blocks:.1f} rows off at blocks of 1,024, {np.abs(sums).max():.1f} at any step,"
        f" {np.abs(counts - shares * GLOBAL_ROWS).max():.1f} in one batch of {GLOBAL_ROWS}"
    )
    return Outcome("pass" if at_blocks < 3 else "fail", text)


def mixture_resumes(bench: Bench) -> Outcome:
    """Go on with a mixture in a new process."""
    if not bench.mixed:
        raise StoppedError(Outcome("-", "there was no mixture"))
    rest = bench.walk(bench.mix_spec(), steps=MIX_STEPS - 100, load=bench.state("mix-100"))[0]
    difference = compared(bench.mixed[100:], rest)
    return Outcome("fail", difference) if difference else Outcome("pass")


def flipped_byte(bench: Bench) -> Outcome:
    """Flip a byte in the middle of a data file, and read everything."""
    spec = bench.spec(variant=bench.subject.hash_variant or bench.subject.variant)
    sound = Path(spec["store"])
    wrong, said = [], ""
    for share in (0.2, 0.35, 0.5, 0.65, 0.8):
        broken = sound.with_name("broken")
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(sound, broken)
        flip(sorted(broken.glob(DATA_FILES[bench.subject.adapter]))[0], share)
        facts = request(
            bench.places, bench.subject.adapter, {**spec, "store": str(broken)}, "walk",
            check=str(sound.with_name(f"raw {sound.name}")),
        )  # fmt: skip
        error = facts.get("error", "")
        num_rows = sum(len(batch) for batch in facts.get("epochs", [[]])[0])
        if ALTERED in error:
            wrong.append("an altered row is delivered as if nothing were")
        elif error:
            said = shortened(error).replace(str(broken), "RUN")
        elif num_rows < ROWS["web"]:
            wrong.append(
                f"the epoch ends after {num_rows} of {ROWS['web']} rows, without an exception"
            )
        if len(wrong) + bool(said) == 2:  # the others fell between the rows
            break
    if wrong:
        return Outcome(
            "fail", "; ".join(dict.fromkeys(wrong)) + (f"; also: {said}" if said else "")
        )
    return Outcome("pass", said) if said else Outcome("fail", "nothing noticed, no row altered")


def flip(path: Path, share: float) -> None:
    """Flip the lowest bit of a byte of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 1
    path.write_bytes(content)


def killed(bench: Bench) -> Outcome:
    """Kill a loader with two workers by SIGKILL, and look for what stays; then start again."""
    before = listing(bench)
    hold = bench.folder / bench.subject.name / "hold"
    spec = bench.spec(workers=2)
    started = start(bench.places, bench.subject.adapter, spec, "walk", steps=5, hold=str(hold))
    end = time.perf_counter() + 60
    while not hold.exists() and started.process.poll() is None and time.perf_counter() < end:
        time.sleep(0.1)
    if not hold.exists():
        kill(started)
        return Outcome("refuses", shortened(finish(started).get("error", "no batch within 60 s")))
    hold.unlink()
    shared = mapped(session(started))
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    end = time.perf_counter() + 20  # the workers of a DataLoader look after their parent every 5 s
    while session(started) and time.perf_counter() < end:
        time.sleep(0.5)
    alive = session(started)
    left = sorted(listing(bench) - before) + sorted(name for name in shared if Path(name).exists())
    if alive:
        kill_session(started)
    again = bench.walk(bench.spec(), steps=5)[0]
    forget(left)
    notes = [f"{len(alive)} processes still run 20 s later"] if alive else []
    if left:
        notes.append(
            f"left: {', '.join(left[:6])}" + (f" and {len(left) - 6} more" if len(left) > 6 else "")
        )
    if again != uninterrupted(bench)[0][:5]:
        notes.append("another start delivers other rows")
    return Outcome("fail", "; ".join(notes)) if notes else Outcome("pass")


def listing(bench: Bench) -> set[str]:
    """Return the names in the temporary folder and in the store."""
    temporary, store = bench.places.folder / "tmp", bench.folder / bench.subject.name / "rows"
    names = {f"TMPDIR/{one.relative_to(temporary)}" for one in temporary.rglob("*")}
    return names | {f"store/{one.relative_to(store)}" for one in store.rglob("*")}


def mapped(processes: Sequence[int]) -> set[str]:
    """Return the files in shared memory, semaphores too, that processes have mapped."""
    names = set()
    for process in processes:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/maps").read_text("utf-8", "replace").split()
            names |= {word for word in words if word.startswith("/dev/shm/")}
    return names


def forget(names: Sequence[str]) -> None:
    """Remove shared memory that was left."""
    for name in names:
        if name.startswith("/dev/shm/"):
            Path(name).unlink(missing_ok=True)


def session(started: Started) -> list[int]:
    """Return the processes that still run in the session of a killed one."""
    alive = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text("ascii", "replace").rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[3]) == started.process.pid and fields[0] != "Z":
            alive.append(int(status.parent.name))
    return alive


def kill_session(started: Started) -> None:
    for pid in session(started):
        os.kill(pid, signal.SIGKILL)


def provenance(bench: Bench) -> Outcome:
    """Ask which documents were in step 20 of a run."""
    facts = request(bench.places, bench.subject.adapter, bench.spec(), "which", step=20)
    bench.checked(facts)
    due = [[f"web/web.jsonl#{row}"] for row in uninterrupted(bench)[0][20]]
    return Outcome("pass") if facts["documents"] == due else Outcome("fail", "other documents")


def shortened(text: str, most: int = 200) -> str:
    """Return the first lines of a message as one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + "..."


TESTS: dict[str, tuple[str, Callable[[Bench], Outcome]]] = {
    "resume": ("exact resumption in the first epoch (2 stops)", resume_within),
    "resume later": ("exact resumption in the second and third epoch", resume_later),
    "once": ("each row once per epoch", once_per_epoch),
    "elastic": ("2 ranks, then 1, then 4: the rows of every global batch stay", elastic),
    "workers": ("0, 1 or 2 workers: the same batches; and resumed with other workers", workers),
    "prefetching": ("state saved while workers read ahead", prefetching),
    "mixture": ("mixture 0.7/0.25/0.05 exact (< 3 rows off at each 1,024)", mixture),
    "mixture resumes": ("exact resumption of the mixture", mixture_resumes),
    "flipped byte": ("one flipped byte in a data file is noticed", flipped_byte),
    "killed": ("SIGKILL leaves nothing behind", killed),
    "provenance": ("which documents were in step N", provenance),
}
