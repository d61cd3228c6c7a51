"""Marks functions as kernels: Numba compiles them at their first call.

Numba, whose import takes half a CPU second, is loaded at the first call of any kernel. Commands
that only look at runs call none.

`NUMBA_DISABLE_JIT=1` runs every kernel as plain Python.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, ParamSpec, TypeVar, cast

from corpuskit.cache import cache_dir
from corpuskit.kernels.compile_time import compile_seconds, compiling, on_compile

__all__ = [
    "IS_PLAIN", "cache_dir", "compile_seconds", "compiling", "inline", "kernel", "load_compiler",
    "on_compile", "packed_kernel",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

IS_PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "").strip() not in {"", "0"}

_COMPILING = threading.RLock()
"""Held while a kernel is prepared: Numba must not be imported by two threads at once."""


class _Lazy:
    """A kernel that is compiled when it is first called or asked for an attribute.

    Args:
        maker: function of `compiler` that compiles it.
    """

    def __init__(self, func: Callable[..., Any], maker: str) -> None:
        functools.update_wrapper(self, func)
        self.py_func, self._maker = func, maker
        self._dispatcher: Any = None
        self._compiled: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._compiled or self.compile())(*args, **kwargs)

    def compile(self) -> Any:
        """Return the compiled kernel.

        Numba looks up the kernels that it calls in its globals and closure, and needs compiled ones
        there: they replace the lazy ones.
        """
        if self._compiled is not None:
            return self._compiled
        load_compiler()
        with _COMPILING, compiling():
            if self._dispatcher is None:
                from corpuskit.kernels import compiler

                self._dispatcher = getattr(compiler, self._maker)(self.py_func)
                _replace_called(self.py_func)
                self._compiled = self._dispatcher
        return self._dispatcher

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy, pickle and inspect look these up: that must not compile
            raise AttributeError(name)
        return getattr(self.compile(), name)

    def __reduce__(self) -> Any:
        return _find_kernel, (self.__module__, self.__qualname__)


def kernel(func: Callable[P, R]) -> Callable[P, R]:
    """Have `func` compiled on first call: no GIL, IEEE arithmetic, no bounds checks, kept on disk.

    Division by zero gives inf or nan as in NumPy. A kernel cannot call itself.
    """
    return func if IS_PLAIN else cast("Callable[P, R]", _Lazy(func, "compiled"))


def packed_kernel(func: Callable[P, R]) -> Callable[P, R]:
    """As `kernel`, with LLVM's SLP vectoriser, which Numba omits, and without reference counts.

    The vectoriser makes one vector operation of equal operations on neighbouring numbers, as in
    loops that keep several sums, each in a variable. Reference counts are two atomic operations for
    each array of a tuple in each call; without them the kernel, and what it calls, can neither make
    arrays nor return any.
    """
    return func if IS_PLAIN else cast("Callable[P, R]", _Lazy(func, "packed"))


def inline(func: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper into each kernel that calls it; costs compile time per caller."""
    return func if IS_PLAIN else cast("Callable[P, R]", _Lazy(func, "inlined"))


def load_compiler() -> None:
    """Load Numba now, so that its half second is charged to no stage."""
    if not IS_PLAIN:
        with _COMPILING:
            from corpuskit.kernels import compiler  # noqa: F401 - imported to load Numba


def _replace_called(func: Callable[..., Any]) -> None:
    """Replace the lazy kernels that a function calls by compiled ones."""
    names = list(_names(func.__code__))
    folders = [func.__globals__]
    values = map(func.__globals__.get, names)
    folders += [vars(value) for value in values if isinstance(value, ModuleType)]
    for folder in folders:
        for name in names:
            if isinstance(folder.get(name), _Lazy):
                folder[name] = folder[name].compile()
    for cell in func.__closure__ or ():
        if isinstance(cell.cell_contents, _Lazy):
            cell.cell_contents = cell.cell_contents.compile()


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals that a function, or one defined inside it, reads."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            yield from _names(inner)


def _find_kernel(module: str, name: str) -> Any:
    """Return a kernel by its name, to unpickle it."""
    return getattr(importlib.import_module(module), name)
