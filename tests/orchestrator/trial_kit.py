"""What tests of trials share: a home with ready environments, tiny tasks, tiny instances, and real engines.

A test module takes the fixtures with `environments, kit = trial_kit.environments, trial_kit.kit`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator import answers, database
from orchestrator.agent_build import AgentBuild
from orchestrator.config import CampaignLimits
from orchestrator.engines.host import EngineHost
from orchestrator.environments import agent_environment, verifier_environment
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import Home, open_home
from orchestrator.services import HomeServices
from orchestrator.supervisor_socket import SupervisorServer
from orchestrator.task_files import TaskFiles, prepare
from orchestrator.tasks import load_task
from orchestrator.trial import TrialContext, TrialRecord, TrialSpec, run_trial
from orchestrator.verifier import VerifierTools
from sandbox.host import Host

TOP = Path(__file__).parents[2]
AGENT_PATHS = ("instance", "procedures", "tools", "action_schema.xsd")
# For what does not depend on the rights: `pytestmark = ONE_MODE`, or as a decorator.
ONE_MODE = pytest.mark.parametrize("mode", ["user" if os.geteuid() else "root"])
STOPS = '[[rule]]\nwhen = "true()"\nanswer = "<stop/>"\n'
FORTY_TWO = 'if [ "$(cat answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


class TrialKit:
    """Everything that a trial needs, made on demand; `run` runs one."""

    def __init__(self, directory: Path, environments: Path, stack: ExitStack) -> None:
        self.directory, self.stack = directory, stack
        (directory / "repo/.git").mkdir(parents=True)
        self.home: Home = open_home(directory / "repo")
        self.home.environments.symlink_to(environments)
        self.verifier_env = verifier_environment(self.home)
        database.connect(self.home.database).close()
        self.host = stack.enter_context(Host.detect(self.home.root))
        self.store = ExchangeStore(self.home.exchanges, self.home.database)
        stack.callback(self.store.close)
        self.server = SupervisorServer(self.home.run, HomeServices(self.home, AGENT_PATHS))
        stack.callback(self.server.close)
        self.tools = VerifierTools.prepare(self.host, self.home, self.verifier_env)
        self._number = itertools.count(1)
        self._context: TrialContext | None = None

    def engine(self, policy: str = STOPS) -> EngineHost:
        """The scripted engine with this policy, running."""
        number = next(self._number)
        file = self.directory / f"policy-{number}.toml"
        file.write_text(policy)
        command = ("python", "-m", "orchestrator.engines.scripted", str(file))
        engine = EngineHost("test", command, TOP, self.directory / f"engine-{number}.log")
        engine.start()
        self.stack.callback(engine.close)
        return engine

    def context(self, policy: str = STOPS) -> TrialContext:
        """A context with an engine of its own."""
        engine = self.engine(policy)
        return TrialContext(self.host, self.home, engine, self.store, self.verifier_env, self.server)

    def task(self, test: str = FORTY_TWO, toml: str = "", files: dict[str, str] | None = None) -> TaskFiles:
        """A task with these tests; its oracle writes 42 into `answer`."""
        path = self.directory / f"task-{next(self._number)}"
        for name, content in {
            "instruction.md": "Write 42 into answer.\n",
            "task.toml": toml,
            "tests/test.sh": test,
            "solution/solve.sh": "echo 42 > answer\n",
            "environment/start.txt": "start\n",
            **(files or {}),
        }.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(content)
        return prepare(load_task(path), self.host, self.home.root / "files")

    def instance(self, program: str) -> AgentBuild:
        """A build whose instance is this Python program."""
        return self._build({"instance/__main__.py": textwrap.dedent(program), "instance/__init__.py": ""})

    def agent(self) -> AgentBuild:
        """A build of the standard agent as it is in the working tree."""
        requirements = (TOP / "instance/requirements.txt").read_bytes()
        return self._build({}, agent_environment(self.home, requirements, build=True))

    def _build(self, files: dict[str, str], environment: Path | None = None) -> AgentBuild:
        export = self.directory / f"export-{next(self._number)}"
        for name in () if files else AGENT_PATHS:
            source = TOP / name
            if source.is_dir():
                shutil.copytree(source, export / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, export / name)
        for name, content in files.items():
            (export / name).parent.mkdir(parents=True, exist_ok=True)
            (export / name).write_text(content)
        bundle = export.with_suffix(".bundle")
        bundle.write_bytes(b"")
        schema = (TOP / "action_schema.xsd").read_bytes()
        command = ("python", "-P", "-m", "instance")
        commit = hashlib.sha1(str(export).encode()).hexdigest()
        return AgentBuild(commit, commit, export, environment or self.verifier_env, bundle, command, schema)

    def spec(self, build: AgentBuild, task: TaskFiles, **limits: object) -> TrialSpec:
        """A trial of `build` on `task`."""
        name = f"t{next(self._number)}"
        values = {"seconds": 20.0, "iterations": 10, "tokens": None} | limits
        bounds = CampaignLimits(**values)  # type: ignore[arg-type]
        return TrialSpec(name, "c1", "baseline", build, task, 1, 7, bounds, self.home.campaigns / "c1" / name)

    def run(self, program: str | AgentBuild, task: TaskFiles | None = None, **limits: object) -> TrialRecord:
        """Run one trial of a program (or build) with an engine that always says stop."""
        build = program if isinstance(program, AgentBuild) else self.instance(program)
        self._context = self._context or self.context()
        return run_trial(self._context, self.spec(build, task or self.task(), **limits))


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where environments are built once for the whole run, all xdist workers (or children of the user) included."""
    if shared := os.environ.get("SIA_TEST_ENVIRONMENTS"):
        return Path(shared)
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "environments"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def kit(mode: str, tmp_path: Path, environments: Path) -> Iterator[TrialKit]:
    """A fresh kit, in both modes; afterwards nothing that it started is left."""
    with ExitStack() as stack:
        stack.callback(answers.close_checkers)
        yield TrialKit(tmp_path, environments, stack)
