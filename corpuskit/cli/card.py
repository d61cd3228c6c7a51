"""Write a dataset card in the form of the Hugging Face hub."""

from __future__ import annotations

import click


@click.command("card")
@click.argument("directory", metavar="DIRECTORY")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write the card to this file, such as README.md.  [default: print]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the facts of the card as JSON.")
def command(directory: str, output: str | None, as_json: bool) -> None:
    """Write a dataset card of the run in DIRECTORY: README.md in the Hugging Face form.

    Licences and origins are those that `card:` in the pipeline file declares; stages, counts,
    limits and fingerprints come from the run. After an edit of `card:`, run `corpuskit run` again
    (it reruns nothing), then this command.
    """
    import json
    from pathlib import Path

    from corpuskit.cli._streams import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.card import card_facts, card_page, metadata
    from corpuskit.storage import write_whole

    run = RunDirectory.open(directory)
    facts = card_facts(run)
    if as_json:
        text = json.dumps(facts.to_json() | {"metadata": metadata(facts)}, indent=1) + "\n"
    else:
        text = card_page(facts, run.plan.file.steps)
    if output is None:
        echo(text, nl=False)
    else:
        write_whole(Path(output), text.encode())
    for warning in facts.warnings:
        echo(f"warning: {warning}", err=True)
