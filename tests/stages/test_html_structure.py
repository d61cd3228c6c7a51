"""Structure of pages as Markdown, and MathML as LaTeX."""

from __future__ import annotations

import pytest

from corpuskit.stages.rewriters.html import Html
from corpuskit.stages.sources._extract import ExtractorSettings, HtmlPage, extract_pages
from tests.contract.strategies import plain, view

pytest.importorskip("resiliparse")

from corpuskit.stages.sources._mathml import to_latex
from corpuskit.stages.sources._structure import PARTS, Marks

EXTRACTORS = ("resiliparse", "mixed", "trafilatura")
PROSE = (
    "<p>The river bends twice before it meets the sea, and no one in town has ever asked why.</p>"
)


def page_with(body: str) -> str:
    around = f"<h1>Rivers</h1>{PROSE * 8}{body}{PROSE * 8}"
    nav = "<nav><ul><li><a href=/>Home</a></li></ul></nav>"
    return (
        f"<html><body>{nav}<div><div><main class=entry-content>{around}</main></div></div></body>"
    )


def markdown(body: str, extractor: str = "resiliparse", parts=PARTS) -> str:
    if extractor != "resiliparse":
        pytest.importorskip("trafilatura")
    settings = ExtractorSettings(extractor, structure=tuple(parts))
    [extracted] = extract_pages([HtmlPage(page_with(body).encode())], settings)
    return extracted.text.decode()


CODE = "def f(x):\n    return x < 1  # ``` two\n\n\n    # &amp;"


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_code_keeps_its_lines_and_its_language(extractor):
    written = CODE.replace("&", "&amp;").replace("<", "&lt;")
    text = markdown(f'<pre><code class="language-python">{written}</code></pre>', extractor)
    assert f"\n\n````python\n{CODE}\n````\n" in text


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_a_table_becomes_rows_with_its_caption(extractor):
    text = markdown(
        "<table><caption>Depths</caption><tr><th>Place<th>a|b<th>m</tr>"
        "<tr><td rowspan=2>Mill<td colspan=2>4<br>5</tr><tr><td>6<td>7</tr></table>",
        extractor,
    )
    rows = [
        "| Place | a\\|b | m |", "| --- | --- | --- |", "| Mill | 4 5 |  |", "|  | 6 | 7 |",
    ]  # fmt: skip
    assert "\n\nDepths\n\n" + "\n".join(rows) + "\n" in text
    assert text.count("Mill") == 1


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_lists_have_markers_and_nesting(extractor):
    text = markdown(
        "<ul><li>One<ol start=3><li>inner</li><li><p>last</p></li></ol></li><li>Two</li></ul>",
        extractor, ["lists"],
    )  # fmt: skip
    assert "- One\n    3. inner\n    4. last\n- Two\n" in text.replace("\n\n", "\n")


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_headings_have_their_level(extractor):
    text = markdown("<h3>A <em>bend</em></h3>", extractor, ["headings"])
    assert "\n### A bend\n" in text


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize(("formula", "expected"), [
    ("<math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>", r"$\frac{a}{2}$"),
    ("<math display=block><mi>a</mi></math>", "$$a$$"),
    ('<span class="MathJax">rendered</span><script type="math/tex; mode=display">x_1<2</script>',
     "$$x_1<2$$"),
    ('<span class=katex-display><span class=katex><span class=katex-mathml><math><semantics><mi>x'
     '</mi><annotation encoding="application/x-tex">x^2</annotation></semantics></math></span>'
     '<span class=katex-html aria-hidden=true>rendered</span></span></span>', "$$x^2$$"),
    (r'<span class=mwe-math-element><span style="display: none;"><math><mi>q</mi></math></span>'
     r'<img class="mwe-math-fallback-image-inline" alt="{\displaystyle q}"></span>', "$q$"),
    (r'<img class="mwe-math-fallback-image-inline" alt="{\displaystyle x_0}">',
     r"${\displaystyle x_0}$"),
    (r'<img class="formulaDsp" alt="\[ A x = b \]">', "$A x = b$$"),
    ('<mjx-container display="true"><mjx-math>rendered</mjx-math><mjx-assistive-mml><math><mi>y'
     "</mi></math></mjx-assistive-mml></mjx-container>", "$$y$$"),
])  # fmt: skip
def test_formulas_become_latex(extractor, formula, expected):
    text = markdown(f"<p>It holds that {formula} is the bend of the river.</p>", extractor)
    assert f"{expected} is the bend" in text
    assert "rendered" not in text


def test_what_is_not_asked_for_stays_as_the_extractor_gives_it():
    body = "<h2>Bends</h2><ul><li>One</li></ul><math><mi>x</mi></math><pre>a  b</pre>"
    [expected] = extract_pages([HtmlPage(page_with(body).encode())], ExtractorSettings())
    assert markdown(body, parts=["tables"]).encode() == expected.text
    assert Html().structure == ()


def test_a_layout_table_and_one_column_are_no_tables():
    layout = f"<table><tr><td>Menu<td>{PROSE}<h2>x</h2></tr><tr><td>More<td>{PROSE}</tr></table>"
    column = "<table><tr><td>one</tr><tr><td>two</tr></table>"
    assert "| --- |" not in markdown(layout + column)


def test_line_numbers_are_no_code():
    text = markdown(
        "<table><tr><td class=linenos><pre>1\n2</pre></td><td><div class='highlight-c'><pre>"
        "<span class=linenos>1</span>int a;<br>int b;</pre></div></td></tr></table>"
    )
    assert "```c\nint a;\nint b;\n```" in text


def test_navigation_stays_out_and_a_lost_mark_leaves_no_trace():
    text = markdown("<table><tr><td>a<td>b</tr><tr><td>c<td><nav>d</nav></tr></table>")
    assert "Home" not in text
    assert "qz" not in text
    marks = Marks("<pre>a b</pre>qzx<table><tr><td>c<td>d<tr><td>e<td>f</table>", PARTS)
    assert "qz1x0a" in marks.page  # a word that the page does not hold
    assert marks.with_markdown("qz1x0a a b") == "a b"
    assert marks.with_markdown("x qz1x1z y qz1x7i") == "x y qz1x7i"


def test_pages_that_mean_harm_are_extracted_within_their_limits():
    pages = [
        "<math>" + "<mrow>" * 5000 + "<mi>x</mi>",
        "<table><tr><td colspan=999999999 rowspan=999999999>a<td>b</tr>" * 2,
        "<ul><li>" * 300 + "deep",
        "<ol start=99999999999999999999><li>x</li></ol>",
        "<pre>" + "`" * 1000 + "</pre>", "", "<math></math>", "\x00",
    ]  # fmt: skip
    found = plain(Html(structure=PARTS), view([f"{PROSE}{page}" for page in pages]))
    assert [row["rule"] for row in found] == [None] * len(pages)
    assert all(b"The river" in row["text"] for row in found)


@pytest.mark.parametrize(("mathml", "latex"), [
    # The quadratic formula, from MDN's examples of MathML.
    ("<mi>x</mi><mo>=</mo><mfrac><mrow><mrow><mo>-</mo><mi>b</mi></mrow><mo>\u00b1</mo><msqrt>"
     "<mrow><msup><mi>b</mi><mn>2</mn></msup><mo>-</mo><mrow><mn>4</mn><mo>\u2062</mo><mi>a</mi>"
     "<mo>\u2062</mo><mi>c</mi></mrow></mrow></msqrt></mrow><mrow><mn>2</mn><mo>\u2062</mo>"
     "<mi>a</mi></mrow></mfrac>", r"x = \frac{- b \pm \sqrt{b^{2} - 4 a c}}{2 a}"),
    ("<munderover><mo>\u2211</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi>"
     "</munderover><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>",
     r"\sum_{i = 1}^{n} x_{i}^{2}"),
    ("<munder><mi>lim</mi><mrow><mi>x</mi><mo>\u2192</mo><mn>0</mn></mrow></munder>",
     r"\lim_{x \to 0}"),
    ("<mover><mi>x</mi><mo>^</mo></mover><munder><mi>a</mi><mo>*</mo></munder>",
     r"\hat{x} \underset{*}{a}"),
    ("<mroot><mi>x</mi><mn>3</mn></mroot>", r"\sqrt[3]{x}"),
    ("<mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi>"
     "</mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo>)</mo>",
     r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}"),
    ("<mo>{</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mtext>if x</mtext></mtd></mtr></mtable>",
     r"\begin{cases} 1 & \text{if x} \end{cases}"),
    ("<mi mathvariant=double-struck>R</mi><mi>\u211d</mi><mi>\U0001d430</mi><mi>rank</mi>"
     "<mi mathvariant=normal>d</mi>",
     r"\mathbb{R} \mathbb{R} \mathbf{w} \operatorname{rank} \mathrm{d}"),
    ("<msup><mi>f</mi><mo>\u2032</mo></msup><msup><mrow><mi>x</mi><mo>+</mo><mi>y</mi></mrow>"
     "<mn>2</mn></msup>", "f' {x + y}^{2}"),
    ("<mfenced open='[' separators=';'><mi>a</mi><mi>b</mi></mfenced>", r"\left[ a ; b \right)"),
    ("<mmultiscripts><mi>F</mi><mn>3</mn><mn>2</mn><mprescripts/><mn>1</mn><none/>"
     "</mmultiscripts>", "{}_{1}F_{3}^{2}"),
    ("<mo>(</mo><mfrac linethickness=0><mi>n</mi><mi>k</mi></mfrac><mo>)</mo>",
     r"( {n \atop k} )"),
    ("<msup><mi>lost</mi></msup><munknown><mi>kept</mi> too</munknown><mi>\u1e8a</mi>",
     "\\operatorname{lost} \\operatorname{kept} too \u1e8a"),
])  # fmt: skip
def test_mathml_becomes_latex(mathml, latex):
    assert _latex(f"<math>{mathml}</math>") == latex


def _latex(mathml: str) -> str:
    from resiliparse.parse.html import HTMLTree

    return to_latex(HTMLTree.parse(mathml).body.query_selector("math"))


@pytest.mark.parametrize("latex", [
    r"\frac{a}{b}", r"\sqrt[3]{x}", r"\hat{x} \leq \overline{a b}", r"f' ( x )", r"\alpha \Gamma",
    r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", r"\underbrace{a + b}_{n}",
    r"\lim_{x \to 0} \sin x", r"x \in \mathbb{N}", r"\vec{v} \cdot \mathbf{w}",
])  # fmt: skip
def test_latex_comes_back_from_its_mathml(latex):
    converter = pytest.importorskip("latex2mathml.converter")
    assert _latex(converter.convert(latex)) == latex


@pytest.mark.real
@pytest.mark.slow
def test_marks_do_not_change_what_is_main_text(shared_data):
    import pyarrow.parquet as pq

    path = shared_data / "html" / "trafilatura_eval.parquet"
    rows = pq.read_table(path).to_pylist()[:60]
    pages = [HtmlPage(row["html"]) for row in rows]
    outcomes = [
        extract_pages(pages, ExtractorSettings(structure=parts))
        for parts in ((), ("code", "formulas", "headings", "lists", "tables"))
    ]
    num_differ = 0
    for row, bare, marked in zip(rows, *outcomes, strict=True):
        texts = [" ".join(one.text.decode().split()) for one in (bare, marked)]
        for segment in [*row["with_"], *row["without"]]:
            num_differ += len({" ".join(segment.split()) in text for text in texts}) == 2
    assert num_differ <= 3  # segments across a heading or an item have marks in them
