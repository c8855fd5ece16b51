"""Which memory enforcer is chosen, on directories that look like cgroup hierarchies.

Version 1 as root and the watchdog run for real in test_limits.py; a kernel has its memory controller in one hierarchy
only, so the choice among the others is tested on look-alikes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PosixPath

import pytest

from sandbox import memory


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
