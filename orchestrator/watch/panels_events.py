"""What happened, newest last; and the steps that people asked for."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.columns import Column, table
from orchestrator.watch.panels_overview import event_text
from orchestrator.watch.values import Event, RequestLine, Snapshot

_STYLES = {"rollback": "yellow", "hold": "yellow", "verdict": "green", "promotion": "cyan", "generation": "cyan"}

EVENTS: tuple[Column[Event], ...] = (
    Column("time", "time", lambda one: Text(marks.clock(one.time), "dim"), 11, sort=lambda one: one.id),
    Column(
        "kind",
        "kind",
        lambda one: Text(marks.name(one.kind, 20), f"bold {_STYLES.get(one.kind, '')}".strip()),
        11,
        sort=lambda one: one.kind,
    ),
    Column("text", "what happened", lambda one: Text(event_text(one)), 20, flexible=True),
)


def _answer(one: RequestLine) -> Text:
    if one.result is None:
        return Text("taken" if one.taken else "nobody has taken it yet", "yellow")
    return Text(one_line(one.result, 300), "red" if one.refused else "green")


REQUESTS: tuple[Column[RequestLine], ...] = (
    Column("time", "asked", lambda one: Text(marks.clock(one.time), "dim"), 11),
    Column("kind", "step", lambda one: Text(one_line(one.kind, 20).replace("_", " "), "bold"), 13),
    Column("subject", "of", lambda one: Text(marks.name(one.subject, 40)), 10, flexible=True),
    Column("by", "by", lambda one: Text(marks.name(one.asked_by, 20)), 8, from_width=90),
    Column("result", "result", _answer, 20, flexible=True, weight=4),
)


def events(snapshot: Snapshot, width: int, *, last: int | None = None) -> RenderableType:
    """The list, with requests of the last minute below it; a sentence where nothing has happened."""
    shown = snapshot.events if last is None else snapshot.events[-last:] if last else ()
    parts: list[RenderableType] = []
    if shown:
        parts.append(table(EVENTS, shown, width))
    else:
        what = "Nothing has happened yet. Campaigns, promotions and rollbacks leave their traces here."
        parts.append(marks.next_steps(what, ("sia campaign run FILE", "start a campaign")))
    if snapshot.requests:
        parts += [Text(), Text(" steps that people asked for", "bold"), table(REQUESTS, snapshot.requests, width)]
    return Group(*parts)
