"""Tokens per CPU second of the training loop, against a plain loop over the same model and rows.

The plain loop is what one writes first: one file, one process, float32, batches already in memory,
nothing sharded, nothing measured by source, no finiteness check. It starts from the same weights,
so the losses are compared as well. Steps of both alternate in one process, so a busy machine slows
both; the figure is the median of the ratios of neighbouring steps.

    python benchmarks/training.py [RUN_DIR] [--preset 0.5m] [--rows 4] [--steps 30]

Without RUN_DIR it runs pipelines/quickstart.yaml first, which does nothing if that is finished.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from corpuskit.loader import StreamingLoader
from corpuskit.train.heartbeat import HeartbeatWriter
from corpuskit.train.likelihood import Evaluated
from corpuskit.train.loop import take_step
from corpuskit.train.optim import learning_rate
from corpuskit.train.parallel import join
from corpuskit.train.settings import TrainSettings
from corpuskit.train.setup import Run, set_up
from corpuskit.train.watch import StopSignals, Watch

if TYPE_CHECKING:
    from corpuskit.train.settings import ModelShape

ROOT = Path(__file__).resolve().parents[1]


class Layer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_dim
        self.query, self.out = (nn.Linear(shape.dim, shape.dim, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(shape.dim, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(shape.dim, shape.ffn_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)
        self.before, self.between = (nn.RMSNorm(shape.dim, shape.norm_eps) for _ in range(2))
        self.q_norm, self.k_norm = (nn.RMSNorm(shape.head_dim, shape.norm_eps) for _ in range(2))

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        heads = (*x.shape[:2], -1, self.shape.head_dim)
        y = self.before(x)
        q = turn(self.q_norm(self.query(y).view(heads)).transpose(1, 2), cos, sin)
        k = turn(self.k_norm(self.key(y).view(heads)).transpose(1, 2), cos, sin)
        v = self.value(y).view(heads).transpose(1, 2)
        y = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Plain(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, shape.norm_eps)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        half = torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        angles = (positions[:, None, :, None] * self.shape.rope_theta**-half).float()
        documents = (positions == 0).cumsum(1)
        mask = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        logits = self.norm(x) @ self.embedding.weight.T
        return cross_entropy(logits.flatten(0, 1), labels.flatten())


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def copy_weights(ours: nn.Module, plain: Plain) -> None:
    """Give the plain model our initial weights."""
    names = {
        "blocks": "layers", "attention.": "", "feed_forward.": "", "attention_norm": "before",
        "feed_forward_norm": "between", "query_norm": "q_norm", "key_norm": "k_norm",
    }  # fmt: skip
    weights = {}
    for name, weight in ours.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = weight.clone()
    plain.load_state_dict(weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", nargs="?")
    parser.add_argument("--preset", default="0.5m")
    parser.add_argument("--rows", type=int, default=4, help="rows per step")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.run_dir is None:
        command = [sys.executable, "-m", "corpuskit", "run", "pipelines/quickstart.yaml"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        options.run_dir = str(ROOT / "runs" / "quickstart")
    with tempfile.TemporaryDirectory() as output:
        settings = TrainSettings(
            data=options.run_dir,
            output=output,
            model={"preset": options.preset, "tied": True},
            batch={"global_rows": options.rows, "micro_rows": options.rows},
            steps=options.steps,
            device="cpu",
        )
        measure(settings)


def measure(settings: TrainSettings) -> None:
    """Alternate steps of both loops; print their speeds and how far their losses part."""
    run = set_up(settings, join(settings))
    heartbeat = HeartbeatWriter(settings.output, 0, 3600)
    with heartbeat, StopSignals() as stop, Watch(run, None, heartbeat, stop, Evaluated()) as watch:
        alternate(settings, run, watch)


def alternate(settings: TrainSettings, run: Run, watch: Watch) -> None:
    """Take one step of each in turn."""
    plain = Plain(run.model.shape)
    copy_weights(run.model, plain)
    decayed = [p for name, p in plain.named_parameters() if p.ndim > 1 and "embedding" not in name]
    kept = [p for name, p in plain.named_parameters() if p.ndim == 1 or "embedding" in name]
    groups = [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    names = ("tokens", "position_ids", "labels")
    rows = StreamingLoader(settings.data, settings.batch.global_rows, num_steps=run.steps)
    held = [[torch.from_numpy(batch[name]).long() for name in names] for batch in rows]

    batches = iter(run.loader)
    seconds: list[tuple[float, float]] = []
    apart = 0.0
    for step, tensors in enumerate(held):
        begun = time.process_time()
        progress, _ = take_step(run, step, batches, watch)
        watch.step(progress, is_last=False)
        between = time.process_time()
        total = run.steps * run.step_tokens
        done = (step + 1) * run.step_tokens
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(done, total, settings.optimizer.lr, settings.schedule)
        loss = plain(*tensors)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        apart = max(apart, abs(loss.item() - progress.loss))
        seconds.append((between - begun, time.process_time() - between))
    dist.destroy_process_group()
    seconds = seconds[3:]  # the first steps fill caches
    ours, theirs = (
        run.step_tokens / statistics.median(side) for side in zip(*seconds, strict=True)
    )
    ratio = statistics.median(their / our for our, their in seconds)
    print(
        f"model {settings.model.preset}, {run.step_tokens} tokens per step, {len(seconds)} steps each"
    )
    print(
        f"corpuskit {ours:,.0f} tokens per CPU second, plain loop {theirs:,.0f}, ratio {ratio:.3f}"
    )
    print(f"largest difference of the losses {apart:.1e} (last loss {progress.loss:.4f})")


if __name__ == "__main__":
    main()
