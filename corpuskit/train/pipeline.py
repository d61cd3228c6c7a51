"""Pipeline parallelism: the stages of a model on several ranks, each with layers of its own.

torch.distributed.pipelining has the schedules: which micro-batch a rank computes next, forward or
backward, and what it sends. Only the stream between blocks is sent. All ranks of a pipeline load
the same rows, so each makes tokens, labels and layout of a micro-batch itself, when the schedule
comes to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from corpuskit.train.parallel import DTYPES, begin_micro_batch
from corpuskit.train.settings import stage_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corpuskit.train.model import Decoder, MicroBatch, ModelStage
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

    TakeMicroBatch = Callable[[int], MicroBatch]

ONE_STAGE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
SEVERAL_STAGES = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class Pipeline:
    """Runs this rank's stages forward and backward over the micro-batches of a step.

    Args:
        model: as `build_model` returns it, with stages.
        settings: of the run.
        parallel: this rank.
        seq_len: L; a rank has M of these tokens: all, unless ranks share rows.
    """

    def __init__(
        self, model: Decoder, settings: TrainSettings, parallel: Parallel, seq_len: int
    ) -> None:
        self._parallel = parallel
        spans = stage_spans(model.shape.layers, settings.parallel)
        self._last_rank = spans[-1].rank
        micro_rows = settings.batch.micro_rows
        self._num = settings.batch.global_rows // parallel.data_ranks // micro_rows
        self._shape = micro_rows, seq_len // settings.parallel.context
        stream = _stream_like(model, settings, self._shape)
        self._stages = [
            _ScheduledStage(stage, len(spans), settings, parallel, stream) for stage in model.stages
        ]
        kind = settings.parallel.pipeline_schedule
        # The last stage returns what to minimise, summed over the tokens: nothing is left to scale.
        options: dict[str, Any] = {"loss_fn": lambda output, _: output, "scale_grads": False}
        if kind in ONE_STAGE:
            self._schedule: Any = ONE_STAGE[kind](self._stages[0], self._num, **options)
        else:
            self._schedule = SEVERAL_STAGES[kind](list(self._stages), self._num, **options)

    def step(self, take: TakeMicroBatch, num_labels: torch.Tensor) -> torch.Tensor:
        """Leave the gradients of a step on the parameters of this rank.

        Args:
            take: makes a micro-batch, given its number.
            num_labels: labelled tokens of the whole step, by which the objective is divided.

        Returns:
            (S, M) each token's cross-entropy, in nats, on every rank.
        """
        losses: list[torch.Tensor] = [torch.empty(0)] * self._num
        for stage in self._stages:
            stage.begin(take, num_labels, losses)
        self._schedule.step(target=torch.arange(self._num), return_outputs=False)
        return _from_last(losses, self._num, self._shape, self._last_rank, self._parallel)


class _ScheduledStage(PipelineStage):
    """A stage as torch's schedules call it: by the number of a micro-batch, which it then makes."""

    def __init__(
        self, stage: ModelStage, stages: int, settings: TrainSettings, parallel: Parallel,
        stream: torch.Tensor,
    ) -> None:  # fmt: skip
        self._stage, self._settings = stage, settings
        # Schedules with a split backward pass bypass the hooks in which FSDP reduces gradients, so
        # with them torch handles FSDP. With others it must not see FSDP: it would keep whole
        # weights and gradients to the end of a step, whatever `parallel.zero` is.
        module = stage if settings.parallel.splits_backward else _Unsharded(stage)
        span, objective = stage.span, torch.empty(())
        super().__init__(
            module,
            span.index,
            stages,
            parallel.device,
            # With both given, torch does not run a first step to find out what is sent.
            input_args=() if span.is_first else (stream,),
            output_args=(objective if span.is_last else stream,),
            group=parallel.pipeline_group,
        )

    def begin(
        self, take: TakeMicroBatch, num_labels: torch.Tensor, losses: list[torch.Tensor]
    ) -> None:
        """Prepare for a step; the last stage fills `losses`."""
        self._take, self._num_labels, self._losses = take, num_labels, losses

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        """Run a micro-batch forward."""
        micro_batch = self._take(fwd_chunk_id)
        options = {
            "micro_batch": micro_batch,
            "z_loss": self._settings.model.z_loss,
            "divisor": self._num_labels,
        }
        output = super().forward_one_chunk(fwd_chunk_id, args, options, save_forward_output)
        if micro_batch.losses is not None:
            self._losses[fwd_chunk_id] = micro_batch.losses
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:  # fmt: skip
        """Run a micro-batch backward."""
        begin_micro_batch(self._stage, self._settings, is_last=last_backward)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)


class _Unsharded(nn.Module):
    """A stage in which torch does not look for FSDP."""

    def __init__(self, stage: ModelStage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, *stream: torch.Tensor, **extra: Any) -> torch.Tensor:
        return self.stage(*stream, **extra)


@torch.no_grad()
def forward_only(
    model: Decoder, settings: TrainSettings, parallel: Parallel, micro_batches: Sequence[MicroBatch]
) -> torch.Tensor:
    """Return the (N * R, M) loss of each token of N micro-batches, in nats, on every rank.

    Each stage computes all micro-batches in turn, so stages of different ranks work at the same
    time. Collective.
    """
    group, own_rank = parallel.pipeline_group, dist.get_rank(parallel.pipeline_group)
    ranks = [span.rank for span in stage_spans(model.shape.layers, settings.parallel)]
    shape = tuple(micro_batches[0].tokens.shape)
    like = _stream_like(model, settings, shape)
    streams: list[torch.Tensor | None] = [None] * len(micro_batches)
    sending = []
    for stage in model.stages:
        number = stage.span.index
        for index, micro_batch in enumerate(micro_batches):
            x = streams[index]
            if number and ranks[number - 1] != own_rank:
                x = torch.empty(like.shape, dtype=like.dtype, device=parallel.device)
                dist.recv(x, group=group, group_src=ranks[number - 1])
            streams[index] = x = stage(x, micro_batch=micro_batch)
            if not stage.span.is_last and ranks[number + 1] != own_rank:
                sending.append((dist.isend(x, group=group, group_dst=ranks[number + 1]), x))
    for work, _ in sending:
        assert work is not None, "this rank is of the group"
        work.wait()
    losses = [batch.losses for batch in micro_batches if batch.losses is not None]
    return _from_last(losses, len(micro_batches), shape, ranks[-1], parallel)


def _from_last(
    losses: list[torch.Tensor], num: int, shape: tuple[int, ...], source: int, parallel: Parallel
) -> torch.Tensor:
    """Return the losses of the last stage, which rank `source` has, on every rank."""
    losses_of_all = torch.empty((num * shape[0], *shape[1:]), device=parallel.device)
    if dist.get_rank(parallel.pipeline_group) == source:
        losses_of_all = torch.cat(losses)
    dist.broadcast(losses_of_all, group=parallel.pipeline_group, group_src=source)
    return losses_of_all


def _stream_like(model: Decoder, settings: TrainSettings, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a meta tensor like what a stage sends on: (R, M / t, C) with t tensor ranks."""
    sizes = (shape[0], shape[1] // settings.parallel.tensor, model.shape.dim)
    dtype = DTYPES[settings.dtype]
    return torch.empty(sizes, dtype=dtype, device="meta", requires_grad=True)
