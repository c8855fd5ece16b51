"""One trial: from empty overlay to reward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import answers, neutral, rootfs
from orchestrator.broker import Budget, Line
from orchestrator.captured import Stopped as Stopped
from orchestrator.instance_io import CappedFile
from orchestrator.instances import AGENT_DATA, Instance, InstanceSetup, skeletons
from orchestrator.journal import Journal
from orchestrator.kept_changes import ChangeList
from orchestrator.log_archive import Packer
from orchestrator.own_logs import Bounds, OwnLogs, kept_logs
from orchestrator.protocol import sampling_seed
from orchestrator.task_check import broken_by_oracle
from orchestrator.trial_control import KILLED, TrialControl
from orchestrator.trial_ending import Ending, judge_ending, trial_limits
from orchestrator.trial_record import TrialRecord as TrialRecord
from orchestrator.verifier import Reward, VerifierTools, is_forgeable, verify
from sandbox.diff import diff
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.layers import materialise
from sandbox.process import Outcome
from sandbox.spec import Overlay

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Usage
    from orchestrator.config import CampaignLimits
    from orchestrator.engines.host import EngineHost
    from orchestrator.exchanges import ExchangeStore
    from orchestrator.home import Home
    from orchestrator.journal import Exchange
    from orchestrator.supervisor_socket import SupervisorServer
    from orchestrator.task_files import TaskFiles
    from sandbox.host import Host

STDOUT_CAP = 4 * 1024 * 1024  # bytes of an instance's output that are kept, and shown to the verifier
KEPT_CONNECTIONS = 200  # of the instance, and of the verifier, in the record
KEPT_WORKDIR_BYTES = 256 * 1024 * 1024
POLL_SECONDS = 0.25  # how late a stop from outside is noticed
GRACE_SECONDS = 10.0  # that an instance has to end, when no more answers come (docs/contract.md: SIGTERM)
CLOSED_SECONDS = 10.0  # that an instance may run on after it has closed its engine line: a loaded machine is slow
SPARE_SECONDS = 10.0  # beyond the sandbox's own wall clock limit, before it is ended from here too


@dataclass(frozen=True)
class TrialContext:
    """What all trials of a campaign share. Nothing here belongs to one trial; used from several threads at once."""

    host: Host
    home: Home
    engine: EngineHost
    store: ExchangeStore
    verifier_env: Path  # orchestrator.environments.verifier_environment(home)
    supervisor: SupervisorServer  # answers /run/sia/supervisor.sock


@dataclass(frozen=True)
class TrialSpec:
    """One trial to run. `id` names its journal; `directory` (made if missing) keeps what is kept of it."""

    id: str
    campaign: str
    arm: str
    build: AgentBuild
    task: TaskFiles  # orchestrator.task_files.prepare(task, host, directory), once per campaign
    repeat: int
    seed: int  # of the campaign file; sampling seeds are derived from it (docs/contract.md)
    limits: CampaignLimits
    directory: Path
    keep_workdir: bool = False
    stop: threading.Event | None = None  # set by the campaign at Ctrl-C: kill everything at once, raise Stopped
    progress: Callable[[Usage], None] | None = None  # after each exchange (from the broker's thread; must not block)
    control: TrialControl | None = None  # how a person steps in; knows `stop` too


def run_trial(context: TrialContext, spec: TrialSpec) -> TrialRecord:
    """Run one trial to its end, however it ends, and clean up. Never raises for what an instance did.

    Raises Stopped when `spec.stop` is set, and SiaError when nothing could be started for a reason of ours that a
    retry will not mend.
    """
    spec.directory.mkdir(parents=True, exist_ok=True)
    trial = _Trial(context, spec)
    try:
        return trial.run()
    finally:
        neutral.remove(context.host, trial.link)
        trial.control.over()


class _Trial:
    """The steps of one trial, in order: instance, evidence, verifier, record."""

    def __init__(self, context: TrialContext, spec: TrialSpec) -> None:
        self.context, self.spec = context, spec
        self.link = spec.directory / "layers"
        self.layers = neutral.place(context.home.root, self.link)
        self.task = spec.task.task
        self.notes = list(self.task.notes)
        self.places: dict[str, Overlay] = {}
        self.data: Overlay | None = None
        self.gave_up = False
        self.control = spec.control or TrialControl(spec.stop)
        self.control.directory = spec.directory
        self.excluded: str | None = None
        self.limits = trial_limits(spec.limits, self.task)
        self.tools = VerifierTools.prepare(context.host, context.home, context.verifier_env)

    def run(self) -> TrialRecord:
        """Everything of `run_trial` but the cleaning up."""
        spec = self.spec
        rootfs.check_trial(self.context.host, self.task, spec.build.environment, self.context.verifier_env)
        journal = Journal.create(self.context.store, spec.id, self._meta())
        line = self._line(journal)
        self.control.recorded(line, journal.id)
        try:
            line.start()
            outcome = self._instance(line)
        except SandboxFailed as error:
            outcome = Outcome(None, None, None, error.render(), self.context.host.memory_enforcer, 0.0, None)
        finally:
            line.close()
        journal.seal()
        ending = judge_ending(outcome, line, spec.limits, gave_up=self.gave_up, killed=self.control.killed)
        self.control.verifying()
        self.notes += line.notes
        if outcome.connections_dropped or len(outcome.connections) > KEPT_CONNECTIONS:
            count = outcome.connections_dropped + len(outcome.connections)
            self.notes.append(f"{count:,} connections, of which the first {KEPT_CONNECTIONS} are in the record")
        compared = self._compare_log(journal)
        behaviour = answers.metrics(journal, spec.build.schema)
        self.notes += [behaviour.note] if behaviour.note else []
        changes = self._changes()
        if spec.keep_workdir:
            self._keep_workdir()
        reward = Reward(0.0, "failed", "", 0.0, is_forgeable(self.context.home, spec.task))
        if ending.outcome in ("completed", "limit"):
            reward = self._verify()
            if reward.outcome == "invalid":
                ending = Ending("invalid", reward.detail)
            elif reward.outcome == "failed":
                self.notes.append(reward.detail)
        ending = self._without_interference(ending, reward)
        return self._record(journal, line.usage, outcome, ending, compared.tampering, behaviour, reward, changes)

    def _without_interference(self, ending: Ending, reward: Reward) -> Ending:
        """What a person changed can't be compared with other trials, whatever it gave. Our own failures come first:
        those are tried again, without the person."""
        excluded = self.control.conclude()
        if excluded is None or (ending.outcome == "invalid" and not self.control.killed):
            return ending
        self.excluded = excluded
        if ending.outcome != "invalid":
            gave = "" if reward.value is None else f", reward {reward.value:.3g}"
            self.notes.append(f"{excluded}; it ended as {ending.outcome}{gave}, which does not count")
        return Ending("invalid", excluded)

    def _compare_log(self, journal: Journal) -> answers.LogComparison:
        """The agent's own log against the journal; all of it is kept, compressed, for `sia log show --own`."""
        if self.data is None:
            return answers.compare_log(journal, ())
        logs = OwnLogs(self.data.upper, self._log_bounds(journal), self._go_on)
        try:
            with Packer(kept_logs(self.spec.directory)) as packer:
                files = logs.keep(packer)
                compared = answers.compare_log(journal, files, self.control)
                for _ in files:  # the comparison ends at the first answer that nobody gave
                    pass
        except OSError as error:
            compared = answers.compare_log(journal, logs, self.control)
            self.notes.append(f"the agent's own log was not kept: {error.strerror}")
        self.notes += [*compared.notes, *logs.notes]
        return compared

    def _log_bounds(self, journal: Journal) -> Bounds:
        """A log of every answer that was given is compared whole, and kept whole."""
        asked = [exchange.asked.size for exchange in journal.replies() if exchange.kind == "infer"]
        disk = self.limits.disk_mb
        return Bounds(len(asked), sum(asked), None if disk is None else disk << 20)

    def _go_on(self) -> None:
        """In what takes long after the instance has ended. Raises Stopped when the campaign ends all its trials."""
        if self.control.stopping:
            raise Stopped

    def _changes(self) -> int:
        """How many paths the instance changed (the first are kept, with those of its data behind them). What can't be
        counted is its own doing, and no fault of ours."""
        count, kept = 0, ChangeList(self.spec.directory)
        try:
            for overlay in self.places.values():
                for change in diff(overlay.lowers, overlay.upper):
                    count += 1
                    kept.add(overlay.dest, change)
            if self.data is not None and not kept.full:
                for change in diff(self.data.lowers, self.data.upper):
                    kept.add(AGENT_DATA, change)
        except UnsafePath as error:
            self.notes.append(f"the count of changes stopped: {error.what}")
        finally:
            kept.close()
        return count

    def _record(
        self,
        journal: Journal,
        usage: Usage,
        outcome: Outcome,
        ending: Ending,
        tampering: str | None,
        behaviour: answers.AnswerMetrics,
        reward: Reward,
        changes: int,
    ) -> TrialRecord:
        spec = self.spec
        return TrialRecord(
            id=spec.id,
            journal=journal.id,
            campaign=spec.campaign,
            arm=spec.arm,
            task=self.task.name,
            split=self.task.split,
            repeat=spec.repeat,
            outcome=ending.outcome,
            detail=ending.detail,
            reward=None if ending.outcome == "invalid" else reward.value,
            disqualified=tampering,
            tokens=usage.tokens,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            iterations=usage.iterations,
            cost=usage.cost,
            seconds=outcome.seconds,
            engine_seconds=usage.engine_seconds,
            verifier_seconds=reward.seconds,
            exit_code=outcome.exit_code,
            parse_errors=behaviour.parse_errors,
            repeated_actions=behaviour.repeated_actions,
            deletes=behaviour.deletes,
            context_growth=behaviour.context_growth,
            peak_memory_mb=outcome.peak_memory_mb,
            memory_enforcer=outcome.memory_enforcer,
            forgeable=reward.forgeable,
            changes=changes,
            tree=spec.build.tree,
            task_key=spec.task.key,
            journal_head=journal.head,
            excluded=self.excluded,
            notes=tuple(dict.fromkeys(self.notes)),
            connections=self._connections(outcome, reward),
        )

    def _connections(self, outcome: Outcome, reward: Reward) -> tuple[dict[str, Any], ...]:
        """What went through the task's allow-list, the first of each side."""
        sides = (("instance", outcome.connections), ("verifier", reward.connections))
        return tuple({"by": by, **asdict(one)} for by, made in sides for one in made[:KEPT_CONNECTIONS])

    def _meta(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "kind": "trial",
            "campaign": spec.campaign,
            "arm": spec.arm,
            "task": self.task.name,
            "task_key": spec.task.key,
            "repeat": spec.repeat,
            "commit": spec.build.commit,
            "tree": spec.build.tree,
        }

    def _line(self, journal: Journal) -> Line:
        spec, limits = self.spec, self.spec.limits
        budget = Budget(iterations=limits.iterations, tokens=limits.tokens, cost=limits.cost)
        seed = sampling_seed(spec.seed, self.task.name, spec.repeat, spec.arm)
        line: Line

        def report(exchange: Exchange) -> None:
            self.control.answered(exchange)
            if spec.progress is not None:
                spec.progress(line.usage)

        line = Line(self.context.engine, journal, budget, spec.build.schema, seed, report, group=spec.arm)
        return line

    def _overlays(self) -> tuple[Overlay, ...]:
        """Fresh uppers over the task's files, and over empty /root/data."""
        host = self.context.host
        host.remove(self.layers)  # of a run that was cut off
        neutral.link(self.link, self.layers)
        space = host.space(self.layers, self.limits)
        for number, (place, root) in enumerate(self.spec.task.roots.items()):
            self.places[place] = Overlay(place, (root,), *host.make_upper(space, str(number)))
        lowest = skeletons(host, self.context.home.root).data
        self.data = Overlay(AGENT_DATA, (lowest,), *host.make_upper(space, neutral.DATA))
        return (*self.places.values(), self.data)

    def _instance(self, line: Line) -> Outcome:
        """Launch, give the instruction, and wait for the end, whatever brings it."""
        spec, directory = self.spec, self.spec.directory
        stdout, stdin = (CappedFile(directory / f"{name}.txt", STDOUT_CAP) for name in ("stdout", "stdin"))
        socket = self.context.supervisor.listen(spec.id)
        try:
            task = self.task
            setup = InstanceSetup(
                spec.build, task.workdir, self._overlays(), task.env, self.limits, task.network, task.rootfs
            )
            host = self.context.host
            with Instance.start(host, setup, line, socket, stdout.write, directory / "stderr.txt") as instance:

                def send(data: bytes) -> None:
                    stdin.write(data)
                    instance.send(data)

                send(self.task.instruction.rstrip("\n").encode() + b"\n")
                with self.control.at_work(instance, send):
                    outcome = self._follow(instance, line)
                if instance.pauses.total:
                    self.notes.append(f"paused by a person for {instance.pauses.total:.1f} s; clocks inside went on")
                return outcome
        finally:
            self.context.supervisor.forget(socket)
            stdout.close()
            stdin.close()
            if stdout.dropped:
                self.notes.append(f"{stdout.dropped:,} bytes of the instance's output were dropped")

    def _follow(self, instance: Instance, line: Line) -> Outcome:
        """Wait. The sandbox enforces the wall clock; here are the other reasons to end an instance that runs on."""
        no_line_since = 0.0
        last = time.monotonic() + (self.limits.seconds or 0.0) + SPARE_SECONDS
        while True:
            outcome = instance.wait(POLL_SECONDS)
            if outcome is not None:
                return outcome
            if self.control.is_set():
                instance.kill()
                if self.control.stopping:
                    raise Stopped
                continue
            now = time.monotonic() - instance.pauses.seconds()
            if line.ended is not None:
                no_line_since = no_line_since or now
            if line.ended == "closed" and now > no_line_since + CLOSED_SECONDS:
                self.gave_up = True  # what it works with; so it is not asked to end in order
                return instance.terminate(0.0)
            if (no_line_since and now > no_line_since + GRACE_SECONDS) or now > last:
                return instance.terminate(GRACE_SECONDS if now <= last else 0.0)

    def _verify(self) -> Reward:
        context, spec = self.context, self.spec
        uppers = {place: overlay.upper for place, overlay in self.places.items()}
        stdout, stop, upper = spec.directory / "stdout.txt", self.control, self.limits.upper
        try:
            reward = verify(
                context.host,
                context.home,
                spec.task,
                uppers,
                stdout,
                self.tools,
                spec.directory,
                upper=upper,
                stop=stop,
            )
            broken = reward.outcome == "failed" and broken_by_oracle(
                context.host, context.home, spec.task, self.tools, spec.directory, stop=stop
            )
        except Stopped:
            if not stop.killed or stop.stopping:
                raise
            return Reward(None, "invalid", KILLED, 0.0, is_forgeable(context.home, spec.task))
        if broken:
            return Reward(None, "invalid", f"the task is broken: {broken}", reward.seconds, reward.forgeable)
        return reward

    def _keep_workdir(self) -> None:
        kept = self.spec.directory / "workdir"
        self.context.host.remove(kept)
        for number, overlay in enumerate(self.places.values()):
            target = kept if number == 0 else kept.with_name(f"workdir-{number}")
            try:
                materialise(overlay.lowers, overlay.upper, target, KEPT_WORKDIR_BYTES)
            except (SandboxFailed, UnsafePath) as error:
                self.notes.append(f"the workdir was not kept: {error.what}")
