"""The loader as a torch dataset."""

from __future__ import annotations

import gc
import pickle
from typing import TYPE_CHECKING

import pytest
from loader_runs import Shards, write_plan

from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402 after the check that it is there

from corpuskit.loader.torch import TorchStream  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(shards: Shards, run_dir: Path) -> Path:
    return write_plan(shards, [(200, {"web": 5, "books": 3})], folder=run_dir)


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


def test_a_stream_goes_on_from_its_state(run: Path) -> None:
    stream = TorchStream(StreamingLoader(run, 8))
    rows, states = [], []
    for batch in stream:
        rows.append(batch["run_rows"].tolist())
        states.append(stream.state_dict())
    other = TorchStream(StreamingLoader(run, 8))
    other.load_state_dict(states[9])
    assert [batch["run_rows"].tolist() for batch in other] == rows[10:]


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
def test_pinned_memory_is_pinned(run: Path) -> None:
    stream = TorchStream(StreamingLoader(run, 8), pin_memory=True)
    batch = next(iter(stream))
    assert all(value.is_pinned() for value in batch.values() if not isinstance(value, int))
