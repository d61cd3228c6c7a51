"""LoRA, DoRA and QLoRA: losses and model are those of peft over a model of transformers."""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.adapters import add_adapters, init_adapters
from corpuskit.train.huggingface import foreign_names, load_weights, read_shape
from corpuskit.train.huggingface_export import export, find_checkpoint
from corpuskit.train.loop import main, train
from corpuskit.train.model import Decoder
from corpuskit.train.parallel import join
from corpuskit.train.settings import TrainSettings
from tests.train.test_huggingface import (
    IDS,
    ORIGIN,
    TOKENIZER,
    TOKENS,
    _losses,
    foreign,
    foreign_logits,
    transformers,
)

if TYPE_CHECKING:
    from pathlib import Path

peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

STEPS, LR, DECAY = 4, 1e-2, 0.1
ADAPTERS = [
    {"rank": 4, "alpha": 8.0},
    {"rank": 2, "alpha": 3.0, "dora": True, "targets": ["query", "down"]},
]
THEIRS = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj",
    "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = foreign("Llama", tmp_path_factory.mktemp("llama"))
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "corpuskit.json").write_text(json.dumps({"tokenizer": ORIGIN}))
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose rows are whole blocks of 64 numbers."""
    folder = foreign(
        "Llama", tmp_path_factory.mktemp("wide"), hidden_size=64, intermediate_size=128, head_dim=16
    )
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "corpuskit.json").write_text(json.dumps({"tokenizer": ORIGIN}))
    return folder


def settings_of(llama: Path, output: Path, settings_for: Any, **changes: Any) -> TrainSettings:
    fields = {
        "init_from": str(llama), "steps": STEPS, "batch": {"global_rows": 2, "micro_rows": 1},
        "optimizer": {"lr": LR, "weight_decay": DECAY},
    }  # fmt: skip
    whole = settings_for(output, **(fields | changes)).model_dump(exclude_unset=True)
    return TrainSettings.model_validate({k: v for k, v in whole.items() if k != "model"})


def train_with_peft(
    llama: Path, settings: TrainSettings, quantise: str = ""
) -> tuple[list[float], np.ndarray]:
    """Train the model of transformers document by document; return losses and logits.

    Args:
        quantise: "bitsandbytes" lets it do so; "by hand" rounds the weights to NF4.
    """
    asked = settings.adapter
    config = peft.LoraConfig(
        r=asked.rank, lora_alpha=asked.alpha, use_dora=asked.dora,
        target_modules=[THEIRS[name] for name in asked.targets],
    )  # fmt: skip
    more = {}
    if quantise == "bitsandbytes":
        more["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, **more)
    if quantise == "by hand":
        for name, parameter in model.named_parameters():
            if name.endswith("proj.weight"):
                parameter.data = torch.from_numpy(rounded(parameter.detach().numpy()))
    model = peft.get_peft_model(model, config)
    take_initial_values(model, llama, settings)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [x for x in trained if x.ndim > 1], "weight_decay": DECAY},
            {"params": [x for x in trained if x.ndim == 1], "weight_decay": 0.0},
        ],
        lr=LR, betas=(0.9, 0.95),
    )  # fmt: skip
    losses = []
    for batch in itertools.islice(StreamingLoader(settings.data, 2), STEPS):
        total = torch.zeros(())
        for tokens, labels, positions in zip(
            batch["tokens"], batch["labels"], batch["position_ids"], strict=True
        ):
            bounds = [*np.flatnonzero(positions == 0), len(tokens)]
            for first, end in itertools.pairwise(bounds):
                logits = model(torch.from_numpy(tokens[None, first:end].astype(np.int64))).logits
                wanted = torch.from_numpy(labels[first:end].astype(np.int64))
                total = total + cross_entropy(
                    logits[0], wanted, ignore_index=IGNORED, reduction="sum"
                )
        loss = total / int((batch["labels"] != IGNORED).sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():  # bitsandbytes would quantise what is merged
        whole = model if quantise else model.merge_and_unload()
        return losses, whole.eval()(TOKENS).logits.numpy()


def rounded(weight: np.ndarray) -> np.ndarray:
    """Round each block of 64 to the nearest of 16 values times its largest size.

    The values of appendix E of arXiv 2305.14314, here by its formula: means of neighbouring
    quantiles of a normal distribution, nine above 0 and eight below.
    """
    normal, offset = statistics.NormalDist(), 0.9677083
    upper = [normal.inv_cdf(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    lower = [-normal.inv_cdf(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    known = np.sort([0.0, *upper, *lower]) / max(upper)
    blocks = weight.reshape(-1, 64)
    scale = np.abs(blocks).max(1, keepdims=True)
    places = np.abs((blocks / scale)[..., None] - known).argmin(-1)
    return (known[places] * scale).reshape(weight.shape).astype(np.float32)


@torch.no_grad()
def take_initial_values(model: Any, llama: Path, settings: TrainSettings) -> None:
    ours = Decoder(read_shape(llama))
    add_adapters(ours, settings.adapter)  # type: ignore[arg-type]
    load_weights(llama, ours)
    init_adapters(ours, settings.seed)
    theirs = dict(model.named_parameters())
    for name, parameter in ours.named_parameters():
        module, found, part = name.partition(".lora_")
        if found:
            place = foreign_names(f"{module}.weight", None)[0].removesuffix(".weight")
            target = theirs[f"base_model.model.{place}.lora_{part}"]
            if "magnitude" in part:
                torch.testing.assert_close(parameter, target)
            target.copy_(parameter)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=["lora", "dora"])
def test_losses_and_merged_model_are_those_of_peft(
    adapter: dict[str, Any], llama: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    settings = settings_of(llama, tmp_path / "ours", settings_for, adapter=adapter)
    run_ranks(1, main, settings, group=False)
    # In a process of its own, too: one that has computed gradients can't be forked.
    ((losses, logits),) = run_ranks(1, train_with_peft, llama, settings, group=False)
    assert _losses(settings) == pytest.approx(losses, abs=1e-5)
    export(
        find_checkpoint(settings.output), tmp_path / "merged", seq_len=32, ids=IDS, dtype="float32",
        files={"tokenizer.json": TOKENIZER}, tokenizer=ORIGIN,
    )  # fmt: skip
    merged = foreign_logits(tmp_path / "merged")
    assert torch.allclose(merged, torch.from_numpy(logits), atol=1e-4, rtol=0)
    assert not torch.allclose(merged, foreign_logits(llama), atol=1e-2, rtol=0)


@pytest.mark.parametrize("dora", [False, True], ids=["qlora", "qdora"])
@pytest.mark.parametrize("reference", ["by hand", "bitsandbytes"])
def test_in_four_bits_losses_and_model_are_those_of_peft(
    reference: str, dora: bool, wide: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    if reference == "bitsandbytes" and importlib.util.find_spec(reference) is None:
        pytest.skip("bitsandbytes is missing")
    adapter = {"rank": 4, "alpha": 8.0, "dora": dora, "quantize": "nf4"}
    settings = settings_of(wide, tmp_path / "ours", settings_for, adapter=adapter)
    run_ranks(1, main, settings, group=False)
    ((losses, logits),) = run_ranks(1, train_with_peft, wide, settings, reference, group=False)
    assert _losses(settings) == pytest.approx(losses, abs=1e-5)
    export(
        find_checkpoint(settings.output), tmp_path / "merged", seq_len=32, ids=IDS, dtype="float32",
        files={"tokenizer.json": TOKENIZER}, tokenizer=ORIGIN,
    )  # fmt: skip
    merged = foreign_logits(tmp_path / "merged")
    assert torch.allclose(merged, torch.from_numpy(logits), atol=1e-4, rtol=0)
    assert not torch.allclose(merged, foreign_logits(wide), atol=1e-2, rtol=0)


def train_rank(settings: TrainSettings) -> None:
    train(settings, join(settings))


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_ranks_and_a_stop_in_between_change_nothing(
    quantize: str | None, llama: Path, wide: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    model, asked = wide if quantize else llama, ADAPTERS[1] | {"quantize": quantize}

    def losses(name: str, ranks: int, *stops: int, **parallel: int) -> list[float]:
        for steps in stops:
            settings = settings_of(
                model, tmp_path / name, settings_for, adapter=asked, steps=steps, parallel=parallel
            )
            run_ranks(ranks, train_rank, settings)
        return _losses(settings)

    calm = losses("calm", 1, STEPS)
    assert losses("stopped", 1, 2, STEPS) == calm
    assert losses("two", 2, STEPS) == pytest.approx(calm, abs=1e-5)
    assert losses("context", 2, STEPS, context=2) == pytest.approx(calm, abs=1e-5)


def test_other_adapters_than_the_checkpoint_has_are_refused(
    llama: Path, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    settings = settings_of(llama, tmp_path, settings_for, adapter=ADAPTERS[0], steps=1)
    run_ranks(1, main, settings, group=False)
    for changed in ({"adapter": {"rank": 8}}, {"adapter": None}):
        again = settings_of(llama, tmp_path, settings_for, **changed)
        with pytest.raises(UsageError, match=r"adapter: .* in the newest checkpoint\. Restore"):
            main(again)


def test_adapters_need_a_model_and_go_with_neither_float8_nor_tensor(settings_for: Any) -> None:
    with pytest.raises(ValidationError, match="Name one in init_from"):
        settings_for("out", adapter={})
    with pytest.raises(ValidationError, match=r"not fitted to float8 and parallel\.tensor"):
        settings_for("out", init_from="m", adapter={}, float8=True, parallel={"tensor": 2})


def test_rows_that_are_not_whole_blocks_are_refused(
    llama: Path, tmp_path: Path, settings_for: Any
) -> None:
    settings = settings_of(llama, tmp_path, settings_for, adapter={"quantize": "nf4"})
    with pytest.raises(
        UsageError, match=r"multiples of 64 numbers, not 32 \(query\), .*48 \(down\)"
    ):
        main(settings)
