"""A checkpoint is what was saved, or it is passed over or refused, by name.

tests/faults/checkpoints.py damages many more, at random.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import xxhash
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from corpuskit.errors import CorpuskitError
from corpuskit.loader.stream import StreamingLoader
from corpuskit.train.attention import lay_out
from corpuskit.train.checkpoint import Checkpoints, DigestedFiles
from corpuskit.train.loop import main, train
from corpuskit.train.metrics import Event
from corpuskit.train.model import Decoder, token_losses
from corpuskit.train.parallel import join
from corpuskit.train.record import held_out_losses, read_record
from corpuskit.train.settings import ModelShape
from tests.train.test_evaluation import Fixed

if TYPE_CHECKING:
    from collections.abc import Callable

    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow

STEPS, STOPPED = 8, 6
NEWEST, BEFORE = "step-00000006", "step-00000004"


@pytest.fixture(scope="module")
def build(settings_for: Callable[..., TrainSettings]) -> Callable[..., TrainSettings]:
    """Build settings of a run that keeps the checkpoints of steps 2, 4, 6 and 8."""
    return lambda output, **changes: settings_for(
        output, **{"checkpoint": {"every_steps": 2, "keep": 9, "background": False}, **changes}
    )


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, build: Any, run_ranks: Callable[..., Any]
) -> Path:
    """The output of two ranks that stopped after 6 of 8 steps."""
    output = tmp_path_factory.mktemp("stopped") / "train"
    run_ranks(2, work, build(output, steps=STOPPED))
    return output


@pytest.fixture(scope="module")
def losses(
    tmp_path_factory: pytest.TempPathFactory, stopped: Path, build: Any, run_ranks: Any
) -> list[float]:
    """Those of the run when it goes on undisturbed."""
    output = shutil.copytree(stopped, tmp_path_factory.mktemp("calm") / "train")
    run_ranks(2, work, build(output))
    return losses_of(output)


@pytest.fixture
def output(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return shutil.copytree(stopped, tmp_path / "train")


def work(settings: TrainSettings) -> tuple[list[str], str]:
    """Train in this rank; return the events that were told, and the error that ended it."""
    told: list[str] = []
    try:
        train(
            settings,
            join(settings),
            lambda what: told.append(str(what)) if isinstance(what, Event) else None,
        )
    except CorpuskitError as error:
        return told, f"{type(error).__name__}: {error}"
    return told, ""


def losses_of(output: Path) -> list[float]:
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def swap_shard(checkpoints: Path) -> None:
    shutil.copyfile(checkpoints / BEFORE / "__1_0.distcp", checkpoints / NEWEST / "__1_0.distcp")


def swap_record(checkpoints: Path) -> None:
    shutil.copyfile(checkpoints / BEFORE / "train.json", checkpoints / NEWEST / "train.json")


def rename(checkpoints: Path) -> None:
    (checkpoints / NEWEST).rename(checkpoints / "step-00000099")


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a shard of another step": (swap_shard, "__1_0.distcp is not what was saved: its digest"),
    "a record of another step": (swap_record, "train.json is of step 4: the folder was renamed"),
    "another name": (rename, "train.json is of step 6: the folder was renamed"),
    "a flipped bit of weights": (
        lambda folder: flip(folder / NEWEST / "__0_0.distcp"),
        "__0_0.distcp is not what was saved: its digest differs",
    ),
    "a missing record": (
        lambda folder: (folder / NEWEST / "train.json").unlink(),
        "train.json is missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_by_name(
    name: str, output: Path, losses: list[float], build: Any, run_ranks: Any
) -> None:
    damage, problem = DAMAGE[name]
    damage(output / "checkpoints")
    damaged = max(path.name for path in (output / "checkpoints").iterdir())
    ((told, error), (told_by_1, _)) = run_ranks(2, work, build(output))
    assert (error, told_by_1) == ("", [])
    assert told[0].startswith(f"damaged_checkpoint: {damaged} is damaged: {problem}")
    assert f"Continuing from {BEFORE}; the damaged one is kept as {damaged}.damaged-N" in told[0]
    assert told[1].startswith(f"resume: {BEFORE}: ")
    assert losses_of(output) == losses
    names = [f"step-{step:08d}" for step in (2, 4, 6, 8)]
    found = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert found == sorted([*names, f"{damaged}.damaged-1"])
    if damage is rename:  # one of them: what is left is the same for all
        ((told, error),) = run_ranks(1, work, build(output))
        assert [line.partition(":")[0] for line in told] == ["resume"], "it is said once"


def test_nothing_is_begun_anew_when_all_are_damaged(
    output: Path, build: Any, run_ranks: Any
) -> None:
    for shard in (output / "checkpoints").glob("*/__0_0.distcp"):
        flip(shard)
    before = sorted(output.rglob("*"))
    outcomes = run_ranks(2, work, build(output))
    assert [told for told, _ in outcomes] == [[], []]
    for _, error in outcomes:
        assert error.startswith(
            f"DataError: {output}/checkpoints/{NEWEST}: the checkpoint is damaged: __0_0.distcp is "
            "not what was saved: its digest differs. No undamaged one is left: restore "
        )
    assert [path for path in sorted(output.rglob("*")) if "heartbeats" not in path.parts] == [
        path for path in before if "heartbeats" not in path.parts
    ]


def test_a_checkpoint_of_another_training_is_refused_by_name(
    output: Path, tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    other = build(tmp_path / "other", steps=STEPS, seed=1)
    run_ranks(1, work, other)
    theirs = Path(other.output, "checkpoints", "step-00000008")
    shutil.copytree(theirs, output / "checkpoints" / theirs.name)
    ((told, error),) = run_ranks(1, work, build(output))
    assert told == []
    assert error.startswith(
        f"UsageError: {output}/checkpoints/{theirs.name}: the checkpoint is of another training ("
    )


def test_a_checkpoint_copied_to_a_new_output_goes_on(
    output: Path, tmp_path: Path, losses: list[float], build: Any, run_ranks: Any
) -> None:
    new = tmp_path / "new"
    shutil.copytree(output / "checkpoints" / NEWEST, new / "checkpoints" / NEWEST)
    ((told, error), _) = run_ranks(2, work, build(new))
    assert error == ""
    assert told[0].startswith(f"resume: {NEWEST}: ")
    assert losses_of(new) == losses[STOPPED:]
    assert json.loads((new / "run.json").read_text()) == json.loads(
        (output / "run.json").read_text()
    )


def test_a_state_of_another_plan_is_refused_with_the_checkpoint(
    output: Path, run_dir: Path, tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    other = shutil.copytree(run_dir, tmp_path / "run")
    plan = json.loads((other / "mix" / "plan.json").read_text())
    plan["seed"] = 1
    plan["stages"][0]["weights"] = {"web": 1, "books": 1}
    from corpuskit.loader.index import plan_hash
    from corpuskit.storage import digest_file

    plan["plan_hash"] = plan_hash(plan, digest_file(other / "mix" / "index.parquet"))
    (other / "mix" / "plan.json").write_text(json.dumps(plan))
    ((_, error),) = run_ranks(1, work, build(output, data=str(other)))
    assert error.startswith(f"UsageError: {output}/checkpoints/{NEWEST}: loader state: ")


def test_the_record_names_every_file_with_its_digest(stopped: Path) -> None:
    for folder in (stopped / "checkpoints").iterdir():
        record = read_record(folder)
        assert record.step == int(folder.name[5:])
        assert record.run == json.loads((stopped / "run.json").read_text())["id"]
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        content = files.pop("train.json")
        assert sorted(files) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
        assert record.files == {
            name: [len(stored), xxhash.xxh3_128_hexdigest(stored)] for name, stored in files.items()
        }
        body, _, digest = content.rpartition(b',"digest":"')
        assert digest.decode() == f'{xxhash.xxh3_128_hexdigest(body)}"}}'


def test_what_is_written_is_in_the_file_when_torch_syncs_it(tmp_path: Path) -> None:
    # As torch writes `.metadata`: pickle leaves up to 8 kB in the buffer, and fsync syncs the file.
    files = DigestedFiles()
    with files.create_stream(tmp_path / "new", "wb") as stream:
        stream.write(b"step" * 100)
        os.fsync(stream.fileno())
        assert (tmp_path / "new").stat().st_size == 400
        stream.write(memoryview(bytearray(10_000)))
    files.rename(tmp_path / "new", tmp_path / "final")
    content = (tmp_path / "final").read_bytes()
    assert files.written == {"final": (10_400, xxhash.xxh3_128_hexdigest(content))}


def test_the_newest_whole_one_of_so_many_steps(output: Path, build: Any, run_ranks: Any) -> None:
    flip(output / "checkpoints" / BEFORE / "__1_0.distcp")
    found = run_ranks(2, _whole_ones, build(output))
    assert found[0] == found[1] == [6, 6, 6, 2, 2, 2]


def _whole_ones(settings: TrainSettings) -> list[int]:
    checkpoints = Checkpoints(settings, join(settings))
    found = [checkpoints.newest_verified(at_most) for at_most in (None, 7, 6, 5, 3, 0)]
    return [one.record.step for one in found if one]


def test_the_loop_tells_what_it_checked(output: Path, build: Any, run_ranks: Any) -> None:
    ((told, _),) = run_ranks(1, _told_by_main, build(output), group=False)
    size = sum(size for size, _ in read_record(output / "checkpoints" / NEWEST).files.values())
    assert told.startswith(f"resume: {NEWEST}: {size / 1e6:,.1f} MB checked in ")


def _told_by_main(settings: TrainSettings) -> tuple[str, int]:
    lines: list[str] = []
    result = main(settings, lambda what: lines.append(str(what)))
    return lines[0], result.steps_done


def test_plain_torch_reads_a_checkpoint_by_the_names_of_the_model(
    stopped: Path, losses: list[float], run_dir: Path, tmp_path: Path
) -> None:
    folder = stopped / "checkpoints" / NEWEST  # of two ranks
    dcp_to_torch_save(folder, tmp_path / "all.pt")
    state = torch.load(tmp_path / "all.pt", weights_only=True)
    model = Decoder(ModelShape(**read_record(folder).shape))
    model.load_state_dict(state["model"])
    assert state["optimizer"]["state"].keys() == state["model"].keys()
    shapes = {name: value.shape for name, value in state["model"].items()}
    for name, moments in state["optimizer"]["state"].items():
        assert moments["exp_avg"].shape == moments["exp_avg_sq"].shape == shapes[name]
    (batch,) = StreamingLoader(run_dir, 8).batches_at(STOPPED)
    layout = lay_out(
        batch["position_ids"], head_dim=model.shape.head_dim, rope_theta=model.shape.rope_theta,
        kernel="sdpa", device=torch.device("cpu"),
    )  # fmt: skip
    tokens, labels = (torch.from_numpy(batch[name]).long() for name in ("tokens", "labels"))
    loss, _ = token_losses(model(tokens, layout), labels, 0.0)
    assert (loss.detach().sum() / (labels >= 0).sum()).item() == pytest.approx(
        losses[STOPPED], abs=1e-5
    )


def test_the_checkpoint_with_the_lowest_held_out_loss_is_kept(
    tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    # Held-out documents of random tokens: training makes their loss higher.
    checkpoint = {"every_steps": 3, "keep": 1, "keep_best": 1}
    settings = build(tmp_path / "train", checkpoint=checkpoint, evaluate={"every_steps": 2})
    run_ranks(1, _evaluate_random, settings)
    known = held_out_losses(Path(settings.output))
    best = min((2, 4, 6), key=known.__getitem__)
    assert best < 6
    kept = sorted(path.name for path in Path(settings.output, "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (best, STEPS)]


def _evaluate_random(settings: TrainSettings) -> None:
    train(settings, join(settings), None, Fixed({"web": [40] * 8}))


def test_ranks_of_a_tensor_group_save_together_after_so_many_minutes(
    tmp_path: Path, build: Any, run_ranks: Any
) -> None:
    checkpoint = {"every_steps": 100, "keep": 9, "every_minutes": 1e-9}
    settings = build(
        tmp_path / "train", checkpoint=checkpoint, parallel={"tensor": 2}, steps=3,
        model={"dim": 32, "layers": 1, "heads": 4, "kv_heads": 2, "ffn_dim": 64},
    )  # fmt: skip
    run_ranks(2, work, settings)
    kept = sorted(path.name for path in Path(settings.output, "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in (1, 2, 3)]
