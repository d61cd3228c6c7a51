"""Check every file of a run against the hashes in its seals."""

from __future__ import annotations

import sys

import click

from corpuskit.cli._streams import echo


@click.command("verify")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--dedup", is_flag=True, help="Prove again what minhash_dedup dropped, from texts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: str, dedup: bool, as_json: bool) -> None:
    """Read every file of the run in DIRECTORY and compare it with the hashes in the seals.

    With --dedup, texts are read again as each minhash_dedup read them, and their sets of n-grams
    are compared in plain Python: every survivor must stay, and be as similar to what it replaces
    and lack as little of it as the ledger says and the parameters allow. 1 MB a second.

    Exit code 3 when a file is missing, changed or not named by any seal, or a removal is wrong.
    """
    import dataclasses
    import json

    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import verify

    run = RunDirectory.open(directory)
    result = verify(run)
    proofs = []
    if dedup:
        from corpuskit.inspect.proof import prove_removals

        proofs = prove_removals(run)
    if as_json:
        proofs_json = {"dedup": [dataclasses.asdict(proof) for proof in proofs]} if dedup else {}
        click.echo(json.dumps({**result.__dict__, **proofs_json}, indent=1))
    else:
        click.echo(f"{result.num_files} files, {result.size_bytes / 1e6:.1f} MB checked.")
        for problem in result.problems:
            echo(f"  {problem}")
        for note in result.notes:
            echo(f"  note: {note}")
        for proof in proofs:
            echo(
                f"{proof.stage}: {proof.proved:,} of {proof.removed:,} removals proved from the "
                f"texts; {len(proof.problems):,} are wrong, {proof.unread:,} cannot be read, "
                f"{proof.older:,} duplicate an older run."
            )
            for problem in proof.problems[:20]:
                echo(f"  {problem}")
    sys.exit(3 if result.problems or any(proof.problems for proof in proofs) else 0)
