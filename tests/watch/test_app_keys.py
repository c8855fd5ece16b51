"""The key map: what can be remapped, and what is refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import load_settings
from orchestrator.errors import ConfigError
from orchestrator.watch.keys import ACTIONS, KeyFault, Keymap, canonical, shown


def test_the_default_keys_are_distinct_and_all_actions_have_one() -> None:
    keymap = Keymap()
    assert all(keymap.keys[action.name] for action in ACTIONS)
    assert len(keymap.actions) == sum(len(keys) for keys in keymap.keys.values())


def test_a_remapped_action_loses_its_old_keys() -> None:
    keymap = Keymap({"kill": ["x", "f5"], "down": "ctrl+n"})
    assert keymap.action("x", "x") == keymap.action("f5", None) == "kill"
    assert keymap.action("upper_k", "K") is None
    assert keymap.action("j", "j") is None
    assert keymap.action("ctrl+n", None) == "down"
    assert keymap.hint("kill") == "x"


def test_an_action_may_lose_all_its_keys() -> None:
    keymap = Keymap({"kill": []})
    assert keymap.action("upper_k", "K") is None
    assert keymap.hint("kill") == ""


@pytest.mark.parametrize(
    ("given", "meant"),
    [("esc", "escape"), ("Return", "enter"), ("ctrl+D", "ctrl+d"), ("ctrl+i", "tab"), ("?", "?"), (" ", "space")],
)
def test_keys_are_written_in_one_way(given: str, meant: str) -> None:
    assert canonical(given) == meant


@pytest.mark.parametrize("given", ["", "hyper+x", "ctrl+", "ctrl+1", "kk", "\x1b", "ctrl+ä"])
def test_what_no_terminal_sends_is_no_key(given: str) -> None:
    with pytest.raises(KeyFault):
        canonical(given)


def test_keys_are_shown_short() -> None:
    assert [shown(key) for key in ("escape", "ctrl+d", "pagedown", "K")] == ["esc", "^d", "pgdn", "K"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('kil = "x"', "watch.keys: kil: no such action"),
        ('kill = "j"', "watch.keys: kill: the key j is used twice, down has it too"),
        ('kill = "hyper+x"', "watch.keys: kill: 'hyper+x' is no key"),
        ('kill = "ctrl+c"', "watch.keys: kill: ctrl+c always leaves"),
        ("kill = 3", "watch.keys.kill"),
        ('kill = "x"\npause = "x"', "is used twice"),
    ],
)
def test_a_fault_in_the_file_names_its_place(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "sia.toml").write_text(f"[watch.keys]\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    assert said in str(caught.value)
    assert str(tmp_path / "sia.toml") in str(caught.value)
    assert caught.value.exit_code == 78


def test_the_file_gives_other_keys_theme_and_mouse(tmp_path: Path) -> None:
    text = '[watch]\ntheme = "light"\nmouse = false\n[watch.keys]\nkill = "x"\ndown = ["j", "ctrl+n"]\n'
    (tmp_path / "sia.toml").write_text(text, encoding="utf-8")
    watch = load_settings(tmp_path).watch
    assert (watch.theme, watch.mouse) == ("light", False)
    assert Keymap(watch.keys).keys["down"] == ("j", "ctrl+n")
