"""A real Slurm on one machine: munged, slurmctld and some virtual nodes, without systemd.

Needs root (slurmd switches users) and Debian's packages `slurm-wlm munge`. Everything it writes is
below one folder, and its ports are free ones, so several can run side by side. By hand:

    python -m tests.slurm.cluster up --dir /tmp/slurm        # prints: export SLURM_CONF=...
    python -m tests.slurm.cluster down --dir /tmp/slurm
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")


def missing() -> str | None:
    """Return why no cluster can run here, or None."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd and slurmctld run as root only"


def search_path() -> str:
    """Return PATH with the folders of daemons, which plain users and some containers leave out."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclasses.dataclass
class Cluster:
    """A Slurm cluster, stopped or running.

    Attributes:
        folder: holds all of its files; its path must be short, sockets are in it (108 bytes).
        nodes, cpus: virtual nodes, and the CPUs each pretends to have.
        max_array: MaxArraySize.
        node_timeout_seconds: how long a silent node counts as alive.
        requeue_seconds: how long a requeued job waits before it may start again: Slurm takes it
            from the lifetime of credentials, 120 s by default, 5 s at the least.
        job_age_seconds: how long an ended job is remembered (300 s by default).
    """

    folder: Path
    nodes: int = 2
    cpus: int = 2
    max_array: int = 1001
    node_timeout_seconds: int = 5
    requeue_seconds: int = 5
    job_age_seconds: int = 30

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in order to reach this cluster and no other."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        return {**inherited, "SLURM_CONF": str(self.conf), "PATH": search_path()}

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def up(self) -> None:
        """Start everything; return when all nodes are idle."""
        for name in ("state", "spool", "log", "run", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        if not key.exists():
            key.touch(0o600)
            key.write_bytes(os.urandom(128))
        self.conf.write_text(self._settings())
        self.ask(
            "munged", "--force", f"--key-file={key}", f"--socket={self.folder}/run/munge.sock",
            f"--pid-file={self._pid_file('munged')}", f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={self.folder}/munge/seed",
        )  # fmt: skip
        self.ask("slurmctld", "-f", str(self.conf))
        for name in self.names:
            self.start_node(name)
        wait_until(lambda: self.states().count("idle") == self.nodes, "all nodes are idle")

    def down(self) -> None:
        """Cancel all jobs and stop everything; nothing happens where nothing runs."""
        if self._is_running("slurmctld"):
            with contextlib.suppress(subprocess.CalledProcessError, TimeoutError):
                self.ask("scancel", "--user=root")
                wait_until(lambda: not self.ask("squeue", "-h"), "all jobs have ended", 15)
        for name in (*(f"slurmd-{name}" for name in self.names), "slurmctld", "munged"):
            self._stop(name)
        for pid in (pid for name in self.names for pid in self._of_node(name)):
            _kill(pid)

    def ask(self, *command: str, **options: object) -> str:
        """Run a command against this cluster; return what it prints."""
        done = subprocess.run(
            command, env=self.environment, text=True, capture_output=True, check=False,
            timeout=HANG_SECONDS,
            **options,
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, command, done.stdout, done.stderr
            ) from RuntimeError(done.stderr)
        return done.stdout.strip()

    def states(self) -> list[str]:
        """Return the state of every node."""
        with contextlib.suppress(subprocess.CalledProcessError):
            return self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
        return []

    def jobs(self) -> list[str]:
        """Return the live elements of all arrays, as `number_element|state|node|job name`."""
        return self.ask("squeue", "-h", "-r", "-o", "%i|%T|%N|%j").splitlines()

    def start_node(self, name: str) -> None:
        """Start the daemon of a node, also of one that was killed."""
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        self.ask("slurmd", "-f", str(self.conf), "-N", name)

    def kill_node(self, name: str) -> int:
        """Kill a node's daemon and all that runs on it, as a power cut would; return how many."""
        doomed = [self._pid(f"slurmd-{name}"), *self._of_node(name)]
        for pid in doomed:
            _kill(pid)
        self._pid_file(f"slurmd-{name}").unlink()
        return len(doomed)

    def _of_node(self, name: str) -> Iterator[int]:
        """Yield the step daemons of a node, which come first, and the processes of its jobs."""
        mine = {
            pid
            for pid, variables in _environments()
            if f"SLURMD_NODENAME={name}" in variables and f"SLURM_CONF={self.conf}" in variables
        }
        parents = {_parent(pid) for pid in mine}
        yield from (pid for pid in parents - mine if _name(pid) == "slurmstepd")
        yield from mine

    def _settings(self) -> str:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(self.nodes + 1)
        run, log = self.folder / "run", self.folder / "log"
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={self.cpus} RealMemory={self.cpus * 2000} State=UNKNOWN"
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        return f"""\
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.sock,cred_expire={self.requeue_seconds}
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={run}/slurmctld.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmctldTimeout=30
SlurmdPidFile={run}/slurmd-%n.pid
SlurmdLogFile={log}/slurmd-%n.log
SlurmdSpoolDir={self.folder}/spool/%n
SlurmdTimeout={self.node_timeout_seconds}
SlurmdParameters=config_overrides
StateSaveLocation={self.folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge={self.job_age_seconds}
MaxArraySize={self.max_array}
MaxJobCount=10000
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=main Default=YES PriorityTier=1
PartitionName=urgent PriorityTier=2
"""

    def _pid_file(self, daemon: str) -> Path:
        return self.folder / "run" / f"{daemon}.pid"

    def _pid(self, daemon: str) -> int:
        return int(self._pid_file(daemon).read_text())

    def _is_running(self, daemon: str) -> bool:
        try:
            return _name(self._pid(daemon)) == daemon.partition("-")[0]
        except (OSError, ValueError):
            return False

    def _stop(self, daemon: str) -> None:
        """End a daemon that this cluster started, gently first."""
        if not self._is_running(daemon):
            return
        pid = self._pid(daemon)
        os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self._is_running(daemon), f"{daemon} has ended", 10)
            return
        _kill(pid)


def wait_until(is_true: Callable[[], object], what: str, seconds: float = HANG_SECONDS) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come about.
    """
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _environments() -> Iterator[tuple[int, set[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                content = (folder / "environ").read_bytes()
                yield int(folder.name), set(content.decode(errors="replace").split("\0"))


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _name(pid: int) -> str:
    """Return what a process is called; nothing for one that has ended, reaped or not."""
    with contextlib.suppress(OSError):
        name, _, rest = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")
        return "" if rest.split()[0] == "Z" else name.partition("(")[2]
    return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster")
    parser.add_argument("verb", choices=["up", "down"])
    parser.add_argument("--dir", type=Path, required=True, help="folder of its own; a short path")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=2, help="per node")
    given = parser.parse_args()
    if why := missing():
        parser.error(why)
    cluster = Cluster(given.dir.absolute(), given.nodes, given.cpus)
    if given.verb == "down":
        cluster.down()
        return
    cluster.up()
    print(f"export SLURM_CONF={cluster.conf}")  # noqa: T201 for `eval`


if __name__ == "__main__":
    main()
