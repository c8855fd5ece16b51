"""The reward of a trial: the task's hidden tests over the instance's final files, in a fresh sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Reward:
    """`value` is None only when `outcome` is `invalid` (a cause of ours). `detail` says in words what went wrong."""

    value: float | None
    outcome: Literal["ok", "failed", "invalid"]  # failed: no countable reward, so 0
    detail: str
    seconds: float
    forgeable: bool
