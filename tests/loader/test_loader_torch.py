"""The loader as a torch dataset. What runs under whole frameworks is in test_loader_examples.py."""

from __future__ import annotations

import gc
import pickle
from collections import deque
from typing import TYPE_CHECKING

import pytest
from loader_runs import Shards, write_plan

from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402 after the check that it is there

from corpuskit.loader.torch import (  # noqa: E402
    TorchStream,
    rank_and_world_size,
    transformers_inputs,
)

if TYPE_CHECKING:
    from pathlib import Path

RAMP = [(0, 4), (3, 8), (9, 16)]


@pytest.fixture
def run(shards: Shards, run_dir: Path) -> Path:
    return write_plan(shards, [(200, {"web": 5, "books": 3})], folder=run_dir)


def rows_of(batches) -> list[list[int]]:
    return [batch["run_rows"].tolist() for batch in batches]


def test_a_data_loader_yields_the_batches_as_tensors(run: Path) -> None:
    stream = DataLoader(TorchStream(StreamingLoader(run, 8)), batch_size=None, num_workers=0)
    with StreamingLoader(run, 8) as loader:
        for tensors, batch in zip(stream, loader, strict=True):
            assert tensors.keys() == batch.keys()
            for name, value in batch.items():
                if isinstance(value, int):
                    assert tensors[name] == value
                else:
                    assert tensors[name].numpy().dtype == value.dtype
                    assert tensors[name].tolist() == value.tolist()


def test_a_stream_has_the_fields_of_its_loader(run: Path) -> None:
    batch = next(iter(TorchStream(StreamingLoader(run, 8, fields=["tokens", "position_ids"]))))
    assert list(batch) == ["step", "tokens", "position_ids"]  # first a number: accelerate stops
    with pytest.raises(UsageError, match="needs the fields labels, cu_seqlens, max_seqlen"):
        transformers_inputs(batch)


def test_a_stream_goes_on_from_its_state(run: Path) -> None:
    stream = TorchStream(StreamingLoader(run, 8))
    rows, states = [], []
    for batch in stream:
        rows.append(batch["run_rows"].tolist())
        states.append(stream.state_dict())
    other = TorchStream(StreamingLoader(run, 8))
    other.load_state_dict(states[9])
    assert rows_of(other) == rows[10:]


@pytest.mark.parametrize("batch_rows", [8, RAMP])
@pytest.mark.parametrize("ahead", [1, 5])
def test_a_state_asked_by_step_is_exact_however_far_was_fetched_ahead(run, batch_rows, ahead):
    def new() -> TorchStream:
        return TorchStream(StreamingLoader(run, batch_rows, micro_batch_rows=4))

    rows = rows_of(new())
    stream, fetched = new(), deque()
    num_delivered = 0
    for batch in stream:
        fetched.append(batch)
        if len(fetched) <= ahead:
            continue
        step = fetched.popleft()["step"]
        num_delivered += 1
        if fetched[0]["step"] == step + 1:
            other = new()
            other.load_state_dict(stream.state_dict(step=step + 1))
            assert rows_of(other) == rows[num_delivered:]


def test_a_state_of_a_step_that_does_not_exist_is_refused(run: Path) -> None:
    stream = TorchStream(StreamingLoader(run, 8))
    for step in (-1, 26):
        with pytest.raises(UsageError, match=rf"step must be in \[0, 26\), got {step}"):
            stream.state_dict(step=step)


@pytest.mark.parametrize(
    ("batch_rows", "options"),
    [
        (8, {}),
        (8, {"world_size": 2, "micro_batches": 2}),
        (RAMP, {"micro_batch_rows": 2}),
        (RAMP, {"num_steps": 2}),
        (RAMP, {"num_steps": 5, "micro_batches": 4}),
    ],
)
def test_the_length_is_that_of_the_whole_run(run: Path, batch_rows, options) -> None:
    stream = TorchStream(StreamingLoader(run, batch_rows, **options))
    assert len(stream) == sum(1 for _ in stream)
    stream.load_state_dict(stream.state_dict(step=2))
    assert len(stream) == len(TorchStream(StreamingLoader(run, batch_rows, **options)))


def test_micro_batches_are_those_of_the_next_step(run: Path) -> None:
    loader = StreamingLoader(run, RAMP, micro_batch_rows=4)
    counted = dict.fromkeys(range(loader.num_steps), 0)
    said = {}
    for batch in loader:
        counted[batch["step"]] += 1
        said[loader.step] = loader.micro_batches
    del said[loader.num_steps]
    assert {step: counted[step] for step in said} == said


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 8}, {"collate_fn": lambda batches: batches[0]}]
)
def test_a_data_loader_that_batches_once_more_is_refused(run: Path, options) -> None:
    stream = TorchStream(StreamingLoader(run, 8))
    with pytest.raises(UsageError, match="batch_size of the DataLoader must be None"):
        next(iter(DataLoader(stream, **options)))
    converted = DataLoader(stream, batch_size=None, collate_fn=transformers_inputs)
    assert next(iter(converted))["input_ids"].shape == (8, stream.loader.seq_len)


@pytest.mark.slow  # torch waits 5 seconds for a worker that failed
def test_worker_processes_are_refused_with_advice(run: Path) -> None:
    stream = TorchStream(StreamingLoader(run, 8))
    workers = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(UsageError, match="num_workers must be 0") as caught:
        next(iter(workers))
    del caught
    gc.collect()


def test_sending_it_to_a_worker_is_refused_with_advice(run: Path) -> None:
    with pytest.raises(UsageError, match="num_workers must be 0"):
        pickle.dumps(TorchStream(StreamingLoader(run, 8)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_pinned_memory_without_a_device_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="pin_memory must be False"):
        TorchStream(StreamingLoader(run, 8), pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pinned_memory_is_pinned_and_used_again(run: Path) -> None:
    addresses = set()
    for batch in TorchStream(StreamingLoader(run, 8), pin_memory=True):
        tensors = [value for value in batch.values() if not isinstance(value, int)]
        assert all(tensor.is_pinned() for tensor in tensors)
        addresses.add(batch["tokens"].data_ptr())
    assert len(addresses) < 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_copies_that_a_busy_device_makes_late_are_of_the_right_batch(run: Path) -> None:
    expected = [batch["tokens"].tolist() for batch in TorchStream(StreamingLoader(run, 8))]
    slow = torch.randn(8192, 8192, device="cuda")
    copies = []
    for batch in TorchStream(StreamingLoader(run, 8), pin_memory=True):
        slow = (slow @ slow).clamp(-1, 1)
        copies.append(batch["tokens"].to("cuda", non_blocking=True))
    assert [copy.tolist() for copy in copies] == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8)),
    ],
)
def test_rank_and_world_size_are_those_of_torchrun(monkeypatch, environment, expected) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world_size() == expected
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("rank", "size"), [("1", None), (None, "2"), ("one", "2"), ("0", "")])
def test_half_an_environment_is_refused_with_advice(monkeypatch, rank, size) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="Start with torchrun"):
        rank_and_world_size()


def test_the_arguments_of_a_transformers_model_hold_the_batch(run: Path) -> None:
    batch = next(iter(TorchStream(StreamingLoader(run, 8))))
    given = transformers_inputs(batch)
    for name, column in (
        ("input_ids", "tokens"),
        ("position_ids", "position_ids"),
        ("labels", "labels"),
        ("shift_labels", "labels"),
    ):
        assert given[name].dtype == torch.int64
        assert given[name].tolist() == batch[column].tolist()
    for side in ("q", "k"):
        assert given[f"cu_seq_lens_{side}"].dtype == torch.int32  # as flash attention wants it
        assert given[f"cu_seq_lens_{side}"].tolist() == batch["cu_seqlens"].tolist()
        assert given[f"max_length_{side}"] == batch["max_seqlen"]
    assert given["use_cache"] is False  # with a cache, segments attend to one another
