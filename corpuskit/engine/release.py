"""Deletes shuffle files that no later pass reads (`shuffle_files: delete`).

They are deleted when the last pass that reads them is sealed: the peak at 65 TB of text through
substring_dedup is then 2.22 bytes per byte of text, instead of 3.28 at the end of the stage. First
the seal of their writer records the deleted roles, and nothing else in it changes: later phases
were made from the same content. A phase with deleted files counts as finished while the phases that
read them are finished.
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
    """Delete the shuffle files that nobody reads after a sealed phase, if the settings say so."""
    if run.plan.settings.shuffle_files == "keep" or not seal.units:
        return
    for index in phase.earlier:
        writer, seal_of_writer = run.plan.phases[index], run.seal(index)
        roles = unread_after(run.plan, phase, writer, seal_of_writer.parts.digests)
        if not roles:
            continue
        deleted = tuple(sorted({*seal_of_writer.deleted, *roles}))
        if deleted != seal_of_writer.deleted:
            seal_of_writer = dataclasses.replace(seal_of_writer, deleted=deleted)
            run.store.put(run.seal_name(writer), seal_of_writer.to_json())
            run.set_seal(writer, seal_of_writer)
        names = set(run.store.list(f"work/{writer.name}"))
        paths = (path for role in deleted for path in seal_of_writer.by_role(role).paths())
        run.store.delete(path for path in paths if path in names)


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
    cell_passes = {phase.labels[0]: p.name for phase, p in passes if p.is_cell_alone}
    used = {(phase.labels[0], f.partition("/")[0]) for phase, p in passes for f in p.done_with}
    return [label for label, name in cell_passes.items() if (label, name) in used]


def was_read(
    run: RunDirectory, phase: Phase, seal: Seal, *, accept_code: bool, trust: bool
) -> bool:
    """Return whether the phases that read what was deleted of a phase need not run again.

    Args:
        accept_code, trust: see `PhaseWork`.
    """
    last = _last_reader(run, phase, seal)
    for reader in run.plan.phases[phase.index + 1 :]:
        if last < reader.index or last == len(run.plan.phases):
            break
        later_seal = run.usable_seal(reader)
        if later_seal is None:
            return False
        try:
            fingerprint = run.fingerprint(reader)
        except DataError:  # one of those that it waits for is not sealed
            return False
        is_same = later_seal.fingerprint == fingerprint or (
            accept_code and same_but_code(later_seal.fingerprint, fingerprint)
        )
        if not is_same or not (trust or run.has_parts(later_seal)):
            return False
        last = max(last, _last_reader(run, reader, later_seal))
    return last < len(run.plan.phases)


def _last_reader(run: RunDirectory, phase: Phase, seal: Seal) -> int:
    """Return the last phase that reads deleted files of a phase; past the end if it is unknown."""
    unread, last = set(seal.deleted), phase.index
    for reader in run.plan.phases[phase.index + 1 :]:
        roles = set(unread_after(run.plan, reader, phase, unread)) if unread else set()
        if roles:
            later_seal = run.usable_seal(reader)
            if later_seal is None or later_seal.units:
                unread -= roles
                last = reader.index
    return len(run.plan.phases) if unread else last
