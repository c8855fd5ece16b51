"""The reward of a trial: the task's hidden tests over the instance's final files, in a fresh sandbox.

Nothing of the candidate's code, environment or /root/data takes part. The instance's files are a layer below a fresh
upper, mounted last. A reward counts only if test.sh ended by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator import durable
from orchestrator.captured import Stop, run_captured
from orchestrator.forgeability import read_mark
from orchestrator.home import Home
from orchestrator.rewards import NoReward, read_reward
from orchestrator.task_files import TaskFiles
from orchestrator.tasks import Task
from sandbox import confine
from sandbox.connections import Connection
from sandbox.errors import SandboxFailed
from sandbox.host import Host
from sandbox.process import Outcome
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec, Upper

TOOLS = "/opt/verifier/tools"
ENVIRONMENT = "/opt/verifier/env"
OUTPUT_CAP = 256 * 1024  # bytes of the tests' output that are kept
TRIES = 2  # a verifier that fails twice on the same files gives reward 0

_PYTEST = b"""import sys

from pytest import console_main

sys.exit(console_main())
"""


@dataclass(frozen=True)
class VerifierTools:
    """What every verifier sandbox of this home uses."""

    environment: Path  # orchestrator.environments.verifier_environment(home)
    tools: Path  # holds `confine` and `pytest`, first in the PATH
    empty: Path  # an empty directory, the lowest layer of /logs/verifier

    @classmethod
    def prepare(cls, host: Host, home: Home, environment: Path) -> VerifierTools:
        """Write the programs, again only if they differ."""
        tools, empty = home.cache / "verifier-tools", home.cache / "empty"
        for directory in (tools, empty):
            directory.mkdir(parents=True, exist_ok=True)
        host.own(empty)
        source = Path(confine.__file__).read_bytes()
        _program(tools / "confine", b"#!%b/bin/python3 -IS\n%b" % (ENVIRONMENT.encode(), source))
        _program(tools / "pytest", b"#!%b/bin/python3 -P\n%b" % (ENVIRONMENT.encode(), _PYTEST))
        return cls(environment, tools, empty)


@dataclass(frozen=True)
class Reward:
    """`value` is None only when `outcome` is `invalid` (a cause of ours). `detail` says in words what went wrong."""

    value: float | None
    outcome: Literal["ok", "failed", "invalid"]  # failed: no countable reward, so 0
    detail: str
    seconds: float
    forgeable: bool | None  # None: never tried (`sia task check --adversarial`)
    connections: tuple[Connection, ...] = ()  # of the tests, through the task's allow-list


def verify(
    host: Host,
    home: Home,
    files: TaskFiles,
    uppers: Mapping[str, Path],
    stdout: Path,
    tools: VerifierTools,
    scratch: Path,
    *,
    upper: Upper = "disk",
    stop: Stop | None = None,
) -> Reward:
    """Run the task's tests over `files.roots` with `uppers` (place → the ended instance's upper) above them.

    `stdout` is a file of ours with what the instance printed. `scratch` keeps `verifier.txt`, the tests' output.
    `upper`: where the tests' own writes lie.
    Raises `captured.Stopped` when `stop` is set.
    """
    seconds, reason, connections = 0.0, "", list[Connection]()
    forgeable = is_forgeable(home, files)
    for _ in range(TRIES):
        run = _run(host, files, uppers, stdout, tools, scratch, upper, stop)
        seconds += run.seconds
        connections += run.connections
        if run.reward is not None:
            return Reward(run.reward, "ok", "", seconds, forgeable, tuple(connections))
        reason = run.reason
        if run.setup_failed and not _stands_without(host, files, stdout, tools, scratch, upper, stop):
            return Reward(None, "invalid", f"the verifier could not be set up: {reason}", seconds, forgeable)
    return Reward(0.0, "failed", f"no reward counts: {reason}", seconds, forgeable, tuple(connections))


def is_forgeable(home: Home, files: TaskFiles) -> bool | None:
    """Whether reports must say that this task's reward can be forged; None where nobody has tried the tricks on it."""
    if not files.task.safe_path or confine.version() == 0:
        return True
    mark = read_mark(home, files.key)
    return None if mark is None or mark.forgeable is None else bool(mark.forgeable)


def verifier_limits(task: Task, upper: Upper) -> Limits:
    """What bounds a verifier; `upper`: where its own writes lie."""
    return replace(task_limits(task, task.verifier_timeout), upper=upper)


def verifier_spec(
    files: TaskFiles, overlays: tuple[Overlay, ...], stdout: Path, tools: VerifierTools, upper: Upper = "disk"
) -> SandboxSpec:
    """The sandbox of a verifier: a pure function. `overlays` are /logs/verifier's and then those of the places."""
    task = files.task
    env = {
        **task.env,
        "PATH": f"{TOOLS}:{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if task.safe_path:
        env["PYTHONSAFEPATH"] = "1"
    return SandboxSpec(
        command=("/bin/bash", "/tests/test.sh"),
        workdir=task.workdir,
        env=env,
        binds=(
            Bind(files.tests, "/tests"),
            Bind(stdout, "/logs/agent/stdout.txt"),
            Bind(tools.tools, TOOLS),
            Bind(tools.environment, ENVIRONMENT),
        ),
        overlays=overlays,
        limits=verifier_limits(task, upper),
        hostname="verifier",
        network="host" if task.allow_internet else task.network or "none",
        python=tools.environment / "bin" / "python",
        rootfs=task.rootfs,
    )


def task_limits(task: Task, seconds: float) -> Limits:
    """The bounds that a task asks for, the defaults where it asks for none."""
    limits = Limits(seconds=seconds)
    if task.memory_mb is not None:
        limits = replace(limits, memory_mb=task.memory_mb)
    if task.storage_mb is not None:
        limits = replace(limits, disk_mb=task.storage_mb)
    return limits


@dataclass(frozen=True)
class _Run:
    reward: float | None
    reason: str
    seconds: float
    setup_failed: bool = False
    connections: tuple[Connection, ...] = ()


def _run(
    host: Host,
    files: TaskFiles,
    uppers: Mapping[str, Path],
    stdout: Path,
    tools: VerifierTools,
    scratch: Path,
    upper: Upper,
    stop: Stop | None,
) -> _Run:
    layers = scratch / "verifier"
    try:
        space = host.space(layers, verifier_limits(files.task, upper))
        logs, logs_work = host.make_upper(space, "l")
        overlays = [Overlay("/logs/verifier", (tools.empty,), logs, logs_work)]
        for number, (place, root) in enumerate(files.roots.items()):
            lowers = (root, uppers[place]) if place in uppers else (root,)
            overlays.append(Overlay(place, lowers, *host.make_upper(layers, str(number))))
        spec = verifier_spec(files, tuple(overlays), stdout, tools, upper)
        try:
            outcome = run_captured(host, spec, scratch / "verifier.txt", OUTPUT_CAP, stop=stop)
        except SandboxFailed as error:
            return _Run(None, error.what, 0.0, setup_failed=True)
        if outcome.setup_error is not None:
            return _Run(None, outcome.setup_error, outcome.seconds, setup_failed=True)
        failure = _not_by_itself(outcome, files.task)
        run = _Run(None, failure, outcome.seconds, connections=outcome.connections)
        if failure:
            return run
        try:
            return replace(run, reward=read_reward(logs))
        except NoReward as error:
            return replace(run, reason=f"{error} (test.sh exited with {outcome.exit_code})")
    finally:
        host.remove(layers)


def _not_by_itself(outcome: Outcome, task: Task) -> str:
    if outcome.limit == "seconds":
        return f"the tests did not end within {task.verifier_timeout:g} s"
    if outcome.limit:
        return f"the tests went over the limit of {outcome.limit}"
    if outcome.exit_code is None:
        return f"test.sh was ended by signal {outcome.signal}"
    return ""


def _stands_without(
    host: Host,
    files: TaskFiles,
    stdout: Path,
    tools: VerifierTools,
    scratch: Path,
    upper: Upper,
    stop: Stop | None,
) -> bool:
    """Whether the verifier can be set up over the untouched starting files: if so, the instance's files broke it."""
    return not _run(host, files, {}, stdout, tools, scratch, upper, stop).setup_failed


def _program(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        durable.write(path, content, 0o755)
