"""A tiny run directory with learnable text, and ranks to train on it."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import weakref
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: ranks of one box fight over cores

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from corpuskit.loader.index import plan_hash
from corpuskit.storage import digest_file
from corpuskit.train.settings import TrainSettings
from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

torch.set_num_threads(1)

SEQ_LEN = 32
VOCAB = 48
PAD = 0
ROWS = {"web": 160, "books": 80}


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory: two sources whose next token mostly follows from the one before."""
    return write_run(tmp_path_factory.mktemp("run"))


def write_run(folder: Path) -> Path:
    """Write a run directory into an empty folder, and return it."""
    for number, (name, rows) in enumerate(ROWS.items()):
        _write_part(folder, name, rows, number)
    _write_mix(folder)
    return folder


def _write_part(folder: Path, name: str, num_rows: int, seed: int) -> None:
    """Write a part of `num_rows` rows: documents of 4 to 30 tokens; the last row has padding."""
    random = np.random.default_rng(seed)
    tokens = np.full((num_rows, SEQ_LEN + 1), PAD, np.uint16)
    starts: list[list[int]] = []
    flags: list[list[int]] = []
    for row in tokens:
        bounds = [0]
        while bounds[-1] < SEQ_LEN + 1:
            bounds.append(min(SEQ_LEN + 1, bounds[-1] + int(random.integers(4, 31))))
        starts.append(bounds[:-1])
        flags.append([0] * (len(bounds) - 1))
        for first, end in itertools.pairwise(bounds):
            row[first:end] = random.integers(1, VOCAB, end - first)
            for at in range(first + 1, end):
                if random.random() < 0.9:
                    row[at] = 1 + (7 * row[at - 1] + seed) % (VOCAB - 1)
    tokens[-1, starts[-1][-1] :] = PAD
    flags[-1][-1] = 2
    keys = [[-1 if flag else seed << 40 for flag in row] for row in flags]
    itemsize = (SEQ_LEN + 1) * tokens.itemsize
    schema = pa.schema(
        [
            pa.field("tokens", pa.binary(itemsize), nullable=False),
            pa.field("doc_starts", pa.list_(pa.int32())),
            pa.field("doc_keys", pa.list_(pa.int64())),
            pa.field("text_bytes", pa.list_(pa.int32())),
            pa.field("flags", pa.list_(pa.uint8())),
        ],
        metadata={"corpuskit": json.dumps(_footer(name))},
    )
    stored = [row.tobytes() for row in tokens]
    columns = [stored, starts, keys, [[4] * len(row) for row in flags], flags]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)
    path = folder / "tokens" / name / "part-0-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(
        table, path, row_group_size=64, compression="none", use_dictionary=False,
        write_statistics=False, write_page_checksum=True, data_page_size=1 << 20,
    )  # fmt: skip


def _footer(name: str) -> dict[str, Any]:
    return {
        "format": 1, "source": name, "seq_len": SEQ_LEN, "dtype": "uint16", "tokenizer": "none",
        "first_row": 0, "shuffled": True,
    }  # fmt: skip


def _write_mix(folder: Path) -> None:
    paths = [f"tokens/{name}/part-0-0.parquet" for name in ROWS]
    (folder / "mix").mkdir()
    index = {
        "source": list(ROWS),
        "path": paths,
        "rows": list(ROWS.values()),
        "first_row": [0] * len(ROWS),
        "size_bytes": [(folder / path).stat().st_size for path in paths],
        "digest": [digest_file(folder / path) for path in paths],
    }
    pq.write_table(pa.table(index), folder / "mix" / "index.parquet")
    sources = [
        {
            "name": name,
            "rows": rows,
            "tokens": rows * SEQ_LEN,
            "documents": rows,
            "text_bytes": 4 * rows * SEQ_LEN,
            "max_epochs": 8.0,
            "shuffled": True,
        }
        for name, rows in ROWS.items()
    ]
    plan = {
        "format": 2,
        "name": "tiny",
        "seed": 0,
        "seq_len": SEQ_LEN,
        "dtype": "uint16",
        "tokenizer": {"hash": "none", "vocab_size": VOCAB, "eos": PAD, "pad": PAD},
        "sources": sources,
        "stages": [{"name": "main", "rows": 640, "weights": {"web": 2, "books": 1}}],
        "skip": [],
        "index": "mix/index.parquet",
        "lookups": "mix/lookups.parquet",
        "files": "mix/files.json",
        "digests": {"lookups": "none", "files": "none"},
    }
    plan["plan_hash"] = plan_hash(plan, digest_file(folder / "mix" / "index.parquet"))
    (folder / "mix" / "plan.json").write_text(json.dumps(plan))


@pytest.fixture(scope="session")
def settings_for(run_dir: Path) -> Callable[..., TrainSettings]:
    """Build settings of a tiny run with a given output folder; keyword arguments replace fields."""

    def build(output: Path, **changes: Any) -> TrainSettings:
        fields: dict[str, Any] = {
            "data": str(run_dir),
            "output": str(output),
            "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64},
            "batch": {"global_rows": 8, "micro_rows": 8},
            "steps": 8,
            "optimizer": {"lr": 1e-2},
            "schedule": {"kind": "constant", "warmup_tokens": 0},
            "checkpoint": {"every_steps": 100},
            "device": "cpu",
        }
        return TrainSettings.model_validate(fields | changes)

    return build


@pytest.fixture
def settings(settings_for: Callable[..., TrainSettings], tmp_path: Path) -> Callable[..., Any]:
    """Build settings of a tiny run in this test's folder; keyword arguments replace fields."""
    return functools.partial(settings_for, tmp_path / "train")


@pytest.fixture(scope="session")
def start_ranks() -> Callable[..., Ranks]:
    """Start a function in ranks."""

    def start(world_size: int, work: Callable[..., Any], *args: Any, group: bool = True) -> Ranks:
        return Ranks(world_size, work, args, has_group=group)

    return start


@pytest.fixture(scope="session")
def run_ranks(start_ranks: Callable[..., Ranks]) -> Callable[..., list[Any]]:
    """Call a function in ranks; return what it returned, rank by rank."""
    return lambda *args, **options: start_ranks(*args, **options).answers()


def server() -> ForkServerContext:
    """Return what starts processes that have imported torch and the tests of training.

    They are forks of a server: a process of its own would import for 4 CPU seconds, and with peft
    and transformers for 7. The test process itself does not fork, because its threads may hold
    locks at that moment: such a rank once waited for 1,500 s.
    """
    context = multiprocessing.get_context("forkserver")
    tests = (name for name in sys.modules if name.startswith("tests.train."))
    context.set_forkserver_preload(["corpuskit.train.loop", *tests])
    return context


class Ranks:
    """Processes at work on one function, by default the ranks of a gloo group.

    No rank shuts its interpreter down in the ordinary way: gloo's threads abort some that do.
    """

    def __init__(
        self, world_size: int, work: Any, args: tuple[Any, ...], *, has_group: bool = True
    ) -> None:
        folder = self._folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        context = server()
        meeting = folder / "meeting" if has_group else None
        environ = dict(os.environ)  # of this test, not of the one that started the server
        self.processes = []
        self._pipes: dict[int, Connection] = {}
        for rank in range(world_size):
            # No queue: its locks have names in /dev/shm, where other tests look for what is left.
            self._pipes[rank], say = context.Pipe(duplex=False)
            given = (rank, world_size, folder, meeting, environ, say, work, args)
            self.processes.append(context.Process(target=_rank, args=given))
            self.processes[-1].start()
            say.close()

    def answers(self) -> list[Any]:
        """Wait; return each rank's answer, and fail with the traceback of a rank that failed."""
        try:
            return self._collect()
        except BaseException:
            self.kill()
            raise

    def _collect(self) -> list[Any]:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + HANG_SECONDS
        while len(found) < len(self.processes):
            if time.monotonic() > deadline:
                pytest.fail(f"only ranks {sorted(found)} have answered\n{self._stacks()}")
            silent = {pipe: r for r, pipe in self._pipes.items() if r not in found}
            for pipe in connection.wait(list(silent), timeout=0.2):
                rank = silent[pipe]
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    pytest.fail(f"rank {rank} ended without an answer")
                if isinstance(found[rank], _Failure):
                    pytest.fail(found[rank], pytrace=False)
        for process in self.processes:
            process.join(HANG_SECONDS)
        return [found[rank] for rank in range(len(self.processes))]

    def _stacks(self) -> str:
        """Return where each rank is."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # it has answered and is gone
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.stacks")))

    def kill(self) -> None:
        """Kill all ranks at once."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(HANG_SECONDS)


class _Failure(str):
    """The traceback of a rank."""

    __slots__ = ()


def _rank(
    rank: int, world_size: int, folder: Path, meeting: Path | None, environ: dict[str, str],
    say: Connection, work: Any, args: Any,
) -> None:  # fmt: skip
    os.environ.clear()
    os.environ.update(environ)
    with (folder / f"{rank}.stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        try:
            if meeting:
                dist.init_process_group(
                    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
                )
            answer = work(*args)
        except BaseException:  # noqa: BLE001  the parent raises it
            answer = _Failure(traceback.format_exc())
        say.send(answer)
        os._exit(0)
