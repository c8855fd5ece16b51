"""The ledger of generations, its promotions, the code that each changed."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.cli.promote_lines import SAYS
from orchestrator.ledger_values import Generation, Promotion
from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.columns import Column, table
from orchestrator.watch.generations_feed import CodeChange, GenerationsNow

_STATES = {"good": "green", "bad": "red", "trial": "cyan"}
_OUTCOMES = {"healthy": "green", "rolled_back": "red", "given_up": "yellow", "withdrawn": "yellow", "open": "cyan"}
FILES = 40  # files that are listed above a diff


def _why(one: Generation) -> Text:
    text = Text(one_line(one.cause, 300) if one.cause else "", "red")
    if one.accepted:
        text.append(" · " if text else "", "dim").append(f"accepted: {one_line(one.accepted, 200)}", "yellow")
    return text


def _from(one: Generation) -> Text:
    return Text(f"campaign {one.campaign}" if one.campaign else "the checkout" if one.number == 1 else marks.UNKNOWN)


GENERATIONS: tuple[Column[Generation], ...] = (
    Column("number", "gen", lambda one: Text(str(one.number), "bold"), 4, right=True, sort=lambda one: one.number),
    Column("state", "state", lambda one: Text(one_line(one.state, 8), _STATES.get(one.state, "")), 5),
    Column("commit", "commit", lambda one: Text(one.commit[:10], "cyan"), 10),
    Column("candidate", "candidate", lambda one: Text(marks.name(one.candidate)), 14, flexible=True),
    Column("parent", "from", lambda one: Text(str(one.parent) if one.parent else marks.UNKNOWN), 4, right=True),
    Column("created", "since", lambda one: Text(marks.clock(one.created)), 11, sort=lambda one: one.created),
    Column("source", "judged by", _from, 14, from_width=100),
    Column("why", "why", _why, 12, flexible=True, weight=3),
)


def _target(one: Promotion) -> str:
    return str(one.new) if one.new is not None else one.new_commit[:10]


def _outcome(one: Promotion) -> Text:
    word = one.outcome or "open"
    return Text(word.replace("_", " "), _OUTCOMES.get(word, ""))


def _boots(one: Promotion) -> Text:
    return Text(f"{one.launches} of {one.launches + one.tries}")


PROMOTIONS: tuple[Column[Promotion], ...] = (
    Column("id", "no", lambda one: Text(str(one.id), "bold"), 4, right=True, sort=lambda one: one.id),
    Column("outcome", "outcome", _outcome, 11),
    Column("kind", "kind", lambda one: Text(one_line(one.kind, 12)), 9),
    Column("candidate", "candidate", lambda one: Text(marks.name(one.candidate)), 12, flexible=True),
    Column("step", "from → to", lambda one: Text(f"{one.old} → {_target(one)}"), 14),
    Column("boots", "boots", _boots, 6, right=True, from_width=90),
    Column("created", "when", lambda one: Text(marks.clock(one.created)), 11, sort=lambda one: one.created),
    Column("approved", "by", lambda one: Text(marks.name(one.approved, 10)), 7, from_width=110),
    Column("cause", "cause", lambda one: Text(one_line(one.cause or "", 300)), 10, flexible=True, weight=3),
)


def head(now: GenerationsNow, width: int) -> RenderableType:
    """What main is, and which change is under way."""
    standing = now.standing
    if standing is None:
        return _nothing()
    current = standing.generation
    style = {"STABLE": "green", "SAFE": "red", "HOLD": "yellow", "ROLLBACK": "yellow"}.get(standing.state, "cyan")
    pieces: list[Text | str] = [Text(f"main is generation {current.number}", "bold"), marks.name(current.candidate, 40)]
    pieces += [Text(standing.state, style), f"last good: {standing.last_good.number}"]
    pieces.append(Text("on probation after a rollback", "yellow") if standing.probation else "")
    pieces.append(Text(f"{standing.crashes} crashes in a row", "red") if standing.crashes else "")
    lines = [Text(" ").append_text(marks.join(pieces))]
    said = standing.cause or SAYS.get(standing.state, "")
    if standing.promotion is not None:
        one = standing.promotion
        what = f"{one.kind} {one.id} ({marks.name(one.candidate, 40)}): {one.tries} boots left"
        said = f"{what} · {said}" if said else what
    lines.append(Text(f" {one_line(said, 300)}", "cyan") if said else Text(_next(now), "dim"))
    return Text("\n", no_wrap=True).join([marks.cut(each, width) for each in lines])


def _next(now: GenerationsNow) -> str:
    good = [one.number for one in now.generations if one.state == "good"]
    back = " · sia rollback: the good one before" if len(good) > 1 else ""
    return f" sia promote NAME: one judged better{back}"


def _nothing() -> Text:
    return marks.next_steps(
        "There is no generation yet. The first one is your checkout's HEAD, when something is started first.",
        ("sia campaign run FILE", "judge candidates against it"),
        ("sia supervise", "keep the main instance alive"),
    )


def code(change: CodeChange | None, width: int, *, lines: int | None = None) -> RenderableType:
    """Files with counts, then the diff."""
    if change is None:
        return Text(" The first generation: there is nothing before it to compare with.", "dim")
    added = sum(one.added or 0 for one in change.files)
    removed = sum(one.removed or 0 for one in change.files)
    pieces: list[Text | str] = [Text(f"{change.old[:10]} → {change.new[:10]}", "cyan")]
    pieces.append(f"{len(change.files)} file{'' if len(change.files) == 1 else 's'}")
    pieces += [Text(f"+{added}", "green"), Text(f"-{removed}", "red")]
    parts = [marks.cut(Text(" ").append_text(marks.join(pieces)), width)]
    for one in change.files[:FILES]:
        line = Text(f"   {'bin' if one.added is None else f'+{one.added}':>7} ", "green")
        line.append(f"{'' if one.removed is None else f'-{one.removed}':>6}  ", "red")
        parts.append(marks.cut(line.append(one.path, "bold"), width))
    if len(change.files) > FILES:
        parts.append(Text(f"   … {len(change.files) - FILES} more files", "dim"))
    parts.append(Text())
    shown = change.lines if lines is None else change.lines[:lines]
    parts += [marks.cut(Text(f" {line}", diff_style(line)), width) for line in shown]
    if change.cut or len(shown) < len(change.lines):
        parts.append(Text(" … there is more: git diff shows it", "dim"))
    if not change.lines:
        parts.append(Text(" the code is the same", "dim"))
    return Group(*parts)


def diff_style(line: str) -> str:
    """The accent of a line of a diff."""
    if line.startswith(("diff ", "index ", "+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def generations(now: GenerationsNow, width: int) -> RenderableType:
    """All of it but the code; what to do next where there is no generation."""
    if now.standing is None:
        return _nothing()
    parts: list[RenderableType] = [head(now, width), Text(), table(GENERATIONS, now.generations, width), Text()]
    if now.promotions:
        parts += [Text(" promotions and rollbacks", "bold"), table(PROMOTIONS, now.promotions, width)]
    else:
        parts.append(Text(" Nothing was promoted yet.", "dim"))
    return Group(*parts)
