"""Fingerprints: the hash of all that decides what a phase writes.

`<facts>.<code>`: facts are parameters, inputs, model files and library versions; code is the source
of the stages, and of all stage helpers and kernels they import, without docstrings and comments.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import stat
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit import registry
from corpuskit.closure import PACKAGE, closure
from corpuskit.errors import UsageError
from corpuskit.stages._derived import Derived, derived
from corpuskit.storage import digest_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.stage import Stage

FORMATS_VERSION = 1
"""Raise it when the runner, not a stage, writes other bytes for the same decisions."""


def fingerprint(facts: Mapping[str, Any], stages: Iterable[tuple[str, str, Stage]]) -> str:
    """Return the fingerprint of a phase.

    Args:
        facts: JSON values: inputs, settings, pass name.
        stages: (label, name, configured stage) of all stages that run in the phase.

    Raises:
        UsageError: a file that a stage names cannot be read.
    """
    stages = list(stages)
    libraries = {"pyarrow", *(lib for *_, stage in stages for lib in stage.libraries())}
    everything = {
        "formats": FORMATS_VERSION,
        "unicode": unicodedata.unidata_version,
        "facts": facts,
        "stages": [
            {
                "label": label,
                "name": name,
                "distribution": registry.distribution(name),
                "version": stage.version,
                "params": stage.model_dump(mode="json", exclude={"paths"}),
                "files": [[Path(path).name, file_digest(path)] for path in stage.files()],
            }
            for label, name, stage in stages
        ],
        "libraries": {lib: _version(lib) for lib in sorted(libraries)},
    }
    code = [code_digest(registry.path(name)) for _, name, _ in stages]
    return f"{_hash(everything)}.{_hash(code)}"


def same_but_code(one: str, other: str) -> bool:
    """Return whether two fingerprints differ at most in the code."""
    return one.partition(".")[0] == other.partition(".")[0]


def file_digest(path: str) -> str:
    """Return the content hash of a file that decides; remembered while size and time stay.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a device never ends
            raise UsageError(f"{path}: is no regular file. Check the path.")
        return _file_digest(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot be read: {reason}. Check the path.") from None


@functools.lru_cache(maxsize=256)
def _file_digest(path: str, size: int, stamp: int) -> str:
    return digest_file(Path(path))


@functools.cache
def code_digest(path: Path) -> str:
    """Return the hash of a stage's source and of the kernels and helpers it imports.

    Docstrings, comments and layout do not count. Kept beside the compiled kernels under the hash of
    what the files hold, since to parse those of a usual pipeline takes a CPU second.
    """
    contents = [(_label(source), source.read_bytes()) for source in closure(path)]

    def make() -> Derived:
        return Derived({"digest": _hash([[name, _normal(text)] for name, text in contents])}, {})

    digests = [[name, hashlib.blake2b(text).hexdigest()] for name, text in contents]
    try:
        kept = derived("code", _hash([sys.version, digests], 16), __file__, make)
    except (OSError, UsageError):  # there is no folder for it, or none to trust
        kept = make()
    return str(kept.values["digest"])


APART = frozenset({"kernels", "stages", "loader", "cli", "report", "train"})
"""Folders that are no part of the runner: what stages are made of, which has digests of its own,
and what no worker loads."""


@functools.cache
def runner_digest() -> str:
    """Return the hash of what is between stages: plan, runner, formats, stores. Not fingerprinted.

    Processes of one run must agree on it; results of earlier runs need not.
    """
    return _hash([[_label(file), file.read_text("utf-8")] for file in runner_files()])


def runner_files() -> list[Path]:
    """Return the source files of the runner, sorted."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [file for file in files if file.relative_to(PACKAGE).parts[0] not in APART]


@functools.cache
def _normal(source: bytes) -> str:
    """Return the source without docstrings, comments, layout, and what decides nothing."""
    tree = ast.parse(source.decode())
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        silent = _UNDECIDING if isinstance(node, ast.ClassDef) else frozenset()
        body = [one for one in node.body if not _is_text(one) and _name(one) not in silent]
        node.body = body or [ast.Pass()]
    return ast.unparse(tree)


_UNDECIDING = frozenset({"cost", "oracle", "examples"})
"""Members of a stage that no run asks while it decides: an estimate, a test, a demonstration."""


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


def _label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name


@functools.cache
def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _hash(value: Any, size: int = 8) -> str:
    content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(content, digest_size=size).hexdigest()
