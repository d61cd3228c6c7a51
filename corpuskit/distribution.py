"""What this distribution is called, and how to install more of it.

The name differs from the package's: `corpuskit` on the package index is another project.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "corpuskit-pretrain"


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

    try:
        record = importlib.metadata.distribution(NAME).read_text("direct_url.json")
        origin = json.loads(record or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = unquote(urlsplit(url).path)
        return f"{folder}{extras}" if Path(folder).is_dir() else f"{NAME}{extras}"
    if "vcs_info" in origin:
        version = origin["vcs_info"]
        return f"{NAME}{extras} @ {version['vcs']}+{url}@{version['commit_id']}"
    return f"{NAME}{extras} @ {url}" if url else f"{NAME}{extras}"
