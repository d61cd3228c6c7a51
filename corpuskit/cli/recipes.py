"""List recipes of published corpora, show their steps, compare two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from corpuskit.cli._streams import echo

if TYPE_CHECKING:
    from corpuskit.inspect.diff import PlanChange


@click.group("recipes", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List recipes of published corpora, show their steps, compare two of them.

    Without a command: the names, with one sentence each, and how many of the published steps are
    equal here, close, or missing. `corpuskit init NAME DIR` writes one with your files.
    """
    from corpuskit.engine.recipes import recipes

    for recipe in recipes() if context.invoked_subcommand is None else ():
        click.secho(recipe.full_name, bold=True, nl=False)
        echo(f"  ({recipe.exactness})\n  {recipe.title}")


@command.command("show")
@click.argument("name", metavar="NAME")
def show_command(name: str) -> None:
    """Show each published step of the recipe NAME beside our stage: equal, close or missing."""
    from corpuskit.cli._render import console, text_table
    from corpuskit.engine.recipes import find_recipe, stage_words

    recipe = find_recipe(name)
    echo(f"{recipe.full_name}: {recipe.title}\n{recipe.note}".strip())
    for source, text in recipe.inputs.items():
        echo(f"Reads {source}: {text}.")
    table = text_table(">", "published step", "here", "", "why")
    for number, (step, stages) in enumerate(recipe.labelled, start=1):
        stages_here = "; ".join(stage_words(stage, params) for _, stage, params in stages)
        needs = [f"Needs {parameter}: {reason}" for parameter, reason in step.needs.items()]
        scope = f" ({step.source})" if step.source else ""
        why = " ".join([step.why, *needs])
        table.add_row(str(number), f"{step.step}{scope}", stages_here, step.match, why)
    console().print("", table, "")
    for short, address in recipe.links.items():
        echo(f"{short}: {address}")


@command.command("diff")
@click.argument("recipe_a", metavar="A")
@click.argument("recipe_b", metavar="B")
@click.option(
    "--on", "files", metavar="FILES", multiple=True, help="Run both on these files, and compare "
    "what became of their documents; may be repeated.",
)  # fmt: skip
@click.option("--keep", metavar="DIR", help="With --on: keep both runs in this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff_command(
    recipe_a: str, recipe_b: str, files: tuple[str, ...], keep: str | None, as_json: bool
) -> None:
    """Name the rules and parameters in which the recipes A and B differ.

    With --on, also the documents with another outcome. Steps that need a file of yours (a model)
    are left out of both. Of two finished runs, `corpuskit diff` says the same and more.
    """
    import dataclasses
    import json
    import tempfile
    from pathlib import Path

    from corpuskit import read_plan, run
    from corpuskit.cli._render import show
    from corpuskit.cli.diff import diff_pieces
    from corpuskit.engine.recipes import find_recipe, pipeline_text, read_steps, write_recipe
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.inspect.diff import compare, rules_of, stage_changes

    pair = find_recipe(recipe_a), find_recipe(recipe_b)
    any_text = {"text": "*"}
    steps = [read_steps(pipeline_text(recipe, dict.fromkeys(recipe.inputs, any_text), "run")[0])
             for recipe in pair]  # fmt: skip
    labels = {step.label: step for group in steps for step in group}
    changes = [(change, rules_of(labels[change.label], change) if change.label else [])
               for change in stage_changes(*steps)]  # fmt: skip
    facts: dict[str, Any]
    facts = {"changes": [dataclasses.asdict(change) | {"rules": r} for change, r in changes]}
    if not as_json:
        echo(f"A: {pair[0].full_name}\nB: {pair[1].full_name}\n")
        echo("\n".join(_line(*change) for change in changes) or "The stages are the same.")
    with tempfile.TemporaryDirectory() as scratch:
        runs = []
        for side, recipe in zip("ab", pair if files else (), strict=False):
            path, _ = write_recipe(recipe, Path(keep or scratch, side), {"input": list(files)})
            plan = read_plan(path)
            run(plan)
            runs.append(RunDirectory.open(plan.settings.output))
        if runs:
            comparison = compare(*runs)
            facts["documents"] = comparison.to_json()
            show(() if as_json else ("", *diff_pieces(comparison)), is_paged=False)
    if as_json:
        echo(json.dumps(facts, indent=1, ensure_ascii=False))


def _line(change: PlanChange, rules: list[str]) -> str:
    """Return one change as a line, with the rules it is about."""
    about = f"  (rules: {', '.join(rules)})" if rules else ""
    if change.kind == "stage":
        return f"only {'A' if change.after is None else 'B'} has {change.place}{about}"
    if change.kind == "order":
        return f"order: {', '.join(change.before)} -> {', '.join(change.after)}"
    return f"{change.label}.{change.words()}{about}"
