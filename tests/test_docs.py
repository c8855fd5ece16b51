"""Documentation that is checked: the command reference, the commands that pages show, and links between pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KNOWN = {tuple(words.split()) for words, _, _ in COMMANDS}


def test_the_command_reference_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli-reference", "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_shown_in_pages_exist(page: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for line in "".join(blocks).splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["sia"]:
            assert {tuple(words[1:2]), tuple(words[1:3])} & KNOWN, f"{page.name}: {line}"
        elif words and words[0].startswith(("scripts/", "./", "benchmarks/", ".ci/")):
            assert (ROOT / words[0]).exists(), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} → {target}"


@pytest.mark.parametrize("words", sorted(KNOWN), ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    sections = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").split("## `sia ")
    section = next(part for part in sections if part.startswith(" ".join(words) + "`"))
    empty = [line for line in section.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not empty, f"parameters without a word of help: {empty}"


def test_usage_lines_can_be_followed() -> None:
    """Whatever comes behind `--` belongs to the command that is named there: no option is shown there."""
    usage = re.findall(r"^    (sia .*)$", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    behind = {line.partition(" ")[2].split(" [")[0]: line.partition("-- ")[2] for line in usage if "-- " in line}
    assert behind == {"conformance": "COMMAND…]", "sandbox run": "COMMAND…"}


def test_the_reference_has_defaults() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for row in (
        r"`--min-age …` .*Default: `24`\.",
        r"`--candidate …` .*Default: `HEAD`\.",
        r"`--view …` .*One of `ins",
    ):
        assert re.search(rf"^\| {row}", page, re.MULTILINE), row


def test_help_of_a_command_has_what_its_docstring_has(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of commands has one line for each; the command itself tells its exit codes."""
    shown = []
    for words in (["conformance", "--help"], ["campaign", "run", "--help"], ["--help"], ["campaign", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        shown.append(" ".join(capsys.readouterr().out.replace("│", " ").split()))
    assert "Exit code 1 if a check fails." in shown[0]
    assert "Exit code 0 once there are verdicts" in shown[1]
    assert "Check that a command keeps the instance contract." in shown[2]
    assert "Run a campaign file." in shown[3]
