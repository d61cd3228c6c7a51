"""Shuffle files that nobody reads any more: which they are, and what deleting them means.

With `shuffle_files: delete` they go when the last pass that reads them is sealed. The seal of who
wrote them says so before the first of them is gone, and otherwise stays as it was: what later
phases were made from has not changed. Such a phase is finished as long as those are that read it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from corpuskit.engine.fingerprint import same_but_code
from corpuskit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpuskit.engine.plan import Phase, Plan
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.formats.manifest import Seal


def release(run: RunDirectory, phase: Phase, seal: Seal) -> None:
    """Delete the shuffle files that nobody reads after a phase, which is sealed, if that is wanted.

    Args:
        seal: of the phase.
    """
    if run.plan.settings.shuffle_files == "keep" or not seal.units:
        return
    for index in phase.earlier:
        writer, written = run.plan.phases[index], run.seal(index)
        roles = unread_after(run.plan, phase, writer, written.parts.digests)
        if not roles:
            continue
        deleted = tuple(sorted({*written.deleted, *roles}))
        if deleted != written.deleted:
            written = dataclasses.replace(written, deleted=deleted)
            run.store.put(run.seal_name(writer), written.to_json())
            run.set_seal(writer, written)
        there = set(run.store.list(f"work/{writer.name}"))
        paths = (path for role in deleted for path in written.by_role(role).paths())
        run.store.delete(path for path in paths if path in there)


def unread_after(plan: Plan, phase: Phase, writer: Phase, roles: Iterable[str]) -> list[str]:
    """Return the roles of an earlier pass of the same stage that nobody reads after a phase."""
    if writer.index not in phase.earlier:
        return []
    files = plan.current_pass(phase).done_with
    names = {
        name for first, _, name in (f.partition("/") for f in files) if first == writer.pass_name
    }
    return [
        role
        for role in roles
        if role.startswith("run:") and not names.isdisjoint(("", role.removeprefix("run:")))
    ]


def stages_without_units(plan: Plan) -> list[str]:
    """Return the stages whose units will not be reused, since their shuffle files are deleted."""
    if plan.settings.shuffle_files == "keep":
        return []
    passes = [(phase, plan.current_pass(phase)) for phase in plan.phases if not phase.is_stream]
    alone = {phase.labels[0]: one.name for phase, one in passes if one.is_cell_alone}
    read = {(p.labels[0], file.partition("/")[0]) for p, one in passes for file in one.done_with}
    return [label for label, name in alone.items() if (label, name) in read]


def was_read(
    run: RunDirectory, phase: Phase, seal: Seal, *, accept_code: bool, trust: bool
) -> bool:
    """Return whether the phases that read what was deleted of a phase need not run again.

    Args:
        accept_code, trust: see `PhaseWork`.
    """
    last = _last_reader(run, phase, seal)
    for later in run.plan.phases[phase.index + 1 :]:
        if last < later.index or last == len(run.plan.phases):
            break
        later_seal = run.usable_seal(later)
        if later_seal is None:
            return False
        try:
            fingerprint = run.fingerprint(later)
        except DataError:  # one of those that it waits for is not sealed
            return False
        is_same = later_seal.fingerprint == fingerprint or (
            accept_code and same_but_code(later_seal.fingerprint, fingerprint)
        )
        if not is_same or not (trust or run.has_parts(later_seal)):
            return False
        last = max(last, _last_reader(run, later, later_seal))
    return last < len(run.plan.phases)


def _last_reader(run: RunDirectory, phase: Phase, seal: Seal) -> int:
    """Return the last phase that reads deleted files of a phase; past the end if it is unknown."""
    left, last = set(seal.deleted), phase.index
    for later in run.plan.phases[phase.index + 1 :]:
        read = set(unread_after(run.plan, later, phase, left)) if left else set()
        if read:
            later_seal = run.usable_seal(later)
            if later_seal is None or later_seal.units:
                left -= read
                last = later.index
    return len(run.plan.phases) if left else last
