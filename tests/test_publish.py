"""Documents of a run for others: published on a hub, and exported as JSON lines."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.errors import DataError, TaskError, UsageError
from corpuskit.formats.zstd import zstd
from corpuskit.integrations.hub import push
from corpuskit.integrations.jsonl import _lines, export_documents
from corpuskit.storage import faults, open_store
from tests.engine.conftest import Lab, corpus
from tests.hub_server import HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.s3_server import S3Server

constants = pytest.importorskip("huggingface_hub.constants")

# The library's own way of sending a file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

HERE = "hf://datasets/owner/name"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A finished run with several parts of documents; tests must not change it."""
    lab = Lab(tmp_path_factory.mktemp("published"), tokenizer=None)
    documents = corpus()
    for number in range(3):
        lab.write(f"web{number}.jsonl", documents[number * 40 : number * 40 + 40])
    lab.pipeline["sources"].pop("books")
    lab.pipeline["stages"] = ["exact_dedup"]
    lab.run()
    return lab


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    for name, value in {
        "HF_ENDPOINT": server.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": "hf_test",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    # For this process, in which the library has read the variables.
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield server
    server.stop()


def documents_of(lab: Lab) -> dict[str, bytes]:
    return {f"documents/{path.name}": path.read_bytes() for path in lab.out.glob("documents/*")}


def assert_published(hub: HubServer, lab: Lab) -> None:
    tree = dict(hub.tree())
    card = tree.pop("README.md").decode()
    assert "path: documents/*.parquet" in card
    assert tree.pop(".gitattributes")
    assert tree == documents_of(lab)
    assert list(hub.branches) == ["main"]


@pytest.mark.slow
def test_a_user_pushes_a_run(hub: HubServer, published: Lab):
    assert len(documents_of(published)) >= 3
    done = published.cli_apart("push", str(published.out), HERE, "--json")
    assert_published(hub, published)
    facts = json.loads(done.stdout)
    assert (facts["sent"], facts["deleted"]) == (len(documents_of(published)), 0)
    assert facts["commit"] == hub.branches["main"]
    assert "the licence of the dataset is not declared" in done.stderr


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupted_push_goes_on(hub: HubServer, published: Lab, at: int):
    before = hub.branches["main"]
    puts = iter([0] * at + [400])
    hub.refuse = lambda method, path: next(puts) if method == "PUT" else 0
    with pytest.raises(TaskError, match=r"hf://datasets/owner/name: .*Run the same command again"):
        push(str(published.out), HERE, commit_bytes=1)
    assert hub.branches["main"] == before, "nothing half published"
    hub.refuse = lambda method, path: 0
    arrived = len(hub.blobs)
    assert arrived == at
    hub.requests.clear()
    done = push(str(published.out), HERE)
    assert done["sent"] == len(hub.sent()) == len(documents_of(published)) - arrived
    assert_published(hub, published)


def test_a_push_that_ends_before_its_last_commit_sends_nothing_again(
    hub: HubServer, published: Lab
):
    hub.refuse = lambda method, path: 400 * path.endswith("/commit/main")
    with pytest.raises(TaskError, match="a fault was asked for"):
        push(str(published.out), HERE)
    assert "README.md" not in hub.tree()
    hub.refuse = lambda method, path: 0
    hub.requests.clear()
    assert push(str(published.out), HERE)["sent"] == 0
    assert hub.sent() == []
    assert_published(hub, published)


def test_a_second_push_does_nothing(hub: HubServer, published: Lab):
    first = push(str(published.out), HERE)
    num_commits = len(hub.commits)
    again = push(str(published.out), HERE)
    assert (again["commit"], again["sent"], again["deleted"]) == (first["commit"], 0, 0)
    assert len(hub.commits) == num_commits


def test_files_of_an_earlier_push_are_deleted_and_others_stay(hub: HubServer, published: Lab):
    hub.tree()["documents/part-old.parquet"] = b"old"
    hub.tree()["notes.md"] = b"mine"
    assert push(str(published.out), HERE)["deleted"] == 1
    assert "documents/part-old.parquet" not in hub.tree()
    assert hub.tree().pop("notes.md") == b"mine"
    assert_published(hub, published)


def test_a_revision_that_moves_meanwhile_is_left_alone(hub: HubServer, published: Lab):
    def move(method: str, path: str) -> int:
        if path.endswith("/commit/main") and "1" * 40 not in hub.commits:
            hub.commits["1" * 40] = {**hub.tree(), "theirs": b"1"}
            hub.branches["main"] = "1" * 40
        return 0

    hub.refuse = move
    with pytest.raises(TaskError, match="main moved while files were sent"):
        push(str(published.out), HERE)
    assert hub.branches["main"] == "1" * 40
    assert push(str(published.out), HERE)["sent"] == 0
    assert hub.tree().pop("theirs") == b"1"
    assert_published(hub, published)


def test_what_arrived_otherwise_is_named(hub: HubServer, published: Lab):
    def spoil(method: str, path: str) -> int:
        if path.endswith("/commit/main"):
            hub.blobs[min(hub.blobs)] = b"other"
        return 0

    hub.refuse = spoil
    with pytest.raises(DataError, match=r"documents/part-.* is not what was sent, in commit"):
        push(str(published.out), HERE)


@pytest.mark.slow
def test_a_damaged_part_is_not_sent(hub: HubServer, published: Lab, tmp_path: Path):
    store, copy = open_store(str(published.out)), open_store(str(tmp_path / "copy"))
    for name in store.list(""):
        copy.put(name, store.read(name))
    name = max(documents_of(published))
    content = bytearray(copy.read(name))
    content[20] ^= 1
    copy.put(name, bytes(content))
    with pytest.raises(DataError, match="its content is not what was written"):
        push(str(tmp_path / "copy"), HERE)
    assert set(hub.tree()) == {".gitattributes"}


def test_a_run_in_a_bucket_is_pushed(hub: HubServer, published: Lab, s3: S3Server):
    address = s3.make_bucket("bucket-to-push")
    store, copy = open_store(str(published.out)), open_store(f"{address}/run")
    for name in store.list(""):
        copy.put(name, store.read(name))
    push(f"{address}/run", HERE)
    assert_published(hub, published)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hf://datasets/owner/name/documents", "names a file"),
        ("hf://owner/name", "names no dataset"),
        ("hf://datasets/owner/other", "there is no such dataset, or it is private"),
        ("hf://datasets/owner/name@none", "there is no such revision"),
    ],
)
def test_a_wrong_address_is_one_line(hub: HubServer, published: Lab, address: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        push(str(published.out), address)


def test_a_token_that_may_not_write_is_named(hub: HubServer, published: Lab):
    hub.refuse = lambda method, path: 403 * (method == "POST")
    with pytest.raises(UsageError, match=r"the token may not write there\. Set HF_TOKEN"):
        push(str(published.out), HERE)


def test_a_server_that_does_not_answer_is_named(
    hub: HubServer, published: Lab, monkeypatch: pytest.MonkeyPatch
):
    hub.stop()
    again = (
        r"cannot be reached \(Connection refused\)\. Check .* HF_ENDPOINT\. Run the same command"
    )
    with pytest.raises(TaskError, match=f"{HERE}: {hub.url} {again}"):
        push(str(published.out), HERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"HF_HUB_OFFLINE is set\. Unset it to push"):
        push(str(published.out), HERE)


def test_a_dry_run_asks_the_hub_nothing(hub: HubServer, published: Lab):
    done = published.cli("push", str(published.out), f"{HERE}@v2", "--dry-run")
    num, size = len(documents_of(published)), sum(map(len, documents_of(published).values()))
    assert f"{num} files ({size / 1e6:,.1f} MB) and the card would go to revision v2" in done.stdout
    assert "the licence of the dataset is not declared" in done.stderr
    assert hub.requests == []
    facts = json.loads(
        published.cli("push", str(published.out), HERE, "--dry-run", "--json").stdout
    )
    assert (facts["files"], facts["bytes"], facts["endpoint"]) == (num, size, hub.url)


def test_an_unfinished_run_is_not_published(hub: HubServer, published: Lab, tmp_path: Path):
    store, copy = open_store(str(published.out)), open_store(str(tmp_path / "copy"))
    for name in store.list(""):
        if name != "manifests/documents/seal.json":
            copy.put(name, store.read(name))
    with pytest.raises(UsageError, match="the run is not finished: documents have not run"):
        push(str(tmp_path / "copy"), HERE)


# Documents as JSON lines


def rows_of(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("*.jsonl.zst"))
    return [json.loads(line) for path in paths for line in zstd.open(path)]


def test_documents_are_exported_line_by_line(published: Lab, tmp_path: Path):
    done = published.cli("export", str(published.out), str(tmp_path / "out"), "--format", "jsonl")
    tables = [pq.read_table(path) for path in sorted(published.out.glob("documents/*"))]
    expected = pa.concat_tables(tables).drop_columns(["key"]).to_pylist()
    assert [{"extra": None} | row for row in rows_of(tmp_path / "out")] == expected
    facts = json.loads((tmp_path / "out/export.json").read_text())
    assert sum(file["rows"] for file in facts["files"]) == len(expected)
    assert f"{len(expected):,} documents in {len(facts['files'])} files" in done.stdout
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".zst", ".json"}


def test_a_line_has_extra_as_an_object_and_no_numbers_that_json_lacks():
    batch = pa.record_batch(
        {"key": [1, 2], "text": ["\u00fc\n", "b"], "extra": ['{"a":1}', None],
         "score": [math.nan, 0.5]}
    )  # fmt: skip
    assert _lines(batch).decode().splitlines() == [
        '{"text":"\u00fc\\n","score":null,"extra":{"a":1}}', '{"text":"b","score":0.5}',
    ]  # fmt: skip


def test_an_interrupted_export_goes_on(published: Lab, tmp_path: Path):
    out = tmp_path / "out"
    reached: list[str] = []

    def fail(step: str, name: str) -> None:
        reached.append(step)
        if reached.count("publish:before") == 2:
            raise OSError(28, "No space left on device")

    faults.install_hook(fail)
    try:
        with pytest.raises(OSError, match="No space"):
            export_documents(str(published.out), str(out))
    finally:
        faults.install_hook(None)
    [first] = out.glob("*.jsonl.zst")
    before = first.stat().st_mtime_ns
    assert not (out / "export.json").exists()
    export_documents(str(published.out), str(out))
    assert first.stat().st_mtime_ns == before
    export_documents(str(published.out), str(tmp_path / "again"))
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}


def test_documents_are_exported_to_a_bucket(published: Lab, s3: S3Server, tmp_path: Path):
    address = s3.make_bucket("bucket-for-lines")
    export_documents(str(published.out), f"{address}/out")
    export_documents(str(published.out), str(tmp_path / "out"))
    store = open_store(f"{address}/out")
    assert set(store.list("")) - {"lock"} == {path.name for path in (tmp_path / "out").iterdir()}
    for path in (tmp_path / "out").iterdir():
        assert store.read(path.name) == path.read_bytes()


def test_wrong_exports_of_documents_are_refused(published: Lab, tmp_path: Path):
    (tmp_path / "other").write_text("x")
    with pytest.raises(UsageError, match="is not empty, it has 'other'"):
        export_documents(str(published.out), str(tmp_path))
    with pytest.raises(UsageError, match=r"no source 'wob'\. Did you mean 'web'"):
        export_documents(str(published.out), str(tmp_path / "out"), ["wob"])
    with pytest.raises(UsageError, match="is inside the run directory"):
        export_documents(str(published.out), str(published.out / "lines"))
    command = ("export", str(published.out), str(tmp_path / "out"), "--format", "jsonl")
    assert "leave them out" in published.cli(*command, "--rows", "3", code=2).stderr
