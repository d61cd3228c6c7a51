"""What a power loss leaves of a folder: what was fsynced; of the rest, whatever chance leaves."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class Disk:
    """Follows the fsync calls of this process below a folder.

    The content of a file is durable once the file was fsynced; its name is, once its folder was.
    The rest survives by chance: a file as a beginning of it or as zeros, a name or its removal not
    at all. Copies are kept as hard links, so nothing is copied.

    Args:
        root: the folder; its own name is taken for durable.
        kept: a folder on the same file system for what a power loss brings back.
    """

    def __init__(self, root: Path, kept: Path) -> None:
        self.root, self.kept = root, kept
        self._link, self._fsync = os.link, os.fsync
        self._files: set[int] = set()
        self._folders: dict[int, dict[str, int]] = {}
        kept.mkdir()

    def fsync(self, handle: int) -> None:
        """Stand in for os.fsync."""
        self._fsync(handle)
        self._note(Path(os.readlink(f"/proc/self/fd/{handle}")))

    def _note(self, path: Path) -> None:
        if not path.is_relative_to(self.root):
            return
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self._folders[found.st_ino] = {one.name: one.inode() for one in os.scandir(path)}
        elif found.st_ino not in self._files:
            self._files.add(found.st_ino)
            self._link(path, self.kept / str(found.st_ino))

    def lose_power(self, rng: random.Random) -> None:
        """Leave what is durable, and of the rest what chance leaves."""
        self._lose(self.root, rng, rng.choice((0.3, 0.7, 1.0)))
        for path in (self.root, *self.root.rglob("*")):
            self._note(path)  # what is there now has been read from the disk

    def _lose(self, folder: Path, rng: random.Random, rate: float) -> None:
        durable = self._folders.get(folder.stat().st_ino, {})
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
        for one in entries:
            path = folder / one.name
            is_lost = durable.get(one.name) != one.inode() and rng.random() < rate
            if one.is_dir(follow_symlinks=False):
                if is_lost:
                    shutil.rmtree(path)
                else:
                    self._lose(path, rng, rate)
            elif is_lost:
                path.unlink()
                self._bring_back(path, durable.get(one.name))
            elif one.inode() not in self._files and rng.random() < rate:
                _spoil(path, rng)
        for name in sorted(durable.keys() - {one.name for one in entries}):
            if rng.random() < rate:
                self._bring_back(folder / name, durable[name])

    def _bring_back(self, path: Path, number: int | None) -> None:
        """Bring back a file whose removal, or whose replacement, was not durable."""
        if number in self._files and not path.exists():
            self._link(self.kept / str(number), path)


def _spoil(path: Path, rng: random.Random) -> None:
    """Leave of a file that was not fsynced a beginning, or its length and nothing else."""
    size = path.stat().st_size
    content = path.read_bytes()
    path.unlink()  # other names of it are spoilt when their turn comes
    path.write_bytes(bytes(size) if rng.random() < 0.3 else content[: rng.randint(0, size)])
