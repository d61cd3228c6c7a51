"""Show samples of what a stage dropped, cut or kept; near duplicates side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from corpuskit.inspect.samples.samples import Band, Samples

ACTIONS = ("drop", "cut", "replace", "kept")


@click.command("inspect")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--stage", default="", help="Stage to look at; the last one with something to show.")
@click.option("--rule", default="", help="One of its rules.")
@click.option("--source", default="", help="Documents of one source.")
@click.option("--action", type=click.Choice(ACTIONS), help="What was done to them.")
@click.option("--kept", is_flag=True, help="Documents that were kept: --action kept.")
@click.option("--between", metavar="LOW:HIGH", help="Measured values of the rule; either end may "
              "be left out.")  # fmt: skip
@click.option("--near-threshold", metavar="N%", help="Values no further than this from the "
              "threshold.")  # fmt: skip
@click.option("-n", "--samples", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Documents to show.")  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    help="Another number shows other documents.",
)
@click.option("--changes", type=click.IntRange(1), default=8, show_default=True,
              help="Differences or spans to show of each document.")  # fmt: skip
@click.option("--pager/--no-pager", default=True, help="Through PAGER or less, on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with whole texts.")
def command(
    directory: str, stage: str, rule: str, source: str, action: str | None, kept: bool,
    between: str | None, near_threshold: str | None, samples: int, seed: int, changes: int,
    pager: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show documents that a stage dropped, or what it cut out of them, in the run in DIRECTORY.

    Of duplicates, the removed document stands beside the one that was kept, with what differs and
    their Jaccard similarity. Texts come from the run directory, or from the input files if they
    still are what the run read; else from the ledger, which keeps those of one document in 256
    unless `ledger: {keep_text: true}` is set.

    With --kept: documents that came through. --stage and --rule then name a value to show and to
    choose by: a column of numbers that the stage added, or a rule that it measured
    (`measures: true`).
    """
    import dataclasses
    import json

    from corpuskit.cli._plain import echo
    from corpuskit.errors import UsageError

    if kept and action not in (None, "kept"):
        raise UsageError(f"--kept and --action {action}: choose one.")
    if kept:
        action = "kept"
    band = _band(between, near_threshold)
    found = _find(directory, stage, rule, source, action or "", band, samples, seed)
    if as_json:
        echo(json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False))
        return
    from corpuskit.cli._pager import show
    from corpuskit.cli._samples import sample_pieces

    show(sample_pieces(found, changes), is_paged=pager)


def _find(
    directory: str, stage: str, rule: str, source: str, action: str, band: Band | None,
    samples: int, seed: int,
) -> Samples:  # fmt: skip
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.samples.kept import find_kept
    from corpuskit.inspect.samples.samples import find_samples

    run = RunDirectory.open(directory)
    if action == "kept":
        return find_kept(run, stage, rule, samples, seed, source=source, band=band)
    return find_samples(
        run, stage, rule, samples, seed, source=source, action=action, band=band, read_inputs=True
    )


def _band(between: str | None, near: str | None) -> Band | None:
    """Return the band that two options name together, None without them."""
    from corpuskit.errors import UsageError
    from corpuskit.inspect.samples.samples import Band

    if between is None and near is None:
        return None
    low = high = ratio = None
    try:
        if between is not None:
            first, colon, last = between.partition(":")
            if not colon or not (first or last):
                raise ValueError
            low, high = (float(end) if end else None for end in (first, last))
            if low is not None and high is not None and not low <= high:
                raise ValueError
    except ValueError:
        raise UsageError(
            f"--between {between}: must look like LOW:HIGH, as in 0.4:0.6, 50: or :50."
        ) from None
    try:
        ratio = None if near is None else float(near.removesuffix("%")) / 100
        if ratio is not None and not 0 <= ratio < float("inf"):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"--near-threshold {near}: must be a share in percent, as in 10%."
        ) from None
    return Band(low, high, ratio)
