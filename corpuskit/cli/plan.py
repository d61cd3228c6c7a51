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
    """Show the phases of PIPELINE, their tasks, and what can be reused; nothing is run.

    A phase marked `later` waits for phases that must run first; whether it can be reused depends on
    whether they write anything new.
    """
    import json

    from corpuskit.cli._tables import print_prospects
    from corpuskit.plan import read_plan
    from corpuskit.run.pipeline import prospects
    from corpuskit.run.status import prospect_facts

    plan = read_plan(pipeline, overrides, until=until)
    run, found = prospects(plan, accept_code=accept_code_change)
    if as_json:
        click.echo(json.dumps([prospect_facts(one) for one in found], indent=1))
        return
    print_prospects(run, found)
