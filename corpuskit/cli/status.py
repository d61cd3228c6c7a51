"""Show how far a run is, what failed, and the funnel so far."""

from __future__ import annotations

import click


@click.command("status")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, as_json: bool) -> None:
    """Show how far the run in DIRECTORY is: phases, tasks, and the funnel so far.

    Reads manifests only, so it is right whoever runs the tasks, and wherever. For a run in Slurm it
    also shows the jobs, and names those that wait for something that will never come.
    """
    import json

    from corpuskit.cli._packing import print_packing
    from corpuskit.cli._tables import (
        print_failures,
        print_funnel,
        print_jobs,
        print_mixture,
        print_status,
    )
    from corpuskit.run.jobs import failures_of, jobs_of
    from corpuskit.run.mixture import mixture
    from corpuskit.run.packing import packing
    from corpuskit.run.rundir import RunDirectory
    from corpuskit.run.status import funnel, prospects_of, run_facts, sealed

    run = RunDirectory.open(directory)
    if as_json:
        facts = {**run_facts(run), **jobs_of(run).facts()}
        facts["failures"] = [note.__dict__ for note in failures_of(run)]
        click.echo(json.dumps(facts, indent=1))
        return
    print_status(prospects_of(run, trust=True))
    print_jobs(jobs_of(run))
    print_failures(failures_of(run))
    finished = sealed(run)
    print_funnel(funnel(run, finished))
    print_packing(packing(finished))
    print_mixture(mixture(run, finished))
