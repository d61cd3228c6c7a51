"""How kernels are compiled, linked and kept: the one module that imports Numba, and sets its flags.

Imported when a kernel is first called, not when one is defined: that costs half a CPU second.
"""

from __future__ import annotations

import fcntl
import functools
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numba
from numba.core import caching, codegen, compiler, entrypoints, event, types
from numba.core.runtime.nrt import rtsys

from corpuskit.cpu import is_ours
from corpuskit.kernels.compile_time import begin_compile, compiling
from corpuskit.kernels.target import kernel_folder, level, prebuilt_folder, warning

_LINKS = not warning()
"""Whether kernels are linked once, as below. That uses private parts of Numba, so only with the
tested version; with others kernels compile in Numba's own way, which takes twice as long."""

if not _LINKS:
    warnings.warn(warning(), stacklevel=1)

if level():
    # Before the first compilation, when Numba reads them. "" = no more than the level has.
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = level(), ""  # type: ignore[attr-defined]

if _LINKS and is_ours():
    # Keeps Numba from loading its extensions, whose types no kernel takes: awkward, which comes
    # with gigatoken, would be imported, 0.2 CPU s. A stage that needs it calls
    # awkward.numba.register().
    entrypoints._already_initialized = True

LOCK_SECONDS = 120.0
"""How long to wait for another process that compiles the same kernel; the slowest takes 10."""


class _EntryCode(codegen.JITCodeLibrary):
    """Code of a kernel called from Python, with the code of all kernels below it."""

    def add_linking_library(self, library: Any) -> None:
        """Link also what `library` is to be linked with: a `_CalleeCode` links nothing itself."""
        callees = library._linking_libraries if isinstance(library, _CalleeCode) else ()
        for linked in (library, *callees):
            if linked not in self._linking_libraries:
                super().add_linking_library(linked)  # type: ignore[no-untyped-call]


class _PackedCode(_EntryCode):
    """Code in which operations on neighbouring numbers are packed into vectors."""

    def _optimize_final_module(self) -> None:
        setting = numba.config.SLP_VECTORIZE  # type: ignore[attr-defined]
        numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]
        try:
            super()._optimize_final_module()  # type: ignore[no-untyped-call]
        finally:
            numba.config.SLP_VECTORIZE = setting  # type: ignore[attr-defined]


class _CalleeCode(_EntryCode):
    """Code of a kernel called from kernels: neither optimised nor made executable by itself."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Mark the library as complete; its caller's library optimises and links the code."""
        self._raise_if_finalized()  # type: ignore[no-untyped-call]
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


class _CompileEntry(compiler.CompilerBase):
    library: type[_EntryCode] = _EntryCode

    def define_pipelines(self) -> list[Any]:
        """Return numba's usual steps, for a library of our kind."""
        state = self.state
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        steps: Any = compiler.DefaultPassBuilder
        return [steps.define_nopython_pipeline(state)]


class _CompilePacked(_CompileEntry):
    library = _PackedCode


class _CompileCallee(_CompileEntry):
    library = _CalleeCode

    def define_pipelines(self) -> list[Any]:
        """Leave out the entry point for Python."""
        # Not by options of njit: numba compiles len, min ... again for each set of options.
        self.state.flags.no_cpython_wrapper = self.state.flags.no_compile = True
        return super().define_pipelines()

    def _compile_core(self) -> Any:
        result: Any = super()._compile_core()  # type: ignore[no-untyped-call]
        key: Any = [].append  # key of the code: must be a builtin, and no other's
        self.state.targetctx.insert_user_function(key, result.fndesc, [result.library])
        return result._replace(entry_point=key)


class _KernelLocator(caching._CacheLocator):
    """Tells Numba where a kernel is kept: a folder named by contents, the same for all copies."""

    def __init__(self, func: Any, path: Path) -> None:
        self._folder, self._line = kernel_folder(path), func.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _KernelLocator:
        """Return the locator of a function."""
        return cls(py_func, Path(py_file))

    def ensure_cache_path(self) -> None:
        """Make the folder, whatever the umask, writable by this user only."""
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return the version of the source; a folder holds only one."""
        return self._folder.name

    def get_disambiguator(self) -> str:
        """Return what distinguishes functions of the same name."""
        return str(self._line)


class _CachedResult(caching.CompileResultCacheImpl):
    _locator_classes = [_KernelLocator]  # noqa: RUF012 - as Numba declares it

    def reduce(self, cres: Any) -> Any:
        """Return what the cache stores of a kernel, without the bitcode that links it into others.

        No kernel is linked from the cache (`_CalleeCode`), and to read that part takes 3 ms each.
        """
        (name, kind, (code, _)), about, *rest = super().reduce(cres)  # type: ignore[no-untyped-call]
        entry = f'define void @"{about.llvm_cpython_wrapper_name}"() {{ ret void }}'
        parse: Any = codegen.ll.parse_assembly  # type: ignore[attr-defined]
        bitcode = parse(entry).as_bitcode()  # Numba looks the entry point up
        return (name, kind, (code, bitcode)), about, *rest


class _KernelCache(caching.FunctionCache):
    """Loads a kernel from the wheel or from the cache, and compiles it once per machine.

    A kernel that is in neither is locked until it is saved or `release` is called: other processes
    wait for it instead of compiling it, too.
    """

    _impl_class = _CachedResult

    def __init__(self, func: Any) -> None:
        super().__init__(func)  # type: ignore[no-untyped-call]
        self._lock_file: IO[bytes] | None = None
        file: Any = self._cache_file
        folder = prebuilt_folder(Path(func.__code__.co_filename))
        self._prebuilt: Any = caching.IndexDataCacheFile(  # type: ignore[no-untyped-call]
            str(folder), file._index_name.removesuffix(".nbi"), file._source_stamp
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a compiled kernel, or lock it and return None if there is none.

        Numba's own method first imports all that a compilation needs, 0.4 CPU s. To load a kernel,
        the functions that allocate arrays are enough; a compilation imports the rest itself.
        """
        load: Any = self._load_overload
        rtsys.initialize(target_context)
        cache_file, self._cache_file = self._cache_file, self._prebuilt
        try:
            kernel = load(sig, target_context)
        finally:
            self._cache_file = cache_file
        kernel = kernel or load(sig, target_context)
        if kernel is None:
            self._lock()
            kernel = load(sig, target_context)  # another process compiled it meanwhile
            if kernel is not None:
                self.release()
        return kernel

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel for later processes."""
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        self.release()

    def release(self) -> None:
        """Unlock the kernel: other processes load it, or compile it."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _lock(self) -> None:
        """Wait until no other process compiles the kernel; return at once without file locks."""
        if self._lock_file is not None:
            return
        self._impl.locator.ensure_cache_path()
        self._lock_file = open(f"{self._cache_file._index_path}.lock", "wb")  # noqa: SIM115
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                begin_compile()  # another process does
                time.sleep(0.05)
            except OSError:  # a file system without locks
                return
            else:
                return


def compiled(
    func: Callable[..., Any], steps: type[_CompileEntry] = _CompileEntry, **options: Any
) -> Any:
    """Return what compiles `func` on first call: no GIL, IEEE arithmetic, no bounds checks, cached.

    Division by zero gives inf or nan as in NumPy. Numba notices edits only in the file that holds
    the caller (numba issue 1833), and a copy of the file in another folder is another file to it.
    So the cache folder is named after a digest of the caller's file and of all kernels it imports.

    Numba optimises and stores a function by itself, in each caller, and again in the callers of
    those: half the compile time where calls are five deep. So a kernel that kernels call is a
    second function there, which is compiled only as a part of them. A kernel cannot call itself.
    """
    options = {"nogil": True, "error_model": "numpy", **options}
    own_options: Any = {"no_cfunc_wrapper": True, "pipeline_class": steps} if _LINKS else {}
    cache_dir = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if not _LINKS:
        folder = kernel_folder(Path(func.__code__.co_filename))
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    try:
        dispatcher: Any = numba.njit(cache=not _LINKS, **options, **own_options)(func)
    finally:
        numba.config.CACHE_DIR = cache_dir  # type: ignore[attr-defined]
    if dispatcher is func:  # NUMBA_DISABLE_JIT was set elsewhere
        return dispatcher
    cache = _KernelCache(func) if _LINKS else None
    dispatcher.compile = _timed(dispatcher.compile, cache)
    if cache is not None:
        dispatcher._cache = cache

        @functools.cache
        def callee() -> Any:  # built when a caller is compiled, not for a caller from the cache
            return numba.njit(**options, **{**own_options, "pipeline_class": _CompileCallee})(func)

        plain: Any = types.unliteral  # else each constant argument gets a function
        dispatcher.get_overload = lambda signature: callee().get_overload(signature)
        dispatcher.get_call_template = lambda args, named: callee().get_call_template(
            [plain(arg) for arg in args], {name: plain(arg) for name, arg in named.items()}
        )
    return dispatcher


def packed(func: Callable[..., Any]) -> Any:
    """As `compiled`, without reference counts, and vectorised if kernels are linked once."""
    return compiled(func, _CompilePacked, _nrt=False)


def _timed(compile_one: Callable[..., Any], cache: _KernelCache | None) -> Callable[..., Any]:
    """Charge the time to compile or load a kernel to compilation; release its lock."""

    @functools.wraps(compile_one)
    def timed(*args: Any) -> Any:
        with compiling():
            try:
                return compile_one(*args)
            finally:
                if cache is not None:
                    cache.release()

    return timed


class _Begins(event.Listener):
    """Hears of each compilation; loading from the cache is none."""

    def on_start(self, event: event.Event) -> None:
        """Pass it on."""
        begin_compile()

    def on_end(self, event: event.Event) -> None:
        """Not reported."""


event.register("numba:compile", _Begins())  # type: ignore[no-untyped-call]


def inlined(func: Callable[..., Any]) -> Any:
    """Return a function that is compiled into each kernel that calls it."""
    return numba.njit(inline="always", error_model="numpy")(func)
