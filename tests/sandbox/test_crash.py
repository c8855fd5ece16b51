"""The supervisor is killed at the worst moment: nothing of its sandboxes survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

SUPERVISOR = """
import sys
from pathlib import Path
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import SandboxSpec
host = Host.detect(Path(sys.argv[1]))
print("launching", flush=True)
sandboxes = [Sandbox.start(host, SandboxSpec(("sleep", sys.argv[2]), "/tmp")) for _ in range(5)]
print("launched", flush=True)
input()
"""


def survivors(mark: str) -> list[str]:
    """Processes whose command line holds `mark`, this one and its children aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and b"-c" not in words[:3]:
            found.append(f"{path.parent.name}: {words}")
    return found


def test_sigkill_of_the_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """While all run; `test_kill.py` does it while they are launched."""
    for number in range(2):
        mark = f"{os.getpid()}.{number + 100}"  # seconds to sleep: long enough, and nobody else's
        command = [sys.executable, "-c", SUPERVISOR, str(tmp_path / "state"), mark]
        supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert supervisor.stdin and supervisor.stdout
        assert supervisor.stdout.readline() == b"launching\n"
        assert supervisor.stdout.readline() == b"launched\n"
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        deadline = time.monotonic() + 30
        while survivors(mark) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert survivors(mark) == []
        supervisor.stdin.close()
        supervisor.stdout.close()


def test_groups_of_a_killed_supervisor_are_removed(tmp_path: Path) -> None:
    from sandbox.memory import _remove_stale

    stale, living = tmp_path / "sia-999999999-999999998", tmp_path / f"sia-{os.getpid()}-1"
    for place in (stale, living):
        (place / "3").mkdir(parents=True)
    _remove_stale(tmp_path, Path("/proc"))
    assert [path.name for path in tmp_path.iterdir()] == [living.name]
