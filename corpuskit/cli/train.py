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
    import sys

    from corpuskit.config import read_model
    from corpuskit.errors import UsageError

    try:
        from corpuskit.train.loop import main
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "corpuskit train needs torch. Install it with: pip install 'corpuskit[train]'"
        ) from None
    from corpuskit.train.settings import TrainSettings

    result = main(read_model(settings, TrainSettings, overrides), click.echo)
    sys.exit(result.exit_code)
