"""How a trial ended is worded in one way, wherever it is told."""

from __future__ import annotations

import pytest

from orchestrator.trial_record import ended_as


@pytest.mark.parametrize(
    "outcome, detail, words",
    [
        ("completed", "", "completed"),
        ("planned", None, "planned"),
        ("limit", "tokens", "limit tokens"),
        ("crashed", "exit code 9", "crashed: exit code 9"),
        ("invalid", "\x1b[2Jkilled\nby a person", "invalid: killed by a person"),
    ],
)
def test_an_ending_in_words(outcome: str, detail: str | None, words: str) -> None:
    assert ended_as(outcome, detail) == words
