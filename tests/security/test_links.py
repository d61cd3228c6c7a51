"""Links inside a run directory of unknown origin lead nowhere, and lookups stay inside it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader
from corpuskit.storage import LocalStore
from tests.security.test_run_directories import ESCAPES, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["run"]  # a fixture


def linked(tmp_path: Path) -> tuple[LocalStore, Path]:
    """Return a store whose documents/ is a link, and the folder that the link leads to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.parquet").write_bytes(b"precious")
    store = LocalStore(tmp_path / "run")
    store.root.mkdir()
    (store.root / "documents").symlink_to(outside)
    return store, outside


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.put("documents/precious.parquet", b"x"),
        lambda store: store.put_new("documents/new.parquet", b"x"),
        lambda store: store.delete(["documents/precious.parquet"]),
    ],
)
def test_nothing_is_changed_behind_a_link(
    tmp_path: Path, work: Callable[[LocalStore], object]
) -> None:
    store, outside = linked(tmp_path)
    with pytest.raises(DataError, match="is a link"):
        work(store)
    assert [path.read_bytes() for path in outside.iterdir()] == [b"precious"]


def test_what_lies_behind_a_link_is_not_listed(tmp_path: Path) -> None:
    store, _ = linked(tmp_path)
    assert store.list("documents") == []


def test_a_lock_that_is_a_link_is_neither_followed_nor_emptied(tmp_path: Path) -> None:
    store, outside = linked(tmp_path)
    (store.root / "lock").symlink_to(outside / "precious.parquet")
    with pytest.raises((OSError, UsageError)), store.lock():
        pass
    assert (outside / "precious.parquet").read_bytes() == b"precious"


def test_small_files_are_as_readable_as_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        LocalStore(tmp_path).put("plan.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ESCAPES)
def test_lookups_name_no_run_outside_the_run_directory(run: Path, name: str) -> None:
    path = run / "mix" / "lookups.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "path", pa.array([name] * len(table))), path)
    plan = run / "mix" / "plan.json"
    fields = json.loads(plan.read_text())
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()  # as an attacker would
    fields["digests"]["lookups"] = digest
    plan.write_text(json.dumps(fields))
    with StreamingLoader(run) as loader, pytest.raises(DataError, match="the run directory"):
        loader.which(0)
