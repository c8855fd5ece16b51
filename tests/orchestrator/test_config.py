"""`sia.toml`: defaults, and faults that name the file, the key and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import load_settings
from orchestrator.errors import ConfigError

FAULTS = (
    ('[agent]\npath = ["instance"]\n', "agent.path: unknown key (known: paths, command"),
    ('[agents]\npaths = ["instance"]\n', "agents: unknown key (known: agent, engines, main, promotion, watch)"),
    ('[agent]\npaths = "instance"\n', "agent.paths"),
    ('[agent]\npaths = ["../outside"]\n', "'../outside' is not a plain path inside the repository"),
    ('[agent]\npaths = [".git"]\n', "'.git' is not a plain path inside the repository"),
    ('[agent]\nbuild_environments = "yes"\n', "agent.build_environments"),
    ("[engines.demo]\ncommand = []\n", "engines.demo.command"),
    ('[engines.demo]\ncommand = "python"\n', "engines.demo.command"),
    ('[main]\nengine = "missing"\n', "there is no [engines.missing]"),
    ('[promotion]\npolicy = "always"\n', "promotion.policy"),
    ("[promotion]\nhealthy_iterations = 0\n", "promotion.healthy_iterations"),
    ("[promotion]\ntimeout_sec = -5\n", "promotion.timeout_sec"),
    ("[promotion]\ntimeout_sec = nan\n", "promotion.timeout_sec"),
    ("[promotion]\nboot_pause_sec = -1\n", "promotion.boot_pause_sec"),
    ("[promotion\n", "not valid TOML"),
)


@pytest.mark.bad_input
@pytest.mark.parametrize(("text", "expected"), FAULTS)
def test_bad_input_sia_toml(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "sia.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    print(caught.value.render())
    assert expected in caught.value.what
    assert caught.value.where == str(tmp_path / "sia.toml")
    assert caught.value.fix
    assert caught.value.exit_code == 78


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    assert settings.agent.paths == ("instance", "procedures", "tools", "action_schema.xsd")
    assert settings.promotion.policy == "ask"
    assert settings.main is None


def test_the_file_of_this_repository_is_valid() -> None:
    settings = load_settings(Path(__file__).resolve().parent.parent.parent)
    assert settings.main is not None
    assert settings.main.engine in settings.engines
