"""Reads YAML that may be hostile or just wrong, within bounds.

YAML's aliases let 264 bytes stand for 10^9 values; what is read here is bounded in bytes, in depth
and in values after aliases are expanded. The only module that parses YAML.
"""

from __future__ import annotations

from typing import Any

import yaml

from corpuskit.errors import ConfigError

MOST_BYTES = 4 << 20
MOST_DEPTH = 64
MOST_VALUES = 100_000
"""Values after expansion. The parser alone takes a CPU second for 30,000."""
_MOST_DIGITS = 1000
"""Characters of a number or date; `1:1:1:...` (base 60) costs the square of its length."""


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the root of a YAML document; None if it is empty.

    Args:
        text: the document.
        name: what messages call it.

    Raises:
        ConfigError: it is not valid, or exceeds a bound.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"{name}:1:1", f"it has {len(text):,} characters, at most {MOST_BYTES:,} are read.",
            "Put long lists into files of their own.",
        )  # fmt: skip
    try:
        loader = _BoundedLoader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        if isinstance(error, _BoundError):
            raise ConfigError(location, f"{error.problem}.", "Write the values out.") from None
        raise ConfigError(location, f"not valid YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name}:1:1", f"not valid YAML: {reason}.") from None


def load(text: str, name: str) -> Any:
    """Return a YAML document as plain values; merge keys (`<<`) are resolved.

    Raises:
        ConfigError: as `compose`, and for tags that are no plain values.
    """
    node = compose(text, name)
    if node is None:
        return None
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.MarkedYAMLError, ValueError, AttributeError, TypeError) as error:
        mark = getattr(error, "problem_mark", None) or node.start_mark
        reason = getattr(error, "problem", None) or error
        location = f"{name}:{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(location, f"not valid YAML: {reason}.") from None


def scalar(node: yaml.Node) -> Any:
    """Return the value of a scalar.

    Raises:
        ValueError: it does not fit its type.
    """
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, AttributeError) as error:
        raise ValueError(str(error)) from None


class _BoundError(yaml.MarkedYAMLError):
    pass


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes, and counts what they are when aliases are expanded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_values = 0
        self._deepest = [0]  # of what is being composed: the depth of the deepest child
        self._extents: dict[int, tuple[int, int]] = {}  # id of a node: its values, its depth

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        before = self._num_values
        if len(self._deepest) > MOST_DEPTH:
            raise _BoundError(problem=f"nested deeper than {MOST_DEPTH}", problem_mark=mark)
        self._deepest.append(0)
        node = super().compose_node(parent, index)
        depth = self._deepest.pop() + 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._extents:
                raise _BoundError(problem="a value holds itself", problem_mark=mark)
            num_values, depth = self._extents[id(node)]
            self._num_values += num_values
        else:
            self._num_values += 1
            self._extents[id(node)] = self._num_values - before, depth
        if len(self._deepest) + depth - 1 > MOST_DEPTH:
            raise _BoundError(problem=f"nested deeper than {MOST_DEPTH}", problem_mark=mark)
        if self._num_values > MOST_VALUES:
            raise _BoundError(
                problem=f"more than {MOST_VALUES:,} values, aliases expanded", problem_mark=mark
            )
        if node is not None and _is_number(node) and len(node.value) > _MOST_DIGITS:
            problem = f"a number or date of {len(node.value):,} characters"
            raise _BoundError(problem=problem, problem_mark=mark)
        self._deepest[-1] = max(self._deepest[-1], depth)
        return node


def _is_number(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.tag.endswith((":str", ":binary"))
