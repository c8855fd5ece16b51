"""Every panel, at many widths: nothing is too wide, nothing of others has an effect, empty ones say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rich.console import RenderableType

from orchestrator.watch import changes
from orchestrator.watch import panels_campaign as campaign_panels
from orchestrator.watch import panels_compare as compare_panels
from orchestrator.watch import panels_detail as detail_panels
from orchestrator.watch import panels_events as event_panels
from orchestrator.watch import panels_generations as generation_panels
from orchestrator.watch import panels_overview as overview_panels
from orchestrator.watch import panels_sandbox as sandbox_panels
from orchestrator.watch.campaign_feed import CampaignFeed, CampaignNow
from orchestrator.watch.changes import ChangeLine, Changes
from orchestrator.watch.compare import Comparison, partner
from orchestrator.watch.feed import Feed
from orchestrator.watch.generations_feed import CodeChange, FileChange, GenerationsFeed, GenerationsNow
from orchestrator.watch.iterations import Iterations, Live, Message
from orchestrator.watch.values import Event, OrphanLine, RequestLine, Snapshot
from tests.watch.reading_kit import drawn
from tests.watch.sample import Sample
from tests.watch.sample_text import HOSTILE, HOSTILE_NAME

WIDTHS = (30, 60, 80, 120, 200)


@dataclass
class Seen:
    """What the feeds give of the sample, read once."""

    snapshot: Snapshot
    current: CampaignNow
    done: CampaignNow
    interrupted: CampaignNow
    hostile: Iterations
    long: Iterations
    both: Comparison
    generations: GenerationsNow
    code: CodeChange
    disk: Changes


@pytest.fixture(scope="module")
def seen(shown: Sample) -> Iterator[Seen]:
    home = shown.home
    with shown.clock(), ExitStack() as stack:
        feed = stack.enter_context(Feed(home))
        snapshot = feed.poll()
        campaigns = [
            stack.enter_context(closing(CampaignFeed(home, name))).poll()
            for name in (shown.current, shown.done, shown.interrupted)
        ]
        hostile, long = (stack.enter_context(closing(Iterations(home, name))) for name in (shown.hostile, shown.long))
        first = campaigns[1].view.trials[0].id
        both = stack.enter_context(closing(Comparison(home, first, partner(home, first) or "")))
        both.refresh()
        ledger = stack.enter_context(closing(GenerationsFeed(home)))
        code = ledger.change(2)
        assert code is not None
        disk = changes.look(home, shown.hostile, snapshot.instance(shown.hostile))
        yield Seen(snapshot, *campaigns, hostile, long, both, ledger.poll(), code, disk)


PANELS: dict[str, Callable[[Seen, int], RenderableType]] = {
    "overview": lambda s, w: overview_panels.overview(s.snapshot, w),
    "instances": lambda s, w: overview_panels.instances(s.snapshot, w),
    "headline": lambda s, w: overview_panels.headline(s.snapshot, w),
    "instance": lambda s, w: overview_panels.instance_head(s.hostile_instance, w),  # type: ignore[attr-defined]
    "campaign": lambda s, w: campaign_panels.campaign(s.current, w, trials=True),
    "done": lambda s, w: campaign_panels.campaign(s.done, w, trials=True),
    "interrupted": lambda s, w: campaign_panels.campaign(s.interrupted, w),
    "campaigns": lambda s, w: campaign_panels.campaigns(s.snapshot, w),
    "iteration": lambda s, w: detail_panels.iteration(s.hostile, s.hostile.count, w),
    "long": lambda s, w: detail_panels.iteration(s.long, s.long.count - 1, w, lines=30),
    "compare": lambda s, w: compare_panels.compare(s.both, w),
    "generations": lambda s, w: generation_panels.generations(s.generations, w),
    "code": lambda s, w: generation_panels.code(s.code, w),
    "events": lambda s, w: event_panels.events(s.snapshot, w),
    "sandbox": lambda s, w: sandbox_panels.sandbox(s.disk, "x", w),
}


@pytest.mark.parametrize("name", PANELS)
def test_panels_fit_and_hold_no_control_character(seen: Seen, shown: Sample, name: str) -> None:
    seen.hostile_instance = seen.snapshot.instance(shown.hostile)  # type: ignore[attr-defined]
    with shown.clock():
        for width in WIDTHS:
            drawn(PANELS[name](seen, width), width)


def test_words_say_what_colours_say(seen: Seen, shown: Sample) -> None:
    with shown.clock():
        text = drawn(overview_panels.overview(seen.snapshot, 120), 120)
    for word in ("generation 2 (show-more)", "STABLE", "paused", "quiet", "waits", "running", f"{shown.current}"):
        assert word in text
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith((" ●", " !", " ‖"))}
    assert "quiet 4" in rows[shown.hanging] and rows[shown.hanging].startswith(" !")
    assert rows[shown.paused].startswith(" ‖")


def test_hostile_names_stay_in_their_cells(seen: Seen, shown: Sample) -> None:
    """A line break in a name makes no line, markup is text, and no other row is hidden."""
    with shown.clock():
        lines = drawn(overview_panels.instances(seen.snapshot, 200), 200).splitlines()
    assert len(lines) == 1 + len(seen.snapshot.instances)
    row = next(line for line in lines if line.split()[1] == shown.hostile)
    assert "evil[reverse] better" in row
    assert "running" in row or "quiet" in row


def test_a_panel_shows_the_same_without_colours(seen: Seen, shown: Sample) -> None:
    from rich.console import Console

    with shown.clock():
        plain = drawn(campaign_panels.campaign(seen.current, 120), 120)
        console = Console(width=120, force_terminal=True, color_system="standard", legacy_windows=False)
        with console.capture() as captured:
            console.print(campaign_panels.campaign(seen.current, 120))
    from orchestrator.untrusted import printable

    assert printable(captured.get()) == plain


# -- campaigns ------------------------------------------------------------------------------------------------------


def test_the_matrix_has_every_task_and_arm_that_fits(seen: Seen) -> None:
    text = drawn(campaign_panels.matrix(seen.current, 120), 120)
    for task in seen.current.view.tasks:
        assert task.name in text
    for name in ("baseline", "careful-reader", "fewer-tokens", "evil[reverse] better"):
        assert name in text
    assert "mean" in text and "1/2●" in text
    narrow = drawn(campaign_panels.matrix(seen.current, 36), 36)
    assert narrow.count("reward by task") == 3  # one candidate a block, the baseline beside each
    assert narrow.count("baseli") == 3 and narrow.count("evil") == 1


def test_a_running_verdict_is_no_verdict(seen: Seen) -> None:
    text = drawn(campaign_panels.verdicts(seen.current, 120), 120)
    assert "so far, over 8 rounds" in text and "only the end decides" in text and "inconclusive?" in text
    final = drawn(campaign_panels.verdicts(seen.done, 120), 120)
    assert "better " in final and "better?" not in final and "disqualified" in final
    assert "its log shows an answer that was never given" in final


def test_a_campaign_says_how_to_go_on(seen: Seen) -> None:
    assert f"sia campaign resume {seen.interrupted.view.id}" in drawn(campaign_panels.head(seen.interrupted, 80), 80)
    assert "sia promote" not in drawn(campaign_panels.head(seen.done, 80), 80)  # its baseline is not main any more
    promotable = replace(seen.done, current=True)
    assert "next: sia promote show-more" in drawn(campaign_panels.head(promotable, 80), 80)
    text = drawn(campaign_panels.head(seen.current, 80), 80)
    assert "left: about" in text and "32/64 trials" in text and "7 running" in text


# -- empty states ---------------------------------------------------------------------------------------------------


def test_empty_views_say_what_to_do_next(seen: Seen, shown: Sample) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("promotions", "instances", "campaigns", "events", "orphans", "requests"), ()
    )
    empty = replace(seen.snapshot, supervisor=None, ledger=None, **nothing)
    never = GenerationsNow(0, None, (), ())
    said = {
        "instances": overview_panels.instances(empty, 80),
        "overview": overview_panels.overview(empty, 80),
        "campaigns": campaign_panels.campaigns(empty, 80),
        "generations": generation_panels.generations(never, 80),
        "events": event_panels.events(empty, 80),
    }
    for name, panel in said.items():
        assert "sia campaign run FILE" in drawn(panel, 80), name
    resting = replace(seen.snapshot, instances=())
    text = drawn(overview_panels.instances(resting, 80), 80)
    assert f"sia campaign resume {shown.interrupted}" in text
    assert "nothing" in drawn(generation_panels.code(None, 80), 80)


def test_problems_and_leftovers_are_said(seen: Seen) -> None:
    broken = replace(seen.snapshot, problem="the database can't be read: \x1b[2Jmalformed")
    assert "! the database can't be read: malformed" in drawn(overview_panels.headline(broken, 80), 80)
    left = replace(seen.snapshot, orphans=(OrphanLine("layers", "/x/\x1b[2J"), OrphanLine("instance", HOSTILE_NAME)))
    text = drawn(overview_panels.overview(left, 80), 80)
    assert "left by a dead process: layers /x/" in text and "The next start" in text


# -- hostile texts in values ----------------------------------------------------------------------------------------


def test_texts_of_others_are_harmless_wherever_they_stand(seen: Seen, shown: Sample) -> None:
    event = Event(1, shown.clock.now, HOSTILE, HOSTILE_NAME, HOSTILE)
    asked = RequestLine(1, shown.clock.now, "kill", HOSTILE_NAME, HOSTILE, HOSTILE, 1.0, True, HOSTILE)
    snapshot = replace(seen.snapshot, events=(event,), requests=(asked,))
    rows = (ChangeLine(HOSTILE, "added", False, 5), ChangeLine("odd\udcff", HOSTILE, True, 0))
    code = CodeChange("a" * 40, "b" * 40, (FileChange("x", None, None),), ("+x" * 400,), True)
    live = Live(3, shown.clock.now - 5, "answering", HOSTILE, HOSTILE * 200)
    with shown.clock():
        for width in WIDTHS:
            drawn(event_panels.events(snapshot, width), width)
            drawn(sandbox_panels.sandbox(Changes(rows, True, True, HOSTILE, 5), HOSTILE_NAME, width), width)
            drawn(generation_panels.code(code, width), width)
            drawn(detail_panels.live(live, width), width)
            drawn(detail_panels.live(None, width), width)
            drawn(detail_panels.conversation([Message("person", HOSTILE, 1.0)], HOSTILE * 500, width), width)
            drawn(detail_panels.log(HOSTILE * 50, width), width)
            drawn(detail_panels.effect(HOSTILE, width), width)
            drawn(detail_panels.effect(None, width), width)


def test_a_comparison_of_nothing(seen: Seen) -> None:
    assert "nothing to compare" in drawn(compare_panels.difference(seen.both, 10_000, 80), 80)
    text = drawn(compare_panels.compare(seen.both, 100), 100)
    assert "they first part at iteration 2 left, 2 right" in text and "≠" in text
