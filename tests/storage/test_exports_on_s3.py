"""Exports of runs that lie in a bucket, and Megatron's files read from one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.integrations.export import Request, export
from corpuskit.stage import InputFile
from corpuskit.stages.sources.megatron import Megatron
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
        export(str(run), str(here), Request("megatron", order=order))
        export(far, str(there), Request("megatron", order=order))
        assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
        for path in here.iterdir():
            assert path.read_bytes() == (there / path.name).read_bytes()


def test_megatrons_files_are_read_from_a_bucket(bucket: str, tmp_path: Path):
    shards = write_shards(tmp_path / "run", {"web": 300})
    run = write_plan(shards, [(300, {"web": 1})])
    export(str(run), str(tmp_path / "files"), Request("megatron", unit="row"))
    address = f"{upload(tmp_path / 'files', f'{bucket}/files')}/web.bin"
    size = (tmp_path / "files" / "web.bin").stat().st_size
    source, file = Megatron(paths=(address,)), InputFile(0, "web", address, "web.bin", size, "")
    pieces = source.slices(file, 5000)
    assert len(pieces) > 3
    rows = [
        ids
        for piece in pieces
        for batch in source.read(file, piece, 1 << 20)
        for ids in batch.columns["tokens"].to_pylist()
    ]
    assert rows == shards.tokens["web"].tolist()
