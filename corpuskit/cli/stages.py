"""List the stages, or show one with its parameters, rules and examples."""

from __future__ import annotations

import click


@click.command("stages")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List all stages by kind, or show the stage NAME with its parameters, rules and examples."""
    import json

    from corpuskit.engine import registry

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
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            click.secho(kind, bold=True)
            width = max(len(row["name"]) for row in rows)
            for row in chosen:
                click.echo(f"  {row['name']:{width}}  {row['summary']}")
