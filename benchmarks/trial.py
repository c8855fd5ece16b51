"""What a whole trial costs: one script, stop, a verifier that writes a reward. Everything in it is real."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Figure, command
from orchestrator import answers, candidates, database
from orchestrator.agent_build import AgentBuild
from orchestrator.config import CampaignLimits, Settings
from orchestrator.engines.host import EngineHost
from orchestrator.environments import verifier_environment
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import open_home
from orchestrator.repository import Repository
from orchestrator.services import HomeServices
from orchestrator.supervisor_socket import SupervisorServer
from orchestrator.task_files import TaskFiles, prepare
from orchestrator.tasks import load_task
from orchestrator.trial import TrialContext, TrialSpec, run_trial
from sandbox.host import Host

ROOT = Path(__file__).resolve().parent.parent
SINGLE, MANY, AT_ONCE = 15, 40, 2
YARDSTICK = "python -c 'import lxml.etree, psutil'"
POLICY = """
[[rule]]
when = "not(single)"
answer = "<single>echo 42 > answer</single>"
[[rule]]
when = "true()"
answer = "<stop/>"
"""
TASK = {
    "instruction.md": "Write 42 into answer.\n",
    "task.toml": "",
    "environment/start.txt": "start\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\nexit 0\n",
}


@dataclass
class _Bench:
    context: TrialContext
    build: AgentBuild
    task: TaskFiles
    number: int = 0

    def spec(self) -> TrialSpec:
        """The next trial."""
        self.number += 1
        name = f"t{self.number}"
        directory = self.context.home.campaigns / "c1" / name
        limits = CampaignLimits(seconds=60.0, iterations=5)
        return TrialSpec(name, "c1", "baseline", self.build, self.task, self.number, 1, limits, directory)

    def run(self, spec: TrialSpec) -> None:
        """Run it; it has to end as it should."""
        record = run_trial(self.context, spec)
        if (record.outcome, record.reward, record.iterations) != ("completed", 1.0, 2):
            raise RuntimeError(f"the trial did not go as planned: {record}")


@contextmanager
def _bench() -> Iterator[_Bench]:
    """A throw-away repository with this agent, its environment, an engine and a task."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sia-bench-")))
        repository = place / "repo"
        shutil.copytree(ROOT / "instance", repository / "instance", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("procedures", "tools"):
            shutil.copytree(ROOT / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "action_schema.xsd", repository / "action_schema.xsd")
        _commit(repository)
        home = open_home(repository)
        database.connect(home.database).close()
        settings = Settings.model_validate({"agent": {"build_environments": True}})
        build = candidates.build(home, settings, Repository(home).ensure().head())
        environment = verifier_environment(home)
        for name, content in TASK.items():
            (place / "task" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "task" / name).write_text(content)
        (place / "policy.toml").write_text(POLICY)
        words = ("python", "-m", "orchestrator.engines.scripted", str(place / "policy.toml"))
        engine = EngineHost("bench", words, ROOT, place / "engine.log")
        host = Host.detect(home.root)
        stack.callback(host.close)
        task = prepare(load_task(place / "task"), host, home.campaigns / "files")
        stack.callback(answers.close_checkers)
        store = ExchangeStore(home.exchanges, home.database)
        stack.callback(store.close)
        server = SupervisorServer(home.run, HomeServices(home, settings.agent.paths))
        stack.callback(server.close)
        stack.callback(engine.close)
        engine.start()
        engine.wait_ready()
        yield _Bench(TrialContext(host, home, engine, store, environment, server), build, task)


def _commit(repository: Path) -> None:
    person = {f"GIT_{role}_{key}": "bench" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "HOME": str(repository), "GIT_CONFIG_NOSYSTEM": "1", **person}
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "agent"]):
        subprocess.run(["git", *words], cwd=repository, env=env, check=True, capture_output=True)


def measure() -> list[Figure]:
    """One trivial trial, and forty of them two at a time, against the yardstick."""
    yardstick = command([sys.executable, "-c", "import lxml.etree, psutil"])
    with _bench() as bench:
        bench.run(bench.spec())  # warms what a campaign shares
        starts, singles, rounds = [], [], []
        for _ in range(SINGLE):
            starts.append(_seconds(yardstick))
            spec = bench.spec()
            singles.append(_seconds(lambda spec=spec: bench.run(spec)))
        for _ in range(3):
            specs = [bench.spec() for _ in range(MANY)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                rounds.append(_seconds(lambda specs=specs, pool=pool: list(pool.map(bench.run, specs))))
            starts += [_seconds(yardstick) for _ in range(5)]
    start, single, many = statistics.median(starts), statistics.median(singles), min(rounds)
    return [
        Figure("one trivial trial", single / start, 6.0, YARDSTICK, f"{single * 1000:.0f} ms : {start * 1000:.0f} ms"),
        Figure(
            f"{MANY} trivial trials, {AT_ONCE} at once",
            many / (MANY * start / AT_ONCE),
            3.5,
            f"{MANY} × {YARDSTICK} / {AT_ONCE}",
            f"{many:.2f} s, {many / MANY * 1000:.0f} ms each",
        ),
    ]


def _seconds(call: object) -> float:
    begun = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - begun
