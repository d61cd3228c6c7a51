"""What `benchmarks/gpu.py` runs: each part yields rows of its table."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import counters
from torch.utils.benchmark import Timer

from benchmarks.loader import write_part, write_plan
from corpuskit.train.attention import attend, lay_out
from corpuskit.train.estimate import plan_work, read_length, step_moments
from corpuskit.train.heartbeat import HeartbeatWriter
from corpuskit.train.likelihood import Evaluated
from corpuskit.train.loop import main as train
from corpuskit.train.loop import take_step
from corpuskit.train.metrics import StepMetrics
from corpuskit.train.parallel import join
from corpuskit.train.settings import TrainSettings
from corpuskit.train.setup import set_up
from corpuskit.train.watch import StopSignals, Watch

# A forked child need not import torch anew, for 7 s. Nothing may touch CUDA before a fork.
PROCESSES = multiprocessing.get_context("fork")

Row = dict[str, Any]
Work = Callable[["Place"], Iterator[Row]]


class Skipped(Exception):  # noqa: N818 - it is no error
    """This part can't run here; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where a part runs."""

    folder: Path  # with the rows of `write_data`
    dry: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    def settings(self, preset: str, data: str, **fields: Any) -> TrainSettings:
        """Return settings of a training over the rows in `data`; `fields` replace others."""
        small = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64}
        model = small | {"vocab_size": 512} if self.dry else {"vocab_size": 50_304}
        usual: Row = {
            "data": str(self.folder / data / "stored"), "output": tempfile.mkdtemp(dir=self.folder),
            "model": {"preset": preset, **model}, "device": self.device.type, "log_every_steps": 1,
            "dtype": "float32" if self.dry else "bfloat16",
            "peak_tflops": 1e-3 if self.dry else None,
        }  # fmt: skip
        return TrainSettings.model_validate(usual | fields)

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the mean seconds of a call, the device's work included, after two others."""
        timer = Timer("work()", globals={"work": work})
        return float(timer.timeit(2 if self.dry else 20).mean)


def write_data(place: Place) -> None:
    """Write packed rows of random tokens: long and short rows, and rows of one document."""
    random = np.random.default_rng(0)
    long, short, mean, vocab = (64, 64, 16, 512) if place.dry else (8192, 2048, 850, 50_000)
    for name, length in (("long", long), ("short", short), ("whole", long)):
        folder = place.folder / name
        (folder / "tokens").mkdir(parents=True)
        rows = random.integers(0, vocab, (512, length + 1), np.uint16)
        document = 1 << 30 if name == "whole" else mean
        part = write_part(folder / "tokens", rows, 0, random, document)
        into = folder / "stored"
        write_plan(into, length, "uint16", 512, [part], is_stored=True, vocab_size=vocab)


def machine(place: Place) -> Iterator[Row]:
    """What is here, and the largest rates that a step could reach."""

    def figure(name: str, value: object) -> Row:
        return {"figure": name, "value": value}

    yield figure("torch, CUDA", f"{torch.__version__}, {torch.version.cuda}")
    if not place.dry:
        query = "--query-gpu=name,memory.total,driver_version,power.limit,clocks.max.sm"
        yield figure("GPUs", subprocess.getoutput(f"nvidia-smi {query} --format=csv,noheader"))
        yield figure("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    size = 64 if place.dry else 8192
    a, b = (torch.randn(size, size, device=place.device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * size**3 / place.seconds(lambda: a @ b) / 1e12
    yield figure(f"bfloat16 product of {size}, TFLOP/s", rate)
    copy = torch.empty_like(a)
    rate = 2 * a.nbytes / place.seconds(lambda: copy.copy_(a)) / 1e9
    yield figure("copy on the device, GB/s read and written", rate)
    if place.dry or torch.cuda.get_device_capability() < (8, 9):
        yield figure("float8 product", "skipped: no float8 here")
        return
    one = torch.ones((), device=place.device)
    x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
    multiply = functools.partial(torch._scaled_mm, x, y, one, one, out_dtype=torch.bfloat16)
    rate = 2 * size**3 / place.seconds(multiply) / 1e12
    yield figure(f"float8 product of {size}, TFLOP/s", rate)


def attention(place: Place) -> Iterator[Row]:
    """Each kernel against float32 attention over a dense mask; then times on long rows."""
    kernels: list[Any] = ["sdpa", "varlen", "flex"]
    if place.dry:
        yield {"kernel": "varlen, flex", "skipped": "CUDA only; flex has no backward pass on CPU"}
        kernels = ["sdpa"]
    allowed: dict[str, float] = {}

    def judge(kernel: str) -> Row:
        inputs, layout = _inputs(place, 64 if place.dry else 2048, kernel)
        results, row = _gradients(inputs, layout), {}
        for name, mine, right in zip(("output", "dq", "dk", "dv"), results, exact, strict=True):
            apart = ((mine.float() - right).abs().max() / right.abs().max()).item()
            row[name] = f"{apart:.1e}"
            if apart > 2 * allowed.setdefault(name, apart) + 1e-5:
                row["wrong"] = f"{kernel}: {name} differs by {apart:.1e}, sdpa {allowed[name]:.1e}"
        return row

    def measure(kernel: str, packed: bool) -> Row:
        inputs, layout = _inputs(place, 64 if place.dry else 8192, kernel, packed=packed)
        with torch.no_grad():
            forward = place.seconds(lambda: attend(*inputs, layout))
        both = place.seconds(lambda: attend(*inputs, layout).sum().backward())
        return {"forward_ms": 1e3 * forward, "forward_and_backward_ms": 1e3 * both}

    inputs, layout = _inputs(place, 64 if place.dry else 2048, "sdpa")
    exact = _gradients([x.detach().float().requires_grad_() for x in inputs], layout)
    cases = [(kernel, functools.partial(judge, kernel), {}) for kernel in kernels]
    for packed, kernel in itertools.product((True, False), kernels):
        about = {"documents": "packed" if packed else "whole rows"}
        cases.append((kernel, functools.partial(measure, kernel, packed), about))
    for kernel, work, about in cases:
        try:
            yield {"kernel": kernel, **about, **work()}
        except torch.OutOfMemoryError:
            yield {"kernel": kernel, **about, "skipped": "out of memory"}
        except Exception as error:  # noqa: BLE001 - the other kernels are still of interest
            yield {"kernel": kernel, **about, "wrong": f"{kernel}: {error}"}


def _inputs(place: Place, length: int, kernel: Any, *, packed: bool = True) -> tuple[Any, Any]:
    """Return queries, keys and values of two rows, and their layout."""
    import numpy as np

    queries, keys, size = (4, 2, 16) if place.dry else (16, 4, 128)
    draw = functools.partial(
        torch.randn, generator=torch.Generator(place.device).manual_seed(0), device=place.device,
        dtype=torch.bfloat16, requires_grad=True,
    )  # fmt: skip
    random, positions = np.random.default_rng(0), np.tile(np.arange(length), (2, 1))
    for row in positions if packed else ():
        for start in sorted(random.integers(1, length, max(2, length // 850)).tolist()):
            row[start:] = np.arange(length - start)
    layout = lay_out(positions, head_dim=size, rope_theta=1e4, kernel=kernel, device=place.device)
    return [draw((2, length, count, size)) for count in (queries, keys, keys)], layout


def _gradients(inputs: Any, layout: Any) -> list[torch.Tensor]:
    """Return the output, and the gradients of its sum with fixed weights."""
    output = attend(*inputs, layout)
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)
    return [output, *torch.autograd.grad((output.float() * weights).sum(), inputs)]


def pinned(place: Place) -> Iterator[Row]:
    """Copies from pageable and from pinned host memory to the device."""
    for mib in (1, 64):
        source = torch.zeros(mib << 20, dtype=torch.uint8)
        target = torch.empty_like(source, device=place.device)
        row: Row = {"MiB": mib, "pageable_gb_s": "", "pinned_gb_s": ""}
        for name in ("pageable", "pinned")[: 1 if place.dry else 2]:
            source = source.pin_memory() if name == "pinned" else source
            copy = functools.partial(target.copy_, source, non_blocking=True)
            row[f"{name}_gb_s"] = source.nbytes / place.seconds(copy) / 1e9
        yield row | ({"skipped": "pinned: CUDA only"} if place.dry else {})


def resume(place: Place) -> Iterator[Row]:
    """Kill a training, let it continue, and compare losses bit for bit with an undisturbed one."""
    modes = [("sdpa", False)] if place.dry else [("auto", False), ("auto", True), ("sdpa", True)]
    for kernel, exact in modes:
        curves = []
        for kills in ([None], [None], [3, None]):
            settings = place.settings(
                "15m", "short", attention=kernel, steps=6, checkpoint={"every_steps": 2},
                batch={"global_rows": 8, "micro_rows": 4},
            )  # fmt: skip
            for kill_at in kills:
                _train_in_children(1, settings, kill_at, exact)
            curves.append(_logged(settings, "loss"))
        calm, again, killed = curves
        row: Row = {"attention": kernel, "deterministic_algorithms": exact}
        row |= {"equal_without_kill": calm == again, "equal_after_kill": calm == killed}
        row["largest_difference"] = max(abs(a - b) for a, b in zip(calm, killed, strict=True))
        if calm == again and calm != killed:
            row["wrong"] = "the resumed run has other losses; two undisturbed runs are equal"
        yield row


def ranks(place: Place) -> Iterator[Row]:
    """Several ranks, over NCCL on GPUs: losses as on one rank, and what scaling costs."""
    count = 2 if place.dry else 1 << (torch.cuda.device_count().bit_length() - 1)
    if count < 2:
        raise Skipped("one GPU; NCCL ran with one rank in the other parts")
    meshes = [("zero 3", {}), ("zero 1", {"zero": 1}), ("tensor 2", {"tensor": 2})]
    meshes.append(("context 2", {"context": 2}))
    for dtype, preset in (("float32", "15m"), ("bfloat16", "150m"))[: 1 if place.dry else 2]:
        alone: list[float] = []
        for name, mesh in [("one rank", {}), *meshes[: 1 if place.dry else 4]]:
            number = count if alone else 1
            batch = {"global_rows": 8, "micro_rows": 1}
            settings = place.settings(
                preset, "short", dtype=dtype, steps=8, parallel=mesh, batch=batch
            )
            _train_in_children(number, settings, None, False)
            losses = _logged(settings, "loss")
            alone = alone or losses
            apart = max(abs(a - b) for a, b in zip(alone, losses, strict=True))
            rate = statistics.median(_logged(settings, "tokens_per_second")[3:]) / number
            row: Row = {"mesh": name, "ranks": number, "dtype": dtype, "model": preset}
            row |= {"loss_apart": f"{apart:.1e}", "tokens_per_second_per_gpu": rate}
            if dtype == "float32" and apart > 1e-4:
                row["wrong"] = f"{name}: losses differ by {apart:.1e} from those of one rank"
            yield row


def _train_in_children(
    count: int, settings: TrainSettings, kill_at: int | None, exact: bool
) -> None:
    """Train in processes of their own; the one that kills itself after `kill_at` is no failure."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(count):
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        where = {key: str(value) for key, value in where.items()} | {"MASTER_ADDR": "localhost"}
        arguments = (settings, kill_at, exact, where if count > 1 else {})
        children.append(PROCESSES.Process(target=_train, args=arguments))
        children[-1].start()
    for child in children:
        child.join()
        if child.exitcode != (0 if kill_at is None else -signal.SIGKILL):
            raise RuntimeError(f"a rank ended with {child.exitcode}; its error is in the log")


def _train(
    settings: TrainSettings, kill_at: int | None, exact: bool, where: dict[str, str]
) -> None:
    os.environ |= where
    if exact:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)

    def observe(update: Any) -> None:
        if isinstance(update, StepMetrics) and update.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(settings, None if kill_at is None else observe)


def _logged(settings: TrainSettings, name: str) -> list[float]:
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def speed(
    place: Place, preset: str, *, compile: bool = False, float8: bool = False, data: str = "long"
) -> Iterator[Row]:
    """Steps of a preset: tokens/s, MFU, wait for rows, and memory beside the estimate."""
    if float8 and (place.dry or importlib.util.find_spec("torchao") is None):
        raise Skipped("a CPU has no float8" if place.dry else "torchao is missing")
    counters.clear()  # of the process that this one was forked from
    if place.dry and compile:
        if preset != "1b" or data != "long":
            raise Skipped("as the first compiled one, but for its size")
        # The same graphs and guards; the default backend would compile C++ for 20 s.
        torch.compile = functools.partial(torch.compile, backend="eager")  # type: ignore[assignment]
    named = {"compile": compile, "float8": float8, "whole rows": data == "whole"}
    row: Row = {"model": preset, "with": ", ".join(name for name, is_on in named.items() if is_on)}
    rows, parallel = 2 if place.dry else 32, None
    while rows:
        settings = place.settings(
            preset, data, compile=compile, float8=float8, steps=5 if place.dry else 14,
            batch={"global_rows": rows, "micro_rows": rows}, optimizer={"lr": 1e-4},
        )  # fmt: skip
        length = read_length(settings)
        work = plan_work(
            length.shape, settings, seq_len=length.seq_len, ranks=1, is_cuda=not place.dry
        )
        estimate = max(moment.total for moment in step_moments(length.shape, work))
        memory = math.inf if place.dry else torch.cuda.get_device_properties(0).total_memory
        if estimate < 0.9 * memory or rows == 1:
            parallel = parallel or join(settings)
            try:
                row |= {"rows": rows, **_steps(settings, parallel), "estimate_gb": estimate / 1e9}
                yield (
                    row if place.dry else row | {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}
                )
                return
            except torch.OutOfMemoryError:
                row["with"] += f" (out of memory with {rows} rows)"
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        rows //= 2
    raise MemoryError("one row does not fit")


def _steps(settings: TrainSettings, parallel: Any) -> Row:
    run = set_up(settings, parallel)
    heartbeat = HeartbeatWriter(Path(settings.output), 0, 3600)
    with heartbeat, StopSignals() as stop, Watch(run, None, heartbeat, stop, Evaluated()) as watch:
        batches = iter(run.loader)
        steps = [take_step(run, step, batches, watch)[0] for step in range(run.steps)]
    timed = steps[run.steps // 3 :]  # the first ones compile and fill caches
    seconds = statistics.median(step.step_seconds for step in timed)
    mfu = statistics.median(step.mfu or 0.0 for step in timed)
    return {
        "tokens_per_second": run.step_tokens / seconds,
        "mfu": f"{100 * mfu:.1f} %" if mfu else "peak not known",
        "step_ms": 1e3 * seconds,
        "wait_ms": 1e3 * statistics.median(step.data_wait_seconds for step in timed),
        "longest_wait_ms": 1e3 * max(step.data_wait_seconds for step in timed),
        "first_step_s": steps[0].step_seconds,
        "graphs": counters["stats"]["unique_graphs"],
        "first_loss": f"{steps[0].loss:.5f}",
        "last_loss": f"{steps[-1].loss:.5f}",
    }


def optimizers(place: Place) -> Iterator[Row]:
    """AdamW, with moments of one byte, and with all of it in host memory: losses and memory."""
    cases: list[tuple[str, Row, Row]] = [
        ("adamw", {}, {}),
        ("adamw8bit", {"kind": "adamw8bit"}, {}),
    ]
    cases += [] if place.dry else [("adamw, offload", {}, {"offload": True})]
    parallel = None
    for name, optimizer, shared in cases:
        settings = place.settings(
            "150m", "short", steps=4 if place.dry else 10, parallel=shared,
            batch={"global_rows": 8, "micro_rows": 8}, optimizer={"lr": 1e-4, **optimizer},
        )  # fmt: skip
        parallel = parallel or join(settings)
        row = {"optimizer": name, **_steps(settings, parallel)}
        yield row if place.dry else row | {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}
        if not place.dry:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if place.dry:
        yield {"optimizer": "adamw, offload", "skipped": "CUDA only"}


# Name -> its time limit in seconds, and what it does; the most important first.
PARTS: dict[str, tuple[float, Work]] = {
    "machine": (60, machine), "attention": (150, attention), "resume": (120, resume),
    "ranks": (120, ranks), "pinned": (30, pinned), "optimizers": (60, optimizers),
}  # fmt: skip
for words in ("compile", "", "compile whole", "compile float8"):
    for size in ("1b",) if "whole" in words else ("1b", "530m", "150m"):
        case: Row = {word: True for word in words.split() if word != "whole"}
        case |= {"data": "whole"} if "whole" in words else {}
        work = functools.partial(speed, preset=size, **case)
        PARTS[f"speed {size} {words}".strip()] = (120, work)
