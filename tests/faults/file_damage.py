"""What happens to files on disks, in copies and by hand: one seeded damage at a time."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Damage:
    """What was done, and to which files."""

    what: str
    paths: tuple[Path, ...]


def damage_one(rng: random.Random, path: Path) -> Damage:
    """Damage one file."""
    content = bytearray(path.read_bytes())
    size = len(content)
    kind = rng.choice(("flip", "flip", "flip", "zeros", "truncate", "extend", "empty", "delete"))
    at = rng.randrange(max(size, 1))
    if kind == "flip" and size:
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        end = min(size, at + rng.choice((1, 16, 512, 4096)))
        content[at:end] = bytes(end - at)
    elif kind == "truncate":
        del content[at:]
    elif kind == "extend":
        content += rng.randbytes(rng.choice((1, 100)))
    elif kind == "empty":
        content.clear()
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes(content)
    return Damage(f"{kind} at {at} of {size}: {path.name}", (path,))


def swap(rng: random.Random, paths: Sequence[Path]) -> Damage:
    """Give two files each other's content."""
    first, second = rng.sample(paths, 2)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return Damage(f"swap {first.name} and {second.name}", (first, second))


def copy_over(source: Path, target: Path) -> Damage:
    """Put a copy of a file or a folder in the place of another."""
    if target.is_dir():
        shutil.rmtree(target)
    elif target.exists():
        target.unlink()
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    return Damage(f"copy {source.parent.name}/{source.name} over {target.name}", (target,))
