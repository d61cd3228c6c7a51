"""What the documentation says is true: commands run, pages are current, pipelines plan."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import yaml

from corpuskit.engine.config import read_model, read_pipeline
from corpuskit.engine.plan import read_plan
from corpuskit.train.settings import TrainSettings
from tests.conftest import ROOT
from tests.engine.here import command_line
from tests.pages import SHELLS, Reader, blocks_of, commands_of, missing, pages
from tests.patience import HANG_SECONDS

README = ROOT / "README.md"

NOT_RUN = {
    "README.md": 1,
    "docs/ablation.md": 1,
    "docs/mixture_search.md": 1,
    "docs/accuracy/extraction.md": 1,
    "docs/accuracy/quality.md": 2,
    "docs/accuracy/toxicity.md": 2,
    "docs/adding_a_stage.md": 1,
    "docs/exports.md": 1,
    "docs/guide.md": 2,
    "docs/install.md": 4,
    "docs/langid.md": 1,
    "docs/languages.md": 1,
    "docs/object_storage.md": 2,
    "docs/ray.md": 1,
    "docs/slurm.md": 2,
    "docs/training.md": 1,
    "docs/training_models.md": 1,
    "docs/training_runs.md": 2,
}
"""How many blocks of commands are not run; each says why in front of it."""


def is_run(block) -> bool:
    return block.language in SHELLS and block.reason is None


def call(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True,
        capture_output=True, check=False, timeout=HANG_SECONDS,
    )  # fmt: skip


def test_the_readme_can_be_followed(clone):
    folder, wrong = clone
    assert not wrong, "\n\n".join(wrong)
    assert sum(len(commands_of(one)) for one in blocks_of(README) if is_run(one)) >= 12
    assert (folder / "runs/quickstart/mix/plan.json").exists()
    code = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL).group(1)
    shutil.copytree(folder / "runs/quickstart", folder / "copy/runs/quickstart")
    done = call(folder / "copy", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}")
    assert done.returncode == 0, done.stderr


WITH_COMMANDS = [path for path in pages()[1:] if any(is_run(one) for one in blocks_of(path))]


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.stem)
def test_a_page_can_be_followed(path, tmp_path, request):
    if "quickstart" in path.read_text("utf-8"):
        folder, _ = request.getfixturevalue("clone")
        for run in sorted((folder / "runs").glob("quickstart*")):
            shutil.copytree(run, tmp_path / "runs" / run.name)
    wrong = Reader(tmp_path).read(path)
    assert not wrong, "\n\n".join(wrong)


def test_commands_that_are_not_run_are_known_and_say_why():
    found = {}
    for path in pages():
        left_out = [one for one in blocks_of(path) if one.reason and one.language in SHELLS]
        assert all(len(one.reason.split()) >= 3 for one in left_out), path
        if left_out:
            found[path.relative_to(ROOT).as_posix()] = len(left_out)
    assert found == NOT_RUN


def test_no_command_hides_in_a_block_without_a_language():
    hidden = []
    for path in pages():
        text = path.read_text("utf-8")
        for block in blocks_of(path):
            if block.language in ("", "text"):
                lines = block.text.splitlines()
                hidden += [(path.name, one) for one in lines if COMMAND.match(one)]
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        indented = re.findall(r"^ {4}(.*)$", outside, re.MULTILINE)
        hidden += [(path.name, one) for one in indented if COMMAND.match(one)]
    assert not hidden


COMMAND = re.compile(r"\$ |(?:corpuskit|python3?|pip|torchrun|make|sbatch|uv|\S+/python) (?!.*=$)")


def test_what_is_read_of_a_page(tmp_path):
    page = tmp_path / "made.md"
    page.write_text(
        "```console\n$ corpuskit stages \\\n    text\ntext\n...\n$ true\n```\n"
        "<!-- not run: it would take a week -->\n```bash\nsleep 604800   # a week\n```\n"
    )
    one, other = blocks_of(page, tmp_path)
    assert [(c.text, c.shown) for c in commands_of(one)] == [
        ("corpuskit stages \\\n    text", ("text", "...")), ("true", ())
    ]  # fmt: skip
    assert (one.reason, other.reason) == (None, "it would take a week")
    assert [c.text for c in commands_of(other)] == ["sleep 604800   # a week"]


PIPELINE = {"output": "out", "sources": {"web": {"text": "*.txt"}}, "stages": []}
TRAINING = {"data": "run", "output": "out", "model": {"preset": "15m"}, "batch": {"global_rows": 8}}
ELSEWHERE = {
    "docs/adding_a_stage.md": "names the stage of its page; tests/test_one_file_stage.py runs it",
    "docs/datatrove.md": "names a module of its page; tests/test_integrations_datatrove.py runs it",
}


def test_the_yaml_of_the_pages_is_valid(tmp_path):
    checked = 0
    for block in (one for path in pages() for one in blocks_of(path) if one.language == "yaml"):
        value = yaml.safe_load(block.text)
        value = {"stages": value} if isinstance(value, list) else value
        here = tmp_path / "here.yaml"
        if set(value) & {"stages", "sources", "executor", "ledger", "card", "expect"}:
            here.write_text(yaml.safe_dump(PIPELINE | value, sort_keys=False))
            if block.page not in ELSEWHERE:
                checked += len(read_pipeline(here).steps)
        elif block.page not in ELSEWHERE:
            given = TRAINING | value
            if "init_from" in value:
                del given["model"]
            here.write_text(yaml.safe_dump(given, sort_keys=False))
            assert read_model(here, TrainSettings).output
    assert checked > 50


def test_what_a_page_shows_must_be_printed_but_for_figures():
    printed = "stage   in  CPU s\nmix    826    0.1\nRead 3 files, 1.2 MB\n"
    assert missing(("stage  in  CPU s", "mix  14  2.0", "Read ..."), printed) == []
    assert missing(("Read 99 files, 14 kB",), printed) == []
    assert missing(("mix 1", "stage in CPU s"), printed) == ["stage in CPU s"]
    assert missing(("packed 1 ...", "mix 1 twice"), printed) == ["packed 1 ...", "mix 1 twice"]


def test_the_yaml_in_the_readme_plans(tmp_path):
    text = re.search(r"```yaml\n(.*?)```", README.read_text("utf-8"), re.DOTALL).group(1)
    Reader(tmp_path).settle()
    (tmp_path / "readme.yaml").write_text(text)
    done = command_line(tmp_path, ["plan", "readme.yaml", "--set", "output=runs/readme"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda p: p.name)
def test_every_pipeline_is_valid(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if path.name.startswith("train"):
        assert read_model(path, TrainSettings).output
    else:
        assert read_plan(path).phases


def test_every_pipeline_of_the_guide_is_shown_there():
    shown = "".join(block.text for block in blocks_of(ROOT / "docs" / "guide.md"))
    for path in sorted((ROOT / "pipelines" / "guide").glob("*.yaml")):
        assert f"# pipelines/guide/{path.name}\n" in shown, path


def test_generated_pages_are_current():
    done = call(ROOT, "docs/generate.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_stage_page_has_a_source_and_says_what_parameters_mean():
    for path in sorted((ROOT / "docs" / "stages").glob("[!R]*.md")):
        text = path.read_text("utf-8")
        assert "\nSource: " in text, path
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
        assert all(len(row) == 4 and len(row[3].split()) > 1 for row in rows), path


def test_links_in_the_docs_lead_somewhere():
    broken = []
    others = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    for page in [*pages(), *others, *(ROOT / "docs" / "stages").glob("*.md")]:
        text = page.read_text("utf-8")
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", text):
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors_of(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken


def test_the_website_lists_every_page_once_and_its_links_lead_somewhere(tmp_path):
    website = runpy.run_path(str(ROOT / "docs" / "website.py"))
    parts = [part for item in website["nav"]() for part in item.items()]
    assert all(places for _, places in parts), "a part without pages"
    listed = [place for _, places in parts for place in places]
    website["gather"](tmp_path)
    written = [path.relative_to(tmp_path / "docs") for path in tmp_path.glob("docs/**/*.md")]
    assert sorted(listed) == sorted(path.as_posix() for path in written)
    broken = [
        (place, link)
        for place in listed
        for page in [tmp_path / "docs" / place]
        for link in re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text("utf-8"))
        if not (page.parent / link).is_file()
    ]
    assert not broken


def anchors_of(path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_two_clicks_from_the_readme():
    def linked(path):
        text = path.read_text("utf-8")
        targets = re.findall(r"\]\((?!https?://)([^)#]+\.md)", text)
        return {(path.parent / target).resolve() for target in targets}

    index = ROOT / "docs" / "README.md"
    first = linked(README) | linked(index)
    assert index in linked(README)
    assert (ROOT / "docs" / "guide.md") in linked(README)
    lost = [path for path in pages() if path.resolve() not in first | {README, index}]
    assert not lost
    stages = ROOT / "docs" / "stages" / "README.md"
    assert stages in first
    assert set((ROOT / "docs" / "stages").glob("*.md")) - {stages} <= linked(stages)


def test_the_inputs_of_the_guide_are_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        done = call(tmp_path, str(ROOT / "sample_data" / "inputs.py"), name)
        assert done.returncode == 0, done.stderr
    one = {path.relative_to(tmp_path / "one"): path for path in (tmp_path / "one").rglob("*.*")}
    assert len([path for path in one.values() if path.is_file()]) == 8
    for name, path in one.items():
        assert path.read_bytes() == (tmp_path / "two" / name).read_bytes()
