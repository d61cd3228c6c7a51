"""What the rule filters share: rules that compare one measured number each with one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from corpuskit.stage import Outcome, StreamingStage, View

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from corpuskit.kernels.arrays import Float64s

    Measured = Mapping[str, Float64s]


class Rule(NamedTuple):
    """A rule of a filter: a document is dropped if a number is below or above a threshold.

    Attributes:
        name: the reason in the ledger.
        measure: name of the number; empty: the name of the rule.
        below, above: the parameter that is the threshold; with neither, above 0 breaks the rule.
    """

    name: str
    measure: str = ""
    below: str = ""
    above: str = ""


class MeasuredFilter(StreamingStage):
    """A filter that is a list of rules and one function that measures documents.

    The rules are tried in order, and the first that fails gives the reason. A threshold of null
    switches a rule off, and a measure of NaN never fails.
    """

    table: ClassVar[tuple[Rule, ...]]
    """The rules, in order."""

    measures: bool = False
    """Also store what every rule measured, so that bounds can be tuned without another run."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        table = getattr(cls, "table", ())
        cls.rules = tuple(rule.name for rule in table)
        cls.bounds = {r.name: r.below or r.above for r in table if r.below or r.above}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> JsonSchemaValue:
        """Put the parameters that filters share after those of the filter itself."""
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name in [name for name in properties if name not in cls.__annotations__]:
            properties[name] = properties.pop(name)
        return schema

    def apply(self, view: View) -> Outcome:
        return self.decide(view)

    def decide(self, view: View) -> Outcome:
        """Decide the documents of a view by the table."""
        numbers = self.measure(view)
        by_rule = {rule.name: numbers.get(rule.measure or rule.name) for rule in self.table}
        measured = {name: array for name, array in by_rule.items() if array is not None}
        codes = np.zeros(view.num_docs, np.uint8)
        values = np.full(view.num_docs, np.nan)
        for code, rule in enumerate(self.rules, start=1):
            if rule in measured:
                # `Stage.fails`: below a parameter called min_*, above any other; null and NaN never
                failed = self.fails(rule, measured[rule]) & (codes == 0)
                codes[failed] = code
                values[failed] = measured[rule][failed]
        return Outcome(codes=codes, values=values, measures=measured if self.measures else {})

    def measure(self, view: View) -> Measured:
        """Return the numbers that the table names, (N,) each; for filters that do not `decide`."""
        raise NotImplementedError
