"""HTML in text columns: what the contract tests do not reach."""

from __future__ import annotations

import pytest

from corpuskit.stages.rewriters.html import PAGE, Html
from corpuskit.stages.sources._containers import container_text
from corpuskit.stages.sources._extract import ExtractorSettings, HtmlPage, extract_pages
from tests.contract.strategies import plain, view

pytest.importorskip("resiliparse")


def test_documents_become_their_main_text_or_go():
    found = plain(Html(), view([PAGE, "", "plain words", "<script>x</script>"]))
    assert [row["rule"] for row in found] == [None, "no_text", None, "no_text"]
    assert [row["text"].decode() for row in found] == [
        "The river bends twice.", "", "plain words", "<script>x</script>",
    ]  # fmt: skip


LINKS = "<nav>" + "<a href=/>A link of the navigation.</a> " * 60 + "</nav>"


def test_a_page_without_main_text_becomes_all_of_its_text_and_the_ledger_says_so():
    short = LINKS + "<main><p>Lost.</p></main>"
    pages = [PAGE, LINKS, short, f"{LINKS}<main><p>{'The river bends. ' * 20}</p></main>"]
    documents = view(pages)
    found = Html().apply(documents)
    assert not found.codes.any()
    texts = [found.text.row(row).decode() for row in range(4)]
    assert [text.count("A link") for text in texts] == [0, 60, 60, 0]
    assert "Lost." in texts[2]
    assert found.spans.rows.tolist() == [1, 2]
    assert [Html.rules[code - 1] for code in found.spans.codes] == ["all_text", "all_text"]
    assert found.spans.ends.tolist() == [len(LINKS), len(short)]
    assert found.spans.action == "replace"


def test_main_text_alone_is_kept_where_it_is_not_next_to_nothing():
    few = f"<nav>{'<a href=/>A link.</a> ' * 3}</nav><main><p>Short but true.</p></main>"
    found = Html().apply(view([few]))
    assert found.text.row(0) == b"Short but true."
    assert len(found.spans.rows) == 0


def test_text_is_utf8_whatever_the_page_says_of_itself():
    page = "<head><meta charset=koi8-r></head><body><p>caf\xe9 na\xefve</p></body>"
    assert plain(Html(), view([page]))[0]["text"].decode() == "caf\xe9 na\xefve"


def test_a_page_over_which_the_extractor_gives_up_is_dropped_with_its_size():
    page = "<p>word word word</p>" * 100_000
    found = plain(Html(page_seconds=0.01), view([PAGE, page, PAGE]))
    assert [row["rule"] for row in found] == [None, "not_extracted", None]
    assert found[1]["value"] == len(page)


PROSE = "<p>The river bends twice before it meets the sea, and no one in town has ever asked why."
ARTICLE = f"<div class=entry-content>{PROSE * 30}<h4>Related topics</h4></div>"
TEASERS = "<div class=item><b>Offer</b><div>Buy it now</div></div>" * 30


def _mixed(page: str) -> str:
    [extracted] = extract_pages([HtmlPage(page.encode())], ExtractorSettings("mixed"))
    return extracted.text.decode()


@pytest.mark.parametrize("page", [
    ARTICLE,
    f"{TEASERS}{ARTICLE}{TEASERS}",
    ARTICLE.replace(PROSE, PROSE + "<p class=x-newsletter>Subscribe now, it is free.</p>"),
])  # fmt: skip
def test_mixed_takes_the_container_alone_and_cuts_its_tail(page):
    pytest.importorskip("trafilatura")
    text = _mixed(page)
    assert text.count("The river bends") == 30
    assert not {"Offer", "Subscribe", "Related"} & set(text.split())


def test_mixed_keeps_the_lists_of_a_container():
    page = ARTICLE.replace("<h4>", f"<ul><li>It bends.</li></ul>{PROSE}<h4>")
    assert "\u2022 It bends." in container_text(page, False)


def test_mixed_asks_trafilatura_where_nothing_is_plain():
    pytest.importorskip("trafilatura")
    page = f"<html><body>{TEASERS}<div><h1>Rivers</h1>{PROSE * 6}</div>{TEASERS}</body></html>"
    assert container_text(page, False) is None
    wanted = extract_pages([HtmlPage(page.encode())], ExtractorSettings("trafilatura"))
    assert _mixed(page).encode() == wanted[0].text


def test_mixed_never_takes_the_first_post_for_the_thread():
    posts = f"<div class=post-text>{PROSE * 30}</div>" * 3
    assert container_text(f"<body>{posts}</body>", False).count("The river") == 90


def test_mixed_leaves_manuals_to_resiliparse():
    head = "<head><meta name=generator content='Doxygen 1.9'></head>"
    members = "<dl><dt><code>int f(int)</code></dt><dd>See also</dd></dl>" * 20
    assert container_text(f"{head}<body>{members}</body>", False).count("int f(int)") == 20
    assert container_text(f"<body>{TEASERS}</body>", False) is None


def test_without_main_content_mixed_is_all_text():
    pytest.importorskip("trafilatura")
    settings = ExtractorSettings("mixed", main_content=False)
    [extracted] = extract_pages([HtmlPage((LINKS + ARTICLE).encode())], settings)
    assert extracted.text.decode().count("A link") == 60


@pytest.mark.real
@pytest.mark.slow
def test_real_pages_come_out_as_the_extractor_alone_gives_them(shared_data):
    import pyarrow.parquet as pq
    from resiliparse.extract.html2text import extract_plain_text

    from corpuskit.stages.sources._extract_worker import decode_page

    path = shared_data / "html" / "trafilatura_eval.parquet"
    pages = pq.read_table(path, columns=["html"])["html"].to_pylist()[:60]
    found = extract_pages([HtmlPage(p) for p in pages], ExtractorSettings())
    for page, extracted in zip(pages, found, strict=True):
        main, every = (
            extract_plain_text(decode_page(page, ""), main_content=is_main, alt_texts=False,
                               comments=False).strip().removeprefix("\ufeff").strip()
            for is_main in (True, False)
        )  # fmt: skip
        is_lost = len(main) < min(200, 0.05 * len(every))
        assert extracted.is_all_text == is_lost
        assert extracted.text.decode() == (every if is_lost else main)
    assert sum(one.is_all_text for one in found) == 2  # of 60


@pytest.mark.real
@pytest.mark.slow
def test_no_real_page_with_visible_text_goes_as_one_without(shared_data):
    import pyarrow.parquet as pq

    rules = []
    for name in ("trafilatura_eval", "mozilla_readability"):
        pages = pq.read_table(shared_data / "html" / f"{name}.parquet")["html"].to_pylist()
        found = extract_pages([HtmlPage(page) for page in pages], ExtractorSettings())
        every = extract_pages(
            [HtmlPage(page) for page in pages], ExtractorSettings(main_content=False)
        )
        rules += [(one.rule, bool(all_.text), one.is_all_text)
                  for one, all_ in zip(found, every, strict=True)]  # fmt: skip
    assert not [one for one in rules if one[0] == "no_text" and one[1]]
    assert sum(is_all for *_, is_all in rules) == 8  # of 580
