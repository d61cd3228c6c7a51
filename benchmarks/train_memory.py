"""Holds the estimate of `corpuskit train --plan` against what real models take on CPU.

    python benchmarks/train_memory.py              # all cases, some ten minutes of two idle cores
    python benchmarks/train_memory.py 15m          # those with 15m in their name

Each case takes two steps of the model in fresh processes, one per rank, twice: once with every
tensor counted (by storage, as it is made, resized and freed), once with nothing but the kernel
watching (VmHWM). Columns are estimate / measured:

    weights, grads, optim   bytes of parameters, gradients and optimizer state on rank 0: exact sums
    saved                   what autograd saved in the forward pass, by storage, parameters apart
                            (one rank, float32, no recomputation: FSDP gives storages back, and
                            recomputation keeps things elsewhere)
    kept                    all that the forward pass left alive
    peak                    the most bytes of tensors alive at once in the second step
    RSS                     growth of the process's peak over what it was before the model was built
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corpuskit.train.estimate import FLOAT, plan_work, step_moments
from corpuskit.train.model import make_micro_batch, token_losses
from corpuskit.train.optim import build_optimizer, clip_gradients
from corpuskit.train.parallel import begin_micro_batch, build_model, join
from corpuskit.train.settings import TrainSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Case:
    """One configuration."""

    preset: str
    dtype: str = "float32"
    recompute: str = "none"
    ranks: int = 1
    zero: int = 3
    tensor: int = 1
    context: int = 1
    replicas: int = 1
    micro_batches: int = 1
    rows: int = 2
    seq_len: int = 512
    vocab_size: int = 4096

    def __str__(self) -> str:
        words = [self.preset, self.dtype, self.recompute, f"{self.rows}x{self.seq_len}"]
        words.append(f"V{self.vocab_size}")
        if self.ranks > 1:
            words.append(f"{self.ranks} ranks zero {self.zero}")
        words += [f"tensor {self.tensor}"] * (self.tensor > 1)
        words += [f"context {self.context}"] * (self.context > 1)
        words += [f"replicas {self.replicas}"] * (self.replicas > 1)
        words += [f"{self.micro_batches} micro-batches"] * (self.micro_batches > 1)
        return " ".join(words)

    def settings(self) -> TrainSettings:
        """Return it as a training file would say it."""
        rows = self.rows * self.micro_batches * self.ranks // self.tensor // self.context
        return TrainSettings.model_validate(
            {
                "data": "none",
                "output": "out",
                "model": {"preset": self.preset, "vocab_size": self.vocab_size},
                "batch": {"global_rows": rows, "micro_rows": self.rows},
                "steps": 2,
                "parallel": {
                    "zero": self.zero, "recompute": self.recompute,
                    "tensor": self.tensor, "context": self.context, "replicas": self.replicas,
                },
                "checkpoint": {"background": False},
                "dtype": self.dtype,
                "device": "cpu",
            }
        )  # fmt: skip


RECOMPUTE = ("none", "selective", "full")
DTYPES = ("float32", "bfloat16")
CASES = [
    *(Case("0.5m", dtype, recompute) for dtype in DTYPES for recompute in RECOMPUTE),
    *(Case("15m", dtype, recompute, rows=1, seq_len=256) for dtype in DTYPES for recompute in RECOMPUTE),
    Case("15m", vocab_size=32768, rows=1, seq_len=256),
    Case("15m", micro_batches=2, rows=1, seq_len=256),
    *(Case("60m", dtype, rows=1, seq_len=256) for dtype in DTYPES),
    Case("60m", recompute="full", rows=1, seq_len=256),
    *(Case("0.5m", ranks=2, zero=zero, micro_batches=2) for zero in (1, 2, 3)),
    *(
        Case("15m", dtype, ranks=2, zero=zero, rows=1, seq_len=256)
        for dtype in DTYPES for zero in (1, 2, 3)
    ),
    Case("15m", recompute="selective", ranks=2, rows=1, seq_len=256),
    Case("15m", recompute="full", ranks=2, rows=1, seq_len=256),
    Case("15m", ranks=2, replicas=2, rows=1, seq_len=256),
    *(Case("15m", dtype, ranks=2, tensor=2, rows=1, seq_len=256) for dtype in DTYPES),
    Case("15m", recompute="full", ranks=2, tensor=2, rows=1, seq_len=256),
    *(Case("15m", dtype, ranks=2, context=2, rows=1) for dtype in DTYPES),
    Case("15m", recompute="full", ranks=2, context=2, rows=1),
]  # fmt: skip


class Living(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, tuple[Any, int]] = {}
        self.now = self.most = 0

    def __enter__(self) -> Living:
        # FSDP frees and takes back storages by resizing them, which is no operation on tensors.
        self._resize = torch.UntypedStorage.resize_
        resize = self._resize

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            answer = resize(storage, size)
            self._count(storage)
            return answer

        torch.UntypedStorage.resize_ = counted
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # it comes back with the local tensors
        answer = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(answer):
            if (
                isinstance(leaf, torch.Tensor)
                and not isinstance(leaf, DTensor)
                and not leaf.is_meta
            ):
                self._count(leaf.untyped_storage())
        return answer

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        ending = known[0] if known else weakref.ref(storage, lambda _: self._forget(key))
        self._sizes[key] = (ending, size)
        self.now += size - (known[1] if known else 0)
        self.most = max(self.most, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)[1]


def measure(case: Case, *, tensors: bool) -> dict[str, float]:
    """Take two steps of a case in this process, which is one rank of it."""
    settings = case.settings()
    parallel = join(settings)
    shape = settings.model.shape(case.vocab_size)
    _take_steps(Case("0.5m", case.dtype, ranks=case.ranks, rows=1, seq_len=16), parallel, None)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    living = Living() if tensors else None
    found = _take_steps(case, parallel, living)
    found["RSS"] = _memory("VmHWM") - before
    work = plan_work(shape, settings, seq_len=case.seq_len, ranks=case.ranks, is_cuda=False)
    moments = {moment.name: moment for moment in step_moments(shape, work)}
    peak = max(moment.total for moment in moments.values())
    forward = moments["forward pass"].parts
    log_softmax = FLOAT * work.tokens * case.vocab_size / case.tensor
    saved = forward["activations"] + log_softmax
    estimated = {
        "weights": forward["weights"],
        "grads": moments["update"].parts["gradients"],
        "optim": forward["optimizer"],
        "saved": saved,
        "kept": saved + forward["mask"] + forward["gathered weights"],
        "peak": peak,
        "RSS": peak,
    }
    return {f"{name} {which}": value for name in found for which, value in
            (("estimated", estimated[name]), ("measured", found[name]))}  # fmt: skip


def _take_steps(case: Case, parallel: Any, living: Living | None) -> dict[str, float]:
    """Take two steps; return what the second one needed, if tensors are counted."""
    settings, found = case.settings(), {}
    shape = settings.model.shape(case.vocab_size)
    if living:
        living.__enter__()
    model = build_model(shape, settings, parallel)
    optimizer = build_optimizer(model, settings.optimizer)
    is_plain = (case.ranks, case.recompute, case.dtype) == (1, "none", "float32")
    # The hooks are shown DTensors, too, which have no storage of their own.
    watching: Any = torch.autograd.graph.saved_tensors_hooks if is_plain else _no_hooks
    positions = np.tile(np.arange(case.seq_len), (case.rows, 1))
    random = np.random.default_rng(0)
    for _ in range(2):
        if living:
            living.most = living.now
        for number in range(case.micro_batches):
            begin_micro_batch(model, settings, is_last=number == case.micro_batches - 1)
            before, saved = living.now if living else 0, dict[int, int]()
            tokens = random.integers(case.vocab_size, size=(case.rows, case.seq_len))
            part = make_micro_batch(
                shape, tokens, tokens.copy(), positions, kernel="sdpa", device=parallel.device,
                context=parallel.context,
            )  # fmt: skip
            with watching(_note(saved), lambda tensor: tensor):
                losses, objective = token_losses(model(part.tokens, part.layout), part.labels)
            if living and number == 0:
                found["kept"] = living.now - before
                if is_plain:
                    weights = sum(parameter.nbytes for parameter in model.parameters())
                    found["saved"] = sum(saved.values()) - weights
            objective.backward()
            del losses, objective, part
        if living:
            found["grads"] = _bytes(p.grad for p in model.parameters())
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if living:
        found["weights"] = _bytes(model.parameters())
        found["optim"] = _bytes(
            state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
        )
        found["peak"] = living.most
        living.__exit__(None, None, None)
    return found


@contextlib.contextmanager
def _no_hooks(*_hooks: Any) -> Iterator[None]:
    yield


def _note(saved: dict[int, int]) -> Any:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    return pack


def _bytes(tensors: Any) -> int:
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def _memory(name: str) -> int:
    """Return a field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def run_case(number: int) -> dict[str, float]:
    """Measure a case in processes of its own."""
    found: dict[str, float] = {}
    for how in ("tensors", "rss"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(CASES[number].ranks):
            place = {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": CASES[number].ranks,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1,
                # What is freed goes back at once: the peak is of what is used, not of what malloc
                # keeps.
                "MALLOC_MMAP_THRESHOLD_": 65536, "MALLOC_TRIM_THRESHOLD_": 65536,
            }  # fmt: skip
            ranks.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--worker", str(number), how],
                    env=os.environ | {key: str(value) for key, value in place.items()},
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    text=True,
                )
            )
        answers = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise SystemExit(f"{CASES[number]}: a rank failed")
        fields = json.loads(answers[0].splitlines()[-1])
        found |= {key: value for key, value in fields.items() if ("RSS" in key) == (how == "rss")}
    return found


def main() -> None:
    """Print a line per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("only", nargs="?", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON lines")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "HOW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        number, how = int(options.worker[0]), options.worker[1]
        print(json.dumps(measure(CASES[number], tensors=how == "tensors")), flush=True)
        os._exit(0)  # gloo's threads abort some interpreters that shut down in the ordinary way
    columns = ("weights", "grads", "optim", "saved", "kept", "peak", "RSS")
    print(f"{'case':58}" + "".join(f"{name:>9}" for name in columns) + f"{'peak MB':>10}")
    for number, case in enumerate(CASES):
        if options.only not in str(case):
            continue
        found = run_case(number)
        if options.json:
            print(json.dumps(asdict(case) | found), flush=True)
            continue
        cells = ""
        for name in columns:
            has = f"{name} measured" in found
            ratio = found[f"{name} estimated"] / found[f"{name} measured"] if has else 0
            cells += f"{ratio:9.3f}" if has else f"{'':9}"
        print(f"{case!s:58}{cells}{found['peak measured'] / 1e6:10.1f}", flush=True)


if __name__ == "__main__":
    main()
