"""Train on the token shards of a run, alone or under torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from corpuskit.cli._plain import echo

if TYPE_CHECKING:
    from corpuskit.train.settings import TrainSettings


@click.command("train")
@click.argument("settings", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of the file: steps=200, batch.global_rows=16.")  # fmt: skip
@click.option("--sbatch", is_flag=True, help="Train nothing; print a batch script for Slurm.")
@click.option("--nodes", type=click.IntRange(1), help="With --sbatch: nodes.  [default: 1]")
@click.option("--gpus-per-node", type=click.IntRange(1), help="With --sbatch: GPUs, a rank each.")
@click.option("--procs-per-node", type=click.IntRange(1), help="With --sbatch: ranks on CPUs.")
@click.option("--time", "time_limit", help="With --sbatch: time limit, as Slurm writes it.")
@click.option("--partition", help="With --sbatch: partition to submit to.")
@click.option("--account", help="With --sbatch: account to charge.")
@click.option("--grace-seconds", type=click.IntRange(10), metavar="N",
              help="With --sbatch: save so long before the limit.  [default: 300]")  # fmt: skip
@click.option("--flag", "flags", multiple=True, metavar="OPTION",
              help="With --sbatch: another option of sbatch: --flag=--mem=64G.")  # fmt: skip
def command(
    settings: str,
    overrides: tuple[str, ...],
    sbatch: bool,
    time_limit: str | None,
    partition: str | None,
    account: str | None,
    flags: tuple[str, ...],
    **sizes: int | None,
) -> None:
    """Train as SETTINGS (a YAML file) says, or continue from the newest checkpoint.

    \b
    Examples:
      corpuskit train pipelines/train_quickstart.yaml
      torchrun --nproc-per-node 2 -m corpuskit train pipelines/train_quickstart.yaml
      corpuskit train t.yaml --sbatch --nodes 4 --gpus-per-node 8 --time 1-0 > train.sh
    """
    from corpuskit.config import read_model
    from corpuskit.train.settings import TrainSettings

    given = read_model(settings, TrainSettings, overrides)
    named = {"time": time_limit, "partition": partition, "account": account}
    options = [f"--{name}={value}" for name, value in named.items() if value is not None] + [*flags]
    asked = {name: value for name, value in sizes.items() if value is not None}
    if sbatch:
        _print_script(settings, overrides, given, [*options], asked)
        return
    if options or asked:
        raise click.UsageError("Options of Slurm jobs need --sbatch, which prints a batch script.")
    _train(given)


def _print_script(
    path: str,
    overrides: tuple[str, ...],
    settings: TrainSettings,
    options: list[str],
    sizes: dict[str, int],
) -> None:
    """Print the batch script."""
    from corpuskit.run.launch.train_script import Allocation, train_script

    gpus = sizes.get("gpus_per_node")
    if gpus and "procs_per_node" in sizes:
        raise click.UsageError("--gpus-per-node has a rank per GPU: leave --procs-per-node out.")
    if gpus:
        sizes["procs_per_node"] = gpus
    place = Allocation(options=options, **sizes)
    click.echo(train_script(path, overrides, settings.name, settings.output, place), nl=False)


def _train(settings: TrainSettings) -> None:
    """Train; end the process with the run's exit code."""
    import os
    import sys

    from corpuskit.errors import CorpuskitError, UsageError

    try:
        from corpuskit.train.loop import main
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "corpuskit train needs torch. Install it with: pip install 'corpuskit[train]'"
        ) from None
    try:
        result = main(settings, click.echo)
    except CorpuskitError as error:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        # Among several ranks an ordinary shutdown may abort and lose the exit code.
        echo(f"error: {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)
    sys.exit(result.exit_code)
