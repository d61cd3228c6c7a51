"""Which of our source files a kernel or stage is made of: itself and what it imports."""

from __future__ import annotations

import functools
import re
from pathlib import Path

PACKAGE = Path(__file__).parent

# Kernels and stages import each other by whole module names, at the top or inside functions.
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ ]+corpuskit\.((?:kernels|stages|loader)[\w.]*)[ ]+import[ ]+"
    rb"(?:\(([^)]*)\)|([\w, ]+))|import[ ]+corpuskit\.((?:kernels|stages|loader)[\w.]*))",
    re.MULTILINE,
)


@functools.cache
def closure(path: Path) -> tuple[Path, ...]:
    """Return a file and all kernels, stage helpers and loader modules behind it, sorted."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += _imports(current)
    return tuple(sorted(found))


@functools.cache
def _imports(path: Path) -> tuple[Path, ...]:
    files: list[Path] = []
    for module, many, few, plain in _IMPORT.findall(path.read_bytes()):
        base = (module or plain).decode()
        names = re.findall(r"\w+", (many or few).decode())
        for one in (base, *(f"{base}.{name}" for name in names)):
            file = PACKAGE.joinpath(*one.split(".")).with_suffix(".py")
            if file.is_file():
                files.append(file)
    return tuple(files)
