"""Rich renderables of campaigns: for the terminal, the live progress, `sia status` and the dashboard.

Names and details come from other people's branches, tasks and agents: they go through `one_line` and into Text objects,
so that neither terminal sequences nor console markup in them have an effect.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.trial_record import ended_as
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.campaign_view import CampaignView
    from orchestrator.progress import Board

STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "equivalent": "cyan",
    "inconclusive": "yellow",
    "disqualified": "bold magenta",
}


def verdict_table(verdicts: Mapping[str, Mapping[str, Any]], title: str = "") -> RenderableType:
    """Verdicts (`Verdict` as dicts, by candidate) with their numbers, and below it the reasons. Fits 80 columns."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("candidate", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("difference", justify="right", overflow="fold")
    table.add_column("p (Holm)", justify="right", no_wrap=True)
    table.add_column("won/lost/tied", justify="right", no_wrap=True)
    reasons = Table.grid(padding=(0, 1))
    for arm, verdict in verdicts.items():
        name = verdict["verdict"]
        counted = f"{verdict['wins']}/{verdict['losses']}/{verdict['ties']}" if verdict["tasks"] else "–"
        table.add_row(
            Text(one_line(arm, 60)),
            Text(name, style=STYLES.get(name, "")),
            Text(difference(verdict)),
            Text(f"{verdict['p_adjusted']:.3g}" if verdict["p_adjusted"] is not None else "–"),
            Text(counted),
        )
        said = Text("; ".join(one_line(reason, 400) for reason in verdict["reasons"]), overflow="fold")
        reasons.add_row(Text(f"{one_line(arm, 60)}:", style=STYLES.get(name, "")), said)
    return Group(table, reasons)


def difference(verdict: Mapping[str, Any]) -> str:
    """`+0.25 [0.1, 0.4]`; an unbounded side is written −∞ or ∞."""
    if verdict["difference"] is None:
        return "–"
    if verdict["p"] is None:
        return f"{verdict['difference']:+.3f}"
    low = f"{verdict['low']:+.2f}" if verdict["low"] is not None else "−∞"
    high = f"{verdict['high']:+.2f}" if verdict["high"] is not None else "∞"
    return f"{verdict['difference']:+.3f} [{low}, {high}]"


def guardrail_table(verdicts: Mapping[str, Mapping[str, Any]]) -> Table:
    """Each candidate's amounts as a factor of the baseline's."""
    table = Table(title="guardrails (candidate / baseline; ! = worse than tolerated)", title_justify="left")
    table.add_column("candidate", overflow="fold")
    shown = {arm: verdict["guardrails"] for arm, verdict in verdicts.items() if verdict["guardrails"]}
    names = [guardrail["name"] for guardrail in next(iter(shown.values()), ())]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    for arm, guardrails in shown.items():
        cells = [
            Text(factor(guardrail) + ("!" if guardrail["broken"] else ""), "red" if guardrail["broken"] else "")
            for guardrail in guardrails
        ]
        table.add_row(Text(one_line(arm, 60)), *cells)
    return table


def factor(guardrail: Mapping[str, Any]) -> str:
    """A guardrail's ratio in words of one cell."""
    if guardrail["baseline"] is None or guardrail["candidate"] is None:
        return "unknown"
    if guardrail["ratio"] is None:
        return f"0 → {guardrail['candidate']:.4g}"
    return f"{guardrail['ratio']:.2f} ×"


def matrix(view: CampaignView) -> Table:
    """Mean reward of each arm on each task; `…` = trials still to run, `x` = excluded."""
    table = Table(title="mean reward by task", title_justify="left")
    table.add_column("task", overflow="fold")
    for arm in view.arms:
        table.add_column(Text(one_line(arm.name, 40)), justify="right", overflow="fold")
    for task in view.tasks:
        marks = forgeability_mark(view, task.name) + (" (sealed)" if task.split == "sealed" else "")
        table.add_row(Text(one_line(task.name, 60) + marks), *(_cell(view, arm.name, task.name) for arm in view.arms))
    table.caption = "\n".join(forgeability_notes(view)) or None
    return table


def forgeability_mark(view: CampaignView, task: str) -> str:
    """The sign behind a task's name that `forgeability_notes` explains."""
    return " *" if task in view.forgeable else " ?" if task in view.unchecked else ""


def forgeability_notes(view: CampaignView) -> list[str]:
    """What must be said of rewards that can't be trusted, or that nobody has tried to forge."""
    notes = []
    if view.forgeable:
        notes.append("* forgeable: a hostile candidate could give itself this reward")
    if view.unchecked:
        notes.append("? unchecked: nobody has tried to forge this reward (sia task check --adversarial)")
    return notes


def _cell(view: CampaignView, arm: str, task: str) -> Text:
    trials = view.cell(arm, task)
    rewards = [trial.reward for trial in trials if trial.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    text = f"{mean:.2f}" if mean is not None else ("x" if trials and trials[0].outcome == "invalid" else "")
    text += "…" if view.state != "done" and any(trial.state != "done" for trial in trials) else ""
    style = "" if mean is None else ("green" if mean > 0.99 else "red" if mean < 0.01 else "yellow")
    return Text(text or "–", style=style)


def trial_table(view: CampaignView) -> Table:
    """Every trial of the plan, in its order."""
    table = Table(title="trials", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("trial", "arm", "task", "rep", "result", "reward", "iter", "tokens", "sec"):
        number = name in ("rep", "reward", "iter", "tokens", "sec")
        table.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=number or name == "trial"
        )
    for trial in view.trials:
        record = trial.record or {}
        result = ended_as(trial.outcome or trial.state, trial.detail)
        if trial.disqualified:
            result += f"; disqualified: {one_line(trial.disqualified, 200)}"
        table.add_row(
            Text(trial.id),
            Text(one_line(trial.arm, 40)),
            Text(one_line(trial.task, 40)),
            Text(str(trial.repeat)),
            Text(result),
            Text(f"{trial.reward:.3g}" if trial.reward is not None else "–"),
            Text(str(record.get("iterations", "–"))),
            Text(str(record["tokens"]) if record.get("tokens") is not None else "–"),
            Text(f"{record['seconds']:.1f}" if "seconds" in record else "–"),
        )
    return table


def campaign_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line per campaign: id, when, state, counts, verdicts."""
    table = Table()
    for name in ("campaign", "started", "state", "trials", "verdicts"):
        table.add_column(name, overflow="fold", no_wrap=name in ("campaign", "started"))
    for row in rows:
        verdicts = Text()
        for number, (arm, name) in enumerate(row["verdicts"].items()):
            verdicts.append("" if not number else ", ").append(f"{one_line(arm, 40)} ").append(
                name, STYLES.get(name, "")
            )
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"]))
        table.add_row(row["id"], started, Text(one_line(row["state"])), f"{row['done']}/{row['trials']}", verdicts)
    return table


def running_panel(board: Board) -> RenderableType:
    """A campaign at work: the whole, its arms so far, its trials right now."""
    elapsed = time.monotonic() - board.began
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, board.expected), completed=board.done, width=30)
    head.add_row(
        Text(f"campaign {board.campaign}"), bar, Text(f"{board.done}/{board.expected} trials, {elapsed:.0f} s")
    )
    arms = Table.grid(padding=(0, 2))
    for arm, total in board.total.items():
        rewards = board.rewards.get(arm, [])
        so_far = f"{board.finished[arm]}/{total}  mean reward " + (
            f"{sum(rewards) / len(rewards):.2f}" if rewards else "–"
        )
        odd = ", ".join(
            f"{board.outcomes[arm, name]} {name}"
            for name in ("limit", "crashed", "invalid")
            if board.outcomes[arm, name]
        )
        state = Text("disqualified", STYLES["disqualified"]) if arm in board.out else Text(odd, "dim")
        arms.add_row(Text(one_line(arm, 40)), Text(so_far), Text(f"{board.tokens[arm]} tokens", "dim"), state)
    trials = Table.grid(padding=(0, 2))
    for id, running in list(board.running.items()):
        usage = running.usage
        spent = f"{usage.iterations} iterations, {usage.tokens} tokens" if usage else "starting"
        label = f"{running.trial.task} × {running.trial.arm} × {running.trial.repeat}"
        trials.add_row(
            Text(id, "dim"), Text(one_line(label, 70)), Text(spent), Text(f"{time.monotonic() - running.since:.0f} s")
        )
    return Group(head, arms, trials)
