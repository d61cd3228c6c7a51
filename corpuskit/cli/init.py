"""Write the pipeline of a recipe, with your inputs, into an empty folder."""

from __future__ import annotations

import click


@click.command("init", context_settings={"allow_extra_args": True})
@click.argument("name", metavar="NAME")
@click.argument("directory", metavar="DIR")
@click.option("--input", "inputs", metavar="[SOURCE=]FILES", multiple=True, required=True,
              help="Files of a source: a path, or a pattern in quotes; may be repeated. SOURCE may "
              "be left out where the recipe reads one.")  # fmt: skip
@click.option("--set", "overrides", metavar="STAGE.PARAMETER=VALUE", multiple=True,
              help="Another value of a parameter, or the path of a model that the recipe needs; "
              "may be repeated.")  # fmt: skip
@click.pass_context
def command(
    context: click.Context, name: str, directory: str, inputs: tuple[str, ...],
    overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Write the recipe NAME as DIR/<name>.yaml: a pipeline that says which step each stage is.

    `corpuskit recipes` lists the names. The format of the files, and which of their columns are
    text, id, address and date, are found by looking at the first file. DIR must be empty or new.
    Paths stay as you give them, relative to the folder you are in.

    \b
      corpuskit init fineweb@datatrove-0.10.1 mycrawl --input web='crawl/*.warc.gz'
    """
    import shlex
    from pathlib import Path

    from corpuskit.cli._streams import echo
    from corpuskit.engine.recipes import find_recipe, write_recipe
    from corpuskit.errors import UsageError
    from corpuskit.paths import is_name

    if context.args:
        raise UsageError(f"{context.args[0]}: belongs to no option. Put a pattern of --input into "
                         "quotes, or the shell replaces it by its files.")  # fmt: skip
    recipe = find_recipe(name)
    files: dict[str, list[str]] = {}
    for text in inputs:
        source, _, pattern = text.rpartition("=")
        is_named = is_name(source)
        files.setdefault(source if is_named else "", []).append(pattern if is_named else text)
    path, missing = write_recipe(recipe, Path(directory), files, overrides)
    echo(f"wrote {path}: {recipe.full_name} (steps: {recipe.exactness})")
    if missing:
        echo("Left out, because only you can give what they need: the steps of")
    for parameter, need in missing.items():
        echo(f"  {parameter}: {need}")
    if missing:
        echo("To have them, write it again into a new folder with --set PARAMETER=VALUE for each, "
             "or edit the file.")  # fmt: skip
    file = shlex.quote(str(path))
    echo(f"next: corpuskit plan {file}    (what it would do; runs nothing)\n"
         f"      corpuskit run {file}     (from this folder)")  # fmt: skip
