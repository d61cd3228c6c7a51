"""Which library talks to object storage: what dead writers leave, conditions, ranges, CPU, size.

    python benchmarks/object_stores.py [--mb 64]

Starts an S3 server of its own on the loopback (tests/s3_server.py, moto in memory; its CPU is not
counted). Compares obstore, pyarrow.fs and, where it is installed, s3fs. A writer fails within a
`with` block, or is killed during a multipart upload; what is left under the name is what a reader
would take for the file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.s3_server import S3Server  # noqa: E402 - lies beside, not installed

BUCKET = "bench"

# ruff: noqa: ANN001, ANN201


class Obstore:
    """obstore: Rust's object_store behind Python."""

    packages = ("obstore",)

    def __init__(self) -> None:
        import obstore
        from obstore.store import S3Store

        from corpuskit.storage.remote import open_object

        self.lib, self.open_object = obstore, open_object
        self.store = S3Store(BUCKET, client_options={"allow_http": True})

    def writer(self, key):
        return self.lib.open_writer(self.store, key, buffer_size=5 << 20)

    def put(self, key, content):
        self.lib.put(self.store, key, content)

    def put_file(self, key, path):
        self.lib.put(self.store, key, path, chunk_size=8 << 20, max_concurrency=4)

    def put_new(self, key, content):
        try:
            self.lib.put(self.store, key, content, mode="create")
        except self.lib.exceptions.AlreadyExistsError:
            return False
        return True

    def replace(self, key, content, tag):
        try:
            self.lib.put(self.store, key, content, mode={"e_tag": tag})
        except self.lib.exceptions.PreconditionError:
            return False
        return True

    def get(self, key):
        return self.lib.get(self.store, key).bytes()

    def open(self, key):
        return self.open_object(f"s3://{BUCKET}/{key}")


class Arrow:
    """pyarrow.fs: the AWS SDK for C++ behind Arrow."""

    packages = ("pyarrow",)

    def __init__(self) -> None:
        import pyarrow.fs

        address = urlparse(os.environ["AWS_ENDPOINT_URL"])
        self.fs = pyarrow.fs.S3FileSystem(
            endpoint_override=address.netloc, scheme="http", region="us-east-1"
        )

    def writer(self, key):
        return self.fs.open_output_stream(f"{BUCKET}/{key}")

    def put(self, key, content):
        with self.fs.open_output_stream(f"{BUCKET}/{key}") as file:
            file.write(content)

    def put_file(self, key, path):
        with path.open("rb") as source, self.fs.open_output_stream(f"{BUCKET}/{key}") as file:
            while piece := source.read(8 << 20):
                file.write(piece)

    def put_new(self, key, content):
        return None  # there is no such call

    def replace(self, key, content, tag):
        return None

    def get(self, key):
        with self.fs.open_input_stream(f"{BUCKET}/{key}") as file:
            return file.read()

    def open(self, key):
        return self.fs.open_input_file(f"{BUCKET}/{key}")


class S3fs:
    """s3fs: aiobotocore behind fsspec."""

    packages = ("s3fs", "aiobotocore", "botocore", "aiohttp", "fsspec")

    def __init__(self) -> None:
        import s3fs

        self.fs = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])

    def writer(self, key):
        return self.fs.open(f"{BUCKET}/{key}", "wb")

    def put(self, key, content):
        self.fs.pipe_file(f"{BUCKET}/{key}", content)

    def put_file(self, key, path):
        self.fs.put_file(str(path), f"{BUCKET}/{key}")

    def put_new(self, key, content):
        try:
            self.fs.pipe_file(f"{BUCKET}/{key}", content, mode="create")
        except FileExistsError:
            return False
        return True

    def replace(self, key, content, tag):
        return None

    def get(self, key):
        return self.fs.cat_file(f"{BUCKET}/{key}")

    def open(self, key):
        return self.fs.open(f"{BUCKET}/{key}", "rb")


PEERS = {"obstore": Obstore, "pyarrow.fs": Arrow, "s3fs": S3fs}


class StopError(Exception):
    """What a failing writer meets."""


def fail_within(peer, key: str) -> None:
    """Write half of a file and leave by an exception, as a `with` block does."""
    try:
        with peer.writer(key) as sink:
            sink.write(os.urandom(1000))
            raise StopError
    except StopError:
        pass


def left_by(server: S3Server, key: str) -> str:
    """Return what a reader finds under a name."""
    import obstore

    store = Obstore().store
    try:
        content = obstore.get(store, key).bytes().to_bytes()
    except FileNotFoundError:
        return "nothing"
    return f"AN OBJECT of {len(content)} B"


def killed(name: str, server: S3Server, key: str) -> str:
    """Return what a writer leaves that is killed while its second part is on its way."""
    server.fail("stall", "PUT", key, skip=1, num=100, seconds=3.0)
    child = subprocess.Popen(
        [sys.executable, __file__, "--write", name, key], stdout=subprocess.PIPE
    )
    end = time.monotonic() + 20
    while time.monotonic() < end:
        parts = [path for method, path in server.requests(forget=False) if f"{key}?" in path]
        if len([path for path in parts if "partNumber" in path]) >= 2:
            break
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    server.calm()
    return left_by(server, key)


def table(num: int) -> pa.Table:
    texts = [os.urandom(500).hex() for _ in range(num)]
    return pa.table({"text": texts, "n": list(range(num))})


def cpu(act) -> float:
    """Return the CPU seconds of this process, threads of libraries included."""
    began = time.process_time()
    act()
    return time.process_time() - began


def installed_mb(packages) -> float:
    """Return the size of distributions as they lie on disk, of those that are installed."""
    size = 0
    for package in packages:
        for file in importlib.metadata.files(package) or ():
            path = Path(file.locate())
            size += path.stat().st_size if path.exists() else 0
    return size / 1e6


def measure(name: str, server: S3Server, num_mb: int, scratch: Path) -> list[str]:
    peer = PEERS[name]()
    key = name.replace(".", "-")
    fail_within(peer, f"{key}/failed")
    server.requests()
    row = [name, left_by(server, f"{key}/failed"), killed(name, server, f"{key}/killed")]
    peer.put(f"{key}/taken", b"first")
    row.append({True: "IGNORED", False: "yes", None: "no call"}[peer.put_new(f"{key}/taken", b"2")])
    row.append(
        {True: "IGNORED", False: "yes", None: "no call"}[peer.replace(f"{key}/taken", b"2", '"0"')]
    )
    big = scratch / "big"
    big.write_bytes(os.urandom(num_mb << 20))
    server.requests()
    seconds = [cpu(lambda: peer.put_file(f"{key}/big", big)), cpu(lambda: peer.get(f"{key}/big"))]
    row += [f"{one * 1000 / num_mb:.1f}" for one in seconds]
    rows = scratch / "rows"
    pq.write_table(table(20_000), rows, row_group_size=1000, compression="none")
    peer.put(f"{key}/rows.parquet", rows.read_bytes())
    server.requests()

    def read_group() -> None:
        with peer.open(f"{key}/rows.parquet") as file:
            pq.ParquetFile(file, pre_buffer=True).read_row_group(9, ["text"])

    spent = cpu(read_group)
    row += [f"{len(server.requests())}", f"{spent * 1000:.0f}"]
    small = cpu(lambda: [peer.put(f"{key}/small", b"x" * 1000) for _ in range(200)])
    row += [f"{small * 5:.2f}", f"{installed_mb(peer.packages):.0f}"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64, help="size of the large object")
    parser.add_argument("--write", nargs=2, metavar=("PEER", "KEY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        peer = PEERS[given.write[0]]()
        path = Path(os.environ["BENCH_FILE"])
        peer.put_file(given.write[1], path)
        return
    import tempfile

    server = S3Server().start()
    os.environ.update(server.env)
    server.make_bucket(BUCKET)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ["BENCH_FILE"] = str(scratch / "file")
        (scratch / "file").write_bytes(b"x" * (40 << 20))
        head = [
            "library", "left by an exception", "left by SIGKILL", "If-None-Match", "If-Match",
            "put, CPU ms/MB", "get, CPU ms/MB", "row group, requests", "row group, CPU ms",
            "put 1 kB, CPU ms", "MB installed",
        ]  # fmt: skip
        print("| " + " | ".join(head) + " |")
        print("|" + "---|" * len(head))
        for name in PEERS:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                print(f"| {name} | not installed |")
                continue
            print("| " + " | ".join(measure(name, server, given.mb, scratch)) + " |", flush=True)
    server.stop()


if __name__ == "__main__":
    main()
