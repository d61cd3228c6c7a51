"""Run a pipeline, or continue where it stopped."""

from __future__ import annotations

import click


@click.command("run")
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--workers", type=click.IntRange(1), help="Worker processes (executor.workers).")
@click.option("--executor", type=click.Choice(["local"]), help="Where tasks run (executor.kind).")
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
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    pipeline: str,
    workers: int | None,
    executor: str | None,
    overrides: tuple[str, ...],
    until: str | None,
    accept_code_change: bool,
    as_json: bool,
) -> None:
    """Run PIPELINE (a YAML file), or continue where it stopped.

    What is finished is reused: a phase runs again only if its inputs, parameters, model files or
    code changed, or if a phase before it wrote something else. Killing this command at any moment
    loses nothing but the tasks in flight.

    \b
    Examples:
      corpuskit run pipelines/quickstart.yaml
      corpuskit run p.yaml --workers 8 --set minhash_dedup.bands=20
      corpuskit run p.yaml --until exact_dedup
    """
    import json

    from corpuskit.cli._progress import observer
    from corpuskit.cli._tables import print_funnel, print_mixture
    from corpuskit.plan import read_plan
    from corpuskit.run.pipeline import run
    from corpuskit.run.status import funnel, mixture, run_facts

    more = [f"executor.workers={workers}"] if workers else []
    more += [f"executor.kind={executor}"] if executor else []
    plan = read_plan(pipeline, [*overrides, *more], until=until)
    try:
        with observer(quiet=as_json) as watch:
            result = run(plan, watch, accept_code=accept_code_change)
    except KeyboardInterrupt:
        click.echo("Stopped. Run the same command again to continue.", err=True)
        raise click.Abort from None
    if as_json:
        click.echo(json.dumps(run_facts(result.run), indent=1))
        return
    print_funnel(funnel(result.run))
    print_mixture(mixture(result.run))
    click.echo(f"Run directory: {result.run.store.root}")
