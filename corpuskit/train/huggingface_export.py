"""Exports a checkpoint as a Hugging Face model: in one process, a few tensors at a time."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp

import corpuskit
from corpuskit.errors import DataError, UsageError
from corpuskit.storage.local import sync_folder
from corpuskit.train.adapters import merge, stored_shapes
from corpuskit.train.huggingface import (
    CONFIG,
    INDEX,
    ORIGIN,
    WEIGHTS,
    foreign_names,
    make_config,
    write_tensors,
)
from corpuskit.train.model import Decoder
from corpuskit.train.record import (
    complete_checkpoints,
    files_of,
    read_record,
    require_undamaged,
    step_of,
)
from corpuskit.train.settings import ExpertShape, ModelShape, RopeScaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpuskit.train.record import CheckpointRecord

FORMAT = 1
FILE_BYTES = 5_000_000_000
READ_BYTES = 200_000_000  # of weights in memory, as float32, unless a single tensor is larger
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_ADVICE = "Choose another with --step."


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: Path
    step: int  # done, of the checkpoint
    architecture: str
    parameters: int
    files: int  # of weights
    size_bytes: int  # of weights
    dtype: str


def find_checkpoint(output: str | Path, step: int | None = None) -> Path:
    """Return the newest complete checkpoint of a run, or that of a step.

    Raises:
        UsageError: there is none.
    """
    folder = Path(output, "checkpoints")
    checkpoints = {
        number: path
        for number, path in complete_checkpoints(folder).items()
        if (path / "train.json").is_file()
    }
    if not checkpoints:
        raise UsageError(f"{folder}: has no complete checkpoint. Train first, or correct output.")
    if step is None:
        return checkpoints[max(checkpoints)]
    if step not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        raise UsageError(f"{folder}: has no checkpoint of step {step}. It has: {steps}.")
    return checkpoints[step]


def find_averaged(checkpoint: Path, average: str | None) -> list[Path]:
    """Return the checkpoints whose weights are averaged: this one and those before it.

    Args:
        checkpoint: the newest.
        average: how many checkpoints; `ema` (the average that the run keeps) and None: only this.

    Raises:
        UsageError: it is something else, or there are fewer.
    """
    if average in (None, "ema"):
        return [checkpoint]
    last = step_of(checkpoint.name) or 0
    steps = [step for step in complete_checkpoints(checkpoint.parent) if step <= last]
    number = int(average) if average and average.isdecimal() else 0
    if not 1 <= number <= len(steps):
        raise UsageError(
            f"--average {average}: neither ema nor a number of checkpoints from 1 to {len(steps)}, "
            f"as {checkpoint.parent} has up to {checkpoint.name}. Change it, or raise "
            "checkpoint.keep."
        )
    return [find_checkpoint(checkpoint.parent.parent, step) for step in steps[-number:]]


def is_of_average(record: CheckpointRecord, average: str | None) -> bool:
    """Return whether to read the average that the run keeps: the result of a schedule-free run.

    Args:
        record: of the checkpoint.
        average: see `find_averaged`.
    """
    return average == "ema" or record.settings["optimizer"]["kind"] == "schedule_free"


def export(
    checkpoint: Path,
    folder: Path,
    *,
    seq_len: int,
    ids: Mapping[str, int | None],
    dtype: str = "bfloat16",
    files: Mapping[str, bytes] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    file_bytes: int = FILE_BYTES,
    average: str | None = None,
) -> Exported:
    """Write a complete checkpoint as a Hugging Face model; the folder appears whole or not at all.

    Qwen3ForCausalLM computes what our decoder does with QK-norm, LlamaForCausalLM without,
    Glm4MoeForCausalLM with experts.

    Args:
        checkpoint: of any number of ranks.
        folder: absent or empty.
        seq_len: the longest text the model was trained on, in tokens.
        ids: of the tokens `bos`, `eos` and `pad`, null where there is none.
        dtype: of the weights written.
        files: more files, by name: those of the tokenizer.
        tokenizer: what `corpuskit.json` is to say of it.
        file_bytes: largest file of weights, unless a single tensor is larger.
        average: see `find_averaged`.

    Raises:
        UsageError: the folder has files, or the disk has no room.
        DataError: the checkpoint is broken.
    """
    checkpoints = find_averaged(checkpoint, average)
    *_, record = [require_undamaged(path, _ADVICE) for path in checkpoints]
    shape = shape_of(record)
    with torch.device("meta"):
        tensors = {name: tuple(t.shape) for name, t in Decoder(shape).state_dict().items()}
    size = stored_bytes(tensors, DTYPES[dtype])
    config = make_config(shape, seq_len, ids, dtype)
    with _whole_folder(folder, size) as partial:
        foreign = {name: foreign_names(name, shape.experts) for name in tensors}
        is_average = is_of_average(record, average)
        read = functools.partial(read_weights, checkpoints, is_average=is_average)
        names = _write_weights(read, partial, tensors, foreign, DTYPES[dtype], file_bytes)
        _write(partial / CONFIG, _json(config))
        _write(partial / "generation_config.json", _json({f"{n}_token_id": ids[n] for n in ids}))
        checked = [name for name in (*names, INDEX, CONFIG) if (partial / name).exists()]
        origin = _origin(record, checkpoint, dtype, tokenizer) | {"average": average}
        _write(partial / ORIGIN, _json({**origin, "files": files_of(partial, checked)}))
        for name, content in (files or {}).items():
            _write(partial / name, content)
    return Exported(
        folder=folder,
        step=record.step,
        architecture=config["architectures"][0],
        parameters=sum(map(math.prod, tensors.values())),
        files=len(names),
        size_bytes=size,
        dtype=dtype,
    )


@contextlib.contextmanager
def _whole_folder(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a folder to fill, which is then renamed, or deleted after an error.

    Raises:
        UsageError: the disk has no room for it.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder}: is there already, and not an empty folder. Choose a new one.")
    target = Path(os.path.abspath(folder))  # of a relative "." the parent has no name
    partial = target.with_name(f".{target.name}.unfinished")
    target.parent.mkdir(parents=True, exist_ok=True)
    _require_room(target, size_bytes)
    if partial.is_dir():  # a killed export left it
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        yield partial
        sync_folder(partial)
        partial.rename(target)  # over an empty folder, too
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(
    read: Callable[[Mapping[str, Sequence[int]]], Iterator[torch.Tensor]],
    folder: Path,
    shapes: Mapping[str, Sequence[int]],
    foreign: Mapping[str, Sequence[str]],
    dtype: torch.dtype,
    file_bytes: int,
) -> list[str]:
    """Write the files of weights, and an index if there are several; return their names.

    Args:
        read: yields whole tensors, in the order of the shapes it is given.
        folder: where the files go.
        shapes: of our tensors.
        foreign: Hugging Face's name of each; of a stack of experts, one for each expert.
        dtype: of the files.
        file_bytes: largest file, unless a tensor is larger.
    """
    groups = split(shapes, dtype.itemsize, file_bytes)
    names = [WEIGHTS]
    if len(groups) > 1:
        stem = WEIGHTS.removesuffix(".safetensors")
        names = [
            f"{stem}-{n:05d}-of-{len(groups):05d}.safetensors" for n in range(1, len(groups) + 1)
        ]
    for name, group in zip(names, groups, strict=True):
        sizes = {theirs: shapes[ours][-2:] for ours in group for theirs in foreign[ours]}
        tensors = read({ours: shapes[ours] for ours in group})
        single = (part for tensor in tensors for part in (tensor if tensor.ndim > 2 else [tensor]))
        write_tensors(folder / name, sizes, dtype, single)
    if len(groups) > 1:
        size = stored_bytes(shapes, dtype)
        file_of = {
            theirs: name
            for name, group in zip(names, groups, strict=True)
            for ours in group
            for theirs in foreign[ours]
        }
        index = {"metadata": {"total_size": size}, "weight_map": file_of}
        _write(folder / INDEX, _json(index))
    return names


def stored_bytes(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> int:
    """Return the bytes of tensors in files; biases of routers are always float32."""
    return sum(
        math.prod(shape) * (4 if name.endswith(".router.bias") else dtype.itemsize)
        for name, shape in shapes.items()
    )


def split(shapes: Mapping[str, Sequence[int]], itemsize: int, limit: int) -> list[list[str]]:
    """Cut tensors, in order, into groups of at most `limit` bytes; a larger one is alone."""
    groups: list[list[str]] = []
    filled = 0
    for name, shape in shapes.items():
        size = itemsize * math.prod(shape)
        if not groups or filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def read_weights(
    checkpoints: Sequence[Path], shapes: Mapping[str, Sequence[int]], *, is_average: bool = False
) -> Iterator[torch.Tensor]:
    """Yield the mean weights of checkpoints, tensor by tensor, with adapters merged into them.

    Args:
        checkpoints: of the same model.
        shapes: by name.
        is_average: read the averages that the run keeps, which are optimizer state.

    Raises:
        DataError: a checkpoint lacks one, or can't be read.
    """
    adapter = read_record(checkpoints[0], _ADVICE).settings["adapter"]
    parts = [stored_shapes(name, shape, adapter) for name, shape in shapes.items()]
    shapes_stored = {name: shape for part in parts for name, shape in part.items()}
    tensors = _read_means(checkpoints, shapes_stored, is_average=is_average)
    for part in parts:
        yield merge([next(tensors) for _ in part], adapter)


def _read_means(
    checkpoints: Sequence[Path], shapes: Mapping[str, Sequence[int]], *, is_average: bool
) -> Iterator[torch.Tensor]:
    try:
        for group in split(shapes, 4, READ_BYTES):
            means: dict[str, torch.Tensor] = {}
            for checkpoint in checkpoints:
                read = {name: torch.empty(tuple(shapes[name])) for name in group}
                state: dict[str, Any] = {"model": read}
                if is_average:
                    biases = {name: read[name] for name in read if name.endswith(".router.bias")}
                    averages = {
                        name: {"average": weights}
                        for name, weights in read.items()
                        if name not in biases  # which the optimizer does not have
                    }
                    state = {"optimizer": {"state": averages}, "model": biases}
                reader = dcp.FileSystemReader(checkpoint)
                with warnings.catch_warnings():  # it warns of what it was asked for
                    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
                    dcp.load(state, storage_reader=reader, no_dist=True)
                for name in group:
                    weights = read.pop(name) / len(checkpoints)
                    means[name] = means[name].add_(weights) if name in means else weights
            while group:  # each is freed when the next is asked for
                yield means.pop(group.pop(0))
    except (
        dcp.CheckpointException,
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        KeyError,
    ) as error:
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        if is_average:
            why = [f"no average was kept (optimizer.average_decay), or {why[0]}"]
        raise DataError(f"{checkpoint}: the weights can't be read: {why[0]}. {_ADVICE}") from error


def shape_of(record: CheckpointRecord) -> ModelShape:
    """Return the shape of a checkpoint's model."""
    scaling, experts = record.shape["rope_scaling"], record.shape["experts"]
    inner = {
        "rope_scaling": scaling and RopeScaling(**scaling),
        "experts": experts and ExpertShape(**experts),
    }
    return ModelShape(**{**record.shape, **inner})


def _origin(
    record: CheckpointRecord, checkpoint: Path, dtype: str, tokenizer: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": corpuskit.__version__,
        "name": record.settings["name"],
        "checkpoint": checkpoint.name,
        "step": record.step,
        "plan_hash": record.plan_hash,
        "settings_hash": record.settings_hash,
        "dtype": dtype,
        "tokenizer": dict(tokenizer) if tokenizer else None,
    }


def _require_room(target: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if size_bytes > free:
        raise UsageError(
            f"{target}: needs {size_bytes / 1e9:,.3f} GB, {free / 1e9:,.3f} GB are free. "
            "Free space, or choose another folder."
        )


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=2).encode() + b"\n"


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
