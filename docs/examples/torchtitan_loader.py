"""The data loader that torchtitan's trainer builds for a run, in a loop that uses it as that does.

`python docs/examples/torchtitan_loader.py runs/quickstart --kill-at 9`, then with `--resume`.
In a training config of torchtitan 0.3 it is `dataloader=CorpuskitDataLoader.Config(
dataset_path="runs/quickstart", global_batch_rows=8)`; `training.global_batch_size` must be the
same, `training.seq_len` that of the run or a divisor.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy
from torchtitan.components.dataloader import BaseDataLoader

from corpuskit.loader import StreamingLoader
from corpuskit.loader.torch import TorchStream

if TYPE_CHECKING:
    from collections.abc import Iterator

SAVE_EVERY = 4


class CorpuskitDataLoader(BaseDataLoader):
    """Rows of a run, as torchtitan asks for them."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """`dataset_path` is the run directory."""

        global_batch_rows: int = 8

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int,
        local_batch_size: int, **_: Any,
    ) -> None:  # fmt: skip
        self.loader = StreamingLoader(
            config.dataset_path,
            config.global_batch_rows,
            dp_rank,
            dp_world_size,
            micro_batch_rows=local_batch_size,
            seq_len=seq_len,
        )
        self.stream = TorchStream(self.loader)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield (inputs, labels) of a micro-batch; here as there, a label is the next token."""
        for batch in self.stream:
            self.rows = batch["run_rows"].tolist()
            inputs = {"input": batch["tokens"].long(), "positions": batch["position_ids"].long()}
            yield inputs, batch["labels"].long()

    def state_dict(self) -> dict[str, str]:
        """Return one string, which is the same on all ranks."""
        return {"corpuskit": json.dumps(self.stream.state_dict())}

    def load_state_dict(self, state_dict: dict[str, str]) -> None:
        """Go on behind the step that was saved, also on another number of ranks."""
        if state_dict:  # else it is a checkpoint without a data loader
            self.stream.load_state_dict(json.loads(state_dict["corpuskit"]))


def main() -> None:
    """Train a bigram model, calling the data loader as torchtitan.trainer.Trainer does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/example-torchtitan"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step, over all ranks")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int, help="kill itself behind so many steps")
    args = parser.parse_args()

    plan = StreamingLoader(args.run_dir).plan
    config = CorpuskitDataLoader.Config(dataset_path=args.run_dir, global_batch_rows=args.rows)
    data = config.build(
        dp_world_size=1, dp_rank=0, seq_len=plan.seq_len, local_batch_size=args.rows // 2
    )
    torch.manual_seed(0)
    size = plan.tokenizer["vocab_size"]
    model = torch.nn.Sequential(torch.nn.Embedding(size, 16), torch.nn.Linear(16, size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    states = {"model": model, "dataloader": data}
    if args.resume:  # the newest complete one: DCP writes .metadata last
        saved = (path.parent for path in args.out.glob("step-*/.metadata"))
        dcp.load(states, checkpoint_id=max(saved, key=lambda path: int(path.name[5:])))
    batches = iter(data)
    for step in range(data.loader.step, args.steps):
        micro_batches, rows, loss = [], [], 0.0
        for _ in range(data.loader.micro_batches):
            micro_batches.append(next(batches))
            rows += data.rows
        num_labels = sum((labels != -100).sum() for _, labels in micro_batches)
        for inputs, labels in micro_batches:
            logits = model(inputs["input"]).flatten(0, 1)
            summed = cross_entropy(logits, labels.flatten(), reduction="sum")
            (summed / num_labels).backward()
            loss += summed.item() / num_labels.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss:.6f} rows {rows}", flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            dcp.save(states, checkpoint_id=args.out / f"step-{step + 1}")
        if step + 1 == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
