"""What bounds the memory of a whole tree of processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import time
from pathlib import Path
from typing import Protocol

MEGABYTE = 1 << 20
CURRENT_V1, CURRENT_V2 = "memory.usage_in_bytes", "memory.current"


class Group(Protocol):
    """The bound of one sandbox."""

    @property
    def joins(self) -> tuple[str, ...]:
        """Files to which the sandbox's first process writes `0`, which means itself."""

    def exceeded(self) -> bool:
        """Whether the bound was hit: the kernel had to kill something."""

    def peak(self) -> float | None:
        """Highest use so far in megabytes."""

    def current(self) -> float | None:
        """Use now in megabytes, as the bound counts it; None if nobody has looked yet."""

    @property
    def freezable(self) -> Path | None:
        """The directory whose `cgroup.freeze` stops all its processes, where there is one."""

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
    freezable: Path | None = None

    def __init__(self) -> None:
        self.highest: float | None = None
        self.latest: float | None = None

    def exceeded(self) -> bool:
        """Never by itself."""
        return False

    def peak(self) -> float | None:
        """What the watchdog saw, once it has looked."""
        return self.highest

    def current(self) -> float | None:
        """What the watchdog saw last."""
        return self.latest

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

    def __init__(self, path: Path, join: str, events: str, peak: str, current: str) -> None:
        self.path, self._events, self._peak, self._current = path, events, peak, current
        self.joins = (str(path / join),)

    @property
    def freezable(self) -> Path | None:
        """Version 2 only: in version 1 the freezer is a hierarchy of its own, and what it holds can't be killed."""
        return self.path if self._current == CURRENT_V2 else None

    def exceeded(self) -> bool:
        """Whether the kernel killed for memory."""
        found = re.search(r"^oom_kill (\d+)$", _read(self.path / self._events), re.MULTILINE)
        return bool(found and int(found[1]))

    def peak(self) -> float | None:
        """Peak, where this kernel knows it."""
        return self._megabytes(self._peak)

    def current(self) -> float | None:
        """As the kernel counts it, caches of files included."""
        return self._megabytes(self._current)

    def _megabytes(self, name: str) -> float | None:
        text = _read(self.path / name).strip()
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
            return CgroupGroup(path, "tasks", "memory.oom_control", "memory.max_usage_in_bytes", CURRENT_V1)
        (path / "memory.max").write_text(size)
        _write_where_there(path / "memory.swap.max", "0")
        _write_where_there(path / "memory.oom.group", "1")
        if processes:
            _write_where_there(path / "pids.max", str(processes + 8))  # RLIMIT_NPROC is the bound; this is behind it
        return CgroupGroup(path, "cgroup.procs", "memory.events", "memory.peak", CURRENT_V2)

    def close(self) -> None:
        """Remove what is empty."""
        _remove_empty(self.parent)


def find(spawner: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Cgroup | Watchdog:
    """The best that the spawner's place in the cgroup hierarchies allows; the watchdog where that is nothing.

    Version 2: below our own group if it distributes memory, or else beside it: a group that holds processes can't
    distribute, so whoever is given a subtree moves to a leaf of it first. As real root, below the top. Version 1:
    below our own group, as root. A scope that `scope_prefix` made counts as ours.
    """
    reasons = []
    for version, parent in _places(_read(proc / str(spawner) / "cgroup"), root):
        _remove_stale(parent, proc)
        made = parent / f"sia-{os.getpid()}-{spawner}"
        enforcer = Cgroup(made, version, f"cgroup v{version}", f"groups are made below {made}")
        try:
            made.mkdir()
            if version == 2:
                (made / "cgroup.subtree_control").write_text("+memory +pids")
            enforcer.group(64, None).close()
        except OSError as error:
            reasons.append(f"cgroup v{version}: {error.strerror}")
            enforcer.close()
            continue
        return enforcer
    return Watchdog("; ".join(dict.fromkeys(reasons)) or "no memory controller found")


def _places(own: str, root: Path) -> list[tuple[int, Path]]:
    """(version, directory) below which groups may be made, best first."""
    places: list[tuple[int, Path]] = []
    for line in own.splitlines():
        number, controllers, inside = line.split(":", 2)
        if number == "0" and "memory" in _read(root / "cgroup.controllers").split():
            group = root / inside.lstrip("/")
            delegated = [] if group.parent.suffix == ".slice" else [(2, group.parent)]  # slices are systemd's own
            places += [(2, group), *delegated, (2, root)]
        elif "memory" in controllers.split(","):
            places.append((1, root / "memory" / inside.lstrip("/")))
    return sorted(places, key=lambda place: -place[0])


def _remove_stale(parent: Path, proc: Path) -> None:
    """Groups of supervisors that were killed: their processes died with them, the directories did not."""
    for left in _stale(parent, proc):
        _remove_empty(left)


def _remove_empty(group: Path) -> None:
    """Remove a group and those in it, where nothing runs any more. Others may be doing the same right now."""
    inner: list[Path] = []
    with contextlib.suppress(OSError):
        inner = list(group.glob("*/"))
    for path in (*inner, group):
        with contextlib.suppress(OSError):
            path.rmdir()


def stale(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> list[Path]:
    """Groups of dead supervisors near our own place in the hierarchies."""
    return [left for _, parent in _places(_read(proc / "self/cgroup"), root) for left in _stale(parent, proc)]


def _stale(parent: Path, proc: Path) -> list[Path]:
    owners = {left: left.name.split("-")[1:] for left in parent.glob("sia-*-*/")}
    return [left for left, pids in owners.items() if not any((proc / pid).exists() for pid in pids)]


def scope_prefix(root: Path = Path("/sys/fs/cgroup")) -> list[str]:
    """Words before the spawner's command that put it into a delegated scope of the user's systemd; [] if there is none.

    A scope costs a round trip to systemd once per host, not once per launch.
    """
    program = shutil.which("systemd-run")
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    there = (Path(runtime) / "systemd/private").exists() and "memory" in _read(root / "cgroup.controllers").split()
    if not program or not there or os.geteuid() == 0:
        return []
    words = ["env", f"XDG_RUNTIME_DIR={runtime}", program, "--user", "--scope", "--quiet", "--collect"]
    return [*words, "--property=Delegate=yes", "--"]


def enter_scope(spawner: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Cgroup | Watchdog:
    """The enforcer for a spawner that runs in a scope of its own.

    A group that holds processes can't distribute memory, so the spawner moves to a leaf first.
    """
    inside = _read(proc / str(spawner) / "cgroup").strip().rpartition(":")[2]
    scope = root / inside.lstrip("/")
    try:
        leaf = scope / "spawner"
        leaf.mkdir()
        (leaf / "cgroup.procs").write_text(str(spawner))
        (scope / "cgroup.subtree_control").write_text("+memory +pids")
        enforcer = Cgroup(scope, 2, "systemd scope", f"groups are made in {scope}")
        enforcer.group(64, None).close()
    except OSError as error:
        return Watchdog(f"systemd scope: {error.strerror}")
    return enforcer


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write_where_there(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        path.write_text(text)
