"""The contract, checked from outside: the standard agent keeps it, in both modes; the command shows the checks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.conformance import TITLES, check
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
TOP = Path(__file__).parents[2]
NUMBERS = [str(number) for number in range(1, 37) if not 28 <= number <= 32]


def test_the_standard_agent_keeps_it(kit: TrialKit) -> None:
    checks = check(kit.host, kit.agent())
    assert [item.number for item in checks] == list(TITLES)
    assert [item for item in checks if not item.passed] == []
    assert not list((kit.host.state / "conformance").iterdir()), "it leaves nothing behind"


def test_the_command(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.cli import main
    from tests.orchestrator.conftest import make_agent_repo

    monkeypatch.delenv("SIA_HOME", raising=False)
    repo = make_agent_repo(tmp_path / "agent")
    repo.commit({"sia.toml": "[agent]\nbuild_environments = true\n"})
    monkeypatch.chdir(repo.path)
    with pytest.raises(SystemExit) as caught:
        main(["conformance", "--json", "--only", "19", "--", "python", "-c", "raise SystemExit(5)"])
    assert caught.value.code == 1
    (only,) = json.loads(capsys.readouterr().out)
    assert only["number"] == "19" and "exit code 5" in only["detail"]
    with pytest.raises(SystemExit) as caught:
        main(["conformance", "--only", "99"])
    assert caught.value.code == 2


def test_every_number_of_the_specification_is_checked_or_tested() -> None:
    """And docs/agent.md says where: a row for each number, with its checks and the files of its marked tests."""
    held: dict[str, list[str]] = {number: [] for number in NUMBERS}
    for file in sorted((TOP / "tests").rglob("test_*.py")):
        marked = re.findall(r'^@pytest\.mark\.spec\("(\w+)"\)$', file.read_text(encoding="utf-8"), re.MULTILINE)
        for number in dict.fromkeys(marked):
            held[number].append(f"`{file.name}`")
    checks = {number: [item for item in TITLES if re.sub(r"\D", "", item) == number] for number in NUMBERS}
    assert sum(map(len, checks.values())) == len(TITLES)
    assert [number for number in NUMBERS if not checks[number] and not held[number]] == []
    page = (TOP / "docs/agent.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    wanted = [(n, ", ".join(sorted(checks[n])) or "–", ", ".join(sorted(held[n])) or "–") for n in NUMBERS]
    assert rows == wanted
