"""Nothing that came from data or from file names commands the terminal that shows it."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from corpuskit.cli._render import PlainConsole
from corpuskit.cli._streams import one_line, printable
from corpuskit.cli.main import main

TITLE = "a\x1b]0;owned\x07b"
"""Sets the title of a terminal's window."""


@given(st.text(st.characters()))
def test_what_is_printable_has_no_controls_but_line_feeds_and_tabs(text):
    shown = printable(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert not set(shown) & set("\u202e\u2066\u2028\u200f")
    shown.encode()


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_text_without_controls_is_shown_as_it_is(text):
    assert printable(text) == text


@given(st.text(st.characters()))
def test_json_stays_the_same_json(text):
    assert json.loads(printable(json.dumps([text], ensure_ascii=False))) == [text]


def test_a_line_is_one_line():
    assert one_line("a\nerror: made up\r") == "a\\nerror: made up\\u000d"


@pytest.mark.parametrize("text", [TITLE, "[bold]a[/]", "[link=http://x]a[/link]", ":smile:"])
def test_the_cell_of_a_table_is_shown_as_it_is(text):
    console = PlainConsole(file=io.StringIO(), force_terminal=True, width=100, no_color=True)
    table = Table(text, title=text, box=None)
    table.add_row(text)
    console.print(table)
    console.print(text, highlight=False)
    shown = console.file.getvalue()
    assert shown.count(one_line(text)) == 4
    assert "\x1b]" not in shown


def test_an_error_is_shown_without_what_a_file_name_commands(tmp_path, capsys):
    path = tmp_path / f"{TITLE}.yaml"
    path.write_text("sources: [")
    with pytest.raises(SystemExit):
        main(["plan", str(path)])
    shown = capsys.readouterr().err
    assert "a\\u001b]0;owned\\u0007b.yaml" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
