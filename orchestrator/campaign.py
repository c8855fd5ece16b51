"""Run a campaign: prepare the candidates, run the trials in parallel, store each result as it ends, conclude."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import campaign_setup, database, locks, neutral
from orchestrator import rerun as again
from orchestrator.campaign_runner import Runner, Waiting
from orchestrator.campaign_setup import Setup
from orchestrator.campaign_signals import Signals
from orchestrator.campaign_store import CampaignStore
from orchestrator.campaign_view import BASELINE, CampaignView, load, lock_path, resolve
from orchestrator.errors import Failed, SiaError, UsageError
from orchestrator.plan import PlannedTrial, Visible, plan, visible
from orchestrator.progress import Board, Progress, choose
from orchestrator.verdict import Observation, Rules, Verdict, baseline_tampering, judge

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.trial import TrialContext


class Interrupted(SiaError):
    """A person ended it before it was done (exit code 130)."""

    exit_code = 130


def run_campaign(home: Home, file: Path, *, parallel: int | None = None, progress: Progress | None = None) -> str:
    """Start the campaign that `file` describes, run it to its verdicts, and return its id.

    Everything that can be refused is refused before a trial runs (ConfigError or Refused, naming every faulty
    candidate). `parallel` overrides the file. Progress goes to stderr. Raises Interrupted (exit code 130) after Ctrl-C;
    `resume` then finishes it. Raises Failed when the baseline is disqualified.
    """
    progress = progress or choose()
    with Signals(progress) as signals, ExitStack() as stack:
        try:
            connection = stack.enter_context(closing(database.connect(home.database)))
            setup = campaign_setup.from_file(home, file, connection, progress.say)
            progress.say("preparing the engine and the verifier's environment")  # seconds the first time
            context = stack.enter_context(_context(home, setup))
            setup = campaign_setup.with_conformance(setup, context.host, progress.say)
        except KeyboardInterrupt:
            raise Interrupted("interrupted before the first trial; nothing was stored") from None
        for sentence in plan_of(setup).sentences():
            progress.say(sentence)
        store = CampaignStore(connection)

        def planned(name: str) -> list[PlannedTrial]:
            stack.enter_context(_lock(home, name))  # before anyone can see the new row
            return _plan(name, setup)

        with signals.asking():
            name = store.create(
                file=str(file),
                spec=setup.campaign.model_dump(mode="json"),
                setup=setup.kept(),
                baseline=setup.baseline,
                arms=setup.arms,
                tasks=setup.task_rows,
                plan=planned,
            )
            progress.say(f"campaign {name}")
            return _finish(home, name, setup, store, context, signals, parallel)


def resume(home: Home, campaign: str, *, parallel: int | None = None, progress: Progress | None = None) -> str:
    """Finish an interrupted campaign (id or unique prefix): finished trials are never run again.

    Raises UsageError if there is nothing to finish, Failed if another process runs it.
    """
    return _go_on(home, campaign, None, parallel, progress)


def rerun(home: Home, trial: str, *, parallel: int | None = None, progress: Progress | None = None) -> str:
    """Run a trial (id or unique prefix) without a valid result again, finish its campaign, and conclude anew.

    Raises UsageError where that may not be (`orchestrator.rerun`), Failed if another process runs the campaign.
    """
    with closing(database.connect(home.database)) as connection:
        campaign, trial = again.resolve_trial(connection, trial)
    return _go_on(home, campaign, trial, parallel, progress)


def _go_on(home: Home, campaign: str, trial: str | None, parallel: int | None, progress: Progress | None) -> str:
    progress = progress or choose()
    with Signals(progress) as signals, ExitStack() as stack:
        connection = stack.enter_context(closing(database.connect(home.database)))
        name = resolve(connection, campaign)
        stack.enter_context(_lock(home, name))
        view = load(connection, name)
        row = None if trial is None else again.check(view, trial)
        if row is None:
            _resumable(view)
        try:
            setup = campaign_setup.from_view(home, view)
            context = stack.enter_context(_context(home, setup))
        except KeyboardInterrupt:
            raise Interrupted(f"campaign {name}: interrupted before it went on") from None
        store = CampaignStore(connection)
        with signals.asking():
            if row is not None:
                again.keep_files(home.campaigns / name / "trials", view, row.id)
                store.set_aside(view, row)
                view = store.view(name)
            store.reopen(name)
            progress.say(f"campaign {name}: {view.done} of {len(view.trials)} trials are done, going on")
            return _finish(home, name, setup, store, context, signals, parallel)


def plan_of(setup: Setup) -> Visible:
    """What the campaign could show."""
    rules = setup.campaign.verdict
    return visible(len(_planned_arms(setup)), len(setup.tasks), setup.campaign.repeats, rules.alpha, rules.margin)


def conclude(view: CampaignView) -> dict[str, Verdict]:
    """The verdicts of a campaign whose trials are done: a pure function of what is stored."""
    rules = view.spec["verdict"]
    verdicts = judge(
        observations(view),
        [arm.name for arm in view.candidates if arm.refused is None],
        Rules(rules["alpha"], rules["margin"], rules["tolerance"]),
        failed_before={arm.name: arm.refused for arm in view.candidates if arm.refused is not None},
    )
    return again.with_notes(verdicts, view)


def observations(view: CampaignView) -> list[Observation]:
    """The finished trials as the verdict's input."""
    return [
        Observation(
            arm=trial.arm,
            task=trial.task,
            repeat=trial.repeat,
            outcome=trial.outcome or "invalid",
            reward=trial.reward,
            disqualified=trial.disqualified,
            by_person=bool(trial.record.get("excluded")),
            **{name: trial.record[name] for name in ("tokens", "iterations", "seconds", "parse_errors", "cost")},
        )
        for trial in view.trials
        if trial.state == "done" and trial.record is not None
    ]


def _finish(
    home: Home,
    name: str,
    setup: Setup,
    store: CampaignStore,
    context: TrialContext,
    signals: Signals,
    parallel: int | None,
) -> str:
    """Run what is still planned, then store the verdicts; whatever stops it leaves a campaign that can be resumed."""
    directory = home.campaigns / name
    before = store.view(name)
    runner = _runner(directory, before, setup, store, context, signals, parallel)
    runner.run(Waiting(t, attempt) for t, attempt in _still_planned(before))
    view = store.view(name)
    if tampering := baseline_tampering(observations(view)):
        store.fail(name, f"the baseline is disqualified: {tampering}")
        raise Failed(
            f"the baseline is disqualified: {tampering}",
            where=f"campaign {name}",
            fix="roll back to a generation that can be trusted; nothing can be judged against this one",
        )
    if runner.error:
        store.interrupt(name, runner.error.what)
        raise runner.error
    left = any(trial.state != "done" and trial.arm not in runner.board.out for trial in view.trials)
    if runner.stop.is_set() or (runner.stopped_by and left):
        store.interrupt(name, f"stopped by {runner.stopped_by}" if runner.stopped_by else None)
        raise _interrupted(view)
    store.conclude(name, conclude(view).values())
    neutral.remove(context.host, directory / "tasks")
    return name


def _runner(
    directory: Path,
    view: CampaignView,
    setup: Setup,
    store: CampaignStore,
    context: TrialContext,
    signals: Signals,
    parallel: int | None,
) -> Runner:
    from orchestrator.task_files import prepare

    copies = neutral.directory(context.home.root, directory / "tasks")
    board = Board(view.id, {arm.name: sum(t.arm == arm.name for t in view.trials) for arm in view.arms})
    for trial in view.trials:
        if trial.state == "done":
            tokens = trial.record.get("tokens") if trial.record else None
            board.count(trial.arm, trial.outcome or "", trial.reward, tokens)
            if trial.disqualified:
                board.out[trial.arm] = trial.disqualified
    board.out.update({arm.name: arm.refused for arm in view.arms if arm.refused})
    return Runner(
        id=view.id,
        campaign=setup.campaign,
        context=context,
        store=store,
        directory=directory,
        builds=dict(setup.builds),
        trees={arm.name: arm.tree for arm in setup.arms},
        tasks={task.name: prepare(task, context.host, copies) for task in setup.tasks},
        parallel=parallel or setup.campaign.parallel or os.cpu_count() or 1,
        board=board,
        progress=signals.progress,
        stop=signals.asked,
    )


@contextmanager
def _context(home: Home, setup: Setup) -> Iterator[TrialContext]:
    """What all trials share; everything is gone at the end, however it comes."""
    from orchestrator import answers
    from orchestrator.engines.host import EngineHost
    from orchestrator.engines.named import log_name
    from orchestrator.environments import verifier_environment
    from orchestrator.exchanges import ExchangeStore
    from orchestrator.services import HomeServices
    from orchestrator.supervisor_socket import SupervisorServer
    from orchestrator.trial import TrialContext
    from sandbox.host import Host

    with ExitStack() as stack:
        host = stack.enter_context(Host.detect(home.root))
        if setup.campaign.limits.upper == "memory":
            host.ramdisks.prove()
        home.cache.mkdir(exist_ok=True)
        engine_name = setup.campaign.engine
        log = home.cache / f"engine-{log_name(engine_name)}.log"
        engine = EngineHost(engine_name, setup.engine_command, home.checkout, log)
        stack.callback(engine.close)
        engine.start()
        engine.wait_ready()
        store = stack.enter_context(closing(ExchangeStore(home.exchanges)))
        stack.callback(answers.close_checkers)
        server = SupervisorServer(home.run, HomeServices(home, setup.settings.agent.paths))
        stack.callback(server.close)
        yield TrialContext(host, home, engine, store, verifier_environment(home), server)


@contextmanager
def _lock(home: Home, name: str) -> Iterator[None]:
    fix = f"wait for it, or stop it in order: sia campaign stop {name}"
    with locks.hold(lock_path(home, name), f"campaign {name} is being run already", fix):
        yield


def _planned_arms(setup: Setup) -> list[str]:
    return [arm.name for arm in setup.arms if arm.name != BASELINE and arm.refused is None]


def _plan(name: str, setup: Setup) -> list[PlannedTrial]:
    arms = _planned_arms(setup)
    if setup.campaign.candidates and not arms:
        return []  # every candidate is out already: nothing is worth a trial
    tasks = [task.name for task in setup.tasks]
    return plan(name, arms, tasks, setup.campaign.repeats, setup.campaign.seed)


def _still_planned(view: CampaignView) -> Iterator[tuple[PlannedTrial, int]]:
    for trial in view.trials:
        if trial.state != "done":
            yield PlannedTrial(trial.id, trial.arm, trial.task, trial.repeat, trial.position), trial.attempt


def _resumable(view: CampaignView) -> None:
    if view.state == "done":
        raise UsageError(f"campaign {view.id} is finished", fix=f"see its verdicts: sia campaign show {view.id}")
    if view.state == "failed":
        raise UsageError(f"campaign {view.id} failed for good: {view.error}", fix="start a new campaign")


def _interrupted(view: CampaignView) -> Interrupted:
    return Interrupted(
        f"interrupted; {view.done} of {len(view.trials)} trials are done and kept",
        where=f"campaign {view.id}",
        fix=f"sia campaign resume {view.id}",
    )
