"""Print the JSON Schema of pipeline files, for editors."""

from __future__ import annotations

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of pipeline files.

    \b
    In VS Code (YAML extension): corpuskit schema > corpuskit.schema.json
    and in the first line of a pipeline beside it:
      # yaml-language-server: $schema=./corpuskit.schema.json
    """
    import json

    from corpuskit.inspect.catalogue import pipeline_schema

    click.echo(json.dumps(pipeline_schema(), indent=1))
