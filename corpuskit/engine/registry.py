"""Finds stages: `stages/<kind>/<name>.py`, or the package of that name, defines one stage `<name>`.

Names and summaries come from file names and from source text, so listing costs no import. Other
distributions add stages through the entry-point group `corpuskit.stages`; entry `name = module`,
whose last part is the stage's name too.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from corpuskit.closure import is_module, package_modules
from corpuskit.errors import UsageError, suggest

if TYPE_CHECKING:
    from corpuskit.stage import Stage

ROOT = Path(__file__).parents[1] / "stages"
GROUP = "corpuskit.stages"
KINDS = {
    "sources": "source", "annotators": "annotator", "filters": "filter", "rewriters": "rewriter",
    "dedup": "dedup", "mixing": "mixing", "sequences": "sequence",
}  # fmt: skip
"""Folder of stages -> what one of them is called."""

THIRD_PARTY = "third-party"


@functools.cache
def modules() -> dict[str, str]:
    """Return stage name -> module name, own stages in the order of KINDS, then third parties'.

    Raises:
        UsageError: two stages have the same name.
    """
    module_of: dict[str, str] = {}
    for kind in KINDS:
        folder = ROOT / kind
        packages = (file.parent for file in folder.glob("[!_]*/__init__.py"))
        for stem in sorted(path.stem for path in (*folder.glob("[!_]*.py"), *packages)):
            module_of[stem] = f"corpuskit.stages.{kind}.{stem}"
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda e: e.name):
        if entry.name in module_of and module_of[entry.name] != entry.value:
            raise UsageError(
                f"stage {entry.name!r}: {entry.value} and {module_of[entry.name]} both define it. "
                "Uninstall one of them."
            )
        module_of[entry.name] = entry.value
    return module_of


def names(kind: str | None = None) -> list[str]:
    """Return the names of all stages, or of those of one kind."""
    return [name for name in modules() if kind in {None, kind_of(name)}]


def kind_of(name: str) -> str:
    """Return the kind of a stage: its folder, or `third-party`."""
    module = modules()[name]
    return module.split(".")[2] if module.startswith("corpuskit.stages.") else THIRD_PARTY


@functools.cache
def distribution(name: str) -> str:
    """Return name and version of what a third party's stage comes with; empty for our own."""
    if name in modules() and kind_of(name) != THIRD_PARTY:
        return ""  # unasked: to look at all that is installed takes 0.03 CPU seconds
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        if entry.dist is not None:
            return f"{entry.dist.name} {entry.dist.version}"
    return ""


def path(name: str) -> Path:
    """Return the source file of a stage, of a package its `__init__.py`, without importing it."""
    module = modules()[name]
    if module.startswith("corpuskit.stages."):
        folder = ROOT.joinpath(*module.split(".")[2:])
        return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"stage {name!r}: the module {module} cannot be found. Reinstall it.")
    return Path(spec.origin)


@functools.cache
def sources(name: str) -> tuple[Path, ...]:
    """Return the source file of a stage; of a third party's, all modules that came with it.

    These are the modules of the distribution that declares the stage, or of its top-level package
    where the distribution does not list them, as an editable installation does not.
    """
    file = path(name)
    if kind_of(name) != THIRD_PARTY:
        return (file,)
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        listed = entry.dist.files if entry.dist is not None else None
        files = [Path(str(file.locate())) for file in listed or ()]
        if file in files:
            return tuple(filter(is_module, files))
    return package_modules(file)


@functools.cache
def summary(name: str) -> str:
    """Return the first docstring line of a stage, without importing it."""
    tree = ast.parse(path(name).read_text("utf-8"))
    docs = [
        doc
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and node.bases
        and (doc := ast.get_docstring(node))
    ]
    # A stage names its source, its helpers seldom do.
    stage_docs = [doc for doc in docs if "\nSource:" in doc] or docs[-1:]
    return (stage_docs[0] if stage_docs else ast.get_docstring(tree) or "").split("\n", 1)[0]


@functools.cache
def load(name: str) -> type[Stage]:
    """Import the stage called `name`.

    Raises:
        UsageError: no stage has that name, or its module does not define exactly one.
    """
    from corpuskit.stage import Stage

    if name not in modules():
        raise UsageError(f"There is no stage {name!r}. {suggest(name, modules())}")
    module = importlib.import_module(modules()[name])
    types = [
        value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Stage)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and not key.startswith("_")
    ]
    if len(types) != 1:
        raise UsageError(f"{modules()[name]}: must define exactly one stage, defines {len(types)}.")
    return types[0]
