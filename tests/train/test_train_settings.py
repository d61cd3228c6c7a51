"""Settings refuse what cannot be, and say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from corpuskit.errors import UsageError
from corpuskit.train.settings import ModelSettings, TrainSettings

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 64, "heads": 4}, "layers, kv_heads, ffn_dim not set, and no preset"),
        ({"preset": "15m", "heads": 7}, "7 heads do not cut a width of 384 into even parts"),
        ({"preset": "15m", "kv_heads": 4}, "kv_heads 4 does not divide heads 6"),
        ({"preset": "15m", "hedas": 7}, "Extra inputs are not permitted"),
    ],
)
def test_a_model_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSettings.model_validate(fields)


def test_what_is_set_wins_over_the_preset() -> None:
    shape = ModelSettings(preset="15m", layers=3, tied=False).shape(512)
    assert (shape.layers, shape.dim, shape.tied, shape.vocab_size) == (3, 384, False, 512)


def test_a_vocabulary_below_the_tokenizers_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model.vocab_size: 100 is less than the tokenizer's 512"):
        ModelSettings(preset="15m", vocab_size=100).shape(512)


def test_steps_and_tokens_exclude_each_other(settings: Callable[..., TrainSettings]) -> None:
    with pytest.raises(ValidationError, match="steps 5 and tokens 100 are both set"):
        settings(steps=5, tokens=100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"lr": float("inf")}}, "finite number"),
        ({"health": {"hang_seconds": 1e300}}, "less than or equal"),
        ({"seed": 1 << 64}, "less than or equal to 4611686018427387903"),
        ({"order_seed": 1 << 64}, "less than or equal to 4611686018427387903"),
        ({"profile": {"steps": [-1]}}, "greater than or equal to 0"),
        ({"evaluate": {"tasks": {"../../out": "a.jsonl"}}}, "it names a file"),
        ({"output": "runs/../runs/x", "data": "runs/x"}, "is the folder of data"),
        ({"output": "runs/x", "checkpoint": {"upload": "./runs/y/../x"}}, "is the folder of outp"),
    ],
)
def test_values_that_no_run_can_have_are_refused(
    settings: Callable[..., TrainSettings], changes: dict[str, Any], message: str
) -> None:
    given = {"data": "d", "output": "o", "batch": {"global_rows": 1}} | changes
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate(given)


def test_equal_settings_have_equal_digests(settings: Callable[..., TrainSettings]) -> None:
    assert settings(seed=1).digest() == settings(seed=1).digest() != settings(seed=2).digest()


def test_every_field_is_described() -> None:
    def undescribed(model: Any, place: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            if not field.description:
                found.append(f"{place}{name}")
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                found += undescribed(field.annotation, f"{place}{name}.")
        return found

    assert undescribed(TrainSettings, "") == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"branch_from": "a", "init_from": "b"}, "branch_from and init_from are both set: "),
        ({"schedule": {"decay_tokens": 9}}, "decay_tokens 9: cosine has no decay of its own"),
        (
            {"model": {"preset": "15m", "mup_base_dim": 128}, "init_from": "b"},
            r"model.mup_base_dim is of new weights, and init_from names others\. Keep one",
        ),
        (
            {"optimizer": {"kind": "schedule_free"}},
            r"schedule.kind cosine: .*\. Set schedule.kind to constant",
        ),
        (
            {
                "optimizer": {"kind": "schedule_free", "average_decay": 0.9},
                "schedule": {"kind": "constant"},
            },
            r"average_decay 0\.9: .*\. Leave average_decay out",
        ),
        (
            {"optimizer": {"kind": "adamw8bit"}, "parallel": {"tensor": 2}},
            r"adamw8bit does not work with parallel.tensor 2: .* Set parallel.tensor to 1",
        ),
        (
            {"optimizer": {"kind": "muon"}, "parallel": {"offload": True, "zero": 1}},
            r"parallel.offload: not fitted to optimizer.kind muon and parallel.zero below 3\.",
        ),
    ],
)
def test_settings_that_exclude_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    required = {"data": "-", "output": "o", "batch": {"global_rows": 8}}
    with pytest.raises(ValidationError, match=message):
        TrainSettings.model_validate(required | fields)
