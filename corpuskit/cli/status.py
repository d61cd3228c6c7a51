"""Show how far a run is, what failed, and the funnel so far."""

from __future__ import annotations

import click


@click.command("status")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, as_json: bool) -> None:
    """Show how far the run in DIRECTORY is: phases, tasks, and the funnel so far.

    Reads manifests only, so it is right whoever runs the tasks, and wherever.
    """
    import json
    from pathlib import Path

    from corpuskit.cli._tables import print_funnel, print_mixture, print_status
    from corpuskit.run.rundir import RunDirectory
    from corpuskit.run.status import funnel, mixture, prospects_of, run_facts

    run = RunDirectory.open(Path(directory))
    if as_json:
        click.echo(json.dumps(run_facts(run), indent=1))
        return
    print_status(prospects_of(run))
    print_funnel(funnel(run))
    print_mixture(mixture(run))
