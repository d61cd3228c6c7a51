"""Copies of checkpoints: complete or absent whenever a training dies; a new machine reads them.

benchmarks/train_kills.py --uploads has many more kills.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from corpuskit.storage import open_store
from corpuskit.train.record import find_damage, read_record
from corpuskit.train.upload import Uploads
from tests.train.test_checkpoints import flip, losses_of, work

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.storage import Store
    from corpuskit.train.settings import TrainSettings
    from tests.s3_server import S3Server

pytestmark = pytest.mark.slow

MODEL = {"dim": 32, "layers": 1, "heads": 4, "kv_heads": 2, "ffn_dim": 64}
STEPS = 12


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> str:
    return s3.make_bucket(tmp_path.name.replace("_", "-")[:50]) + "/trainings/one"


@pytest.fixture
def build(settings_for: Callable[..., TrainSettings], tmp_path: Path) -> Callable[..., Any]:
    """Build settings of a run that saves every second step and copies to the folder `copy`."""

    def of(name: str, upload: str = str(tmp_path / "copy"), **changes: Any) -> TrainSettings:
        checkpoint = {"every_steps": 2, "keep": 2, "upload": upload or None}
        fields = {"steps": STEPS, "model": MODEL, "checkpoint": checkpoint, **changes}
        return settings_for(tmp_path / name, **fields)

    return of


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def step_names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


def test_a_new_machine_goes_on_from_the_copy(tmp_path: Path, build: Any, run_ranks: Any) -> None:
    calm, begun, goes_on = build("calm", ""), build("a", steps=7), build("b")
    run_ranks(2, work, calm)
    run_ranks(2, work, begun)
    copy, first = tmp_path / "copy", Path(begun.output)
    assert names_in(copy) == names_in(first) == step_names(6, 7)
    for path in (first / "checkpoints").rglob("step-*/*"):
        assert (copy / path.relative_to(first)).read_bytes() == path.read_bytes()
    shutil.rmtree(first)  # the machine is gone
    ((told, error), (_, error_of_1)) = run_ranks(2, work, goes_on)
    assert (error, error_of_1) == ("", "")
    assert told[0].startswith("resume: step-00000007: ")
    assert told[1] == "settings_changed: since step-00000007: steps: 7, now 12"
    assert told[2].startswith(f"fetch: {copy}/checkpoints/step-00000007: ")
    assert losses_of(Path(goes_on.output)) == losses_of(Path(calm.output))  # of all 12 steps
    assert (copy / "run.json").read_bytes() == Path(goes_on.output, "run.json").read_bytes()
    assert names_in(copy) == step_names(10, 12)
    events = Path(goes_on.output, "events.jsonl").read_text()
    assert events.count('"event": "start"') == 2, "of both machines"


def test_what_the_rules_keep_here_they_keep_there(
    tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    copy = tmp_path / "copy"
    checkpoint = {"every_steps": 2, "keep": 1, "keep_every_steps": 6, "upload": str(copy)}
    for name, steps in (("a", 8), ("b", 12)):  # b has never seen step 6
        run_ranks(1, work, build(name, steps=steps, checkpoint=checkpoint))
        assert names_in(copy) == step_names(6, steps)
    assert names_in(tmp_path / "b") == step_names(12)


def test_the_copies_of_another_training_are_refused(build: Any, run_ranks: Any) -> None:
    run_ranks(1, work, build("a", steps=2))
    other = build("b", "", steps=2)
    run_ranks(1, work, other)
    ((_, error),) = run_ranks(1, work, build("b", steps=4))
    assert "has the checkpoints of another training (" in error
    assert len(losses_of(Path(other.output))) == 2, "nothing was run"


def test_a_damaged_copy_is_refused_by_name(tmp_path: Path, build: Any, run_ranks: Any) -> None:
    run_ranks(1, work, build("a", steps=4))
    newest = tmp_path / "copy" / "checkpoints" / "step-00000004"
    flip(shutil.copy(newest / "__0_0.distcp", tmp_path / "flipped"))
    shutil.move(tmp_path / "flipped", newest / "__0_0.distcp")
    ((_, error),) = run_ranks(1, work, build("b"))
    assert error.startswith(f"DataError: {newest}: the checkpoint is damaged: ")
    assert "Delete its train.json, to go on from the one before" in error
    (newest / "train.json").unlink()
    ((told, error),) = run_ranks(1, work, build("b", steps=4))
    assert (error, told[0].partition(": ")[0]) == ("", "resume")
    assert "step-00000002" in told[0]


def test_copies_follow_a_rollback(tmp_path: Path, build: Any, run_ranks: Any) -> None:
    settings = build("a", steps=4)
    run_ranks(1, work, settings)
    output, there = Path(settings.output), tmp_path / "copy" / "checkpoints"
    uploads = Uploads(settings)
    newest = output / "checkpoints" / "step-00000004"
    newest.rename(tmp_path / "later")
    uploads.forget_after()
    assert names_in(tmp_path / "copy") == step_names(2)
    # Taken again, with another content, while the copy of before could not be deleted.
    shutil.copytree(tmp_path / "later", there / newest.name)
    shutil.move(tmp_path / "later", newest)
    record = (newest / "train.json").read_bytes()
    retaken = record.replace(b'"step":4', b'"step": 4')
    (newest / "train.json").write_bytes(retaken)
    assert "train.json is not what was saved" in uploads.wait(), "its digest, so it is not copied"
    (newest / "train.json").write_bytes(record)
    (there / newest.name / "train.json").write_bytes(retaken)
    assert uploads.wait() == ""
    assert (there / newest.name / "train.json").read_bytes() == record
    # A copy that lacks the rows which this training skips by now is from before a rollback.
    (newest / "train.json").rename(tmp_path / "hidden")
    shutil.rmtree(newest)
    assert uploads.newest(2) is not None
    run = json.loads((output / "run.json").read_text())
    (output / "run.json").write_text(json.dumps(run | {"skips": [{"rows": [0, 8], "plan": ""}]}))
    assert uploads.newest(2) is None


def test_places_that_cannot_be_are_refused(build: Any) -> None:
    with pytest.raises(ValidationError, match="ftp:// is not supported"):
        build("a", "ftp://host/copies")
    with pytest.raises(ValidationError, match="is the folder of output"):
        build("a", build("a").output)
    with pytest.raises(ValidationError, match="Set a folder, and checkpoint"):
        type(build("a")).model_validate(build("a").model_dump() | {"output": "s3://bucket/train"})


class Machine:
    """A process that trains; made by a server that has used no object storage itself."""

    def __init__(self, settings: TrainSettings) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["corpuskit.train.loop", "tests.train.test_upload"])
        self._hear, say = context.Pipe(duplex=False)
        environ = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        self.process = context.Process(target=_train, args=(settings, environ, say))
        self.process.start()
        say.close()

    def finish(self) -> tuple[list[str], str]:
        told = self._hear.recv()
        self.process.join()
        return told  # type: ignore[no-any-return]

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _train(settings: TrainSettings, environ: dict[str, str], say: Any) -> None:
    os.environ.update(environ)
    say.send(work(settings))
    os._exit(0)


def complete_copies(store: Store, folder: Path) -> set[str]:
    """Bring every complete copy, and check it against its digests; return their names."""
    shutil.rmtree(folder, ignore_errors=True)
    objects = store.list("checkpoints")
    complete = {name.split("/")[1] for name in objects if name.endswith("/train.json")}
    for name in objects:
        if name.split("/")[1] in complete:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.read(name))
    for name in complete:
        place = folder / "checkpoints" / name
        assert find_damage(place, read_record(place).files) == "", name
    return complete


def kill_uploads(
    server: S3Server, settings: TrainSettings, losses: list[float], num: int, rng: random.Random
) -> Counter[str]:
    """Kill a training `num` times while it copies; check the copies after each kill.

    In every second case the machine is lost, too. Returns where the kills fell.
    """
    assert settings.checkpoint.upload
    store, where = open_store(settings.checkpoint.upload), Counter[str]()
    output = Path(settings.output)
    newest = ""
    while where.total() < num:
        server.requests()
        machine, wanted = Machine(settings), rng.randrange(4, 60)
        while machine.process.is_alive():
            sent = server.requests(forget=False)
            if sum(method in ("PUT", "POST", "DELETE") for method, _ in sent) >= wanted:
                break
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.02))
        machine.kill()
        copies = complete_copies(store, output.with_name("checked"))
        unfinished = {name.split("/")[1] for name in store.list("checkpoints")} - copies
        kind = "in a copy or deletion" if unfinished else "between two"
        assert max(copies, default="") >= newest, "a complete copy was lost"
        newest = max(copies, default="")
        if len(losses_of(output)) == len(losses):  # it had finished: from the start
            store.delete(store.list(""))
            shutil.rmtree(output)
            newest = ""
            continue
        assert losses_of(output) == losses[: len(losses_of(output))]
        where[kind] += 1
        if where.total() % 2:
            shutil.rmtree(output)
    return where


def test_a_kill_leaves_complete_copies_or_none(
    s3: S3Server, bucket: str, tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    every = {"every_steps": 1, "keep": 2}
    calm = build("calm", checkpoint=every)
    run_ranks(1, work, calm)
    losses = losses_of(Path(calm.output))
    settings = build("train", checkpoint=every | {"upload": bucket})
    seed = random.randrange(1 << 32)
    where = kill_uploads(s3, settings, losses, 6, random.Random(seed))
    assert where.total() == 6, f"seed {seed}"
    _, error = Machine(settings).finish()
    assert error == "", f"seed {seed}"
    assert losses_of(Path(settings.output)) == losses
    copies = complete_copies(open_store(bucket), tmp_path / "checked")
    assert sorted(copies) == step_names(STEPS - 1, STEPS) == names_in(Path(settings.output))


def test_a_server_that_refuses_does_not_end_the_training(
    s3: S3Server, bucket: str, build: Any
) -> None:
    settings = build("train", bucket, steps=8)
    s3.fail("403", "PUT", r"/train\.json", num=1)
    told, error = Machine(settings).finish()
    assert error == ""
    failed = [line for line in told if line.startswith("upload_failed: ")]
    assert len(failed) == 1
    assert "403" in failed[0]
    assert "Tried again after the next save" in failed[0]
    assert step_names(6, 8) == sorted(
        complete_copies(open_store(bucket), Path(settings.output, "c"))
    )


def test_the_end_of_a_run_that_could_not_copy_is_a_failure(
    s3: S3Server, bucket: str, build: Any
) -> None:
    settings = build("train", bucket, steps=4)
    s3.fail("403", "PUT", r"/train\.json", num=99)
    _, error = Machine(settings).finish()
    assert error.startswith("CorpuskitError: checkpoint.upload: ")
    assert "run the same command again to copy them" in error
    assert len(losses_of(Path(settings.output))) == 4
    s3.calm()
    _, error = Machine(settings).finish()
    assert error == ""
    assert step_names(2, 4) == sorted(
        complete_copies(open_store(bucket), Path(settings.output, "c"))
    )
