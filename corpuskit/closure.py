"""Which source files decide what a stage or a kernel does: its own, and all that it imports.

Imports are read by Python's own parser, wherever they are in a file, and resolved as Python
resolves them, but nothing is executed. What a file imports, and the digest of what decides in it,
are kept in the cache folder under the hash of its bytes: to parse the files of a usual pipeline
takes a CPU second.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.machinery
import itertools
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.cache import cache_dir, compiler_version, keep, read_kept
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(__file__).parent

CARRIERS = frozenset({
    "__init__.py", "cache.py", "closure.py", "distribution.py", "errors.py", "logs.py",
    "formats/__init__.py", "formats/ledger.py", "formats/manifest.py",
    "formats/shards.py", "formats/shuffle_files.py", "storage/",
})  # fmt: skip
"""Parts of corpuskit that a stage may import and that decide nothing about a document.

They store and move what others decided; when the bytes that they write change, `FORMATS_VERSION` of
the fingerprints is raised instead. If they counted, each edit of the object store's client would
make every result of every user again. `__init__.py` holds the version.
"""

_CARRIER_FOLDERS = tuple(name for name in CARRIERS if name.endswith("/"))
_SUFFIXES = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.SOURCE_SUFFIXES)
_MOST_KEPT = 20_000
"""Files that the cache remembers, about 400 bytes each; the oldest are forgotten first."""


class Import(NamedTuple):
    """An import as written: `from <level dots><module> import <names>`, or `import module`.

    Attributes:
        level: leading dots; 0 is absolute.
        module: empty in `from . import name`.
        names: empty in `import module`.
    """

    level: int
    module: str
    names: tuple[str, ...]


class SourceFile(NamedTuple):
    """What is known of a source file.

    Attributes:
        imports: that run, in the order of the text.
        digest: of the code without docstrings, comments, layout and what decides nothing.
    """

    imports: tuple[Import, ...]
    digest: str


@functools.cache
def closure(*paths: Path) -> tuple[Path, ...]:
    """Return files and all source files that they import, directly or not, sorted.

    Followed are: corpuskit without `CARRIERS`; code that is not an installed library; inside a
    library, its own top-level package. Other libraries count by their versions
    (`Stage.libraries`).
    """
    seen: set[Path] = set()
    queue = list(paths)
    while queue:
        current = queue.pop()
        if current not in seen:
            seen.add(current)
            queue += _imported(current)
    _save()
    return tuple(sorted(seen))


def package_modules(path: Path) -> tuple[Path, ...]:
    """Return all modules of the top-level package that a file is in, or only the file."""
    site = _site(path)
    if site is not None:
        top = site / path.relative_to(site).parts[0]
    else:
        top = path
        while (top.parent / "__init__.py").is_file():
            top = top.parent
    return (path,) if top.is_file() else tuple(filter(is_module, sorted(top.rglob("*"))))


def is_module(path: Path) -> bool:
    """Return whether Python could import a file: source, or a compiled extension."""
    return path.name.endswith(_SUFFIXES) and path.is_file()


def is_library(path: Path) -> bool:
    """Return whether a file belongs to what is installed: its version stands for its content."""
    return _site(path) is not None or any(path.is_relative_to(folder) for folder in _stdlib())


@functools.cache
def label(path: Path) -> str:
    """Return what a file is called on every machine: its path inside its top-level package."""
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).as_posix()
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return path.relative_to(_site(path) or top).as_posix()


@functools.cache
def read(path: Path) -> SourceFile:
    """Return imports and digest of a file, by its content at the first call in this process.

    A compiled extension, or text that Python cannot parse, has no imports and the digest of its
    bytes.
    """
    content = path.read_bytes()
    key = hashlib.blake2b(content, digest_size=16).hexdigest()
    cache = _load_cache()
    if key not in cache.sources:
        source = _parsed(content) if path.suffix == ".py" else None
        cache.sources[key] = source or SourceFile((), key)
        cache.num_new += 1
    return cache.sources[key]


# ---------------------------------------------------------------- parsing a file

_UNDECIDING = frozenset({"cost", "text_speed", "oracle", "examples"})
"""Members of a stage that no run asks while it decides: estimates, a test, a demonstration."""

_FOR_CHECKERS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _parsed(content: bytes) -> SourceFile | None:
    try:
        tree = ast.parse(content)
        imports = tuple(dict.fromkeys(_imports(tree)))
        return SourceFile(
            imports, hashlib.blake2b(_normal(tree).encode(), digest_size=16).hexdigest()
        )
    except (SyntaxError, ValueError, RecursionError):
        return None


def _imports(node: ast.AST) -> Iterator[Import]:
    """Yield the imports below a node that run: not those for type checkers."""
    if isinstance(node, ast.Import):
        yield from (Import(0, alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names)
        yield Import(node.level, node.module or "", names)
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in _FOR_CHECKERS:
        children = iter(node.orelse)
    for child in children:
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _imports(child)


def _normal(tree: ast.Module) -> str:
    """Return code without docstrings, comments, layout, and what decides nothing."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        silent = _UNDECIDING if isinstance(node, ast.ClassDef) else frozenset()
        body = [part for part in node.body if not _is_text(part) and _name(part) not in silent]
        node.body = body or [ast.Pass()]
    return ast.unparse(tree)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return ""


def _is_text(node: ast.stmt) -> bool:
    """A bare string: a docstring, or the description under a parameter."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# ---------------------------------------------------------------- where imports lead


@functools.cache
def _imported(path: Path) -> list[Path]:
    """Return what runs before a file, and the files of its imports that are followed."""
    # Plain strings: with Paths this takes twice as long, at every start.
    files = list(_packages(str(path.parent)))
    for level, module, names in read(path).imports:
        if level:
            files += _below(str(path.parents[level - 1]), module, names)
        elif module.partition(".")[0] == PACKAGE.name:
            files += _below(str(PACKAGE), module.partition(".")[2], names)
        elif not path.is_relative_to(PACKAGE):
            files += _third_party(path, module, names)
    return [Path(file) for file in dict.fromkeys(files) if not _carries(file)]


@functools.cache
def _packages(folder: str) -> tuple[str, ...]:
    """Return the `__init__.py` of a package and of those that it is in."""
    if "__init__.py" not in _listed(folder):
        return ()
    return (f"{folder}/__init__.py", *_packages(os.path.dirname(folder)))


def _carries(file: str) -> bool:
    inside = file.removeprefix(f"{PACKAGE}/")
    return inside in CARRIERS or inside.startswith(_CARRIER_FOLDERS)


def _below(base: str, module: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the files that run when a module below a folder is imported, and modules in it."""
    paths, folder = [base], base
    for part in module.split(".") if module else ():
        folder = f"{folder}/{part}"
        paths.append(folder)
    for path in (*paths, *(f"{folder}/{name}" for name in names)):
        file = _module_at(path)
        if file:
            yield file


@functools.cache
def _module_at(path: str) -> str:
    """Return the file of the package or module at a path without suffix; empty if there is none."""
    folder, _, name = path.rpartition("/")
    files = _listed(folder)
    if name in files and "__init__.py" in _listed(path):
        return f"{path}/__init__.py"
    return next((path + suffix for suffix in _SUFFIXES if name + suffix in files), "")


@functools.cache
def _listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _third_party(path: Path, module: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what an absolute import of a third party's file leads to, if it is followed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return
    packages = itertools.accumulate(module.split("."), "{}.{}".format)
    for name in (*packages, *(f"{module}.{name}" for name in names)):
        spec = _spec(name)
        if spec is None or not spec.has_location or spec.origin is None:
            continue
        file = Path(spec.origin)
        if is_module(file) and (not is_library(file) or _is_beside(path, file)):
            yield str(file)


def _is_beside(path: Path, other: Path) -> bool:
    """Return whether two files of a library are in one top-level package."""
    site = _site(path)
    if site is None or site != _site(other):
        return False
    return path.relative_to(site).parts[0] == other.relative_to(site).parts[0]


def forget() -> None:
    """Read files again, as a new process would: for tests that edit them."""
    for cached in (closure, read, _imported, _load_cache, _packages, _module_at, _listed, _spec):
        cached.cache_clear()


@functools.cache
def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return where Python would find a module; `importlib.util.find_spec` executes its parents."""
    parent = name.rpartition(".")[0]
    search_paths: Any = None
    if parent:
        package = _spec(parent)
        search_paths = None if package is None else package.submodule_search_locations
        if search_paths is None:
            return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, search_paths) if hasattr(finder, "find_spec") else None
        except KeyError:  # a folder without __init__.py in a package that is not imported
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            last = name.rpartition(".")[2]
            spec.submodule_search_locations = [os.path.join(path, last) for path in search_paths]
        if spec is not None:
            return spec
    return None


@functools.cache
def _stdlib() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _site(path: Path) -> Path | None:
    """Return the folder of installed distributions that a file is in."""
    for folder in path.parents:
        if folder.name in {"site-packages", "dist-packages"}:
            return folder
    return None


# ---------------------------------------------------------------- the cache


class _SourceCache:
    def __init__(self, sources: dict[str, SourceFile]) -> None:
        self.sources, self.num_new = sources, 0


def _cache_path() -> Path:
    """Return the file of the cache: another one for another parser, and for another version of it.

    Raises:
        OSError: there is no folder for it.
        UsageError: the folder cannot be trusted.
    """
    digest = hashlib.blake2b(sys.version.encode() + Path(__file__).read_bytes(), digest_size=8)
    return cache_dir() / f"sources-{digest.hexdigest()}.json"


@functools.cache
def _load_cache() -> _SourceCache:
    content = None
    with contextlib.suppress(OSError, UsageError):
        content = read_kept(_cache_path())
    sources = {}
    for key, (rows, digest) in json.loads(content or b"{}").items():
        imports = tuple(Import(level, module, tuple(names)) for level, module, names in rows)
        sources[key] = SourceFile(imports, digest)
    return _SourceCache(sources)


def _save() -> None:
    """Keep what is new for later processes.

    Of two processes that save at once one wins; the other's files are parsed again some day.
    """
    cache = _load_cache()
    if not cache.num_new:
        return
    with contextlib.suppress(OSError, UsageError):
        sources = dict(list(cache.sources.items())[-_MOST_KEPT:])
        keep(_cache_path(), json.dumps(sources).encode())
        cache.num_new = 0


@functools.cache
def kernel_digest(path: Path) -> str:
    """Return the name of the folder of a file's compiled kernels.

    It holds a hash of the file, of all kernels that it imports, and of the compiler's version.
    Numba itself caches by path, so each clone of the repository compiled for 81 CPU s.
    """
    digest = hashlib.blake2b(compiler_version().encode(), digest_size=8)
    for source in closure(path):
        digest.update(source.read_bytes())
    return f"{path.stem}-{digest.hexdigest()}"
