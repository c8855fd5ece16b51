"""Reading a reward: one number from 0 to 1, or a reason why there is none.

Harbor allows any finite number. Here a reward lies in [0, 1], because a trial that crashes, or whose tests give no
countable reward, counts as 0: with negative rewards a candidate could gain by crashing, and numbers of different size
would let one task outweigh all others in a paired test. A task with another scale divides by its maximum.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from sandbox.errors import UnsafePath
from sandbox.read import read_file

REWARD_CAP = 4096  # bytes of a reward file
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class NoReward(Exception):
    """There is no countable reward; the message says why, in words for the author of the task."""


def read_reward(logs: Path) -> float:
    """The reward in `reward.txt` or `reward.json` below `logs`, the upper of /logs/verifier. Raises NoReward."""
    found = {name: content for name in ("reward.txt", "reward.json") if (content := _content(logs, name)) is not None}
    if not found:
        raise NoReward("no /logs/verifier/reward.txt or reward.json was written")
    rewards = {_parse(name, content) for name, content in found.items()}
    if len(rewards) > 1:
        raise NoReward("reward.txt and reward.json disagree")
    return rewards.pop()


def _content(logs: Path, name: str) -> bytes | None:
    try:
        content = read_file(logs, name, REWARD_CAP + 1)
    except FileNotFoundError:
        return None
    except (UnsafePath, OSError) as error:
        raise NoReward(f"{name} can't be read: {error}") from None
    if len(content) > REWARD_CAP:
        raise NoReward(f"{name} is longer than {REWARD_CAP} bytes")
    return content


def _parse(name: str, content: bytes) -> float:
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise NoReward(f"{name} is not UTF-8 (byte {error.start})") from None
    if not text:
        raise NoReward(f"{name} is empty")
    return parse_json(text) if name.endswith(".json") else parse_text(text)


def parse_text(text: str) -> float:
    """The reward in the text of a reward.txt."""
    if not _NUMBER.fullmatch(text):
        raise NoReward(f"reward.txt holds {text[:40]!r} instead of one number")
    return _bounded(float(text), "reward.txt", text)


def parse_json(text: str) -> float:
    """The reward in a reward.json: `{"reward": x}` (other names beside it are ignored), or one number of any name."""
    try:
        values = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise NoReward(f"reward.json can't be used: {str(error)[:100]}") from None
    if isinstance(values, dict):
        if "reward" not in values and len(values) != 1:
            raise NoReward('reward.json has no "reward"')
        values = values["reward"] if "reward" in values else next(iter(values.values()))
    if isinstance(values, bool) or not isinstance(values, int | float):
        raise NoReward(f"reward.json: {str(values)[:40]!r} is not a number")
    try:
        number = float(values)
    except OverflowError:
        number = math.inf
    return _bounded(number, "reward.json", text)


def _bounded(value: float, name: str, text: str) -> float:
    if not 0 <= value <= 1:  # also false for NaN and infinities
        raise NoReward(f"{name} holds {text[:40]!r}, which is not from 0 to 1")
    return value + 0.0  # -0.0 is 0.0


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name is given twice")
    return values


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not a reward")
