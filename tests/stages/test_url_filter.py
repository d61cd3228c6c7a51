from __future__ import annotations

import tarfile
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.errors import UsageError
from corpuskit.formats.batch import ORIGIN
from corpuskit.stage import View
from corpuskit.stages.filters.url_filter import UrlFilter
from corpuskit.stages.filters.url_filter import lists as url_lists
from tests.stages.url_corpus import HOSTS, LABELS, PATHS, PORTS, SCHEMES, USERS, Maker, real_urls

SMALL = {
    "extra_domains": ("example.com", "a.example.org", "xn--p1ai", "b\u00fccher.com", "foo.ck"),
    "extra_urls": ("example.net/a", "//x.org/b"),
    "banned_words": ("bad", "wo-rst"),
    "soft_banned_words": ("hot", "cheap", "12"),
    "banned_subwords": ("evil", "abab"),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Compiled lists of these tests lie in a folder of their own; kernels stay where they are."""
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(url_lists, "cache_dir", lambda: place)
    url_lists._open.cache_clear()
    yield place
    url_lists._open.cache_clear()


def decide(urls, **params):
    stage = UrlFilter(**{"use_integrated_lists": False, **params})
    rows = pa.array([{"url": url} for url in urls], ORIGIN)
    outcome = stage.apply(View(pa.record_batch({"origin": rows})))
    return [stage.rules[code - 1] if code else None for code in outcome.codes.tolist()]


def reference(**lists):
    """Return datatrove's filter, with the suffixes that tldextract has without a network."""
    pytest.importorskip("ahocorasick")
    pytest.importorskip("fasteners")
    tldextract = pytest.importorskip("tldextract")
    from datatrove.data import Document
    from datatrove.pipeline.filters import URLFilter

    whole = URLFilter(**lists)
    whole.tldextractor = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

    def decide(url):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            kept = whole.filter(Document(text="", id="", metadata={"url": url}))
        return None if kept is True else kept[1]

    return decide


def differences(urls, oracle, found):
    return [
        (url, rule, oracle(url))
        for url, rule in zip(urls, found, strict=True)
        if rule != oracle(url)
    ]


@pytest.mark.slow
def test_small_lists_decide_as_the_reference():
    suffixes = ["co.uk", "*.ck", "!www.ck", "com", "\u0440\u0444", "\u516c\u53f8.\u9999\u6e2f"]
    words = ["bad", "worst", "hot", "cheap", "12", "evil", "aba", "bab", "hello"]
    maker = Maker(SMALL["extra_domains"], SMALL["extra_urls"], words, suffixes)
    urls = maker.make(3000)
    lists = {key: set(values) for key, values in SMALL.items()}
    oracle = reference(use_integrated_lists=False, **lists)
    found = decide(urls, **SMALL)
    assert differences(urls, oracle, found)[:5] == []
    assert set(found) == {None, *UrlFilter.rules[1:]}


urls = st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(SCHEMES),
    st.sampled_from(USERS),
    st.lists(st.sampled_from(LABELS).map("{}.".format), max_size=3).map("".join),
    st.sampled_from(HOSTS),
    st.sampled_from(PORTS),
    st.sampled_from(PATHS) | st.text(max_size=8),
).filter(bool)


@settings(max_examples=8)
@given(st.lists(urls | st.text(min_size=1, max_size=20), max_size=30))
@example(["http://www.\u0130stanbul.com"])
def test_hosts_are_those_that_tldextract_finds(found):
    tldextract = pytest.importorskip("tldextract")
    extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    hosts = [(one.top_domain_under_public_suffix, one.fqdn) for one in map(extract, found)]
    # Each other host is listed; `@` would make a file of it, and lists are stripped, in lower case.
    listed = {one for pair in hosts[::2] for one in pair if one and one == one.strip("@ ")}
    listed = {one for one in listed if one == one.strip() and one == one.lower()}
    expected = [
        "domain" if domain in listed else "subdomain" if host in listed else None
        for domain, host in hosts
    ]
    assert decide(found, extra_domains=tuple(sorted(listed))) == expected


def test_the_first_test_that_hits_names_the_rule():
    url = "http://a.example.com/bad/hot/cheap/evil"
    params = dict(SMALL, extra_domains=("example.com", "a.example.com"), extra_urls=(url,))
    order = []
    for left_out in [None, "extra_domains", "extra_urls", *list(SMALL)[2:]]:
        if left_out is not None:
            params[left_out] = ()
        order += decide([url], **params)
    assert order == [
        *("domain", "url", "hard_blacklisted", "soft_blacklisted", "blacklisted_subword", None),
    ]


def test_capitals_pass_unless_told_otherwise():
    urls = ["http://EXAMPLE.com", "http://x.org/BAD", "http://x.org/HOT/Cheap", "http://x.org/eVil"]
    assert decide(urls, **SMALL) == [None, None, None, "blacklisted_subword"]
    assert decide(urls, **SMALL, case="insensitive") == [
        *("domain", "hard_blacklisted", "soft_blacklisted", "blacklisted_subword"),
    ]


def test_a_scheme_hides_a_listed_url_unless_told_otherwise():
    urls = ["https://example.net/a", "example.net/a", "//example.net/a", "https://example.net/A"]
    assert decide(urls, **SMALL) == [None, "url", None, None]
    assert decide(urls, **SMALL, scheme="ignored") == ["url", "url", "url", None]


def test_different_soft_words_count_once_each():
    urls = ["http://x.org/hot/hot", "http://x.org/hot/cheap", "http://x.org/hot/cheap/12"]
    assert decide(urls, soft_banned_words=("hot", "cheap", "12"), max_soft_words=2) == [
        *(None, None, "soft_blacklisted"),
    ]


def test_the_ledger_has_the_number_of_soft_words():
    stage = UrlFilter(use_integrated_lists=False, soft_banned_words=("hot", "cheap"))
    rows = pa.array([{"url": "http://x.org/hot/cheap"}], ORIGIN)
    outcome = stage.apply(View(pa.record_batch({"origin": rows})))
    assert (outcome.values.tolist(), stage.threshold("soft_blacklisted")) == ([2], 1)


def test_a_missing_url_is_kept_or_dropped():
    assert decide([None, "", "http://x.org"]) == [None, None, None]
    assert decide([None, "", "http://x.org"], missing="drop") == ["missing_url"] * 2 + [None]


def test_an_exempt_domain_passes_every_rule():
    urls = [
        "http://good.org/evil",
        "http://a.good.org/bad",
        "http://a.example.com",
        "http://x.org/bad",
    ]
    found = decide(urls, **SMALL, exempt_domains=("good.org", "a.example.com"))
    assert found == [None, None, None, "hard_blacklisted"]


def test_lists_are_read_from_files(tmp_path):
    path = tmp_path / "domains.txt"
    path.write_bytes("# sites\r\nexample.com\n\n  b\u00fccher.com \nx.org".encode())
    urls = ["http://example.com", "http://b\u00fccher.com", "http://x.org", "http://y.org"]
    stage = UrlFilter(use_integrated_lists=False, extra_domains=(f"@{path}",))
    assert decide(urls, extra_domains=(f"@{path}",)) == ["domain"] * 3 + [None]
    assert stage.files() == (str(path),)


def test_another_content_is_another_file(tmp_path, own_cache):
    path = tmp_path / "domains.txt"
    path.write_text("example.com\n")
    assert decide(["http://x.org"], extra_domains=(f"@{path}",)) == [None]
    url_lists._open.cache_clear()
    path.write_text("x.org\n")
    assert decide(["http://x.org"], extra_domains=(f"@{path}",)) == ["domain"]
    assert len(list((own_cache / "lists").glob("*.map"))) == 2


def test_lists_that_take_many_pieces_are_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(url_lists, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(url_lists, "_RANGE_ROWS", 40)
    path = tmp_path / "domains.txt"
    names = [f"site{(number * 7919) % 1000:03}.org" for number in range(1000)] * 2
    path.write_text("\n".join(names))
    urls = [f"http://{name}" for name in names[:1000]] + ["http://site1000.org", "http://site.org"]
    assert decide(urls, extra_domains=(f"@{path}",)) == ["domain"] * 1000 + [None] * 2


def test_a_suffix_list_of_ones_own(tmp_path):
    path = tmp_path / "suffixes.dat"
    path.write_text("// mine\nown.example\n// ===BEGIN PRIVATE DOMAINS===\nprivate.example\n")
    urls = ["http://a.b.own.example", "http://a.private.example"]
    lists = {"extra_domains": ("b.own.example", "a.private.example"), "suffix_list": str(path)}
    assert decide(urls, **lists) == ["domain", None]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"extra_domains": ("@absent.txt",)}, "absent.txt: cannot be read: no such file"),
        ({"suffix_list": "absent.dat"}, "absent.dat: cannot be read"),
        ({"banned_words": ("x" * 300,)}, "has 300 characters"),
        ({"banned_subwords": ("x" * 200_001,)}, "more than 200,000 characters"),
        ({"extra_urls": ("x" * 40_000,)}, "an entry has 40,000 bytes"),
    ],
)
def test_lists_that_do_not_do_are_named(params, message):
    with pytest.raises(UsageError, match=message):
        decide(["http://x.org"], **params)


def test_a_list_of_no_text_is_named(tmp_path):
    path = tmp_path / "domains.txt"
    path.write_bytes(b"caf\xe9.org\n")
    with pytest.raises(UsageError, match=r"domains\.txt: is no UTF-8"):
        decide(["http://x.org"], extra_domains=(f"@{path}",))


@pytest.mark.parametrize("name", ["extra_domains", "extra_urls", "banned_words", "suffix_list"])
def test_an_empty_list_is_named(tmp_path, name):
    path = tmp_path / "list.txt"
    path.write_text("\n")
    given = str(path) if name == "suffix_list" else (f"@{path}",)
    with pytest.raises(UsageError, match=r"list\.txt: .*has no (entry|rule)"):
        decide(["http://x.org"], **{name: given})


def test_a_byte_order_mark_hides_no_entry(tmp_path):
    path = tmp_path / "domains.txt"
    path.write_text("\ufeffexample.org\n")
    assert decide(["https://example.org/a"], extra_domains=(f"@{path}",)) == ["domain"]


def test_an_edited_list_counts_at_once(tmp_path):
    path = tmp_path / "domains.txt"
    found = []
    for content in ("example.org\n", "another.example\n"):
        path.write_text(content)
        found += decide(["https://example.org/a"], extra_domains=(f"@{path}",))
    assert found == ["domain", None]


def test_a_url_is_no_domain(tmp_path):
    with pytest.raises(ValidationError, match=r"'https://b\.org/' is no domain or host"):
        UrlFilter(extra_domains=("https://b.org/",))
    path = tmp_path / "domains.txt"
    path.write_text("example.org\nhttps://b.org/\n")
    with pytest.raises(UsageError, match=r"'https://b\.org/' is no domain or host"):
        decide(["https://example.org/a"], exempt_domains=(f"@{path}",))


def test_domains_are_compared_in_lower_case():
    assert decide(["https://example.org/a"], extra_domains=("EXAMPLE.org",)) == ["domain"]


def test_versions_of_what_brings_lists_decide():
    assert UrlFilter().libraries() == ("datatrove", "tldextract")
    assert UrlFilter(use_integrated_lists=False, suffix_list="x").libraries() == ()


@pytest.mark.slow
@pytest.mark.real
def test_integrated_lists_decide_many_urls_as_the_reference(shared_data, tmp_path, monkeypatch):
    from datatrove.pipeline.filters import url_filter
    from datatrove.utils._import_utils import ASSETS_PATH

    monkeypatch.setattr(url_filter, "cached_assets_path", lambda **_: str(tmp_path))
    oracle = reference()
    assert oracle("http://example.org") is None
    with tarfile.open(Path(ASSETS_PATH) / "url_filterblacklistsv0_3_0.tar.gz") as archive:
        domains, listed = (
            archive.extractfile(name).read().decode().split() for name in ("domains", "urls")
        )
    texts = [Path(ASSETS_PATH, name).read_text() for name in url_lists._WORD_FILES]
    rules = url_lists._snapshot().read_text("utf-8").splitlines()
    suffixes = [line for line in rules if line and not line.startswith("//")]
    made = Maker(domains, listed, " ".join(texts).split(), suffixes).make(15_000)
    for urls in (real_urls(shared_data)[::3], made):
        found = decide(urls, use_integrated_lists=True)
        assert differences(urls, oracle, found)[:5] == []
    assert set(found) == {None, *UrlFilter.rules[1:]}
