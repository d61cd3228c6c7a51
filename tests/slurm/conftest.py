"""A cluster for all tests of this folder, and a lab that sends its runs there."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from corpuskit.engine.pipeline import submit
from corpuskit.engine.plan import read_plan
from tests.engine import conftest as lab_fixtures
from tests.engine.conftest import ROOT, Lab, checked, corpus, tree
from tests.engine.here import command_line, forget_stages
from tests.patience import HANG_SECONDS
from tests.slurm.cluster import Cluster, missing, search_path, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from corpuskit.engine.callbacks import RunCallbacks
    from corpuskit.engine.pipeline import Submission

tokenizer = lab_fixtures.tokenizer

GATE = '''
"""Hold documents back until a file exists."""

import os
import time
from pathlib import Path

import numpy as np

from corpuskit.stage import Outcome, StreamingStage, View


class Gate(StreamingStage):
    """Hold documents back until a file exists; keeps all of them."""

    def apply(self, view: View) -> Outcome:
        gate = Path(os.environ["GATE"])
        if not (gate / "open").exists():
            (gate / f"held-{os.getpid()}").touch()
        end = time.monotonic() + 1500
        while not (gate / "open").exists():
            assert time.monotonic() < end, "nobody opened the gate"
            time.sleep(0.05)
        return Outcome(codes=np.zeros(len(view.text.sizes()), np.uint8))
'''


@pytest.fixture(scope="session")
def cluster():
    """Two virtual nodes of two CPUs."""
    if why := missing():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    made = Cluster(folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """A folder of packages with a third party's stage, `gate`."""
    folder = tmp_path_factory.mktemp("site")
    described = folder / "gate-1.0.dist-info"
    described.mkdir()
    (folder / "gate.py").write_text(GATE)
    (described / "METADATA").write_text("Name: gate\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[corpuskit.stages]\ngate = gate\n")
    return folder


@contextlib.contextmanager
def installed(site: Path) -> Iterator[None]:
    """Have this process know the packages of a folder."""
    sys.path.insert(0, str(site))
    try:
        forget_stages()
        yield
    finally:
        sys.path.remove(str(site))
        forget_stages()


class SlurmLab(Lab):
    """A lab at the door of a cluster: `run` goes there unless told otherwise.

    Its slots are whole nodes: one per node, with one worker each.
    """

    known: ClassVar[dict[str, dict[str, str]]] = {}

    def __init__(self, folder: Path, tokenizer: Path, cluster: Cluster, site: Path) -> None:
        super().__init__(folder, tokenizer)
        self.cluster, self.site, self.gate = cluster, site, folder / "gate"
        self.gate.mkdir()
        self.pipeline["executor"] = {
            "workers": 1,
            "slurm": {"slots": 2, "cpus": cluster.cpus, "time": "10", "grace_seconds": 30},
        }  # fmt: skip
        # The passes of another global stage would be more of the same, 10 CPU seconds each.
        self.pipeline["stages"].remove({"minhash_dedup": {"ngram": 3}})
        self.pipeline["stages"].remove("pii")
        documents = corpus()
        self.write("web0.jsonl", documents[:60])
        self.write("web1.jsonl", documents[60:120])
        self.write("books.jsonl", documents[120:])

    def shorten(self) -> None:
        """Keep two phases, the second of which waits for all of the first, and the closing job."""
        filtered = {"gopher_quality": {"min_words": 30, "words": "whitespace", "materialize": True}}
        self.pipeline["stages"] = ["gate", filtered, "pii"]
        self.pipeline["sources"]["web"]["jsonl"] = str(self.inputs / "web*")

    @property
    def environment(self) -> dict[str, str]:
        """What a user has at the door of the cluster."""
        return {
            **self.cluster.environment, "OMP_NUM_THREADS": "1", "GATE": str(self.gate),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.site)]),
            "PATH": os.pathsep.join([str(self.folder / "bin"), search_path()]),
        }  # fmt: skip

    def cli(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Call the command line in this process; what it submits are jobs, which are others."""
        with installed(self.site):
            return checked(command_line(self.folder, arguments, self.environment), code)

    @contextlib.contextmanager
    def submitted(self, observer: RunCallbacks) -> Iterator[Submission]:
        """Run on the cluster through the Python interface; what it returns can be followed."""
        self.pipeline["executor"]["kind"] = "slurm"
        self.save()
        with pytest.MonkeyPatch.context() as patch, installed(self.site):
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield submit(read_plan(self.path), observer)

    def replace_sbatch(self, without: str) -> None:
        """Put a program before sbatch that leaves an option out."""
        program = self.folder / "bin" / "sbatch"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/bash\nfor word; do shift; "
            f'if [ "$word" != "{without}" ]; then set -- "$@" "$word"; fi; done\n'
            f'exec {shutil.which("sbatch", path=search_path())} "$@"\n'
        )
        program.chmod(0o755)

    def submit(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run on the cluster."""
        return self.run("--executor", "slurm", *arguments, code=code)

    def wait(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run on the cluster, to the end."""
        return self.submit("--wait", *arguments, code=code)

    def expected(self) -> dict[str, str]:
        """Return what the same stages leave when they run here, on the same inputs."""
        names = sorted(path.name for path in self.inputs.iterdir())
        key = json.dumps([self.pipeline["stages"], names])
        if key not in self.known:
            self.save()
            self.open_gate()
            out = self.folder / "expected"
            self.cli("run", str(self.path), "--executor", "local", "--set", f"output={out}")
            self.known[key] = tree(out)
        return self.known[key]

    def open_gate(self) -> None:
        (self.gate / "open").touch()

    def held(self) -> int:
        """Return how many workers stand at the gate."""
        return len(list(self.gate.glob("held-*")))

    def kill_slot(self, number: int) -> None:
        """Kill what runs a slot, as the kernel does that is out of memory."""
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                words = (environ.parent / "cmdline").read_bytes().split(b"\0")
                variables = environ.read_bytes().split(b"\0")
                is_slot = (
                    b"corpuskit.engine.executors.slurm_slot" in words
                    and str(self.out).encode() in words
                )
                if is_slot and f"SLURM_ARRAY_TASK_ID={number}".encode() in variables:
                    os.kill(int(environ.parent.name), signal.SIGKILL)

    def break_input(self) -> tuple[Path, bytes]:
        """Cut an input file off in the middle; return it, and what it should be."""
        path = self.inputs / "web2.jsonl.gz"
        whole = gzip.compress("".join(json.dumps(d) + "\n" for d in corpus(80, 7)).encode())
        path.write_bytes(whole[: len(whole) // 2])
        return path, whole

    def jobs(self) -> list[dict]:
        """Return the jobs as `status` tells of them."""
        return self.facts()["jobs"]

    def wait_until_closed(self, seconds: float = HANG_SECONDS) -> None:
        """Wait for the closing job's last act; fail with the logs when nobody is left to do it."""
        jobs = self.out / "jobs.json"
        wait_until(lambda: not jobs.exists() or not self.cluster.jobs(), "the end", seconds)
        wait_until(lambda: not self.cluster.jobs(), "the closing job has ended")
        assert not jobs.exists(), self.logs()

    def logs(self) -> str:
        """Return what all slots have said."""
        paths = sorted((self.out / "logs").glob("slurm-*.log"))
        return "".join(path.read_text() for path in paths)


def numbers(printed: str) -> list[str]:
    """Return the job ids that `run` printed, the closing one last."""
    return re.findall(r": job (\d+), ", printed)


@pytest.fixture
def whole(tmp_path: Path, tokenizer: Path, cluster: Cluster, site: Path):
    """A lab with stages of every kind: 11 phases."""
    yield SlurmLab(tmp_path, tokenizer, cluster, site)
    _clear(cluster)


@pytest.fixture
def lab(tmp_path: Path, tokenizer: Path, cluster: Cluster, site: Path):
    """A lab with two phases; documents wait at a gate in the first."""
    made = SlurmLab(tmp_path, tokenizer, cluster, site)
    made.shorten()
    yield made
    _clear(cluster)


def _clear(cluster: Cluster) -> None:
    cluster.ask("scancel", "--user=root")
    wait_until(lambda: not cluster.jobs(), "all jobs have ended")
