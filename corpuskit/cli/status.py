"""Show how far a run is, what failed, and the funnel so far."""

from __future__ import annotations

import click


@click.command("status")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("seconds", required=False, type=click.FloatRange(0.1), metavar="[SECONDS]")
@click.option("--watch", is_flag=True, help="Show progress until the run ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; with --watch an object per change."
)
def command(directory: str, seconds: float | None, watch: bool, as_json: bool) -> None:
    """Show how far the run in DIRECTORY is: phases, tasks, and the funnel so far.

    Reads only the run's files, so it works from anywhere, whatever runs the tasks. For a run in
    Slurm it also shows the jobs, and names those that can never start.

    With --watch it looks again every SECONDS (2) until the run ends, and returns the exit code of
    the run: 0 when it is finished, 1, 3 or 4 when it has failed or was stopped. On a terminal it
    draws in place; in a pipe or a log file it prints a line a minute. Ctrl-C does not stop the run.

    \b
    Examples:
      corpuskit status runs/quickstart
      corpuskit status runs/quickstart --watch
      corpuskit status s3://bucket/runs/web --watch 30
    """
    import json

    from corpuskit.engine.rundir import RunDirectory

    if watch:
        _watch(directory, seconds or 2.0, as_json=as_json)
        return
    if seconds is not None:
        raise click.UsageError(f"Got {seconds:g}, but not --watch.")
    run = RunDirectory.open(directory)
    if as_json:
        from corpuskit.engine.contracts import contract_facts
        from corpuskit.engine.status import failures_of, jobs_of, run_facts, sealed

        facts = {**run_facts(run), **contract_facts(run, sealed(run)), **jobs_of(run).facts()}
        facts["failures"] = [note.__dict__ for note in failures_of(run)]
        click.echo(json.dumps(facts, indent=1))
        return
    from corpuskit.cli._tables import print_failures, print_jobs, print_results, print_status
    from corpuskit.engine.phase import phase_statuses
    from corpuskit.engine.status import failures_of, jobs_of, sealed

    print_status(phase_statuses(run, trust=True))
    print_jobs(run, jobs_of(run))
    print_failures(failures_of(run))
    print_results(run, sealed(run))


def _watch(directory: str, seconds: float, *, as_json: bool) -> None:
    """Show the run until it ends; then what came of it."""
    import sys

    from corpuskit.cli._progress import watch
    from corpuskit.cli._streams import echo
    from corpuskit.cli._tables import print_failures, print_results
    from corpuskit.engine.contracts import contract_problem, contracts
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import failures_of, sealed
    from corpuskit.errors import ContractError

    try:
        progress, code = watch(directory, seconds, as_json=as_json)
    except KeyboardInterrupt:
        resume = f"corpuskit status {directory} --watch"
        echo(f"This ends the watching only. Go on with: {resume}", err=True)
        raise click.Abort from None
    run = RunDirectory.open(directory)
    finished = sealed(run)
    problem = contract_problem(contracts(run, finished))
    code = ContractError.exit_code if problem else code
    if as_json:
        sys.exit(code)
    if progress.state == "finished":
        print_results(run, finished)
        click.echo(f"Finished: {run.store.address}")
    else:
        print_failures(failures_of(run))
        why = problem or progress.note or "Run the same command again to continue."
        echo(
            f"The run {'has failed' if progress.state == 'failed' else 'was stopped'}. {why}",
            err=True,
        )
    sys.exit(code)
