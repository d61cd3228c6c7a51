"""Paths and addresses as people write them into YAML files."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator

_VARIABLE = re.compile(r"(?:^|/)(\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}))")


def is_name(text: str) -> bool:
    """Return whether text is letters, digits, - and _, as sources and tasks name files."""
    return text.replace("-", "_").isidentifier()


def expand_home(path: str) -> str:
    """Return a path whose `~` or `~user` at the beginning is the home folder it stands for.

    That is what a shell makes of it; a shell's variables are refused instead, since a file with
    another meaning on each machine describes no run.

    Raises:
        ValueError: no user has that name, or a part of the path begins with a variable.
    """
    variable = _VARIABLE.search(path)
    if variable:
        name = variable[1]
        raise ValueError(
            f"{path!r} holds the variable {name}, which is not expanded. Write the path out, or "
            f'give it on the command line: --set NAME="{path}"'
        )
    if not path.startswith("~"):
        return path
    expanded = os.path.expanduser(path)
    if expanded == path:
        user = path[1:].partition("/")[0]
        raise ValueError(
            f"{path!r} is in the home folder of {user!r}, and there is no such user. Write "
            f"'./{path}' for a file of that name"
        )
    return expanded


PathText = Annotated[str, AfterValidator(expand_home)]
"""The type of every parameter that names a file, a folder or an address."""
