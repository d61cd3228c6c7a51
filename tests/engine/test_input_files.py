"""Which files a pattern stands for, and how they are cut: nothing is left out without a word."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.engine.inputs import find_inputs, number, save_inputs
from corpuskit.engine.plan import read_plan
from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import MAX_ORDINAL
from corpuskit.formats.manifest import dump_checked, load_checked
from corpuskit.stage import InputFile, Slice
from corpuskit.stages.sources.huggingface import Huggingface
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from corpuskit.storage import open_store
from tests.engine.conftest import tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.conftest import Lab


@pytest.fixture
def plain(lab: Lab) -> Lab:
    """A lab with one source, of which any pattern may be set, and no stage."""
    lab.pipeline["stages"] = []
    lab.pipeline["sources"] = {"web": {"jsonl": f"{lab.inputs}/**"}}
    return lab


def planned(lab: Lab, pattern: str) -> list[str]:
    """Return the names of the files that are planned for a pattern, relative to the inputs."""
    lab.pipeline["sources"]["web"]["jsonl"] = f"{lab.inputs}/{pattern}"
    lab.save()
    lab.cli("plan", str(lab.path))
    plan = read_plan(lab.path)
    inputs = find_inputs(open_store(str(lab.out)), plan.file.sources, 1 << 20)
    return [os.path.relpath(file.path, lab.inputs) for file in inputs.files]


def refused(lab: Lab, pattern: str, name: str) -> str:
    """Assert that a pattern is refused with the place in the file and a name; return the error."""
    lab.pipeline["sources"]["web"]["jsonl"] = f"{lab.inputs}/{pattern}"
    lab.save()
    error = lab.cli("plan", str(lab.path), code=2).stderr
    assert f"{lab.path}:" in error
    assert "source 'web'" in error
    assert repr(str(lab.inputs / name)) in error
    assert not lab.out.exists()
    return error


@pytest.mark.parametrize("pattern", ["*.jsonl", "**/*.jsonl", "**", "?one.jsonl", "gone.jsonl"])
def test_a_link_that_leads_nowhere_is_refused(plain: Lab, pattern: str):
    (plain.inputs / "gone.jsonl").symlink_to("nowhere/object")
    assert "leads nowhere: there is no 'nowhere/object'" in refused(plain, pattern, "gone.jsonl")


@pytest.mark.parametrize("pattern", ["*/*.jsonl", "**/*.jsonl", "**"])
def test_a_link_that_may_have_led_to_a_folder_is_refused(plain: Lab, pattern: str):
    (plain.inputs / "disk2").symlink_to("/nowhere/disk2")
    assert "leads nowhere" in refused(plain, pattern, "disk2")


def test_links_that_the_pattern_does_not_want_are_passed_over(plain: Lab):
    """Of a git-annex folder, often only some of the files are fetched."""
    (plain.inputs / "model.bin").symlink_to(".git/annex/objects/a/b/c.bin")
    assert planned(plain, "**/*.jsonl") == ["books.jsonl", "web0.jsonl", "web1.jsonl"]


@pytest.mark.parametrize("pattern", ["*.jsonl", "**/*.jsonl", "*", "**/d.jsonl", "*.jsonl/../d*"])
def test_a_folder_that_matches_is_refused(plain: Lab, pattern: str):
    (plain.inputs / "d.jsonl").mkdir()
    if ".." in pattern:
        assert planned(plain, "d.jsonl/../w*") == ["web0.jsonl", "web1.jsonl"]
    else:
        assert " is a folder, and the pattern is to match" in refused(plain, pattern, "d.jsonl")


@pytest.mark.parametrize("pattern", ["**", "**/*", "**/**/*", "../in/**"])
def test_folders_are_walked_through(plain: Lab, pattern: str):
    plain.write("web0.jsonl", [{"text": "a"}]).rename(plain.inputs / "other.txt")
    (plain.inputs / "a" / "b").mkdir(parents=True)
    (plain.inputs / "web1.jsonl").rename(plain.inputs / "a" / "b" / "web1.jsonl")
    (plain.folder / "far").mkdir()
    (plain.inputs / "books.jsonl").rename(plain.folder / "far" / "books.jsonl")
    (plain.inputs / "link").symlink_to(plain.folder / "far")
    (plain.inputs / ".hidden").mkdir()
    (plain.inputs / ".hidden" / "x.jsonl").write_text("")
    assert planned(plain, pattern) == ["a/b/web1.jsonl", "link/books.jsonl", "other.txt"]


def test_a_link_back_is_refused(plain: Lab):
    (plain.inputs / "a").mkdir()
    (plain.inputs / "a" / "up").symlink_to("..")
    assert "is a link back to" in refused(plain, "**/*.jsonl", "a/up")


def test_what_is_no_file_is_refused(plain: Lab):
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(plain.inputs)  # the path of a socket has at most 107 bytes
        server.bind("s.jsonl")
        assert "no regular file" in refused(plain, "*.jsonl", "s.jsonl")


@pytest.fixture
def as_nobody(plain: Lab) -> Iterator[Lab]:
    """The lab in a folder of which somebody without rights can see all but `in/closed`."""
    folder = Path(tempfile.mkdtemp(prefix="corpuskit-nobody-"))
    plain.inputs = folder / "in"
    closed = plain.inputs / "closed"
    closed.mkdir(parents=True)
    (closed / "a.jsonl").write_text('{"text": "a"}\n')
    (plain.inputs / "b.jsonl").write_text('{"text": "b"}\n')
    folder.chmod(0o755)
    closed.chmod(0o000)
    yield plain
    closed.chmod(0o755)
    shutil.rmtree(folder)


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Have no more rights than a user, if this is root."""
    is_root = os.geteuid() == 0
    os.seteuid(65534 if is_root else os.geteuid())
    try:
        yield
    finally:
        os.seteuid(0 if is_root else os.geteuid())


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "**", "*/*.jsonl", "*/a.jsonl", "closed/*"])
def test_a_folder_that_cannot_be_read_is_refused(as_nobody: Lab, pattern: str):
    as_nobody.pipeline["sources"]["web"]["jsonl"] = f"{as_nobody.inputs}/{pattern}"
    as_nobody.save()
    plan = read_plan(as_nobody.path)
    message = r"p\.yaml:\d+:\d+: .*closed.*permission denied"
    with nobody(), pytest.raises(UsageError, match=message):
        find_inputs(open_store("out"), plan.file.sources, 1 << 20)


def test_one_file_under_two_paths_is_read_once(plain: Lab):
    relative = os.path.relpath(plain.inputs, plain.folder)
    patterns = [f"{plain.inputs}/web*.jsonl", f"{relative}/web0.jsonl", f"{relative}/../in/*.jsonl"]
    plain.pipeline["sources"]["web"]["jsonl"] = patterns
    plain.run()
    [account] = plain.facts()["accounts"]
    assert account["num_read"] == 160


def test_numbers_follow_the_pipeline_and_not_the_past(lab: Lab):
    """Two sources share a text; the source that comes first keeps it."""
    lab.pipeline["stages"] = ["exact_dedup"]
    for name in ("web0", "books"):
        lab.write(f"{name}.jsonl", [{"id": name, "text": "the same words in both of the sources"}])
    (lab.inputs / "web1.jsonl").unlink()
    kept = []
    for _ in range(2):
        lab.run()
        edited = tree(lab.out)
        kept.append([row["source"] for row in lab.facts()["accounts"] if row["num_kept"]])
        shutil.rmtree(lab.out)
        lab.run()
        assert tree(lab.out) == edited
        lab.pipeline["sources"] = dict(reversed(lab.pipeline["sources"].items()))
    assert kept == [["web"], ["books"]]


NAMES = st.lists(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=30, unique=True),
    min_size=1, max_size=5,
)  # fmt: skip


def flat(sources: list[list[str]]) -> list[tuple[str, str]]:
    return [(f"s{i}", name) for i, names in enumerate(sources) for name in sorted(names)]


@given(NAMES, st.integers(10, 1 << 23))
def test_numbers_ascend_within_what_there_is_room_for(sources, most):
    names = flat(sources)
    numbers = number(names, most)
    assert numbers[0] >= 0
    assert numbers == sorted(set(numbers))
    assert numbers[-1] <= most or numbers == list(range(len(names)))


@given(NAMES, st.integers(0, 4))
def test_a_file_that_comes_last_in_its_source_moves_no_other(sources, which):
    before = dict(zip(flat(sources), number(flat(sources), 1 << 30), strict=True))
    sources[which % len(sources)].append("z")
    after = dict(zip(flat(sources), number(flat(sources), 1 << 30), strict=True))
    assert before.items() <= after.items()


def test_a_file_in_the_middle_moves_few_others():
    dice, moved = random.Random(0), 0
    for _ in range(200):
        names = [("web", f"{n:08x}") for n in sorted(dice.sample(range(1 << 32), 101))]
        after = dict(zip(names, number(names, MAX_ORDINAL), strict=True))
        del names[dice.randrange(101)]
        before = dict(zip(names, number(names, MAX_ORDINAL), strict=True))
        moved += sum(after[name] != before[name] for name in before)
    assert 2 * 200 < moved < 8 * 200


def test_cuts_are_remembered_and_damage_to_them_costs_work_only(lab: Lab, monkeypatch):
    lab.save()
    cut: list[str] = []
    real = Jsonl.slices
    monkeypatch.setattr(
        Jsonl, "slices", lambda self, file, size: cut.append(file.name) or real(self, file, size)
    )
    sources, store = read_plan(lab.path).file.sources, open_store(str(lab.out))
    first = find_inputs(store, sources, 15_000)
    assert len(cut) == 3
    save_inputs(store, first, sources, 15_000)
    content = store.read("inputs.json")
    assert find_inputs(store, sources, 15_000) == first
    assert len(cut) == 3
    assert find_inputs(store, sources, 9_000) != first
    cut.clear()
    for place in range(0, 8 * len(content), 17):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        store.put("inputs.json", bytes(damaged))
        assert find_inputs(store, sources, 15_000) == first
    for damaged in (b"", b"{", b"[]", dump_checked({}), dump_checked({"format": 2, "cuts": 1})):
        store.put("inputs.json", damaged)
        assert find_inputs(store, sources, 15_000) == first
    assert cut


BAD_CUTS = [
    [[0, 60, 60, None]],
    [[0, 60, 60, None], [61, 100, 39, None]],
    [[0, 60, 60, None], [59, 100, 41, None]],
    [[1, 100, 99, None]],
    [[0, 101, 101, None]],
    [[0, 50, 50, None], [50, 50, 0, None], [50, 100, 50, None]],
    [[0, 60, 60, 100], [60, 100, 40, 101]],
    [[0, 60, 60, None], [60, 100, 40, 100]],
    [[0, 0, 0, None]],
    [],
]


@pytest.mark.parametrize("cut", BAD_CUTS)
def test_a_cut_that_leaves_something_out_is_not_used(lab: Lab, monkeypatch, cut):
    path = lab.inputs / "web0.jsonl"
    path.write_bytes(b"\n" * 100)
    lab.pipeline["sources"] = {"web": {"jsonl": str(path)}}
    lab.pipeline["stages"] = []
    lab.save()
    sources, store = read_plan(lab.path).file.sources, open_store(str(lab.out))
    good = find_inputs(store, sources, 60)
    save_inputs(store, good, sources, 60)
    fields = load_checked(store.read("inputs.json"), "")
    fields["cuts"] = dict.fromkeys(fields["cuts"], cut)
    store.put("inputs.json", dump_checked(fields))
    assert find_inputs(store, sources, 60) == good
    pieces = [Slice(*one) for one in cut]
    monkeypatch.setattr(Jsonl, "slices", lambda self, file, size: pieces)
    with pytest.raises(DataError, match=r"web0\.jsonl: the source 'jsonl' cuts it into \d+ slices"):
        find_inputs(store, sources, 60)


def test_a_plan_that_fits_another_footer_is_refused(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), path, row_group_size=1)
    source = Parquet(paths=(str(path),))
    file = InputFile(0, "web", str(path), "a.parquet", path.stat().st_size, "")
    assert [s.whole for s in source.slices(file, 1)] == [3, 3, 3]
    with pytest.raises(DataError, match="3 row groups, 4 were planned"):
        list(source.read(file, Slice(0, 3, 3, 4), 100))


def hub_names(lab: Lab, **params: str) -> list[str]:
    lab.pipeline["sources"] = {"web": {"huggingface": str(lab.inputs), **params}}
    lab.save()
    plan = read_plan(lab.path)
    return [file.name for file in find_inputs(open_store("x"), plan.file.sources, 1 << 20).files]


def test_a_dataset_with_files_that_were_not_fetched_is_refused(plain: Lab):
    (plain.inputs / "test.jsonl").symlink_to(".git/annex/objects/gone")
    assert hub_names(plain, pattern="web*") == ["web0.jsonl", "web1.jsonl"]
    (plain.inputs / "web2.jsonl").symlink_to("../../blobs/gone")
    with pytest.raises(UsageError, match=r"p\.yaml:.*web2\.jsonl' is a link that leads nowhere"):
        hub_names(plain, pattern="web*")


def test_a_dataset_in_folders_that_are_links_is_read(plain: Lab):
    (plain.folder / "far").mkdir()
    (plain.inputs / "web1.jsonl").rename(plain.folder / "far" / "web1.jsonl")
    (plain.inputs / "data").symlink_to(plain.folder / "far")
    assert hub_names(plain, split="all") == ["books.jsonl", "data/web1.jsonl", "web0.jsonl"]


def test_a_dataset_with_a_folder_that_cannot_be_read_is_refused(as_nobody: Lab):
    with nobody(), pytest.raises(UsageError, match="closed' cannot be read: permission denied"):
        Huggingface(paths=(str(as_nobody.inputs),)).find()
