"""Whether a task's reward means something: the oracle gives 1, nothing gives 0, and known tricks give 0."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.captured import Stop, run_captured
from orchestrator.forgeability import Mark, read_mark, write_mark
from orchestrator.home import Home
from orchestrator.task_files import TaskFiles
from orchestrator.tricks import Trick, tricks
from orchestrator.verifier import ENVIRONMENT, Reward, VerifierTools, task_limits, verify
from sandbox.host import Host
from sandbox.process import Outcome
from sandbox.spec import Bind, Overlay, SandboxSpec

OUTPUT_CAP = 4 * 1024 * 1024  # bytes of a solution's output that are kept, as of an instance's
TRIES = 2  # of the oracle, before a trial's failed verifier is blamed on the task
SOLUTION_SECONDS = 600.0  # for tasks without [agent] timeout_sec


@dataclass(frozen=True)
class Finding:
    """One thing that was tried on a task. `name`: oracle, nothing, or a trick's. `reward`: what the tests gave."""

    name: str
    expected: float
    reward: float | None
    passed: bool
    detail: str


@dataclass(frozen=True)
class TaskCheck:
    """What `sia task check` found about one task."""

    task: str
    key: str
    findings: tuple[Finding, ...]
    forgeable: tuple[str, ...] | None  # tricks that won; None = not tried

    @property
    def passed(self) -> bool:
        """Whether everything gave the reward that it should."""
        return all(finding.passed for finding in self.findings)


def check_task(
    host: Host,
    home: Home,
    files: TaskFiles,
    tools: VerifierTools,
    scratch: Path,
    *,
    adversarial: bool = False,
    stop: Stop | None = None,
) -> TaskCheck:
    """Try the oracle, nothing and, if asked, the tricks; keep the mark for trials and reports."""
    lab = _Lab(host, home, files, tools, scratch, stop)
    findings = lab.basics()
    forgeable: tuple[str, ...] | None = None
    if adversarial:
        attempts = [lab.trick(trick) for trick in tricks(files)]
        forgeable = tuple(finding.name for finding in attempts if not finding.passed)
        findings += attempts
    write_mark(home, files.key, Mark(all(finding.passed for finding in findings[:2]), forgeable))
    return TaskCheck(files.task.name, files.key, tuple(findings), forgeable)


def broken_by_oracle(
    host: Host,
    home: Home,
    files: TaskFiles,
    tools: VerifierTools,
    scratch: Path,
    *,
    stop: Stop | None = None,
) -> str:
    """Why the task itself is at fault when its tests give no reward: the oracle fails too. "" if it is not.

    Known from the mark of an earlier check, else tried now (and then known). A task without an oracle is not doubted,
    and one failure is not believed: a busy machine, say, must not put a task out of every later campaign.
    """
    mark = read_mark(home, files.key)
    if mark is not None or files.solution is None:
        return "" if mark is None or mark.oracle else "`sia task check` fails"
    lab = _Lab(host, home, files, tools, scratch / "oracle", stop)
    for _ in range(TRIES):
        faults = "; ".join(f"{finding.name}: {finding.detail}" for finding in lab.basics() if not finding.passed)
        if not faults:
            break
    write_mark(home, files.key, Mark(not faults, None))
    return faults


@dataclass(frozen=True)
class _Lab:
    host: Host
    home: Home
    files: TaskFiles
    tools: VerifierTools
    scratch: Path
    stop: Stop | None

    def basics(self) -> list[Finding]:
        """What must hold for every task."""
        return [self.oracle(), self.nothing()]

    def oracle(self) -> Finding:
        """solution/solve.sh, run like an agent's script, must give 1."""
        solution = self.files.solution
        if solution is None or not (solution / "solve.sh").is_file():
            return Finding("oracle", 1.0, None, False, "the task has no solution/solve.sh")
        return self._try("oracle", 1.0, ("/bin/bash", "/solution/solve.sh"), (Bind(solution, "/solution"),), {})

    def nothing(self) -> Finding:
        """The untouched starting files must give 0."""
        return self._try("nothing", 0.0, None, (), {})

    def trick(self, trick: Trick) -> Finding:
        """A trick must give 0."""
        command = (f"{ENVIRONMENT}/bin/python3", "-I", "/trick.py")
        return self._try(trick.name, 0.0, command, (), {"/trick.py": trick.script})

    def _try(
        self,
        name: str,
        expected: float,
        command: tuple[str, ...] | None,
        binds: tuple[Bind, ...],
        memory_files: dict[str, bytes],
    ) -> Finding:
        layers = self.scratch / "layers"
        self.scratch.mkdir(parents=True, exist_ok=True)
        stdout = self.scratch / "stdout.txt"
        stdout.write_bytes(b"")
        try:
            overlays = [
                Overlay(place, (root,), *self.host.make_upper(layers, str(number)))
                for number, (place, root) in enumerate(self.files.roots.items())
            ]
            if command is not None:
                spec = self._spec(command, tuple(overlays), binds, memory_files)
                outcome = run_captured(self.host, spec, stdout, OUTPUT_CAP, stop=self.stop, keep_stderr=False)
                problem = _problem(outcome)
                if problem and expected:
                    return Finding(name, expected, None, False, problem)
            uppers = {overlay.dest: overlay.upper for overlay in overlays}
            reward = verify(self.host, self.home, self.files, uppers, stdout, self.tools, self.scratch, stop=self.stop)
            return _finding(name, expected, reward)
        finally:
            self.host.remove(layers)

    def _spec(
        self,
        command: tuple[str, ...],
        overlays: tuple[Overlay, ...],
        binds: tuple[Bind, ...],
        memory_files: dict[str, bytes],
    ) -> SandboxSpec:
        task = self.files.task
        env = {
            **task.env,
            "PATH": f"{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/home/agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return SandboxSpec(
            command=command,
            workdir=task.workdir,
            env=env,
            binds=(*binds, Bind(self.tools.environment, ENVIRONMENT)),
            overlays=overlays,
            files=memory_files,
            limits=task_limits(task, task.agent_timeout or SOLUTION_SECONDS),
            python=self.tools.environment / "bin" / "python",
            network=task.network or "none",
            rootfs=task.rootfs,
        )


def _problem(outcome: Outcome) -> str:
    if outcome.setup_error is not None:
        return f"the sandbox could not be set up: {outcome.setup_error}"
    if outcome.limit is not None:
        return f"went over the limit of {outcome.limit}"
    if outcome.exit_code != 0:
        ending = f"exit code {outcome.exit_code}" if outcome.exit_code is not None else f"signal {outcome.signal}"
        return f"ended with {ending}"
    return ""


def _finding(name: str, expected: float, reward: Reward) -> Finding:
    """No countable reward is as good as 0 for tricks, but not for the oracle or for nothing."""
    if reward.outcome == "invalid":
        return Finding(name, expected, None, False, reward.detail)
    if reward.outcome == "failed":
        return Finding(name, expected, 0.0, name not in ("oracle", "nothing"), reward.detail)
    passed = reward.value == expected
    return Finding(name, expected, reward.value, passed, "" if passed else f"reward {reward.value:g}")
