"""Compile and cache the kernels, once per machine."""

from __future__ import annotations

import click


@click.command("warmup")
@click.option("--jobs", type=click.IntRange(1), help="Processes; as many as there are cores.")
@click.option(
    "--native/--portable",
    default=None,
    help="Compile for exactly this processor from now on, or again for the level that it shares "
    "with others (x86-64-v3). Results are the same.",
)
def command(jobs: int | None, native: bool | None) -> None:
    """Compile all kernels that stages use and keep them in the cache.

    Run it once before many tasks start at the same time. Kernels that came with corpuskit, or that
    are in the cache, are not compiled again; `corpuskit doctor` lists them.
    """
    import os

    from corpuskit.engine.warmup import warm_up
    from corpuskit.kernels.jit import cache_dir
    from corpuskit.kernels.target import build_info, native_marker, warmup_marker

    if native is not None:
        native_marker().touch() if native else native_marker().unlink(missing_ok=True)
    if not warmup_marker().exists():
        for name, seconds in warm_up(jobs or len(os.sched_getaffinity(0))):
            click.echo(f"  {name:20} {seconds:6.2f} s")
    click.echo(f"kernels for {build_info()['level']} are in {cache_dir()}")
