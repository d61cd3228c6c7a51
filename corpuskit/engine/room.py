"""What there is for a run: memory and disk, here or where the executor works."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corpuskit.engine.rundir import RunDirectory

_UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_LIMIT = 1 << 60
"""Control groups without a limit say 2**63, less a page."""


@dataclasses.dataclass(frozen=True)
class Room:
    """What there is; None = not known, so not checked.

    Attributes:
        memory_bytes: for all workers of one place.
        memory_place: what limits it, for messages.
        workers: that share it.
        disk_bytes: free where the run directory is; quotas are not known.
        scratch_bytes: free in the folder for temporary files, where that is another place.
    """

    memory_bytes: int | None
    memory_place: str
    workers: int
    disk_bytes: int | None
    disk_place: str
    scratch_bytes: int | None = None
    scratch_place: str = ""


def find_room(run: RunDirectory, *, in_slot: bool = False) -> Room:
    """Return what there is for a run on its executor.

    Args:
        in_slot: this process works for Slurm: only what the job was given counts, since the rest of
            the node is not its own.
    """
    memory, place, workers = _memory_of(run, in_slot=in_slot)
    if run.store.is_remote:
        folder = tempfile.gettempdir()
        free = _free(Path(folder))
        return Room(memory, place, workers, None, "an object store", free, f"{folder} (TMPDIR)")
    root = Path(run.store.address).absolute()
    return Room(memory, place, workers, _free(root), f"the file system of {run.store.address}")


def available_memory() -> int | None:
    """Return the memory that this machine, or the control group of this process, has left.

    What child processes hold counts as left: they are the workers that will use it.
    """
    here = _meminfo()
    limits = [one for one in (here, _group_left()) if one is not None]
    return min(limits) + _held_by_children() if limits else None


def parse_memory(text: str) -> int:
    """Return what Slurm's `--mem` means, in bytes; a bare number is MB."""
    found = re.fullmatch(r"([0-9]+)([KMGT]?)", text)
    assert found is not None, "settings.py has checked it"
    return int(found[1]) * _UNITS[found[2]]


def _memory_of(run: RunDirectory, *, in_slot: bool) -> tuple[int | None, str, int]:
    executor = run.plan.settings.executor
    if executor.kind == "slurm":
        given = executor.slurm.mem
        # 0 asks for all the memory of a node, whatever that is.
        known = parse_memory(given) if given is not None else 0
        if known:
            return known, "executor.slurm.mem", executor.workers
        if in_slot:
            return _group_left(), "the control group of the job", executor.workers
        return None, "a slot of Slurm (executor.slurm.mem is not set)", executor.workers
    if executor.kind == "ray":
        if executor.ray.memory is not None:
            return executor.ray.memory, "executor.ray.memory", 1
        if executor.ray.address not in (None, "local") or os.environ.get("RAY_ADDRESS"):
            return None, "a Ray task (executor.ray.memory is not set)", 1
    return available_memory(), "this machine", executor.workers


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines)
    words = facts.get("MemAvailable", "").split()
    return int(words[0]) << 10 if words else None


def _group_left(root: Path = Path("/sys/fs/cgroup"), groups: str | None = None) -> int | None:
    """Return what the control groups of this process leave; None where there is no limit.

    File pages count as left: the kernel drops them first. Inside a container the paths that the
    kernel names may not be there, but their parents are.
    """
    try:
        text = Path("/proc/self/cgroup").read_text("utf-8") if groups is None else groups
    except OSError:
        return None
    found: list[int] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                     "total_active_file")  # fmt: skip
        else:
            continue
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            left = _left_in(folder, *names)
            found += [left] if left is not None else []
            folder = folder.parent
    return min(found, default=None)


def _left_in(folder: Path, limit: str, usage: str, *pages: str) -> int | None:
    try:
        most = (folder / limit).read_text("ascii").strip()
        if most == "max" or int(most) >= _NO_LIMIT:
            return None
        used = int((folder / usage).read_text("ascii"))
        lines = (folder / "memory.stat").read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    facts = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 2}
    return max(int(most) - used + sum(facts.get(name, 0) for name in pages), 0)


def _held_by_children(process: str = "self") -> int:
    """Return the private memory of the processes that a process has started, and that they have."""
    total = 0
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text("ascii").split():
                pages = Path(f"/proc/{child}/statm").read_text("ascii").split()
                total += (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
                total += _held_by_children(child)
    except (OSError, IndexError, ValueError):
        return total  # one has just ended
    return total


def _free(folder: Path) -> int | None:
    """Return the free bytes where a folder is, or will be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
