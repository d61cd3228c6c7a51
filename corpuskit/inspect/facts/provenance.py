"""What made the run: fingerprints, versions, the plan and its input files."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import corpuskit
from corpuskit.inspect.facts.funnel import changed_params

if TYPE_CHECKING:
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import RunStatus, Sealed

MAX_FILES = 50
"""Input files of a source that are named."""

LIBRARIES = (
    "datasketch", "datatrove", "fasttext", "numba", "numpy", "pyarrow", "pydantic", "spacy",
    "tokenizers", "zstandard",
)  # fmt: skip


def provenance(run: RunDirectory, finished: Sealed, state: RunStatus) -> dict[str, Any]:
    """Return fingerprints and versions, as JSON values.

    Libraries whose version decides are part of the fingerprints; runs do not store versions by
    name, so the versions are those that are installed where the report is made.
    """
    current = {one.phase.name: one.state == "reuse" for one in state.phase_statuses}
    phases = [
        {
            "phase": phase.name, "fingerprint": seal.fingerprint, "content": seal.content(),
            "inputs": list(seal.inputs), "is_current": current.get(phase.name),
            "accepted_code_change": seal.accepted_code_change,
        }
        for phase, seal in finished
    ]  # fmt: skip
    mix = _mix_plan(run)
    return {
        "phases": phases,
        "versions": {"here": _versions(), "recorded": None},
        "plan_hash": mix.get("plan_hash"),
        "tokenizer": mix.get("tokenizer"),
        "code": _planned_code(run),
    }


def _planned_code(run: RunDirectory) -> dict[str, str]:
    """Return the digests of the code that the run was planned with."""
    try:
        content = json.loads(run.store.read("plan.json"))
        return {str(name): str(digest) for name, digest in content["code"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _mix_plan(run: RunDirectory) -> dict[str, Any]:
    if not run.store.exists("mix/plan.json"):
        return {}
    try:
        found = json.loads(run.store.read("mix/plan.json"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@functools.cache
def _versions() -> dict[str, str]:
    found = {"corpuskit": corpuskit.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def plan_facts(run: RunDirectory) -> dict[str, Any]:
    """Return the plan as JSON values: settings, sources with their files, stages."""
    files: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    sizes: defaultdict[str, int] = defaultdict(int)
    nums: defaultdict[str, int] = defaultdict(int)
    for file in run.inputs.files:
        nums[file.source] += 1
        sizes[file.source] += file.size_bytes
        if len(files[file.source]) < MAX_FILES:
            files[file.source].append({"name": file.name, "size_bytes": file.size_bytes})
    sources = [
        {
            "label": step.label, "format": step.name, "params": changed_params(step.stage),
            "paths": list(getattr(step.stage, "paths", ())), "num_files": nums[step.label],
            "size_bytes": sizes[step.label], "files": files[step.label],
        }
        for step in run.plan.file.sources
    ]  # fmt: skip
    stages = [
        {
            "label": step.label, "name": step.name,
            "params": step.stage.model_dump(mode="json"), "changed": changed_params(step.stage),
            "materialize": step.materialize,
        }
        for step in run.plan.file.steps
    ]  # fmt: skip
    settings = run.plan.settings.model_dump(mode="json", exclude_defaults=True)
    edits = len(run.store.list("edits"))
    return {"settings": settings, "sources": sources, "stages": stages, "edits": edits}
