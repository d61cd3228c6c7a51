"""HTML in text columns: what the contract tests do not reach."""

from __future__ import annotations

import pytest

from corpuskit.stages.rewriters.html import PAGE, Html
from corpuskit.stages.sources._extract import Page, Settings, extract_pages
from tests.contract.strategies import plain, view

pytest.importorskip("resiliparse")


def test_documents_become_their_main_text_or_go():
    found = plain(Html(), view([PAGE, "", "plain words", "<script>x</script>"]))
    assert [row["rule"] for row in found] == [None, "no_text", None, "no_text"]
    assert [row["text"].decode() for row in found] == [
        "The river bends twice.", "", "plain words", "<script>x</script>",
    ]  # fmt: skip


def test_text_is_utf8_whatever_the_page_says_of_itself():
    page = "<head><meta charset=koi8-r></head><body><p>caf\xe9 na\xefve</p></body>"
    assert plain(Html(), view([page]))[0]["text"].decode() == "caf\xe9 na\xefve"


def test_a_page_over_which_the_extractor_gives_up_is_dropped_with_its_size():
    page = "<p>word word word</p>" * 100_000
    found = plain(Html(page_seconds=0.01), view([PAGE, page, PAGE]))
    assert [row["rule"] for row in found] == [None, "not_extracted", None]
    assert found[1]["value"] == len(page)


@pytest.mark.real
@pytest.mark.slow
def test_real_pages_come_out_as_the_extractor_alone_gives_them(shared_data):
    import pyarrow.parquet as pq
    from resiliparse.extract.html2text import extract_plain_text

    from corpuskit.stages.sources._decode import decode_page

    path = shared_data / "html" / "trafilatura_eval.parquet"
    pages = pq.read_table(path, columns=["html"])["html"].to_pylist()[:60]
    found = [one.text.decode() for one in extract_pages([Page(p) for p in pages], Settings())]
    alone = [
        extract_plain_text(decode_page(p, ""), main_content=True, comments=False, alt_texts=False)
        for p in pages
    ]
    assert found == [text.strip().removeprefix("\ufeff").strip() for text in alone]
