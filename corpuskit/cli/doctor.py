"""Check the environment: versions, optional parts, caches, memory and disk."""

from __future__ import annotations

import click

CORE = ("numpy", "pyarrow", "numba", "pydantic", "pyyaml", "click", "rich",
        "tokenizers", "fasttext", "datasketch", "datatrove", "spacy", "xxhash")  # fmt: skip
EXTRAS = {"torch": "train", "gigatoken": "fast", "ray": "ray"}


@click.command("doctor")
def command() -> None:
    """Check what corpuskit finds on this machine, and say what to do about what is missing."""
    import importlib.metadata
    import os
    import platform
    import shutil

    from corpuskit.distribution import install_command
    from corpuskit.kernels.jit import cache_dir

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    click.echo(f"python {platform.python_version()} on {platform.platform()}")
    click.echo(f"cores {os.cpu_count()}, disk free {shutil.disk_usage('.').free / 1e9:.1f} GB here")
    for name in CORE:
        release = version(name)
        click.echo(f"  {name:12} {release or f'MISSING: {install_command()}'}")
    for name, extra in EXTRAS.items():
        release = version(name)
        advice = f"not installed ({install_command(extra)})"
        click.echo(f"  {name:12} {release or advice}")
    installed = importlib.metadata.packages_distributions()
    owners = set(installed.get("fasttext", ()))
    if len(owners) > 1:
        names = ", ".join(sorted(owners))
        click.echo(f"  fasttext     several distributions own it: {names}. Keep fasttext only.")
    if version("corpuskit"):
        click.echo(
            "  corpuskit    is installed besides: another project's, or ours by its former name. "
            f"Run: pip uninstall corpuskit, then {install_command()}"
        )
    click.echo(f"kernel cache {cache_dir()}")
