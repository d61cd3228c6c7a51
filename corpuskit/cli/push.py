"""Publish documents and card on the Hugging Face hub."""

from __future__ import annotations

import click


@click.command("push")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("address", metavar="hf://datasets/OWNER/NAME[@REVISION]")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, address: str, dry_run: bool, as_json: bool) -> None:
    """Publish documents/ and the card of the finished run in DIRECTORY as a dataset of the hub.

    The dataset must exist. Its revision (main) changes once, when every file is there and was
    compared with the hashes in the seals. After an interruption, run the same command again: what
    was sent is not sent again. Files below documents/ that are not of this run are deleted; other
    files stay. HF_TOKEN must allow writing.
    """
    import functools
    import json

    from corpuskit.cli._streams import echo
    from corpuskit.integrations.hub import push

    note = functools.partial(echo, err=True)
    info = push(directory, address, dry_run=dry_run, progress=lambda line: note(f"  {line}"))
    for warning in info["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        echo(json.dumps(info, indent=1))
        return
    if dry_run:
        echo(
            f"{address}: {info['files']:,} files ({info['bytes'] / 1e6:,.1f} MB) and the card "
            f"would go to revision {info['revision']} at {info['endpoint']}. Nothing was sent."
        )
        return
    echo(
        f"{address}: {info['files']:,} files and the card, commit {info['commit']}; "
        f"{info['sent']:,} sent ({info['sent_bytes'] / 1e6:,.1f} MB), {info['deleted']:,} deleted"
    )
