"""Distillation: learn the next token, and the probabilities that a teacher model gives all tokens.

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
    """A frozen model, sharded like the one that learns."""

    model: Decoder
    settings: DistillSettings

    def blend(
        self,
        objective: torch.Tensor,
        losses: torch.Tensor,
        logits: torch.Tensor,
        micro_batch: MicroBatch,
    ) -> torch.Tensor:
        """Return what to minimise: (1 - weight) cross-entropy + weight temperature^2 divergence.

        Args:
            objective: scalar, the sum of `losses`, with the z-loss.
            losses: (R, L) cross-entropy in nats.
            logits: (R, L, V) of the model that learns.
            micro_batch: the rows, laid out for the teacher.
        """
        temperature, weight = self.settings.temperature, self.settings.weight
        with torch.no_grad():
            teacher_logits = self.model(micro_batch.tokens, micro_batch.layout).float()
            teacher_log_probs = log_softmax(teacher_logits.div_(temperature), -1)
        log_probs = log_softmax(logits.float() / temperature, -1)
        kl_terms = kl_div(log_probs, teacher_log_probs, reduction="none", log_target=True)
        divergences = kl_terms.sum(-1)
        # Gradients fall with the square of the temperature: this makes up for it.
        divergence = temperature**2 * (divergences * (micro_batch.labels != IGNORED)).sum()
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
    assert settings.distill is not None, "only runs with a teacher open it"
    frozen = settings.model_copy(update={"adapter": None, "float8": False})
    model = build_model(shape, frozen, parallel).requires_grad_(False)
    load_initial_weights(Path(settings.distill.teacher), model, parallel)
    return Teacher(model.eval(), settings.distill)
