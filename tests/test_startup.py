"""What commands that only look at runs load, and what is remembered of code between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corpuskit import closure
from corpuskit.engine import fingerprint, registry

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numba", "spacy", "datatrove", "torch", "fasttext", "tokenizers", "datasketch")
PIPELINE = """
output: out
sources:
  web: {jsonl: "in.jsonl", id_column: id}
stages:
  - gopher_quality: {words: whitespace, min_words: 2}
  - exact_dedup
  - minhash_dedup
  - pii
  - tokenize: {tokenizer: tokenizer.json}
  - pack: {seq_len: 128}
executor: {workers: 1}
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pipeline that was run in part."""
    folder = tmp_path_factory.mktemp("startup")
    (folder / "p.yaml").write_text(PIPELINE)
    (folder / "in.jsonl").write_text('{"id": "a", "text": "some words of a text"}\n' * 3)
    shutil.copy(ROOT / "sample_data" / "tokenizer.json", folder)
    call(folder, "run", "p.yaml", "--quiet", "--until", "gopher_quality")
    return folder


def call(folder: Path, *arguments: str) -> set[str]:
    """Call the command line in a fresh process; return the top-level modules that it loaded."""
    program = """
import sys
from corpuskit.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print("LOADED", *{name.partition(".")[0] for name in sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("status", "out"), ("why", "out", "a"), ("plan", "p.yaml"), ("card", "out")],
    ids=" ".join,
)  # fmt: skip
def test_commands_that_look_load_nothing_heavy(
    run_folder: Path, arguments: tuple[str, ...]
) -> None:
    assert call(run_folder, *arguments) & set(HEAVY) == set()


@pytest.mark.slow
def test_a_report_loads_no_more_than_kernels(run_folder: Path) -> None:
    # Those find the personal data that it masks.
    assert call(run_folder, "report", "out") & set(HEAVY) <= {"numba"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is remembered."""
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


STAGE = "gopher_quality"


def digest_of_new_process() -> str:
    """The digest as a new process would find it."""
    closure.forget()
    fingerprint.code_digest.cache_clear()
    return fingerprint.code_digest(STAGE)


def from_scratch() -> str:
    """The digest by its definition."""
    files = closure.closure(registry.path(STAGE))
    parsed = [[closure.label(file), closure._parsed(file.read_bytes())] for file in files]
    return fingerprint._hash(sorted([label, source.digest] for label, source in parsed))


def test_what_files_say_is_remembered_between_processes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest_of_new_process()
    assert first == from_scratch()
    assert len(list(cache.glob("sources-*.json"))) == 1
    monkeypatch.setattr(closure, "_parsed", None)  # it is not asked again
    assert digest_of_new_process() == first


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b"{}", None], ids=str)
def test_a_damaged_memory_is_made_again(cache: Path, content: bytes | None) -> None:
    first = digest_of_new_process()
    [place] = cache.glob("sources-*.json")
    whole = place.read_bytes()
    place.write_bytes(whole[:-3] + b"xyz" if content is None else content)
    assert digest_of_new_process() == first
    assert place.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CORPUSKIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert digest_of_new_process() == from_scratch()


def test_processes_that_start_at_once_agree(cache: Path) -> None:
    program = f"""
from corpuskit.engine.fingerprint import code_digest
print(code_digest({STAGE!r}))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    found = {one.communicate()[0].decode().strip() for one in started}
    assert found == {from_scratch()}
    assert len(list(cache.iterdir())) == 1


# ---------------------------------------------------------------- modules, one by one


def loaded(folder: Path, *arguments: str) -> set[str]:
    """Call the command line as a user does; return the modules that it loaded, not deferred."""
    program = """
import sys
from corpuskit.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
kept = {name for name, module in sys.modules.items()
        if "_deferred" not in vars(module) or "_loaded" in vars(module)}
print("LOADED", *kept)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


FOR_RUNS = {
    "corpuskit.engine.executors.local", "corpuskit.engine.task", "corpuskit.engine.warmup",
    "pyarrow.compute", "pyarrow.parquet", "pyarrow.fs", "asyncio", "ssl", "multiprocessing",
}  # fmt: skip


@pytest.mark.slow
def test_a_plan_loads_nothing_that_only_runs_need(run_folder: Path) -> None:
    only_runs = FOR_RUNS | {"corpuskit.engine.executors.slurm", "corpuskit.engine.monitor"}
    assert loaded(run_folder, "plan", "p.yaml") & only_runs == set()


@pytest.mark.slow
def test_help_loads_neither_numpy_nor_pydantic(run_folder: Path) -> None:
    heavy = {"numpy", "pyarrow", "pydantic", "rich", "yaml", "corpuskit.engine.plan"}
    assert loaded(run_folder, "run", "--help") & heavy == set()


@pytest.mark.slow
def test_a_small_run_starts_no_worker_and_loads_nothing_that_only_compilers_need(
    run_folder: Path,
) -> None:
    dropping_none = ("--set", "gopher_quality.min_stop_words=0")
    arguments = ("run", "p.yaml", "--quiet", "--workers", "0", *dropping_none)
    loaded(run_folder, *arguments)  # compiles what is missing
    modules = loaded(run_folder, *arguments, "--set", "output=again")
    compilers = {"numba.typed.typeddict", "numba.np.arraymath", "scipy.linalg", "awkward"}
    assert "numba" in modules
    assert modules & {"corpuskit.engine.executors.local", "rich.table", *compilers} == set()


def test_a_deferred_module_is_loaded_once_by_whoever_asks_first() -> None:
    program = """
from corpuskit.cpu import start_quickly
start_quickly()
import pyarrow.compute as pc, sys, threading
import pyarrow.compute  # the second import does not load it, either
assert "equal" not in vars(pc)
assert not hasattr(pc, "__wrapped__") and "equal" not in vars(pc)
results = []
threads = [threading.Thread(target=lambda: results.append(pc.equal)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(results) == 8 and len(set(results)) == 1
try:
    pc.no_such_function
except AttributeError as error:
    print(error, sys.modules["pyarrow.compute"] is pc, pc.equal is results[0])
"""
    out = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT)
    assert out == "module 'pyarrow.compute' has no attribute 'no_such_function' True True\n"
