"""The contract, checked from outside: the standard agent keeps it, in both modes; the command shows the checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.conformance import TITLES, check
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit


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
