"""The names of our distributions, and how to install more of the one that is installed.

They differ from the package's: `corpuskit` on the package index is another project.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME, LOADER = "corpuskit-pretrain", "corpuskit-loader"


def install_command(extra: str = "") -> str:
    """Return the command that installs this distribution with an extra, from where it came from.

    That is a clone whose files are used as they are, the folder, wheel or repository that pip
    recorded, or else the package index.
    """
    extras = f"[{extra}]" if extra else ""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}{extras}')}"
    return f"pip install {shlex.quote(_origin(extras))}"


def _origin(extras: str) -> str:
    import importlib.metadata  # 0.03 CPU seconds, for a message

    name, origin = NAME, {}
    for installed in importlib.metadata.distributions():
        if installed.name in (NAME, LOADER):
            name = installed.name
            with contextlib.suppress(ValueError):
                origin = json.loads(installed.read_text("direct_url.json") or "{}")
            if name == NAME:
                break
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = unquote(urlsplit(url).path)
        return f"{folder}{extras}" if Path(folder).is_dir() else f"{name}{extras}"
    folder = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
    if "vcs_info" in origin:
        version = origin["vcs_info"]
        return f"{name}{extras} @ {version['vcs']}+{url}@{version['commit_id']}{folder}"
    return f"{name}{extras} @ {url}{folder}" if url else f"{name}{extras}"
