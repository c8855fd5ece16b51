"""What a killed supervisor leaves is seen, and cleared by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox import memory, orphans
from sandbox.host import Host

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]
SUPERVISOR = """
import os, socket, sys
from pathlib import Path
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Overlay, SandboxSpec
state = Path(sys.argv[1])
host = Host.detect(state)
(state / "run").mkdir(exist_ok=True)
socket.socket(socket.AF_UNIX).bind(str(state / "run" / f"s-{os.getpid()}-1"))
trial = "campaigns/c1/trials/t1"
for place in ("conformance/ab12", "cache/check-1", f"{trial}/layers", f"{trial}/verifier"):
    (state / place / "lower").mkdir(parents=True)
    host.own(state / place / "lower")
    upper, work = host.make_upper(state / place, "0")
    overlay = Overlay("/app", (state / place / "lower",), upper, work)
    script = "mkdir -p a/b; echo x > a/b/c; chmod 0 a; sleep 3600"
    Sandbox.start(host, SandboxSpec(("sh", "-c", script), "/app", overlays=(overlay,)))
print("ready", flush=True)
input()
"""


def kinds(state: Path, wanted: int) -> list[str]:
    """Kinds of orphans, as soon as there are so many (the kernel needs a moment to end things)."""
    deadline = time.monotonic() + 30
    while True:
        found = sorted(orphan.kind for orphan in orphans.look(state) if orphan.kind != "group")
        if len(found) == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_left_and_cleared(tmp_path: Path) -> None:
    state = tmp_path / "state"
    words = [sys.executable, "-c", SUPERVISOR, str(state)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout and supervisor.stdout.readline() == b"ready\n"
        assert kinds(state, 0) == []  # all of it has a living owner
        with Host.detect(state):
            assert (state / "conformance/ab12").exists()  # another's
        supervisor.send_signal(signal.SIGKILL)
    (state / "campaigns/c1/trials/t1/stdout.txt").touch()  # what is kept stays
    assert kinds(state, 5) == [*["layers"] * 4, "socket"]
    with Host.detect(state):
        assert kinds(state, 1) == ["socket"]  # the next server's to sweep
    assert [path for pattern in orphans.TEMPORARY for path in state.glob(pattern)] == []
    assert [path.name for path in (state / "campaigns/c1/trials/t1").iterdir()] == ["stdout.txt"]


def test_a_process_without_spawner_is_named(tmp_path: Path) -> None:
    for pid, parent, words in ((7, 1, "/runner 5 6 7 8 9 python agent.py"), (8, 9, "/runner 5 6 7 8 9 true")):
        entry = tmp_path / str(pid)
        entry.mkdir()
        (entry / "cmdline").write_bytes("\0".join([*words.split(), ""]).encode())
        (entry / "stat").write_text(f"{pid} (runner) S {parent} 0 0")
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cmdline").write_bytes(b"python\0/x/sandbox/spawner.py\0")
    (tmp_path / "9" / "stat").write_text("9 (python) S 1 0 0")
    found = orphans.look(tmp_path, tmp_path, tmp_path)
    assert [(orphan.kind, orphan.what) for orphan in found] == [("process", "7: python agent.py ")]


def test_groups_of_the_dead(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("9:memory:/\n")
    for name in ("sia-999999999-999999998", f"sia-{os.getpid()}-1"):
        (tmp_path / "memory" / name).mkdir(parents=True)
    (tmp_path / str(os.getpid())).mkdir()
    assert [path.name for path in memory.stale(tmp_path, tmp_path)] == ["sia-999999999-999999998"]


def test_a_directory_that_no_host_ever_used(tmp_path: Path) -> None:
    (tmp_path / "cache/check-1").mkdir(parents=True)
    assert [orphan for orphan in orphans.look(tmp_path) if orphan.kind == "layers"] == []
