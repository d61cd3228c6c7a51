"""What every stage promises, whatever its kind: a new file is tested by existing."""

from __future__ import annotations

import inspect
import json
import pickle

import pytest
import yaml
from pydantic import ValidationError

from corpuskit.engine import registry
from corpuskit.stage import CellStage, GlobalStage, Source, Stage, StreamingStage
from tests.contract.strategies import make, of_kind, reload

STAGES = of_kind(Stage)
KINDS = (Source, StreamingStage, CellStage, GlobalStage)


@pytest.mark.parametrize("cls", STAGES)
def test_a_stage_is_of_one_kind(cls):
    assert sum(issubclass(cls, kind) for kind in KINDS) == 1


@pytest.mark.parametrize("cls", STAGES)
def test_the_name_is_the_file_stem(cls):
    assert registry.load(cls.stage_name()) is cls


@pytest.mark.parametrize("cls", STAGES)
def test_the_docstring_says_what_and_from_where(cls):
    doc = inspect.getdoc(cls)
    first, _, rest = doc.partition("\n")
    assert first.endswith(".")
    assert len(first) <= 100
    assert "Source:" in rest, "the docstring must cite where the stage comes from"
    assert registry.summary(cls.stage_name()) == first


@pytest.mark.parametrize("cls", STAGES)
def test_every_parameter_is_described(cls):
    for name, schema in cls.model_json_schema().get("properties", {}).items():
        text = schema.get("description", "")
        assert text.strip(), f"{name} has no description"
        assert text[0] in "`0123456789" or text[0].isupper(), f"{name}: {text}"
        assert text.rstrip().endswith((".", ")")), f"{name}: {text}"


@pytest.mark.parametrize("cls", STAGES)
def test_a_misspelt_parameter_is_refused(cls):
    params = {**make(cls).model_dump(), "no_such_parameter": 1}
    with pytest.raises(ValidationError, match="no_such_parameter"):
        cls.model_validate(params)


@pytest.mark.parametrize("cls", STAGES)
def test_parameters_cannot_be_changed(cls):
    stage = make(cls)
    for name in cls.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(stage, name, getattr(stage, name))


@pytest.mark.parametrize("cls", STAGES)
def test_parameters_survive_json(cls):
    for stage in (make(cls), *(cls(**e.params) for e in cls.examples if e.params)):
        assert reload(stage) == stage


@pytest.mark.parametrize("cls", STAGES)
def test_parameters_survive_yaml(cls):
    stage = make(cls)
    written = yaml.safe_dump(stage.model_dump(mode="json"))
    assert cls.model_validate(yaml.safe_load(written)) == stage


@pytest.mark.parametrize("cls", STAGES)
def test_a_stage_can_be_pickled(cls):
    stage = make(cls)
    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.parametrize("cls", STAGES)
def test_the_schema_is_json(cls):
    schema = json.loads(json.dumps(cls.model_json_schema()))
    assert set(schema.get("properties", {})) == set(cls.model_fields)


@pytest.mark.parametrize("cls", STAGES)
def test_rules_are_distinct_words(cls):
    assert len(set(cls.rules)) == len(cls.rules) < 256
    assert all(rule.isidentifier() for rule in cls.rules)


@pytest.mark.parametrize("cls", STAGES)
def test_bounds_are_numeric_parameters_of_rules(cls):
    stage = make(cls)
    for rule, name in cls.bounds.items():
        assert rule in cls.rules
        assert name in cls.model_fields
        assert isinstance(stage.threshold(rule), float)


@pytest.mark.parametrize("cls", STAGES)
def test_what_it_needs_and_adds_are_names(cls):
    stage = make(cls)
    assert all(isinstance(name, str) for name in stage.needs())
    assert all(isinstance(name, str) and "." not in name for name in stage.adds())
    assert all(isinstance(name, str) for name in (*stage.files(), *stage.libraries()))
