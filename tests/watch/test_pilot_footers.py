"""Every key that the footer offers, in every view: it is pressed, and does what its word says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest

from orchestrator import requests
from orchestrator.generations import Ledger
from orchestrator.watch.bars import Footer
from orchestrator.watch.keys import BY_NAME
from orchestrator.watch.lines import Lines
from tests.watch import sample as samples
from tests.watch.driving import Driver, watching
from tests.watch.sample import Sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with samples.build(tmp_path_factory.mktemp("sample")) as built:
        yield built


@dataclass
class Scene:
    """A view with something in it, and what a step there would be about."""

    driver: Driver
    sample: Sample
    about: str = ""  # the instance or trial under the cursor
    campaign: str = ""

    @property
    def view(self) -> str:
        return self.driver.app.stack[-1][0]

    @property
    def pane(self) -> Lines:
        return self.driver.app.view.pane

    def hints(self) -> list[tuple[str, str]]:
        """(action, key) of everything in the footer."""
        footer = self.driver.app.main.query_one(Footer)
        return [(hint.action, self.driver.app.keymap.keys[hint.action][0]) for hint in footer.hints]

    async def press(self, action: str) -> None:
        """The key that the footer names."""
        await self.driver.press(dict(self.hints())[action])

    async def requested(self, action: str, kind: str, subject: str, says: str, *typed: str) -> None:
        """A step that asks an owner: the dialog says what will happen, enter asks, the owner's answer is shown."""
        await self.press(action)
        await self.driver.until(says)
        await self.driver.press(*typed, "enter")
        found: list[requests.Request] = []

        def taken() -> bool:
            found.extend(requests.pending(self.sample.connection, {subject: 0.0}))
            return bool(found)

        await self.driver.wait(taken, f"a request about {subject}")
        assert [(one.kind, one.subject) for one in found] == [(kind, subject)]
        assert found[0].text == "".join(" " if key == "space" else key for key in typed)
        requests.finish(self.sample.connection, found[0].id, "done as you asked")
        await self.driver.until("done as you asked")
        self.sample.connection.execute("DELETE FROM request")  # nobody has asked anything, for what comes next

    async def asked(self, action: str, *says: str) -> None:
        """A dialog that says what will happen, and is left again."""
        await self.press(action)
        await self.driver.until(*says)
        await self.driver.press("escape")
        await self.driver.until("not done") if self.driver.app.note.text else None


Check = Callable[[Scene], Awaitable[None]]


async def check_kill(scene: Scene) -> None:
    await scene.requested("kill", "kill", scene.about, "killed at once")


async def check_pause(scene: Scene) -> None:
    await scene.requested("pause", "pause", scene.about, "is stopped where it is")


async def check_message(scene: Scene) -> None:
    await scene.requested("message", "message", scene.about, "The message", "g", "o", "space", "o", "n")


async def check_stop(scene: Scene) -> None:
    await scene.requested("stop", "stop_campaign", scene.campaign, "starts no more trials")


async def check_open(scene: Scene) -> None:
    before, pane = scene.view, scene.driver.app.view.pane_index
    await scene.press("open")
    if before == "instances":
        assert scene.driver.app.stack[-1] == ("detail", scene.about)
        await scene.driver.until(scene.about)
    elif before == "events":
        assert len(scene.driver.app.screen_stack) == 2
    elif before == "campaign" and scene.about and pane == 2:
        assert scene.driver.app.stack[-1] == ("detail", scene.about)
    else:
        assert scene.driver.app.view.pane_index != pane


async def check_mark(scene: Scene) -> None:
    await scene.press("mark")
    assert scene.driver.app.marked == scene.about
    await scene.driver.until("is marked")
    await scene.press("mark")
    assert scene.driver.app.marked is None


async def check_disk(scene: Scene) -> None:
    await scene.press("disk")
    assert scene.driver.app.stack[-1] == ("sandbox", scene.about)


async def check_sort(scene: Scene) -> None:
    await scene.press("sort")
    await scene.driver.until("sorted by")


async def check_copy(scene: Scene) -> None:
    await scene.press("copy")
    await scene.driver.until("copied: ")
    assert scene.driver.app.clipboard == scene.driver.app.view.target().name


async def check_next_pane(scene: Scene) -> None:
    view = scene.driver.app.view
    before = view.pane_index
    await scene.press("next_pane")
    assert view.pane_index == (before + 1) % len(view.panes)
    await scene.driver.press("shift+tab")
    assert scene.driver.app.view.pane_index == before


async def check_top(scene: Scene) -> None:
    await scene.press("top")
    assert scene.pane.cursor == 0


async def check_bottom(scene: Scene) -> None:
    await scene.driver.press("g")
    await scene.press("bottom")
    assert scene.pane.cursor == len(scene.sample.connection.execute("SELECT id FROM event").fetchall()) - 1


async def check_iterations(scene: Scene) -> None:
    """h, l, H and L in one go: each needs the others."""
    pane = scene.driver.app.view.panes[0]
    await scene.press("last_iteration")
    last = pane.cursor
    assert last > 3
    await scene.press("previous_iteration")
    assert pane.cursor == last - 1
    await scene.press("next_iteration")
    assert pane.cursor == last
    await scene.press("first_iteration")
    assert pane.cursor == 0


async def check_next_campaign(scene: Scene) -> None:
    ids = [row["id"] for row in scene.sample.connection.execute("SELECT id FROM campaign ORDER BY created DESC")]
    await scene.press("next_campaign")
    after = ids[(ids.index(scene.campaign) + 1) % len(ids)]
    await scene.driver.until(after)
    await scene.driver.press("[")
    await scene.driver.until(scene.campaign)


async def check_rollback(scene: Scene) -> None:
    ledger = Ledger(scene.sample.connection)
    await scene.press("rollback")
    await scene.driver.until("generation 1")
    await scene.driver.press("enter")
    await scene.driver.wait(lambda: ledger.standing().state == "INTENT", "the rollback to be asked for")
    promotion = ledger.standing().promotion
    assert promotion is not None and (promotion.kind, promotion.new) == ("rollback", 1)
    await scene.driver.until(f"rollback {promotion.id} from", ": open")  # else its note may cover the next one's
    ledger.give_up("the test is over")


async def check_promote(scene: Scene) -> None:
    await scene.asked("promote", "Promote")


async def check_rerun(scene: Scene) -> None:
    await scene.asked("rerun", "again")


async def check_divergence(scene: Scene) -> None:
    await scene.driver.press("g")
    await scene.press("divergence")
    now = scene.driver.app.view.now  # type: ignore[attr-defined]
    assert scene.driver.app.view.panes[0].cursor == now.first


async def check_fold(scene: Scene) -> None:
    before = scene.driver.text()
    await scene.press("fold")
    await scene.driver.wait(lambda: scene.driver.text() != before, "something to fold")


async def check_filter(scene: Scene) -> None:
    await scene.press("filter")
    await scene.driver.press("z", "q", "z")
    assert scene.driver.app.view.filter_text == "zqz"
    await scene.driver.press("escape")
    assert scene.driver.app.view.filter_text == ""


async def check_palette(scene: Scene) -> None:
    await scene.press("palette")
    await scene.driver.until("Command", "generations", "choose")
    await scene.driver.press(*"theme", "enter")
    await scene.driver.until("colours: ")


async def check_help(scene: Scene) -> None:
    await scene.press("help")
    await scene.driver.until("Keys", "what runs now")
    await scene.driver.press("escape")
    assert len(scene.driver.app.screen_stack) == 1


async def check_quit(scene: Scene) -> None:
    await scene.press("quit")
    assert scene.driver.app.return_value == 0


CHECKS: dict[str, Check] = {
    "open": check_open,
    "kill": check_kill,
    "pause": check_pause,
    "message": check_message,
    "stop": check_stop,
    "mark": check_mark,
    "disk": check_disk,
    "sort": check_sort,
    "copy": check_copy,
    "next_pane": check_next_pane,
    "top": check_top,
    "bottom": check_bottom,
    "previous_iteration": check_iterations,
    "next_iteration": check_iterations,
    "first_iteration": check_iterations,
    "last_iteration": check_iterations,
    "next_campaign": check_next_campaign,
    "rollback": check_rollback,
    "promote": check_promote,
    "rerun": check_rerun,
    "divergence": check_divergence,
    "fold": check_fold,
    "filter": check_filter,
    "palette": check_palette,
    "help": check_help,
    "quit": check_quit,
}


@dataclass(frozen=True)
class Setting:
    """How to get to a scene: the view, what it is about, keys to press first, and the row to put the cursor on.

    `ident` and `row` are attributes of the sample, or `done:…` for a trial of the finished campaign.
    """

    view: str
    ident: str = ""
    keys: tuple[str, ...] = ()
    row: str = ""
    campaign: str = "current"


SETTINGS = {
    "instances": Setting("instances", row="long"),
    "instances, the main one": Setting("instances", row="main"),
    "campaign at work": Setting("campaign", "current"),
    "campaign at work, a running trial": Setting("campaign", "current", ("tab", "tab"), "long"),
    "campaign that is over, a trial": Setting("campaign", "done", ("tab", "tab"), "trial", "done"),
    "detail": Setting("detail", "long"),
    "detail, context": Setting("detail", "long", ("tab",)),
    "detail of what has ended": Setting("detail", "trial", campaign="done"),
    "compare": Setting("compare", "trials"),
    "generations": Setting("generations"),
    "events": Setting("events"),
    "sandbox": Setting("sandbox", "long"),
    "sandbox of what has ended": Setting("sandbox", "trial", campaign="done"),
}


def _named(sample: Sample, name: str) -> str:
    """The id that a setting means."""
    if name in ("trial", "trials"):
        query = "SELECT id, arm FROM trial WHERE campaign = ? AND task = 'log-cause' AND repeat = 1"
        ids = {row["arm"]: row["id"] for row in sample.connection.execute(query, (sample.done,))}
        return str(ids["show-more"]) if name == "trial" else f"{ids['baseline']} {ids['show-more']}"
    return str(getattr(sample, name)) if name else ""


async def _enter(scene: Scene, setting: Setting) -> None:
    """Go to the scene from wherever the last key has led."""
    app = scene.driver.app
    for _ in range(4):
        if len(app.screen_stack) == 1:
            break
        await scene.driver.press("escape")
    app.say("")
    if app.focused is not None:
        await scene.driver.press("escape")
    app.go("events" if setting.view != "events" else "generations", push=False)
    app.go(setting.view, _named(scene.sample, setting.ident), push=False)
    app.view.focus_pane(0)
    if setting.row:
        await scene.driver.until("main" if setting.row == "main" else _named(scene.sample, setting.row))
    await _ready(scene)
    await scene.driver.press(*(("L",) if setting.view == "detail" else ()), *setting.keys)
    if setting.row:
        wanted, pane = _named(scene.sample, setting.row), app.view.pane
        for number in range(200):
            pane.go(number)  # as j would, without drawing each line on the way
            if wanted in (app.view.target().name, app.view.target().trial):
                break
        else:
            raise AssertionError(f"{wanted} is not in this list:\n{scene.driver.text()}")
        await scene.driver.pilot.pause()
    app.refresh_bars()
    target = app.view.target()
    scene.about = (target.instance.id if target.instance else target.trial) or ""


async def _ready(scene: Scene) -> None:
    """Until the view has read what it shows."""
    await scene.driver.wait(lambda: len(scene.hints()) > 4, "something to do in this view")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_key_in_the_footer_does_what_it_says(sample: Sample, name: str) -> None:
    setting = SETTINGS[name]

    async def story() -> None:
        async with watching(sample, setting.view, columns=200, lines=60) as driver:
            scene = Scene(driver, sample, campaign=str(getattr(sample, setting.campaign)))
            await _enter(scene, setting)
            offered = [action for action, _ in scene.hints()]
            assert {"filter", "palette", "help", "quit"} <= set(offered)
            assert len(offered) == len(set(offered))
            for action in offered:
                await _enter(scene, setting)
                assert action in dict(scene.hints()), f"{action} is gone from the footer"
                assert action in CHECKS, f"nobody has said what {action} does"
                await CHECKS[action](scene)

    asyncio.run(story())


def test_a_narrow_footer_offers_the_same_keys_as_far_as_they_fit(sample: Sample) -> None:
    async def story() -> None:
        async with watching(sample, columns=80) as driver:
            scene = Scene(driver, sample)
            narrow = scene.hints()
            line = driver.text().splitlines()[-1]
            assert all(BY_NAME[action].word in line for action, _ in narrow)
            await driver.pilot.resize_terminal(200, 60)
            await driver.wait(lambda: len(scene.hints()) > len(narrow), "a wider footer")
            assert [hint for hint in scene.hints() if hint in narrow] == narrow

    asyncio.run(story())


def test_a_read_only_dashboard_offers_no_step_and_refuses_each(sample: Sample) -> None:
    before = sample.connection.execute("SELECT count(*) FROM request").fetchone()[0]

    async def story() -> None:
        async with watching(sample, columns=200, read_only=True) as driver:
            await driver.until("READ-ONLY")
            await driver.press("j")
            steps = [action for action in BY_NAME.values() if action.steps]
            assert not {step.name for step in steps} & {action for action, _ in Scene(driver, sample).hints()}
            for step in steps:
                await driver.press(*driver.app.keymap.keys[step.name])
                await driver.until("read-only")
                assert len(driver.app.screen_stack) == 1
                await driver.press("escape")

    asyncio.run(story())
    assert sample.connection.execute("SELECT count(*) FROM request").fetchone()[0] == before
