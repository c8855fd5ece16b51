"""How an instance is started: the same for main, trial and conformance; its streams and signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.agent_build import AgentBuild
from orchestrator.broker import Budget, Line
from orchestrator.instances import Instance, InstanceSetup, instance_spec, skeletons
from orchestrator.journal import Journal
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit

BUILD = AgentBuild(
    commit="c" * 40,
    tree="t" * 40,
    export=Path("/home/x/.sia/exports/c"),
    environment=Path("/home/x/.sia/envs/e"),
    bundle=Path("/home/x/.sia/cache/b.bundle"),
    command=("python", "-P", "-m", "instance"),
    schema=b"",
)


def test_spec_is_exactly_the_contract() -> None:
    overlay = Overlay("/app", (Path("/lower"),), Path("/upper"), Path("/work"))
    limits = Limits(seconds=5.0)
    setup = InstanceSetup(BUILD, "/app", (overlay,), {"LANG": "fr", "PATH": "/evil", "TASK": "1"}, limits)
    assert instance_spec(setup, Path("/home/x/.sia/run/s-1")) == SandboxSpec(
        command=("python", "-P", "-m", "instance"),
        workdir="/app",
        env={
            "TASK": "1",
            "PATH": "/opt/agent-env/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/home/agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": "/tmp",
            "PYTHONPATH": "/root/sia",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SIA_ENGINE_FD": "3",
        },
        binds=(
            Bind(Path("/home/x/.sia/exports/c"), "/root/sia"),
            Bind(Path("/home/x/.sia/envs/e"), "/opt/agent-env"),
            Bind(Path("/home/x/.sia/cache/b.bundle"), "/run/sia/agent.bundle"),
            Bind(Path("/home/x/.sia/run/s-1"), "/run/sia/supervisor.sock"),
        ),
        overlays=(overlay,),
        limits=limits,
        hostname="instance",
        network="none",
        python=Path("/home/x/.sia/envs/e/bin/python"),
    )


def test_only_overlays_tell_main_from_trial() -> None:
    """Nothing but the user's files differs: same variables, binds, limits, host name."""
    main = instance_spec(InstanceSetup(BUILD, "/app", (Overlay("/app", (), Path("/m"), Path("/w")),)), Path("/s"))
    trial = instance_spec(InstanceSetup(BUILD, "/app", (Overlay("/app", (), Path("/t"), Path("/v")),)), Path("/s"))
    for name in SandboxSpec.__dataclass_fields__:
        assert (getattr(main, name) == getattr(trial, name)) is (name != "overlays")


Start = Callable[[str], tuple[Instance, bytearray]]


@pytest.fixture
def start(kit: TrialKit) -> Iterator[Start]:
    """Starts a program as an instance; returns it and its growing output."""
    engine = kit.engine()
    with ExitStack() as stack:

        def launch(program: str) -> tuple[Instance, bytearray]:
            journal = Journal.create(kit.store, "i", {})
            line = Line(engine, journal, Budget(), b"", lambda n: n)
            line.start()
            stack.callback(line.close)
            skeleton = skeletons(kit.host, kit.home.root).data
            uppers = kit.home.root / "uppers"
            overlays = (
                Overlay("/app", (kit.tools.empty,), *kit.host.make_upper(uppers, "a")),
                Overlay("/root/data", (skeleton,), *kit.host.make_upper(uppers, "d")),
            )
            setup = InstanceSetup(kit.instance(program), "/app", overlays)
            socket = kit.server.listen("i")
            output = bytearray()
            errors = kit.directory / "stderr.txt"
            instance = Instance.start(kit.host, setup, line, socket, output.extend, errors)
            stack.callback(instance.close)
            return instance, output

        yield launch


ASK = """
    import os, socket
    engine = socket.socket(fileno=int(os.environ["SIA_ENGINE_FD"]))
    def ask(request=b"<token_limit/>"):
        engine.sendall(request + b"\\x04")
        reply = b""
        while not reply.endswith(b"\\x04"):
            reply += engine.recv(65536)
        return reply[:-1].decode()
"""


@pytest.mark.sandbox
def test_what_an_instance_sees(start: Start) -> None:
    instance, output = start(
        ASK
        + """
    import pathlib, socket as s, sys
    print(sorted(os.listdir("/root/data")), os.getcwd(), os.getuid(), os.getgid(), socket.gethostname())
    print(sorted(os.environ))
    for path in ("/root/sia/x", "/root/data/state/x", "/app/x", "/home/agent/x", "/tmp/x"):
        try:
            pathlib.Path(path).write_text("x")
            print(path, "written")
        except OSError as error:
            print(path, error.errno)
    print(ask())
    supervisor = s.socket(s.AF_UNIX)
    supervisor.connect("/run/sia/supervisor.sock")
    supervisor.sendall(b"<status/>\\x04")
    print(supervisor.recv(1000).decode().rstrip("\\x04"))
    print(os.path.isfile("/run/sia/agent.bundle"), sys.stdin.readline())
    """
    )
    instance.send(b"hello\n")
    outcome = instance.wait(20)
    assert outcome is not None and outcome.exit_code == 0, outcome
    lines = output.decode().splitlines()
    assert lines[0] == "['iterations', 'state', 'tasks', 'user'] /app 1000 1000 instance"
    assert set(eval(lines[1])) <= {
        *("HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "SIA_ENGINE_FD", "TERM", "TMPDIR"),
        *("OLDPWD", "SHLVL", "_", "LC_CTYPE"),
    }
    assert lines[2].startswith("/root/sia/x 30")
    assert all(line.endswith("written") for line in lines[3:7])
    assert int(lines[7]) > 0
    assert lines[8:] == ["The supervisor runs. No campaign has ended yet.", "True hello", ""]


@pytest.mark.sandbox
def test_signals_only_after_the_first_request(start: Start, kit: TrialKit) -> None:
    instance, output = start(
        ASK
        + """
    import signal, sys, time
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(42))
    print("up", flush=True)
    sys.stdin.readline()
    ask()
    print("asked", flush=True)
    while True:
        time.sleep(0.05)
    """
    )
    _until(lambda: b"up" in output)
    assert not instance.request_restart()
    instance.send(b"go\n")
    _until(lambda: b"asked" in output)
    assert instance.request_restart()
    outcome = instance.wait(10)
    assert outcome is not None and outcome.exit_code == 42
    assert instance.untaken_stdin() == 0


@pytest.mark.sandbox
@pytest.mark.parametrize(("asks", "expected"), [(True, 0), (False, None)])
def test_terminate(start: Start, asks: bool, expected: int | None) -> None:
    instance, output = start(
        ASK
        + f"""
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if {asks}:
        ask()
    print("up", flush=True)
    time.sleep(100)
    """
    )
    _until(lambda: b"up" in output)
    begun = time.monotonic()
    outcome = instance.terminate(5.0)
    assert time.monotonic() - begun < 4
    assert outcome.exit_code == expected
    assert asks or outcome.signal == signal.SIGKILL


@pytest.mark.sandbox
def test_one_that_ignores_sigterm_is_killed(start: Start) -> None:
    instance, output = start(
        ASK
        + """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        time.sleep(100)
    ask()
    print("up", flush=True)
    time.sleep(100)
    """
    )
    _until(lambda: b"up" in output)
    outcome = instance.terminate(0.3)
    assert outcome.signal == signal.SIGKILL


@pytest.mark.sandbox
def test_stdin_stays_open_and_is_counted(start: Start) -> None:
    instance, output = start(
        """
    import os, sys, time
    print(len(os.read(0, 5)), flush=True)
    time.sleep(100)
    """
    )
    instance.send(b"x" * 500_000)
    _until(lambda: b"5" in output)
    assert instance.untaken_stdin() == 499_995
    assert instance.wait(0.2) is None
    instance.kill()
    assert instance.wait(5) is not None
    instance.close()
    assert instance.untaken_stdin() == 499_995


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)
