"""Signatures of a run are MinHash objects of datasketch, for its index in memory and in Redis."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import yaml
from datasketch import MinHash, MinHashLSH

from corpuskit import read_plan
from corpuskit.errors import DataError, UsageError
from corpuskit.integrations import datasketch as ours
from corpuskit.stages.dedup.minhash_dedup.signatures import read_settings
from tests.conftest import ROOT
from tests.engine.conftest import article

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # they run a pipeline


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    """Articles, a tenth of which have another one with a few words changed; one without words."""
    rng = random.Random(4)
    found = {f"doc{i}": article(rng) for i in range(60)}
    for i in range(0, 60, 10):
        words = found[f"doc{i}"].split(" ")
        words[len(words) // 2] = "changed"
        found[f"near{i}"] = " ".join(words)
    return {**found, "empty": "..."}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, documents: dict[str, str]) -> Path:
    """A finished run with three kinds of signatures: sha1, xxhash, and the fast scheme's."""
    folder = tmp_path_factory.mktemp("run")
    lines = [json.dumps({"id": name, "text": text}) for name, text in documents.items()]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    kept = {"ngram": 3, "signatures": True, "action": "annotate"}
    xxhash = {"hash_function": "xxhash", "precision": 64, "seed": 5}
    pipeline = {
        "output": str(folder / "out"),
        "cell_bytes": 15_000,
        "sources": {"web": {"jsonl": str(folder / "in.jsonl"), "id_column": "id"}},
        "stages": [
            {"minhash_dedup": {"scheme": "datasketch", **kept}},
            {"minhash_dedup": {"scheme": "datasketch", **xxhash, **kept}},
            {"minhash_dedup": {"scheme": "fast", **kept}},
        ],
        "executor": {"workers": 1},
    }
    (folder / "p.yaml").write_text(yaml.safe_dump(pipeline))
    subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(folder / "p.yaml")],
        check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return folder / "out"


@pytest.mark.parametrize("label", ["minhash_dedup", "minhash_dedup_2"])
def test_read_minhashes_are_those_that_datasketch_makes(
    run: Path, documents: dict[str, str], label: str
) -> None:
    parameters = ours.read_parameters(run, label)
    found = dict(ours.read_minhashes(run, label))
    assert set(found) == set(documents) - {"empty"}
    for doc_id, minhash in found.items():
        made = MinHash(
            112, parameters.seed, scheme=minhash.scheme,
            hashfunc=ours.hash_function(parameters.hash_function, parameters.precision),
        )  # fmt: skip
        made.update_batch(ours.shingle_bytes(documents[doc_id], 3))
        assert minhash == made


def test_a_read_minhash_goes_on_as_any_other(run: Path, documents: dict[str, str]) -> None:
    found = dict(ours.read_minhashes(run))
    one, other = found["doc0"].copy(), found["doc1"]
    one.update_batch(ours.shingle_bytes(documents["doc1"], 3))
    assert one == MinHash.union(found["doc0"], other)


def test_the_index_finds_what_resembles_a_text(run: Path, documents: dict[str, str]) -> None:
    index = ours.build_index(run)
    parameters = ours.read_parameters(run)
    for i in range(0, 60, 10):
        text = documents[f"doc{i}"] + " One more sentence."
        assert ours.similar(index, text, parameters) == [f"doc{i}", f"near{i}"]
    assert ours.similar(index, "nothing like it in there at all", parameters) == []


def test_an_index_of_a_users_own_takes_them(run: Path, documents: dict[str, str]) -> None:
    index = MinHashLSH(threshold=0.5, num_perm=112)
    for doc_id, minhash in ours.read_minhashes(run, "minhash_dedup_2"):
        index.insert(doc_id, minhash)
    query = ours.sign_text(documents["near20"], ours.read_parameters(run, "minhash_dedup_2"))
    assert {"doc20", "near20"} <= set(index.query(query))


def test_parts_say_what_they_were_made_with(run: Path) -> None:
    [*paths] = (run / "signatures" / "minhash_dedup").glob("part-*.parquet")
    assert len(paths) > 1
    with pq.ParquetFile(paths[0]) as file:
        settings = read_settings(file, "here")
        assert file.schema_arrow.names == ["key", "id", "signature"]
    assert settings._asdict() == {
        "scheme": "datasketch", "ngram": 3, "bands": 14, "rows": 8, "seed": 1, "language": "en",
        "hash_function": "sha1", "precision": 32, "dtype": "uint32",
    }  # fmt: skip
    assert settings.num_perm == 112


def test_what_has_no_such_signatures_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="scheme fast, which datasketch cannot read"):
        next(ours.read_minhashes(run, "minhash_dedup_3"))
    with pytest.raises(UsageError, match=r"has no stage 'minhash'\. Did you mean 'minhash_dedup'"):
        next(ours.read_minhashes(run, "minhash"))
    with pytest.raises(UsageError, match="not a run directory"):
        next(ours.read_minhashes(tmp_path))


def test_other_parquet_files_are_no_signatures(run: Path) -> None:
    [*paths] = (run / "documents").glob("*.parquet")
    with pq.ParquetFile(paths[0]) as file, pytest.raises(DataError, match="not a part of sign"):
        read_settings(file, "documents")


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A Redis server of our own, without files."""
    pytest.importorskip("redis", reason="no redis client: pip install redis")
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("no redis-server: apt-get install redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait(port)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _wait(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("redis-server does not answer")


def close(index: MinHashLSH) -> None:
    """Close the connections to Redis, which datasketch leaves to the garbage collector."""
    for table in (index.keys, *index.hashtables):
        table._redis.connection_pool.disconnect()


def test_an_index_in_redis_outlives_the_process_that_built_it(
    run: Path, documents: dict[str, str], redis_port: int
) -> None:
    storage = {
        "type": "redis", "basename": b"web", "redis": {"host": "127.0.0.1", "port": redis_port},
    }  # fmt: skip
    close(ours.build_index(run, storage_config=storage))
    again = MinHashLSH(num_perm=112, params=(14, 8), storage_config=storage)
    parameters = ours.read_parameters(run)
    assert len(again.keys) == len(documents) - 1
    assert ours.similar(again, documents["doc30"], parameters) == ["doc30", "near30"]
    close(again)


def test_the_examples_of_the_page_run(
    run: Path,
    tmp_path: Path,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "datasketch.md").read_text("utf-8")
    [pipeline] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "p.yaml").write_text(pipeline)
    monkeypatch.chdir(ROOT)
    output = read_plan(tmp_path / "p.yaml").settings.output
    names: dict[str, object] = {}
    for block in blocks:
        here = block.replace('"port": 6379', f'"port": {redis_port}').replace(output, str(run))
        exec(here.replace('b"web"', 'b"page"'), names)
    assert "resembles" in capsys.readouterr().out
    assert len(names["index"].keys) == 66
    close(names["built"])
    close(names["index"])
