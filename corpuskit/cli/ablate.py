"""Find out which of several corpora makes the better model."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._streams import echo, one_line
from corpuskit.cli._train_export import needs_torch
from corpuskit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corpuskit.ablate.study import Corpus, Proxy, Study
    from corpuskit.train.settings import TrainSettings


@click.command("ablate")
@click.argument("pipelines", nargs=-1, required=True, type=click.Path(dir_okay=False),
                metavar="PIPELINE...")  # fmt: skip
@click.option("--vary", multiple=True, metavar="STAGE.PARAMETER=V,V",
              help="A variant for each value; several: one at a time.")  # fmt: skip
@click.option("--grid", is_flag=True, help="Combine the values of several --vary.")
@click.option("--max-variants", type=click.IntRange(1), default=64, show_default=True,
              help="Refuse to make more.")  # fmt: skip
@click.option("--drop-stage", multiple=True, metavar="STAGE", help="A variant without this stage.")
@click.option("--leave-one-out", is_flag=True, help="A variant without each of the stages.")
@click.option("--swap-source", multiple=True, metavar="SOURCE=PATH",
              help="A variant with other files of a source.")  # fmt: skip
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of all pipelines.")  # fmt: skip
@click.option("--training", "files", multiple=True, type=click.Path(dir_okay=False, exists=True),
              help="Training file of proxies; repeat for sizes.  [0.5 M parameters]")  # fmt: skip
@click.option("--tokens", metavar="N", help="Tokens of each training, as in 300K; several, "
              "N,N,N, show how losses fall.  [all of the smallest corpus, once]")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True,
              help="Trainings of each variant.")  # fmt: skip
@click.option("--task", "tasks", multiple=True, metavar="NAME=FILE",
              help="Also judge by the items of a file, as `corpuskit evaluate`.")  # fmt: skip
@click.option("--documents", type=click.IntRange(0), default=200, show_default=True,
              help="Held-out documents of each source to judge by.")  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.99, show_default=True,
              help="Of all verdicts together.")  # fmt: skip
@click.option("--canaries", metavar="N,N", help="Also plant secrets this many times, in further "
              "trainings of the first variant, and say which it has memorised.")  # fmt: skip
@click.option("--max-exposure", type=click.FloatRange(0, 33), default=4, show_default=True,
              help="Bits of exposure that a secret may have.")  # fmt: skip
@click.option("-o", "--output", metavar="DIR", help="Folder of the study.  [runs/NAME-ablation]")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Trainings at the same time, a process each.")  # fmt: skip
@click.option("--plan", "is_plan", is_flag=True, help="Show what would be run and its cost.")
@click.option("--build", "is_build", is_flag=True, help="Only build the corpora.")
@click.option("--slot", metavar="I/N", help="Only every N-th training from I on, for job arrays.")
@click.option("--sbatch", "is_script", is_flag=True, help="Print a script of Slurm job arrays.")
@click.option("--keep-models", is_flag=True, help="Keep the last checkpoint of each training.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(pipelines: tuple[str, ...], is_plan: bool, is_script: bool, **options: Any) -> None:
    """Build the corpora of several pipelines, train small models on each, and compare them.

    All variants get equal tokens, the same seeds, and the same judges: documents that their
    `holdout` stages set aside, and tasks. The answer is which one is better and by how much, with
    an interval, or that it is undecided, and how many more seeds would decide it.

    Killed, it continues where it stopped. Corpora share what they have in common.

    \b
    Examples:
      corpuskit ablate base.yaml strict.yaml
      corpuskit ablate base.yaml --vary gopher_quality.min_words=20,50,100 --tokens 1M
      corpuskit ablate base.yaml --leave-one-out --seeds 5 --jobs 8
      corpuskit ablate a.yaml b.yaml --training small.yaml --training large.yaml
      corpuskit ablate a.yaml b.yaml --tokens 100K,200K,400K --canaries 1,4,16,64
    """
    study = _read_study(pipelines, options)
    study.check()
    if is_plan:
        num = (len(study.variants) + bool(study.canaries)) * study.num_seeds
        counts = f"{len(study.variants)} variants x {study.num_seeds} seeds"
        counts += f" + {study.num_seeds} with canaries" if study.canaries else ""
        print_plan(study, num, counts, "all tokens of the smallest corpus")
    elif is_script:
        click.echo(_script(study), nl=False)
    else:
        _run(study, options)


def _run(study: Study, options: Mapping[str, Any]) -> None:
    with needs_torch():
        import corpuskit.train.loop  # noqa: F401
    from corpuskit.ablate.canaries import summarise, with_canaries
    from corpuskit.ablate.page import write_results
    from corpuskit.ablate.study import find_judges, read_corpora

    slot, as_json = options["slot"], options["as_json"]
    corpora = read_corpora(study) if slot else build(study, quiet=as_json)
    if options["is_build"]:
        return
    judges = find_judges(study, corpora)
    for source, num in judges.left_out.items():
        note(f"{source}: {num} held-out documents do not judge: a variant did not hold them out")
    trainings = study.trainings(corpora, judges)
    planted = with_canaries(trainings, study.canaries)
    if slot:
        train(share([*trainings, *planted], slot), judges, options["keep_models"])
        return
    start_jobs([*trainings, *planted], options["jobs"])
    train([*trainings, *planted], judges, options["keep_models"])
    num_items = {name: len(items) for name, items in judges.tasks.items()}
    results = {**study.results(trainings), "items": num_items}
    bound = options["max_exposure"]
    for size, result in results["sizes"].items() if planted else ():
        group = [proxy for proxy in planted if proxy.size == size]
        result["canaries"] = summarise(group, result["tokens"], study.confidence, bound)
    page = write_results(study.folder, results, trainings)
    if as_json:
        click.echo(json.dumps(results, indent=1))
        return
    _print_results(results)
    echo(f"wrote {page} and ablation.json beside it")


def _read_study(pipelines: Sequence[str], options: Mapping[str, Any]) -> Study:
    from corpuskit.ablate.study import Study
    from corpuskit.ablate.variants import VariantChanges, read_variants
    from corpuskit.cli.evaluate import named_tasks

    changes = VariantChanges(
        vary=options["vary"], drop=options["drop_stage"], swap=options["swap_source"],
        is_each_dropped=options["leave_one_out"], is_grid=options["grid"],
        most=options["max_variants"],
    )  # fmt: skip
    variants = read_variants(pipelines, changes, options["overrides"])
    folder = options["output"] or f"runs/{variants[0].slug}-ablation"
    given = options["tokens"]
    lengths = [] if given is None else [word.strip() for word in given.split(",")]
    if len(set(map(read_tokens, lengths))) < len(lengths):
        raise UsageError(f"--tokens {given}: names a length twice. Leave one out.")
    sizes = read_sizes(options["files"])
    if len(lengths) > 1:
        sizes = {
            f"{name}-{length}": settings.model_copy(update={"tokens": read_tokens(length)})
            for name, settings in sizes.items()
            for length in lengths
        }
    return Study(
        Path(folder),
        variants,
        sizes,
        num_seeds=options["seeds"],
        tokens=max(map(read_tokens, lengths), default=None),
        canaries=_read_counts(options["canaries"]),
        tasks=named_tasks(options["tasks"]),
        max_documents=options["documents"],
        confidence=options["confidence"],
    )


def _read_counts(text: str | None) -> tuple[int, ...]:
    """Return the repeat counts that --canaries asks for, ascending."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) for word in words) or (text and not words):
        raise UsageError(f"--canaries {text}: must be counts from 1 on, as in 1,4,16.")
    return tuple(sorted({int(word) for word in words}))


def read_tokens(text: str) -> int:
    """Return the tokens that an option asks for, as in 300K."""
    from corpuskit.stages.mixing._schedule import num_tokens

    digits = text.replace("_", "")
    try:
        tokens = num_tokens(int(digits) if digits.isdecimal() else text)
    except (ValueError, KeyError, IndexError):
        tokens = 0
    if tokens < 1:
        raise UsageError(f"{text!r} is not a number of tokens. Write it as 300_000 or 1.5M.")
    return tokens


def read_sizes(files: Sequence[str]) -> dict[str, TrainSettings]:
    """Return the settings of proxies by name; the default ones without a file."""
    from corpuskit.ablate.study import DEFAULT_TRAINING
    from corpuskit.ablate.variants import slug
    from corpuskit.engine.config import read_model
    from corpuskit.train.settings import TrainSettings

    nowhere = {"data": "corpus", "output": "training"}
    if not files:
        settings = TrainSettings.model_validate({**DEFAULT_TRAINING, **nowhere})
        return {settings.name: settings}
    sizes: dict[str, TrainSettings] = {}
    for path in files:
        settings = read_model(path, TrainSettings, [f"{key}={v}" for key, v in nowhere.items()])
        name = slug(settings.name if settings.name != "train" else Path(path).stem)
        if name in sizes:
            raise UsageError(f"--training {path}: another size is called {name!r}. Set its `name`.")
        if settings.guard.rollbacks:
            raise UsageError(f"--training {path}: guard.rollbacks must be 0: orders are seeded.")
        # The length is the study's: what the file says of it is for a run of its own.
        sizes[name] = settings.model_copy(update={"tokens": None, "steps": None})
    return sizes


def build(study: Study, *, quiet: bool) -> list[Corpus]:
    """Run the pipelines, with progress."""
    from corpuskit.cli._progress import observer

    with observer(quiet=quiet) as watch:
        return study.build(watch)


def share(trainings: Sequence[Proxy], slot: str) -> Sequence[Proxy]:
    """Return the trainings of a slot, as in 0/4."""
    number, _, count = slot.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--slot {slot}: must look like 0/4, and begin at 0.")
    return trainings[int(number) :: int(count)]


def train(trainings: Sequence[Proxy], judges: Any, keep_models: bool) -> None:
    """Train what is not done; end with 75, as `corpuskit train`, if a signal stopped it."""
    from corpuskit.ablate.study import run_trainings

    start, before = time.perf_counter(), sum(training.is_done for training in trainings)

    def show(training: Proxy, num_done: int) -> None:
        spent, new = time.perf_counter() - start, num_done - before
        eta = f", about {spent / new * (len(trainings) - num_done):,.0f} s left" if new else ""
        note(f"training {num_done + 1} of {len(trainings)}: {training.settings.name}{eta}")

    if signal := run_trainings(trainings, judges, show, keep_models=keep_models):
        note(f"Stopped by {signal}. Run the same command again to continue.")
        sys.exit(75)


def start_jobs(trainings: Sequence[Proxy], jobs: int) -> None:
    """Train in processes of this command, each with its share; what fails is done again here."""
    unfinished = sum(not training.is_done for training in trainings)
    jobs = min(jobs, unfinished)
    if jobs < 2:
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    base = [sys.executable, "-m", "corpuskit", *sys.argv[1:]]
    processes = [
        subprocess.Popen([*base, "--slot", f"{number}/{jobs}"], env=environment)
        for number in range(jobs)
    ]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
    if any(code == 75 for code in codes):
        sys.exit(75)


def note(line: str) -> None:
    """Print a line beside the results."""
    echo(one_line(line), err=True)


# ---------------------------------------------------------------- what is printed


def print_plan(study: Study, num: int, counts: str, length: str) -> None:
    """Print what would be built, and `num` trainings of each size, of a `length` if not given."""
    from corpuskit.engine.pipeline import preview
    from corpuskit.train.estimate import count_parameters

    echo(f"study in {study.folder}\n")
    outputs: list[str] = []
    for variant in study.variants:
        run, statuses = preview(variant.plan(study.output(variant), outputs))
        outputs.append(study.output(variant))
        waiting = sum(status.state not in ("reuse", "reused", "done") for status in statuses)
        size = run.inputs.size_bytes()
        echo(
            f"{variant.name}: {size / 1e6:,.1f} MB of input, {waiting} of {len(statuses)} phases "
            "to run or to link (what it shares with those before is linked)"
        )
    by_stage = study.variants[0].plan(study.output(study.variants[0]), []).given
    tokenizer = next(facts["tokenizer"] for facts in by_stage.values() if "tokenizer" in facts)
    for name, settings in study.sizes.items():
        shape = settings.model.shape(tokenizer["vocab_size"])
        parameters = count_parameters(shape).total
        cost = ""
        if tokens := settings.tokens or study.tokens:
            length = f"{tokens:,} tokens"
            flops = 6 * parameters * tokens * num
            cost = f", about {flops / CPU_FLOPS / 60:,.1f} min of one CPU core"
        echo(
            f"{name}: {num} trainings ({counts}) "
            f"of {length}, {parameters / 1e6:,.1f} M parameters{cost}"
        )


CPU_FLOPS = 2.5e10  # of one core in float32, as measured with the preset 0.5m


def _script(study: Study) -> str:
    """Return a shell script that submits the study to Slurm."""
    arguments = [word for word in sys.argv[1:] if word != "--sbatch"]
    slots = (len(study.variants) + bool(study.canaries)) * study.num_seeds * len(study.sizes)
    call = shlex.join([sys.executable, "-m", "corpuskit", *arguments])
    return (
        "#!/bin/sh\n"
        f"# {slots} trainings; add options of your cluster to each sbatch.\n"
        "set -e\n"
        f"build=$(sbatch --parsable --wrap {shlex.quote(call + ' --build')})\n"
        f"train=$(sbatch --parsable --dependency=afterok:$build --array=0-{slots - 1} "
        f"--wrap {shlex.quote(f'{call} --slot $SLURM_ARRAY_TASK_ID/{slots}')})\n"
        f"sbatch --dependency=afterok:$train --wrap {shlex.quote(call)}\n"
    )


def _print_results(results: Mapping[str, Any]) -> None:
    from corpuskit.ablate.page import ranking, sampled_note, scaling_lines, sentence

    for variant in results["variants"]:
        if variant["same_as"]:
            note(f"{variant['name']} gives the same corpus as {variant['same_as']}.")
    for size, result in results["sizes"].items():
        echo(one_line(f"{size}: {result['tokens']:,} tokens, {results['seeds']} seeds"))
        _print_facts(result, results["items"])
        for pair in result["differences"]:
            echo("")
            echo(one_line(f"{pair['b']} against {pair['a']}"))
            _print_differences(pair, result["values"], "bits_per_byte")
            _print_differences(pair, result["values"], "accuracy")
            echo(one_line(f"  {sentence(pair, results['confidence'])}"))
        if warning := sampled_note(results, size):
            note(warning)
        if "canaries" in result:
            _print_canaries(result["canaries"])
    if len(results["sizes"]) > 1:
        echo("")
        echo(one_line(ranking(results)))
        for line in scaling_lines(results):
            echo(one_line(line))


def _print_facts(result: Mapping[str, Any], items: Mapping[str, int]) -> None:
    for task, count in items.items():
        if missing := count - result["units"].get(task, 0):
            echo(one_line(f"  {task}: {missing} of {count} items are longer than a row, left out"))
    for variant, epochs in result["epochs"].items():
        shares = ", ".join(f"{source} {value:.2f}" for source, value in epochs.items())
        echo(one_line(f"  epochs of {variant}: {shares}"))


def _print_canaries(canaries: Mapping[str, Any]) -> None:
    from corpuskit.ablate.page import memorised

    echo("")
    echo("  repeats of a secret   bits of exposure  interval")
    for row in canaries["curve"]:
        spread = f"{row['low']:.1f} to {row['high']:.1f}"
        echo(f"  {row['repeats']:<20,} {row['exposure']:17.1f}  {spread}")
    echo(one_line(f"  {memorised(canaries)}"))


def _print_differences(pair: Mapping[str, Any], values: Mapping[str, Any], measure: str) -> None:
    from corpuskit.ablate.page import mean_of

    by_domain = pair.get(measure, {})
    title = measure.replace("_", " ")
    if by_domain:
        echo(f"  {title:<24} {'before':>8} {'after':>8} {'difference':>10}  interval")
    for domain, row in by_domain.items():
        before, after = (mean_of(values[pair[side]][measure], domain) for side in ("a", "b"))
        mark = "" if row["is_decided"] else "  undecided"
        echo(
            one_line(
                f"  {domain or 'all, equal weights':<24} {before:8.4f} {after:8.4f} "
                f"{row['mean']:+10.4f}  {row['low']:+.4f} to {row['high']:+.4f}{mark}"
            )
        )
