"""The Trainer of transformers over the rows of a run. Killed and resumed, it takes the same rows.

`python docs/examples/hf_trainer.py runs/quickstart --kill-at 9`, then the same with `--resume`.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from corpuskit.loader import StreamingLoader
from corpuskit.loader.torch import TorchStream, rank_and_world_size, transformers_inputs

SAVE_EVERY = 4


class StreamTrainer(Trainer):
    """A Trainer whose train dataset is a TorchStream."""

    loss, rows = 0.0, ()

    def get_train_dataloader(self) -> DataLoader:
        """Return the stream itself: accelerate would cut this rank's rows by ranks once more."""
        return DataLoader(self.train_dataset, batch_size=None, collate_fn=self.data_collator)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Note rows and loss of a micro-batch; the loss is divided by the labels of the step."""
        self.rows = (*self.rows, *inputs.pop("run_rows").tolist())
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.loss += loss.item()
        return loss


class StreamState(TrainerCallback, ExportableState):
    """Keeps the state of the stream in the `trainer_state.json` of each checkpoint."""

    def __init__(self, stream: TorchStream, kill_at: int | None) -> None:
        self.stream, self.kill_at = stream, kill_at
        self.trainer, self.step = None, 0

    def state(self) -> dict[str, Any]:
        """Return what is saved: by number, whatever was fetched ahead."""
        return {"args": {}, "attributes": {"stream": self.stream.state_dict(step=self.step)}}

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Move the stream to where the checkpoint stands, or to the start."""
        self.stream.load_state_dict(state.stateful_callbacks["StreamState"]["attributes"]["stream"])

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Print the step."""
        self.step = state.global_step
        loss, rows = self.trainer.loss, list(self.trainer.rows)
        print(f"step {self.step - 1} loss {loss:.6f} rows {rows}", flush=True)
        self.trainer.loss, self.trainer.rows = 0.0, ()
        if self.step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train a small Llama for some steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", nargs="?", default="runs/quickstart")
    parser.add_argument("--out", type=Path, default=Path("runs/example-hf"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8, help="of a step, over all ranks")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int, help="kill itself behind so many steps")
    args = parser.parse_args()

    loader = StreamingLoader(args.run_dir, args.rows, *rank_and_world_size(), micro_batches=2)
    stream = TorchStream(loader)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=loader.plan.tokenizer["vocab_size"],
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    position = StreamState(stream, args.kill_at)
    settings = TrainingArguments(
        output_dir=str(args.out),
        max_steps=args.steps,
        gradient_accumulation_steps=loader.micro_batches,
        per_device_train_batch_size=args.rows // loader.world_size // loader.micro_batches,
        ignore_data_skip=True,  # the stream is moved: no reading up to there
        save_steps=SAVE_EVERY,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    position.trainer = StreamTrainer(
        LlamaForCausalLM(shape),
        settings,
        train_dataset=stream,
        data_collator=lambda batch: transformers_inputs(batch) | {"run_rows": batch["run_rows"]},
        callbacks=[position],
    )
    position.trainer.train(resume_from_checkpoint=args.resume or None)


if __name__ == "__main__":
    main()
