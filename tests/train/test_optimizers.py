"""Every optimizer against its reference on random problems; what survives a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from corpuskit.errors import UsageError
from corpuskit.train import parallel
from corpuskit.train.huggingface_export import find_checkpoint, is_of_average, read_weights
from corpuskit.train.loop import train
from corpuskit.train.model import Decoder, init_weights
from corpuskit.train.optim import averaged, build_optimizer, set_rate
from corpuskit.train.parallel import join
from corpuskit.train.record import read_record
from corpuskit.train.settings import ModelSettings, OptimizerSettings, moment_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corpuskit.train.settings import TrainSettings

    Step = Callable[[np.ndarray, dict[str, Any], dict[str, float]], np.ndarray]

SHAPE = ModelSettings(dim=256, layers=1, heads=4, kv_heads=2, ffn_dim=512, tied=False).shape(40)
STEPS, LR, BETAS, EPS, DECAY = 12, 0.02, (0.9, 0.95), 1e-8, 0.1


def random_problem(model: Decoder) -> Iterator[float]:
    """Set gradients of very different sizes, and yield the rate of the step: warmup, then none."""
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        for parameter in model.parameters():
            size = 10 ** torch.empty(parameter.shape).uniform_(-2, 0, generator=generator)
            parameter.grad = torch.randn(parameter.shape, generator=generator) * size
        yield LR * min(1.0, (step + 1) / 4)


def ours(kind: Any) -> Decoder:
    model = Decoder(SHAPE)
    init_weights(model, 0)
    settings = OptimizerSettings(
        kind=kind, lr=LR, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=DECAY
    )
    optimizer = build_optimizer(model, settings)
    for lr in random_problem(model):
        set_rate(optimizer, lr)
        optimizer.step()
    with averaged(optimizer):  # of those that keep one, the average is the answer
        answer = Decoder(SHAPE)
        answer.load_state_dict(model.state_dict())
        return answer


def theirs(make: Callable[[list[dict[str, Any]]], Any]) -> Decoder:
    """Take the same steps with an optimizer that `make` builds of two groups: decayed, and not."""
    model = Decoder(SHAPE)
    init_weights(model, 0)
    free, decayed = [], []
    for name, parameter in model.named_parameters():
        is_free = "norm" in name or name.startswith("embedding")
        (free if is_free else decayed).append(parameter)
    optimizer = make(
        [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": DECAY}]
    )
    if hasattr(optimizer, "train"):
        optimizer.train()
    for lr in random_problem(model):
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(lr) if torch.is_tensor(group["lr"]) else lr
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return model


def twin(step: Step) -> Decoder:
    """Take the same steps in float64, one parameter at a time, with a rule written out in NumPy."""
    model = Decoder(SHAPE)
    init_weights(model, 0)
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    states: dict[str, dict[str, Any]] = {name: {} for name in weights}
    for number, lr in enumerate(random_problem(model), 1):
        for name, parameter in model.named_parameters():
            is_free = "norm" in name or name.startswith("embedding")
            about = {"lr": lr, "k": number, "decay": 0.0 if is_free else DECAY}
            assert parameter.grad is not None
            about["g"] = parameter.grad.double().numpy()
            weights[name] = step(weights[name], states[name], about)
    for name, parameter in model.named_parameters():
        answer = states[name].get("x", weights[name])
        parameter.data = torch.from_numpy(answer).float()
    return model


def assert_equal(one: Decoder, other: Decoder, tolerance: float) -> None:
    start = Decoder(SHAPE)
    init_weights(start, 0)
    for (name, a), b, first in zip(
        one.named_parameters(), other.parameters(), start.parameters(), strict=True
    ):
        assert (b - first).abs().max() > LR / 2, name  # so that the tolerance means something
        difference = (a - b).abs().max().item()
        assert difference <= tolerance, f"{name}: {difference}"


def lion(theta: np.ndarray, state: dict[str, Any], a: dict[str, Any]) -> np.ndarray:
    """Algorithm 2 of arXiv 2302.06675."""
    m = state.get("m", 0.0)
    c = BETAS[0] * m + (1 - BETAS[0]) * a["g"]
    state["m"] = BETAS[1] * m + (1 - BETAS[1]) * a["g"]
    return theta - a["lr"] * (np.sign(c) + a["decay"] * theta)


def adamw(theta: np.ndarray, state: dict[str, Any], a: dict[str, Any]) -> np.ndarray:
    """Algorithm 2 of arXiv 1711.05101; moments may be rounded by `state["round"]`."""
    round_to = state.setdefault("round", lambda value, is_signed: value)
    m = BETAS[0] * state.get("m", 0.0) + (1 - BETAS[0]) * a["g"]
    v = BETAS[1] * state.get("v", 0.0) + (1 - BETAS[1]) * a["g"] ** 2
    state["m"], state["v"] = round_to(m, True), round_to(v, False)
    m, v = m / (1 - BETAS[0] ** a["k"]), v / (1 - BETAS[1] ** a["k"])
    return theta - a["lr"] * (m / (np.sqrt(v) + EPS) + a["decay"] * theta)


def adamw8bit(theta: np.ndarray, state: dict[str, Any], a: dict[str, Any]) -> np.ndarray:
    """AdamW whose moments are kept as the nearest of 256 values, in blocks of 256 of a row."""
    if theta.ndim > 1:
        state["round"] = rounded
    return adamw(theta, state, a)


def rounded(values: np.ndarray, is_signed: bool) -> np.ndarray:
    blocks = values.reshape(-1, 256)
    scale = np.abs(blocks).max(1, keepdims=True)
    known = np.array(dynamic_values(is_signed), np.float32).astype(np.float64)
    places = np.searchsorted((known[1:] + known[:-1]) / 2, blocks / scale)
    return (known[places] * scale).reshape(values.shape)


def dynamic_values(is_signed: bool) -> list[float]:
    """Section 2.2 of arXiv 2110.02861: 0, 1, and in each of 7 decades twice as many, even ones."""
    found = [0.0, 1.0]
    for decade in range(7):
        number = 2**decade if is_signed else 2 ** (decade + 1)
        edges = np.linspace(0.1, 1, number + 1) * 10.0 ** (decade - 6)
        middles = ((edges[:-1] + edges[1:]) / 2).tolist()
        found += middles + [-middle for middle in middles if is_signed]
    return sorted(found)


def schedule_free(y: np.ndarray, state: dict[str, Any], a: dict[str, Any]) -> np.ndarray:
    """Algorithm 1 of arXiv 2405.15682 with AdamW's steps: x, y and z all kept."""
    z, x = state.get("z", y), state.get("x", y)
    v = state["v"] = BETAS[1] * state.get("v", 0.0) + (1 - BETAS[1]) * a["g"] ** 2
    direction = a["g"] / (np.sqrt(v / (1 - BETAS[1] ** a["k"])) + EPS) + a["decay"] * y
    z = z - a["lr"] * direction
    state["sum"] = state.get("sum", 0.0) + a["lr"] ** 2
    c = a["lr"] ** 2 / state["sum"]
    x = (1 - c) * x + c * z
    state["z"], state["x"] = z, x
    return (1 - BETAS[0]) * z + BETAS[0] * x


@pytest.mark.parametrize(
    ("kind", "rule", "tolerance"),
    [("adamw", adamw, 1e-6), ("lion", lion, 1e-6), ("schedule_free", schedule_free, 2e-6)],
)
def test_steps_are_those_of_the_published_rule(kind: str, rule: Step, tolerance: float) -> None:
    assert_equal(ours(kind), twin(rule), tolerance)


def test_eight_bit_steps_are_those_of_the_published_rule() -> None:
    # A moment half way between two values may be rounded to either, in float32 and in float64.
    found, rule = ours("adamw8bit"), twin(adamw8bit)
    apart, away = (
        torch.cat([(a - b).abs().flatten() for a, b in zip(found.parameters(), other, strict=True)])
        for other in (rule.parameters(), twin(adamw).parameters())
    )
    assert apart.sort().values[int(0.999 * len(apart))] < 2e-6
    assert apart.max() < LR
    assert away.median() > 1e-5  # AdamW's own steps are others


def test_eight_bit_steps_are_those_of_torchao() -> None:
    torchao = pytest.importorskip("torchao.optim")
    with torch.compiler.set_stance("force_eager"):
        reference = theirs(lambda groups: torchao.AdamW8bit(groups, LR, BETAS, EPS))
    found = dict(ours("adamw8bit").named_parameters())
    for name, parameter in reference.named_parameters():
        assert moment_block(parameter.shape) in (0, 256)
        apart = (found[name] - parameter).abs()
        assert (apart < 2e-6).double().mean() > 0.999, name


def test_schedule_free_steps_are_those_of_its_package() -> None:
    package = pytest.importorskip("schedulefree")
    reference = theirs(
        lambda groups: package.AdamWScheduleFree(groups, LR, BETAS, EPS, foreach=False)
    )
    assert_equal(ours("schedule_free"), reference, 2e-6)


def work(*runs: TrainSettings) -> None:
    for settings in runs:
        train(settings, join(settings))


def losses_of(settings: TrainSettings) -> list[float]:
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw8bit", "schedule_free"])
def test_stops_and_other_ranks_change_nothing(
    kind: str, settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    def settings(name: str, steps: int) -> TrainSettings:
        return settings_for(
            tmp_path / name, steps=steps, optimizer={"lr": 1e-2, "kind": kind},
            batch={"global_rows": 6, "micro_rows": 6},
        )  # fmt: skip

    calm, stopped = settings("calm", 6), settings("stopped", 6)
    run_ranks(1, work, calm, settings("stopped", 3), stopped, settings("moved", 2))
    assert losses_of(stopped) == losses_of(calm)
    run_ranks(3, work, settings("moved", 4))  # 32 rows are not shared out evenly by 3
    run_ranks(1, work, settings("moved", 6))
    assert losses_of(settings("moved", 6)) == pytest.approx(losses_of(calm), abs=1e-4)


@pytest.mark.slow
def test_what_is_exported_of_schedule_free_is_its_average(
    settings_for: Any, tmp_path: Path, run_ranks: Any
) -> None:
    settings = settings_for(tmp_path / "run", steps=3, optimizer={"kind": "schedule_free"})
    run_ranks(1, work, settings)
    checkpoint = find_checkpoint(settings.output)
    shapes = {"norm.weight": (32,)}
    average, weights = (
        next(read_weights([checkpoint], shapes, is_average=is_average))
        for is_average in (True, False)
    )
    assert is_of_average(read_record(checkpoint), None)
    assert not torch.equal(average, weights)


@pytest.mark.slow
def test_offloaded_steps_are_those_of_the_device(
    run_ranks: Any, settings_for: Any, tmp_path: Path
) -> None:
    # On CPU the policy has nothing to move: the composition is what is tested.
    there, here = (
        settings_for(tmp_path / str(offload), parallel={"offload": offload}, steps=4)
        for offload in (True, False)
    )
    run_ranks(2, _offload, there, here)
    assert losses_of(there) == losses_of(here)
    with pytest.raises(UsageError, match=r"parallel.offload: true needs CUDA: .* Leave it out\."):
        parallel.require_offload(torch.device("cpu"))


def _offload(there: TrainSettings, here: TrainSettings) -> None:
    parallel.require_offload = lambda _device: None  # type: ignore[assignment]
    half = there.model_copy(update={"steps": 2})
    work(half, there, here)  # a resumption among them
