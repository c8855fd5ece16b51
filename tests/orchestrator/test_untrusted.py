"""Other people's text on our terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.untrusted import one_line, printable


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain é 字 🙂", "plain é 字 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;cHduZWQ=\x1b\\clip", "clip"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\six", "six"),
        ("\x1b]never ended\nnext line", "\nnext line"),
        ("\x1b(0\x1b=x\x1bM", "x"),
        ("over\rwritten", "over\nwritten"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("bell\x07 back\x08space del\x7f nul\x00", "bell backspace del nul"),
        ("right\u202eto left\u2066\u200b\ufeff", "rightto left"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("end\x1b", "end"),
        (b"bytes \xff\x1b[1m", "bytes \ufffd"),
    ],
)
def test_only_text_is_left(given_text: str | bytes, shown: str) -> None:
    assert printable(given_text) == shown


@given(st.text(alphabet=st.characters()) | st.binary().map(lambda b: b.decode("latin-1")))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    clean = printable(text)
    clean.encode()  # no surrogates
    assert not [c for c in clean if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert printable(clean) == clean


def test_a_line_is_one_line() -> None:
    assert one_line(" a\n\tb \x1b[2K c") == "a b c"
    assert one_line("x" * 300, 10) == "xxxxxxxxx…"
