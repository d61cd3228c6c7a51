"""Exports of runs that lie in a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.integrations.export import Request, export
from corpuskit.storage import open_store
from tests.loader.loader_runs import write_plan, write_shards

if TYPE_CHECKING:
    from pathlib import Path


def upload(folder: Path, address: str) -> str:
    store = open_store(address)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return address


def test_a_run_in_a_bucket_gives_the_files_of_a_local_one(bucket: str, tmp_path: Path):
    shards = write_shards(tmp_path / "run", {"web": 300, "books": 70})
    run = write_plan(shards, [(400, {"web": 2, "books": 1})])
    far = upload(run, f"{bucket}/runs/one")
    for order in ("stored", "run"):
        here, there = tmp_path / f"{order}-here", tmp_path / f"{order}-there"
        export(str(run), str(here), Request(order=order))
        export(far, str(there), Request(order=order))
        assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
        for path in here.iterdir():
            assert path.read_bytes() == (there / path.name).read_bytes()
