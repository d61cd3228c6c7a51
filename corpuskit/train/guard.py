"""Detects steps that would do harm, and names the documents that are suspected.

A step whose loss or gradient norm is not finite, or far above those of the steps before, is not
applied. If that happens too often, the run goes back to a checkpoint and skips these rows from then
on: PaLM (section 5.1) went back about 100 steps and skipped 200 to 500 batches, and the spikes did
not come again. A document is suspected by its loss: by how many nats its tokens cost more than
tokens of the steps before.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import CorpuskitError
from corpuskit.loader.assemble import IGNORED
from corpuskit.train.heartbeat import UNSOUND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from corpuskit.loader.stream import StreamingLoader
    from corpuskit.train.settings import GuardSettings

MAX_SUSPECTS = 8  # documents of a bad step that are named
# Lower bounds of the standard deviations: in calmer windows, ordinary steps would look like spikes.
# That of losses is a share of their mean; that of norms is of their logarithms. Six of the latter
# are a factor of 11; norms of 3 to 4 times the usual, which clipping bounds, come every 200 steps
# where rows differ much and steps have few.
MIN_SPREAD, MIN_LOG_SPREAD = 0.005, 0.4


class GuardError(CorpuskitError):
    """More steps were bad than the settings tolerate, and the run may not go back again."""

    exit_code = UNSOUND


class SpikeGuard:
    """Judges steps by the mean and standard deviation of those before.

    Args:
        settings: of the run.
        state: of a checkpoint, so that a resumed run judges like one that never stopped.
    """

    def __init__(self, settings: GuardSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        saved = state or {"losses": [], "grad_norms": [], "bad_steps": []}
        self._losses = deque[float](saved["losses"], settings.window)
        self._grad_norms = deque[float](saved["grad_norms"], settings.window)
        self.bad_steps: list[int] = [*saved["bad_steps"]]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the next judgement, JSON-ready."""
        return {
            "losses": [*self._losses],
            "grad_norms": [*self._grad_norms],
            "bad_steps": self.bad_steps,
        }

    @property
    def usual_loss(self) -> float:
        """Mean loss of the window, 0 where it is empty."""
        return sum(self._losses) / max(len(self._losses), 1)

    def judge(self, step: int, loss: float, grad_norm: float) -> str | None:
        """Return why a step is bad, or None, in which case it counts as applied.

        Args:
            step: as the loader counts.
            loss: of the whole step, in nats per token.
            grad_norm: of the whole step, before clipping.
        """
        reason = self._reason(loss, grad_norm)
        if math.isfinite(loss) and math.isfinite(grad_norm):
            # Those of bad steps, too: if the loss has moved for good, it soon is the usual one.
            self._losses.append(loss)
            self._grad_norms.append(grad_norm)
        if reason is not None:
            earliest = step - self.settings.window
            self.bad_steps = [bad for bad in self.bad_steps if bad > earliest] + [step]
        return reason

    def reset(self) -> None:
        """Empty the window: other data follow, and with them another loss."""
        self._losses.clear()
        self._grad_norms.clear()

    def _reason(self, loss: float, grad_norm: float) -> str | None:
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                return f"{name} is {value}"
        limit = self.settings.sigmas
        if not limit or len(self._losses) < min(self.settings.min_steps, self.settings.window):
            return None
        usual_loss = self.usual_loss
        sigmas, _ = _far_above(loss, self._losses, MIN_SPREAD * usual_loss)
        if sigmas > limit:
            return f"loss {loss:.4g} is {sigmas:.1f} standard deviations above {usual_loss:.4g}"
        # Norms scatter by factors, so their logarithms are compared.
        logs = [math.log(max(norm, 1e-30)) for norm in self._grad_norms]
        sigmas, mean = _far_above(math.log(max(grad_norm, 1e-30)), logs, MIN_LOG_SPREAD)
        if sigmas > limit:
            return (
                f"gradient norm {grad_norm:.4g} is {sigmas:.1f} standard deviations, in logarithms,"
                f" above {math.exp(mean):.4g}"
            )
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether more steps of the window were bad than are tolerated."""
        return len(self.bad_steps) > self.settings.tolerate


def _far_above(value: float, window: Sequence[float], min_spread: float) -> tuple[float, float]:
    """Return by how many standard deviations a value is above a window's mean, and that mean."""
    mean = sum(window) / len(window)
    spread = math.sqrt(sum((x - mean) ** 2 for x in window) / len(window))
    return (value - mean) / max(spread, min_spread), mean


@dataclass(frozen=True, slots=True)
class Suspect:
    """A document's span of a row in a bad step."""

    document: str  # its id
    file: str  # where it came from
    source: str
    source_row: int
    first_token: int  # in that row
    tokens: int  # with a label
    loss: float  # nats per labelled token
    excess: float  # nats above the usual loss of that many tokens

    def __str__(self) -> str:
        return f"{self.document} ({self.source}/{self.source_row}, loss {self.loss:.2f})"


def document_losses(
    batch: Mapping[str, Any], losses: NDArray[np.float32], expected: float
) -> list[tuple[float, int, int, int, float]]:
    """Return the most suspect spans of a batch.

    Those without a finite loss come first, then those that cost most.

    Args:
        batch: S rows of L tokens, as the loader gives them.
        losses: (S, L) nats, 0 where a token has no label.
        expected: nats per token that are expected.

    Returns:
        `MAX_SUSPECTS` at most: (excess in nats, row of the batch, first token, labelled tokens,
        mean loss).
    """
    length = losses.shape[1]
    starts = np.flatnonzero(batch["position_ids"].reshape(-1) == 0)
    labelled = np.add.reduceat((batch["labels"] != IGNORED).reshape(-1), starts, dtype=np.int64)
    sums = np.add.reduceat(losses.reshape(-1), starts, dtype=np.float64)
    excess = np.where(np.isfinite(sums), sums - labelled * expected, np.inf)
    order = [i for i in np.argsort(-excess, kind="stable").tolist() if labelled[i]]
    return [
        (
            float(excess[i]),
            int(starts[i]) // length,
            int(starts[i]) % length,
            int(labelled[i]),
            float(sums[i] / labelled[i]),
        )
        for i in order[:MAX_SUSPECTS]
    ]


def name_documents(
    loader: StreamingLoader, step: int, spans: Sequence[tuple[float, int, int, int, float]]
) -> list[Suspect]:
    """Return the documents of these spans.

    Args:
        loader: of the run.
        step: the bad one.
        spans: as `document_losses` gives them, rows counted in the global batch.
    """
    suspects = []
    for excess, number, first_token, tokens, loss in spans:
        (row,) = loader.which(step, row=number)
        span = next(span for span in reversed(row.documents) if span.first_token <= first_token)
        suspects.append(
            Suspect(
                span.id, span.file, row.source, row.source_row, first_token, tokens, loss, excess
            )
        )
    return suspects
