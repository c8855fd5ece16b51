"""What must hold before a campaign may start. All of it is checked before anything is stored or spent.

Faulty candidates refuse the whole campaign, and all of them are named at once: a campaign with fewer candidates would
be another experiment (Holm's family, the plan's promise), and a person decides that by editing the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import candidates
from orchestrator.campaign_view import BASELINE, ArmRow, CampaignView, TaskRow
from orchestrator.config import Agent, Campaign, Engine, Settings, load_campaign, load_settings
from orchestrator.engines import named
from orchestrator.errors import ConfigError, Failed, Refused, SiaError, UsageError
from orchestrator.repository import Repository
from orchestrator.sealed import refuse_again
from orchestrator.task_files import content_key
from orchestrator.tasks import Task, find_tasks, load_task
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    import sqlite3

    from orchestrator.agent_build import AgentBuild
    from orchestrator.home import Home
    from sandbox.host import Host

Say = Callable[[str], None]
CONFORMANCE_AT_ONCE = 2


@dataclass(frozen=True)
class Setup:
    """A campaign that may start or go on: settings as they were at its start, tasks, arms and what they run from.

    `unasked`: by arm, the conformance checks that its schema left nothing to ask for.
    """

    campaign: Campaign
    settings: Settings
    baseline: str
    tasks: tuple[Task, ...]
    task_rows: tuple[TaskRow, ...]
    arms: tuple[ArmRow, ...]
    builds: Mapping[str, AgentBuild]
    unasked: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_command(self) -> tuple[str, ...]:
        """The argv list of the campaign's engine."""
        command = named.command_of(self.campaign.engine, self.settings.engines)
        assert command is not None, "checked when the campaign file was read"
        return command

    def kept(self) -> dict[str, Any]:
        """What a resumed campaign needs besides its file (JSON)."""
        kept = {"agent": self.settings.agent.model_dump(mode="json"), "engine": list(self.engine_command)}
        return kept | ({"unasked": dict(self.unasked)} if self.unasked else {})


def from_file(home: Home, file: Path, connection: sqlite3.Connection, say: Say) -> Setup:
    """Read the campaign file, find its tasks, merge its candidates with the current generation, and build all arms.

    Raises ConfigError or Refused with every faulty candidate named; nothing but exports and environments is made.
    """
    from orchestrator.promotion import ensure_first

    campaign = load_campaign(file)
    settings = load_settings(home.checkout)
    if not named.exists(campaign.engine, settings.engines):
        known = ", ".join(sorted(settings.engines)) or "none"
        raise ConfigError(
            f"engine = {campaign.engine!r}, but sia.toml has no [engines.{campaign.engine}] (known: {known})",
            where=str(file),
            fix="name one of them, add it to sia.toml, or use llama:MODEL (`sia engines list`)",
        )
    named.prepare(campaign.engine, settings.engines, home.checkout, say)
    tasks = _tasks(campaign, home.checkout, file)
    rows = tuple(TaskRow(task.name, str(task.path), content_key(task.path), task.split) for task in tasks)
    repository = Repository(home).ensure()
    generation = ensure_first(home, settings, connection)
    say(f"baseline: generation {generation.number} ({generation.commit[:12]})")
    build = candidates.build(home, settings, generation.commit)
    arms = [ArmRow(BASELINE, "baseline", generation.commit, generation.commit, build.tree)]
    builds = {BASELINE: build}
    faults: list[SiaError] = []
    for name in campaign.candidates:
        try:
            candidate = candidates.prepare(repository, settings, name, generation.commit)
            builds[name] = candidates.build(home, settings, candidate.judged)
        except SiaError as error:
            faults.append(_named(name, error))
            continue
        arms.append(
            ArmRow(name, "candidate", candidate.proposed, candidate.judged, builds[name].tree, candidate.left_out)
        )
        say(_described(name, candidate))
    _refuse(faults, len(campaign.candidates), file)
    refuse_again(connection, rows, arms, file)
    return Setup(campaign, settings, generation.commit, tasks, rows, tuple(arms), builds)


def from_view(home: Home, view: CampaignView) -> Setup:
    """The same, for a campaign that goes on: commits, settings and tasks as stored.

    Raises ConfigError if a task's files have changed since, Refused if an environment is gone and may not be built.
    """
    campaign = Campaign.model_validate(view.spec)
    kept = Agent.model_validate(view.setup["agent"])
    engine = Engine.model_validate({"command": view.setup["engine"]})
    current = load_settings(home.checkout)
    kept = kept.model_copy(update={"build_environments": current.agent.build_environments})
    settings = current.model_copy(update={"agent": kept, "engines": {**current.engines, campaign.engine: engine}})
    tasks = tuple(load_task(Path(row.path)) for row in view.tasks)
    changed = [r.name for t, r in zip(tasks, view.tasks, strict=True) if content_key(t.path) != r.key]
    if changed:
        raise ConfigError(
            f"tasks have changed since the campaign started: {', '.join(changed)}",
            where=f"campaign {view.id}",
            fix="restore their files (git shows what changed), or start a new campaign",
        )
    builds = {arm.name: candidates.build(home, settings, arm.judged) for arm in view.arms}
    for arm in view.arms:
        if builds[arm.name].tree != arm.tree:
            what = f"{arm.name}: the tree is {builds[arm.name].tree[:12]}, judged was {arm.tree[:12]}"
            raise Failed(what, where=f"campaign {view.id}", fix="start a new campaign")
    return Setup(campaign, settings, view.baseline, tasks, view.tasks, view.arms, builds)


def with_conformance(setup: Setup, host: Host, say: Say) -> Setup:
    """The contract, checked for every arm. A candidate that fails is out with the check's number and reason.

    Raises Failed if the baseline itself fails: there is nothing to compare with then.
    """
    from orchestrator.conformance import GATE, check, not_asked

    say(f"checking the contract of {len(setup.arms)} agents")
    commits = {arm.judged: setup.builds[arm.name] for arm in setup.arms}  # each commit once
    with ThreadPoolExecutor(CONFORMANCE_AT_ONCE, thread_name_prefix="conformance") as pool:
        results = dict(zip(commits, pool.map(lambda build: check(host, build, GATE), commits.values()), strict=True))
    arms, unasked = [], {}
    for arm in setup.arms:
        if left_out := not_asked(results[arm.judged]):
            unasked[arm.name] = left_out
            say(f"{arm.name}: checks of the contract that were not asked: {left_out}")
        failed = [item for item in results[arm.judged] if not item.passed]
        reason = "; ".join(f"check {item.number} ({item.title}): {one_line(item.detail)}" for item in failed)
        if failed and arm.name == BASELINE:
            raise Failed(
                f"the current generation breaks the contract: {reason}",
                where=f"baseline {arm.judged[:12]}",
                fix="repair it first; `sia conformance -- CMD` shows every check",
            )
        if failed:
            say(f"{arm.name}: disqualified before the first trial: {reason}")
        arms.append(replace(arm, refused=reason or None))
    return replace(setup, arms=tuple(arms), unasked=unasked)


def _tasks(campaign: Campaign, root: Path, file: Path) -> tuple[Task, ...]:
    try:
        return tuple(find_tasks(campaign.tasks, root))
    except UsageError as error:  # a pattern that names no task: here it is the file that is wrong
        fix = f"{error.fix}; paths are relative to {root}"
        raise ConfigError(f"tasks: {error.what}", where=str(file), fix=fix) from None


def _described(name: str, candidate: candidates.Candidate) -> str:
    text = f"{one_line(name)}: {candidate.proposed[:12]}"
    if candidate.judged != candidate.proposed:
        text += f", merged with the generation as {candidate.judged[:12]}"
    if candidate.left_out:
        shown = ", ".join(one_line(path, 60) for path in candidate.left_out[:3])
        more = f" and {len(candidate.left_out) - 3} more" if len(candidate.left_out) > 3 else ""
        text += f"; not judged, since outside the agent paths: {shown}{more}"
    return text


def _named(name: str, error: SiaError) -> SiaError:
    return error if name in error.render() else Refused(error.what, where=name, fix=error.fix)


def _refuse(faults: list[SiaError], candidates: int, file: Path) -> None:
    if not faults:
        return
    if len(faults) == 1:
        raise faults[0]
    reasons = "".join(f"\n  - {fault.render()}".replace("\n  fix:", "\n    fix:") for fault in faults)
    raise Refused(
        f"{len(faults)} of {candidates} candidates can't be judged, so nothing was started:{reasons}",
        where=str(file),
        fix="repair them, or take them out of the campaign file",
    )
