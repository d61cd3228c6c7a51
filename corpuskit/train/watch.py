"""What looks at the steps of a run: files, observer, signals, heartbeat."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from corpuskit.train.evaluation import evaluate
from corpuskit.train.health import Speeds
from corpuskit.train.metrics import DataWaits, Journal

if TYPE_CHECKING:
    from corpuskit.train.checkpoint import Whole
    from corpuskit.train.evaluation import HeldOut
    from corpuskit.train.health import StopSignals
    from corpuskit.train.metrics import Observer, Progress, Told, TrainResult
    from corpuskit.train.pulse import Pulse
    from corpuskit.train.setup import Run


class Watch:
    """Writes and tells what happens between a set-up and the end of it.

    Only rank 0 writes and tells; the others have the same methods, so that the loop has no cases.
    """

    def __init__(
        self, run: Run, observer: Observer | None, pulse: Pulse, stop: StopSignals
    ) -> None:
        is_first = run.parallel.rank == 0
        self._run, self.pulse, self.stop = run, pulse, stop
        self._observer = observer if is_first else None
        self._journal = Journal(Path(run.settings.output), run.done) if is_first else None
        self.waits, self._speeds = DataWaits(), Speeds(run.parallel)
        self._since: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        if self._journal:
            self._journal.__enter__()
            record = asdict(self._run.record(self._run.done)) | {"guard": None}
            del record["files"]
            self._journal.event("start", steps=self._run.steps, **record)
        self.report_damage(self._run.newest)
        if newest := self._run.newest:
            size, seconds = newest.size_bytes, newest.seconds
            self.event(
                "resume",
                f"{newest.folder.name}: {size / 1e6:,.1f} MB checked in {seconds:.2f} s",
                checked_bytes=size,
                checked_seconds=seconds,
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self._run.loader.close()
        if self._journal:
            self._journal.__exit__(*error)

    def step(self, progress: Progress, *, is_last: bool) -> None:
        """Write a step; now and then tell of it, and of the mixture so far."""
        self._since.append((progress.step_seconds, progress.data_wait_seconds))
        if not self._journal:
            return
        self._journal.step(progress)
        done = progress.step + 1
        if is_last or done % self._run.settings.log_every_steps == 0:
            self._tell(progress)
            self._tell(self._journal.mixture(done, self._run.loader.mixture(done)))

    def compare_speeds(self, done: int) -> None:
        """Write and tell which rank the others wait for; collective."""
        steps, waits = zip(*self._since, strict=True)
        report = self._speeds.compare(sum(steps) / len(steps), sum(waits) / len(waits))
        self._since.clear()
        self.event("speeds", str(report), step=done, **asdict(report))

    def evaluate(self, done: int, held_out: HeldOut) -> None:
        """Evaluate held-out documents; write and tell what they gave; collective."""
        run = self._run
        found = evaluate(
            run.model, run.settings, run.parallel, held_out, run.loader.plan.seq_len,
            beat=lambda: self.pulse.beat(done, "evaluate"),
        )  # fmt: skip
        if self._journal:
            self._tell(self._journal.evaluation(done, found))

    def has_evaluation(self, done: int) -> bool:
        """Return whether the files have an evaluation after so many steps; collective."""
        known = self._journal is not None and self._journal.has_evaluation(done)
        return bool(self._run.parallel.gather(known)[0])

    def saved(self, checkpoint: Path | None) -> None:
        """Write and tell that a checkpoint is complete, if there is one."""
        if checkpoint:
            self.event("checkpoint", f"{checkpoint.name} saved", checkpoint=str(checkpoint))

    def report_damage(self, newest: Whole | None) -> None:
        """Write and tell which checkpoints are damaged, then set them aside."""
        damaged = list(self._run.checkpoints.damaged)
        for folder, problem in damaged:
            self.event(
                "damaged_checkpoint",
                f"{folder.name} is damaged: {problem}. Going on from "
                f"{newest.folder.name if newest else 'step 0'}; the damaged one is kept as "
                f"{folder.name}.damaged-N until you delete it",
                checkpoint=str(folder),
                problem=problem,
            )
        if damaged:
            self._run.checkpoints.set_aside()

    def event(self, kind: str, text: str, /, **fields: Any) -> None:
        """Write and tell what else happened."""
        if self._journal:
            self._tell(self._journal.event(kind, text, **fields))

    def end(self, result: TrainResult) -> None:
        """Write and tell the end."""
        if self._journal:
            self._journal.event("end", **asdict(result))
            self._tell(result)

    def _tell(self, what: Told) -> None:
        if self._observer:
            self._observer(what)
