"""`sia watch`: the live dashboard; off a terminal, or with `--once`, the same panels as plain text."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from orchestrator.errors import UsageError
from orchestrator.home import Home, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

View = Literal["instances", "campaign", "detail", "compare", "generations", "events", "sandbox"]
LINES = 60  # of each text of an iteration, where it is printed


def watch(
    ident: Annotated[str, Parameter(show_default=False)] = "",
    other: Annotated[str, Parameter(show_default=False)] = "",
    /,
    *,
    view: View | None = None,
    iteration: int | None = None,
    once: bool = False,
    read_only: bool = False,
    no_mouse: bool = False,
) -> int:
    """Watch the instances, understand what they do, step in.

    Several can watch at the same time, from any terminal; none slows what runs. Off a terminal it prints once.

    Parameters
    ----------
    ident
        What to show: an instance or a trial (detail, compare, sandbox), a campaign (campaign). Default: `main`, or the
        newest campaign.
    other
        The trial to compare with (default: the baseline's of the same task and repeat).
    view
        The view to begin with (default: instances; with an id: detail or campaign, with two: compare).
    iteration
        With --once: the iteration to show, counted over inferences alone (default: the last).
    once
        Print it as text and end.
    read_only
        Refuse every step that would change something.
    no_mouse
        Leave the mouse to the terminal.
    """
    home = locate()
    moving = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if moving and not once:
        from orchestrator.watch.app import run

        chosen = view or _default(home, ident, other)
        return run(home, chosen, f"{ident} {other}".strip(), read_only=read_only, mouse=not no_mouse)
    return show(home, view, ident, other, iteration)


def show(home: Home, view: View | None, ident: str, other: str = "", iteration: int | None = None) -> int:
    """Print a view once. Raises UsageError for what does not exist."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not sys.stdout.isatty() and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a log file in another encoding is no reason to fail
    for part in panels(home, view or _default(home, ident, other), ident, other, iteration, console.width):
        console.print(part)
    return 0


def _default(home: Home, ident: str, other: str) -> View:
    """The view for what was named."""
    from orchestrator import database
    from orchestrator.campaign_view import resolve

    if not ident:
        return "instances"
    if other:
        return "compare"
    connection = database.look(home.database)
    if connection is None:
        return "detail"
    with closing(connection):
        try:
            resolve(connection, ident)
        except UsageError:
            return "detail"
    return "campaign"


def panels(
    home: Home, view: View, ident: str, other: str, iteration: int | None, width: int
) -> Iterator[RenderableType]:
    """The panels of a view."""
    if view in ("instances", "events"):
        yield from _overview(home, view, ident, width)
    elif view == "campaign":
        yield _campaign(home, ident, width)
    elif view == "detail":
        yield from _detail(home, ident or "main", iteration, width)
    elif view == "compare":
        yield _compare(home, ident, other, width)
    elif view == "generations":
        yield from _generations(home, ident, width)
    else:
        yield _sandbox(home, ident or "main", width)


def _overview(home: Home, view: View, ident: str, width: int) -> Iterator[RenderableType]:
    from orchestrator.watch import panels_events, panels_overview
    from orchestrator.watch.feed import Feed

    with Feed(home) as feed:
        feed.poll()
        snapshot = feed.poll()  # the second one has looked for what dead owners left
    if view == "events":
        yield panels_events.events(snapshot, width)
    elif not ident:
        yield panels_overview.overview(snapshot, width)
    else:
        found = [one for one in snapshot.instances if one.id.startswith(ident) or (ident == "main" == one.kind)]
        if not found:
            raise UsageError(f"no instance {ident!r} runs", fix="`sia watch --once` lists what runs")
        for one in found:
            yield panels_overview.instance_head(one, width)


def _campaign(home: Home, ident: str, width: int) -> RenderableType:
    from orchestrator.watch import panels_campaign
    from orchestrator.watch.campaign_feed import CampaignFeed
    from orchestrator.watch.feed import Feed

    if not ident:
        with Feed(home) as overview:
            snapshot = overview.poll()
        if not snapshot.campaigns:
            return panels_campaign.campaigns(snapshot, width)
    with closing(CampaignFeed(home, ident or "last")) as feed:
        return panels_campaign.campaign(feed.poll(), width, trials=True)


def _detail(home: Home, ident: str, n: int | None, width: int) -> Iterator[RenderableType]:
    from orchestrator.watch import panels_detail, panels_overview
    from orchestrator.watch.feed import Feed
    from orchestrator.watch.iterations import Iterations

    with ExitStack() as stack:
        feed = stack.enter_context(Feed(home))
        found = stack.enter_context(closing(Iterations(home, ident)))
        running = feed.poll().instance(found.trial or found.id)
        if running is not None:
            yield panels_overview.instance_head(running, width)
        if n is not None and not 1 <= n <= found.count:
            raise UsageError(f"{found.id} has no iteration {n}", fix=f"name one from 1 to {found.count}")
        yield panels_detail.iteration(found, n or found.count, width, lines=LINES)


def _compare(home: Home, left: str, right: str, width: int) -> RenderableType:
    from orchestrator.watch import panels_compare
    from orchestrator.watch.compare import Comparison, partner
    from orchestrator.watch.iterations import Iterations

    if not left:
        raise UsageError("which trial?", fix="sia watch --once --view compare TRIAL [OTHER]")
    if not right:
        with closing(Iterations(home, left)) as found:
            right = partner(home, found.id) or ""
            if not right:
                raise UsageError(f"{found.id} has nothing to be compared with", fix="name another trial behind it")
    with closing(Comparison(home, left, right)) as comparison:
        comparison.refresh()
        return panels_compare.compare(comparison, width)


def _generations(home: Home, ident: str, width: int) -> Iterator[RenderableType]:
    from orchestrator.watch import panels_generations
    from orchestrator.watch.generations_feed import GenerationsFeed

    with closing(GenerationsFeed(home)) as feed:
        now = feed.poll()
        yield panels_generations.generations(now, width)
        if ident:
            if not ident.isdecimal():
                raise UsageError(f"{ident!r} is no generation", fix="name its number")
            yield panels_generations.code(feed.change(int(ident)), width)


def _sandbox(home: Home, ident: str, width: int) -> RenderableType:
    from orchestrator.watch import changes, panels_sandbox
    from orchestrator.watch.feed import Feed

    with Feed(home) as feed:
        instances = feed.poll().instances
    running = [one for one in instances if one.id.startswith(ident) or (ident == "main" == one.kind)]
    one = running[0] if len(running) == 1 else next((each for each in running if each.id == ident), None)
    return panels_sandbox.sandbox(changes.look(home, ident, one), one.id if one else ident, width)
