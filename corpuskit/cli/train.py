"""Train on the token shards of a run, alone or under torchrun."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._streams import echo, one_line
from corpuskit.cli._train_export import needs_torch
from corpuskit.errors import ConfigError, CorpuskitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from corpuskit.train.evaluation import HeldOut
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.status import TrainingStatus
    from corpuskit.train.tasks import TaskItem


BELONGS = {
    "--plan": ("ranks", "device_name", "mfu", "price", "mtbf_hours", "seq_len"),
    "--export": ("step", "dtype", "average"),
    "--sbatch": (
        "nodes", "gpus_per_node", "procs_per_node", "time", "partition", "account",
        "grace_seconds", "flags",
    ),
}  # fmt: skip
"""Task -> the options that only it has."""

SPELLED = {"device_name": "--device", "flags": "--flag"}


@click.command("train")
@click.argument("settings", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of the file: steps=200, batch.global_rows=16.")  # fmt: skip
@click.option("--plan", "is_plan", is_flag=True,
              help="Train nothing; print parameters, memory, time and cost.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(1), help="With --plan: devices.  [default: 1]")
@click.option("--device", "device_name", metavar="NAME",
              help="With --plan: h100, a100, ...  [default: peak_tflops]")  # fmt: skip
@click.option("--mfu", type=click.FloatRange(0, 1, min_open=True),
              help="With --plan: share of the peak that is reached.  [default: 0.4]")  # fmt: skip
@click.option("--price", type=click.FloatRange(0), help="With --plan: of one device for one hour.")
@click.option("--mtbf-hours", type=click.FloatRange(0, min_open=True),
              help="With --plan: between failures of a device.  [default: 50000]")  # fmt: skip
@click.option("--seq-len", type=click.IntRange(1),
              help="With --plan: tokens of a row, where nothing has been packed yet.")  # fmt: skip
@click.option("--status", is_flag=True, help="Train nothing; show the state of each rank.")
@click.option("--report", is_flag=True, help="Train nothing; write OUTPUT/report.html.")
@click.option("--export", "folder", type=click.Path(file_okay=False), metavar="FOLDER",
              help="Train nothing; write a checkpoint as a Hugging Face model.")  # fmt: skip
@click.option("--step", type=click.IntRange(0), help="With --export: which.  [default: newest]")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]),
              help="With --export: of the weights written.  [default: bfloat16]")  # fmt: skip
@click.option("--average", metavar="ema|N",
              help="With --export: the kept average, or the mean of N checkpoints.")  # fmt: skip
@click.option("--sbatch", is_flag=True, help="Train nothing; print a batch script for Slurm.")
@click.option("--nodes", type=click.IntRange(1), help="With --sbatch: nodes.  [default: 1]")
@click.option("--gpus-per-node", type=click.IntRange(1), help="With --sbatch: GPUs, a rank each.")
@click.option("--procs-per-node", type=click.IntRange(1), help="With --sbatch: ranks on CPUs.")
@click.option("--time", help="With --sbatch: time limit, as Slurm writes it.")
@click.option("--partition", help="With --sbatch: partition to submit to.")
@click.option("--account", help="With --sbatch: account to charge.")
@click.option("--grace-seconds", type=click.IntRange(10), metavar="N",
              help="With --sbatch: save N seconds before the limit.  [default: 300]")  # fmt: skip
@click.option("--flag", "flags", multiple=True, metavar="OPTION",
              help="With --sbatch: another option of sbatch: --flag=--mem=64G.")  # fmt: skip
def command(
    settings: str,
    overrides: tuple[str, ...],
    is_plan: bool,
    status: bool,
    report: bool,
    folder: str | None,
    sbatch: bool,
    **options: Any,
) -> None:
    """Train as SETTINGS (a YAML file) says, or continue from the newest checkpoint.

    \b
    Examples:
      corpuskit train pipelines/train_quickstart.yaml
      torchrun --nproc-per-node 2 -m corpuskit train pipelines/train_quickstart.yaml
      corpuskit train t.yaml --plan --ranks 64 --device h100 --price 2.5
      corpuskit train t.yaml --export exported/
      corpuskit train t.yaml --sbatch --nodes 4 --gpus-per-node 8 --time 1-0 > train.sh
    """
    from corpuskit.engine.config import read_model
    from corpuskit.train.settings import TrainSettings

    parsed = read_model(settings, TrainSettings, overrides)
    chosen_options = {name: value for name, value in options.items() if value not in (None, ())}
    tasks = {
        "--plan": is_plan,
        "--status": status,
        "--report": report,
        "--export": folder is not None,
        "--sbatch": sbatch,
    }
    chosen_tasks = [name for name, is_chosen in tasks.items() if is_chosen]
    if len(chosen_tasks) > 1:
        raise click.UsageError(f"{' and '.join(chosen_tasks)} are tasks of their own. Choose one.")
    task = chosen_tasks[0] if chosen_tasks else ""
    for name in chosen_options:
        if name not in BELONGS.get(task, ()):
            owner = next(owner for owner, names in BELONGS.items() if name in names)
            spelled = SPELLED.get(name) or f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{spelled} needs {owner}.")
    if task == "--sbatch":
        _print_script(settings, overrides, parsed, chosen_options)
    elif task:
        with _located(settings, overrides):
            _run_task(task, parsed, folder, chosen_options)
    else:
        _train(parsed, _located(settings, overrides))


@contextlib.contextmanager
def _located(path: str, overrides: tuple[str, ...]) -> Iterator[None]:
    """Add file, line and column to an error about a key of the settings file.

    Raises:
        ConfigError: instead of a UsageError that begins with a key.
    """
    from corpuskit.engine.config import location_of

    try:
        yield
    except ConfigError:
        raise
    except UsageError as error:
        location = location_of(path, overrides, str(error))
        if location is None:
            raise
        raise ConfigError(location, str(error)) from None


def _run_task(
    task: str, settings: TrainSettings, folder: str | None, options: dict[str, Any]
) -> None:
    """Do what was chosen instead of training."""
    if task == "--plan":
        from corpuskit.cli._train_plan import print_plan
        from corpuskit.train.estimate import estimate
        from corpuskit.train.trackers import require_trackers

        require_trackers(settings.track)
        figures = estimate(settings, **options)
        _open_evaluation(settings, is_packed=figures.length.plan_steps is not None)
        print_plan(settings, figures)
    elif task == "--status":
        print_status(settings)
    elif task == "--report":
        from corpuskit.inspect.training import write_page

        echo(f"wrote {write_page(settings.output)}")
    elif folder is not None:
        from corpuskit.cli._train_export import export

        export(settings, folder, **options)


def _print_script(
    path: str, overrides: tuple[str, ...], settings: TrainSettings, values: dict[str, Any]
) -> None:
    """Print the batch script."""
    from corpuskit.engine.executors.train_script import Allocation, train_script

    flags = [name for name in ("time", "partition", "account") if name in values]
    options = [f"--{name}={values.pop(name)}" for name in flags] + [*values.pop("flags", ())]
    gpus = values.get("gpus_per_node")
    if gpus and "procs_per_node" in values:
        raise click.UsageError("--gpus-per-node has a rank per GPU: leave --procs-per-node out.")
    if gpus:
        values["procs_per_node"] = gpus
    allocation = Allocation(options=options, **values)
    click.echo(train_script(path, overrides, settings.name, settings.output, allocation), nl=False)


def _train(settings: TrainSettings, located: AbstractContextManager[None]) -> None:
    """Train; end the process with the run's exit code."""
    with needs_torch():
        from corpuskit.train.loop import main
    from corpuskit.cli._train_view import observer
    from corpuskit.train.heartbeat import ending_of, note_ending
    from corpuskit.train.trackers import Trackers

    try:
        with observer(settings) as view, Trackers(settings, view) as report_update, located:
            result = main(settings, report_update, *_open_evaluation(settings))
    except (CorpuskitError, RuntimeError, OSError) as error:
        ending = ending_of(error)
        if ending is None:
            raise
        note_ending(settings.output, ending)
        echo(ending.line, err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            sys.exit(ending.code)
        # Among several ranks an ordinary shutdown may abort and lose the exit code.
        os._exit(ending.code)
    sys.exit(result.exit_code)


def _open_evaluation(
    settings: TrainSettings, *, is_packed: bool = True
) -> tuple[HeldOut | None, dict[str, list[TaskItem]]]:
    """Open what a training is judged by; task files alone where there is no run directory yet."""
    config = settings.evaluate
    if config is None:
        return None, {}
    if not config.max_documents and not config.tasks:
        raise UsageError(
            "evaluate.max_documents: 0, and no tasks: there is nothing to evaluate. Raise it, name "
            "tasks, or leave evaluate out."
        )
    from corpuskit.stages.sequences._heldout import encode_task, open_held_out, open_tokenizer
    from corpuskit.train.tasks import read_task

    questions = {name: read_task(path, config.max_items) for name, path in config.tasks.items()}
    held_out, tasks = None, {}
    if config.max_documents and is_packed:
        held_out = open_held_out(config.data or settings.data, config.max_documents, settings.data)
    if questions and is_packed:
        tokenizer = open_tokenizer(settings.data)
        for name, task in questions.items():
            tasks[name] = encode_task(task, tokenizer, unconditional=config.unconditional)
    return held_out, tasks


# ---------------------------------------------------------------- the status of a training

SHOWN_RANKS = 16


def print_status(settings: TrainSettings) -> None:
    """Print whether a run is alive, where each rank is, the last step, checkpoint and events."""
    from corpuskit.train.status import read_status

    status = read_status(settings)
    echo(one_line(f"{settings.name}: {status.verdict}"))
    _print_ranks(status)
    if step := status.last_step:
        echo(
            f"last step   {_number(step, 'step', 0, 1)} of {_number(step, 'steps', 0)}: "
            f"loss {_number(step, 'loss', 4)}, {_number(step, 'tokens_per_second', 0)} tok/s, "
            f"{_number(step, 'step_seconds', 3)} s"
        )
    if status.checkpoint:
        age = status.checkpoint_age_seconds
        saved = "" if age is None else f", saved {_age(age)} ago"
        echo(one_line(f"checkpoint  {status.checkpoint}{saved}"))
    elif status.ranks:
        echo("checkpoint  none yet")
    if status.speeds:
        echo(one_line(f"speeds      {status.speeds.get('text', '')}"))
    for number, event in enumerate(status.events):
        echo(one_line(f"{'events' if not number else '':12}{_event_line(event)}"))


def _print_ranks(status: TrainingStatus) -> None:
    ranks = sorted(status.ranks, key=lambda rank: -rank.age_seconds)[:SHOWN_RANKS]
    if ranks:
        echo(f"{'rank':>5}  {'step':>8}  {'phase':<10}  {'beat':>12}  {'pid':>8}  host")
    for rank in sorted(ranks, key=lambda rank: rank.beat.rank):
        beat = rank.beat
        mark = "  (gone)" if rank.is_gone and not rank.has_left else ""
        echo(
            one_line(
                f"{beat.rank:>5}  {beat.step:>8}  {beat.phase:<10}  "
                f"{_age(rank.age_seconds) + ' ago':>12}  {beat.pid:>8}  {beat.host}{mark}"
            )
        )
    if num_more := len(status.ranks) - len(ranks):
        echo(f"       and {num_more} ranks with younger heartbeats")


def _event_line(event: dict[str, Any]) -> str:
    """Return one line of an event: its time, its kind, and its text or what is short of it."""
    text = event.get("text") or event.get("message")
    if not text:
        kinds = (int, float, str)
        short = ("step", "steps", "steps_done", "world_size", "stopped_by")
        values = {name: event[name] for name in short if isinstance(event.get(name), kinds)}
        text = ", ".join(f"{name} {value}" for name, value in values.items())
    text = f": {text}" if text else ""
    return f"{event.get('time', '')} {event.get('event', '?')}{text}".strip()[:300]


def _number(line: dict[str, Any], name: str, digits: int, offset: int = 0) -> str:
    value = line.get(name)
    return f"{value + offset:,.{digits}f}" if isinstance(value, int | float) else "?"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
