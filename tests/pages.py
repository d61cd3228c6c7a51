"""Commands of the documentation: read out of its pages, and run as a reader would type them.

A page's fenced blocks marked `bash`, `sh` or `console` run in order, in one folder that holds what
a clone holds. A YAML, TOML or Python block whose first line is `# some/path.ext` is a file: the
reader is told to save it, so it is written, unless the repository has it. A comment
`<!-- not run: reason -->` in front of a block leaves it out. `corpuskit` runs in this process if it
can; all else in bash.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.conftest import ROOT
from tests.engine.here import command_line
from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = ("bash", "sh", "console")
CLONED = ("pipelines", "sample_data", "docs/examples", "docs/generate.py")
"""What commands of the pages may read."""
MARK = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w./-]+\.(?:yaml|py|json|toml))\n")
MEASURED = re.compile(r"[~<]?-?\d[\d,.:]*(?:e[+-]\d+)?(?: ?(?:[kMGT]?B|ms|s|min|h|d|%)(?!\w))?")
"""A figure with its unit: what may differ between two machines or versions."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        line: of the page, from 1, where the block's text begins.
        reason: why it is not run, as the page says; None where it is run.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None


@dataclass(frozen=True)
class Command:
    """A command of a block, and the lines that the page shows behind it."""

    place: str
    text: str
    shown: tuple[str, ...] = ()


def pages() -> list[Path]:
    """Return the README and all pages of docs/ that people write."""
    generated = ROOT / "docs" / "stages"
    found = [path for path in (ROOT / "docs").rglob("*.md") if path.parent != generated]
    return [ROOT / "README.md", *sorted(found)]


def blocks_of(path: Path, root: Path = ROOT) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = path.read_text("utf-8")
    name = path.relative_to(root).as_posix()
    found = []
    for match in FENCE.finditer(text):
        mark = MARK.search(text, 0, match.start())
        line = text.count("\n", 0, match.start(2)) + 1
        reason = " ".join(mark.group(1).split()) if mark else None
        found.append(Block(name, line, match.group(1), match.group(2), reason))
    return found


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a block: of `console` the lines behind `$ `, else all lines."""
    found: list[Command] = []
    lines = list(enumerate(block.text.splitlines(), start=block.line))
    while lines:
        number, line = lines.pop(0)
        if block.language == "console":
            if not line.startswith("$ "):
                last = found[-1]
                found[-1] = Command(last.place, last.text, (*last.shown, line))
                continue
            line = line.removeprefix("$ ")
        while lines and _goes_on(line):
            line = f"{line}\n{lines.pop(0)[1]}"
        if line.partition("#")[0].strip():
            found.append(Command(f"{block.page}:{number}", line))
    return found


def _goes_on(text: str) -> bool:
    """Return whether a command is not complete: a backslash, an open quote, a here-document."""
    if text.endswith("\\"):
        return True
    if opened := re.search(r"<<-?\s*'?(\w+)'?", text):
        return text.splitlines()[-1].strip() != opened.group(1)
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Return the lines shown that were not printed, in that order; figures may be others.

    A line is compared up to its first ` ...`; spaces and the lines of tables don't count.
    """
    left = [_shape(line) for line in printed.splitlines()]
    wanting = []
    for line in shown:
        head, dots, _ = line.partition("...")
        wanted = _shape(head)
        for index, one in enumerate(left):
            if one.startswith(wanted) if dots else one == wanted:
                left = left[index + 1 :]
                break
        else:
            wanting.append(line)
    return wanting


def _shape(line: str) -> str:
    bare = re.sub(r"[\u2500-\u257f]+", " ", line)
    words = " ".join(MEASURED.sub("#", bare).split())
    return re.sub(r"#(?: #)+", "#", words)  # cells of a table may be empty: nothing was timed


@dataclass
class Reader:
    """Somebody at a shell in the root of a clone, who types what a page says.

    Attributes:
        apart: whether runs and training start processes, as they do for a user.
        all_blocks: whether blocks that the page says are not run are run too.
        variables: what `export` has set.
    """

    folder: Path
    apart: bool = False
    all_blocks: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    def read(self, path: Path) -> list[str]:
        """Do what a page says, from top to bottom; return what went wrong."""
        self.settle()
        wrong: list[str] = []
        for block in blocks_of(path):
            if (named := FILE.match(block.text)) and block.language in ("yaml", "toml", "python"):
                wrong += self.keep(block, self.folder / named.group(1))
            if block.language in SHELLS and (self.all_blocks or block.reason is None):
                for command in commands_of(block):
                    wrong += self.type(command)
        return wrong

    def settle(self) -> None:
        """Put into the folder what a clone has, but for the package itself."""
        for name in CLONED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir() and not target.exists():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def keep(self, block: Block, target: Path) -> list[str]:
        """Save a block as the file that its first line names."""
        if target.exists() and target.is_relative_to(self.folder / "pipelines"):
            if target.read_text("utf-8").strip() == block.text.strip():
                return []
            return [f"{block.page}:{block.line}: is not what the repository has in {target.name}"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, "utf-8")
        return []

    def type(self, command: Command) -> list[str]:
        """Run a command; return what is wrong with what came of it."""
        if exported := re.fullmatch(r"export (\w+)=(\S*)\s*(?:#.*)?", command.text):
            self.variables[exported.group(1)] = exported.group(2)
            return []
        done = self.call(command.text)
        # A wrong example says so by what it shows.
        said = f"{done.stdout}\n{done.stderr}"
        fails = any(line.startswith("error: ") for line in command.shown)
        if (done.returncode != 0) != fails:
            return [f"{command.place}: {command.text}\nends with {done.returncode}\n{said[-3000:]}"]
        return [
            f"{command.place}: {command.text}\ndoes not print: {line}\nbut\n{said[-6000:]}"
            for line in missing(command.shown, said)[:1]
        ]

    def call(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of ours in this process if it can be, anything else in bash."""
        words = shlex.split(text.replace("\\\n", " "), comments=True)
        bare = re.sub(r"'[^']*'|\"[^\"$]*\"", "", text).partition(" # ")[0]
        plain = not re.search(r"[|;&<>$`*~]", bare)
        variables = {"COLUMNS": "120", **self.variables}
        if words[0] == "corpuskit" and plain and not self._is_apart(words):
            return command_line(self.folder, words[1:], variables)
        programs = self.folder / ".programs"
        programs.mkdir(exist_ok=True)
        for name, option in (("corpuskit", "-m corpuskit"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {option} "$@"\n')
            program.chmod(0o755)
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=environment, text=True,
            capture_output=True, check=False, timeout=HANG_SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _is_apart(self, words: list[str]) -> bool:
        """Return whether a command needs processes of its own: training does, for its torch."""
        if words[1] == "train":
            return not {"--plan", "--status", "--report", "--sbatch", "--help"} & set(words)
        return self.all_blocks or (self.apart and words[1] == "run")
