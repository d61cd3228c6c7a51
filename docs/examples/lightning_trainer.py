"""Lightning over the rows of a run. Killed and resumed within an epoch, it takes the same rows.

`python docs/examples/lightning_trainer.py runs/quickstart --kill-at 9`, then with `--resume`.
The stream is the train dataloader itself: Lightning keeps the state of such loaders in its
checkpoints, and as it knows their length it does not fetch ahead.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from corpuskit.loader import StreamingLoader
from corpuskit.loader.torch import Tensors, TorchStream, rank_and_world_size

SAVE_EVERY = 4


class Bigram(LightningModule):
    """A model that is small enough for any machine, and says which rows it was trained on."""

    def __init__(self, vocab_size: int, kill_at: int | None) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Embedding(vocab_size, 16), torch.nn.Linear(16, vocab_size)
        )
        self.kill_at = kill_at
        self.loss, self.rows = 0.0, []

    def training_step(self, batch: Tensors, batch_idx: int) -> torch.Tensor:
        """Return the loss of a micro-batch; Lightning divides it by their number."""
        logits = self.layers(batch["tokens"])
        loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten().long())
        self.loss += loss.item() / self.trainer.accumulate_grad_batches
        self.rows += batch["run_rows"].tolist()
        return loss

    def on_train_batch_end(self, outputs: object, batch: Tensors, batch_idx: int) -> None:
        """Print the step if this was its last micro-batch."""
        done = self.trainer.global_step
        if done == batch["step"] + 1:
            print(f"step {batch['step']} loss {self.loss:.6f} rows {self.rows}", flush=True)
            self.loss, self.rows = 0.0, []
            if done == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/example-lightning"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step, over all ranks")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int, help="kill itself behind so many steps")
    args = parser.parse_args()

    seed_everything(0, verbose=False)
    loader = StreamingLoader(args.run_dir, args.rows, *rank_and_world_size(), micro_batches=2)
    model = Bigram(loader.plan.tokenizer["vocab_size"], args.kill_at)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        max_epochs=1,  # one pass over the stream, which has the epochs of the plan in it
        accumulate_grad_batches=loader.micro_batches,
        callbacks=[ModelCheckpoint(args.out, "last", every_n_train_steps=SAVE_EVERY)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        train_dataloaders=TorchStream(loader),
        ckpt_path=args.out / "last.ckpt" if args.resume else None,
    )


if __name__ == "__main__":
    main()
