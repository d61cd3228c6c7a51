"""What is remembered of tasks that failed: why, where, and which log tells more.

One small file beside the manifests of the phase, `failed-<task>.json`; it decides nothing, and the
seal of the phase deletes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from typing import TYPE_CHECKING, Any

from corpuskit.engine.executors.contract import Failure
from corpuskit.errors import CorpuskitError, DataError, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.engine.rundir import RunDirectory

SHOWN = 5


@dataclasses.dataclass(frozen=True)
class FailureNote:
    """A failure as `status` shows it."""

    phase: str
    units: tuple[int, ...]
    error: str
    log: str
    code: int
    host: str


def note_failures(run: RunDirectory, phase: Phase, failures: Sequence[Failure]) -> None:
    """Remember the failures of a phase; best effort, a full disk must not hide them."""
    for one in failures:
        name = f"manifests/{phase.name}/{one.task.mark}/failed-{one.task.name}.json"
        _note(run, name, one.task.units, one.error, one.log, one.code)


def note_slot(run: RunDirectory, phase: Phase, slot: int, error: str, code: int) -> None:
    """Remember why a slot could not work at all."""
    name = f"manifests/{phase.name}/failed-slot-{slot}.json"
    _note(run, name, (), error, f"{run.store.logs()}/slurm-{phase.name}-*", code)


def forget_failures(run: RunDirectory, phase: Phase) -> None:
    """Forget the failures of a phase that is about to be tried again."""
    listed = run.store.list(f"manifests/{phase.name}")
    run.store.delete(name for name in listed if "/failed-" in name)


def _note(
    run: RunDirectory, name: str, units: Sequence[int], error: str, log: str, code: int
) -> None:
    content = {
        "format": 1, "units": list(units), "error": error, "log": log, "code": code,
        "host": socket.gethostname(),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        run.store.put(name, json.dumps(content).encode())


def read_failures(run: RunDirectory, phase: Phase) -> list[FailureNote]:
    """Return what is remembered of a phase, without the tasks that have succeeded since."""
    listed = run.store.list(f"manifests/{phase.name}")
    done = {name.replace("/task-", "/failed-") for name in listed if "/task-" in name}
    notes = []
    for name in listed:
        if "/failed-" not in name or name in done:
            continue
        try:
            content: dict[str, Any] = json.loads(run.store.read(name))
            units = tuple(int(number) for number in content["units"])
            note = FailureNote(
                phase.name, units, str(content["error"]), str(content["log"]),
                int(content["code"]), str(content["host"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError, DataError):
            continue  # half written by a dying node: the log has it
        notes.append(note)
    return notes


def failure_error(phase: Phase, failures: Sequence[Failure | FailureNote]) -> CorpuskitError:
    """Return the error that names the failed tasks, their logs, and how to go on."""
    lines = [
        f"phase {phase.name}: {len(failures)} of its tasks failed; "
        "the others finished and are kept."
    ]
    for failure in failures[:SHOWN]:
        units = failure.task.units if isinstance(failure, Failure) else failure.units
        lines.append(f"  {span(units)}: {failure.error}")
        if failure.code == 1:
            lines.append(f"    log: {failure.log}")
    if len(failures) > SHOWN:
        lines.append(f"  and {len(failures) - SHOWN} more.")
    # Repeating heals a worker that died, no file that is broken and no parameter that is wrong.
    is_wrong = any(failure.code != 1 for failure in failures)
    first = "Correct that, then run" if is_wrong else "Run"
    lines.append(f"{first} the same command again to continue.")
    kind = DataError if all(failure.code == 3 for failure in failures) else TaskError
    return kind("\n".join(lines))


def span(units: Sequence[int]) -> str:
    """Return units as people write them; without any, a slot failed before it had one."""
    if not units:
        return "a slot"
    return f"units {units[0]}" if len(units) == 1 else f"units {units[0]}-{units[-1]}"
