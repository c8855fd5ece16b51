"""What every view has at its top, and the instances. Pure functions from values to Rich renderables.

All panels keep to these rules: no more than `width` columns; meaning is in words and signs, colour only adds to it (the
terminal's own 16 colours, so that light and dark both work); every text that others wrote is made harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.campaign_view import RESUMABLE
from orchestrator.cli.promote_lines import SAYS
from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.columns import Column, table
from orchestrator.watch.values import CampaignLine, Event, Instance, PromotionLine, Snapshot

AT_ONCE = 12  # events in the overview


def _short(instance: Instance) -> str:
    """What a person types to name it."""
    return "main" if instance.kind == "main" else marks.name(instance.id, 40)


def _state(instance: Instance) -> Text:
    words = marks.name(instance.state, 20)
    if instance.state in ("quiet", "waiting") and instance.quiet is not None:
        words = f"{'waits' if words == 'waiting' else words} {marks.rough(instance.quiet)}"
    return Text(words, marks.style_of(instance.state))


def _time(instance: Instance) -> Text:
    text = marks.span(instance.elapsed)
    style = "yellow" if instance.used is not None and instance.used > 0.8 else ""
    return Text(f"{text}/{marks.span(instance.limit)}" if instance.limit else text, style)


def _rate(instance: Instance) -> float | None:
    """Tokens per second of late; of an instance that was just met, since its start."""
    recent = instance.token_history[-5:]
    if recent:
        return sum(recent) / len(recent)
    return instance.tokens / instance.elapsed if instance.elapsed > 0 else None


def _limit_bar(instance: Instance) -> Text:
    if instance.used is None:
        return Text(marks.UNKNOWN, "dim")
    return marks.bar(instance.used, 10, "yellow" if instance.used > 0.8 else "green")


COLUMNS: tuple[Column[Instance], ...] = (
    Column("mark", "", lambda one: marks.sign(one.state), 1),
    Column("id", "instance", lambda one: Text(_short(one), "bold"), 10, sort=lambda one: one.id),
    Column(
        "candidate",
        "arm",
        lambda one: Text(marks.name(one.candidate)),
        10,
        flexible=True,
        sort=lambda one: one.candidate,
        weight=2,
    ),
    Column(
        "task",
        "task",
        lambda one: Text(marks.name(one.task)),
        10,
        flexible=True,
        sort=lambda one: one.task,
        weight=2,
    ),
    Column("repeat", "#", lambda one: Text(str(one.repeat or "")), 2, right=True),
    Column("state", "state", _state, 9, sort=lambda one: one.state),
    Column("iteration", "iter", lambda one: Text(str(one.iteration)), 5, right=True, sort=lambda one: one.iteration),
    Column("action", "last", lambda one: Text(marks.name(one.last_action, 20)), 8, flexible=True),
    Column("tokens", "tok", lambda one: Text(marks.count(one.tokens)), 5, right=True, sort=lambda one: one.tokens),
    Column("time", "time", _time, 8, right=True, sort=lambda one: one.elapsed),
    Column(
        "cost",
        "cost",
        lambda one: Text(marks.money(one.cost)),
        7,
        right=True,
        from_width=100,
        sort=lambda one: one.cost,
    ),
    Column(
        "cpu",
        "cpu",
        lambda one: Text(marks.percent(one.cpu_percent)),
        5,
        right=True,
        from_width=100,
        sort=lambda one: one.cpu_percent,
    ),
    Column(
        "memory",
        "mem",
        lambda one: Text(marks.megabytes(one.memory_mb)),
        6,
        right=True,
        from_width=110,
        sort=lambda one: one.memory_mb,
    ),
    Column(
        "disk",
        "disk",
        lambda one: Text(marks.megabytes(one.disk_mb)),
        6,
        right=True,
        from_width=120,
        sort=lambda one: one.disk_mb,
    ),
    Column("rate", "tok/s", lambda one: Text(marks.count(_rate(one))), 6, right=True, from_width=130, sort=_rate),
    Column("limit", "limit", _limit_bar, 10, from_width=145, sort=lambda one: one.used),
    Column(
        "cpu_line",
        "cpu, last minute",
        lambda one: Text(marks.sparkline(one.cpu_history, 20, 100), "green"),
        20,
        right=True,
        from_width=170,
    ),
)


def headline(snapshot: Snapshot, width: int) -> Text:
    """Two lines: who supervises and what main is; how much runs, at which rate, at what cost."""
    return Text("\n", no_wrap=True).join([marks.cut(_first(snapshot), width), marks.cut(_second(snapshot), width)])


def _first(snapshot: Snapshot) -> Text:
    held, ledger = snapshot.supervisor, snapshot.ledger
    pieces: list[Text | str] = [Text(marks.name(snapshot.checkout.name, 30), "bold")]
    if ledger is not None:
        style = {"STABLE": "green", "SAFE": "red", "HOLD": "yellow", "ROLLBACK": "yellow"}.get(ledger.state, "cyan")
        named = f"generation {ledger.generation} ({marks.name(ledger.candidate, 30)}) "
        pieces.append(Text.assemble(named, (ledger.state, style)))
        pieces.append(Text("on probation", "yellow") if ledger.probation else "")
    if held is not None:
        pieces.append(f"supervisor {held.pid} up {marks.span(snapshot.time - held.since)}")
    else:
        pieces.append(Text("no supervisor", "dim"))
    pieces += [Text(_promotion(one), "cyan") for one in snapshot.promotions if one.open]
    if ledger is not None and ledger.cause:
        pieces.append(Text(one_line(ledger.cause), "yellow"))
    return Text(" ").append_text(marks.join(pieces))


def _second(snapshot: Snapshot) -> Text:
    if snapshot.problem:
        return Text(f" ! {one_line(snapshot.problem, 300)}; tried again", "bold red")
    if not snapshot.instances:
        return Text(" nothing runs now", "dim")
    states = Counter(one.state for one in snapshot.instances)
    words = [Text(f"{number} {marks.name(state, 20)}", marks.style_of(state)) for state, number in states.items()]
    pieces: list[Text | str] = [marks.join(words, ", ")]
    pieces += [
        Text(f"{one.id} {one.done}/{one.trials}", "bold") for one in snapshot.campaigns if one.state == "running"
    ]
    pieces += [f"{name} {amount}" for name, amount in rates(snapshot)]
    return Text(" ").append_text(marks.join(pieces))


def rates(snapshot: Snapshot) -> Sequence[tuple[str, str]]:
    """(name, amount) of the totals that `headline` shows."""
    running = snapshot.instances
    costs = [one.cost for one in running if one.iteration]  # before its first answer nothing was spent
    found = [rate for one in running if (rate := _rate(one)) is not None]
    cpu = [one.cpu_percent for one in running if one.cpu_percent is not None]
    memory = [one.memory_mb for one in running if one.memory_mb is not None]
    shown = [("cost", marks.money(None if None in costs else sum(cost for cost in costs if cost is not None)))]
    shown.append(("tok/s", marks.count(sum(found)) if found else marks.UNKNOWN))
    shown.append(("cpu", marks.percent(sum(cpu)) if cpu else marks.UNKNOWN))
    shown.append(("mem", marks.megabytes(sum(memory)) if memory else marks.UNKNOWN))
    return shown


def instances(snapshot: Snapshot, width: int) -> RenderableType:
    """The table of instances; what to do next where there are none."""
    return table(COLUMNS, snapshot.instances, width) if snapshot.instances else nothing_runs(snapshot)


def nothing_runs(snapshot: Snapshot) -> Text:
    """What to do next, where nothing runs."""
    steps = []
    left = next((one for one in snapshot.campaigns if one.state in RESUMABLE), None)
    if left is not None:
        steps.append((f"sia campaign resume {left.id}", f"finish it: {left.done} of {left.trials} trials are done"))
    better = next(
        ((one.id, arm) for one in snapshot.campaigns[:1] for arm, word in one.verdicts if word == "better"), None
    )
    if better is not None:
        steps.append((f"sia promote {marks.name(better[1], 40)}", f"campaign {better[0]} found it better"))
    if snapshot.campaigns:
        steps.append((f"sia campaign show {snapshot.campaigns[0].id}", "what the last campaign concluded"))
    steps.append(("sia campaign run FILE", "judge candidates (docs/campaign-file.md)"))
    if snapshot.supervisor is None:
        steps.append(("sia supervise", "keep the main instance alive"))
    if not snapshot.campaigns:
        steps.append(("sia demo", "see all of it on examples, in under two minutes"))
    return marks.next_steps("No instance runs. It appears here as soon as one does.", *steps)


def instance_head(instance: Instance, width: int) -> RenderableType:
    """One instance in three lines: who, how far, at what cost, with sparklines of cpu and tokens."""
    who: list[Text | str] = [Text(marks.name(instance.id, 60), "bold")]
    if instance.kind == "main":
        who.append(f"main, {marks.name(instance.label, 80)}")
    else:
        named = (marks.name(instance.task), marks.name(instance.candidate), f"repeat {instance.repeat}")
        who += [*named, f"campaign {marks.name(instance.campaign, 20)}"]
    quiet = "" if instance.quiet is None else f" {marks.span(instance.quiet)} ago"
    last = f"last: {marks.name(instance.last_action, 30)}{quiet}" if instance.last_action else ""
    said = Text.assemble(marks.sign(instance.state), " ", _state(instance))
    rate = _rate(instance)
    far: list[Text | str] = [said, f"iteration {instance.iteration}", last]
    far.append(f"{marks.count(instance.tokens)} tokens" + (f" ({marks.count(rate)}/s)" if rate is not None else ""))
    far.append(f"cost {'unknown' if instance.cost is None else marks.money(instance.cost)}")
    used: list[Text | str] = []
    if instance.used is not None:
        style = "yellow" if instance.used > 0.8 else "green"
        whole = f" {marks.span(instance.elapsed)} of {marks.span(instance.limit)}"
        used.append(Text("time ").append_text(marks.bar(instance.used, 12, style)).append(whole))
    else:
        used.append(f"time {marks.span(instance.elapsed)}")
    cpu = Text(f"cpu {marks.percent(instance.cpu_percent)}")
    if width >= 100 and instance.cpu_history:
        cpu.append(f" {marks.sparkline(instance.cpu_history, 20, 100).lstrip()}", "green")
    used += [cpu, f"memory {marks.megabytes(instance.memory_mb)}", f"disk {marks.megabytes(instance.disk_mb)}"]
    lines = [marks.cut(Text(" ").append_text(marks.join(pieces)), width) for pieces in (who, far, used)]
    return Text("\n", no_wrap=True).join(lines)


CAMPAIGNS: tuple[Column[CampaignLine], ...] = (
    Column("mark", "", lambda one: marks.sign(one.state), 1),
    Column("id", "campaign", lambda one: Text(one.id, "bold"), 8, sort=lambda one: one.id),
    Column("state", "state", lambda one: Text(one.state, marks.style_of(one.state)), 11, sort=lambda one: one.state),
    Column("bar", "progress", lambda one: marks.bar(one.done / max(1, one.trials), 12), 12, from_width=70),
    Column("done", "trials", lambda one: Text(f"{one.done}/{one.trials}"), 9, right=True, sort=lambda one: one.done),
    Column("created", "started", lambda one: Text(marks.clock(one.created)), 11, sort=lambda one: one.created),
    Column("verdicts", "verdicts", lambda one: _verdicts(one), 12, flexible=True, weight=3),
    Column("file", "file", lambda one: Text(marks.name(one.file)), 14, flexible=True, from_width=120),
)


def _verdicts(line: CampaignLine) -> Text:
    from orchestrator.panels import STYLES

    if not line.verdicts:
        said = one_line(line.error, 200) if line.error else ""
        return Text(said or (f"{line.running} running" if line.running else marks.UNKNOWN), "dim")
    pieces = [Text(f"{marks.name(arm, 30)} ").append(word, STYLES.get(word, "")) for arm, word in line.verdicts]
    return marks.join(pieces, ", ")


def _promotion(one: PromotionLine) -> str:
    what = f"generation {one.new}" if one.new is not None else one.new_commit[:12]
    return f"{one.kind} {one.id} ({marks.name(one.candidate, 30)}) to {what}, {one.tries} tries left"


def event_line(event: Event, width: int, now: float) -> Text:
    """One event in a line."""
    line = Text(f" {marks.clock(event.time, now):<11} ", "dim")
    line.append(f"{marks.name(event.kind, 12):<11} ", "bold")
    return marks.cut(line.append(event_text(event)), width)


def event_text(event: Event) -> str:
    """What happened, to what: the subject is left out where the text names it."""
    text = one_line(event.text, 400)
    return text if one_line(event.subject, 200) in text else one_line(f"{event.subject}: {text}", 400)


def overview(snapshot: Snapshot, width: int) -> RenderableType:
    """Headline, instances, campaigns, the last events: what `sia status` shows on a terminal."""
    parts: list[RenderableType] = [headline(snapshot, width)]
    if snapshot.ledger is not None and SAYS.get(snapshot.ledger.state):
        parts.append(Text(f" {SAYS[snapshot.ledger.state]}", "yellow"))
    parts += [Text(), instances(snapshot, width)]
    if snapshot.orphans:
        parts.append(Text())
        parts += [
            marks.cut(Text(f" x left by a dead process: {one.kind} {one_line(one.what)}", "red"), width)
            for one in snapshot.orphans[:8]
        ]
        parts.append(Text(" The next start of `sia supervise` or of a campaign clears it.", "dim"))
    elif snapshot.supervisor is None and not snapshot.instances:
        parts += [
            Text(),
            marks.cut(Text(" Nothing is left of a killed supervisor: no process, mount or layer.", "dim"), width),
        ]
    if snapshot.campaigns:
        parts += [Text(), table(CAMPAIGNS, snapshot.campaigns[:5], width)]
    if snapshot.events:
        parts += [Text(), Text(" last events", "bold")]
        parts += [event_line(event, width, snapshot.time) for event in snapshot.events[-AT_ONCE:]]
    return Group(*parts)
