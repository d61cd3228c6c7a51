"""Train on the token shards of a run, alone or under torchrun."""

from __future__ import annotations

import click


@click.command("train")
@click.argument("settings", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="A.B=VALUE",
              help="Override a value of the file: steps=200, batch.global_rows=16.")  # fmt: skip
def command(settings: str, overrides: tuple[str, ...]) -> None:
    """Train as SETTINGS (a YAML file) says, or continue from the newest checkpoint.

    \b
    Examples:
      corpuskit train pipelines/train_quickstart.yaml
      torchrun --nproc-per-node 2 -m corpuskit train pipelines/train_quickstart.yaml
    """
    from corpuskit.cli._progress import training_observer
    from corpuskit.config import read_model
    from corpuskit.train.loop import launch
    from corpuskit.train.settings import TrainSettings

    launch(read_model(settings, TrainSettings, overrides), training_observer())
