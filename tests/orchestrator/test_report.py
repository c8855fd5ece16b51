"""Reports and panels of a stored campaign, with names and texts that want to be more than text."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator import database, panels
from orchestrator.campaign import conclude
from orchestrator.campaign_store import CampaignStore, find_judged
from orchestrator.campaign_view import ArmRow, CampaignView, TaskRow, load, resolve
from orchestrator.config import Campaign
from orchestrator.errors import UsageError
from orchestrator.home import Home
from orchestrator.plan import plan
from orchestrator.report import as_html, as_markdown, write
from orchestrator.trial import TrialRecord

HOSTILE = "<script>alert(1)</script>|`x`[a](http://x)$\\alpha$\x1b]0;owned\x07\u202e"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def record(trial: Any, campaign: str, reward: float | None, **more: Any) -> TrialRecord:
    """A finished trial's record, written out by hand."""
    values: dict[str, Any] = {
        "id": trial.id,
        "journal": trial.id,
        "campaign": campaign,
        "arm": trial.arm,
        "task": trial.task,
        "split": "train",
        "repeat": trial.repeat,
        "outcome": "completed" if reward is not None else "invalid",
        "detail": "",
        "reward": reward,
        "disqualified": None,
        "tokens": 1000,
        "prompt_tokens": 900,
        "completion_tokens": 100,
        "cached_tokens": 0,
        "iterations": 4,
        "cost": None,
        "seconds": 1.5,
        "engine_seconds": 0.5,
        "verifier_seconds": 0.1,
        "exit_code": 0,
        "parse_errors": 0,
        "repeated_actions": 0,
        "deletes": 0,
        "context_growth": 1.0,
        "peak_memory_mb": 30.0,
        "memory_enforcer": "watchdog",
        "forgeable": {"t0": True, "t1": None}.get(trial.task, False),
        "changes": 1,
        "tree": COMMIT,
        "task_key": "k",
        "journal_head": "h",
    }
    return TrialRecord(**values | more)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / ".sia", tmp_path)
    made.root.mkdir()
    return made


def stored(home: Home, *, hostile: str = HOSTILE) -> CampaignView:
    """A finished campaign: one candidate better, one that cheats, one with a hostile name."""
    names = ["good", "cheat", hostile]
    spec = Campaign(candidates=tuple(names), tasks=("t*",), engine="e").model_dump(mode="json")
    arms = [ArmRow("baseline", "baseline", COMMIT, COMMIT, COMMIT)]
    arms += [ArmRow(name, "candidate", COMMIT, COMMIT, COMMIT, (hostile,)) for name in names]
    tasks = [f"t{n}" for n in range(7)] + [hostile]
    with closing(database.connect(home.database)) as connection:
        store = CampaignStore(connection)
        trials = []

        def planned(name: str) -> Any:
            trials.extend(plan(name, names, tasks, 1, 1))
            return trials

        rows = [TaskRow(task, task, "k", "train") for task in tasks]
        setup = {"unasked": {hostile: "6b: its schema has no <repeat>"}}
        name = store.create(file=hostile, spec=spec, setup=setup, baseline=COMMIT, arms=arms, tasks=rows, plan=planned)
        for trial in trials:
            evidence = hostile if (trial.arm, trial.task) == ("cheat", "t3") else None
            reward = {"good": 1.0, "cheat": 1.0}.get(trial.arm, 0.0)
            store.start_trial(trial.id, "label")
            store.finish_trial(record(trial, name, reward, disqualified=evidence, detail=hostile, notes=(hostile,)))
        store.conclude(name, conclude(load(connection, name)).values())
        return load(connection, name)


class Strict(HTMLParser):
    """Collects tags; a hostile one would be among them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attributes)


def test_the_html_report_is_one_page_without_scripts_or_requests(home: Home) -> None:
    page = as_html(stored(home))
    parser = Strict()
    parser.feed(page)
    assert {"table", "svg", "h1"} <= parser.tags
    assert not parser.tags & {"script", "img", "link", "iframe", "object", "image", "a"}
    assert not {name for name in parser.attributes if name.startswith("on")}
    assert "src=" not in page
    assert "\x1b" not in page and "\u202e" not in page
    for part in page.split("<svg")[1:]:
        ET.fromstring("<svg" + part[: part.index("</svg>") + 6])


def test_the_markdown_report_keeps_its_tables(home: Home) -> None:
    text = as_markdown(stored(home))
    assert "<script" not in text.replace("\\<script", "") and "\x1b" not in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            bars = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(bars) == 1, block
    assert "disqualified" in text and "forgeable" in text and "unchecked" in text
    assert "checks of the contract that were not asked: 6b: its schema has no \\<repeat\\>." in text


def test_the_same_campaign_gives_the_same_bytes(home: Home) -> None:
    view = stored(home)
    assert as_html(view) == as_html(view)
    written = write(home, view)
    assert written.html.read_text(encoding="utf-8") == as_html(view)
    assert written.markdown.parent == home.campaigns / view.id


def test_panels_show_hostile_names_as_text(home: Home) -> None:
    view = stored(home, hostile="[bold red]x[/]\x1b[31m\x9b2J" + "é" * 80)
    target = io.StringIO()
    console = Console(file=target, width=100)
    for table in (
        panels.verdict_table(view.verdicts),
        panels.guardrail_table(view.verdicts),
        panels.matrix(view),
        panels.trial_table(view),
    ):
        console.print(table)
    shown = target.getvalue()
    assert "\x1b" not in shown and "\x9b" not in shown
    assert "[bold" in shown


def test_what_is_stored_is_what_the_verdict_says(home: Home) -> None:
    view = stored(home, hostile="plain")
    assert {arm: v["verdict"] for arm, v in view.verdicts.items()} == {
        "good": "better",
        "cheat": "disqualified",
        "plain": "equivalent",
    }
    json.dumps(view.to_json())
    assert (view.forgeable, view.unchecked) == (("t0",), ("t1",))


def test_the_gate_reads_the_newest_finished_verdict(home: Home) -> None:
    first, second = stored(home), stored(home)
    with closing(database.connect(home.database)) as connection:
        assert find_judged(connection, "good").campaign == second.id
        judged = find_judged(connection, "good", first.id)
        assert (judged.campaign, judged.verdict, judged.baseline) == (first.id, "better", COMMIT)
        assert judged.numbers["wins"] == 8
        with pytest.raises(UsageError, match="no verdict on 'nobody'"):
            find_judged(connection, "nobody")
        CampaignStore(connection).reopen(second.id)
        with pytest.raises(UsageError, match="not finished"):
            find_judged(connection, "good", second.id)
        assert find_judged(connection, "good").campaign == first.id


def test_campaigns_are_named_by_id_beginning_number_or_last(home: Home) -> None:
    for _ in range(12):
        stored(home, hostile="x")
    with closing(database.connect(home.database)) as connection:
        assert resolve(connection, "c0003") == resolve(connection, "c3") == resolve(connection, "3") == "c0003"
        assert resolve(connection, "c001") == "c0001"  # the number wins over the beginning of several
        assert resolve(connection, "last") == "c0012"
        for wrong in ("", "c", "x1", "c99", "%"):
            with pytest.raises(UsageError):
                resolve(connection, wrong)
