"""Puts compiled kernels into the wheel, when `CORPUSKIT_KERNELS=1` is set: `make wheel`.

To compile them takes corpuskit's dependencies and minutes, so an installation from source goes
without: it compiles kernels at first use. Such a wheel is for one Python and one kind of machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "corpuskit/kernels/prebuilt"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles all kernels into an empty folder and takes that into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless nobody asked for it."""
        if version == "editable" or os.environ.get("CORPUSKIT_KERNELS") != "1":
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        environment = {**os.environ, "CORPUSKIT_CACHE_DIR": str(folder), "PYTHONPATH": self.root}
        subprocess.run(
            [sys.executable, "-m", "corpuskit", "warmup", "--portable"], env=environment,
            cwd=self.root, check=True,
        )  # fmt: skip
        about = [sys.executable, "-c",
                 "import json; from corpuskit.kernels import target; "
                 "print(json.dumps(target.about_this()))"]  # fmt: skip
        facts = json.loads(subprocess.check_output(about, env=environment, cwd=self.root))
        if facts["level"] == "native":
            raise RuntimeError("kernels: this machine lacks the level that others have.")
        (folder / "about.json").write_text(json.dumps(facts))
        for file in (folder / "about.json", *folder.glob("*/*.nb[ic]")):
            build_data["force_include"][str(file)] = f"{PLACE}/{file.relative_to(folder)}"
        build_data["pure_python"] = False
        build_data["tag"] = _tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete what is in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _tag() -> str:
    """Return the tag of the wheel: this Python, and the platforms that Numba's own wheel is for."""
    wheel = importlib.metadata.distribution("numba").read_text("WHEEL") or ""
    tags = [line.split()[1] for line in wheel.splitlines() if line.startswith("Tag:")]
    platforms = sorted({tag.rpartition("-")[2] for tag in tags})
    return f"cp{sys.version_info.major}{sys.version_info.minor}-none-{'.'.join(platforms)}"
