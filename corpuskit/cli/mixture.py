"""Search the weights of sources with which a model gets best."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._streams import echo, one_line
from corpuskit.cli._train_export import needs_torch
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corpuskit.ablate.mixture import MixtureSearch


@click.group("mixture")
def command() -> None:
    """Search the weights of sources with which a model gets best."""


@command.command("search")
@click.argument("pipeline", type=click.Path(dir_okay=False))
@click.option("--target-tokens", metavar="N", help="Length of the run that is planned, as in 10B.  "
              "[that of the pipeline's mix]")  # fmt: skip
@click.option("--supply", multiple=True, metavar="SOURCE=N",
              help="Tokens of a source for that run.  [what the corpus has]")  # fmt: skip
@click.option("--max-epochs", type=click.FloatRange(0, min_open=True), default=4, show_default=True,
              help="How often that run may repeat a source.")  # fmt: skip
@click.option("--cap", multiple=True, metavar="SOURCE=EPOCHS", help="The same for one source.")
@click.option("--min-share", multiple=True, metavar="SOURCE=SHARE", help="Least share, as in .05.")
@click.option("--objective", multiple=True, metavar="DOMAIN=WEIGHT",
              help="What counts, of sources and tasks.  [all equally]")  # fmt: skip
@click.option("--runs", type=click.IntRange(6), help="Trainings to fit to.  [10 per source]")
@click.option("--tokens", metavar="N", help="Tokens of each training.  [1/16 of the target]")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True,
              help="Trainings of each mixture that is confirmed.")  # fmt: skip
@click.option("--training", "files", multiple=True, type=click.Path(dir_okay=False, exists=True),
              help="Training file of proxies.  [0.5 M parameters]")  # fmt: skip
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of the pipeline.")  # fmt: skip
@click.option("--task", "tasks", multiple=True, metavar="NAME=FILE",
              help="Also judge by the items of a file, as `corpuskit evaluate`.")  # fmt: skip
@click.option("--documents", type=click.IntRange(0), default=200, show_default=True,
              help="Held-out documents of each source to judge by.")  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True,
              help="Of the confirmed differences.")  # fmt: skip
@click.option("-o", "--output", metavar="DIR", help="Folder of the search.  [runs/NAME-mixture]")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Trainings at the same time, a process each.")  # fmt: skip
@click.option("--slot", metavar="I/N", help="Only every N-th training from I on, for job arrays.")
@click.option("--plan", "is_plan", is_flag=True, help="Show what would be run and its cost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def search_command(pipeline: str, is_plan: bool, **options: Any) -> None:
    """Train small models on mixtures of the sources, and find the weights that do best.

    The corpus is built once. Proxies train in mixtures drawn around natural weights, then near the
    best that a regression predicts. They repeat each source as often as the planned run would. The
    result is trained again with other seeds, beside proportional and current weights.

    Killed, it continues. With more --runs, or another source, finished trainings are kept.

    \b
    Examples:
      corpuskit mixture search p.yaml --plan
      corpuskit mixture search p.yaml --target-tokens 10B --supply web=9B --supply math=200M
      corpuskit mixture search p.yaml --min-share web=.3 --objective math=2 --objective web=1
    """
    search = read_search(pipeline, **options)
    search.check()
    if is_plan:
        _print_plan(search)
    else:
        _run(search, options)


def read_search(pipeline: str, **options: Any) -> MixtureSearch:
    """Return what the options of the command ask for."""
    from corpuskit.ablate.mixture import Bounds, MixtureSearch
    from corpuskit.ablate.study import Study
    from corpuskit.ablate.variants import Variant
    from corpuskit.cli.ablate import read_sizes, read_tokens
    from corpuskit.cli.evaluate import named_tasks
    from corpuskit.engine.config import read_pipeline

    if len(options["files"]) > 1:
        raise UsageError("--training: a search has one size of proxies. Give one file.")
    file = read_pipeline(pipeline, options["overrides"])
    variant = Variant(file.settings.name, file)
    target = options["target_tokens"]
    study = Study(
        Path(options["output"] or f"runs/{variant.slug}-mixture"),
        [variant],
        read_sizes(options["files"]),
        num_seeds=options["seeds"],
        tokens=None if options["tokens"] is None else read_tokens(options["tokens"]),
        tasks=named_tasks(options["tasks"]),
        max_documents=options["documents"],
        confidence=options["confidence"],
    )
    bounds = Bounds(
        None if target is None else read_tokens(target),
        _pairs("--supply", options["supply"], read_tokens),
        options["max_epochs"],
        _pairs("--cap", options["cap"], _positive),
        _pairs("--min-share", options["min_share"], _positive),
    )
    objective = _pairs("--objective", options["objective"], _positive)
    return MixtureSearch(study, bounds, options["runs"], objective)


def _pairs(option: str, pairs: Sequence[str], read: Callable[[str], float]) -> dict[str, float]:
    """Return what `NAME=VALUE` options say."""
    values: dict[str, float] = {}
    for number, pair in enumerate(pairs, 1):
        name, _, value = pair.rpartition("=")
        try:
            values[name] = read(value)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{option} {pair}: must look like web=2, with a number above 0.")
        if len(values) < number:
            raise UsageError(f"{option} {pair}: {name!r} is given twice. Leave one out.")
    return values


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def _run(search: MixtureSearch, options: Mapping[str, Any]) -> None:
    with needs_torch():
        import corpuskit.train.loop  # noqa: F401
    from corpuskit.ablate.mixture import write_results
    from corpuskit.ablate.study import find_judges, read_corpora
    from corpuskit.cli.ablate import build, note, share, start_jobs, train

    slot, study = options["slot"], search.study
    [corpus] = read_corpora(study) if slot else build(study, quiet=options["as_json"])
    judges = find_judges(study, [corpus])
    search.weights(judges)
    scale = search.scale(corpus)
    for name, rows in zip(scale.names, scale.windows.tolist(), strict=True):
        if rows < FEW_ROWS:
            note(f"{name}: proxies know {rows} of its rows, a poor sample. Raise --tokens.")
    phases = {
        "drawn widely": search.wide, "near the best so far": search.near,
        "to confirm": search.confirming,
    }  # fmt: skip
    for title, phase in phases.items():
        trainings = phase(corpus, judges)
        if not slot:
            note(f"{len(trainings)} trainings {title}")
            start_jobs(trainings, options["jobs"])
        train(share(trainings, slot) if slot else trainings, judges, keep_models=False)
        if not all(training.is_done for training in trainings):
            return  # other slots do the rest
    if slot:
        return
    results = search.results(corpus, judges)
    path = write_results(study.folder, results)
    if options["as_json"]:
        click.echo(json.dumps(results, indent=1))
        return
    _print_results(results)
    echo(f"\n{path.read_text('utf-8')}\nwrote {path} and mixture.json beside it")


FEW_ROWS = 20


def _print_plan(search: MixtureSearch) -> None:
    from corpuskit.ablate.mixture import RUNS_PER_SOURCE, SHORTER
    from corpuskit.cli.ablate import print_plan

    study, target = search.study, search.bounds.target_tokens
    if study.tokens is None and target is not None:
        study = dataclasses.replace(study, tokens=target // SHORTER)
    runs = search.runs or RUNS_PER_SOURCE * len(study.variants[0].file.sources)
    max_confirming = 3 * study.num_seeds
    counts = f"{runs} to fit to, at most {max_confirming} to confirm"
    print_plan(study, runs + max_confirming, counts, f"1/{SHORTER} of the pipeline's tokens")


def _print_results(results: Mapping[str, Any]) -> None:
    unseen = results["unseen"]
    echo(
        f"{results['runs']} runs of {results['tokens']:,} tokens, for a run of "
        f"{results['target_tokens']:,}"
    )
    echo(
        f"  bits per byte of unseen runs are predicted to +-{unseen['error']:.4f}; they vary by "
        f"+-{unseen['spread']:.4f}; rank correlation {unseen['rank_correlation']:.2f}"
    )
    echo(f"  {'source':<20} {'share':>6}  90 % of resamples  epochs  proportional  current")
    for row in results["sources"]:
        mark = "  at its cap" if row["share"] >= row["cap_share"] < 1 else ""
        echo(
            one_line(
                f"  {row['name']:<20} {row['share']:6.3f}  {row['low']:6.3f} to {row['high']:.3f}"
                f"   {row['epochs']:6.2f}  {row['proportional']:12.3f}  {row['current']:7.3f}{mark}"
            )
        )
    for name, domains in results["differences"].items():
        echo("")
        echo(one_line(f"searched against {name}, {results['seeds']} new seeds"))
        for domain, row in domains.items():
            mark = "" if row["is_decided"] else "  undecided"
            echo(
                one_line(
                    f"  {domain or 'objective':<20} {row['mean']:+.4f}  "
                    f"{row['low']:+.4f} to {row['high']:+.4f}{mark}"
                )
            )
