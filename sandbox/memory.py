"""What bounds the memory of a whole tree of processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path
from typing import Protocol

MEGABYTE = 1 << 20


class Group(Protocol):
    """The bound of one sandbox."""

    @property
    def joins(self) -> tuple[str, ...]:
        """Files to which the sandbox's first process writes `0`, which means itself."""

    def exceeded(self) -> bool:
        """Whether the bound was hit: the kernel had to kill something."""

    def peak(self) -> float | None:
        """Highest use so far in megabytes."""

    def close(self) -> None:
        """Give the group back; the sandbox has ended."""


class Enforcer(Protocol):
    """A way of bounding memory. `name` goes into every outcome."""

    @property
    def name(self) -> str:
        """As in `Outcome.memory_enforcer`."""

    @property
    def why(self) -> str:
        """For a person."""

    def group(self, memory_mb: int, processes: int | None) -> Group:
        """A bound for one launch. Raises OSError."""

    def close(self) -> None:
        """Remove what was made."""


class Watched:
    """No cgroup to be had: watch.py adds up the tree's memory and kills. This only remembers the peak."""

    joins: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.highest: float | None = None

    def exceeded(self) -> bool:
        """Never by itself."""
        return False

    def peak(self) -> float | None:
        """What the watchdog saw, once it has looked."""
        return self.highest

    def close(self) -> None:
        """Nothing to give back."""


class Watchdog:
    """The enforcer where there is no cgroup."""

    name = "watchdog"

    def __init__(self, why: str) -> None:
        self.why = why

    def group(self, memory_mb: int, processes: int | None) -> Watched:
        """Nothing to prepare."""
        return Watched()

    def close(self) -> None:
        """Nothing to remove."""


class CgroupGroup:
    """One directory in a cgroup hierarchy."""

    def __init__(self, path: Path, join: str, events: str, peak: str) -> None:
        self.path, self._events, self._peak = path, events, peak
        self.joins = (str(path / join),)

    def exceeded(self) -> bool:
        """Whether the kernel killed for memory."""
        found = re.search(r"^oom_kill (\d+)$", _read(self.path / self._events), re.MULTILINE)
        return bool(found and int(found[1]))

    def peak(self) -> float | None:
        """Peak, where this kernel knows it."""
        text = _read(self.path / self._peak).strip()
        return int(text) / MEGABYTE if text.isdigit() else None

    def close(self) -> None:
        """Remove the directory; its last processes may need a moment to be gone."""
        for _ in range(50):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.002)
            else:
                return


class Cgroup:
    """Groups below `parent`, of version 1 or 2."""

    def __init__(self, parent: Path, version: int, name: str, why: str) -> None:
        self.parent, self.version, self.name, self.why = parent, version, name, why
        self._numbers = itertools.count()

    def group(self, memory_mb: int, processes: int | None) -> CgroupGroup:
        """A new directory with its bounds written."""
        path = self.parent / str(next(self._numbers))
        path.mkdir()
        size = str(memory_mb * MEGABYTE)
        if self.version == 1:
            (path / "memory.limit_in_bytes").write_text(size)
            _write_where_there(path / "memory.memsw.limit_in_bytes", size)
            # A thread that moves itself by `tasks` needs no global lock; `cgroup.procs` waits 8 ms for a grace period.
            return CgroupGroup(path, "tasks", "memory.oom_control", "memory.max_usage_in_bytes")
        (path / "memory.max").write_text(size)
        _write_where_there(path / "memory.swap.max", "0")
        _write_where_there(path / "memory.oom.group", "1")
        if processes:
            _write_where_there(path / "pids.max", str(processes + 8))  # RLIMIT_NPROC is the bound; this is behind it
        return CgroupGroup(path, "cgroup.procs", "memory.events", "memory.peak")

    def close(self) -> None:
        """Remove what is empty."""
        for path in (*self.parent.glob("*/"), self.parent):
            with contextlib.suppress(OSError):
                path.rmdir()


def find(spawner: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Cgroup | Watchdog:
    """The best that this process can have: cgroup v2 where a subtree is ours, v1 as root, else the watchdog."""
    own = _own_groups(proc)
    reasons = []
    for version, mount, inside in own_places(own, root):
        parent = mount / inside.lstrip("/") / f"sia-{os.getpid()}-{spawner}"
        try:
            parent.mkdir()
        except OSError as error:
            reasons.append(f"cgroup v{version}: {error.strerror}")
            continue
        enforcer = Cgroup(parent, version, f"cgroup v{version}", f"groups are made below {parent}")
        try:
            enforcer.group(64, None).close()
        except OSError as error:
            reasons.append(f"cgroup v{version}: {error.strerror}")
            enforcer.close()
            continue
        return enforcer
    return Watchdog("; ".join(reasons) or "no memory controller found")


def own_places(own: str, root: Path) -> list[tuple[int, Path, str]]:
    """(version, mount point, our group) of every hierarchy that has a memory controller."""
    places: list[tuple[int, Path, str]] = []
    for line in own.splitlines():
        number, controllers, inside = line.split(":", 2)
        if number == "0" and (root / "cgroup.controllers").exists():
            places.append((2, root, inside))
        elif "memory" in controllers.split(","):
            places.append((1, root / "memory", inside))
    return sorted(places, reverse=True)


def _own_groups(proc: Path) -> str:
    return _read(proc / "self/cgroup")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write_where_there(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text)
