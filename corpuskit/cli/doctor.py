"""Check the environment: versions, optional parts, caches, memory and disk."""

from __future__ import annotations

import click

CORE = ("numpy", "pyarrow", "numba", "pydantic", "pyyaml", "click", "rich", "zstandard",
        "tokenizers", "fasttext", "datasketch", "datatrove", "spacy", "xxhash")  # fmt: skip
EXTRAS = {"torch": "train", "gigatoken": "fast", "ray": "ray"}


@click.command("doctor")
def command() -> None:
    """Check what corpuskit finds on this machine, and say what to do about what is missing."""
    import importlib.metadata
    import os
    import platform
    import shutil

    from corpuskit.kernels.jit import cache_dir

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    click.echo(f"python {platform.python_version()} on {platform.platform()}")
    click.echo(f"cores {os.cpu_count()}, disk free {shutil.disk_usage('.').free / 1e9:.1f} GB here")
    for name in CORE:
        found = version(name)
        click.echo(f"  {name:12} {found or 'MISSING: reinstall corpuskit'}")
    for name, extra in EXTRAS.items():
        found = version(name)
        advice = f"not installed (pip install 'corpuskit[{extra}]')"
        click.echo(f"  {name:12} {found or advice}")
    owners = importlib.metadata.packages_distributions().get("fasttext", ())
    if len(set(owners)) > 1:
        names = ", ".join(sorted(set(owners)))
        click.echo(f"  fasttext     several distributions own it: {names}. Keep fasttext only.")
    click.echo(f"kernel cache {cache_dir()}")
