"""Opens a model to evaluate it: a checkpoint of a training, or a Hugging Face folder."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from corpuskit.errors import UsageError
from corpuskit.loader.index import read_mix
from corpuskit.train.huggingface import CONFIG, load_initial_weights, read_json, read_shape
from corpuskit.train.huggingface_export import (
    find_averaged,
    find_checkpoint,
    is_of_average,
    read_weights,
    shape_of,
)
from corpuskit.train.parallel import build_model, join
from corpuskit.train.record import require_undamaged
from corpuskit.train.settings import TrainSettings
from corpuskit.train.tensors import shard_like

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel

MAX_DEFAULT_TOKENS = 4096  # of a row: models that read 131,072 would take GBs for one


@dataclass(frozen=True)
class Pretrained:
    """A model with its weights, over the ranks of this process group.

    Attributes:
        seq_len: L, inputs of a row.
        data: the run directory whose tokenizer the model uses; None: the folder has a tokenizer.
        is_guest: the process group existed before, and is not to be destroyed.
    """

    model: Decoder
    settings: TrainSettings
    parallel: Parallel
    seq_len: int
    data: str | None
    is_guest: bool

    def close(self) -> None:
        """Leave the process group. One of several ranks ends its process (see `loop.main`)."""
        if self.is_guest:
            return
        dist.destroy_process_group()
        if self.parallel.world_size > 1:
            sys.stdout.flush()
            os._exit(0)


def open_pretrained(
    folder: Path,
    *,
    step: int | None = None,
    average: str | None = None,
    seq_len: int | None = None,
    rows: int = 8,
    dtype: str = "float32",
    device: str = "auto",
) -> Pretrained:
    """Open a model, sharded over the ranks.

    Args:
        folder: OUTPUT of a training, or a model of Hugging Face.
        step: of a training: which checkpoint; the newest when absent.
        average: of a training: see `find_averaged`.
        seq_len: tokens of a row.
        rows: of a forward pass.

    Raises:
        UsageError: there is no model, or none that this decoder computes.
        DataError: it is damaged.
    """
    is_guest = dist.is_initialized()
    base = {
        "output": str(folder), "batch": {"global_rows": rows, "micro_rows": rows},
        "dtype": dtype, "device": device,
    }  # fmt: skip
    if (folder / CONFIG).is_file():
        shape = read_shape(folder)
        settings = TrainSettings.model_validate({**base, "data": "none"})
        longest = read_json(folder / CONFIG, "").get("max_position_embeddings")
        max_tokens = int(longest) if isinstance(longest, int) else MAX_DEFAULT_TOKENS
        parallel = join(settings)
        model = build_model(shape, settings, parallel)
        load_initial_weights(folder, model, parallel)
        data = None
    elif (folder / "checkpoints").is_dir():
        checkpoint = find_checkpoint(folder, step)
        checkpoints = find_averaged(checkpoint, average)
        *_, record = [require_undamaged(path, "Choose another --step.") for path in checkpoints]
        data = str(record.settings["data"])
        settings = TrainSettings.model_validate({**base, "data": data})
        max_tokens = read_mix(data).seq_len
        parallel = join(settings)
        model = build_model(shape_of(record), settings, parallel)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        _load(read_weights(checkpoints, shapes, is_average=is_of_average(record, average)), model)
    else:
        raise UsageError(
            f"{folder}: has neither config.json (a Hugging Face model) nor checkpoints/ (the "
            "output of a training). Correct the folder."
        )
    length = seq_len or min(max_tokens, MAX_DEFAULT_TOKENS)
    return Pretrained(model, settings, parallel, length, data, is_guest)


@torch.no_grad()
def _load(read: Iterator[torch.Tensor], model: Decoder) -> None:
    """Fill a model, sharded or not, with whole weights."""
    for parameter, tensor in zip(model.parameters(), read, strict=True):
        parameter.copy_(shard_like(tensor.to(parameter.device), parameter))
