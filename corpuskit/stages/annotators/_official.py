"""fastText's own prediction, shaped as datatrove calls it; for oracles and tests only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.stages.annotators._fasttext import DECIMALS

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Official:
    """What `fasttext.load_model` gives, with `predict(str)` working under NumPy 2.

    The library's own wrapper adds the newline, calls the inner object, and fails when it makes an
    array of the result (`copy=False`); here the same is done without that argument. Scores are
    rounded, as ours are before they are compared.
    """

    def __init__(self, path: str) -> None:
        import fasttext

        self._inner = fasttext.load_model(path).f
        self.labels: list[str] = list(self._inner.getLabels("strict")[0])

    def predict(self, text: str, k: int = 1) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Return the k best labels (-1: all) and their scores, best first.

        Raises:
            ValueError: the text has a newline, as in the library.
        """
        if "\n" in text:
            raise ValueError("predict processes one line at a time (remove '\\n')")
        found = self._inner.predict(text + "\n", k, 0.0, "strict")
        scores = np.array([score for score, _ in found], np.float64)
        return tuple(label for _, label in found), np.round(scores, DECIMALS)


@functools.lru_cache(maxsize=4)
def open_official(path: str) -> Official:
    """Return the model at `path`, loaded once per process."""
    return Official(path)


def reference(cls: type[Any], *args: Any, **params: Any) -> Any:
    """Return a datatrove filter without its check that fastText is of one certain distribution.

    datatrove asks for the distribution `fasttext-numpy2-wheel` and refuses the official one, which
    has the same module.
    """
    made = object.__new__(cls)
    made.__init__(*args, **params)
    return made


def beginning(text: str, max_bytes: int | None) -> str:
    """Return what a stage with `max_bytes` looks at: whole characters of the first bytes."""
    return text if max_bytes is None else text.encode()[:max_bytes].decode("utf-8", "ignore")
