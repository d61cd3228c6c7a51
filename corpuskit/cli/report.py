"""Write one HTML page about a run: what was lost where and why, samples, mixture, cost, plan."""

from __future__ import annotations

import click


@click.command("report")
@click.argument("directory", metavar="DIRECTORY")
@click.option("-o", "--output", metavar="FILE",
              help="Write here. [default: DIRECTORY/report.html; of a run in object storage, "
              "NAME-report.html in this folder]")  # fmt: skip
@click.option("--samples", type=click.IntRange(0, 1000), default=20, show_default=True,
              help="Documents to show of each rule, action and source.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    help="Another number shows other documents.",
)
@click.option("--training", "trainings", multiple=True, metavar="OUTPUT",
              help="Draw the curves of the training in this folder; may be repeated. [default: "
              "trainings on this run in folders beside it that begin with its name]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True,
              help="Print the facts as JSON; write no page.")  # fmt: skip
def command(
    directory: str,
    output: str | None,
    samples: int,
    seed: int,
    trainings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a page about the run in DIRECTORY; it may be running, finished or failed.

    One self-contained HTML file: the funnel by stage and source, drops by rule, measurements with
    their thresholds, languages, domains and lengths before and after, duplicates, samples to
    search, the mixture, time and memory, the plan.
    """
    import json

    from corpuskit.cli._streams import echo, one_line
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.report.facts import gather
    from corpuskit.inspect.report.page import find_trainings, render, report_path
    from corpuskit.inspect.training import training_section
    from corpuskit.storage import write_whole

    run = RunDirectory.open(directory)
    if as_json:
        facts = gather(run, samples=samples, seed=seed, training=trainings)
        echo(json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False))
        return
    path = report_path(directory, output)
    outputs = trainings or find_trainings(directory)
    curves = "".join(training_section(folder) for folder in outputs)
    facts = gather(run, samples=samples, seed=seed, training=outputs)
    content = render(facts, curves).encode()
    write_whole(path, content)
    size = f"{len(content) / 1e6:.1f} MB" if len(content) >= 1e6 else f"{len(content) / 1e3:.0f} kB"
    echo(one_line(f"{path} ({size})"))
    for folder in outputs:
        echo(one_line(f"with the training in {folder}"))
