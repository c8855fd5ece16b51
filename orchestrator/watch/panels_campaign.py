"""A campaign: progress, matrix of rewards, running verdicts, trials."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.campaign_view import BASELINE, RESUMABLE, TaskRow, TrialRow
from orchestrator.panels import STYLES, difference, factor, forgeability_mark, forgeability_notes
from orchestrator.trial_record import ended_as
from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.campaign_feed import CampaignNow
from orchestrator.watch.columns import Column, fitted, line, table
from orchestrator.watch.panels_overview import CAMPAIGNS
from orchestrator.watch.values import Snapshot

ARM_LEAST, ARM_MOST = 8, 22  # width of an arm's column of the matrix
TASK_MOST = 30
PLOT_LEAST, PLOT_MOST = 15, 61


def _record(trial: TrialRow, name: str) -> Any:
    return (trial.record or {}).get(name)


def _result(trial: TrialRow) -> Text:
    word = _word(trial)
    text = Text(ended_as(word, trial.detail if trial.state == "done" else None, 200))
    text.stylize(marks.style_of(word), 0, len(word))
    if trial.disqualified:
        text.append(f"; disqualified: {one_line(trial.disqualified, 300)}", STYLES["disqualified"])
    return text


def _word(trial: TrialRow) -> str:
    return trial.outcome if trial.state == "done" and trial.outcome else trial.state


def _amount(name: str) -> Any:
    return lambda trial: Text(marks.count(_record(trial, name)))


def _value(name: str) -> Any:
    return lambda trial: _record(trial, name)


def _reward(trial: TrialRow) -> Text:
    return Text(marks.UNKNOWN if trial.reward is None else f"{trial.reward:.2f}", _heat(trial.reward))


def _took(trial: TrialRow) -> Text:
    return Text(marks.span(_record(trial, "seconds")))


TRIALS: tuple[Column[TrialRow], ...] = (
    Column("mark", "", lambda one: marks.sign(_word(one)), 1),
    Column("id", "trial", lambda one: Text(one.id, "bold"), 10, sort=lambda one: one.position),
    Column("arm", "arm", lambda one: Text(marks.name(one.arm)), 11, flexible=True, sort=lambda one: one.arm),
    Column("task", "task", lambda one: Text(marks.name(one.task)), 12, flexible=True, sort=lambda one: one.task),
    Column("repeat", "#", lambda one: Text(str(one.repeat)), 2, right=True),
    Column("reward", "reward", _reward, 6, right=True, sort=lambda one: one.reward),
    Column("iterations", "iter", _amount("iterations"), 5, right=True, sort=_value("iterations")),
    Column("tokens", "tok", _amount("tokens"), 6, right=True, sort=_value("tokens")),
    Column("seconds", "time", _took, 6, right=True, sort=_value("seconds")),
    Column(
        "cost",
        "cost",
        lambda one: Text(marks.money(_record(one, "cost")) if one.record else marks.UNKNOWN),
        7,
        right=True,
        from_width=110,
        sort=_value("cost"),
    ),
    Column("result", "result", _result, 9, flexible=True, weight=3, sort=_word),
    Column("attempt", "try", lambda one: Text(str(one.attempt)), 3, right=True, from_width=130),
)


def head(now: CampaignNow, width: int) -> RenderableType:
    """State, a bar, trials done, time and cost so far and left."""
    view = now.view
    state = Text.assemble(marks.sign(view.state), " ", (one_line(view.state, 20), marks.style_of(view.state)))
    who: list[Text | str] = [Text(view.id, "bold"), state, marks.name(view.file), f"baseline {view.baseline[:12]}"]
    who.append(f"started {marks.clock(view.created)}")
    out = {trial.arm for trial in view.trials if trial.disqualified}
    skipped = sum(trial.state == "planned" and trial.arm in out for trial in view.trials)
    done, total = view.done, len(view.trials) - skipped
    odd = Counter(trial.outcome for trial in view.trials if trial.outcome in ("limit", "crashed", "invalid"))
    amounts: list[Text | str] = [
        f"{done}/{total} trials",
        Text(f"{now.running} running", "green") if now.running else "",
    ]
    amounts += [Text(f"{number} {word}", marks.style_of(word or "")) for word, number in odd.items()]
    amounts.append(Text(f"{skipped} of disqualified ones not run", "dim") if skipped else "")
    progress = Text(" ").append_text(marks.bar(done / max(1, total), max(10, min(60, width - 50)), "green"))
    spent: list[Text | str] = [f"at work {marks.span(now.seconds)}", f"{marks.count(now.tokens)} tokens"]
    spent.append(f"cost {'unknown' if now.cost is None else marks.money(now.cost)}")
    if view.state not in ("done", "failed") and done < total:
        spent.append(Text(_left(now), "bold"))
    lines = [
        Text(" ").append_text(marks.join(who)),
        progress.append(" ").append_text(marks.join(amounts)),
        Text(" ").append_text(marks.join(spent)),
    ]
    lines += [Text(f" {one_line(view.error, 400)}", "red")] if view.error else []
    lines += [_next(now)] if _next(now) else []
    return Text("\n", no_wrap=True).join([marks.cut(each, width) for each in lines])


def _left(now: CampaignNow) -> str:
    left = now.left
    waiting = len(now.view.trials) - now.view.done
    pieces = [f"{waiting} trial{'' if waiting == 1 else 's'}"] if left.seconds is None else []
    pieces += [f"about {marks.span(left.seconds)}"] if left.seconds is not None else []
    pieces += [marks.money(left.cost)] if left.cost is not None else []
    pieces += [f"{marks.count(left.tokens)} tokens"] if left.tokens is not None else []
    return f"left: {', '.join(pieces)}"


def _next(now: CampaignNow) -> Text:
    """What a person can do with it now."""
    view = now.view
    if view.state in RESUMABLE:
        return Text(f" go on with: sia campaign resume {view.id}", "bold")
    better = [arm for arm, verdict in view.verdicts.items() if verdict["verdict"] == "better"]
    if view.state == "done" and better and now.current:
        return Text(f" next: sia promote {marks.name(better[0], 60)} --campaign {view.id}", "bold")
    return Text()


# -- the matrix -----------------------------------------------------------------------------------------------------


def matrix(now: CampaignNow, width: int) -> RenderableType:
    """Candidates × tasks with mean rewards as they come in; arms become columns, tasks rows.

    `0.75 2/3` is the mean of two trials of three; `●` one runs now, `x` none counts.
    """
    view = now.view
    cells: dict[tuple[str, str], list[TrialRow]] = defaultdict(list)
    for trial in view.trials:
        cells[trial.arm, trial.task].append(trial)
    names = [arm.name for arm in view.arms]
    task_width = min(TASK_MOST, max(14, *(len(_task_name(now, task)) for task in view.tasks), 14))
    task_width = max(8, min(task_width, width - 2 - 2 * (ARM_LEAST + 1)))
    fits = max(2, (width - 2 - task_width) // (ARM_LEAST + 1))
    lines: list[Text] = []
    for block in _blocks(names, fits):
        each = max(1, min(ARM_MOST, (width - 2 - task_width) // len(block) - 1))
        lines += [Text()] if lines else []
        lines += _block(now, cells, block, task_width, each)
    lines += [marks.cut(Text(f" {note}", "dim"), width) for note in forgeability_notes(view)]
    return Group(*lines)


def _blocks(names: Sequence[str], fits: int) -> list[Sequence[str]]:
    """Arms that stand beside each other; the baseline stands in each block, since it is what they are compared with."""
    if len(names) <= fits:
        return [names]
    first, rest = [name for name in names if name == BASELINE], [name for name in names if name != BASELINE]
    step = max(1, fits - len(first))
    return [[*first, *rest[start : start + step]] for start in range(0, len(rest), step)]


def _block(
    now: CampaignNow, cells: Mapping[tuple[str, str], list[TrialRow]], shown: Sequence[str], task_width: int, each: int
) -> list[Text]:
    view = now.view
    whole = all(trial.reward is not None for trial in view.trials)
    fraction = 0 if whole else 2 + 2 * len(str(max((len(trials) for trials in cells.values()), default=1)))
    titles = [fitted(fitted(Text(marks.name(arm), "bold"), each - 1, right=True), each) for arm in shown]
    lines = [line([fitted(Text("reward by task", "bold"), task_width), *titles])]
    for task in view.tasks:
        base = _mean(cells.get((BASELINE, task.name), ()))
        row = [_cell(cells.get((arm, task.name), ()), base if arm != BASELINE else None, each, whole) for arm in shown]
        lines.append(line([fitted(Text(_task_name(now, task)), task_width), *row]))
    means = {
        arm: _mean([trial for task in view.tasks for trial in cells.get((arm, task.name), ())])
        for arm in {BASELINE, *shown}
    }
    row = [_total(means[arm], means[BASELINE] if arm != BASELINE else None, each, fraction) for arm in shown]
    return [*lines, line([fitted(Text("mean", "bold"), task_width), *row])]


def _task_name(now: CampaignNow, task: TaskRow) -> str:
    sealed = " (sealed)" if task.split == "sealed" else ""
    return marks.name(task.name, 60) + forgeability_mark(now.view, task.name) + sealed


def _mean(trials: Sequence[TrialRow]) -> float | None:
    rewards = [trial.reward for trial in trials if trial.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _heat(reward: float | None) -> str:
    return "" if reward is None else "green" if reward > 0.99 else "red" if reward < 0.01 else "yellow"


def _cell(trials: Sequence[TrialRow], base: float | None, width: int, whole: bool) -> Text:
    """One arm on one task. `whole`: every trial of the campaign has a reward, so that fractions say nothing."""
    mean = _mean(trials)
    counted = sum(trial.reward is not None for trial in trials)
    done = sum(trial.state == "done" for trial in trials)
    text = Text()
    if mean is not None:
        text.append(f"{mean:.2f}", _heat(mean))
        text.append_text(_against(mean, base, width))
    elif done and done == len(trials):
        text.append("x", "magenta")
    if not whole and width >= 10:
        wide = len(str(len(trials)))
        text.append(f" {counted:>{wide}}/{len(trials)}", "dim")
    elif counted < len(trials):
        text.append("…", "dim")
    text = text if text.plain else Text(marks.UNKNOWN, "dim")
    running = any(trial.state == "running" for trial in trials)
    return fitted(text.append("●" if running else " ", "green"), width, right=True)


def _against(mean: float, base: float | None, width: int) -> Text:
    if base is None or width < 16:
        return Text()
    return Text(f" {mean - base:+.2f}", "" if abs(mean - base) < 0.005 else "green" if mean > base else "red")


def _total(mean: float | None, base: float | None, width: int, fraction: int) -> Text:
    if mean is None:
        return fitted(Text(f"{marks.UNKNOWN} ", "dim"), width, right=True)
    text = Text(f"{mean:.2f}", "bold").append_text(_against(mean, base, width))
    return fitted(text.append(" " * (1 if width < 10 else 1 + fraction)), width, right=True)


# -- verdicts -------------------------------------------------------------------------------------------------------


def verdicts(now: CampaignNow, width: int) -> RenderableType:
    """The verdicts, or while it runs what the same test says so far: difference, interval on a common scale, p."""
    view = now.view
    if view.verdicts:
        found: Mapping[str, Mapping[str, Any]] = view.verdicts
        title = "verdicts"
    elif now.so_far:
        found = {one.arm: one.numbers for one in now.so_far}
        rounds = now.so_far[0].rounds
        title = f"so far, over {rounds} rounds that all have finished; only the end decides"
    else:
        return Text(" No verdict yet: it needs a round (a task, once) that all candidates have finished.", "dim")
    final = bool(view.verdicts)
    reach = _reach(found.values())
    columns = _verdict_columns(final=final, reach=reach, width=width)
    parts: list[RenderableType] = [
        marks.cut(Text(f" {title}", "bold"), width),
        table(columns, list(found.items()), width),
    ]
    parts.append(
        marks.cut(Text(f" scale {-reach:+.2f} … {reach:+.2f} in mean reward against the baseline", "dim"), width)
    )
    if final or width >= 100:
        parts += [_reasons(arm, numbers) for arm, numbers in found.items()]
    return Group(*parts)


Judged = tuple[str, Mapping[str, Any]]


def _verdict_columns(*, final: bool, reach: float, width: int) -> tuple[Column[Judged], ...]:
    plot = max(PLOT_LEAST, min(PLOT_MOST, width // 5)) | 1  # odd: the zero has a cell of its own

    def word(row: Judged) -> Text:
        name = str(row[1]["verdict"])
        return Text(name if final or name == "disqualified" else f"{name}?", STYLES.get(name, ""))

    def picture(row: Judged) -> Text:
        numbers = row[1]
        if numbers["difference"] is None or numbers["p"] is None:
            return Text("not compared", "dim")
        shown = marks.interval(numbers["low"], numbers["difference"], numbers["high"], reach, plot)
        return Text(shown, STYLES.get(str(numbers["verdict"]), ""))

    def p_value(row: Judged) -> Text:
        return Text(marks.UNKNOWN if row[1]["p_adjusted"] is None else f"{row[1]['p_adjusted']:.3g}")

    def won(row: Judged) -> Text:
        numbers = row[1]
        return Text(f"{numbers['wins']}/{numbers['losses']}/{numbers['ties']}" if numbers["tasks"] else marks.UNKNOWN)

    def guards(row: Judged) -> Text:
        broken = [one["name"] for one in row[1]["guardrails"] if one["broken"]]
        return (
            Text("broken: " + ", ".join(broken), "red")
            if broken
            else Text("kept" if row[1]["guardrails"] else "", "dim")
        )

    def tokens(row: Judged) -> Text:
        return Text(next((factor(one) for one in row[1]["guardrails"] if one["name"] == "tokens"), marks.UNKNOWN))

    return (
        Column("arm", "candidate", lambda row: Text(marks.name(row[0]), "bold"), 12, flexible=True),
        Column("verdict", "verdict", word, 14),
        Column("picture", "interval", picture, plot),
        Column("difference", "difference", lambda row: Text(difference(row[1])), 22, right=True, from_width=96),
        Column("p", "p (Holm)", p_value, 8, right=True),
        Column("won", "won/lost/tied", won, 13, right=True),
        Column("tokens", "tokens", tokens, 8, right=True, from_width=130),
        Column("guardrails", "guardrails", guards, 10, flexible=True, from_width=150),
    )


def _reach(found: Iterable[Mapping[str, Any]]) -> float:
    """Half the common scale: as far as any finite bound or difference, at least 0.1, at most 1."""
    values = [
        abs(numbers[name]) for numbers in found for name in ("low", "difference", "high") if numbers[name] is not None
    ]
    return min(1.0, max(0.1, *values)) if values else 0.1


def _reasons(arm: str, numbers: Mapping[str, Any]) -> RenderableType:
    said = "; ".join(one_line(reason, 400) for reason in numbers["reasons"])
    text = Text.assemble((f"{marks.name(arm, 40)}: ", STYLES.get(str(numbers["verdict"]), "")), said)
    return Padding(text, (0, 0, 0, 1))


# -- all of it ------------------------------------------------------------------------------------------------------


def campaign(now: CampaignNow, width: int, *, trials: bool = False) -> RenderableType:
    """All of it, one below the other; on wide terminals the matrix beside the verdicts."""
    parts: list[RenderableType] = [head(now, width), Text()]
    if width >= 160:
        grid = Table.grid(padding=(0, 2))
        half = (width - 2) // 2
        grid.add_column(width=half)
        grid.add_column(width=width - 2 - half)
        grid.add_row(matrix(now, half), verdicts(now, width - 2 - half))
        parts.append(grid)
    else:
        parts += [matrix(now, width), Text(), verdicts(now, width)]
    if trials:
        parts += [Text(), table(TRIALS, now.view.trials, width)]
    return Group(*parts)


def campaigns(snapshot: Snapshot, width: int) -> RenderableType:
    """The list of campaigns, or how to start the first one."""
    if snapshot.campaigns:
        return table(CAMPAIGNS, snapshot.campaigns, width)
    return marks.next_steps(
        "There is no campaign yet. One compares candidates with the current generation, on tasks.",
        ("sia campaign run FILE", "start one (docs/campaign-file.md says what FILE holds)"),
        ("sia task check DIR…", "see whether tasks are sound"),
        ("sia demo", "see all of it on examples, in under two minutes"),
    )
