"""Servers of object storage for the session, and a bucket of its own for each test."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from corpuskit.storage import LocalStore, Store
from corpuskit.storage.client import RetryPolicy
from corpuskit.storage.remote import RemoteStore
from tests.azure_server import AzureServer, find_azurite
from tests.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

HASTY = RetryPolicy(2.0, 4.0, 3, 0.02, 0.1)
"""Gives up within seconds."""

_numbers = itertools.count()


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """The address of an empty bucket."""
    return s3.make_bucket(f"bucket-{next(_numbers)}")


@pytest.fixture
def remote(bucket: str) -> RemoteStore:
    """An empty run directory that gives up within seconds."""
    return RemoteStore(f"{bucket}/runs/one", retries=HASTY, renew_seconds=0.1, lease_seconds=1.0)


@pytest.fixture(scope="session")
def gs_server() -> Iterator[S3Server]:
    """A server with the conditions of Google Cloud Storage; skips as `s3_server` does."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    server = S3Server(google=True).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def az_server() -> Iterator[AzureServer]:
    """A running Azurite; skips where it is not installed."""
    pytest.importorskip("obstore")
    program = find_azurite()
    if program is None:
        pytest.skip("az:// was not tried: Azurite is missing (npm install --no-save azurite)")
    server = AzureServer(program)
    yield server
    server.stop()


def make_bucket(scheme: str, request: pytest.FixtureRequest) -> str:
    """Return the address of an empty bucket of a kind of server, which the environment names."""
    if scheme == "s3":
        return request.getfixturevalue("bucket")
    server: S3Server | AzureServer = request.getfixturevalue(f"{scheme}_server")
    for name, value in server.env.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    return server.make_bucket(f"bucket-{next(_numbers)}")


@pytest.fixture(params=["s3", "gs", "az"])
def any_bucket(request: pytest.FixtureRequest) -> str:
    """The address of an empty bucket of each kind of server."""
    return make_bucket(request.param, request)


@pytest.fixture(params=["local", "s3", "gs", "az"])
def store(request: pytest.FixtureRequest) -> Store:
    """An empty run directory of each kind."""
    if request.param == "local":
        return LocalStore(request.getfixturevalue("tmp_path") / "runs" / "one")
    address = f"{make_bucket(request.param, request)}/runs/one"
    return RemoteStore(address, retries=HASTY, renew_seconds=0.1, lease_seconds=1.0)
