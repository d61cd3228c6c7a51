"""List the stages, show one with its parameters, rules and examples, or check its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable


@click.command("stages")
@click.argument("name", required=False)
@click.option("--check", is_flag=True, help="Check what NAME promises; exit code 1 if broken.")
@click.option(
    "--params",
    metavar="JSON",
    default="{}",
    help="With --check: parameters that the stage cannot be made without.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context, name: str | None, check: bool, params: str, as_json: bool
) -> None:
    """List all stages by kind, or show the stage NAME with its parameters, rules and examples."""
    import json

    from corpuskit.engine import registry
    from corpuskit.errors import UsageError

    if check:
        from corpuskit.inspect.stage_checks import Subject, check_stage

        if name is None:
            raise UsageError("--check: which stage? Name it: `corpuskit stages NAME --check`.")
        try:
            subject = Subject(registry.load(name), json.loads(params))
        except (TypeError, ValueError) as error:
            raise UsageError(f"--params: not a JSON object: {params!r} ({error}).") from None
        num_broken = _print_outcomes(name, check_stage(subject), as_json)
        context.exit(1 if num_broken else 0)
    if name is not None:
        from corpuskit.inspect.catalogue import stage_page, stage_schema

        text = json.dumps(stage_schema(name), indent=1) if as_json else stage_page(name)
        click.echo(text)
        return
    rows = [{"name": n, "kind": registry.kind_of(n), "summary": registry.summary(n)}
            for n in registry.names()]  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for kind in (*registry.KINDS, registry.THIRD_PARTY):
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        if rows_of_kind:
            click.secho(kind, bold=True)
            width = max(len(row["name"]) for row in rows)
            for row in rows_of_kind:
                click.echo(f"  {row['name']:{width}}  {row['summary']}")


def _print_outcomes(name: str, outcomes: Iterable[tuple[str, str, str]], as_json: bool) -> int:
    """Print the result of each promise once it is checked; return how many are broken."""
    import json

    counts = {"kept": 0, "BROKEN": 0, "skipped": 0}
    rows = []
    for promise, outcome, why in outcomes:
        counts[outcome] += 1
        rows.append({"promise": promise, "outcome": outcome.lower(), "why": why})
        if not as_json:
            broken = outcome == "BROKEN"
            click.secho(f"{outcome:8} {promise}", fg="red" if broken else None, bold=broken)
            if why:
                click.echo(f"         {why}")
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        click.echo(f"{name}: " + ", ".join(f"{num} {key.lower()}" for key, num in counts.items()))
    return counts["BROKEN"]
