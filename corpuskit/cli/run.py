"""Run a pipeline, or continue where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corpuskit.engine.pipeline import RunResult, Submission


@click.command("run")
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--workers", type=click.IntRange(0),
              help="Worker processes (executor.workers); 0: work in this process.")  # fmt: skip
@click.option("--executor", type=click.Choice(["local", "slurm", "ray"]),
              help="Where tasks run (executor.kind).")  # fmt: skip
@click.option("--wait", is_flag=True, help="Slurm: stay and show progress until the run ends.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="A.B=VALUE",
    help="Override a value of the file; stages by name: gopher_quality.min_words=80.",
)
@click.option("--until", metavar="STAGE", help="Stop after this stage.")
@click.option(
    "--accept-code-change",
    is_flag=True,
    help="Reuse results that differ in nothing but corpuskit's own code; recorded.",
)
@click.option("--accept", is_flag=True, help="Go on where `expect` does not hold; recorded.")
@click.option("--force", is_flag=True, help="Run although memory or disk seem too small.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    pipeline: str,
    workers: int | None,
    executor: str | None,
    wait: bool,
    overrides: tuple[str, ...],
    until: str | None,
    accept_code_change: bool,
    accept: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run PIPELINE (a YAML file), or continue where it stopped.

    Finished phases are reused: a phase runs again only if its inputs, parameters, model files or
    code changed, or if a phase before it wrote something else. Killing this command at any moment
    loses only the tasks in progress. `corpuskit status DIRECTORY --watch` shows the same progress
    in another shell. Exit code 4: a stage did what `expect` of the file does not allow.

    \b
    Examples:
      corpuskit run pipelines/quickstart.yaml
      corpuskit run p.yaml --workers 8 --set minhash_dedup.bands=20
      corpuskit run p.yaml --until exact_dedup
      corpuskit run p.yaml --executor slurm --set executor.slurm.slots=32
    """
    import json

    from corpuskit.cli._progress import observer
    from corpuskit.cli._streams import end_unread
    from corpuskit.engine.pipeline import run, submit
    from corpuskit.engine.plan import read_plan
    from corpuskit.engine.status import run_facts

    executor_overrides = [f"executor.workers={workers}"] if workers is not None else []
    executor_overrides += [f"executor.kind={executor}"] if executor else []
    plan = read_plan(pipeline, [*overrides, *executor_overrides], until=until)
    is_slurm = plan.settings.executor.kind == "slurm"
    allowed: dict[str, Any] = {"accept": accept, "accept_code": accept_code_change, "force": force}
    hint = "The jobs go on." if is_slurm else "Run the same command again to continue."
    try:
        with observer(quiet=as_json or quiet) as watch:
            if is_slurm and not wait:
                submitted = submit(plan, watch, **allowed)
                if as_json or not quiet:
                    _print_jobs(submitted, as_json=as_json)
                return
            result = run(plan, watch, **allowed)
    except KeyboardInterrupt:
        click.echo(f"Stopped. {hint}", err=True)
        raise click.Abort from None
    except BrokenPipeError:
        end_unread(hint)
    if as_json:
        click.echo(json.dumps(run_facts(result.run), indent=1))
    elif not quiet:
        _print_results(result)


def _print_results(result: RunResult) -> None:
    from corpuskit.cli._tables import print_results

    print_results(result.run, list(zip(result.run.plan.phases, result.seals, strict=True)))
    click.echo(f"Run directory: {result.run.store.address}")


def _print_jobs(submitted: Submission, *, as_json: bool) -> None:
    """Say what was submitted and how to go on from here."""
    import dataclasses
    import json

    address = submitted.run.store.address
    if as_json:
        jobs = [dataclasses.asdict(job) for job in submitted.jobs]
        click.echo(json.dumps({"directory": address, "jobs": jobs}, indent=1))
        return
    for job in submitted.jobs:
        click.echo(f"{job.phase}: job {job.number}, {job.slots} slots")
    if not submitted.jobs:
        click.echo("Nothing to do: every phase is finished.")
        return
    numbers = " ".join(job.number for job in submitted.jobs)
    click.echo(f"Follow it:  corpuskit status {address} --watch")
    click.echo(f"Cancel it:  scancel {numbers}")
