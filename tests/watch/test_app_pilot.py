"""The application driven by keys: what is typed ahead, refusals, the way back, other keys and sizes, hostile names."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from textual import events
from textual.widgets import Input

from orchestrator.config import Watch
from orchestrator.errors import UsageError
from orchestrator.home import open_home
from orchestrator.watch import app as watch_app
from orchestrator.watch.app import WatchApp
from orchestrator.watch.bars import Footer
from orchestrator.watch.keys import ACTIONS
from tests.watch import sample as samples
from tests.watch.driving import Driver, watching
from tests.watch.sample import Sample

STEPS = tuple(action for action in ACTIONS if action.steps)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with samples.build(tmp_path_factory.mktemp("sample")) as built:
        yield built


def drive(sample: Sample, story: Callable[[Driver], Awaitable[None]], **options: Any) -> None:
    """Run a story against the application."""

    async def run() -> None:
        async with watching(sample, **options) as driver:
            await story(driver)

    asyncio.run(run())


def at_once(driver: Driver, *keys: str) -> None:
    """Keys as a fast typist or a paste sends them: all before the first is handled."""
    for key in keys:
        driver.app.post_message(events.Key(key, key if len(key) == 1 else None))


def test_what_is_typed_ahead_goes_into_the_dialog_and_does_nothing_else(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("j")
        at_once(driver, "m", *"Kqy")
        await driver.until("Message to", "No other trial gets it")
        assert len(driver.app.screen_stack) == 2
        assert driver.app.screen.query_one("#dialog-input", Input).value == "Kqy"
        await driver.press("escape")
        await driver.until("not done")
        assert driver.app.stack == [("instances", "")]

    drive(sample, story)


def test_a_filter_that_is_typed_ahead_is_whole(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        at_once(driver, "/", *"paused", "enter")
        await driver.until("/paused 1 of")
        assert driver.app.view.target().name == sample.paused
        await driver.press("escape")
        await driver.until("running", gone="/paused")

    drive(sample, story)


def test_yes_before_it_is_known_to_what_means_nothing(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        with mock.patch.object(WatchApp, "in_thread") as asked:
            await driver.press("j", "K", "y", "enter")
            assert asked.call_count == 1, "only what would happen was asked"
            assert len(driver.app.screen_stack) == 2
            await driver.press("escape")
        assert len(driver.app.screen_stack) == 1

    drive(sample, story)


def test_a_read_only_dashboard_refuses_every_step_with_a_sentence(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.until("READ-ONLY")
        offered = {hint.action for hint in driver.app.main.query_one(Footer).hints}
        assert not offered & {action.name for action in STEPS}
        for action in STEPS:
            await driver.press("j", action.keys[0])
            assert "read-only" in driver.app.note.text
            assert len(driver.app.screen_stack) == 1

    drive(sample, story, read_only=True, columns=120)


def test_what_cannot_be_done_is_said_in_the_dialog_and_cannot_be_confirmed(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.until("trials")
        await driver.press("tab", "tab", "g", "r")
        await driver.until("fix:")
        await driver.press("y", "enter")
        assert len(driver.app.screen_stack) == 2
        await driver.press("escape")
        assert len(driver.app.screen_stack) == 1

    drive(sample, story, view="campaign", ident=sample.done)


def test_the_reason_of_a_step_that_failed_is_shown(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        with mock.patch("orchestrator.requests.wait", return_value=None):
            await driver.press("j", "K")
            await driver.until("killed at once")
            await driver.press("y")
            await driver.until("nobody took the request", "fix:")
        await driver.press("enter")
        assert len(driver.app.screen_stack) == 1

    drive(sample, story)


def test_what_ended_while_its_dialog_was_read_is_not_asked_about(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("j", "K")
        await driver.until("killed at once")
        ended = UsageError("trial c0001t01 has ended already (completed)", fix="look at it: sia log show c0001t01")
        with (
            mock.patch("orchestrator.requests.explain", side_effect=ended),
            mock.patch("orchestrator.requests.ask") as ask,
        ):
            await driver.press("y")
            await driver.until("has ended already (completed)", "fix: look at it")
        ask.assert_not_called()

    drive(sample, story)


def test_esc_drops_the_filter_first_and_then_goes_back(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("j", "enter")
        await driver.until("iteration")
        await driver.press("/", *"part", "enter", "escape")
        assert driver.app.stack[-1][0] == "detail"
        await driver.press("escape")
        assert driver.app.stack == [("instances", "")]
        await driver.press("5", "escape")
        assert driver.app.stack == [("instances", "")]

    drive(sample, story)


def test_the_cursor_stays_with_its_instance_when_others_end(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        await driver.press("G", "k")
        name = driver.app.view.target().name
        row = sample.connection.execute("SELECT * FROM running WHERE kind = 'test' ORDER BY started").fetchone()
        assert row["id"] != name
        sample.connection.execute("DELETE FROM running WHERE id = ?", (row["id"],))
        try:
            await driver.look()
            assert driver.app.view.target().name == name
        finally:
            marks = ", ".join("?" * len(row))
            sample.connection.execute(f"INSERT INTO running VALUES ({marks})", tuple(row))

    drive(sample, story)


def test_mapped_keys_work_and_the_help_shows_them(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        app = driver.app
        await driver.press("K")
        assert len(app.screen_stack) == 1
        await driver.press("x")
        await driver.until("Kill ")
        await driver.press("escape", "f1")
        await driver.until("Keys", "what runs now")
        await driver.press("G")
        screen = await driver.until("end an instance now")
        assert re.search(r"x +kill", screen)
        await driver.press("f1")
        assert len(app.screen_stack) == 1

    class Mapped(WatchApp):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options, settings=Watch(keys={"kill": ("x",), "help": ("f1",)}))

    with mock.patch("tests.watch.driving.WatchApp", Mapped):
        drive(sample, story)


def test_narrow_shows_one_pane_and_wide_shows_all(sample: Sample) -> None:
    async def story(driver: Driver) -> None:
        def seen() -> list[bool]:
            return [pane.region.area > 0 and pane.parent.display for pane in driver.app.view.panes]  # type: ignore[union-attr]

        await driver.until("verdicts", "matrix", "trials")
        assert seen() == [True, False, False]
        await driver.pilot.resize_terminal(200, 60)
        await driver.wait(lambda: seen() == [True, True, True], "all panes")
        await driver.pilot.resize_terminal(60, 15)
        await driver.wait(lambda: seen() == [True, False, False], "one pane")
        await driver.press("tab", "tab")
        assert seen() == [False, False, True]

    drive(sample, story, view="campaign", ident=sample.done)


@pytest.mark.parametrize("view", ["instances", "campaign", "detail", "compare", "generations", "events", "sandbox"])
def test_nothing_that_was_written_inside_reaches_the_terminal_as_a_command(sample: Sample, view: str) -> None:
    idents = {"detail": sample.hostile, "sandbox": sample.hostile, "compare": f"{sample.hostile} {sample.long}"}

    async def story(driver: Driver) -> None:
        await driver.wait(lambda: any(len(pane.source) for pane in driver.app.view.panes), "something to show")
        for _ in range(6):
            for strips in driver.app.screen._compositor.render_strips():
                for segment in strips:
                    assert segment.text.isprintable(), repr(segment.text)
            await driver.press("tab")
            await driver.pilot.pause()

    drive(sample, story, view=view, ident=idents.get(view, ""), columns=200, lines=60)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("instances", "sia campaign run campaign.toml"),
        ("campaign", "sia campaign run campaign.toml"),
        ("compare", "c on the first"),
        ("generations", "sia supervise"),
        ("events", "Nothing has happened yet"),
        ("sandbox", "D on an instance"),
        ("detail", "enter on an instance"),
    ],
)
def test_an_empty_view_says_what_to_do_next(tmp_path: Path, view: str, says: str) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    home = open_home(tmp_path)

    async def run() -> None:
        with mock.patch.multiple(watch_app, POLL=1e6, IDLE_POLL=1e6):
            app = WatchApp(home, view)
            async with app.run_test(size=(80, 24)) as pilot:
                driver = Driver(app, pilot)
                await driver.until(says)
                for action in STEPS:
                    await driver.press(action.keys[0])
                    await driver.press("escape")
                assert len(app.screen_stack) == 1

    asyncio.run(run())
