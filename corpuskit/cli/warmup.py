"""Compile and cache the kernels, once per node type."""

from __future__ import annotations

import click


@click.command("warmup")
def command() -> None:
    """Compile all kernels that stages use and keep them in the cache.

    Run it once per kind of machine before many tasks start there at the same time.
    """
    from corpuskit.engine.warmup import warm_up
    from corpuskit.kernels.jit import cache_dir

    for name, seconds in warm_up():
        click.echo(f"  {name:20} {seconds:6.2f} s")
    click.echo(f"kernels are in {cache_dir()}")
