"""What the phase that reads the input has done so far, before it is sealed.

It is the longest one of most runs, so the figures of a run that is at work, or failed, would else
be empty for hours. Later phases count what they drop of documents that are known already: part of
one would say that too many are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpuskit.formats.manifest import Seal

if TYPE_CHECKING:
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import RunStatus, Sealed

MAX_MANIFESTS = 5000
"""With more of them nothing is shown before the seal: half a millisecond each."""


def begun(run: RunDirectory, finished: Sealed, state: RunStatus) -> tuple[Sealed, list[str]]:
    """Return the finished phases or, before there are any, what the first one has done so far.

    Returns:
        Phases with their seals, and what is to be said about them.
    """
    first = state.phase_statuses[0] if state.phase_statuses else None
    if finished or first is None or not first.units:
        return finished, []
    names = run.manifest_names(first.phase, first.fingerprint)
    if not names or len(names) > MAX_MANIFESTS:
        return finished, []
    manifests = run.manifests(first.phase, first.fingerprint).values()
    seal = Seal.merge(first.phase.name, first.fingerprint, manifests)
    run.set_seal(first.phase, seal)
    note = (
        f"All figures are of {len(seal.units)} of {first.units} pieces of the input: phase "
        f"{first.phase.name}, which reads it, is not finished."
    )
    return [(first.phase, seal)], [note]
