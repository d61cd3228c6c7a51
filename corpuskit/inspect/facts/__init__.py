"""Everything a report shows about a run, gathered as plain facts."""

from corpuskit.inspect.facts.gather import Facts, gather

__all__ = ["Facts", "gather"]
