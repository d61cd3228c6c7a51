"""Reads YAML into typed models; every error names file, line and column, and what to do.

Values are checked by pydantic in strict mode: `"80"` is not a number and `true` is not an integer.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from corpuskit import yamlreader
from corpuskit.engine import registry
from corpuskit.engine.applies import EVERYWHERE, SOURCES, WHERE, Applies
from corpuskit.engine.settings import PipelineSettings, keys_at
from corpuskit.errors import ConfigError, UsageError, suggest, system_reason
from corpuskit.paths import is_name
from corpuskit.stage import Source, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]
MATERIALIZE = "materialize"
AS = "as"
"""Key of a stage: its label, instead of its name."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One configured stage: its parameters, its location in the file, and where it applies."""

    label: str
    name: str
    stage: Stage
    where: str
    materialize: bool = False
    applies: Applies = EVERYWHERE
    locations: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """`file:line:column` of the value of each parameter that the file gives; empty in a worker."""

    @property
    def kind(self) -> str:
        """What the step is, in one word: `source`, `filter`, `dedup`, ..."""
        if isinstance(self.stage, Source):
            return "source"
        return registry.KINDS.get(registry.kind_of(self.name), "other")

    @property
    def source(self) -> Source:
        assert isinstance(self.stage, Source), "of one in `sources`"
        return self.stage

    def where_of(self, message: str) -> str:
        """Return the location of the parameter that a message begins with, else of the stage.

        The message may begin with the parameter, `stage.parameter`, or the value of a parameter.
        """
        key = message.partition(": ")[0].removeprefix(f"{self.name}.")
        if key in self.locations:
            return self.locations[key]
        name = re.match(rf"(?:{re.escape(self.name)}\.)?(\w+)", message)
        if name and name[1] in self.locations:
            return self.locations[name[1]]
        for parameter, location in self.locations.items():
            current = getattr(self.stage, parameter, None)
            values = current.values() if isinstance(current, dict) else current
            for value in values if isinstance(values, Iterable) else (values,):
                if (
                    isinstance(value, str)
                    and value.strip("@")
                    and message.startswith(value.removeprefix("@"))
                ):
                    return location
        return self.where


@dataclasses.dataclass(frozen=True)
class PipelineFile:
    """A pipeline file, read and checked."""

    path: str
    settings: PipelineSettings
    sources: tuple[Step, ...]
    steps: tuple[Step, ...]
    locations: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """`file:line:column` of each setting that the file gives, by its name as in `executor.kind`."""

    def sources_of(self, step: Step) -> tuple[Step, ...]:
        return tuple(source for source in self.sources if step.applies.to_source(source.label))


def read_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> PipelineFile:
    """Read a pipeline file.

    Args:
        path: the YAML file.
        overrides: `a.b=value` each, as given to `--set`; stages are addressed by name.

    Raises:
        ConfigError: the file, a stage or a parameter is wrong.
    """
    document = _YamlFile.open(Path(path), overrides)
    top = document.value
    options = {key: top[key] for key in top if key not in {"sources", "stages"}}
    settings = document.check(PipelineSettings, options, (), "", {"sources", "stages"})
    if not settings.name:
        settings = settings.model_copy(update={"name": re.sub(r"[^\w.-]+", "-", Path(path).stem)})
    sources = tuple(_sources(document))
    names = [step.label for step in sources]
    for name in settings.card.sources:
        if name not in names:
            location = document.where(("card", "sources", name), key=True)
            raise ConfigError(location, f"card: there is no source {name!r}.", suggest(name, names))
    locations = document.locations((), of_keys="expect")
    return PipelineFile(str(path), settings, sources, tuple(_steps(document)), locations)


def step_yaml(step: Step) -> str:
    """Return a stage as one line of a pipeline file, with all parameters that are no defaults."""
    return f"- {_flow(_entry(step))}"


def pipeline_yaml(file: PipelineFile) -> str:
    """Return an equivalent pipeline file, without defaults and comments."""
    settings = file.settings.model_dump(mode="json", exclude_defaults=True)
    lines = [f"{_flow({key: value})}" for key, value in settings.items() if key != "card"]
    lines.append("sources:")
    for step in file.sources:
        params = step.stage.model_dump(mode="json", exclude_defaults=True)
        paths = params.pop("paths")
        entry = {step.name: paths[0] if len(paths) == 1 else paths, **params}
        lines.append(f"  {_flow({step.label: entry})}")
    lines.append("stages:")
    lines += [f"  {step_yaml(step)}" for step in file.steps]
    return "\n".join(lines) + "\n"


def dump_yaml(value: Any) -> str:
    """Return plain values as YAML in block style, as the head of a dataset card has them."""
    return str(yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=1 << 20))


def dump_value(value: Any) -> str:
    """Return one plain value as YAML writes it, on one line."""
    node = _plain_keys(value)
    text = yaml.dump(
        node, None, _OneLineDumper, default_flow_style=True, sort_keys=False, width=1 << 20
    )
    return str(text).removesuffix("\n").removesuffix("\n...")


class _OneLineDumper(yaml.SafeDumper):
    """Writes a text with line breaks in double quotes, which keeps it on one line."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_OneLineDumper.add_representer(str, _OneLineDumper.represent_str)


def _plain_keys(value: Any) -> Any:
    """Return a value whose keys that are numbers are written as such; files may have either."""
    if isinstance(value, dict):
        return {int(k) if k.isdecimal() else k: _plain_keys(v) for k, v in value.items()}
    return [_plain_keys(item) for item in value] if isinstance(value, list) else value


def _entry(step: Step) -> Any:
    params = step.stage.model_dump(mode="json", exclude_defaults=True)
    params |= {MATERIALIZE: True} if step.materialize else {}
    params |= step.applies.to_json()
    params |= {} if re.fullmatch(rf"{step.name}(_\d+)?", step.label) else {AS: step.label}
    return {step.name: params} if params else step.name


def _flow(entry: Any) -> str:
    """Return an entry of a list or mapping on one line; a mapping without its outer braces."""
    if isinstance(entry, dict):
        [(name, value)] = entry.items()
        return f"{dump_value(name)}: {dump_value(value)}"
    return dump_value(entry)


def read_model(path: str | Path, model: type[Model], overrides: Sequence[str] = ()) -> Model:
    """Read a YAML file whose top-level keys are the fields of `model`.

    Raises:
        ConfigError: the file or a value is wrong.
    """
    document = _YamlFile.open(Path(path), overrides)
    return document.check(model, document.value, (), "")


def location_of(path: str | Path, overrides: Sequence[str], message: str) -> str | None:
    """Return `file:line:column` of the key that a message begins with, or of what encloses it.

    None if it begins with no key of this file, in which key paths are `a.b`.
    """
    document = _YamlFile.open(Path(path), overrides)
    keys: KeyPath = tuple(message.partition(": ")[0].split("."))
    return document.where(keys) if keys[0] in document.value else None


def _sources(document: _YamlFile) -> Iterable[Step]:
    sources = document.value.get("sources")
    if not isinstance(sources, dict) or not sources:
        raise ConfigError(
            document.where(("sources",)),
            "sources must name at least one source.",
            'For example: sources: {web: {jsonl: "data/*.jsonl"}}.',
        )
    formats = registry.names("sources")
    for name, value in sources.items():
        keys: KeyPath = ("sources", name)
        if not isinstance(value, dict):
            raise ConfigError(document.where(keys), f"source {name!r} must be a mapping.",
                              'For example: {jsonl: "data/*.jsonl"}.')  # fmt: skip
        if not is_name(str(name)):
            raise ConfigError(document.where(keys, key=True), f"source name {name!r} must be made "
                              "of letters, digits, - and _.", "It names a folder.")  # fmt: skip
        formats_named = [key for key in value if key in formats]
        if len(formats_named) != 1:
            wrong = next((key for key in value if key not in formats), name)
            hint = suggest(str(wrong), formats)
            raise ConfigError(document.where(keys), f"source {name!r} must name one format.", hint)
        kind = formats_named[0]
        if "paths" in value:
            location = document.where((*keys, "paths"), key=True)
            raise ConfigError(location, f"sources.{name} has no parameter 'paths'.",
                              f"Files are the value of {kind!r}.")  # fmt: skip
        paths = value[kind] if isinstance(value[kind], list) else [value[kind]]
        params = {"paths": paths, **{k: v for k, v in value.items() if k != kind}}
        model = registry.load(kind)
        stage = document.check(model, params, keys, f"sources.{name}", rename={"paths": kind})
        assert isinstance(stage, Source), f"{kind} is in stages/sources but is not a Source"
        locations = document.locations(keys)
        yield Step(str(name), kind, stage, document.where(keys, key=True), locations=locations)


def _steps(document: _YamlFile) -> Iterable[Step]:
    entries = document.value.get("stages") or []
    if not isinstance(entries, list):
        raise ConfigError(document.where(("stages",)), "stages must be a list.",
                          "For example: stages: [gopher_quality, exact_dedup].")  # fmt: skip
    seen: dict[str, int] = {}
    labels: set[str] = set()
    name: Any
    params: Any
    for index, item in enumerate(entries):
        keys: KeyPath = ("stages", index)
        if isinstance(item, str):
            name, params = item, {}
        elif isinstance(item, dict) and len(item) == 1:
            name, params = next(iter(item.items()))
            keys = (*keys, name)
            params = {} if params is None else params
        else:
            raise ConfigError(document.where(keys), "a stage must be a name or `name: {...}`.")
        location = document.where(keys, key=True)
        if name not in registry.modules() or registry.kind_of(name) == "sources":
            names = [
                known_name
                for known_name in registry.names()
                if registry.kind_of(known_name) != "sources"
            ]
            raise ConfigError(location, f"there is no stage {name!r}.", suggest(str(name), names))
        if not isinstance(params, dict):
            raise ConfigError(document.where(keys), f"{name} must be followed by a mapping.")
        materialize = params.pop(MATERIALIZE, False)
        if not isinstance(materialize, bool):
            raise ConfigError(
                document.where((*keys, MATERIALIZE)), f"{name}.{MATERIALIZE} must be true or false."
            )
        model = registry.load(name)
        label = label_of(name, seen, params)
        if problem := _label_problem(params.pop(AS, label), name, labels):
            raise ConfigError(document.where((*keys, AS)), f"{name}.{AS}: {problem}")
        labels.add(label)
        filters = {SOURCES, WHERE} - model.model_fields.keys()
        limits = {key: params.pop(key) for key in filters & params.keys()}
        locations = document.locations(keys)
        stage = document.check(model, params, keys, name, {MATERIALIZE, AS, *filters})
        try:
            applies = Applies.parse(limits)
        except UsageError as error:
            key = str(error).partition(": ")[0]
            raise ConfigError(locations.get(key, location), f"{name}.{error}") from None
        yield Step(label, name, stage, location, materialize, applies, locations)


_TAKEN = {
    "tokens": "the outcome of packing in expect",
    "read": "the phase that reads the input",
    "documents": "the phase that writes documents",
}


def _label_problem(label: Any, name: str, labels: set[str]) -> str:
    """Return why a stage cannot have a label, or ""."""
    if not (isinstance(label, str) and label.isidentifier()):
        return f"must be made of letters, digits and _, got {label!r}."
    if label in labels:
        return f"another stage is called {label!r}. Choose another name."
    if label in _TAKEN:
        return f"{label!r} is what {_TAKEN[label]} is called. Choose another name."
    if label != name and label in registry.modules():
        return f"{label!r} is the name of a stage. Choose another name."
    return ""


class _YamlFile:
    """A YAML file as plain values, with the line and column of every key and value."""

    def __init__(self, path: Path, value: Any, locations: dict[KeyPath, tuple[str, str]]) -> None:
        self.path, self.value, self._locations = path, value, locations

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str]) -> _YamlFile:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {system_reason(error)}.") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: byte {error.start} is not UTF-8.") from None
        root = yamlreader.compose(text, str(path))
        locations: dict[KeyPath, tuple[str, str]] = {}
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}:1:1", "the file must be a mapping of names to values.")
        file = cls(path, _to_values(root, path, (), locations), locations)
        for override in overrides:
            file.override(override)
        return file

    def where(self, keys: KeyPath, *, key: bool = False) -> str:
        """Return `file:line:column` of a value (or its key), or of what encloses it."""
        while keys not in self._locations:
            if not keys:
                return f"{self.path}:1:1"
            keys = keys[:-1]
        return self._locations[keys][0 if key else 1]

    def locations(self, keys: KeyPath, of_keys: str = "") -> dict[str, str]:
        """Return key -> `file:line:column` of values in a mapping; below `of_keys` of the keys."""
        depth = len(keys)
        return {
            ".".join(map(str, path[depth:])): key_and_value[path[0] != of_keys]
            for path, key_and_value in self._locations.items()
            if len(path) > depth and path[:depth] == keys
        }

    def override(self, text: str) -> None:
        """Apply one `a.b=value`; list items that are stages are addressed by their name."""
        target, equals, raw = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: must look like stage.parameter=value.")
        try:
            value = yamlreader.load(raw, "value")
        except ConfigError as error:
            reason = error.problem.rstrip(".")
            raise UsageError(f"--set {text}: {raw!r} is not a YAML value: {reason}.") from None
        keys = target.split(".")
        if len(keys) > yamlreader.MOST_DEPTH:
            raise UsageError(f"--set: {len(keys)} names with dots between them. Check the name.")
        stages = self.value.get("stages")
        if isinstance(stages, list) and keys[0] in _labels(stages):
            keys.insert(0, "stages")
        node: Any = self.value
        keys_so_far: KeyPath = ()
        for key in keys[:-1]:
            node, keys_so_far = self._enter(node, key, keys_so_far, text)
        if not isinstance(node, dict):
            raise UsageError(f"--set {text}: {'.'.join(keys[:-1])} is not a mapping.")
        full = (*keys_so_far, keys[-1])
        for path, (first, _) in self._locations.items():
            if path[: len(full)] == full and first.startswith("--set "):
                raise UsageError(f"--set {text}: {first} sets it, too. Leave one out.")
        node[keys[-1]] = value
        self._locations[full] = (f"--set {text}", f"--set {text}")

    def _enter(self, node: Any, key: str, keys: KeyPath, text: str) -> tuple[Any, KeyPath]:
        if isinstance(node, list):
            labels = _labels(node)
            if key not in labels:
                stage_labels = [label for label in labels if label]
                raise UsageError(f"--set {text}: no stage {key!r}. {suggest(key, stage_labels)}")
            index = labels.index(key)
            name = str(_stage_name(node[index]))
            if isinstance(node[index], str):
                node[index] = {name: {}}
            elif node[index][name] is None:
                node[index][name] = {}
            return node[index][name], (*keys, index, name)
        if isinstance(node, dict):
            self._locations.setdefault((*keys, key), (f"--set {text}", f"--set {text}"))
            return node.setdefault(key, {}), (*keys, key)
        raise UsageError(f"--set {text}: {key!r} is not a mapping.")

    def check(
        self,
        model: type[Model],
        values: Mapping[str, Any],
        keys: KeyPath,
        label: str,
        extra: Iterable[str] = (),
        rename: Mapping[str, str] | None = None,
    ) -> Model:
        """Validate the values at `keys`; report the first error in the order of the file.

        Args:
            label: what the user calls the thing, for messages; empty for the file itself.
            extra: keys that are legal here but not fields of the model.
            rename: field -> the key that the file uses for it.
        """
        try:
            return model.model_validate_json(json.dumps(values, default=str), strict=True)
        except ValidationError as error:
            rename = rename or {}
            accepted = [rename.get(f, f) for f in model.model_fields] + list(extra)
            # A misspelt key makes another one missing: a missing key is reported last. Of a value
            # that may have several types, a wrong value is more helpful than a wrong type.
            first = min(
                (
                    (e["type"] == "missing", _order(self.where((*keys, *e["loc"][:1])))),
                    (e["type"] != "value_error", _order(problem.where), index),
                    problem,
                )
                for index, e in enumerate(error.errors())
                for problem in [self._explain(model, e, keys, label, accepted, rename)]
            )
            raise first[-1] from None
        except UsageError as error:  # a check that stages share
            message = str(error)
            name = re.match(r"\w+", message)
            location = self.where((*keys, name[0] if name else ""))
            raise ConfigError(location, f"{label}: {message}" if label else message) from None

    def _explain(
        self, model: type[BaseModel], error: Any, keys: KeyPath, label: str, accepted: list[str],
        rename: Mapping[str, str],
    ) -> ConfigError:  # fmt: skip
        # Pydantic names which of several types it tried, as in `dict[str,float]`.
        parts = (part for part in error["loc"] if "[" not in str(part))
        loc: KeyPath = tuple(rename.get(str(part), part) for part in parts)
        name = ".".join([label, *(str(part) for part in loc)]).lstrip(".")
        full = (*keys, *loc)
        kind = error["type"]
        if kind == "extra_forbidden":
            location = self.where(full, key=True)
            key = str(loc[-1])
            owner = ".".join([label, *map(str, loc[:-1])]).strip(".") or "the file"
            accepted = accepted if len(loc) == 1 else keys_at(model, loc[:-1])
            hint = suggest(key, accepted) if accepted else ""
            return ConfigError(location, f"{owner} has no parameter {key!r}.", hint)
        if kind == "missing":
            return ConfigError(self.where(keys), f"{name} is missing.", "Set it.")
        message = str(error["msg"]).removeprefix("Value error, ")
        parameter = re.match(r"\w+", message)
        key = rename.get(parameter[0], parameter[0]) if parameter else ""
        if not loc and key in accepted:  # a check of the whole model that names the parameter
            full = (*keys, key)
        message = message.replace("Input should be", "must be").replace("a valid ", "a ")
        message = message.replace("a integer", "an integer")
        if not message.startswith("must be"):
            return ConfigError(self.where(full), f"{name}: {message}" if name else message)
        return ConfigError(self.where(full), f"{name} {message}, got {error['input']!r}.")


def _to_values(
    node: yaml.Node, path: Path, keys: KeyPath, locations: dict[KeyPath, tuple[str, str]]
) -> Any:
    """Turn YAML nodes into plain values and note the position of each."""
    position = f"{path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    if not str(node.tag).startswith("tag:yaml.org,2002:") or "python" in str(node.tag):
        raise ConfigError(position, f"the tag {node.tag!r} is not allowed.", "Write plain values.")
    locations.setdefault(keys, (position, position))
    if isinstance(node, yaml.SequenceNode):
        return [_to_values(item, path, (*keys, i), locations) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(node, position)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
        location = f"{path}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if not key or key == "<<":
            raise ConfigError(
                location, "a key must be plain text.", "Merge keys are not supported."
            )
        if key in values:
            raise ConfigError(location, f"{key!r} is given twice.", "Remove one.")
        start = value_node.start_mark
        locations[(*keys, key)] = (location, f"{path}:{start.line + 1}:{start.column + 1}")
        values[key] = _to_values(value_node, path, (*keys, key), locations)
    return values


def _scalar(node: yaml.Node, location: str) -> Any:
    try:
        return yamlreader.scalar(node)
    except ValueError:
        kind = node.tag.rpartition(":")[2]
        raise ConfigError(location, f"{node.value!r} is not of type {kind}.") from None


def _stage_name(item: Any) -> str | None:
    if isinstance(item, str):
        return item
    return next(iter(item), None) if isinstance(item, dict) else None


def label_of(name: str, seen: dict[str, int], params: Any) -> Any:
    """Return the label of a stage: its `as`, else its name, or `name_2` if it is the second."""
    if isinstance(params, dict) and AS in params:
        return params[AS]
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}_{seen[name]}"


def _labels(items: list[Any]) -> list[str]:
    """Return the labels of the stages of a file; "" for an item that is not a stage."""
    seen: dict[str, int] = {}
    names = [_stage_name(item) for item in items]
    return [
        str(label_of(name, seen, item[name] if isinstance(item, dict) else None))
        if isinstance(name, str)
        else ""
        for name, item in zip(names, items, strict=True)
    ]


def _order(location: str) -> tuple[int, int]:
    """Return (line, column) of a location; command-line overrides come first."""
    parts = location.rsplit(":", 2)
    if len(parts) != 3 or not parts[1].isdigit():
        return (-1, -1)
    return int(parts[1]), int(parts[2])
