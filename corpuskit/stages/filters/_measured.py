"""What the rule filters share: rules that compare one measured number each with one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, GetJsonSchemaHandler

from corpuskit.paths import PathText
from corpuskit.stage import Known, Outcome, StreamingStage, View
from corpuskit.stages.filters import _languages
from corpuskit.stages.filters._languages import LABEL, UNKNOWN, OnUnknown
from corpuskit.text.words import WordSplit, check_language, libraries

if TYPE_CHECKING:
    from typing import Self

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from corpuskit.kernels.arrays import Float64s

    Measured = Mapping[str, Float64s]


class Rule(NamedTuple):
    """One line of a filter's list: a document is dropped if a number is below or above a bound.

    Attributes:
        name: the reason in the ledger.
        of: what is measured; the name of the rule where empty.
        below, above: parameter that is the bound; a rule without either is decided otherwise.
    """

    name: str
    of: str = ""
    below: str = ""
    above: str = ""


class MeasuredFilter(StreamingStage):
    """A filter that is a list of rules and one function which measures documents.

    The rules are tried in order, and the first that fails gives the reason. A bound of null
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
        named = {rule.name: numbers.get(rule.of or rule.name) for rule in self.table}
        measured = {name: given for name, given in named.items() if given is not None}
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


class LanguageFilter(MeasuredFilter):
    """A filter that counts words, whose parameters may differ from language to language."""

    keys: ClassVar[Mapping[str, str]]
    """Key in FineWeb2's file of a language -> parameter."""

    words: WordSplit = "spacy"
    """How text is split into words; `spacy` as the reference does."""
    language: str = Field("en", min_length=1)
    """Language by whose rules spaCy splits."""
    per_language: PathText | None = Field(None, min_length=1)
    """Folder with a file of parameters for each language, such as deu_Latn.yml (FineWeb2's shape),
    or a pattern such as configs/{language}.yml."""
    language_column: str = Field(LABEL, min_length=1)
    """Column that tells the language of a document."""
    unknown_language: OnUnknown = "error"
    """What becomes of a document whose language has no file; `defaults`: the parameters here."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.rules = (*cls.rules, UNKNOWN)

    def check_splits(self, *, needs_words: bool = True) -> Self:
        """Check the parameters above; for validators.

        Args:
            needs_words: whether text is split by `words` and `language`.

        Raises:
            ValueError: `per_language` does not do, or would fit no single bound that is tuned.
            UsageError: the language cannot be split.
        """
        if self.per_language is not None:
            _languages.check_pattern(self.per_language)
            if self.measures:
                raise ValueError(
                    "measures: bounds that depend on the language cannot be tuned. Leave out "
                    "per_language, or measure one language at a time"
                )
        elif needs_words:
            check_language(self.words, self.language)
        return self

    def files(self) -> tuple[str, ...]:
        return () if self.per_language is None else _languages.language_files(self)

    def libraries(self) -> tuple[str, ...]:
        return libraries(self.words, self.language if self.per_language is None else None)

    def needs(self) -> tuple[str, ...]:
        return () if self.per_language is None else (self.language_column,)

    def check(self, known: Known) -> None:
        if self.per_language is not None:
            _languages.check_labels(self, known)

    def apply(self, view: View) -> Outcome:
        if self.per_language is None:
            return self.decide(view)
        return _languages.decide_by_language(self, view)
