"""Starts adapters of loaders: which interpreter runs which, each run in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDS = {
    "memmap": "numpy",
    "litdata": "litdata",
    "datatrove": "datatrove torch",
    "grain": "grain",
    "hf": "datasets torchdata",
    "mosaic": "streaming transformers",
    "lance": "lancedb lance torch",
    "corpuskit": "numpy pyarrow",
}
"""What an interpreter must have to run an adapter."""


@dataclasses.dataclass
class Places:
    """The interpreters by adapter, and the folder of everything that is written."""

    pythons: dict[str, str]
    folder: Path
    hashed: int = 0

    @classmethod
    def found(cls, options: argparse.Namespace, folder: Path) -> Places:
        """Take what `--python NAME=PATH` says, else this interpreter where it has the library."""
        given = dict(named(one) for one in options.python)
        pythons = {}
        for name, modules in NEEDS.items():
            if name not in (options.only or NEEDS):
                continue
            python = given.get(name, sys.executable)
            if has_modules(python, modules):
                pythons[name] = python
            else:
                print(
                    f"{name}: left out, {python} has no {modules.replace(' ', ' or no ')}."
                    f" Give --python {name}=PATH.",
                    file=sys.stderr,
                )
        return cls(pythons, folder)


def named(word: str) -> tuple[str, str]:
    """Return name and path of an interpreter."""
    name, _, path = word.partition("=")
    if name not in NEEDS or not Path(path).is_file():
        sys.exit(f"--python: must be NAME=PATH, NAME one of {', '.join(NEEDS)}, got {word!r}.")
    return name, str(Path(path).absolute())


def has_modules(python: str, modules: str) -> bool:
    """Say whether an interpreter finds modules; nothing is imported."""
    look = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", look, *modules.split()], check=False).returncode == 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both benchmarks of loaders have."""
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"interpreter of an adapter ({', '.join(NEEDS)}); see benchmarks/peers/loaders.txt",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these adapters alone")
    parser.add_argument("--folder", help="keep what is written here; default: a temporary folder")


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a run: one thread, and caches of its own."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
        **(more or {}),
    }


def request(
    places: Places, adapter: str, spec: Mapping[str, Any], action: str, **more: Any
) -> dict[str, Any]:
    """Run an adapter to its end and return what it found out."""
    return finish(start(places, adapter, spec, action, **more))


@dataclasses.dataclass
class Started:
    """A process of an adapter."""

    process: subprocess.Popen[str]
    out: Path
    log: Path


def start(
    places: Places,
    adapter: str,
    spec: Mapping[str, Any],
    action: str,
    variables: Mapping[str, str] | None = None,
    **more: Any,
) -> Started:
    """Start an adapter."""
    (places.folder / "tmp").mkdir(parents=True, exist_ok=True)
    asked = Path(tempfile.mkdtemp(dir=places.folder))
    (asked / "request.json").write_text(
        json.dumps({"spec": dict(spec), "action": action, **more}), "utf-8"
    )
    with (asked / "log").open("w") as log:
        process = subprocess.Popen(
            [places.pythons[adapter], "-W", "ignore", str(HERE / f"loader_{adapter}.py"),
             str(asked / "request.json"), str(asked / "out.json")],
            stdout=log, stderr=log, text=True, cwd=asked, start_new_session=True,
            env=environment(places.folder, variables),
        )  # fmt: skip
    return Started(process, asked / "out.json", asked / "log")


def finish(started: Started, timeout_seconds: float = 300) -> dict[str, Any]:
    """Wait for a run; `error` says that it failed, or never ended."""
    try:
        code = started.process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        kill(started)
        return {"error": f"hangs: nothing within {timeout_seconds:.0f} s"}
    kill(started)  # what it has started itself, and left
    if not started.out.exists():
        said = started.log.read_text("utf-8", "replace").strip().splitlines()
        return {"error": f"exit code {code}: {said[-1] if said else ''}"}
    return dict(json.loads(started.out.read_text("utf-8")))


def kill(started: Started) -> None:
    """Kill the whole session of a run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()


def finish_all(started: Sequence[Started], timeout_seconds: float = 300) -> list[dict[str, Any]]:
    """Wait for runs that go on at the same time."""
    return [finish(one, timeout_seconds) for one in started]
