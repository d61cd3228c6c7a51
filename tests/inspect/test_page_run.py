"""`corpuskit report` on a real run of hostile documents, opened in a real browser."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import Lab, article
from tests.inspect.test_page_browser import COUNT, HOSTILE, search

if TYPE_CHECKING:
    from tests.inspect.browser import Browser

pytestmark = pytest.mark.slow
LINE = "<script>pwned=1</script> " * 8_000


def documents() -> list[dict[str, str]]:
    """Return short and long documents full of what should not run; duplicates; a long line."""
    rng = random.Random(0)
    texts = [f"{HOSTILE} short {number}" for number in range(6)]
    mails = [f"mail to a{number}@mail.example.org" for number in range(6)]
    texts += [f"{HOSTILE} {article(rng)} {article(rng)} {one} {HOSTILE}" for one in mails]
    texts += [texts[-1], LINE, "\ud800 lone", "nul " * 40 + "\0" * 50]
    return [
        {"id": f"{number}{HOSTILE}", "url": f"https://x.example.org/{HOSTILE}", "text": one}
        for number, one in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A run of them, in a folder with a name of the same kind, and its report."""
    lab = Lab(tmp_path_factory.mktemp("hostile"), Path("none"))
    lab.write("web.jsonl", documents())
    lab.pipeline.update(
        output=str(lab.folder / "<i>out&amp;"),
        sources={"web": {"jsonl": str(lab.inputs / "web*.jsonl"), "id_column": "id",
                         "url_column": "url"}},
        stages=[{"gopher_quality": {"words": "whitespace", "min_words": 20}}, "exact_dedup", "pii"],
        ledger={"keep_text": True},
    )  # fmt: skip
    lab.run()
    return lab


def test_the_report_of_hostile_documents_is_quiet(reported: Lab, browser: Browser) -> None:
    said = reported.cli("report", str(reported.out)).stdout
    path = reported.out / "report.html"
    assert said.startswith(f"{path} (")
    page = browser.open(path)
    page.wait("document.body.classList.contains('is-drawn')")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    total = page.evaluate(
        "JSON.parse(document.getElementById('facts').textContent).samples.items.length"
    )
    assert total >= len(documents())
    while page.evaluate("Boolean(document.querySelector('#sample-list > .more'))"):
        page.evaluate("document.querySelector('#sample-list > .more').click()")
    assert page.evaluate("document.querySelectorAll('#sample-list .sample').length") == total
    assert page.evaluate("document.querySelector('.where').textContent") == str(reported.out)
    words = page.evaluate("document.body.innerText")
    assert "<script>window.pwned=1;alert(1)</script>" in words
    assert not set(words) & set("\0\x1b\x07\u202e\u2066\u2028\u2029\x9b")
    search(page, "SHORT 3", f"1 of {total} samples")
    assert " short 3" in page.evaluate("document.querySelector('#sample-list .text').textContent")
    assert page.evaluate("[window.pwned, document.querySelectorAll('script, img').length]") == [
        None,
        2,
    ]
    assert (page.errors, page.dialogs) == ([], [])
    assert set(page.requests) == {path.resolve().as_uri()}
    page.close()


def test_figures_of_the_page_are_those_of_the_command_line(reported: Lab, browser: Browser) -> None:
    facts = json.loads(reported.cli("report", str(reported.out), "--json").stdout)
    reported.cli(
        "report", str(reported.out), "--samples", "0", "-o", str(reported.folder / "r.html")
    )
    page = browser.open(reported.folder / "r.html")
    lost = page.all("#rules .bars tbody tr", "Number(one.children[2].textContent)")
    assert sum(lost) == facts["totals"]["dropped"] > 6
    status = json.loads(reported.cli("status", str(reported.out), "--json").stdout)
    [account] = status["accounts"]
    headline = page.evaluate("document.querySelector('.headline').textContent")
    assert headline.startswith(f"{account['num_kept']} of {account['num_read']} documents are left")
    assert page.evaluate(COUNT) == "0 samples"
    page.close()


def test_a_run_that_has_not_begun_has_a_report(
    reported: Lab, browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("plan.json", "inputs.json"):
        (tmp_path / "run" / name).write_bytes((reported.out / name).read_bytes())
    reported.cli("report", str(tmp_path / "run"))
    page = browser.open(tmp_path / "run" / "report.html")
    assert page.evaluate("document.querySelector('.state').className") != "state finished"
    assert page.evaluate("document.querySelectorAll('#funnel tr.quiet').length") == 4
    assert page.errors == []
    page.close()


def test_what_is_no_run_is_refused(reported: Lab, tmp_path: Path) -> None:
    said = reported.cli("report", str(tmp_path), code=2).stderr
    assert "not a run directory" in said
    said = reported.cli("report", str(reported.out), "--training", str(tmp_path), code=2).stderr
    assert "no metrics.jsonl, so no training run has begun here" in said
    said = reported.cli(
        "report", str(reported.out), "-o", str(tmp_path / "no" / "x.html"), code=2
    ).stderr
    assert "x.html" in said
