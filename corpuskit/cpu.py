"""CPU time of this process and of those that work for it, and how less of it is spent."""

from __future__ import annotations

import atexit
import gc
import importlib.abc
import importlib.machinery
import os
import resource
import sys
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_running: dict[int, float] = {}
"""Process -> CPU seconds that it reported; the kernel counts only processes that ended."""


def cpu_seconds() -> float:
    """Return CPU seconds of this process, all its threads, and its children, running or ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + sum(_running.values())


def note_running(process: int, seconds: float) -> None:
    """Note the CPU seconds that a running child reports of itself."""
    _running[process] = seconds


def note_ended(process: int) -> None:
    """Forget what a child reported that has ended and was waited for: the kernel counts it now."""
    _running.pop(process, None)


def start_quickly() -> None:
    """Spend less CPU time on the start and the end of a process that is a command of ours.

    Python looks for cycles after 200,000 new objects, not 700, and not at all at the end: of a
    command that imports 500 modules a fifth went there (`plan` 0.72 to 0.59 s, `run` of a small
    corpus in one process 3.2 to 2.6 s). Modules that most commands import, but do not use, are
    loaded when they are used. Pydantic does not look for plugins in all that is installed (0.01 s).
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    sys.meta_path.insert(0, _Deferred())


def is_ours() -> bool:
    """Return whether the process is a command of ours, not a program that uses corpuskit."""
    return any(isinstance(finder, _Deferred) for finder in sys.meta_path)


class _Deferred:
    """Finds modules that load themselves when an attribute is first read.

    `importlib.util.LazyLoader` does not do: the second import of a module loads it.
    """

    names: ClassVar = {"pyarrow.compute", "pyarrow.parquet"}
    """40 CPU ms: compute makes a function of each of 280 kernels, parquet imports file systems."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module, None to leave it to others."""
        if name not in self.names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferredLoader(spec.loader)
        return spec


class _DeferredLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the first read of an attribute loads the module."""
        module.__dict__["_deferred"] = threading.RLock(), self.loader


class _DeferredModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Load the module, once: Python calls this only for attributes that are missing."""
        if name.startswith("__") or "_deferred" not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        lock, loader = self.__dict__["_deferred"]
        with lock:
            if "_loaded" not in self.__dict__:
                self.__dict__["_loaded"] = True  # before: what it imports may read attributes, too
                loader.exec_module(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
