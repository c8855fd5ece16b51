"""Which memory enforcer is chosen, on directories that look like cgroup hierarchies; and the one that was found here.

A kernel has its memory controller in one hierarchy only. `scripts/test-vm` runs this file where that is version 2, and
says with SIA_TEST_ENFORCER which enforcer each of its set-ups must find.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PosixPath

import pytest

from sandbox import memory, usage
from sandbox.host import Host
from sandbox.memory import Cgroup
from sandbox.process import Sandbox
from sandbox.spec import Limits, SandboxSpec


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/5").mkdir(parents=True)
    return tmp_path / "proc"


def test_version_2_is_preferred(tmp_path: Path, proc: Path) -> None:
    (proc / "5/cgroup").write_text("4:memory:/v1\n0::/mine\n")
    root = tmp_path / "cgroup"
    (root / "mine").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    found = memory.find(5, root, proc)
    assert (found.name, found.parent) == ("cgroup v2", root / "mine" / f"sia-{os.getpid()}-5")  # type: ignore[union-attr]
    assert (root / "mine" / f"sia-{os.getpid()}-5" / "cgroup.subtree_control").read_text() == "+memory +pids"
    group = found.group(100, 20)
    path = Path(group.joins[0])
    assert path.name == "cgroup.procs"
    assert (path.parent / "memory.max").read_text() == str(100 << 20)
    assert not group.exceeded() and group.peak() is None
    (path.parent / "memory.events").write_text("oom 1\noom_kill 1\n")
    (path.parent / "memory.peak").write_text(f"{5 << 20}\n")
    assert group.exceeded() and group.peak() == 5.0


def test_nothing_usable_means_the_watchdog_and_says_why(tmp_path: Path, proc: Path) -> None:
    (proc / "5/cgroup").write_text("4:memory:/gone\n")
    found = memory.find(5, tmp_path / "cgroup", proc)
    assert found.name == "watchdog"
    assert "cgroup v1: No such file" in found.why
    assert memory.find(6, tmp_path / "cgroup", proc).why == "no memory controller found"


def test_a_scope_moves_the_spawner_to_a_leaf(tmp_path: Path, proc: Path) -> None:
    (proc / "5/cgroup").write_text("0::/user.slice/run-1.scope\n")
    scope = tmp_path / "cgroup/user.slice/run-1.scope"
    scope.mkdir(parents=True)
    found = memory.enter_scope(5, tmp_path / "cgroup", proc)
    assert found.name == "systemd scope"
    assert (scope / "spawner/cgroup.procs").read_text() == "5"
    assert (scope / "cgroup.subtree_control").read_text() == "+memory +pids"
    gone = memory.enter_scope(7, tmp_path / "nothing", proc)
    assert gone.name == "watchdog"


class Vanishing(PosixPath):
    """Removed by another host between two looks at it."""

    def glob(self, *_: object, **__: object) -> Iterator[Path]:  # type: ignore[override]
        raise FileNotFoundError(self)


def test_stale_groups_may_vanish_meanwhile(tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left/0").mkdir(parents=True)
    monkeypatch.setattr(memory, "_stale", lambda *_: [Vanishing(tmp_path / "gone"), tmp_path / "left"])
    memory._remove_stale(tmp_path, proc)
    assert not (tmp_path / "left").exists()


def test_whoever_was_given_a_subtree_uses_it_beside_his_leaf(tmp_path: Path, proc: Path) -> None:
    (proc / "5/cgroup").write_text("0::/sia.service/leaf\n")
    root = tmp_path / "cgroup"
    (root / "sia.service/leaf").mkdir(parents=True)
    (root / "sia.service/leaf").chmod(0o555)
    (root / "cgroup.controllers").write_text("memory\n")
    assert memory._places("0::/sia.service/leaf", root)[1] == (2, root / "sia.service")
    assert memory._places("0::/a.slice/leaf", root)[1] == (2, root)


@pytest.mark.sandbox
@pytest.mark.usefixtures("mode")
def test_what_was_found_here_holds_everything_inside(host: Host, inside: Callable) -> None:
    expected = os.environ.get("SIA_TEST_ENFORCER")
    assert expected in (None, host.memory_enforcer), host.memory.why
    print(host.memory_enforcer, "·", host.memory.why)
    outcome, _ = inside("x = bytearray(90 << 20)", python=True, limits=Limits(memory_mb=200, seconds=60))
    assert (outcome.exit_code, outcome.limit, outcome.memory_enforcer) == (0, None, host.memory_enforcer)
    bomb = "import os, time\np = [os.fork() for _ in range(3)]\nx = bytearray(60 << 20)\ntime.sleep(60)"
    bombed, _ = inside(bomb, python=True, limits=Limits(memory_mb=200, seconds=60))
    assert (bombed.limit, bombed.signal) == ("memory", 9)
    enforcer = host.memory
    if not isinstance(enforcer, Cgroup):
        return
    assert outcome.peak_memory_mb is None or 90 < outcome.peak_memory_mb < 200  # Linux 5.19 tells it in version 2
    spec = SandboxSpec(("sh", "-c", "sleep 60 & sh -c 'sleep 60; :' & wait"), "/tmp", limits=Limits(memory_mb=200))
    reading, writing = os.pipe()
    with Sandbox.start(host, spec, stdout=writing) as sandbox:
        assert sandbox.group is not None
        file = Path(sandbox.group.joins[0])
        while len(tree := usage.tree(sandbox.pid)) < 5:
            assert not sandbox.ended
        assert set(tree) <= {int(word) for word in file.read_text().split()}
        if enforcer.version == 2:
            assert (file.parent / "memory.max").read_text() == f"{200 << 20}\n"
            assert (file.parent / "memory.oom.group").read_text() == "1\n"
            assert (file.parent / "pids.max").read_text() == f"{256 + 8}\n"
    os.close(reading)
    os.close(writing)
    assert [path.name for path in enforcer.parent.glob("*/")] in ([], ["spawner"])
    host.close()
    assert not enforcer.parent.exists()
