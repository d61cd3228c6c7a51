"""JSON Schema and Markdown of stages and pipeline files, both derived from the classes."""

from __future__ import annotations

import inspect
import itertools
import json
from typing import TYPE_CHECKING, Any

from corpuskit.engine import registry
from corpuskit.engine.applies import BOUNDS, NOT, SOURCES, WHERE
from corpuskit.engine.config import AS, MATERIALIZE
from corpuskit.engine.settings import PipelineSettings

if TYPE_CHECKING:
    from collections.abc import Collection

_VALUE = {"type": ["string", "number", "boolean"]}
_VALUES = {"anyOf": [_VALUE, {"type": "array", "items": _VALUE, "minItems": 1}]}
_BOUNDS = {"type": "object", "minProperties": 1, "additionalProperties": False}
_CONDITION = {
    "anyOf": [
        *_VALUES["anyOf"],
        {**_BOUNDS, "properties": {NOT: _VALUES}},
        {**_BOUNDS, "properties": {name: {"type": "number"} for name in BOUNDS}},
    ]
}
COMPOSING: dict[str, Any] = {
    SOURCES: {"type": "array", "items": {"type": "string"}, "minItems": 1,
              "description": "Sources that the stage applies to; all by default."},
    WHERE: {"type": "object", "minProperties": 1, "additionalProperties": _CONDITION,
            "description": "Column -> condition: documents that the stage applies to."},
    AS: {"type": "string", "description": "What the stage is called here, in place of its name."},
}  # fmt: skip
"""Keys that every stage has and that docs/composing.md describes, not each page."""


def stage_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one stage's parameters."""
    stage = registry.load(name)
    schema = stage.model_json_schema()
    schema["description"] = inspect.getdoc(stage) or ""
    if registry.kind_of(name) != "sources":
        schema["properties"] = {
            **schema.get("properties", {}),
            MATERIALIZE: {"type": "boolean", "default": False,
                          "description": "End a phase here; edits of later stages reuse it."},
            **{key: spec for key, spec in COMPOSING.items() if key not in stage.model_fields},
        }  # fmt: skip
    return schema


def pipeline_schema() -> dict[str, Any]:
    """Return the JSON Schema of a pipeline file."""
    steps: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for name in registry.names():
        schema = stage_schema(name)
        definitions.update(schema.pop("$defs", {}))
        if registry.kind_of(name) == "sources":
            paths = schema["properties"].pop("paths")
            single = {"type": "string", "description": paths.get("description", "")}
            many = {"type": "array", "items": {"type": "string"}}
            schema["properties"] = {name: {"anyOf": [single, many]}, **schema["properties"]}
            schema["required"] = [name]
            sources.append(schema)
            continue
        steps.append({"const": name, "description": registry.summary(name)})
        schema_or_null = {"anyOf": [schema, {"type": "null"}]}
        steps.append({"type": "object", "properties": {name: schema_or_null}, "required": [name],
                      "additionalProperties": False})  # fmt: skip
    top = PipelineSettings.model_json_schema()
    definitions.update(top.pop("$defs", {}))
    top["properties"]["sources"] = {
        "type": "object",
        "description": "Named inputs; each names one format and its files.",
        "additionalProperties": {"anyOf": sources},
    }
    top["properties"]["stages"] = {
        "type": "array",
        "description": "The stages, in order.",
        "items": {"anyOf": steps},
    }
    top["required"] = [*top.get("required", []), "sources"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def stage_page(name: str) -> str:
    """Return the Markdown page of one stage."""
    stage = registry.load(name)
    parts = [f"# {name}", f"*{registry.kind_of(name)}*", inspect.getdoc(stage) or ""]
    schema = stage_schema(name)
    properties = schema.get("properties", {})
    described = {
        k: spec for k, spec in properties.items() if k not in COMPOSING or k in stage.model_fields
    }
    if rows := parameter_rows(described):
        header = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
        parts.append(header + "\n".join(rows))
    if stage.rules:
        lines = []
        for bound, rules in itertools.groupby(stage.rules, lambda r: stage.bounds.get(r, "")):
            names = [f"`{rule}`" for rule in rules]
            bullets = [", ".join(names)] if bound else names  # many n-grams have one parameter
            lines += [f"- {name}" + (f" (`{bound}`)" if bound else "") for name in bullets]
        title = "Rules (reasons in the ledger, with the parameter that bounds them):"
        parts.append("\n\n".join([title, "\n".join(lines)]))
    if stage.examples:
        # Of examples that differ in one value of a parameter only, the first is shown.
        distinct = {(e.text, *e.params): e for e in reversed(stage.examples)}.values()
        parts.append("Examples:\n\n" + "\n".join(map(_example, reversed(distinct))))
    return "\n\n".join(parts) + "\n"


def parameter_rows(
    properties: dict[str, dict[str, Any]], required: Collection[str] = ()
) -> list[str]:
    """Return parameters as rows of a Markdown table: name, type, default, meaning."""
    return [
        f"| `{key}` | {_type(spec)} | {'required' if key in required else _default(spec)} | "
        f"{_cell(spec.get('description', ''))} |"
        for key, spec in properties.items()
    ]


def _example(example: Any) -> str:
    params = f" with `{json.dumps(dict(example.params))}`" if example.params else ""
    result = f"`{example.rule}`" if example.rule else "kept"
    becomes = f", becomes `{_short(example.becomes)}`" if example.becomes is not None else ""
    return f"- `{_short(example.text)}`{params}: {result}{becomes}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _type(spec: dict[str, Any]) -> str:
    if "enum" in spec:
        return " or ".join(f"`{value}`" for value in spec["enum"])
    if "const" in spec:
        return f"`{spec['const']}`"
    if "anyOf" in spec:
        return " or ".join(_type(option) for option in spec["anyOf"])
    kind = str(spec.get("type", "mapping"))
    low = spec.get("minimum", spec.get("exclusiveMinimum"))
    high = spec.get("maximum", spec.get("exclusiveMaximum"))
    if low is not None or high is not None:
        return f"{kind} [{'' if low is None else low}, {'' if high is None else high}]"
    return kind


def _default(spec: dict[str, Any]) -> str:
    return f"`{json.dumps(spec['default'])}`" if "default" in spec else "required"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
