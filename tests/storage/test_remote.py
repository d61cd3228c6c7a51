"""What object storage adds: faults of the server, leases, the environment, what the dead leave."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corpuskit.distribution import install_command
from corpuskit.errors import DataError, TaskError, UsageError
from corpuskit.storage import faults, open_input, open_store
from corpuskit.storage.client import RetryPolicy, open_bucket, split
from corpuskit.storage.lease import is_free
from corpuskit.storage.remote import RemoteStore
from tests.patience import HANG_SECONDS
from tests.s3_server import KEY, SECRET, S3Server
from tests.storage.conftest import HASTY, make_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]


# Faults of the server


@pytest.mark.parametrize("kind", ["500", "503", "drop", "lose"])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_passing_faults_are_not_noticed(remote: RemoteStore, s3: S3Server, kind: str, method: str):
    remote.put("a", b"one")
    s3.fail(kind, method, num=2)
    remote.put("a", b"two")
    assert remote.size("a") == 3
    assert remote.read("a") == b"two"
    assert s3.calm() == 0


@pytest.mark.parametrize("kind", ["500", "503", "409", "drop", "done500", "lose"])
def test_a_put_whose_answer_is_lost_is_known_for_ours(remote: RemoteStore, s3: S3Server, kind: str):
    s3.fail(kind, "PUT")
    assert remote.put_new("a", b"mine")
    assert s3.calm() == 0
    assert not remote.put_new("a", b"mine")


@pytest.mark.parametrize("kind", ["drop", "done500"])
def test_google_too_tells_whose_put_it_was(
    gs_server: S3Server, request: pytest.FixtureRequest, kind: str
):
    store = RemoteStore(f"{make_bucket('gs', request)}/run", retries=HASTY)
    gs_server.fail(kind, "PUT")
    assert store.put_new("a", b"mine")
    assert gs_server.calm() == 0
    assert not store.put_new("a", b"mine")


def test_a_put_that_hangs_is_sent_again(
    remote: RemoteStore, s3: S3Server, caplog: pytest.LogCaptureFixture
):
    s3.fail("hang", "PUT", seconds=2.5)
    assert remote.put_new("a", b"mine")
    assert "/a: no answer in time; tried again in" in caplog.text


def test_a_lost_answer_does_not_make_a_loser_win(remote: RemoteStore, s3: S3Server):
    assert remote.put_new("a", b"same")
    s3.fail("drop", "PUT")
    assert not remote.put_new("a", b"same")


def test_a_body_that_breaks_off_is_read_whole(remote: RemoteStore, s3: S3Server):
    content = os.urandom(300_000)
    remote.put("a", content)
    s3.fail("cut", "GET", num=2)
    assert remote.read("a") == content
    with remote.open("a") as file:
        s3.fail("cut", "GET", num=2)
        assert file.read() == content


@pytest.mark.parametrize("size", [100, 20 << 20])
@pytest.mark.parametrize(("kind", "method"), [("drop", "PUT"), ("drop", "POST"), ("503", "POST")])
def test_an_upload_survives_passing_faults(
    remote: RemoteStore, s3: S3Server, tmp_path: Path, size: int, kind: str, method: str
):
    made = tmp_path / "made"
    made.write_bytes(b"x" * size)
    s3.fail(kind, method)
    remote.publish(made, "a")
    s3.calm()
    assert remote.size("a") == size


def test_an_upload_whose_last_answer_is_lost_is_done_again(
    remote: RemoteStore, s3: S3Server, tmp_path: Path
):
    made = tmp_path / "made"
    made.write_bytes(b"x" * (9 << 20))
    # The first POST begins the upload, the second completes it.
    s3.fail("drop", "POST", skip=1)
    remote.publish(made, "a")
    assert s3.calm() == 0
    assert remote.size("a") == 9 << 20


@pytest.mark.parametrize("kind", ["500", "503", "lose", "stall"])
def test_a_storm_ends_in_an_error_of_the_system(bucket: str, s3: S3Server, kind: str):
    store = RemoteStore(f"{bucket}/run", retries=RetryPolicy(0.2, 0.4, 2, 0.02, 0.1))
    s3.fail(kind, num=10_000, seconds=0.5)
    began = time.monotonic()
    for act in (
        lambda: store.size("a"), lambda: store.read("a"), lambda: store.put("a", b"1"),
        lambda: store.put_new("a", b"1"), lambda: store.list("a"), lambda: store.delete(["a"]),
    ):  # fmt: skip
        with pytest.raises(OSError, match=re.escape(s3.url)) as caught:
            act()
        assert caught.value.errno == errno.EIO
        assert caught.value.filename.startswith(bucket)
        assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 60


def test_an_error_says_what_the_server_said(bucket: str, s3: S3Server):
    store = RemoteStore(f"{bucket}/run", retries=RetryPolicy(1, 1, 0, 0.01, 0.01))
    s3.fail("503", num=100)
    with pytest.raises(OSError, match=r"503 SlowDown \(Please reduce your request rate\)"):
        store.put("a", b"1")


def test_a_server_that_is_not_there_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = RemoteStore(f"{bucket}/run", retries=RetryPolicy(1, 1, 1, 0.01, 0.01))
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9: no connection"):
        store.put("a", b"1")


def test_a_refusal_says_what_to_check(remote: RemoteStore, s3: S3Server):
    s3.fail("403", num=100)
    with pytest.raises(PermissionError, match=r"AccessDenied.*AWS_ACCESS_KEY_ID"):
        remote.put("a", b"1")


def test_missing_credentials_are_named(bucket: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", s3.url)
    s3.fail("403", key="/latest", num=100)
    store = RemoteStore(f"{bucket}/run", retries=HASTY)
    with pytest.raises(PermissionError, match="no credentials were found"):
        store.put("a", b"1")


def test_a_missing_bucket_is_named(any_bucket: str):
    store = RemoteStore(f"{any_bucket}-no-such/run", retries=HASTY)
    name = store.address.split("/")[2]
    for act in (store.top, lambda: store.put("a", b"1"), lambda: store.list("")):
        with pytest.raises(OSError, match=f"there is no (bucket|container) '{name}' at http"):
            act()


@pytest.mark.parametrize("kind", ["403", "503", "lose"])
def test_nothing_secret_is_told(
    bucket: str, s3: S3Server, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url.replace("//", f"//user:{SECRET}@"))
    store = RemoteStore(f"{bucket}/run", retries=RetryPolicy(1, 1, 0, 0.01, 0.01))
    s3.fail(kind, num=100)
    with pytest.raises(OSError, match="bucket") as caught:
        store.put("a", b"1")
    told = f"{caught.value} {caught.value!r} {store!r} {store.at('a')!r} {caught.value.__cause__!r}"
    assert SECRET not in told
    assert KEY not in told


# What the dead leave

DIES = """
import os, signal, sys, threading, time
from pathlib import Path
from corpuskit.storage import open_store
store, path = open_store(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
store.publish(path, "tokens/big.parquet")
"""


def test_a_writer_killed_within_an_upload_leaves_nothing(
    remote: RemoteStore, s3: S3Server, tmp_path: Path
):
    made = tmp_path / "made"
    made.write_bytes(b"x" * (40 << 20))
    s3.requests()
    # The third part and those behind it never arrive.
    s3.fail("hang", "PUT", "big.parquet", skip=2, num=100, seconds=3.0)
    writer = subprocess.Popen(
        [sys.executable, "-c", DIES, remote.address, str(made)], cwd=ROOT, stdout=subprocess.PIPE
    )
    until(lambda: len([one for one in s3.requests(forget=False) if "partNumber" in one[1]]) > 2)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert remote.size("tokens/big.parquet") is None
    assert remote.list("") == []
    assert remote.top() == set()
    s3.calm()
    remote.publish(made, "tokens/big.parquet")
    assert remote.size("tokens/big.parquet") == 40 << 20


def until(happens, seconds: float = HANG_SECONDS) -> None:
    """Wait until something happens."""
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_an_upload_that_fails_is_aborted(bucket: str, s3: S3Server, tmp_path: Path):
    store = RemoteStore(f"{bucket}/run", retries=RetryPolicy(1, 1, 1, 0.01, 0.01))
    made = tmp_path / "made"
    made.write_bytes(b"x" * (20 << 20))
    s3.fail("500", "PUT", num=100)
    with pytest.raises(OSError, match="500 InternalError"):
        store.publish(made, "a")
    assert any(method == "DELETE" and "uploadId" in path for method, path in s3.requests())
    assert made.exists()


def test_a_large_upload_holds_a_few_parts_in_memory(bucket: str, tmp_path: Path):
    made = tmp_path / "made"
    made.write_bytes(b"x" * (110 << 20))
    script = (
        "import resource, sys, pathlib\n"
        "from corpuskit.storage import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "store.put('a', b'1')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "store.publish(pathlib.Path(sys.argv[2]), 'big')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"{bucket}/run", str(made)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 80 << 10


# Addresses and the environment


@pytest.mark.parametrize("address", ["s3://", "s3:///a", "s3://a b/c", "s3://-x/c", "s3://a"])
def test_an_address_without_a_bucket_is_refused(address: str):
    with pytest.raises(UsageError, match="is no bucket"):
        split(address)


def test_an_address_with_credentials_is_refused_and_not_shown():
    with pytest.raises(UsageError) as caught:
        open_store("s3://key:hush@bucket/run")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("address", ["s3://bucket/a//b", "s3://bucket/../b", "s3://bucket/./b"])
def test_a_prefix_that_means_something_else_is_refused(s3: S3Server, address: str):
    with pytest.raises(UsageError):
        open_store(address)


def test_other_schemes_are_refused():
    with pytest.raises(UsageError, match="ftp:// is not supported"):
        open_store("ftp://bucket/a")


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=re.escape(install_command("s3"))):
        open_bucket("s3://never-opened-before")


def test_the_root_of_a_bucket_may_be_a_run(bucket: str):
    store = open_store(bucket)
    store.put("a/b", b"1")
    assert (store.top(), store.list(""), store.where("a/b")) == ({"a"}, ["a/b"], f"{bucket}/a/b")


def test_a_neighbour_is_not_in_a_run(bucket: str):
    open_store(f"{bucket}/run2").put("a", b"1")
    open_store(f"{bucket}/run").put("b", b"1")
    assert open_store(f"{bucket}/run").list("") == ["b"]
    assert open_store(f"{bucket}/run").top() == {"b"}


def test_names_that_are_no_objects_are_refused(remote: RemoteStore):
    for name in ("a//b", "./a", "a/./b", "a\nb"):
        with pytest.raises(DataError):
            remote.put(name, b"1")


# Reading


@pytest.fixture
def anywhere(any_bucket: str) -> RemoteStore:
    """An empty run directory on each kind of server."""
    return RemoteStore(f"{any_bucket}/run", retries=HASTY)


def test_a_file_reads_like_a_file(anywhere: RemoteStore):
    content = b"".join(b"line %d\n" % number for number in range(100_000))
    anywhere.put("a.jsonl", content)
    with open_input(anywhere.where("a.jsonl")) as file:
        plain = io.BytesIO(content)
        assert file.read(6) == plain.read(6)
        assert file.seek(777_777) == plain.seek(777_777)
        assert [file.readline() for _ in range(50)] == [plain.readline() for _ in range(50)]
        assert file.seek(-10, os.SEEK_END) == plain.seek(-10, os.SEEK_END)
        assert file.read() == plain.read()
        assert file.read(5) == b""
        buffer = bytearray(100)
        file.seek(5)
        assert file.readinto(buffer) == 100
        assert bytes(buffer) == content[5:105]
        assert file.tell() == 105
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_reading_on_asks_for_more_at_a_time(remote: RemoteStore, s3: S3Server):
    content = os.urandom(12 << 20)
    remote.put("a.jsonl", content)
    s3.requests()
    with open_input(remote.where("a.jsonl")) as file:
        assert b"".join(iter(lambda: file.read(1 << 18), b"")) == content
    assert len(s3.requests()) <= 10


def test_jumping_asks_for_what_is_wanted(remote: RemoteStore, s3: S3Server):
    remote.put("a", bytes(4 << 20))
    with remote.open("a") as file:
        s3.requests()
        for begin in (1_000_000, 3_000_000, 2_000_000):
            file.seek(begin)
            file.read(100_000)
    assert len(s3.requests()) == 3


def test_a_small_sidecar_is_one_request(remote: RemoteStore, s3: S3Server):
    remote.put("work/sidecar.arrow", b"x" * 20_000)
    s3.requests()
    with remote.open("work/sidecar.arrow") as file:
        assert file.read() == b"x" * 20_000
    assert len(s3.requests()) == 1


def test_many_small_files_are_read_in_order(remote: RemoteStore):
    for number in range(40):
        remote.put(f"m/{number}", b"%d" % number)
    names = [f"m/{number}" for number in (7, 99, 3, *range(40))]
    assert list(remote.read_each(names)) == [b"7", None, b"3", *(b"%d" % one for one in range(40))]


def test_an_empty_footed_file_is_empty(anywhere: RemoteStore):
    anywhere.put("a.parquet", b"")
    with anywhere.open("a.parquet") as file:
        assert file.read() == b""


def test_a_replaced_object_is_not_read_as_one(anywhere: RemoteStore):
    anywhere.put("a", b"1" * 1_000_000)
    with anywhere.open("a") as file:
        assert file.read(10) == b"1" * 10
        anywhere.put("a", b"2" * 1_000_000)
        file.seek(500_000)
        with pytest.raises(OSError, match="was replaced while it was read") as caught:
            file.read(10)
    assert caught.value.errno == errno.ESTALE


# The lock


def test_a_server_without_conditions_is_refused(remote: RemoteStore, s3: S3Server):
    s3.fail("unconditional", "PUT", num=100)
    with pytest.raises(UsageError, match="ignores If-None-Match"), remote.lock():
        pytest.fail("it is held")
    assert remote.list("") == []


def test_a_google_without_conditions_is_refused(
    gs_server: S3Server, request: pytest.FixtureRequest
):
    store = RemoteStore(f"{make_bucket('gs', request)}/run", retries=HASTY)
    gs_server.fail("unconditional", "PUT", num=100)
    with pytest.raises(UsageError, match="ignores If-None-Match"), store.lock():
        pytest.fail("it is held")
    gs_server.calm()


def test_an_object_is_replaced_only_in_the_version_that_was_read(any_bucket: str):
    bucket = open_bucket(any_bucket, HASTY)
    first = bucket.put_new("a", b"1")
    assert first is not None
    second = bucket.replace("a", b"2", first)
    assert second is not None
    assert bucket.replace("a", b"late", first) is None
    content, entry = bucket.read("a") or (b"", None)
    assert (content, entry and entry.version) == (b"2", second)
    bucket.delete(["a"])
    assert bucket.replace("a", b"late", second) is None
    assert bucket.read("a") is None


def test_a_lock_of_a_dead_process_of_this_machine_is_free_at_once(bucket: str):
    store = RemoteStore(f"{bucket}/run", lease_seconds=1000.0)
    script = "import os, sys\nfrom corpuskit.storage import open_store\n"
    script += "with open_store(sys.argv[1]).lock():\n    os._exit(0)\n"
    subprocess.run([sys.executable, "-c", script, store.address], cwd=ROOT, check=True)
    assert store.top() == {"lock"}
    with store.lock():
        assert store.top() == {"lock"}


def test_a_lock_that_was_given_back_is_free_at_once(bucket: str):
    store = RemoteStore(f"{bucket}/run", lease_seconds=1000.0)
    for _ in range(2):
        with store.lock():
            assert not is_free(store.read("lock"))
        assert is_free(store.read("lock"))


def test_a_lock_of_another_machine_is_free_when_it_does_not_stir(remote: RemoteStore):
    holder = {"owner": "x", "beat": 3, "pid": 1, "host": "other", "machine": "other"}
    remote.put("lock", json.dumps(holder).encode())
    began = time.monotonic()
    with remote.lock():
        assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"pid": "x", "machine": 3}'])
def test_a_lock_that_makes_no_sense_is_free_when_it_does_not_stir(bucket: str, content: bytes):
    store = RemoteStore(f"{bucket}/run", renew_seconds=0.1, lease_seconds=1.0)
    store.put("lock", content)
    with store.lock():
        assert store.exists("lock")


def test_a_lock_is_held_longer_than_a_lease(remote: RemoteStore):
    with remote.lock():
        time.sleep(1.3)
        remote.put("a", b"1")
    assert remote.list("") == ["a", "lock"]


def test_one_of_two_contenders_takes_over(bucket: str):
    holder = {"owner": "x", "pid": 1, "host": "other", "machine": "other"}
    open_store(f"{bucket}/run").put("lock", json.dumps(holder).encode())
    script = (
        "import sys, time\n"
        "from corpuskit.errors import UsageError\n"
        "from corpuskit.storage.remote import RemoteStore\n"
        "try:\n"
        "    with RemoteStore(sys.argv[1], renew_seconds=0.1, lease_seconds=1.0).lock():\n"
        "        time.sleep(1.5)\n"
        "        print('held')\n"
        "except UsageError:\n"
        "    print('refused')\n"
    )
    command = [sys.executable, "-c", script, f"{bucket}/run"]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sorted(one.communicate()[0].strip() for one in both) == ["held", "refused"]


def test_who_lost_the_lock_writes_nothing_more(remote: RemoteStore, s3: S3Server, tmp_path: Path):
    made = tmp_path / "made"
    made.write_bytes(b"1")
    with remote.lock():
        remote.put("a", b"1")
        open_store(remote.address).put("lock", b'{"owner": "somebody else"}')
        until(lambda: any(method == "PUT" for method, _ in s3.requests()))
        time.sleep(0.3)
        for act in (
            lambda: remote.put("b", b"1"), lambda: remote.put_new("b", b"1"),
            lambda: remote.delete(["a"]), lambda: remote.publish(made, "b"),
        ):  # fmt: skip
            with pytest.raises(TaskError, match="another one may have taken over"):
                act()
    assert remote.list("") == ["a", "lock"]


def test_who_cannot_renew_writes_nothing_more(remote: RemoteStore, s3: S3Server):
    with remote.lock():
        s3.fail("lose", "PUT", "/lock", num=10_000)
        time.sleep(1.2)
        with pytest.raises(TaskError):
            remote.delete(["a"])
        s3.calm()


def test_a_renewal_whose_answer_is_lost_is_a_renewal(remote: RemoteStore, s3: S3Server):
    with remote.lock():
        s3.fail("drop", "PUT", "/lock", num=3)
        time.sleep(1.2)
        remote.put("a", b"1")
    assert remote.list("") == ["a", "lock"]


def test_a_write_waits_until_enough_of_the_lease_is_left(bucket: str, s3: S3Server):
    store = RemoteStore(f"{bucket}/run", renew_seconds=1.3, lease_seconds=2.0)
    with store.lock():
        s3.requests()
        time.sleep(1.1)
        store.put("a", b"1")
        puts = [path.rpartition("/")[2] for method, path in s3.requests() if method == "PUT"]
    assert puts[:2] == ["lock", "a"]


# Who is stopped while it holds the lock, and goes on when somebody else does


@pytest.fixture
def holder(bucket: str) -> RemoteStore:
    """A run directory whose holder does not renew its lease: as if it was stopped."""
    retries = RetryPolicy(2.0, 60.0, 1000, 0.05, 0.1)
    return RemoteStore(f"{bucket}/run", retries=retries, renew_seconds=1e6, lease_seconds=2.0)


@pytest.fixture
def successor(bucket: str) -> RemoteStore:
    """The same run directory as the next one sees it."""
    return RemoteStore(f"{bucket}/run", retries=HASTY, renew_seconds=0.2, lease_seconds=2.0)


@contextlib.contextmanager
def stopped(step: str, key: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Stop the next such request when all checks are passed; send it when `meanwhile` is done."""
    passed: list[str] = []

    def hook(at: str, name: str) -> None:
        if at == step and name.endswith(key):
            faults.install_hook(None)
            passed.append(name)
            meanwhile()

    faults.install_hook(hook)
    try:
        yield
    finally:
        faults.install_hook(None)
    assert passed, "it was never sent"


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (b"before", lambda store: store.put("seal.json", b"theirs"), b"theirs"),
        (b"before", lambda store: store.delete(["seal.json"]), None),
        (b"before", lambda store: store.list(""), b"before"),
        (None, lambda store: store.put("seal.json", b"theirs"), b"theirs"),
    ],
    ids=["replaced", "deleted", "left", "made"],
)
def test_a_late_put_undoes_nothing_of_the_successor(
    holder: RemoteStore,
    successor: RemoteStore,
    before: bytes | None,
    change: Callable[[RemoteStore], object],
    after: bytes | None,
):
    if before is not None:
        holder.put("seal.json", before)

    def take_over() -> None:
        with successor.lock():
            change(successor)

    def put() -> None:
        with pytest.raises(TaskError, match="another one may have taken over"):
            holder.put("seal.json", b"late")

    with holder.lock(), stopped("send:put", "/seal.json", take_over):
        put()
    assert next(successor.read_each(["seal.json"])) == after


def test_a_late_end_does_not_take_the_lock_of_the_successor(
    holder: RemoteStore, successor: RemoteStore
):
    def take_over() -> None:
        held.enter_context(successor.lock())

    with contextlib.ExitStack() as held:
        ending = holder.lock()
        ending.__enter__()
        with stopped("send:put", "/lock", take_over):
            ending.__exit__(None, None, None)
        successor.put("a", b"1")
        assert not is_free(successor.read("lock"))


def test_a_late_delete_says_that_files_may_be_missing(holder: RemoteStore, successor: RemoteStore):
    def take_over() -> None:
        with successor.lock():
            successor.put("a", b"1")

    def delete() -> None:
        with pytest.raises(TaskError, match=f"corpuskit verify {holder.address}` names what is"):
            holder.delete(["a"])

    with holder.lock(), stopped("send:delete", "/a", take_over):
        delete()


@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("PUT", lambda store: store.put("a", b"late")),
        ("POST", lambda store: store.delete(["a"])),
        ("PUT", lambda store: store.put_new("b", b"late")),
    ],
)
def test_no_request_is_repeated_when_the_lease_is_over(
    holder: RemoteStore,
    successor: RemoteStore,
    s3: S3Server,
    method: str,
    act: Callable[[RemoteStore], object],
):
    holder.put("a", b"before")
    with ThreadPoolExecutor(1) as pool, holder.lock():
        s3.fail("503", method, r"/run/[ab]$|^/[^/]*/?$", num=10_000)
        late = pool.submit(act, holder)
        with successor.lock():
            assert s3.calm() < 10_000, "it was never sent"
            successor.put("a", b"theirs")
            with pytest.raises(TaskError, match="another one may have taken over"):
                late.result()
        assert successor.read("a") == b"theirs"
        assert not successor.exists("b")


def test_scratch_of_the_living_is_not_cleared(remote: RemoteStore):
    with remote.scratch() as folder:
        open_store(remote.address).clear_scratch()
        assert folder.exists()


@pytest.mark.parametrize("endpoint", ["localhost:9000", "foo", "http://", "ftp://host"])
def test_an_endpoint_that_is_no_address_is_a_wrong_request(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(UsageError, match="which is no address"):
        RemoteStore("s3://bucket/run").exists("plan.json")


def test_a_missing_slash_is_named() -> None:
    with pytest.raises(UsageError, match="one slash is missing"):
        open_store("s3:/bucket/run")
