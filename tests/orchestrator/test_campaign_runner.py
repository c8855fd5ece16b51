"""A trial that ends with its campaign for a fault of ours leaves a trace: what an instance does may have led to it."""

from __future__ import annotations

import io
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import database, rerun
from orchestrator.campaign import conclude
from orchestrator.campaign_runner import Runner, Waiting
from orchestrator.campaign_store import CampaignStore
from orchestrator.campaign_view import ArmRow, TaskRow
from orchestrator.config import Campaign
from orchestrator.plan import plan
from orchestrator.progress import Board, Progress
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = [pytest.mark.sandbox, ONE_MODE]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_trial_that_ends_by_an_error_of_ours_is_named_by_the_verdicts(kit: TrialKit, tmp_path: Path) -> None:
    campaign = Campaign(candidates=("one",), tasks=("t",), engine="e")
    arms = [ArmRow("baseline", "baseline", COMMIT, COMMIT, COMMIT), ArmRow("one", "candidate", COMMIT, COMMIT, COMMIT)]
    with closing(database.connect(kit.home.database)) as connection:
        store = CampaignStore(connection)
        planned: list[Any] = []

        def plans(name: str) -> Any:
            planned.extend(plan(name, ["one"], ["t"], 1, 1))
            return planned

        name = store.create(
            file="f",
            spec=campaign.model_dump(mode="json"),
            setup={},
            baseline=COMMIT,
            arms=arms,
            tasks=[TaskRow("t", "t", "k", "train")],
            plan=plans,
        )
        trial = planned[0]

        def run(**more: Any) -> Runner:
            values: dict[str, Any] = {"builds": {}, "tasks": {}, "trees": {}} | more
            runner = Runner(
                id=name,
                campaign=campaign,
                context=kit.context(),
                store=store,
                directory=tmp_path / "campaign",
                parallel=1,
                board=Board(name, {"baseline": 1, "one": 1}),
                progress=Progress(io.StringIO()),
                stop=threading.Event(),
                **values,
            )
            runner.run([Waiting(trial)])
            return runner

        runner = run()  # it had not begun: there is nothing that could have been undone
        assert runner.error is not None and rerun.attempts(store.view(name)) == []
        runner = run(tasks={"t": kit.task()})
        assert runner.error is not None and runner.error.what.startswith("internal error: KeyError")
        build = replace(kit.instance("import sys; sys.exit(0)"), tree="another")
        runner = run(tasks={"t": kit.task()}, builds={trial.arm: build}, trees={trial.arm: COMMIT})
        assert runner.error is not None and "the tree that ran is another" in runner.error.what
        view = store.view(name)
        assert [(one.trial, one.outcome, one.detail) for one in rerun.attempts(view)] == [
            (trial.id, rerun.CUT_OFF, "internal error: KeyError"),
            (trial.id, rerun.CUT_OFF, runner.error.what),
        ]
        assert {one.state for one in view.trials} == {"planned"}
        assert f"run again from their start: {trial.id} (cut off: internal error" in conclude(view)["one"].reasons[-1]
