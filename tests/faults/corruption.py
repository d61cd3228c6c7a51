"""Damages files of a run at random moments, and judges what comes of it.

`python -m tests.faults.corruption --num 1000` plays seeds; `--seed N` plays one and says what
happens. A seed damages one file of a run directory, or one of its inputs, between two phases, in
the middle of a phase or after the end. The run is then repeated, as its messages say. Its end is

- `identical`: the files that the run is for are those of a clean run, and nobody noticed;
- `healed`: they are, after the damage was reported or the file was made again;
- `refused`: no run succeeds, and the message names the damaged file;
- `named`: the run succeeds, and `verify` names each file that differs; made again, it is right;
- `SILENT`: anything else, and a bug.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.pipeline import run
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import funnel, sealed, verify
from corpuskit.errors import CorpuskitError
from corpuskit.storage import open_store
from tests.engine.here import Here
from tests.faults.bench import Bench, contents, open_bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from corpuskit.engine.plan import Phase
    from corpuskit.formats.manifest import Seal

ATTEMPTS = 4
TASKS = 3
CHUNK = 25

RECORDS = ("inputs.json", "plan.json", "seal.json", "task-")
"""Files whose name does not hold the hash of their content: they can be stale."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a seed; `moment` and `damage` say what was done, `text` what was seen."""

    seed: int
    moment: str
    damage: str
    outcome: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.seed}: {self.moment}: {self.damage}: {self.outcome} {self.text}"


class CorruptionBench(Bench):
    """The bench with the stages that hand most from pass to pass."""

    def _pipeline(self, files: dict[str, Path], mix: dict[str, Any]) -> dict[str, Any]:
        pipeline = super()._pipeline(files, mix)
        place = next(i for i, s in enumerate(pipeline["stages"]) if "minhash_dedup" in s)
        more = [{"line_dedup": {}}, {"substring_dedup": {"min_bytes": 200}}]
        pipeline["stages"][place + 1 : place + 1] = more
        return pipeline


class Laboratory:
    """A clean run with a copy of the run directory after each phase, to begin cases from."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.output = bench.folder / "out"
        self.copies = bench.folder / "copies"
        self.inputs = {
            path: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(bench.folder.glob(f"*.{bench.source}"))
        }
        self.plan = bench.plan("plain", TASKS, str(self.output))
        self.num_phases = len(self.plan.phases)
        self.stale = self._records_of("words")
        self.play(_Copier(self))
        self.clean = contents(open_store(str(self.output)))
        self.figures = self._figures()

    def _records_of(self, variant: str) -> dict[str, bytes]:
        """Return the records of a run of another variant in the same place."""
        plan = self.bench.plan(variant, TASKS, str(self.output))
        run(plan, launcher=Here(self.output))
        names = [path for path in self.output.rglob("*.json") if path.name.startswith(RECORDS)]
        records = {str(path.relative_to(self.output)): path.read_bytes() for path in names}
        shutil.rmtree(self.output)
        return records

    def play(self, observer: RunCallbacks | None = None) -> None:
        """Run the pipeline in this process."""
        run(self.plan, observer, launcher=Here(self.output))

    def begin_after(self, num_phases: int) -> None:
        """Lay the run directory as it is after some phases, and the inputs as they were."""
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(self.copies / str(num_phases), self.output)
        for path, (content, modified_ns) in self.inputs.items():
            path.write_bytes(content)
            os.utime(path, ns=(modified_ns, modified_ns))

    def _figures(self) -> list[tuple[object, ...]]:
        run = RunDirectory.open(str(self.output))
        rows = funnel(run, sealed(run))
        return [
            tuple(v for k, v in dataclasses.asdict(row).items() if "seconds" not in k)
            for row in rows
        ]

    def is_clean(self) -> bool:
        """Return whether files and figures are those of the clean run."""
        return (
            contents(open_store(str(self.output))) == self.clean and self._figures() == self.figures
        )


class _Copier(RunCallbacks):
    """Copies the run directory after each phase."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.laboratory, self.num_phases = laboratory, 0

    def opened(self, directory: RunDirectory) -> None:
        self._copy()

    def phase_ends(self, phase: Phase, seal: Seal) -> None:
        self.num_phases += 1
        self._copy()

    def _copy(self) -> None:
        copy = self.laboratory.copies / str(self.num_phases)
        shutil.copytree(self.laboratory.output, copy)


class _Damager(RunCallbacks):
    """Calls back once, when the n-th task of the run has ended."""

    def __init__(self, after_tasks: int, act: Callable[[], None]) -> None:
        self.left, self.act = after_tasks, act

    def task_ends(self, event: str, fields: dict[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


class Case:
    """One seed: a moment, a file and a kind of damage."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self.laboratory, self.seed = laboratory, seed
        self.rng = random.Random(f"corruption {seed}")
        self.damage = "none"
        self.names: list[str] = []
        self.original: dict[str, bytes] = {}

    def judge(self) -> Verdict:
        """Play the seed."""
        laboratory, rng = self.laboratory, self.rng
        moment = rng.choice(("between", "between", "inside", "inside", "after", "input"))
        begin = laboratory.num_phases if moment == "after" else rng.randrange(laboratory.num_phases)
        if moment == "input":
            begin = rng.choice((0, 0, begin))
        laboratory.begin_after(begin)
        observer: RunCallbacks | None = None
        if moment == "inside":
            observer = _Damager(rng.randint(1, 2 * TASKS), self.strike)
        elif moment == "input":
            observer = _Damager(rng.randint(1, TASKS + 1), self.change_input)
        else:
            self.strike()
        where = f"{moment}, {begin} phases done"
        try:
            if moment == "input":
                outcome, text = self._outcome_of_inputs(observer)
            else:
                outcome, text = self._outcome(observer)
        except Exception as error:  # noqa: BLE001 - an unexpected error is what is looked for
            outcome, text = "SILENT", f"unexpected {error!r}"
        return Verdict(self.seed, where, self.damage, outcome, text)

    def _outcome(self, observer: RunCallbacks | None) -> tuple[str, str]:
        messages: list[str] = []
        for _ in range(ATTEMPTS):
            try:
                self.laboratory.play(observer)
            except CorpuskitError as error:
                messages.append(str(error))
                observer = None
                continue
            if self.names:
                break
            self.strike()  # the run ended before its moment came
        else:
            return "refused" if self._is_named(messages[-1]) else "SILENT", messages[-1]
        try:
            is_clean = self.laboratory.is_clean()
        except CorpuskitError as error:  # a record that the run no longer needed, and `status` does
            self.laboratory.play()
            is_right = self._is_named(str(error)) and self.laboratory.is_clean()
            return "named" if is_right else "SILENT", str(error)
        if is_clean:
            is_healed = messages or self._is_changed_back()
            return "healed" if is_healed else "identical", " | ".join(messages)
        return self._verified()

    def _outcome_of_inputs(self, observer: RunCallbacks | None) -> tuple[str, str]:
        """Run until it ends; what is there is of one version of the input, then of the last."""
        laboratory, messages = self.laboratory, []
        ended = self._end(observer)
        while isinstance(ended, str) and len(messages) < ATTEMPTS:
            messages.append(ended)
            ended = self._end()
        repeated = self._end()
        shutil.rmtree(laboratory.output)
        fresh = self._end()
        if isinstance(fresh, str):  # such as a source that is empty now
            return "refused" if repeated == fresh else "SILENT", " | ".join([*messages, fresh])
        is_named = all(any(name in one for name in self.names) for one in messages)
        if repeated != fresh or ended not in (fresh, laboratory.clean) or not is_named:
            return "SILENT", " | ".join(messages)
        return "healed" if messages else "identical", " | ".join(messages)

    def _end(self, observer: RunCallbacks | None = None) -> dict[str, str] | str:
        """Run; return name -> hash of what a run is for, or the message of the error."""
        try:
            self.laboratory.play(observer)
        except CorpuskitError as error:
            return str(error)
        return contents(open_store(str(self.laboratory.output)))

    def change_input(self) -> None:
        """Change an input file, as somebody else does who does not know of the run."""
        path = self.rng.choice(list(self.laboratory.inputs))
        lines = path.read_bytes().splitlines(keepends=True)
        kind = self.rng.choice(("truncate", "empty", "rewrite", "grow", "replace", "reverse"))
        self.damage, self.names = f"{kind}-input {path.name}", [path.name]
        if kind == "truncate":
            os.truncate(path, self.rng.randrange(path.stat().st_size))
        elif kind == "empty":
            os.truncate(path, 0)
        elif kind == "grow":
            path.write_bytes(b"".join([*lines, *lines[:2]]))
        elif kind == "reverse":  # of equal size
            path.write_bytes(b"".join(reversed(lines)))
        elif kind == "rewrite":
            path.write_bytes(b"".join(lines[1:]).replace(b"river", b"brook"))
        else:
            other = path.with_name("other")
            other.write_bytes(b"".join(lines[2:]))
            os.replace(other, path)

    def _is_named(self, message: str) -> bool:
        return any(name in message for name in self.names)

    def _verified(self) -> tuple[str, str]:
        """Delete what `verify` names, run again, and see whether that is right."""
        directory = RunDirectory.open(str(self.laboratory.output))
        problems = verify(directory).problems
        for problem in problems:
            with contextlib.suppress(FileNotFoundError):
                (self.laboratory.output / problem.partition(":")[0]).unlink()
        self.laboratory.play()
        is_right = bool(problems) and self.laboratory.is_clean()
        return "named" if is_right else "SILENT", "; ".join(problems)

    def _is_changed_back(self) -> bool:
        """Return whether a damaged file is again what it was, or gone."""
        root = self.laboratory.output
        return any(
            not (root / name).exists() or (root / name).read_bytes() == content
            for name, content in self.original.items()
        )

    def strike(self) -> None:
        """Damage one file of the run directory."""
        root = self.laboratory.output
        files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
        files = sorted(path for path in files if path.relative_to(root).parts[0] != "logs")
        folders = sorted({path.parent for path in files})
        folder = self.rng.choice(folders)
        path = self.rng.choice([path for path in files if path.parent == folder])
        kinds = [_flip, _flip, _scribble, _truncate, _extend, _delete, _duplicate, _swap]
        name = str(path.relative_to(root))
        if name in self.laboratory.stale:
            kinds += [_replace] * 3
        kind = self.rng.choice(kinds)
        others = [other for other in files if other.suffix == path.suffix and other != path]
        near = [other for other in others if other.parent == folder] or others
        other = self.rng.choice(near) if near else None
        if kind is _swap and other is None:
            kind = _flip
        self.damage = f"{kind.__name__.strip('_')} {name}"
        self.names = [name]
        self.original[name] = path.read_bytes()
        if kind is _replace:
            path.write_bytes(self.laboratory.stale[name])
        elif kind is _swap:
            assert other is not None, "made sure of above"
            self.names.append(str(other.relative_to(root)))
            self.original[self.names[-1]] = other.read_bytes()
            self.damage += f" with {self.names[-1]}"
            os.replace(path, aside := root / "aside")
            os.replace(other, path)
            os.replace(aside, other)
        else:
            kind(path, self.rng)


def _flip(path: Path, rng: random.Random) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _scribble(path: Path, rng: random.Random) -> None:
    """Write random bytes over a block, as a disk may."""
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content) + 1)
    end = min(begin + rng.choice((1, 16, 512)), len(content))
    content[begin:end] = rng.choice((bytes(end - begin), rng.randbytes(end - begin)))
    path.write_bytes(content)


def _truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size or 1))


def _extend(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice((1, 100))))


def _delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def _duplicate(path: Path, rng: random.Random) -> None:
    """Leave a copy beside a file, as synchronising tools do."""
    shutil.copy(path, path.with_name(f"{path.stem} (1){path.suffix}"))


def _swap(path: Path, rng: random.Random) -> None:
    """Exchange two files; see `strike`."""


def _replace(path: Path, rng: random.Random) -> None:
    """Put the file of another run in its place; see `strike`."""


@contextlib.contextmanager
def open_laboratory() -> Iterator[Laboratory]:
    """Yield a laboratory in memory, where there is room for one."""
    with open_bench(CorruptionBench) as bench:
        yield Laboratory(bench)


def play(first: int, num: int) -> list[Verdict]:
    """Play consecutive seeds in this process."""
    with open_laboratory() as laboratory:
        return [Case(laboratory, seed).judge() for seed in range(first, first + num)]


def main() -> int:
    """Read the arguments; exit code 1 if anything was silent."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.corruption", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and say what happens")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--num", type=int, default=1000, help="how many cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    first, num = (given.first, given.num) if given.seed is None else (given.seed, 1)
    firsts = range(first, first + num, CHUNK)
    sizes = [min(CHUNK, first + num - begin) for begin in firsts]
    spawn = multiprocessing.get_context("spawn")
    totals: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with concurrent.futures.ProcessPoolExecutor(given.jobs, spawn) as pool:
        for verdicts in pool.map(play, firsts, sizes):
            for verdict in verdicts:
                totals[verdict.outcome] += 1
                kinds[verdict.damage.partition(" ")[0]] += 1
                if verdict.outcome == "SILENT" or given.seed is not None:
                    sys.stdout.write(f"{verdict}\n")
                    sys.stdout.flush()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(json.dumps({"outcomes": totals, "damages": kinds}, indent=1) + "\n")
    sys.stdout.write(f"{num:,} cases, {used.ru_utime + used.ru_stime:.0f} CPU s\n")
    return 1 if totals["SILENT"] else 0


if __name__ == "__main__":
    sys.exit(main())
