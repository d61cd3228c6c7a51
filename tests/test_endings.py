"""How the command ends when its surroundings go away: never with a traceback, results intact."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.slow
PIPELINE = """
output: out
sources: {web: {jsonl: in.jsonl}}
stages: [exact_dedup]
executor: {workers: 1}
"""
COMMAND = f"{shlex.quote(sys.executable)} -m corpuskit"
UNREAD = "Stopped: nobody reads the output any more. Run the same command again to continue.\n"


@pytest.fixture
def shell(tmp_path):
    """Run a line of bash in a folder with a pipeline; return what it printed, both streams."""
    texts = [json.dumps({"text": f"a text, number {number}"}) for number in range(50)]
    (tmp_path / "in.jsonl").write_text("\n".join(texts))
    (tmp_path / "p.yaml").write_text(PIPELINE)

    def run(line: str) -> tuple[str, str]:
        done = subprocess.run(
            ["bash", "-c", line.replace("corpuskit ", f"{COMMAND} ")], cwd=tmp_path, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
            timeout=HANG_SECONDS,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout, done.stderr

    return run


def test_a_run_whose_reader_goes_stops_with_a_message_and_goes_on_later(shell):
    printed, errors = shell("(corpuskit run p.yaml; echo code $? >&2) | head -1")
    assert printed.count("\n") == 1
    assert errors == f"{UNREAD}code 1\n"
    shell("(corpuskit run p.yaml 2>&1; echo $? > code) | head -1")
    assert shell("cat code") == ("1\n", "")
    printed, errors = shell("corpuskit run p.yaml && corpuskit verify out")
    assert "Run directory: out" in printed
    assert errors == ""
    assert shell("(corpuskit status out; echo code $? >&2) | head -1")[1] == "code 0\n"


def test_closed_streams_change_nothing(shell):
    assert shell("corpuskit run p.yaml >&- 2>&- <&-; echo $?") == ("0\n", "")
    assert shell("corpuskit run nothing.yaml >&- 2>&- <&-; echo $?") == ("2\n", "")
    assert "files" in shell("corpuskit verify out")[0]


def test_no_file_takes_the_number_of_a_closed_stream(shell):
    program = (
        "import os\n"
        "from corpuskit.cli._streams import open_streams\n"
        "open_streams()\n"
        "print(os.open('data', os.O_WRONLY | os.O_CREAT), file=open('number', 'w'))\n"
        "print('a message')\n"
        "os.write(2, b'from a library')\n"
    )
    shell(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-")
    printed, _ = shell("cat number data")
    assert int(printed) > 2


def test_a_working_directory_that_is_gone_is_named(shell):
    line = "mkdir gone && cd gone && rmdir ../gone && corpuskit run ../p.yaml; echo code $? >&2"
    printed, errors = shell(line)
    assert printed == ""
    assert errors.endswith(
        "The working directory was deleted: change to another, run the command again.\ncode 1\n"
    )
