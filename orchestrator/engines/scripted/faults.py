"""Seeded faults: what goes wrong with a scripted answer, and how often."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

TEXT_FAULTS = ("wrong_id", "two_actions", "unclosed", "truncated", "prose", "fences", "garbage")
LINE_FAULTS = ("stall", "silence", "drop", "crash", "flood")
SETTINGS = {"stall_sec": 5.0, "flood_mb": 200.0}  # amounts, not probabilities
_ID = re.compile(r"""(\bid\s*=\s*["'])([^"']*)(["'])""")


def draw(seed: int, rule: str, what: str) -> float:
    """A number in [0, 1) that depends on nothing else: one more fault in a policy moves no other draw."""
    digest = hashlib.blake2b(f"{seed}/{rule}/{what}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


@dataclass(frozen=True)
class Faults:
    """Probabilities per answer, and the two amounts."""

    rates: Mapping[str, float]
    stall_sec: float = 5.0
    flood_mb: float = 200.0

    def happen(self, seed: int, rule: str) -> frozenset[str]:
        """The faults that this answer has."""
        return frozenset(name for name, rate in self.rates.items() if rate > 0 and draw(seed, rule, name) < rate)


def spoil(answer: str, faults: frozenset[str]) -> str:
    """The answer with its text faults, in the documented order."""
    if "wrong_id" in faults:
        answer = _ID.sub(lambda m: m[1] + (m[2][:-1] + ("0" if m[2][-1:] != "0" else "1")) + m[3], answer, count=1)
    if "two_actions" in faults:
        answer = f"<reasoning>First I say what I am about to do.</reasoning>\n{answer}"
    if "unclosed" in faults:
        answer = answer[: answer.rfind("</")] if "</" in answer else answer.rstrip().removesuffix("/>")
    if "truncated" in faults:
        answer = answer[: max(1, len(answer) * 6 // 10)]
    if "prose" in faults:
        answer = f"Here is the next action:\n\n{answer}"
    if "fences" in faults:
        answer = f"```xml\n{answer}\n```"
    if "garbage" in faults:
        half = len(answer) // 2
        answer = f"{answer[:half]}\x00\x1b[31m\ufffe{answer[half:]}"
    return answer
