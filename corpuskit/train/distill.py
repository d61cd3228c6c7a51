"""Learning from a teacher: beside the next token, the chances that another model gives each token.

Source: G. Hinton et al., Distilling the Knowledge in a Neural Network (arXiv 1503.02531).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import kl_div, log_softmax

from corpuskit.loader.assemble import IGNORED
from corpuskit.train.huggingface import load_initial_weights
from corpuskit.train.parallel import build_model

if TYPE_CHECKING:
    from corpuskit.train.model import Decoder, MicroBatch
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import DistillSettings, ModelShape, TrainSettings


@dataclass(frozen=True, slots=True)
class Teacher:
    """A frozen model, sharded as the one that learns."""

    model: Decoder
    settings: DistillSettings

    def blend(
        self, objective: torch.Tensor, losses: torch.Tensor, logits: torch.Tensor, part: MicroBatch
    ) -> torch.Tensor:
        """Return what to minimise: a share of the cross-entropy gives way to the divergence.

        Args:
            objective: scalar, the sum of `losses`, with the z-loss.
            losses: (R, L) cross-entropy in nats.
            logits: (R, L, V) of the model that learns.
            part: the rows, laid out for the teacher.
        """
        temperature, weight = self.settings.temperature, self.settings.weight
        with torch.no_grad():
            teacher_logits = self.model(part.tokens, part.layout).float()
            chances = log_softmax(teacher_logits.div_(temperature), -1)
        log_probs = log_softmax(logits.float() / temperature, -1)
        divergences = kl_div(log_probs, chances, reduction="none", log_target=True).sum(-1)
        # As large as at temperature 1: gradients fall with its square.
        divergence = temperature**2 * (divergences * (part.labels != IGNORED)).sum()
        return objective + weight * (divergence - losses.sum())


def open_teacher(shape: ModelShape, settings: TrainSettings, parallel: Parallel) -> Teacher:
    """Build the teacher and read its weights.

    Args:
        shape: of the teacher, as `choose_teacher` gives it.
        settings: of the run, with `distill`.
        parallel: this rank.

    Raises:
        DataError: a file is damaged, or not of this model.
    """
    assert settings.distill is not None, "asked of runs that have it"
    frozen = settings.model_copy(update={"adapter": None, "float8": False})
    model = build_model(shape, frozen, parallel).requires_grad_(False)
    load_initial_weights(Path(settings.distill.teacher), model, parallel)
    return Teacher(model.eval(), settings.distill)
