"""Whether the kernels of a plan are compiled on this machine, and how long compiling will take.

Which of the kernels that a stage imports it calls is known only after it has run. So a task that
has run leaves an empty file in the cache of kernels for each of its stages and their flags.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from corpuskit.cache import cache_dir, compiler_version
from corpuskit.closure import closure
from corpuskit.engine import registry
from corpuskit.engine.fingerprint import code_digest
from corpuskit.errors import UsageError
from corpuskit.kernels.jit import IS_PLAIN
from corpuskit.kernels.target import is_compiled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from corpuskit.engine.config import Step
    from corpuskit.engine.plan import Phase, Plan

COMPILING = "cpu_seconds/compiling"
"""Counter of the CPU seconds in which kernels were compiled or loaded."""

LINE_SECONDS = 0.004
"""CPU seconds to compile a line of a file of kernels: 9,000 lines of `pipelines/quickstart.yaml`
took 83 in two workers, 4.6 ms a line, on a busy machine."""

_KERNEL = re.compile(rb"^@kernel\b", re.MULTILINE)


def seconds_to_compile(plan: Plan, phases: Iterable[Phase]) -> float:
    """Return about how many CPU seconds one worker takes to compile what phases call; 0 = warm."""
    if IS_PLAIN:
        return 0.0
    try:
        root = cache_dir()
    except (OSError, UsageError):  # the run itself reports it
        return 0.0
    missing: set[Path] = set()
    for phase in phases:
        for step in _steps(plan, phase):
            if not (root / _marker(step)).exists():
                missing.update(_kernel_files(step.name))
        if phase.is_stream and not (root / _marker(None)).exists():
            missing.update(_kernel_files("pii"))  # masks the samples of the ledger
    cold = (path for path in missing if not is_compiled(path))
    return LINE_SECONDS * sum(path.read_bytes().count(b"\n") for path in cold)


def note_compiled(plan: Plan, phase: Phase) -> None:
    """Note that a task of a phase has run here, so what it calls is compiled.

    For a stage with several passes it waits for the last one: earlier ones may have no units.
    """
    later = plan.phases[phase.index + 1 :]
    if IS_PLAIN or any(set(phase.labels) & set(p.labels) for p in later):
        return
    try:
        root = cache_dir()
        for step in (*_steps(plan, phase), None):
            marker = root / _marker(step)
            if not marker.exists():
                marker.parent.mkdir(exist_ok=True)
                marker.touch()
    except (OSError, UsageError):
        return  # no cache: the next process compiles again


def _steps(plan: Plan, phase: Phase) -> list[Step]:
    sources = plan.file.sources if phase.base is None else ()
    return [*sources, *(plan.step(label) for label in phase.labels)]


def _marker(step: Step | None) -> str:
    """Return the name of the marker file of a stage; without one, of what every phase does."""
    name = "pii" if step is None else step.name
    params = {} if step is None else step.stage.model_dump(mode="json", exclude={"paths"})
    kinds = {k: v for k, v in params.items() if isinstance(v, str | bool)}  # not bounds
    content = json.dumps([kinds, code_digest(name)])
    digest = hashlib.blake2b(f"{compiler_version()}{content}".encode(), digest_size=8)
    return f"compiled/{name}-{digest.hexdigest()}"


def _kernel_files(name: str) -> list[Path]:
    return [path for path in closure(registry.path(name)) if _KERNEL.search(path.read_bytes())]
