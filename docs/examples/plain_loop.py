"""A plain PyTorch loop over the rows of a run. Killed and resumed, it takes the same rows.

`python docs/examples/plain_loop.py runs/quickstart --kill-at 9`, then the same with `--resume`.
`torchrun --nproc-per-node 2 ...` gives each rank its rows, also when resuming after one rank; then
wrap the model in DDP or FSDP, sum `num_labels` over the ranks, and multiply the loss by the number
of ranks, for both average gradients.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from corpuskit.loader import StreamingLoader
from corpuskit.loader.torch import TorchStream, rank_and_world_size

SAVE_EVERY = 4


def main() -> None:
    """Train a bigram model for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/example-plain"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step, over all ranks")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int, help="kill itself behind so many steps")
    args = parser.parse_args()

    loader = StreamingLoader(args.run_dir, args.rows, *rank_and_world_size(), micro_batches=2)
    stream = TorchStream(loader)
    torch.manual_seed(0)
    vocab_size = loader.plan.tokenizer["vocab_size"]
    model = torch.nn.Sequential(torch.nn.Embedding(vocab_size, 16), torch.nn.Linear(16, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if args.resume:
        checkpoint = torch.load(args.out / "last.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        stream.load_state_dict(checkpoint["stream"])

    batches = iter(stream)
    for step in range(loader.step, args.steps):
        micro_batches = [next(batches) for _ in range(loader.micro_batches)]
        # By the labels of the whole step: micro-batches have different numbers of them.
        num_labels = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
        loss = 0.0
        for batch in micro_batches:
            logits = model(batch["tokens"])
            summed = cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten().long(), reduction="sum"
            )
            (summed / num_labels).backward()
            loss += summed.item() / num_labels
        optimizer.step()
        optimizer.zero_grad()
        rows = [row for batch in micro_batches for row in batch["run_rows"].tolist()]
        print(f"step {step} loss {loss:.6f} rows {rows}", flush=True)

        done = step + 1
        if done % SAVE_EVERY == 0 and loader.rank == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                # By number: right also if something between here and the loader fetches ahead.
                "stream": stream.state_dict(step=done),
            }
            torch.save(checkpoint, args.out / "saving.pt")
            os.replace(args.out / "saving.pt", args.out / "last.pt")
        if done == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
