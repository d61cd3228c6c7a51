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
    _print_kernels()


def _print_kernels() -> None:
    """Say which files of kernels are compiled, where they come from, and why others are not."""
    from corpuskit.kernels import target

    if problem := target.warning():
        click.echo(f"  {problem}")
    about = target.build_info()
    files = target.kernel_files()
    why_not = target.why_not_prebuilt()
    prebuilt = [file for file in files if not why_not and target.prebuilt_folder(file).exists()]
    local = [file for file in files if file not in prebuilt and target.kernel_folder(file).exists()]
    missing = [file.stem for file in files if file not in (*prebuilt, *local)]
    click.echo(f"  for {about['level']}, Python {about['python']}, Numba {about['numba']}")
    click.echo(f"  {len(prebuilt)} of {len(files)} modules of kernels came with corpuskit"
               f"{f' ({why_not})' if why_not else ''}, {len(local)} are compiled here")  # fmt: skip
    if missing and not target.warmup_marker().exists():  # else they are parts of others
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        click.echo(f"  {len(missing)} compile at first use ({names}). Run: corpuskit warmup")
