"""Running a trial again: what is stored in between can be gone on with, whenever this process dies."""

from __future__ import annotations

from contextlib import closing

from orchestrator import database
from orchestrator.campaign import _resumable, conclude
from orchestrator.campaign_store import CampaignStore
from orchestrator.home import Home
from orchestrator.rerun import attempts, check

from .test_report import home, record, stored

__all__ = ["home"]


def test_killed_right_after_a_result_was_set_aside(home: Home) -> None:
    before = stored(home)
    with closing(database.connect(home.database)) as connection:
        store = CampaignStore(connection)
        trial = next(row for row in before.trials if row.arm == "good")
        store.reopen(before.id)
        store.plan_again([trial.id])
        store.finish_trial(record(trial, before.id, None, outcome="invalid", detail="killed by a person"))
        view = store.view(before.id)
        store.conclude(before.id, conclude(view).values())
        view = store.view(before.id)
        assert view.state == "done" and view.verdicts
        store.set_aside(view, check(view, trial.id))
        view = store.view(before.id)  # as the next process finds it
    assert view.verdicts == {} and view.finished is None
    assert [attempt.detail for attempt in attempts(view)] == ["killed by a person"]
    _resumable(view)  # runs it, and concludes; raised "is finished" while `rerun` said to resume it
