"""Other people's text on our terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import requirements, trajectory, tricks
from orchestrator.engines.openai import repair
from orchestrator.errors import Refused
from orchestrator.untrusted import one_line, printable
from orchestrator.watch import searching


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


def test_a_line_is_cut_before_it_is_cleaned() -> None:
    assert one_line("\x1b[1m" * 100 + "far behind", 10) == "…"
    assert one_line(b"\xc3\xa9 \xe5\xad\x97" * 1000, 5) == "é 字é…"


def _requirement(line: str) -> None:
    with contextlib.suppress(Refused):
        requirements.parse(line.encode())


HOSTILE: dict[str, tuple[Callable[[str], object], Callable[[int], str]]] = {
    "controls that never end": (printable, lambda n: "\x9d" * n + "\x1b"),
    "space before no end of a context": (trajectory._without_end, lambda n: "</context>" + " " * n + "x"),
    "the same in a search": (lambda t: searching._without_end(t.encode()), lambda n: "</context>" + " " * n + "x"),
    "a fence that is never closed": (repair._alone, lambda n: "```" + "\n" * (n // 20) + "x"),
    "requirement, spaces": (_requirement, lambda n: "a==1" + " " * n + "?"),
    "requirement, a marker's spaces": (_requirement, lambda n: "a==1;x" + " " * n + "?"),
    "requirement, hashes": (_requirement, lambda n: "a==1;x" + " --hash=x" * (n // 9) + " ?"),
    "imports that never come": (tricks._IMPORT.findall, lambda n: "\n" * n + "x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_time_by_its_length(name: str) -> None:
    """Eight times the text takes about eight times as long; what starts again at every place takes 64 times."""
    read, text = HOSTILE[name]
    times = []
    for size in (2_000, 16_000):
        hostile, taken = text(size), []
        for _ in range(7):
            before = time.thread_time_ns()
            read(hostile)
            taken.append(time.thread_time_ns() - before)
        times.append(min(taken))
    assert times[1] < 24 * times[0], times
