"""Which processor kernels are compiled for, and where compiled kernels are kept.

Kernels are compiled for a level that most machines have, not for the processor of this one: others
can load them, and a wheel can bring them. After `corpuskit warmup --native` they are compiled for
exactly this processor; docs/decisions.md says what that gains.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from corpuskit.cache import cache_dir, check_owner, compiler_version
from corpuskit.closure import PACKAGE, kernel_digest

TESTED = "0.68"
"""The Numba whose private classes `compiler` builds on, in kernels that are linked once."""

LEVELS = {
    "x86_64": (
        "x86-64-v3",
        "abm avx avx2 bmi1 bmi2 cx16 f16c fma lahf_lm movbe popcnt sse4_1 sse4_2 ssse3 xsave",
    ),
    "aarch64": ("generic", "asimd fp"),
}
"""Machine -> LLVM's name of the level, and Linux's names of the instructions that it needs."""

PREBUILT = PACKAGE / "kernels" / "prebuilt"
"""Kernels that came with the wheel: code of the package, as trusted as the rest of it."""

ABOUT = "about.json"


def level() -> str:
    """Return the common level to compile for; empty for native code, or if this machine lacks it.

    Also empty if `NUMBA_CPU_NAME` is set: then Numba chooses.
    """
    if os.environ.get("NUMBA_CPU_NAME") or why_unsupported() or native_marker().exists():
        return ""
    return LEVELS[platform.machine()][0]


@functools.cache
def why_unsupported() -> str:
    """Return why kernels for the common level cannot run here; empty if they can."""
    if platform.machine() not in LEVELS:
        return f"there is none for {platform.machine()}"
    name, required = LEVELS[platform.machine()]
    missing = sorted(set(required.split()) - _flags())
    return f"{name} needs {', '.join(missing)}" if missing else ""


@functools.cache
def _flags() -> frozenset[str]:
    """Return the instructions that the processor has; none where that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line[:5] in {"flags", "Featu"}), "").split())


def native_marker() -> Path:
    """Return the file that, if it exists, asks for native code on processors like this one."""
    kind = hashlib.blake2b(" ".join(sorted(_flags())).encode(), digest_size=8).hexdigest()
    return cache_dir() / f"native-{kind}"


def kernel_folder(path: Path) -> Path:
    """Return the folder for compiled kernels of a file; it may not exist yet.

    Raises:
        UsageError: others can write to it, and its files are unpickled, that is, run.
    """
    folder = cache_dir() / kernel_digest(path)
    if folder.exists():
        check_owner(folder)
    return folder


def prebuilt_folder(path: Path) -> Path:
    """Return the folder of the wheel for compiled kernels of a file; it may not exist."""
    return PREBUILT / kernel_digest(path)


def is_compiled(path: Path) -> bool:
    """Return whether at least some kernels of a file were compiled for this machine."""
    return (bool(level()) and prebuilt_folder(path).exists()) or kernel_folder(path).exists()


def kernel_files() -> list[Path]:
    """Return all files of the package that define kernels."""
    return [file for file in sorted(PACKAGE.rglob("*.py")) if b"\n@kernel" in file.read_bytes()]


def warmup_marker() -> Path:
    """Return the file that exists if all kernels of this version were compiled here."""
    content = json.dumps([build_info(), [kernel_digest(file) for file in kernel_files()]])
    digest = hashlib.blake2b(content.encode(), digest_size=8)
    return cache_dir() / "compiled" / f"all-{digest.hexdigest()}"


def build_info() -> dict[str, Any]:
    """Return what else than their source decides whether compiled kernels can be loaded."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numba": compiler_version(),
        "level": level() or "native",
    }


def why_not_prebuilt() -> str:
    """Return why kernels that came with the package are not used; empty if they are."""
    try:
        about = json.loads((PREBUILT / ABOUT).read_text("utf-8"))
    except (OSError, ValueError):
        return "this installation has none"
    if why_unsupported():
        return why_unsupported()
    machine = build_info()
    return "; ".join(
        f"they are for {name} {about.get(name)}, here is {value}"
        for name, value in machine.items()
        if about.get(name) != value
    )


def warning() -> str:
    """Return a warning if the installed Numba is not the tested one; else empty."""
    version = compiler_version()
    if version.startswith(f"{TESTED}."):
        return ""
    return (
        f"Numba {version} is not {TESTED}, which corpuskit is tested with: kernels take twice as "
        f"long to compile, and those that came with corpuskit are not used. Run: pip install "
        f"'numba=={TESTED}.*'"
    )
