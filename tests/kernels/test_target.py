"""Compiled kernels: for a level that machines share, kept, and compiled by one process only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corpuskit import cache
from corpuskit.errors import UsageError
from corpuskit.kernels import target

ROOT = Path(__file__).resolve().parents[2]
IS_PLAIN = os.environ.get("NUMBA_DISABLE_JIT") == "1"

compiled_only = pytest.mark.skipif(IS_PLAIN, reason="nothing is compiled then")

PROGRAM = """
import os, time
from pathlib import Path
from corpuskit.kernels import target
target.PREBUILT = Path(os.environ.get("PREBUILT", "nowhere"))
from corpuskit.kernels.filters.repetition import table_bits
if "SLOWLY" in os.environ:
    import corpuskit.kernels.compiler as compiler
    original = compiler._KernelCache.save_overload
    def save(self, *arguments):
        Path("compiling").touch()
        time.sleep(1.5)
        original(self, *arguments)
    compiler._KernelCache.save_overload = save
value = int(table_bits(100))
import numba
print(value, sum(table_bits.stats.cache_misses.values()), numba.config.CPU_NAME)
"""


def start(folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a process that calls a kernel; it prints result, compilations and target."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CORPUSKIT_CACHE_DIR": str(folder / "cache"),
        "NUMBA_DISABLE_JIT": "0", **variables,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def call(folder: Path, **variables: str) -> tuple[int, int, str]:
    """Call a kernel in a fresh process."""
    process = start(folder, **variables)
    out, err = process.communicate()
    assert process.returncode == 0, err
    value, compiled, name = out.split()
    return int(value), int(compiled), name


@pytest.mark.slow
def test_what_was_compiled_elsewhere_is_loaded_and_not_changed(tmp_path: Path) -> None:
    value, compiled, name = call(tmp_path)
    assert compiled == 1
    if target.why_unsupported():
        assert name == "None"
        return
    assert name == target.LEVELS[os.uname().machine][0]
    shutil.move(tmp_path / "cache", tmp_path / "prebuilt")
    for path in (tmp_path / "prebuilt").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert call(tmp_path, PREBUILT=str(tmp_path / "prebuilt")) == (value, 0, name)
    assert not list((tmp_path / "cache").glob("*/*.nbc"))
    # Code for another processor is not what was compiled.
    other, compiled, _ = call(
        tmp_path, PREBUILT=str(tmp_path / "prebuilt"), NUMBA_CPU_NAME="x86-64-v2",
        NUMBA_CPU_FEATURES="",
    )  # fmt: skip
    assert (other, compiled) == (value, 1)


@pytest.mark.slow
def test_a_kernel_is_compiled_by_one_of_two_processes(tmp_path: Path) -> None:
    first = start(tmp_path, SLOWLY="1")
    while not (tmp_path / "compiling").exists():
        assert first.poll() is None
    value, compiled, _ = call(tmp_path)
    assert compiled == 0, "it waited for the other one"
    out, err = first.communicate()
    assert first.returncode == 0, err
    assert int(out.split()[0]) == value
    assert int(out.split()[1]) == 1


@pytest.mark.slow
def test_a_process_that_dies_while_it_compiles_holds_nobody_up(tmp_path: Path) -> None:
    first = start(tmp_path, SLOWLY="1")
    while not (tmp_path / "compiling").exists():
        assert first.poll() is None
    first.kill()
    first.communicate()
    assert call(tmp_path)[1] == 1


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(UsageError, match="others can put code into the cache"):
        cache._check_root(tmp_path / "cache")


def test_a_cache_in_a_folder_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "cache").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UsageError, match="writable by everybody"):
        cache._check_root(tmp_path / "open" / "cache")
    (tmp_path / "open").chmod(0o1777)  # as /tmp
    cache._check_root.cache_clear()
    cache._check_root(tmp_path / "open" / "cache")


def test_a_folder_of_kernels_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path / "cache"))
    file = target.kernel_files()[0]
    folder = target.kernel_folder(file)
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="others can put code"):
        target.kernel_folder(file)


def test_why_prebuilt_kernels_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PREBUILT", tmp_path)
    assert target.why_not_prebuilt() == "this installation has none"
    about = {**target.build_info(), "numba": "0.1"}
    (tmp_path / target.ABOUT).write_text(json.dumps(about))
    if not target.why_unsupported():
        assert target.why_not_prebuilt().startswith("they are for numba 0.1, here is ")
    monkeypatch.setattr(target, "_flags", lambda: frozenset({"sse4_1"}))
    target.why_unsupported.cache_clear()
    try:
        assert "needs" in target.why_not_prebuilt() or "there is none" in target.why_not_prebuilt()
        assert target.level() == ""
    finally:
        target.why_unsupported.cache_clear()


# ---------------------------------------------------------------- Numba's private classes


def test_the_numba_that_is_pinned_is_the_one_that_kernels_are_linked_with() -> None:
    # With another one kernels compile twice as slowly, with a warning. To raise TESTED, run
    # this file and compare the time of `corpuskit warmup` in an empty cache.
    assert target.warning() == ""


def test_another_numba_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "compiler_version", lambda: "0.99.0")
    assert "Numba 0.99.0 is not 0.68" in target.warning()


@compiled_only
@pytest.mark.slow
def test_with_another_numba_kernels_compile_and_a_warning_says_so(tmp_path: Path) -> None:
    program = """
import warnings
from corpuskit.kernels import target
target.warning = lambda: "another Numba"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from corpuskit.kernels.filters.repetition import table_bits
    table_bits(100)
print([str(one.message) for one in caught][:1])
"""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CORPUSKIT_CACHE_DIR": str(tmp_path / "cache")
    }  # fmt: skip
    out = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert out == "['another Numba']\n"


@compiled_only
@pytest.mark.slow
def test_a_kernel_that_others_call_is_not_compiled_by_itself(tmp_path: Path) -> None:
    # What the private classes are for: one object per kernel that Python calls, callees inside it.
    program = """
from corpuskit.kernels.jit import kernel

@kernel
def inner(value: int) -> int:
    return value * 3

@kernel
def outer(value: int) -> int:
    return inner(value) + 1

print(outer(2), len(inner.overloads), len(outer.overloads), outer.stats.cache_misses)
"""
    (tmp_path / "kernels.py").write_text(program)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CORPUSKIT_CACHE_DIR": str(tmp_path / "cache")
    }  # fmt: skip
    command = [sys.executable, "kernels.py"]
    out = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert out.startswith("7 0 1 ")
    [kept] = (tmp_path / "cache").rglob("*.nbc")
    assert kept.name.startswith("kernels.outer")
    assert subprocess.check_output(command, cwd=tmp_path, env=environment, text=True).split() == [
        "7", "0", "1", "Counter()",
    ]  # fmt: skip


# ---------------------------------------------------------------- the same bits on any processor

DOT = """
import os
import numpy as np
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.target import native_marker

if "NATIVE" in os.environ:
    native_marker().touch()

@kernel
def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total = total + a[i] * b[i]
    return total

values = np.random.default_rng(0).random(1000)
exact = 0.0
for a, b in zip(values.tolist(), values[::-1].tolist()):
    exact = exact + a * b
total = dot(values, values[::-1].copy())
[code] = dot.inspect_asm().values()
print(total == exact, "vfmadd" in code, "mul" in code)
"""


@compiled_only
@pytest.mark.slow
@pytest.mark.parametrize(
    "variables", [{}, {"NATIVE": "1"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}],
    ids=["shared", "native", "base"],
)  # fmt: skip
def test_products_and_sums_are_rounded_one_by_one(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    # A processor with fused multiply-add must not use it: results would depend on the machine.
    (tmp_path / "kernels.py").write_text(DOT)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CORPUSKIT_CACHE_DIR": str(tmp_path / "cache"),
        **variables,
    }  # fmt: skip
    command = [sys.executable, "kernels.py"]
    out = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert out.split() == ["True", "False", "True"]
