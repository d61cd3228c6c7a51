"""Show the phases of a pipeline and what would run now; run nothing."""

from __future__ import annotations

import click


@click.command("plan")
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of the file, as for `run`.")  # fmt: skip
@click.option("--until", metavar="STAGE", help="Stop after this stage.")
@click.option("--accept-code-change", is_flag=True, help="As for `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    pipeline: str,
    overrides: tuple[str, ...],
    until: str | None,
    accept_code_change: bool,
    as_json: bool,
) -> None:
    """Show the phases of PIPELINE, what can be reused, and what the others need; nothing is run.

    A phase marked `later` waits for phases that must run first; whether it can be reused depends on
    whether they write anything new.

    Compares the memory and disk that it needs with what is available, as `run` does. ~ marks
    estimates; a phase that has not run is assumed to drop nothing.

    The mixture is what training would take of each source: rows, tokens and epochs, exact once the
    documents are packed.

    Where stages apply to some sources or documents only, a table shows which apply to which.
    """
    import json

    from corpuskit.cli import _tables
    from corpuskit.engine.expect import plan_warnings
    from corpuskit.engine.mixture import MIX, mixture
    from corpuskit.engine.pipeline import preview
    from corpuskit.engine.plan import read_plan
    from corpuskit.engine.resources import preflight

    plan = read_plan(pipeline, overrides, until=until)
    run, phases = preview(plan, accept_code=accept_code_change)
    flight = preflight(run, phases)
    reused = [
        (phase.phase, run.seal(phase.phase.index)) for phase in phases if phase.state == "reuse"
    ]
    mix = mixture(run, reused)
    if as_json:
        needs = flight.facts()
        rows = [{**phase.to_json(), "need": needs.get(phase.phase.name)} for phase in phases]
        for row in rows:
            row["applies"] = {
                label: applies.to_json()
                for label in row["stages"]
                if (applies := run.plan.step(label).applies).is_limited
            }
            if mix is not None and row["phase"] == MIX:
                row["mixture"] = mix.facts()
        click.echo(json.dumps(rows, indent=1))
        return
    _tables.print_grid(run.plan.file)
    _tables.print_prospects(run, phases)
    _tables.print_contracts(run, reused)
    for warning in plan_warnings(run.plan.file.steps):
        click.echo(f"Warning: {warning}")
    _tables.print_mixture(mix)
    _tables.print_needs(flight)
