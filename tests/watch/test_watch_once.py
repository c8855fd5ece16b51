"""`sia watch` off a terminal, and `sia status` on one: the same panels, as text."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.watch import View, show
from orchestrator.errors import UsageError
from orchestrator.home import Home
from tests.watch.reading_kit import CONTROL
from tests.watch.sample import Sample

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("view", "ident", "words"),
    [
        (None, "", ("generation 2 (show-more)", "c0004")),
        ("instances", "main", ("main, generation 2", "iteration 30")),
        ("campaign", "", ("c0004", "reward by task", "so far")),
        (None, "c1", ("c0001", "verdicts", "show-more", "c0001t64")),
        ("detail", "", ("main", "iteration 30 of 30", "conversation")),
        (None, "c0001t01", ("iteration 5 of 5", "<stop/>", "effect")),
        ("compare", "c0001t01", ("left   c0001t01", "right  c0001t03", "first part")),
        ("generations", "", ("main is generation 2", "rolled back")),
        ("generations", "2", ("+LIMIT = 5000",)),
        ("events", "", ("what happened", "started from campaign.toml")),
        ("sandbox", "c0004t34", ("while it runs",)),
    ],
)
def test_every_view_prints_once(
    shown: Sample, capsys: pytest.CaptureFixture[str], view: View | None, ident: str, words: tuple[str, ...]
) -> None:
    with shown.clock():
        assert show(shown.home, view, ident) == 0
    text = capsys.readouterr().out
    for word in words:
        assert word in text
    assert all(len(line) <= 80 and not CONTROL.search(line) for line in text.splitlines())


def test_an_iteration_and_a_partner_can_be_named(shown: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    with shown.clock():
        show(shown.home, None, "c0001t01", iteration=2)
        assert "iteration 2 of 5" in capsys.readouterr().out
        show(shown.home, None, "c0001t01", "c0001t02")
        assert "right  c0001t02" in capsys.readouterr().out


@pytest.mark.bad_input
def test_bad_input_watch_of_what_does_not_exist(shown: Sample, tmp_path: Path) -> None:
    wrong: list[tuple[View | None, str, str, int | None]] = [
        (None, "nope", "", None),
        ("campaign", "c99", "", None),
        ("detail", "c0001t01", "", 99),
        ("compare", "", "", None),
        ("compare", "main", "", None),
        ("generations", "x", "", None),
        ("instances", "nope", "", None),
        ("sandbox", "nope", "", None),
    ]
    for view, ident, other, iteration in wrong:
        with pytest.raises(UsageError) as raised:
            show(shown.home, view, ident, other, iteration)
        print(raised.value.render())


def test_before_anything_ran_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / ".sia", tmp_path)
    views: tuple[View, ...] = ("instances", "campaign", "generations", "events")
    for view in views:
        assert show(home, view, "") == 0
        assert "sia campaign run FILE" in capsys.readouterr().out
    assert not home.root.exists()


def command(shown: Sample, *words: str) -> tuple[list[str], dict[str, str]]:
    env = {**os.environ, "PYTHONPATH": str(TOP), "COLUMNS": "100", "TERM": "xterm-256color"}
    return [sys.executable, "-P", "-m", "orchestrator", *words], env


def test_off_a_terminal_it_prints_and_ends(shown: Sample) -> None:
    argv, env = command(shown, "watch")
    done = subprocess.run(
        argv, cwd=shown.home.checkout, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "generation 2 (show-more)" in done.stdout and "\x1b" not in done.stdout


def test_status_on_a_terminal_shows_the_panels(shown: Sample) -> None:
    argv, env = command(shown, "status")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        argv, cwd=shown.home.checkout, env=env, stdout=theirs, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # the terminal's other end is closed: the program has ended
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"last events" in text and b"progress" in text
