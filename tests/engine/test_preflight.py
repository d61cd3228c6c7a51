"""What a run needs is known, or labelled as a guess, and compared with what there is."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from corpuskit.engine.phase import PhaseWork, phase_statuses
from corpuskit.engine.pipeline import check_phase, open_run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.resources import (
    AvailableResources,
    _group_left,
    all_memory,
    available_resources,
    estimate_resources,
    find_problems,
    parse_memory,
    peak_disk,
    preflight,
)
from corpuskit.engine.reuse import EarlierUse
from corpuskit.errors import TaskError, UsageError
from tests.engine.conftest import ROOT, corpus

PLENTY = AvailableResources(1 << 50, "this machine", 2, 1 << 50, "the disk")


def room(**fields) -> AvailableResources:
    return dataclasses.replace(PLENTY, **fields)


def only(lab, source: dict) -> None:
    """Make a source the only one."""
    lab.pipeline["sources"] = {"web": source}
    lab.stage("mix")["weights"] = {"web": 1}


def planned(lab, *overrides: str):
    """Return the run directory of a lab's plan."""
    lab.save()
    return open_run(read_plan(lab.path, overrides))


def needs(lab, *overrides: str) -> dict:
    return {one.phase: one for one in estimate_resources(planned(lab, *overrides), 0)}


def refused(lab, *overrides: str, **fields) -> str:
    run = planned(lab, *overrides)
    return " ".join(find_problems(run, estimate_resources(run, 0), room(**fields)))


# ---------------------------------------------------------------- how much there is to read


def test_the_text_of_parquet_is_known_from_footers(lab):
    texts = [document["text"] for document in corpus(400, 7)]
    pq.write_table(pa.table({"text": texts}), lab.inputs / "a.parquet", use_dictionary=False)
    only(lab, {"parquet": str(lab.inputs / "a.parquet")})
    found = needs(lab)["gopher_quality"]
    size = sum(len(text.encode()) for text in texts)
    assert found.is_exact
    assert size <= found.text_bytes <= size + 8 * len(texts) + 200
    assert not found.is_counted


def test_the_text_of_compressed_files_is_an_estimate(lab):
    plain = needs(lab)["gopher_quality"].text_bytes
    for path in list(lab.inputs.iterdir()):
        packed = zstandard.ZstdCompressor().compress(path.read_bytes())
        path.with_suffix(".jsonl.zst").write_bytes(packed)
        path.unlink()
    for source in lab.pipeline["sources"].values():
        source["jsonl"] += ".zst"
    found = needs(lab)["gopher_quality"]
    assert not found.is_exact
    assert plain / 2 < found.text_bytes < 2 * plain


def test_behind_an_unfinished_phase_nothing_counts_as_dropped(lab):
    found = needs(lab)
    sizes = {one.text_bytes for one in found.values()}
    assert len(sizes) == 1
    assert not any(one.is_exact for one in found.values())


def test_behind_finished_phases_documents_are_counted(finished):
    run = open_run(read_plan(finished.path))
    first = next(phase for phase in run.plan.phases if phase.name == "pack")
    parts = run.seal(first.base).by_role("documents")
    found = estimate_resources(run, first.index)[0]
    assert (found.phase, found.is_counted, found.is_exact) == ("pack", True, True)
    assert found.documents == sum(part.rows for part in parts)
    assert found.text_bytes == sum(part.text_bytes for part in parts)


def test_packed_rows_are_measured_once_they_exist(finished):
    run = open_run(read_plan(finished.path))
    index = {phase.name: phase.index for phase in run.plan.phases}
    size = sum(part.size_bytes for part in run.seal(index["pack"]).by_role("packed"))
    tokens = sum(part.size_bytes for part in run.seal(index["shuffle.gather"]).by_role("tokens"))
    found = {one.phase: one for one in estimate_resources(run, index["shuffle.scatter"])}
    assert size <= found["shuffle.scatter"].disk_bytes < 1.1 * size
    assert tokens / 2 < found["shuffle.gather"].disk_bytes < 2 * tokens


def test_what_this_directory_measured_counts_more_than_declared_rates(lab):
    run = planned(lab)
    text = estimate_resources(run, 0)[0].text_bytes
    run.earlier_use["gopher_quality"] = EarlierUse(
        700.0, 2_000_000, size_bytes=100_000, kept_bytes=0
    )
    found = estimate_resources(run, 0)[0]
    assert found.is_measured
    assert found.disk_bytes == 100_000 * text // 2_000_000
    assert found.cpu_seconds == pytest.approx(700 * text / 2_000_000, abs=10)


def test_what_is_done_of_a_phase_needs_no_disk(lab):
    run = planned(lab)
    whole, half = estimate_resources(run, 0, 1.0)[0], estimate_resources(run, 0, 0.5)[0]
    assert half.disk_bytes == whole.disk_bytes // 2
    assert half.memory_bytes == whole.memory_bytes


def test_the_plan_prints_needs_and_room(lab):
    lab.save()
    printed = lab.cli("plan", str(lab.path)).stdout
    assert "memory of a worker" in printed
    assert "this machine" in printed
    assert "Would be refused" not in printed
    rows = json.loads(lab.cli("plan", str(lab.path), "--json").stdout)
    assert all(row["need"]["memory_bytes"] > 0 for row in rows)


# ---------------------------------------------------------------- memory


def test_memory_that_cannot_hold_the_workers_is_refused_with_the_number(lab):
    one = max(needs(lab).values(), key=lambda need: need.memory_bytes)
    error = refused(lab, memory_bytes=all_memory(one, 3) + 1, workers=8)
    assert error.startswith(f"phase {one.phase}: 8 workers need ~")
    assert "this machine has" in error
    assert "Set executor.workers to 3, or lower cell_bytes" in error


def test_memory_that_holds_not_even_one_worker_is_refused(lab):
    assert "Not even one worker fits" in refused(lab, memory_bytes=100_000_000, workers=2)


def test_larger_cells_need_more_memory(lab):
    lab.write("web9.jsonl", corpus(800, 3))
    small, large = needs(lab), needs(lab, "cell_bytes=100000000")
    assert large["pack"].memory_bytes > small["pack"].memory_bytes


def test_clusters_that_one_task_cannot_hold_are_refused_with_what_to_set(lab):
    lab.write("web9.jsonl", corpus(800, 3))
    run = planned(lab)
    whole = estimate_resources(run, 0)
    grown = [dataclasses.replace(one, task_bytes=one.task_bytes * 10**7) for one in whole]
    error = " ".join(find_problems(run, grown, PLENTY))
    worst = max(one.task_bytes for one in grown)
    assert error.startswith("phase minhash_dedup.cluster: ")
    assert f"Set rounds of minhash_dedup to 8, or task_memory_bytes to {worst} or more." in error


def test_the_memory_of_a_slot_is_what_slurm_gives_it(lab):
    run = planned(lab, "executor.kind=slurm", "executor.slurm.mem=700M", "executor.workers=2")
    found = available_resources(run)
    assert (found.memory_bytes, found.memory_name) == (700 << 20, "executor.slurm.mem")
    assert "executor.slurm.mem has 734 MB" in " ".join(
        find_problems(run, estimate_resources(run, 0), found)
    )


def test_the_memory_of_a_ray_task_is_what_it_reserves(lab):
    run = planned(lab, "executor.kind=ray", "executor.ray.memory=300000000")
    found = available_resources(run)
    assert found.workers == 1
    assert "a worker needs" in " ".join(find_problems(run, estimate_resources(run, 0), found))


@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_what_is_not_known_is_not_checked(lab, kind):
    run = planned(lab, f"executor.kind={kind}", "executor.ray.address=ray://head:10001")
    found = available_resources(run)
    assert found.memory_bytes is None
    assert not find_problems(run, estimate_resources(run, 0), found)


@pytest.mark.parametrize(("text", "size"), [("64", 64 << 20), ("3G", 3 << 30), ("5K", 5 << 10)])
def test_slurm_counts_memory_in_megabytes(text, size):
    assert parse_memory(text) == size


def test_the_limit_of_the_control_group_counts(tmp_path):
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1000000\n")
    (inner.parent / "memory.current").write_text("700000\n")
    (inner.parent / "memory.stat").write_text("anon 5\ninactive_file 100000\nactive_file 50000\n")
    assert _group_left(tmp_path, "0::/job/step\n") == 450_000


def test_the_limit_of_an_old_control_group_counts_inside_a_container(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("2000\n")
    (folder / "memory.usage_in_bytes").write_text("1500\n")
    (folder / "memory.stat").write_text("total_inactive_file 10\ntotal_active_file 0\n")
    groups = "5:cpu:/docker/x\n4:memory:/docker/x\n"
    assert _group_left(tmp_path, groups) == 510
    (folder / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    assert _group_left(tmp_path, groups) is None


def test_the_quickstart_fits_two_gigabytes(monkeypatch):
    monkeypatch.chdir(ROOT)
    run = open_run(read_plan("pipelines/quickstart.yaml"))
    assert not find_problems(run, estimate_resources(run, 0), room(memory_bytes=1_700_000_000))


# ---------------------------------------------------------------- disk


def test_a_disk_that_cannot_hold_the_run_is_refused_with_the_number(lab):
    error = refused(lab, disk_bytes=10_000, disk_name="the file system of out")
    assert "the run will write up to ~" in error
    assert "the file system of out has 10 KB free" in error


def test_what_a_phase_left_is_given_back_when_it_is_sealed_again(lab):
    found = estimate_resources(planned(lab), 0)
    again = [dataclasses.replace(one, freed_bytes=one.disk_bytes) for one in found]
    assert peak_disk(found)[0] == sum(one.disk_bytes for one in found)
    assert peak_disk(again)[0] == max(one.disk_bytes for one in found)


def test_scratch_is_checked_where_the_run_is_in_an_object_store(lab):
    error = refused(lab, disk_bytes=None, scratch_bytes=1000, scratch_name="/tmp (TMPDIR)")
    assert "/tmp (TMPDIR) has 1 KB free. Set TMPDIR" in error


@pytest.mark.slow
def test_a_full_disk_is_refused_before_anything_runs_unless_forced(lab, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        lab.pipeline["output"] = str(small / "out")
        error = lab.run(code=2).stderr
        assert "the run will write up to" in error
        assert "--force runs it all the same" in error
        assert not list(Path(lab.out).rglob("*.parquet"))
        forced = lab.run_apart("--force", code=1).stderr
        assert "forced, although: phase" in forced
        assert "no space left on device" in forced.lower()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


# ---------------------------------------------------------------- when it is checked


def test_nothing_runs_when_it_cannot_fit(lab):
    run = planned(lab)
    work = PhaseWork(run, run.plan.phases[0])
    with pytest.raises(UsageError, match="Nothing was run; --force"):
        check_phase(work, available=room(disk_bytes=1000))
    assert check_phase(work, available=PLENTY) == ""


def test_force_overrides_and_says_so(lab):
    run = planned(lab)
    work = PhaseWork(run, run.plan.phases[0])
    note = check_phase(work, force=True, available=room(memory_bytes=1000))
    assert note.startswith("forced, although: phase ")


def test_it_is_checked_again_when_a_phase_has_kept_more_than_expected(lab):
    only(lab, {"jsonl": str(lab.inputs / "big.jsonl.zst")})
    documents = [{"text": one["text"] * 40} for one in corpus(50, 5) if len(one["text"]) > 600]
    lines = "".join(json.dumps(one) + "\n" for one in documents).encode()
    packed = zstandard.ZstdCompressor(level=9).compress(lines)
    assert len(lines) > 20 * len(packed)
    (lab.inputs / "big.jsonl.zst").write_bytes(packed)
    run = planned(lab)
    enough = room(disk_bytes=peak_disk(estimate_resources(run, 0))[0])
    assert check_phase(PhaseWork(run, run.plan.phases[0]), available=enough) == ""
    lab.run("--until", "gopher_quality")
    PhaseWork(run, run.plan.phases[0]).finish()
    work = PhaseWork(run, run.plan.phases[1])
    with pytest.raises(TaskError, match="Finished phases are kept"):
        check_phase(work, is_started=True, available=enough)


def test_a_finished_run_needs_nothing(finished):
    run = open_run(read_plan(finished.path))
    found = preflight(run, phase_statuses(run))
    assert (found.estimates, found.problems) == ((), ())


@pytest.mark.parametrize("name", ["CORPUSKIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
def test_a_run_that_cannot_keep_kernels_is_not_begun(
    lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").touch()
    for variable in ("CORPUSKIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, str(tmp_path / "file" / "cache"))
    line = lab.run(code=2).stderr
    assert line.startswith(f"error: {tmp_path}/file/cache")
    assert "compiled kernels cannot be kept here: not a directory. Set XDG_CACHE_HOME" in line
    assert line.count("\n") == 1
    assert not lab.out.exists()


def test_deleted_shuffle_files_need_disk_only_until_they_were_read(lab):
    def most(choice: str) -> int:
        lab.pipeline["shuffle_files"] = choice
        return peak_disk(estimate_resources(planned(lab), 0))[0]

    kept, deleted = most("keep"), most("delete")
    assert 0 < deleted < kept
