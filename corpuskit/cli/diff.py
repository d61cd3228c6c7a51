"""Compare two runs: plans, funnels, and documents whose fate is not the same."""

from __future__ import annotations

import click


@click.command("diff")
@click.argument("directory_a", metavar="DIRECTORY_A")
@click.argument("directory_b", metavar="DIRECTORY_B")
@click.option("--source", default="", help="Documents of one source.")
@click.option("--stage", default="", help="Changes that one stage decided, in either run.")
@click.option("--rule", default="", help="Changes that one rule decided, in either run.")
@click.option("-n", "--samples", type=click.IntRange(0, 1000), default=3, show_default=True,
              help="Documents to show of each change.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    help="Another number shows other documents.",
)
@click.option("--texts/--no-texts", default=None, help="Compare the texts of documents that both "
              "kept; by default up to 4 GB of them.")  # fmt: skip
@click.option("--pager/--no-pager", default=True, help="Through PAGER or less, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    directory_a: str, directory_b: str, source: str, stage: str, rule: str, samples: int, seed: int,
    texts: bool | None, pager: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare the runs in DIRECTORY_A and DIRECTORY_B.

    Shows what differs in their plans, their funnels beside each other, and the documents whose fate
    is not the same, grouped by the rule that changed it: with counts by source, and samples.
    Documents are matched by file and place, or by their ids where input files are not the same.
    Of a run that is not finished, finished phases count.
    """
    import json

    from corpuskit.cli._plain import echo
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.diff.compare import compare

    one, other = RunDirectory.open(directory_a), RunDirectory.open(directory_b)
    found = compare(
        one, other, samples=samples, seed=seed, source=source, stage=stage, rule=rule, texts=texts
    )
    if as_json:
        echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._diff_view import diff_pieces
    from corpuskit.cli._pager import show

    show(diff_pieces(found), is_paged=pager)
