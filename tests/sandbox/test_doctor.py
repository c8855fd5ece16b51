"""`sia doctor` says in words what a probe did, and what to do about it."""

from __future__ import annotations

from typing import cast

import pytest

from sandbox import doctor
from sandbox.host import Host
from sandbox.process import Outcome


def ended(*, code: int | None = None, signal: int | None = None, limit: str | None = None) -> Outcome:
    return Outcome(code, signal, limit, None, "none", 20.0, None)


@pytest.mark.parametrize(
    "outcome, words",
    [
        (ended(code=3), "exit code 3"),
        (ended(signal=11), "signal 11"),
        (ended(signal=9, limit="seconds"), "the limit of its seconds was reached after 20.0 s"),
    ],
)
def test_a_probe_that_ended_badly_is_told_in_words(outcome: Outcome, words: str) -> None:
    (finding,) = doctor._verdict(cast("Host", None), outcome, [])
    assert finding.state == "fail" and finding.detail.endswith(words) and "Outcome" not in finding.detail
    assert finding.fix


@pytest.mark.parametrize(
    "outcome, changes, words",
    [
        (ended(code=0), {"old": "deleted", "new": "added"}, "it ended with exit code 0"),
        (ended(signal=9, limit="disk"), {"new": "added"}, "to be seen is: new added"),
        (ended(signal=9, limit="disk"), {}, "to be seen is: nothing"),
    ],
)
def test_uppers_in_memory_that_do_not_work_are_told_in_words(
    outcome: Outcome, changes: dict[str, str], words: str
) -> None:
    finding = doctor._in_memory("uppers in memory", outcome, changes)
    assert finding.state == "note" and words in finding.detail and "{" not in finding.detail
    assert 'upper = "disk"' in finding.fix
