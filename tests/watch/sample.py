"""A home as SIA leaves it after some weeks of work, made by the project's own stores in a moment.

Three campaigns are over or left off, one is half done; four promotions were tried; the main instance and some trials
run, one of them paused, one hanging, one written by somebody hostile. Everything is real (SQLite, journals, git) but
the processes: this one owns the running instances. The clock and all ids are fixed, so that pictures of it are the
same every time: look at it within `sample.clock()`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from orchestrator import campaign, candidates, database, locks, running
from orchestrator.campaign_store import CampaignStore, find_judged
from orchestrator.campaign_view import BASELINE, ArmRow, TaskRow, lock_path
from orchestrator.config import Campaign, load_settings
from orchestrator.exchanges import ExchangeStore
from orchestrator.generations import Ledger
from orchestrator.home import Home, open_home
from orchestrator.journal import Exchange, Journal
from orchestrator.kept_changes import ChangeList
from orchestrator.messages import MessageLog
from orchestrator.plan import PlannedTrial, plan
from orchestrator.promotion import ensure_first
from orchestrator.repository import Repository
from orchestrator.supervisor_lock import supervisor_lock
from orchestrator.task_files import KEY_LENGTH, content_key
from orchestrator.trial_record import OutcomeName
from sandbox.diff import Change
from tests.watch import sample_text
from tests.watch.sample_git import Checkout
from tests.watch.sample_records import PRICE, append, hostile_entry, record, result
from tests.watch.sample_text import HOSTILE, HOSTILE_NAME, INSTRUCTIONS, Memory, Step, script

HOUR = 3600.0
NOW = 1_936_310_400.0 + 14 * HOUR + 300  # the moment that the sample shows: 2031-05-12 14:05 UTC
SPAN = 14 * HOUR + 300  # how long before that it began
LIMIT = 60.0  # seconds of one trial


@dataclass(frozen=True)
class Size:
    """How much there is. `instances` count main; `long` entries has the longest journal, `output` bytes its output."""

    instances: int = 8
    tasks: int = 8
    repeats: int = 2
    long: int = 40
    output: int = 4_000
    journals: int = 1_000  # trials of the half-done campaign that have one


CHANGES = (
    Change("out", "added", is_directory=True, size=0),
    Change("out/result.txt", "added", is_directory=False, size=3),
    Change("start.txt", "modified", is_directory=False, size=8),
)
SMALL = Size()
LARGE = Size(instances=64, tasks=50, repeats=10, long=10_000, output=1_000_000, journals=20)


class Clock:
    """Unix time as the sample has it; it stands still until somebody moves it."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._tokens = itertools.count(1)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """While the block runs `time.time()` is this clock, and `secrets.token_hex` counts."""
        with mock.patch.object(time, "time", lambda: self.now), mock.patch.object(secrets, "token_hex", self._token):
            yield

    def _token(self, nbytes: int | None = None) -> str:
        return f"{next(self._tokens):0{2 * (nbytes or 32)}x}"


@dataclass
class Sample:
    """What was built. Ids that tests look for are attributes; `running` are the trials at work, in order."""

    home: Home
    size: Size
    clock: Clock
    connection: sqlite3.Connection
    campaigns: CampaignStore
    store: ExchangeStore
    done: str = ""  # a finished campaign, with a better, a worse and a disqualified candidate
    inconclusive: str = ""
    interrupted: str = ""
    current: str = ""  # the campaign at work
    main: str = ""  # the main instance's id
    long: str = ""  # the running trial with the longest journal and the largest output
    hanging: str = ""
    paused: str = ""
    hostile: str = ""  # the running trial whose names and outputs are hostile; "" if none
    running: list[str] = field(default_factory=list)
    _journals: dict[str, Journal] = field(default_factory=dict)

    def directory(self, trial: str) -> Path:
        """Where a trial keeps its files."""
        return self.home.campaigns / trial.partition("t")[0] / "trials" / trial

    def journal(self, instance: str) -> Journal:
        """The open journal of a running instance."""
        return self._journals[instance]

    def tick(self, seconds: float = 1.0) -> None:
        """The fleet works on for a moment: every running row changes, as its owner would write it."""
        self.clock.now += seconds
        now, actions = self.clock.now, itertools.cycle(("single", "reasoning", "read_stdin", "write_stdout"))
        still = (self.hanging, self.paused)
        values = [
            (next(actions), seconds * (0.1 + 0.08 * ((int(now * 2) * 7 + number * 13) % 10)), now, name)
            for number, name in enumerate(self.running)
            if name not in still
        ]
        with database.transaction(self.connection):
            self.connection.executemany(
                "UPDATE running SET iterations = iterations + 1, tokens = tokens + 812, last_action = ?,"
                " cpu = cpu + ?, updated = ? WHERE id = ?",
                values,
            )
            self.connection.execute("UPDATE running SET updated = ? WHERE id = ?", (now, self.main))

    def say(self, instance: str, step: Step, context: str = "<context/>") -> Exchange:
        """One more exchange in the journal of a running instance."""
        return append(self._journals[instance], self.clock.now, context, step.answer)

    def live(self, instance: str, answer: str, state: str = "answering") -> Path:
        """What the broker writes of an instance that somebody looks at: the answer so far."""
        path = self.home.run / "live" / f"{instance}.json"
        path.parent.mkdir(exist_ok=True)
        number = self._journals[instance].entries + 1
        values = {"n": number, "asked": self.clock.now - 2, "context": "<context/>", "answer": answer, "state": state}
        path.write_text(json.dumps(values), encoding="utf-8")
        return path

    def finish(self, trial: str, reward: float = 1.0, outcome: OutcomeName = "completed", detail: str = "") -> None:
        """A running trial ends."""
        row = self.connection.execute("SELECT arm, task, repeat, started FROM trial WHERE id = ?", (trial,)).fetchone()
        planned = PlannedTrial(trial, row["arm"], row["task"], row["repeat"], 0)
        seconds = self.clock.now - row["started"]
        self.campaigns.finish_trial(record(self.current, planned, outcome, detail, reward, seconds))
        self.running.remove(trial)


@contextmanager
def build(directory: Path, size: Size = SMALL, *, hostile: bool = True, now: float = NOW) -> Iterator[Sample]:
    """The sample below `directory` (made if missing); its locks are held while the block runs.

    `now`: the moment that it shows, Unix seconds; with the real one it can be looked at by other processes.
    """
    clock = Clock(now)
    with ExitStack() as stack:
        with clock():
            sample = _Builder(directory, size, clock, stack).build(hostile)
        yield sample


class _Builder:
    def __init__(self, directory: Path, size: Size, clock: Clock, stack: ExitStack) -> None:
        self.clock, self.stack, self.size = clock, stack, size
        self.now = clock.now
        self.start = clock.now = clock.now - SPAN
        known = list(INSTRUCTIONS)[: size.tasks]
        self.tasks = known + [f"task-{number:02}" for number in range(len(known), size.tasks)]
        self.checkout = Checkout(directory / "repo", self.tasks)
        self.checkout.begin(self.start)
        self.home = open_home(self.checkout.root)
        self.connection = stack.enter_context(closing(database.connect(self.home.database)))
        self.connection.execute("PRAGMA synchronous=OFF")  # nobody loses anything if this is cut off
        self.store = stack.enter_context(closing(ExchangeStore(self.home.exchanges)))
        self.ledger, self.campaigns = Ledger(self.connection), CampaignStore(self.connection)
        self.repository = Repository(self.home)
        self.settings = load_settings(self.home.checkout)
        self.sample = Sample(self.home, size, clock, self.connection, self.campaigns, self.store)
        self.rows = tuple(
            TaskRow(
                name,
                str(self.checkout.root / "tasks" / name),
                content_key(self.checkout.root / "tasks" / name),
                "train",
            )
            for name in self.tasks
        )
        self.with_journal = size.journals

    def build(self, hostile: bool) -> Sample:
        sample = self.sample
        ensure_first(self.home, self.settings, self.connection)
        small = self.rows[:8]
        for name in ("show-more", "worse", "cheater"):
            self.checkout.branch(name, self.start + HOUR)
        sample.done = self._campaign(self.start + 2 * HOUR, ("show-more", "worse", "cheater"), small, 2)
        self._promote("show-more", self.start + 4 * HOUR)
        self.checkout.branch("trim-logs", self.start + 5 * HOUR)
        sample.inconclusive = self._campaign(self.start + 6 * HOUR, ("trim-logs",), small, 1)
        self._promote("trim-logs", self.start + 7 * HOUR, accepted="it keeps the disk free", holds=False)
        for name in ("careful-reader", "fewer-tokens"):
            self.checkout.branch(name, self.start + 8 * HOUR)
        sample.interrupted = self._campaign(self.start + 9 * HOUR, ("fewer-tokens",), small, 2, until=0.6)
        self._proposal(self.start + 10 * HOUR, hostile)
        self._main(self.start + 11 * HOUR)
        arms = ("careful-reader", "fewer-tokens", *((HOSTILE_NAME,) if hostile else ()))
        arms += tuple(f"idea-{number}" for number in range(len(arms), 3)) if self.size.tasks > 8 else ()
        sample.current = self._campaign(self.now - 600, arms, self.rows, self.size.repeats, until=0.5, at_work=True)
        with _at_once(self.store):
            self._instances(hostile)
        self.clock.now = self.now
        return sample

    # -- campaigns ----------------------------------------------------------------------------------------------------

    def _campaign(
        self,
        moment: float,
        names: Sequence[str],
        tasks: Sequence[TaskRow],
        repeats: int,
        *,
        until: float = 1.0,
        at_work: bool = False,
    ) -> str:
        """One campaign, of which the first part `until` is done."""
        self.clock.now = moment
        spec = Campaign.model_validate(
            {"candidates": list(names), "tasks": ["tasks/*"], "repeats": repeats, "engine": "demo"}
        )
        baseline = self.ledger.standing().generation
        arms = [ArmRow(BASELINE, "baseline", baseline.commit, baseline.commit, baseline.tree)]
        arms += [self._arm(name, baseline.commit) for name in names]

        def planned(name: str) -> list[PlannedTrial]:
            if at_work:
                what = lock_path(self.home, name)
                self.stack.enter_context(locks.hold(what, "it runs", "wait"))
            return plan(name, names, [task.name for task in tasks], repeats, spec.seed)

        setup = {"agent": self.settings.agent.model_dump(mode="json"), "engine": ["python", "-m", "demo"]}
        name = self.campaigns.create(
            file="campaign.toml",
            spec=spec.model_dump(mode="json"),
            setup=setup,
            baseline=baseline.commit,
            arms=arms,
            tasks=tasks,
            plan=planned,
        )
        trials = plan(name, names, [task.name for task in tasks], repeats, spec.seed)
        last = int(len(trials) * until)
        out: set[str] = set()  # arms whose other trials are not run any more
        for number, trial in enumerate(trials[:last]):
            if trial.arm not in out:
                self._trial(name, trial, moment + 1 + 590 * number / len(trials))
            if trial.arm == "cheater":
                out.add(trial.arm)
        self.clock.now = moment + 590 * until
        if until == 1.0:
            view = self.campaigns.view(name)
            self.campaigns.conclude(name, campaign.conclude(view).values())
        elif not at_work:
            self.campaigns.interrupt(name)
        return name

    def _arm(self, name: str, baseline: str) -> ArmRow:
        if name == HOSTILE_NAME or name.startswith("idea-"):  # names that git does not allow, or that nobody looks into
            return ArmRow(name, "candidate", "0" * 40, "0" * 40, "1" * 40)
        made = candidates.prepare(self.repository, self.settings, name, baseline)
        return ArmRow(name, "candidate", made.proposed, made.judged, made.tree, made.left_out)

    def _trial(self, campaign: str, trial: PlannedTrial, moment: float) -> None:
        chance = random.Random(f"{trial.id}/{trial.arm}/{trial.task}")
        steps = chance.randrange(5, 12)
        seconds = round(2 + steps * chance.uniform(0.3, 0.9), 2)
        self.clock.now = moment
        self.campaigns.start_trial(trial.id, f"{trial.task} × {trial.arm} × {trial.repeat}", LIMIT)
        head = ""
        if self.with_journal > 0:
            self.with_journal -= campaign != self.sample.done
            journal = self._journal(trial, campaign)
            self._work(journal, sample_text.work(trial.task, chance, steps), moment, seconds / steps)
            head = journal.seal()
            self._files(trial.id, f"{trial.task}: done, see the file\n".encode())
            changes = ChangeList(self.sample.directory(trial.id))
            for change in CHANGES:
                changes.add("/app", change)
            changes.close()
        self.clock.now = moment + seconds
        outcome, detail, reward = result(trial, chance)
        ended = record(campaign, trial, outcome, detail, reward, seconds, steps, head)
        self.campaigns.finish_trial(ended)

    # -- promotions ---------------------------------------------------------------------------------------------------

    def _promote(self, name: str, moment: float, *, accepted: str | None = None, holds: bool = True) -> None:
        """A promotion that a person approved; it becomes healthy, or its three boots crash and it is rolled back."""
        self.clock.now, ledger = moment, self.ledger
        judged = find_judged(self.connection, name)
        old = ledger.standing().generation.commit
        ledger.stage(name, judged.judged, judged.tree, campaign=judged.campaign, accepted=accepted, old=old)
        ledger.approve("person")
        ledger.freeze(0)
        self.repository.move_main(judged.judged, old)
        number = ledger.moved().new
        for boot in range(1 if holds else 3):
            self.clock.now += 20
            ledger.count_launch()
            nonce = f"main-{int(self.clock.now)}"
            ledger.begin_launch(nonce, None)
            self.clock.now += 30
            if holds:
                ledger.count_valid(nonce, 5, 0)
                ledger.healthy(nonce)
                ledger.end_launch(nonce, 0, "stopped")
            else:
                cause = f"crash: exit code 3 after {boot + 2} s"
                ledger.end_launch(nonce, 3, cause)
                ledger.failed(cause)
        if not holds:
            self.repository.set_ref(f"refs/sia/bad/{number}", judged.judged)
            self.repository.move_main(old, judged.judged)
            ledger.returned()
            ledger.held_up()

    def _proposal(self, moment: float, hostile: bool) -> None:
        """What the main instance proposed from inside."""
        commit = self.ledger.standing().generation.commit
        branch, why = ("faster-reads", "reading twice is slow")
        if hostile:
            branch, why = HOSTILE_NAME, HOSTILE
        self.connection.execute(
            "INSERT INTO proposal (commit_id, base, tip, branch, why, origin, left_out, created)"
            " VALUES (?, ?, ?, ?, ?, 'main', 0, ?)",
            ("2" * 40, commit, "3" * 40, branch, why, moment),
        )

    # -- what runs ----------------------------------------------------------------------------------------------------

    def _main(self, moment: float) -> None:
        self.clock.now = moment
        sample, generation = self.sample, self.ledger.standing().generation
        self.stack.enter_context(supervisor_lock(self.home, "supervise"))
        sample.main = f"main-20310512-110000-{secrets.token_hex(4)}"
        self.ledger.begin_launch(sample.main, None)
        running.RunningRow(self.connection, sample.main, f"generation {generation.number}", "running")
        messages = MessageLog(self.home.main / "messages.log")
        for text in ("Remember: the tide turns at 14:05", "What did I ask you to remember?"):
            messages.append(text)
        meta = {"kind": "main", "commit": generation.commit, "tree": generation.tree}
        journal = Journal.create(self.store, sample.main, meta)
        sample._journals[sample.main] = journal
        self._work(journal, sample_text.work("main", random.Random(4), 30), moment, 300.0)
        self.ledger.count_valid(sample.main, journal.entries, messages.size())
        self.clock.now = moment + 290 * 30
        self._row(sample.main, self.home.main, journal, 31.5, 96.0)
        (self.home.main / "stdout.log").write_bytes(b"Noted. I remember: the tide turns at 14:05\n")

    def _instances(self, hostile: bool) -> None:
        """The trials at work: the next ones of the plan."""
        sample, size = self.sample, self.size
        view = self.campaigns.view(sample.current)
        waiting = [trial for trial in view.trials if trial.state == "planned"][: size.instances - 1]
        sample.running = [trial.id for trial in waiting]
        sample.long, sample.hanging, sample.paused = sample.running[:3]
        if hostile:
            sample.hostile = next(trial.id for trial in waiting[3:] if trial.arm == HOSTILE_NAME)
        for number, trial in enumerate(waiting):
            planned = PlannedTrial(trial.id, trial.arm, trial.task, trial.repeat, trial.position)
            self._running(planned, number, 48.0 if trial.id == sample.hanging else 4.0 + 33.0 * (number % 5) / 5)

    def _running(self, trial: PlannedTrial, number: int, age: float) -> None:
        sample, chance = self.sample, random.Random(trial.id)
        self.clock.now = begun = self.now - age
        self.campaigns.start_trial(trial.id, f"{trial.task} × {trial.arm} × {trial.repeat}", LIMIT)
        journal = sample._journals[trial.id] = self._journal(trial, sample.current)
        count = self.size.long if trial.id == sample.long else chance.randrange(4, 14)
        steps: Iterator[Step] = itertools.islice(sample_text.work(trial.task, chance, count + 2), count)
        last = begun + 5.0 if trial.id == sample.hanging else self.now - 1.0
        if trial.id == sample.long:
            steps = itertools.chain(steps, [script("cat big.txt", ("x" * 79 + "\n") * (self.size.output // 80))])
        if trial.id == sample.hostile:
            steps = itertools.chain(steps, [Step(f"<reasoning>{HOSTILE}</reasoning>", hostile_entry())])
        self._work(journal, steps, begun, (last - begun) / (count + 2))
        out = HOSTILE.encode() + b"\xff\xfe\n" if trial.id == sample.hostile else b"working on it\n"
        out += b"." * self.size.output if trial.id == sample.long else b""
        self._files(trial.id, out)
        self._layers(sample.directory(trial.id), trial.task)
        paused = self.now - 10 if trial.id == sample.paused else None
        self.clock.now = last
        self._row(trial.id, sample.directory(trial.id), journal, 0.4 * age, 40.0 + number % 7, paused)

    def _row(
        self, name: str, directory: Path, journal: Journal, cpu: float, memory: float, paused: float | None = None
    ) -> None:
        """The counts that its owner wrote last."""
        tokens = journal.entries * 812
        now = running.Now(
            iterations=journal.entries,
            tokens=tokens,
            cost=tokens * PRICE,
            last_action="read_stdin" if name == self.sample.main else "single",
            cpu=cpu,
            memory_mb=memory,
            disk_mb=1.5,
            paused=paused,
            journal=journal.id,
            directory=str(directory),
        )
        running.write(self.connection, {name: now})

    # -- files and journals -------------------------------------------------------------------------------------------

    def _journal(self, trial: PlannedTrial, campaign: str) -> Journal:
        meta = {"kind": "trial", "campaign": campaign, "arm": trial.arm, "task": trial.task, "repeat": trial.repeat}
        return Journal.create(self.store, trial.id, meta)

    def _work(self, journal: Journal, steps: Iterator[Step], moment: float, every: float) -> None:
        memory = Memory(8)
        for number, step in enumerate(steps):
            append(journal, moment + number * every, memory.context(moment + number * every, number % 90), step.answer)
            memory.take(step)

    def _files(self, trial: str, stdout: bytes) -> None:
        place = self.sample.directory(trial)
        place.mkdir(parents=True, exist_ok=True)
        (place / "stdout.txt").write_bytes(stdout)
        (place / "stderr.txt").write_bytes(b"instance: ready\n")
        told = self.connection.execute("SELECT task FROM trial WHERE id = ?", (trial,)).fetchone()["task"]
        (place / "stdin.txt").write_text(sample_text.instruction(told) + "\n", encoding="utf-8")

    def _layers(self, directory: Path, task: str) -> None:
        """What it changed on its disk so far: a file added, one changed, one deleted; its own state."""
        files = self._starting_files(task)
        for name, content in {"start.txt": "start\n", "gone.txt": "away with it\n"}.items():
            (files / name).write_text(content)
        upper = directory / "layers" / "0" / "upper"
        (upper / "out").mkdir(parents=True)
        (upper / "out" / "result.txt").write_text("42\n")
        (upper / "start.txt").write_text("changed\n")
        os.mknod(upper / "gone.txt", stat.S_IFCHR, os.makedev(0, 0))  # what an overlay writes for a deleted file
        state = directory / "layers" / "d" / "upper" / "state"
        state.mkdir(parents=True)
        (state / "agent.xml").write_text("<state/>\n")

    def _starting_files(self, task: str) -> Path:
        """Where the campaign at work keeps its copy of a task's files."""
        key = next(row.key for row in self.rows if row.name == task)
        files = self.home.campaigns / self.sample.current / "tasks" / f"{task}-{key[:KEY_LENGTH]}" / "files" / "0"
        files.mkdir(parents=True, exist_ok=True)
        return files


@contextmanager
def _at_once(store: ExchangeStore) -> Iterator[None]:
    """Entries of open journals in one transaction: ten thousand commits would take most of the time."""
    connection = store.connection

    @contextmanager
    def joined(other: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        if other is connection:
            yield connection
        else:
            with transaction(other):
                yield other

    transaction = database.transaction
    nowhere = mock.patch.object(store, "sync", lambda: None)  # a power cut may take all of it
    with transaction(connection), mock.patch.object(database, "transaction", joined), nowhere:
        yield
