"""Runs the examples and a few checks under the frameworks that are installed; prints JSON.

One process imports the frameworks once, seconds each, and forks for every run: a run may kill
itself, and leaves nothing behind in the next.

Args: run directory, output folder.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from corpuskit.loader import StreamingLoader
from corpuskit.loader.torch import TorchStream, rank_and_world_size, transformers_inputs

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RUN, OUT = sys.argv[1], Path(sys.argv[2])
STEPS, KILL_AT, ROWS = 6, 5, 4


def main():
    results = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        results[path.stem] = run_example(path)
    for check in (
        accelerate_ahead,
        accelerate_dispatching,
        stateful_data_loader,
        lightning_ahead,
        lightning_direct,
        model_loss,
        two_ranks,
    ):
        results[check.__name__] = in_child(check)
    sys.stdout.write(json.dumps(results))


def run_example(path):
    """Return what is printed by a whole run, by one that is killed, and by one that resumes it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    example = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(example)
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    printed = {}
    for kind, folder, more in (
        ("whole", "a", ()),
        ("killed", "b", ("--kill-at", str(KILL_AT))),
        ("resumed", "b", ("--resume",)),
    ):
        out = OUT / path.stem / folder
        sys.argv = [
            str(path),
            RUN,
            "--out",
            str(out),
            "--rows",
            str(ROWS),
            "--steps",
            str(STEPS),
            *more,
        ]
        printed[kind] = in_child(example.main, is_text=True)
    return printed


def in_child(run, *, is_text=False):
    """Return the lines that a forked process printed, or the JSON that its function returned."""
    path = OUT / f"{run.__name__}.txt"
    pid = os.fork()
    if not pid:
        with path.open("w") as file, redirect_stdout(file):
            try:
                result = run()
            except ModuleNotFoundError as error:
                result = {"missing": error.name}
            if not is_text:
                file.write(json.dumps(result))
        os._exit(0)  # an exception ends this process with its traceback on stderr, too
    os.waitpid(pid, 0)
    text = path.read_text()
    if is_text:
        return [line for line in text.splitlines() if line.startswith("step ")]
    return json.loads(text)


def new_stream(**options):
    return TorchStream(StreamingLoader(RUN, ROWS, num_steps=STEPS, **options))


def rows_of(batches):
    return [batch["run_rows"].tolist() for batch in batches]


def resumed(state, **options):
    stream = new_stream(**options)
    stream.load_state_dict(state)
    return rows_of(stream)


def accelerated(stream, collate=None, **settings):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
    return accelerator.prepare(DataLoader(stream, batch_size=None, collate_fn=collate))


def accelerate_ahead():
    """accelerate fetches a batch ahead of the one it gives."""
    stream = new_stream()
    seen, states, ahead = [], [], []
    for batch in accelerated(stream, dispatch_batches=False):
        seen += rows_of([batch])
        states.append(stream.state_dict(step=batch["step"] + 1))
        ahead.append(stream.state_dict()["step"] - batch["step"] - 1)
    return {"seen": seen, "ahead": max(ahead), "rests": [resumed(state) for state in states]}


def accelerate_dispatching():
    """Where it dispatches it cuts all tensors to the rows of the first: it must not get so far."""
    refused = []
    for collate in (None, transformers_inputs):
        try:
            next(iter(accelerated(new_stream(), collate)))
        except TypeError as error:
            refused.append(str(error))
    return {"refused": refused}


def stateful_data_loader():
    """torchdata asks the dataset for its state; accelerate asks torchdata before fetching ahead."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def plain():
        return StatefulDataLoader(new_stream(), batch_size=None)

    def ahead():
        return accelerated(new_stream(), dispatch_batches=False, use_stateful_dataloader=True)

    rests = []
    for make in (plain, ahead):
        loader, again = make(), make()
        batches = iter(loader)
        seen = [next(batches)["run_rows"].tolist() for _ in range(3)]
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        rests.append(rows_of(again))
    return {"seen": seen, "rests": rests}


def lightning_ahead():
    """Lightning fetches a batch ahead where it does not know the length."""
    from lightning.pytorch import LightningDataModule

    class Rows(LightningDataModule):
        def __init__(self):
            super().__init__()
            self.stream = new_stream()

        def train_dataloader(self):
            return (batch for batch in self.stream)  # a generator has no length

        def state_dict(self):
            return self.stream.state_dict(step=self.trainer.global_step)

        def load_state_dict(self, state):
            self.stream.load_state_dict(state)

    return stop_and_resume(lambda: (rows := Rows(), rows.stream))


def lightning_direct():
    """Lightning keeps the state of a stream that it is given, itself."""
    return stop_and_resume(lambda: (stream := new_stream(), stream))


def stop_and_resume(make):
    """Return the rows of two Lightning trainers, the second going on behind step 3.

    Args:
        make: returns what a trainer gets as data, and the stream in it.
    """
    from lightning.pytorch import LightningModule, Trainer

    seen, ahead = [], []

    class Model(LightningModule):
        def __init__(self, stream):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.stream = stream

        def training_step(self, batch, batch_idx):
            seen.extend(rows_of([batch]))
            ahead.append(self.stream.state_dict()["step"] - batch["step"] - 1)
            return self.weight.sum()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if self.trainer.global_step == 3:
                self.trainer.save_checkpoint(OUT / "three.ckpt")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for steps, checkpoint in ((3, None), (STEPS, OUT / "three.ckpt")):
        trainer = Trainer(
            accelerator="cpu",
            max_steps=steps,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        rows, stream = make()
        trainer.fit(Model(stream), rows, ckpt_path=checkpoint)
    return {"seen": seen, "ahead": max(ahead)}


def model_loss():
    """The loss of a packed batch, and that of its segments one by one and shifted by hand."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    stream = new_stream()
    shape = LlamaConfig(
        vocab_size=stream.loader.plan.tokenizer["vocab_size"],
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(shape)
    batch = next(iter(stream))
    summed, count = 0.0, 0
    tokens, labels = batch["tokens"].flatten().long(), batch["labels"].flatten().long()
    with torch.no_grad():
        loss = model(**transformers_inputs(batch)).loss
        bounds = batch["cu_seqlens"].tolist()
        for first, end in itertools.pairwise(bounds):
            logits = model(tokens[None, first:end]).logits[0]
            summed += cross_entropy(logits, labels[first:end], reduction="sum").item()
            count += int((labels[first:end] != -100).sum())
    return {"loss": loss.item(), "expected": summed / count, "segments": len(bounds) - 1}


def two_ranks():
    """Rank 0 streams while rank 1 does nothing: whatever asked it for something would hang."""
    os.environ.update(RANK="7", WORLD_SIZE="9")  # torch.distributed goes first
    where = f"file://{OUT / 'store'}"
    pids = []
    for rank in (0, 1):
        pid = os.fork()
        if not pid:
            dist.init_process_group("gloo", where, rank=rank, world_size=2)
            mine = rank_and_world_size()
            if rank:
                time.sleep(600)
            stream = TorchStream(StreamingLoader(RUN, ROWS, *mine, num_steps=STEPS))
            (OUT / "rank0.json").write_text(json.dumps([mine, rows_of(stream)]))
            os._exit(0)
        pids.append(pid)
    os.waitpid(pids[0], 0)
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    ranks, seen = json.loads((OUT / "rank0.json").read_text())
    return {"ranks": ranks, "seen": seen}


if __name__ == "__main__":
    main()
