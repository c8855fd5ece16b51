"""Reward files: one number from 0 to 1, or words for the author of the task."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.rewards import NoReward, read_reward


def reward_of(logs: Path, **files: bytes) -> float:
    for name, content in files.items():
        (logs / f"reward.{name}").write_bytes(content)
    return read_reward(logs)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"1", 1.0), (b"0\n", 0.0), (b" 0.25 \n", 0.25), (b"1e-3", 0.001), (b".5", 0.5), (b"1.", 1.0), (b"-0", 0.0)],
)
def test_numbers(tmp_path: Path, content: bytes, expected: float) -> None:
    assert reward_of(tmp_path, txt=content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b'{"reward": 1}', 1.0), (b'{"reward": 0.5, "speed": 99}', 0.5), (b'{"passed": 0.75}', 0.75), (b"0.5", 0.5)],
)
def test_json(tmp_path: Path, content: bytes, expected: float) -> None:
    assert reward_of(tmp_path, json=content) == expected


def test_both_files(tmp_path: Path) -> None:
    assert reward_of(tmp_path, txt=b"1", json=b'{"reward": 1.0}') == 1.0
    with pytest.raises(NoReward, match="disagree"):
        reward_of(tmp_path, txt=b"0")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"nan", "instead of one number"),
        (b"inf", "instead of one number"),
        (b"1 1", "instead of one number"),
        (b"0\n1\n", "instead of one number"),
        (b"1e309", "not from 0 to 1"),
        (b"-1", "not from 0 to 1"),
        (b"1.0001", "not from 0 to 1"),
        (b"1_0", "instead of one number"),
        ("١".encode(), "instead of one number"),
        (b"0x1", "instead of one number"),
        (b"\xff\xfe1\x00", "not UTF-8"),
        (b"1" * 5000, "longer than"),
        (b"pass", "instead of one number"),
    ],
)
def test_bad_input_reward_txt(tmp_path: Path, content: bytes, expected: str) -> None:
    with pytest.raises(NoReward, match=expected) as caught:
        reward_of(tmp_path, txt=content)
    print(caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[1]",
        b"{}",
        b'{"a": 1, "b": 1}',
        b'{"reward": NaN}',
        b'{"reward": true}',
        b'{"reward": "1"}',
        b"null",
        b'{"reward": 1e400}',
        b'{"reward": 1, "reward": 0}',
        b'{"reward": ' + b"9" * 400 + b"}",
        b"[" * 4000,
    ],
)
def test_bad_input_reward_json(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NoReward) as caught:
        reward_of(tmp_path, json=content)
    print(caught.value)


@pytest.mark.bad_input
def test_bad_input_reward_file_missing_or_special(tmp_path: Path) -> None:
    with pytest.raises(NoReward, match="no /logs/verifier/reward"):
        read_reward(tmp_path)
    (tmp_path / "real").write_text("1")
    (tmp_path / "reward.txt").symlink_to("real")
    with pytest.raises(NoReward, match="can't be read") as caught:
        read_reward(tmp_path)
    print(caught.value)
    (tmp_path / "reward.txt").unlink()
    os.mkfifo(tmp_path / "reward.txt")
    with pytest.raises(NoReward, match="can't be read"):
        read_reward(tmp_path)
