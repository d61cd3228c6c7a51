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
    import os
    import sys

    from corpuskit.config import read_model
    from corpuskit.errors import CorpuskitError, UsageError

    try:
        from corpuskit.train.loop import main
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "corpuskit train needs torch. Install it with: pip install 'corpuskit[train]'"
        ) from None
    from corpuskit.train.settings import TrainSettings

    try:
        result = main(read_model(settings, TrainSettings, overrides), click.echo)
    except CorpuskitError as error:
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        # Among several ranks an ordinary shutdown may abort and lose the exit code.
        click.echo(f"error: {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)
    sys.exit(result.exit_code)
