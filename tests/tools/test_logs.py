"""Searching and showing iteration logs that the agent's own logger wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from instance.log import IterationLogger

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    logger = IterationLogger(tmp_path, "prompt", "schema")
    for number in range(1, 41):
        context = (
            f'<context\ntime="t"\n>\n<single id="{number}">\n<![CDATA[ls && echo {number}]]>\n</single>\n</context>'
        )
        logger.log_iteration(number, context, f"<reasoning>thought & number {number}\nneedle\x1b</reasoning>")
    (tmp_path / "00000041.xml").write_text("<iteration><context>cut off")
    assert logger.last() == 41
    return tmp_path


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(TOOLS / tool), *arguments], capture_output=True, text=True)


@pytest.mark.spec("36")
def test_search(logs: Path) -> None:
    done = run("search_logs.py", "--logs", str(logs), "NUMBER 7")
    assert done.stdout == "iteration 7:\n  <reasoning>thought & number 7\n"
    assert "00000041.xml: can't be read" in done.stderr
    many = run("search_logs.py", "--logs", str(logs), "--max", "3", "needle")
    assert many.stdout.startswith("iteration 40:") and "more than 3 iterations" in many.stdout
    inside = run("search_logs.py", "--logs", str(logs), "--in", "context", r"echo 12$")
    assert inside.stdout.startswith("iteration 12:")
    attribute = run("search_logs.py", "--logs", str(logs), "--in", "context", 'id="12"')
    assert attribute.stdout.startswith("iteration 12:")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--logs", "LOGS", "nowhere to be found"], 1, "no iteration matches"),
        (["--logs", "LOGS", "("], 2, "not a regular expression"),
        (["--logs", "/nonexistent", "x"], 2, "no directory"),
        ([], 2, "usage"),
    ],
)
def test_search_that_fails(logs: Path, arguments: list[str], code: int, words: str) -> None:
    done = run("search_logs.py", *(str(logs) if word == "LOGS" else word for word in arguments))
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


def test_show(logs: Path) -> None:
    done = run("show_iteration.py", "--logs", str(logs), "3")
    assert done.stdout == ("--- answer of iteration 3 ---\n<reasoning>thought & number 3\nneedle‹U+001B›</reasoning>\n")
    whole = run("show_iteration.py", "--logs", str(logs), "--context", "-2")
    assert whole.stdout.startswith("<context\n") and "iteration 40" in whole.stdout
    missing = run("show_iteration.py", "--logs", str(logs), "99")
    assert missing.returncode == 1 and "known: 1 to 41" in missing.stderr
    broken = run("show_iteration.py", "--logs", str(logs), "41")
    assert broken.returncode == 1 and "not a whole iteration log" in broken.stderr
